//! Exhaustive choices: a generator that replays the choices of a history and then enumerates the next one, as exhaustigen does.

/// What goes wrong with a request to the API server.
#[derive(Clone, Copy, Debug)]
pub(super) enum ApiFault {
    RequestLost,
    ResponseLost,
    StrayNotFound,
    /// 504 of a proxy; the request took effect.
    StrayTimeout,
    /// The API server executes the request after the attacher has repeated it.
    Late,
    CrashBefore,
    CrashAfter,
}

/// What goes wrong with a call of the driver.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallFault {
    OkWithoutEffect,
    NotFound,
    InvalidArgument,
    Aborted,
    DeadlineWithoutEffect,
    DeadlineWithEffect,
    CrashBefore,
    CrashAfter,
}

const API_FAULTS: [ApiFault; 7] = [
    ApiFault::RequestLost,
    ApiFault::ResponseLost,
    ApiFault::StrayNotFound,
    ApiFault::StrayTimeout,
    ApiFault::Late,
    ApiFault::CrashBefore,
    ApiFault::CrashAfter,
];
const CALL_FAULTS: [CallFault; 8] = [
    CallFault::OkWithoutEffect,
    CallFault::NotFound,
    CallFault::InvalidArgument,
    CallFault::Aborted,
    CallFault::DeadlineWithoutEffect,
    CallFault::DeadlineWithEffect,
    CallFault::CrashBefore,
    CallFault::CrashAfter,
];

/// The choices of one history: a prefix is replayed, and from there on the first option is taken.
#[derive(Clone, Debug)]
pub(in super::super) struct Choices {
    /// The option that was taken, and how many there are.
    taken: Vec<(usize, usize)>,
    next: usize,
    /// How many more faults may happen in this history.
    left: usize,
    bound: usize,
}

// === impl Choices ===

impl Choices {
    /// All histories with at most this many faults.
    pub(in super::super) fn with_faults(bound: usize) -> Self {
        Self {
            taken: Vec::new(),
            next: 0,
            left: bound,
            bound,
        }
    }

    /// Goes on to the next history. Returns whether there is one.
    pub(in super::super) fn advance(&mut self) -> bool {
        (self.next, self.left) = (0, self.bound);
        while let Some((option, options)) = self.taken.pop() {
            if option + 1 < options {
                self.taken.push((option + 1, options));
                return true;
            }
        }
        false
    }

    fn choose(&mut self, options: usize) -> usize {
        if self.next == self.taken.len() {
            self.taken.push((0, options));
        }
        let (option, known) = self.taken[self.next];
        assert_eq!(known, options, "the history must be repeated");
        self.next += 1;
        option
    }

    /// A fault, or, as the first option, none.
    fn fault<F: Copy>(&mut self, faults: &[F]) -> Option<F> {
        if self.left == 0 {
            return None;
        }
        let fault = self.choose(faults.len() + 1).checked_sub(1)?;
        self.left -= 1;
        Some(faults[fault])
    }

    pub(super) fn api_fault(&mut self) -> Option<ApiFault> {
        self.fault(&API_FAULTS)
    }

    pub(super) fn call_fault(&mut self) -> Option<CallFault> {
        self.fault(&CALL_FAULTS)
    }
}
