//! Backend faults: what is wrong with the array itself, for every call, as long as it lasts. Pure: the time and the
//! array's stock are arguments.
//!
//! | `trouble` | what happens |
//! |---|---|
//! | `device-absent` (`volume`, `node`) | attaching succeeds, but no device shows up on the node |
//! | `wrong-device` (`volume`, `node`, `device`) | the publish context names another device and serial |
//! | `dirty-filesystem` (`volume`, `node`, `repairable`) | the filesystem on the device has errors each time it is staged: it is repaired first, or with `repairable: false` staging fails |
//! | `foreign-data` (`volume`, `node`, `data`) | staging finds data of another process on the device, `data: unknown` unless it says which, and must not format it |
//! | `node-gone` (`node`) | attaching to the node answers NOT_FOUND; detaching from it works |
//! | `node-limit` (`node`, `limit`) | a node takes so many volumes, whatever NodeGetInfo says: RESOURCE_EXHAUSTED |
//! | `read-only` (`code`) | whatever would change the array is refused, FAILED_PRECONDITION unless `code` says otherwise |
//! | `busy` (`volume`, `node`, `code`) | changes are refused, ABORTED unless `code` says otherwise |
//! | `quota` (`volumes`, `bytes`) | CreateVolume beyond it answers RESOURCE_EXHAUSTED |
//! | `frozen-list` (`age`) | ListVolumes answers the state of `age` ago, or of when the backend fault began |
//! | `list-lacks` (`volume`) | ListVolumes leaves volumes out |
//! | `list-adds` (`volume`, `node`) | ListVolumes says they are on this node, too; it may be unknown |
//! | `slow-node` (`node`, `time`) | attaches and detaches of a node go one after the other and take that long each |
//! | `rate-limit` (`method`, `per-second`, `burst`, `code`) | calls beyond it are refused, RESOURCE_EXHAUSTED unless `code` says otherwise |
//! | `tracking-off` (`code`) | GetMetadataDelta answers FAILED_PRECONDITION unless `code` says otherwise: the array does not track changes |
//! | `tokens-expired` (`code`) | a list cannot be continued: a call with a token gets ABORTED unless `code` says otherwise |
//! | `state-loss` (`loses`) | when the process ends and comes back, an array with a state directory has lost the `changes` since the backend fault began (unless `loses` says otherwise), its `attachments`, or `everything` |
//! | `not-ready` (`for`) | Probe says that the driver is not ready, for a time or as long as the backend fault lasts |

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tonic::Code;
use wildmatch::WildMatch;

use super::reservation::Reservations;
use super::rule::{CallInfo, Methods};

mod parse;

const PUBLISH: &str = "/csi.v1.Controller/ControllerPublishVolume";
const UNPUBLISH: &str = "/csi.v1.Controller/ControllerUnpublishVolume";
const CREATE: &str = "/csi.v1.Controller/CreateVolume";
const DELTA: &str = "/csi.v1.SnapshotMetadata/GetMetadataDelta";

/// Something wrong with the array.
#[derive(Clone, Debug)]
pub struct BackendFault {
    /// Its name in the journal.
    pub id: String,
    /// Whether it is there from the start.
    pub enabled: bool,
    /// What is wrong.
    pub kind: BackendFaultKind,
    text: Value,
}

/// What is wrong. Patterns that are absent mean all.
#[derive(Clone, Debug)]
pub enum BackendFaultKind {
    /// No device shows up.
    DeviceAbsent(Scope),
    /// Another device shows up.
    WrongDevice {
        /// Where.
        scope: Scope,
        /// Which.
        device: String,
    },
    /// The filesystem on the device has errors.
    DirtyFilesystem {
        /// Where.
        scope: Scope,
        /// They are beyond what is repaired without asking.
        damaged: bool,
    },
    /// Foreign data is on the device.
    ForeignData {
        /// Where.
        scope: Scope,
        /// What it looks like.
        found: &'static str,
    },
    /// A node the array does not know any more.
    NodeGone(Scope),
    /// A node takes fewer volumes than it says.
    NodeLimit {
        /// Which nodes.
        scope: Scope,
        /// How many each.
        limit: u64,
    },
    /// Nothing can be changed.
    ReadOnly(Code),
    /// Nothing can be changed just now.
    Busy {
        /// Where.
        scope: Scope,
        /// The answer.
        code: Code,
    },
    /// There is only so much.
    Quota {
        /// At most so many volumes.
        volumes: Option<u64>,
        /// At most so many bytes in all.
        bytes: Option<u64>,
    },
    /// ListVolumes answers the state of so long ago, or of the backend fault's begin.
    FrozenList(Option<Duration>),
    /// ListVolumes leaves volumes out.
    ListLacks(Scope),
    /// ListVolumes puts volumes on a node.
    ListAdds {
        /// Which volumes.
        scope: Scope,
        /// The node.
        node: String,
    },
    /// Attaches and detaches of a node queue up.
    SlowNode {
        /// Which nodes, each with its own queue.
        scope: Scope,
        /// How long each takes.
        time: Duration,
    },
    /// Only so many calls are taken.
    RateLimit {
        /// Which.
        methods: Option<Methods>,
        /// How many a second.
        per_second: f64,
        /// How many at once after a pause.
        burst: f64,
        /// The answer to the others.
        code: Code,
    },
    /// Unknown what changed between two snapshots.
    TrackingOff(Code),
    /// No list can be gone on with.
    TokensExpired(Code),
    /// The array comes back without something.
    StateLoss(Loses),
    /// Probe says no.
    NotReady(Option<Duration>),
}

/// What an array has lost when it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Loses {
    /// What was changed since the backend fault began: it was restored from a backup of that time, or its write cache
    /// had no battery.
    Changes,
    /// Who has which volume: its export table is empty.
    Attachments,
    /// All it was ever told: it was set up anew.
    Everything,
}

/// Volumes and nodes by pattern.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    volume: Option<WildMatch>,
    node: Option<WildMatch>,
}

/// What the array holds, as far as a quota asks, and what other calls are about to take of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrayUsage {
    /// How many volumes.
    pub volumes: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The bytes the call asks for.
    pub asked: u64,
    /// How many volumes the node of the call has.
    pub on_node: u64,
    /// What the call asks for is there already.
    pub is_repeat: bool,
}

/// What a backend fault does to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Injection {
    /// It has to wait.
    Wait(Duration),
    /// It is refused.
    Refuse {
        /// The code.
        code: Code,
        /// The text.
        message: String,
    },
}

/// What a backend fault remembers of earlier calls.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// When it began, since the driver's start.
    pub(super) since: Duration,
    /// Until when each node's queue is taken.
    queues: HashMap<String, Duration>,
    /// Calls that may still be made, and when that was counted.
    tokens: Option<(f64, Duration)>,
}

// === impl Memory ===

impl Memory {
    /// Of a backend fault that begins now.
    pub(super) fn beginning(now: Duration) -> Self {
        Self {
            since: now,
            ..Self::default()
        }
    }

    /// Takes leave for one call from a bucket that fills with time, and says whether there was one.
    fn take_token(&mut self, per_second: f64, burst: f64, now: Duration) -> bool {
        let (tokens, counted) = self.tokens.unwrap_or((burst, now));
        let gained = now.saturating_sub(counted).as_secs_f64() * per_second;
        let tokens = (tokens + gained).min(burst);
        let is_allowed = tokens >= 1.0;
        self.tokens = Some((if is_allowed { tokens - 1.0 } else { tokens }, now));
        is_allowed
    }
}

// === impl Stock ===

impl ArrayUsage {
    /// Whether what is asked for goes beyond a quota.
    fn is_beyond(self, volumes: Option<u64>, bytes: Option<u64>) -> bool {
        volumes.is_some_and(|most| self.volumes >= most)
            || bytes.is_some_and(|most| self.bytes.saturating_add(self.asked) > most)
    }
}

// === impl Backend fault ===

impl BackendFault {
    /// As it was written.
    pub fn text(&self) -> &Value {
        &self.text
    }
}

impl PartialEq for BackendFault {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

// === impl Scope ===

impl Scope {
    /// Whether a volume and a node are meant.
    pub fn has(&self, volume: &str, node: &str) -> bool {
        let fits = |pattern: &Option<WildMatch>, text: &str| {
            pattern.as_ref().is_none_or(|pattern| pattern.matches(text))
        };
        fits(&self.volume, volume) && fits(&self.node, node)
    }
}

// === impl TroubleKind ===

impl BackendFaultKind {
    /// What it does to a call. `changes` says whether the call would change the array.
    pub(super) fn decide(
        &self,
        memory: &mut Memory,
        call: &dyn CallInfo,
        changes: bool,
        claims: &Reservations,
        stock: &dyn Fn(&Reservations) -> ArrayUsage,
        now: Duration,
    ) -> Option<Injection> {
        let refuse = |code: Code, message: String| Some(Injection::Refuse { code, message });
        match self {
            Self::NodeGone(scope) if call.path() == PUBLISH && scope.has("", call.node()) => refuse(
                Code::NotFound,
                format!("node \"{}\" is not known to the array any more", call.node()),
            ),
            Self::NodeLimit { scope, limit } if call.path() == PUBLISH && scope.has("", call.node()) => {
                let ArrayUsage {
                    on_node, is_repeat, ..
                } = stock(claims);
                let text = || format!("node \"{}\" has {on_node} volumes and takes no more", call.node());
                let is_refused = on_node >= *limit && !is_repeat;
                is_refused
                    .then(text)
                    .and_then(|text| refuse(Code::ResourceExhausted, text))
            }
            Self::ReadOnly(code) if changes => {
                refuse(*code, "the array is read-only: it takes no changes".into())
            }
            Self::Busy { scope, code } if changes && scope.has(call.volume(), call.node()) => {
                refuse(*code, "the array is busy: try again later".into())
            }
            Self::Quota { volumes, bytes } if call.path() == CREATE => {
                let stock = stock(claims);
                let text = || {
                    let ArrayUsage { volumes, bytes, .. } = stock;
                    format!("the quota is used up: {volumes} volumes of {bytes} bytes")
                };
                let is_refused = stock.is_beyond(*volumes, *bytes) && !stock.is_repeat;
                is_refused
                    .then(text)
                    .and_then(|text| refuse(Code::ResourceExhausted, text))
            }
            Self::SlowNode { scope, time }
                if [PUBLISH, UNPUBLISH].contains(&call.path()) && scope.has("", call.node()) =>
            {
                let free = memory.queues.entry(call.node().to_owned()).or_default();
                *free = now.max(*free) + *time;
                Some(Injection::Wait(free.saturating_sub(now)))
            }
            Self::RateLimit {
                methods,
                per_second,
                burst,
                code,
            } if methods.as_ref().is_none_or(|methods| methods.has(call.path())) => {
                let text = || format!("the array takes {per_second} calls a second: slow down");
                let is_allowed = memory.take_token(*per_second, *burst, now);
                (!is_allowed).then(text).and_then(|text| refuse(*code, text))
            }
            Self::TrackingOff(code) if call.path() == DELTA => refuse(
                *code,
                "the array does not track which blocks change: copy the whole snapshot".into(),
            ),
            Self::TokensExpired(code) if call.continues() => {
                refuse(*code, "starting_token: has expired: begin the list anew".into())
            }
            Self::DeviceAbsent(_)
            | Self::WrongDevice { .. }
            | Self::DirtyFilesystem { .. }
            | Self::ForeignData { .. }
            | Self::NodeGone(_)
            | Self::NodeLimit { .. }
            | Self::ReadOnly(_)
            | Self::Busy { .. }
            | Self::Quota { .. }
            | Self::FrozenList(_)
            | Self::ListLacks(_)
            | Self::ListAdds { .. }
            | Self::SlowNode { .. }
            | Self::RateLimit { .. }
            | Self::TrackingOff(_)
            | Self::TokensExpired(_)
            | Self::StateLoss(_)
            | Self::NotReady(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
