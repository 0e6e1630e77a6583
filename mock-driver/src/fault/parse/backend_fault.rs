//! Backend faults: rules about the array itself, written as `type`. Each one becomes a rule, with a condition
//! that the array's state decides, or with an overlay.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tonic::Code;
use wildmatch::WildMatch;

use super::field_error::FieldError;
use super::{RuleError, error_code, read_methods, yes};
use crate::fault::call_info::is_for_array;
use crate::fault::condition::Condition;
use crate::fault::duration;
use crate::fault::overlay::{DeviceFault, DiskFault, Loses, Overlay, VolumeNodePattern};
use crate::fault::rule::{Action, End, Match, Methods, Phase, Rule, RuleKind};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawFault {
    id: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default = "yes")]
    enabled: bool,
    volume: Option<String>,
    node: Option<String>,
    device: Option<String>,
    code: Option<String>,
    limit: Option<u64>,
    volumes: Option<u64>,
    bytes: Option<u64>,
    #[serde(default, deserialize_with = "time")]
    age: Option<Duration>,
    #[serde(default, deserialize_with = "time")]
    time: Option<Duration>,
    #[serde(default, rename = "for", deserialize_with = "time")]
    period: Option<Duration>,
    method: Option<String>,
    per_second: Option<f64>,
    burst: Option<f64>,
    repairable: Option<bool>,
    data: Option<String>,
    loses: Option<Loses>,
}

/// Foreign data that staging can find on a device, by name and in words.
const FOREIGN: [(&str, &str); 6] = [
    ("unknown", "data of an unknown kind"),
    ("btrfs", "a btrfs filesystem"),
    ("luks", "an encrypted disk (LUKS)"),
    ("lvm", "a physical volume of LVM"),
    ("partitions", "a partition table"),
    ("swap", "swap space"),
];

/// The fields of each kind.
const KINDS: [(&str, &[&str]); 18] = [
    ("device-absent", &["volume", "node"]),
    ("wrong-device", &["volume", "node", "device"]),
    ("dirty-filesystem", &["volume", "node", "repairable"]),
    ("foreign-data", &["volume", "node", "data"]),
    ("node-gone", &["node"]),
    ("node-limit", &["node", "limit"]),
    ("read-only", &["code"]),
    ("busy", &["volume", "node", "code"]),
    ("quota", &["volumes", "bytes"]),
    ("frozen-list", &["age"]),
    ("list-lacks", &["volume"]),
    ("list-adds", &["volume", "node"]),
    ("slow-node", &["node", "time"]),
    ("rate-limit", &["method", "per-second", "burst", "code"]),
    ("tracking-off", &["code"]),
    ("tokens-expired", &["code"]),
    ("state-loss", &["loses"]),
    ("not-ready", &["for"]),
];

const PUBLISH: &str = "ControllerPublishVolume";
const PUBLISH_AND_UNPUBLISH: &str = "/csi.v1.Controller/Controller*ublishVolume";

/// What a backend fault does.
enum Effect {
    Refuse {
        method: Option<&'static str>,
        condition: Option<Condition>,
        code: Code,
        message: Option<&'static str>,
    },
    /// It makes attaches and detaches of a node wait for one another.
    Queue(Duration),
    Overlay(Overlay),
}

// === impl Rule ===

impl Rule {
    /// Reads one backend fault, for example from a request of the admin API.
    ///
    /// # Errors
    /// If it is wrong, as in a list of one.
    pub fn backend_fault_from_value(item: Value) -> Result<Self, RuleError> {
        read(&item).map_err(|error| RuleError::at(RuleKind::BackendFault, 0, &item, error))
    }

    pub(in crate::fault) fn backend_faults_from_items(items: Vec<Value>) -> Result<Vec<Self>, RuleError> {
        let read = |(index, item): (usize, Value)| {
            read(&item).map_err(|error| RuleError::at(RuleKind::BackendFault, index, &item, error))
        };
        items.into_iter().enumerate().map(read).collect()
    }
}

fn read(item: &Value) -> Result<Rule, FieldError> {
    let written: RawFault = serde_path_to_error::deserialize(item.clone())
        .map_err(|error| FieldError(error.path().to_string(), error.inner().to_string()))?;
    if written.id.is_empty() {
        return Err(FieldError::new("id", "must not be empty"));
    }
    written.check_fields(item)?;
    let mut rule = Rule {
        id: written.id.clone(),
        kind: RuleKind::BackendFault,
        enabled: written.enabled,
        matches: Match::default(),
        phase: Phase::Before,
        action: Action::default(),
        times: None,
        overlay: None,
        text: item.clone(),
    };
    let method = match written.effect()? {
        Effect::Overlay(overlay) => {
            rule.overlay = Some(overlay);
            return Ok(rule);
        }
        Effect::Queue(time) => {
            rule.action.queue = Some(time);
            Some(PUBLISH_AND_UNPUBLISH)
        }
        Effect::Refuse {
            method,
            condition,
            code,
            message,
        } => {
            let message = message.map(str::to_owned);
            rule.action.end = Some(End::Answer { code, message });
            rule.matches.condition = condition;
            method
        }
    };
    let VolumeNodePattern { volume, node } = written.volume_node_pattern()?;
    rule.matches = Match {
        method: written.methods(method)?,
        volume,
        node,
        ..rule.matches
    };
    Ok(rule)
}

// === impl RawFault ===

impl RawFault {
    /// Refuses a kind that does not exist, and fields that the kind does not have.
    fn check_fields(&self, item: &Value) -> Result<(), FieldError> {
        let Some((kind, allowed)) = KINDS.iter().find(|(kind, _)| *kind == self.kind) else {
            let names = KINDS.map(|(kind, _)| kind);
            let (last, others) = names.split_last().expect("there must be kinds");
            let reason = format!(
                "unknown value \"{}\": use {} or {last}",
                self.kind,
                others.join(", ")
            );
            return Err(FieldError::new("type", reason));
        };
        let mut fields = item.as_object().into_iter().flat_map(serde_json::Map::keys);
        let odd = fields.find(|field| {
            let field = field.as_str();
            !["id", "type", "enabled"].contains(&field) && !allowed.contains(&field)
        });
        match odd {
            Some(odd) => {
                let reason = format!("is not a field of {kind}; its fields are {}", allowed.join(", "));
                Err(FieldError::new(odd, reason))
            }
            None => Ok(()),
        }
    }

    fn effect(&self) -> Result<Effect, FieldError> {
        let refuse = |method, condition, usual| {
            Ok(Effect::Refuse {
                method,
                condition: Some(condition),
                code: self.code(usual)?,
                message: None,
            })
        };
        match self.kind.as_str() {
            "node-gone" => refuse(Some(PUBLISH), Condition::NodeGone, Code::NotFound),
            "node-limit" => {
                let limit = self.limit.ok_or_else(|| self.missing("limit", "limit: 3"))?;
                refuse(
                    Some(PUBLISH),
                    Condition::NodeLimit(limit),
                    Code::ResourceExhausted,
                )
            }
            "read-only" => {
                let condition = Condition::Changes("the array is read-only: it takes no changes");
                refuse(None, condition, Code::FailedPrecondition)
            }
            "busy" => {
                let condition = Condition::Changes("the array is busy: try again later");
                refuse(None, condition, Code::Aborted)
            }
            "quota" if self.volumes.is_none() && self.bytes.is_none() => {
                Err(self.missing("volumes", "volumes: 10 or bytes: 1073741824"))
            }
            "quota" => {
                let (volumes, bytes) = (self.volumes, self.bytes);
                let condition = Condition::Quota { volumes, bytes };
                refuse(Some("CreateVolume"), condition, Code::ResourceExhausted)
            }
            "rate-limit" => {
                let per_second = self
                    .per_second
                    .ok_or_else(|| self.missing("per-second", "per-second: 5"))?;
                refuse(None, self.rate_limit(per_second)?, Code::ResourceExhausted)
            }
            "tokens-expired" => refuse(None, Condition::Continues, Code::Aborted),
            "tracking-off" => Ok(Effect::Refuse {
                method: Some("GetMetadataDelta"),
                condition: None,
                code: self.code(Code::FailedPrecondition)?,
                message: Some("the array does not track which blocks change: copy the whole snapshot"),
            }),
            "slow-node" => {
                let queue = self.time.map(Effect::Queue);
                queue.ok_or_else(|| self.missing("time", "time: 2s"))
            }
            _ => self.overlay().map(Effect::Overlay),
        }
    }

    fn overlay(&self) -> Result<Overlay, FieldError> {
        let pattern = self.volume_node_pattern()?;
        Ok(match self.kind.as_str() {
            "device-absent" => Overlay::Device(pattern, DeviceFault::Absent),
            "wrong-device" => {
                let device = self.device.as_deref().unwrap_or("/dev/disk/by-id/wrong");
                Overlay::Device(pattern, DeviceFault::Wrong(device.to_owned()))
            }
            "dirty-filesystem" => {
                let disk = match self.repairable {
                    Some(false) => DiskFault::Damaged,
                    Some(true) | None => DiskFault::Dirty,
                };
                Overlay::Disk(pattern, disk)
            }
            "foreign-data" => Overlay::Disk(pattern, DiskFault::Foreign(self.foreign()?)),
            "frozen-list" => Overlay::FrozenList(self.age),
            "list-lacks" => Overlay::ListLacks(pattern),
            "list-adds" => {
                let node = self.node.clone();
                let node = node.ok_or_else(|| self.missing("node", "node: node-9"))?;
                let volumes = VolumeNodePattern {
                    node: None,
                    ..pattern
                };
                Overlay::ListAdds(volumes, node)
            }
            "state-loss" => Overlay::StateLoss(self.loses.unwrap_or(Loses::Changes)),
            _ => Overlay::NotReady(self.period),
        })
    }

    fn missing(&self, field: &str, example: &str) -> FieldError {
        let reason = format!("is required for {}, for example {example}", self.kind);
        FieldError::new(field, reason)
    }

    fn rate_limit(&self, per_second: f64) -> Result<Condition, FieldError> {
        let burst = self.burst.unwrap_or(1.0);
        for (field, number) in [("per-second", per_second), ("burst", burst)] {
            if !(number.is_finite() && number > 0.0) {
                return Err(FieldError::new(field, "must be a number above 0"));
            }
        }
        let burst = burst.max(1.0);
        Ok(Condition::RateLimit { per_second, burst })
    }

    fn methods(&self, own: Option<&str>) -> Result<Option<Methods>, FieldError> {
        let methods = self.method.as_deref().or(own).map(read_methods).transpose();
        let methods = methods.map_err(|FieldError(_, reason)| FieldError::new("method", reason))?;
        let known = methods.as_ref().map(Methods::known).unwrap_or_default();
        if !known.is_empty() && !known.iter().any(|method| is_for_array(method.path())) {
            let reason = format!(
                "{} concerns calls to the array: use a Controller method",
                self.kind
            );
            return Err(FieldError::new("method", reason));
        }
        Ok(methods)
    }

    fn foreign(&self) -> Result<&'static str, FieldError> {
        let name = self.data.as_deref().unwrap_or("unknown");
        let found = FOREIGN.iter().find(|(known, _)| *known == name);
        found.map(|(_, words)| *words).ok_or_else(|| {
            let known = FOREIGN.map(|(known, _)| known).join(", ");
            FieldError::new("data", format!("unknown value \"{name}\": use one of {known}"))
        })
    }

    fn code(&self, usual: Code) -> Result<Code, FieldError> {
        match &self.code {
            Some(name) => error_code(name).map_err(|FieldError(_, reason)| FieldError::new("code", reason)),
            None => Ok(usual),
        }
    }

    fn volume_node_pattern(&self) -> Result<VolumeNodePattern, FieldError> {
        let pattern = |field: &str, text: &Option<String>| match text.as_deref() {
            Some("") => Err(FieldError::new(field, "must not be empty; omit it to match all")),
            Some(text) if text.bytes().any(|byte| byte != b'*') => Ok(Some(WildMatch::new(text))),
            // Unlike a rule's, a pattern of stars alone matches calls without the field, too.
            None | Some(_) => Ok(None),
        };
        Ok(VolumeNodePattern {
            volume: pattern("volume", &self.volume)?,
            node: pattern("node", &self.node)?,
        })
    }
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| duration::parse(&text))
        .transpose()
        .map_err(D::Error::custom)
}
