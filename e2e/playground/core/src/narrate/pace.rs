//! Whether what is narrated goes on by itself or one step at a time.

use tokio::sync::watch;

/// A pace, which the user changes and what is narrated follows.
#[derive(Clone, Debug)]
pub(crate) struct Pace(watch::Sender<State>);

#[derive(Clone, Copy, Debug, Default)]
struct State {
    is_paused: bool,
    /// Steps that the user has asked for while paused and that have not begun.
    steps: usize,
}

// === impl Pace ===

impl Pace {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(State::default()))
    }

    /// Pauses; while paused, lets the next step begin.
    pub(crate) fn pause_or_step(&self) {
        self.0.send_modify(|state| match state.is_paused {
            true => state.steps += 1,
            false => state.is_paused = true,
        });
    }

    /// Goes on by itself.
    pub(crate) fn resume(&self) {
        self.0.send_replace(State::default());
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.0.borrow().is_paused
    }

    /// Waits until the next step may begin.
    pub(crate) async fn turn(&self) {
        let mut states = self.0.subscribe();
        let may_begin = states.wait_for(|state| !state.is_paused || state.steps > 0).await;
        // `self` holds the sender.
        let is_step = may_begin.is_ok_and(|state| state.is_paused);
        if is_step {
            self.0
                .send_modify(|state| state.steps = state.steps.saturating_sub(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn each_step_begins_when_the_user_asks_for_it() {
        let pace = Pace::new();
        let begins = || pace.turn().now_or_never().is_some();
        assert!(begins() && begins());
        pace.pause_or_step();
        assert!(pace.is_paused() && !begins());
        pace.pause_or_step();
        pace.pause_or_step();
        assert!(begins() && begins() && !begins());
        pace.pause_or_step();
        pace.resume();
        assert!(!pace.is_paused() && begins());
        pace.pause_or_step();
        assert!(!begins(), "a step from before the pause is left");
    }
}
