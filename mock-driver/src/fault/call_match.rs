//! Conditions on what a call has beside its request: the calling process, the deadline and the metadata.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::call_info::CallInfo;
use super::duration::Time;
use super::value_match::ValueMatch;
use crate::journal::Peer;
use crate::rpc::timeout;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PeerMatch {
    pid: Option<ValueMatch>,
    uid: Option<ValueMatch>,
}

/// Conditions on the time until the deadline of the call.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DeadlineMatch {
    exists: Option<bool>,
    greater: Option<Time>,
    less: Option<Time>,
}

// === impl PeerMatch ===

impl PeerMatch {
    pub(super) fn is_set(&self) -> bool {
        self.pid.is_some() || self.uid.is_some()
    }

    pub(super) fn matches(&self, peer: Option<Peer>) -> bool {
        let matches = |wanted: &Option<ValueMatch>, id: Option<i64>| {
            let id: Vec<_> = id.map(|id| Cow::Owned(id.into())).into_iter().collect();
            wanted.as_ref().is_none_or(|wanted| wanted.matches(&id))
        };
        matches(&self.pid, peer.and_then(|peer| peer.pid).map(i64::from))
            && matches(&self.uid, peer.map(|peer| i64::from(peer.uid)))
    }
}

// === impl DeadlineMatch ===

impl DeadlineMatch {
    pub(super) fn is_set(&self) -> bool {
        self.exists.is_some() || self.greater.is_some() || self.less.is_some()
    }

    pub(super) fn matches(&self, call: &dyn CallInfo) -> bool {
        let left = || call.headers().and_then(timeout::of);
        let holds = |than: Option<Time>, is: fn(&Duration, &Duration) -> bool| {
            than.is_none_or(|than| left().is_some_and(|left| is(&left, &than.into())))
        };
        self.exists.is_none_or(|exists| exists == left().is_some())
            && holds(self.greater, Duration::gt)
            && holds(self.less, Duration::lt)
    }
}

/// The texts of an entry of the metadata.
pub(super) fn metadata<'c>(call: &'c dyn CallInfo, key: &str) -> Vec<Cow<'c, Value>> {
    let values = call.headers().map(|headers| headers.get_all(key));
    let texts = values
        .into_iter()
        .flatten()
        .filter_map(|value| value.to_str().ok());
    texts.map(|text| Cow::Owned(text.into())).collect()
}
