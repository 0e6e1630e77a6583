//! Answers of the driver that a case has chosen.

use std::time::Duration;

use attacher_contract::observation::Method;
use tonic::Code;

/// How the driver answers.
#[derive(Clone, Debug)]
pub(in crate::conform) enum Reply {
    /// With this code, without effect.
    Fail(Code),
    /// INTERNAL with a message of this length, without effect.
    FailAtLength(usize),
    /// With this code, after the effect.
    FailAfterEffect(Code),
    /// Never; with or without the effect.
    Hang { effect: bool },
    /// Truthfully, after this time.
    Slow(Duration),
}

/// The calls that get a reply.
#[derive(Clone, Debug)]
pub(in crate::conform) struct Script {
    pub method: Method,
    /// `None`: every node.
    pub node: Option<String>,
    pub reply: Reply,
    /// How often it applies.
    pub times: usize,
}

// === impl Script ===

impl Script {
    pub(in crate::conform) fn of(method: Method, reply: Reply) -> Self {
        Self {
            method,
            node: None,
            reply,
            times: usize::MAX,
        }
    }

    pub(in crate::conform) fn node(self, id: &str) -> Self {
        Self {
            node: Some(id.to_owned()),
            ..self
        }
    }

    pub(in crate::conform) fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }
}
