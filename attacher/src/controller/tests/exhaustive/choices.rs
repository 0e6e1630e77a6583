//! Enumerates histories: a history asks for its choices one by one, and each run replays all of the run before but the last that has
//! another option.

/// The choices of one history after another. In each history at most `faults` of them are not the first option.
#[derive(Debug)]
pub(super) struct Choices {
    /// The option taken, and the number of options.
    taken: Vec<(usize, usize)>,
    asked: usize,
    faults: usize,
}

// === impl Choices ===

impl Choices {
    pub(super) fn new(faults: usize) -> Self {
        Self {
            taken: Vec::new(),
            asked: 0,
            faults,
        }
    }

    /// One of `options`, of which the first is that of an uneventful history.
    pub(super) fn of<T: Copy>(&mut self, options: &[T]) -> T {
        let spent = self.taken[..self.asked]
            .iter()
            .filter(|(taken, _)| *taken > 0)
            .count();
        let count = if spent < self.faults { options.len() } else { 1 };
        if self.asked == self.taken.len() {
            self.taken.push((0, count));
        }
        let (taken, known) = self.taken[self.asked];
        assert_eq!(known, count, "a history must depend on its choices alone");
        self.asked += 1;
        options[taken]
    }

    /// The same history once more.
    pub(super) fn restart(&mut self) {
        self.asked = 0;
    }

    /// Goes on to the next history. Returns whether there is one.
    pub(super) fn advance(&mut self) -> bool {
        assert_eq!(
            self.asked,
            self.taken.len(),
            "a replayed choice was not asked for"
        );
        self.asked = 0;
        while let Some((taken, options)) = self.taken.pop() {
            if taken + 1 < options {
                self.taken.push((taken + 1, options));
                return true;
            }
        }
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
        if !choices.advance() {
            break;
        }
    }
    // "by2" has three faults.
    assert_eq!(seen, ["ax", "ay", "bx1", "bx2", "by1", "cx", "cy"]);
}
