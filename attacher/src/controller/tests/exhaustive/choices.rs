//! Enumerates histories: a history asks for its choices one by one, and each run replays all of the run before but the last that has
//! another option.

/// The choices of one history after another. In each history at most `faults` of them are not the first option.
#[derive(Clone, Debug, Default)]
pub(super) struct Choices {
    /// The option taken, and the number of options.
    taken: Vec<(usize, usize)>,
    asked: usize,
    /// How many more faults this history may have.
    left: usize,
    faults: usize,
}

// === impl Choices ===

impl Choices {
    pub(super) fn new(faults: usize) -> Self {
        Self {
            taken: Vec::new(),
            asked: 0,
            left: faults,
            faults,
        }
    }

    pub(super) fn asked(&self) -> usize {
        self.asked
    }

    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// One of `options`, of which the first is that of an uneventful history.
    pub(super) fn of<T: Copy>(&mut self, options: &[T]) -> T {
        let count = if self.left > 0 { options.len() } else { 1 };
        if self.asked == self.taken.len() {
            self.taken.push((0, count));
        }
        let (taken, known) = self.taken[self.asked];
        assert_eq!(known, count, "a history must depend on its choices alone");
        self.asked += 1;
        self.left -= usize::from(taken > 0);
        options[taken]
    }

    /// Asks again for all choices but the first `kept`, with the same answers.
    pub(super) fn go_back(&mut self, kept: usize) {
        self.asked = kept;
        self.left = self.faults - self.taken[..kept].iter().filter(|(taken, _)| *taken > 0).count();
    }

    /// Goes back, and on to the next history with the same first `kept` choices. Returns whether there is one.
    pub(super) fn advance(&mut self, kept: usize) -> bool {
        assert_eq!(
            self.asked,
            self.taken.len(),
            "a replayed choice was not asked for"
        );
        while self.taken.len() > kept
            && let Some((taken, options)) = self.taken.pop()
        {
            if taken + 1 < options {
                self.taken.push((taken + 1, options));
                self.go_back(kept);
                return true;
            }
        }
        self.go_back(kept);
        false
    }
}

/// All words of two or three letters with at most two that are not the first of their place.
#[test]
fn each_history_is_enumerated_once() {
    let mut choices = Choices::new(2);
    let mut seen = Vec::new();
    loop {
        let first = choices.of(&["a", "b", "c"]);
        let second = choices.of(&["x", "y"]);
        // What follows may depend on what was taken.
        let third = if first == "b" { choices.of(&["1", "2"]) } else { "" };
        seen.push(format!("{first}{second}{third}"));
        if !choices.advance(0) {
            break;
        }
    }
    // "by2" has three faults.
    assert_eq!(seen, ["ax", "ay", "bx1", "bx2", "by1", "cx", "cy"]);
}
