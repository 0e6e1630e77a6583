//! Backend faults: rules about the array itself, written as `type`. Each one becomes a rule, with a condition
//! that the array's state decides, or with an overlay.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tonic::Code;
use wildmatch::WildMatch;

use super::field_error::FieldError;
use super::value::ErrorCode;
use super::{RuleError, deserialize, yes};
use crate::fault::call_info::is_for_array;
use crate::fault::condition::Condition;
use crate::fault::duration::Time;
use crate::fault::overlay::{DeviceFault, DiskFault, Loses, Overlay, VolumeNodePattern};
use crate::fault::pattern::Pattern;
use crate::fault::rule::{Action, End, Match, Methods, Phase, Rule, RuleKind};
use crate::rpc::method::Method;

const PUBLISH_AND_UNPUBLISH: &str = "/csi.v1.Controller/Controller*ublishVolume";

/// Fields that all backend faults have.
#[derive(Deserialize)]
struct Head {
    id: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default = "yes")]
    enabled: bool,
}

/// The types with their own fields.
#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
enum RawFault {
    DeviceAbsent(VolumeNodePattern),
    WrongDevice {
        volume: Option<Pattern>,
        node: Option<Pattern>,
        device: Option<String>,
    },
    DirtyFilesystem {
        volume: Option<Pattern>,
        node: Option<Pattern>,
        repairable: Option<bool>,
    },
    ForeignData {
        volume: Option<Pattern>,
        node: Option<Pattern>,
        data: Option<ForeignData>,
    },
    NodeGone {
        node: Option<Pattern>,
    },
    NodeLimit {
        node: Option<Pattern>,
        limit: Option<u64>,
    },
    ReadOnly {
        code: Option<ErrorCode>,
    },
    Busy {
        volume: Option<Pattern>,
        node: Option<Pattern>,
        code: Option<ErrorCode>,
    },
    Quota {
        volumes: Option<u64>,
        bytes: Option<u64>,
    },
    FrozenList {
        age: Option<Time>,
    },
    ListLacks {
        volume: Option<Pattern>,
    },
    ListAdds {
        volume: Option<Pattern>,
        node: Option<String>,
    },
    SlowNode {
        node: Option<Pattern>,
        time: Option<Time>,
    },
    NodeLock {
        node: Option<Pattern>,
        time: Option<Time>,
        code: Option<ErrorCode>,
    },
    RateLimit(RateLimit),
    TrackingOff {
        code: Option<ErrorCode>,
    },
    TokensExpired {
        code: Option<ErrorCode>,
    },
    StateLoss {
        loses: Option<Loses>,
    },
    NotReady {
        r#for: Option<Time>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RateLimit {
    method: Option<Methods>,
    per_second: Option<f64>,
    burst: Option<f64>,
    code: Option<ErrorCode>,
}

/// Foreign data that staging can find on a device.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ForeignData {
    #[default]
    Unknown,
    Btrfs,
    Luks,
    Lvm,
    Partitions,
    Swap,
}

// === impl Rule ===

impl Rule {
    /// Reads one backend fault, for example from a request of the admin API.
    ///
    /// # Errors
    /// The backend fault is malformed; the error is that of a list with one item.
    pub fn backend_fault_from_value(item: Value) -> Result<Self, RuleError> {
        read(&item).map_err(|error| RuleError::at(RuleKind::BackendFault, 0, &item, error))
    }

    pub(super) fn backend_faults_from_items(items: Vec<Value>) -> Result<Vec<Self>, RuleError> {
        let read = |(index, item): (usize, Value)| {
            read(&item).map_err(|error| RuleError::at(RuleKind::BackendFault, index, &item, error))
        };
        items.into_iter().enumerate().map(read).collect()
    }

    fn refuse(&mut self, code: Code, condition: Condition) {
        self.action.end = Some(End::Answer { code, message: None });
        self.matches.condition = Some(condition);
    }
}

fn read(item: &Value) -> Result<Rule, FieldError> {
    let Some(mut fields) = item.as_object().cloned() else {
        return Err(FieldError::new(".", "must be a mapping with id and type"));
    };
    let Head { id, kind, enabled } = deserialize(item.clone())?;
    if id.is_empty() {
        return Err(FieldError::new("id", "must not be empty"));
    }
    fields.retain(|field, _| !["id", "type", "enabled"].contains(&field.as_str()));
    // Tagged by a key instead of `type`, because serde reports no paths within internally tagged enums.
    let fault: RawFault = deserialize(json!({ &kind: fields })).map_err(|FieldError(path, reason)| {
        let field = path.strip_prefix(&format!("{kind}.")).unwrap_or("type");
        FieldError::new(field, reason)
    })?;
    let mut rule = Rule {
        id,
        kind: RuleKind::BackendFault,
        enabled,
        matches: Match::default(),
        phase: Phase::Before,
        action: Action::default(),
        times: None,
        overlay: None,
        text: item.clone(),
    };
    fault.add_to(&mut rule)?;
    Ok(rule)
}

// === impl RawFault ===

impl RawFault {
    /// Makes the rule refuse or delay calls, or change what the array reports.
    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        let matches = &mut rule.matches;
        let both = |volume, node| VolumeNodePattern { volume, node };
        match self {
            Self::DeviceAbsent(pattern) => rule.overlay = Some(Overlay::Device(pattern, DeviceFault::Absent)),
            Self::WrongDevice { volume, node, device } => {
                let device = device.unwrap_or_else(|| "/dev/disk/by-id/wrong".into());
                rule.overlay = Some(Overlay::Device(both(volume, node), DeviceFault::Wrong(device)));
            }
            Self::DirtyFilesystem {
                volume,
                node,
                repairable,
            } => {
                let disk = match repairable {
                    Some(false) => DiskFault::Damaged,
                    Some(true) | None => DiskFault::Dirty,
                };
                rule.overlay = Some(Overlay::Disk(both(volume, node), disk));
            }
            Self::ForeignData { volume, node, data } => {
                let disk = DiskFault::Foreign(data.unwrap_or_default().description());
                rule.overlay = Some(Overlay::Disk(both(volume, node), disk));
            }
            Self::FrozenList { age } => rule.overlay = Some(Overlay::FrozenList(age.map(Duration::from))),
            Self::ListLacks { volume } => rule.overlay = Some(Overlay::ListLacks(both(volume, None))),
            Self::ListAdds { volume, node } => {
                let node = required("node", node, "node: node-9")?;
                rule.overlay = Some(Overlay::ListAdds(both(volume, None), node));
            }
            Self::StateLoss { loses } => rule.overlay = Some(Overlay::StateLoss(loses.unwrap_or_default())),
            Self::NotReady { r#for } => rule.overlay = Some(Overlay::NotReady(r#for.map(Duration::from))),
            Self::NodeGone { node } => {
                matches.method = only(Method::ControllerPublishVolume);
                matches.node = restrictive_pattern(node);
                rule.refuse(Code::NotFound, Condition::NodeGone);
            }
            Self::NodeLimit { node, limit } => {
                matches.method = only(Method::ControllerPublishVolume);
                matches.node = restrictive_pattern(node);
                let limit = required("limit", limit, "limit: 3")?;
                rule.refuse(Code::ResourceExhausted, Condition::NodeLimit(limit));
            }
            Self::SlowNode { node, time } => {
                matches.method = Some(Methods::Like(WildMatch::new(PUBLISH_AND_UNPUBLISH)));
                matches.node = restrictive_pattern(node);
                rule.action.queue = Some(required("time", time, "time: 2s")?.into());
            }
            Self::NodeLock { node, time, code } => {
                matches.method = Some(Methods::Like(WildMatch::new(PUBLISH_AND_UNPUBLISH)));
                matches.node = restrictive_pattern(node);
                let time = required("time", time, "time: 1s")?.into();
                rule.refuse(ErrorCode::or(code, Code::Aborted), Condition::NodeLock(time));
            }
            Self::ReadOnly { code } => {
                let changes = Condition::Changes("the array is read-only: it takes no changes");
                rule.refuse(ErrorCode::or(code, Code::FailedPrecondition), changes);
            }
            Self::Busy { volume, node, code } => {
                (matches.volume, matches.node) = (restrictive_pattern(volume), restrictive_pattern(node));
                let changes = Condition::Changes("the array is busy: try again later");
                rule.refuse(ErrorCode::or(code, Code::Aborted), changes);
            }
            Self::Quota { volumes, bytes } => {
                required("volumes", volumes.or(bytes), "volumes: 10 or bytes: 1073741824")?;
                matches.method = only(Method::CreateVolume);
                rule.refuse(Code::ResourceExhausted, Condition::Quota { volumes, bytes });
            }
            Self::RateLimit(limit) => limit.add_to(rule)?,
            Self::TokensExpired { code } => {
                rule.refuse(ErrorCode::or(code, Code::Aborted), Condition::Continues);
            }
            Self::TrackingOff { code } => {
                matches.method = only(Method::GetMetadataDelta);
                let code = ErrorCode::or(code, Code::FailedPrecondition);
                rule.refuse(code, Condition::NoTracking);
            }
        }
        Ok(())
    }
}

// === impl RateLimit ===

impl RateLimit {
    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        let per_second = required("per-second", self.per_second, "per-second: 5")?;
        let burst = self.burst.unwrap_or(1.0);
        for (field, number) in [("per-second", per_second), ("burst", burst)] {
            if !(number.is_finite() && number > 0.0) {
                return Err(FieldError::new(field, "must be a number above 0"));
            }
        }
        let known = self.method.as_ref().map(Methods::known).unwrap_or_default();
        if !known.is_empty() && !known.iter().any(|method| is_for_array(method.path())) {
            let reason = "rate-limit concerns calls to the array: use a Controller method";
            return Err(FieldError::new("method", reason));
        }
        rule.matches.method = self.method;
        let burst = burst.max(1.0);
        let limit = Condition::RateLimit { per_second, burst };
        rule.refuse(ErrorCode::or(self.code, Code::ResourceExhausted), limit);
        Ok(())
    }
}

// === impl ForeignData ===

impl ForeignData {
    fn description(self) -> &'static str {
        match self {
            Self::Unknown => "data of an unknown kind",
            Self::Btrfs => "a btrfs filesystem",
            Self::Luks => "an encrypted disk (LUKS)",
            Self::Lvm => "a physical volume of LVM",
            Self::Partitions => "a partition table",
            Self::Swap => "swap space",
        }
    }
}

fn required<T>(field: &str, value: Option<T>, example: &str) -> Result<T, FieldError> {
    value.ok_or_else(|| FieldError::new(field, format!("is required, for example {example}")))
}

/// Unlike a rule's, a pattern of stars alone matches calls without the field, too.
fn restrictive_pattern(pattern: Option<Pattern>) -> Option<Pattern> {
    pattern.filter(|pattern| !pattern.matches_all())
}

fn only(method: Method) -> Option<Methods> {
    Some(Methods::One(method.path().to_owned()))
}
