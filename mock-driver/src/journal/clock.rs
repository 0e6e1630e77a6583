use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

/// The wall clock. Durations are measured with tokio's clock, which tests can pause.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

// === impl Clock ===

impl Clock {
    pub(crate) fn system() -> Self {
        Self::new(Timestamp::now)
    }

    /// Another clock, such as that of a simulation.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}
