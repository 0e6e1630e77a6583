//! How backend faults are written in YAML: as strictly as rules.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tonic::Code;
use wildmatch::WildMatch;

use super::{BackendFault, BackendFaultKind, Loses, Scope};
use crate::fault::duration;
use crate::fault::parse::{FieldError, Part, RuleError, error_code, read_methods};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawFault {
    id: String,
    trouble: String,
    #[serde(default = "yes")]
    enabled: bool,
    volume: Option<String>,
    node: Option<String>,
    device: Option<String>,
    code: Option<String>,
    limit: Option<u64>,
    volumes: Option<u64>,
    bytes: Option<u64>,
    age: Option<String>,
    time: Option<String>,
    #[serde(rename = "for")]
    period: Option<String>,
    method: Option<String>,
    per_second: Option<f64>,
    burst: Option<f64>,
    repairable: Option<bool>,
    data: Option<String>,
    loses: Option<Loses>,
}

/// What staging can find on a device that is not ours, and in which words it is told of.
const FOREIGN: [(&str, &str); 6] = [
    ("unknown", "data of an unknown kind"),
    ("btrfs", "a btrfs filesystem"),
    ("luks", "an encrypted disk (LUKS)"),
    ("lvm", "a physical volume of LVM"),
    ("partitions", "a partition table"),
    ("swap", "swap space"),
];

// === impl Backend fault ===

impl BackendFault {
    /// Reads one backend fault, for example from a request of the admin API.
    ///
    /// # Errors
    /// If it is wrong, as in a list of one.
    pub fn from_value(item: Value) -> Result<Self, RuleError> {
        Self::read(&item).map_err(|flaw| RuleError::at(Part::BackendFault, 0, &item, flaw))
    }

    pub(in crate::fault) fn from_items(items: Vec<Value>) -> Result<Vec<Self>, RuleError> {
        let read = |(index, item): (usize, Value)| {
            Self::read(&item).map_err(|flaw| RuleError::at(Part::BackendFault, index, &item, flaw))
        };
        items.into_iter().enumerate().map(read).collect()
    }

    fn read(item: &Value) -> Result<Self, FieldError> {
        let written: RawFault = serde_path_to_error::deserialize(item.clone())
            .map_err(|error| FieldError(error.path().to_string(), error.inner().to_string()))?;
        if written.id.is_empty() {
            return Err(FieldError("id".into(), "must not be empty".into()));
        }
        Ok(Self {
            id: written.id.clone(),
            enabled: written.enabled,
            kind: written.kind(item)?,
            text: item.clone(),
        })
    }
}

// === impl Written ===

impl RawFault {
    fn kind(&self, item: &Value) -> Result<BackendFaultKind, FieldError> {
        let allowed: &[&str] = match self.trouble.as_str() {
            "device-absent" => &["volume", "node"],
            "wrong-device" => &["volume", "node", "device"],
            "dirty-filesystem" => &["volume", "node", "repairable"],
            "foreign-data" => &["volume", "node", "data"],
            "node-gone" => &["node"],
            "node-limit" => &["node", "limit"],
            "read-only" => &["code"],
            "busy" => &["volume", "node", "code"],
            "quota" => &["volumes", "bytes"],
            "frozen-list" => &["age"],
            "list-lacks" => &["volume"],
            "list-adds" => &["volume", "node"],
            "slow-node" => &["node", "time"],
            "rate-limit" => &["method", "per-second", "burst", "code"],
            "tracking-off" | "tokens-expired" => &["code"],
            "state-loss" => &["loses"],
            "not-ready" => &["for"],
            other => {
                let reason = format!(
                    "\"{other}\" is none: write device-absent, wrong-device, dirty-filesystem, foreign-data, node-gone, node-limit, \
                     read-only, busy, quota, frozen-list, list-lacks, list-adds, slow-node, rate-limit, tracking-off, \
                     tokens-expired, state-loss or not-ready"
                );
                return Err(FieldError("trouble".into(), reason));
            }
        };
        let fields = item.as_object().into_iter().flat_map(serde_json::Map::keys);
        let mut own = fields.filter(|field| !["id", "trouble", "enabled"].contains(&field.as_str()));
        if let Some(odd) = own.find(|field| !allowed.contains(&field.as_str())) {
            let reason = format!(
                "means nothing for {}, which has {}",
                self.trouble,
                allowed.join(", ")
            );
            return Err(FieldError(odd.clone(), reason));
        }
        self.kind_of_fields()
    }

    fn kind_of_fields(&self) -> Result<BackendFaultKind, FieldError> {
        let scope = self.scope()?;
        let missing = |field: &str, example: &str| {
            FieldError(
                field.into(),
                format!("must be there for {}, as in {example}", self.trouble),
            )
        };
        Ok(match self.trouble.as_str() {
            "device-absent" => BackendFaultKind::DeviceAbsent(scope),
            "wrong-device" => BackendFaultKind::WrongDevice {
                scope,
                device: self
                    .device
                    .clone()
                    .unwrap_or_else(|| "/dev/disk/by-id/wrong".into()),
            },
            "dirty-filesystem" => BackendFaultKind::DirtyFilesystem {
                scope,
                damaged: self.repairable == Some(false),
            },
            "foreign-data" => BackendFaultKind::ForeignData {
                scope,
                found: self.foreign()?,
            },
            "node-gone" => BackendFaultKind::NodeGone(scope),
            "node-limit" => BackendFaultKind::NodeLimit {
                scope,
                limit: self.limit.ok_or_else(|| missing("limit", "limit: 3"))?,
            },
            "read-only" => BackendFaultKind::ReadOnly(self.code(Code::FailedPrecondition)?),
            "busy" => BackendFaultKind::Busy {
                scope,
                code: self.code(Code::Aborted)?,
            },
            "quota" if self.volumes.is_none() && self.bytes.is_none() => {
                return Err(missing("volumes", "volumes: 10 or bytes: 1073741824"));
            }
            "quota" => BackendFaultKind::Quota {
                volumes: self.volumes,
                bytes: self.bytes,
            },
            "frozen-list" => BackendFaultKind::FrozenList(time("age", self.age.as_deref())?),
            "list-lacks" => BackendFaultKind::ListLacks(scope),
            "list-adds" => BackendFaultKind::ListAdds {
                node: self.node.clone().ok_or_else(|| missing("node", "node: node-9"))?,
                scope: Scope { node: None, ..scope },
            },
            "slow-node" => BackendFaultKind::SlowNode {
                scope,
                time: time("time", self.time.as_deref())?.ok_or_else(|| missing("time", "time: 2s"))?,
            },
            "rate-limit" => self.rate_limit(
                self.per_second
                    .ok_or_else(|| missing("per-second", "per-second: 5"))?,
            )?,
            "tracking-off" => BackendFaultKind::TrackingOff(self.code(Code::FailedPrecondition)?),
            "tokens-expired" => BackendFaultKind::TokensExpired(self.code(Code::Aborted)?),
            "state-loss" => BackendFaultKind::StateLoss(self.loses.unwrap_or(Loses::Changes)),
            _ => BackendFaultKind::NotReady(time("for", self.period.as_deref())?),
        })
    }

    fn rate_limit(&self, per_second: f64) -> Result<BackendFaultKind, FieldError> {
        let burst = self.burst.unwrap_or(1.0);
        for (field, number) in [("per-second", per_second), ("burst", burst)] {
            if !(number.is_finite() && number > 0.0) {
                return Err(FieldError(field.into(), "must be a number above 0".into()));
            }
        }
        let methods = self.method.as_deref().map(read_methods).transpose();
        Ok(BackendFaultKind::RateLimit {
            methods: methods.map_err(|flaw| FieldError("method".into(), flaw.1))?,
            per_second,
            burst: burst.max(1.0),
            code: self.code(Code::ResourceExhausted)?,
        })
    }

    fn foreign(&self) -> Result<&'static str, FieldError> {
        let name = self.data.as_deref().unwrap_or("unknown");
        let found = FOREIGN.iter().find(|(known, _)| *known == name);
        found.map(|(_, words)| *words).ok_or_else(|| {
            let known: Vec<&str> = FOREIGN.iter().map(|(known, _)| *known).collect();
            FieldError(
                "data".into(),
                format!("\"{name}\" is none: write {}", known.join(", ")),
            )
        })
    }

    fn code(&self, usual: Code) -> Result<Code, FieldError> {
        match &self.code {
            Some(name) => error_code(name).map_err(|flaw| FieldError("code".into(), flaw.1)),
            None => Ok(usual),
        }
    }

    fn scope(&self) -> Result<Scope, FieldError> {
        let pattern = |field: &str, text: &Option<String>| match text {
            Some(text) if text.is_empty() => Err(FieldError(
                field.into(),
                "must not be empty; leave it out to mean all".into(),
            )),
            text => Ok(text.as_deref().map(WildMatch::new)),
        };
        Ok(Scope {
            volume: pattern("volume", &self.volume)?,
            node: pattern("node", &self.node)?,
        })
    }
}

fn yes() -> bool {
    true
}

fn time(field: &str, text: Option<&str>) -> Result<Option<Duration>, FieldError> {
    text.map(duration::parse)
        .transpose()
        .map_err(|error| FieldError(field.into(), error.to_string()))
}
