//! Backend faults: rules about the array itself, written as `type`, each in a file of its own. Each one becomes a rule, with a
//! condition that the array's state decides, or with an overlay. [`node_gone`] is an example to begin with.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use tonic::Code;
use wildmatch::WildMatch;

use super::condition::{Asked, Condition};
use super::duration::Time;
use super::overlay::{DeviceFault, DiskFault, Overlay, VolumeNodePattern};
use super::parse::field_error::FieldError;
use super::parse::value::ErrorCode;
use super::parse::{RuleError, deserialize, yes};
use super::pattern::Pattern;
use super::rule::{Action, CallEnd, Match, Methods, Phase, Rule, RuleKind};
use crate::rpc::method::Method;

/// A type of backend faults: its name, its effect as in the cookbook, and its fields.
macro_rules! backend_fault {
    ($kind:literal: $about:literal, $fault:ident { $($field:ident: $type:ty),* }) => {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        pub(super) struct $fault {
            $($field: Option<$type>),*
        }

        impl $fault {
            pub(super) const TYPE: &'static str = $kind;
            pub(super) const ABOUT: &'static str = $about;
        }
    };
}

mod busy;
mod damaged_filesystem;
mod device_absent;
mod foreign_data;
mod frozen_list;
mod list_adds;
mod list_lacks;
mod node_gone;
mod node_limit;
mod node_lock;
mod not_ready;
mod quota;
mod rate_limit;
mod read_only;
mod slow_node;
mod tokens_expired;
mod tracking_off;
mod wrong_device;

macro_rules! backend_faults {
    ($($module:ident::$fault:ident)+) => {
        /// The types with their effects.
        const BACKEND_FAULTS: &[(&str, &str)] =
            &[$(($module::$fault::TYPE, $module::$fault::ABOUT)),+];

        fn add(kind: &str, fields: Value, rule: &mut Rule) -> Result<(), FieldError> {
            match kind {
                $($module::$fault::TYPE => deserialize::<$module::$fault>(fields)?.add_to(rule),)+
                _ => {
                    let known = BACKEND_FAULTS.iter().map(|(known, _)| format!("`{known}`"));
                    let known = known.collect::<Vec<_>>().join(", ");
                    Err(FieldError::new("type", format!("unknown type `{kind}`, expected one of {known}")))
                }
            }
        }
    };
}

backend_faults! {
    busy::Busy
    damaged_filesystem::DamagedFilesystem
    device_absent::DeviceAbsent
    foreign_data::ForeignData
    frozen_list::FrozenList
    list_adds::ListAdds
    list_lacks::ListLacks
    node_gone::NodeGone
    node_limit::NodeLimit
    node_lock::NodeLock
    not_ready::NotReady
    quota::Quota
    rate_limit::RateLimit
    read_only::ReadOnly
    slow_node::SlowNode
    tokens_expired::TokensExpired
    tracking_off::TrackingOff
    wrong_device::WrongDevice
}

/// Fields that all backend faults have.
#[derive(Deserialize)]
struct Head {
    id: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default = "yes")]
    enabled: bool,
}

// === impl Rule ===

impl Rule {
    /// Reads one backend fault, for example from a request of the admin API.
    ///
    /// # Errors
    /// The backend fault is malformed; the error is that of a list with one item.
    pub fn backend_fault_from_value(item: Value) -> Result<Self, RuleError> {
        Self::read_backend_fault(&item)
            .map_err(|error| RuleError::at(RuleKind::BackendFault, 0, &item, error))
    }

    pub(super) fn read_backend_fault(item: &Value) -> Result<Self, FieldError> {
        let Some(fields) = item.as_object() else {
            return Err(FieldError::new(".", "must be a mapping with id and type"));
        };
        let Head { id, kind, enabled } = deserialize(item.clone())?;
        if id.is_empty() {
            return Err(FieldError::new("id", "must not be empty"));
        }
        let own = |field: &&String| !["id", "type", "enabled"].contains(&field.as_str());
        let own = fields
            .keys()
            .filter(own)
            .map(|field| (field.clone(), fields[field].clone()));
        let mut rule = Self {
            id,
            kind: RuleKind::BackendFault,
            enabled,
            matches: Match::default(),
            phase: Phase::Before,
            action: Action::default(),
            times: None,
            overlay: None,
            counts_volumes: false,
            text: item.clone(),
        };
        add(&kind, Value::Object(own.collect::<Map<_, _>>()), &mut rule)?;
        Ok(rule)
    }

    /// Refuses the calls for which the condition gives the text of the error.
    fn refuse(
        &mut self,
        code: Code,
        condition: impl Fn(&mut Asked<'_>) -> Option<String> + Send + Sync + 'static,
    ) {
        self.action.end = Some(CallEnd::Status { code, message: None });
        self.matches.condition = Some(Condition(Arc::new(condition)));
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

fn publish_and_unpublish() -> Option<Methods> {
    let pattern = WildMatch::new("/csi.v1.Controller/Controller*ublishVolume");
    Some(Methods::Like(pattern))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cookbook_has_a_row_for_each_type() {
        let cookbook = include_str!("../../docs/faults.md");
        let rows = cookbook
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
        for (kind, about) in BACKEND_FAULTS {
            let mut rows = rows.clone();
            let row = rows.find(|(documented, _)| documented == kind);
            let ending = format!(" | {about} |");
            assert!(
                row.is_some_and(|(_, row)| row.ends_with(&ending)),
                "{kind}: {row:?}"
            );
        }
    }

    /// A backend fault of this type with the fields that the type requires.
    fn mk_smallest(kind: &str) -> Rule {
        let required = [
            json!({}),
            json!({"node": "node-9"}),
            json!({"limit": 3}),
            json!({"time": "1s"}),
            json!({"per-second": 5}),
            json!({"volumes": 10}),
        ];
        let with = |mut item: Value| {
            item["id"] = kind.into();
            item["type"] = kind.into();
            Rule::backend_fault_from_value(item).ok()
        };
        required.into_iter().find_map(with).expect(kind)
    }

    #[test]
    fn dashboard_has_a_sentence_for_each_type() {
        let sentences = include_str!("../admin/dashboard/sentence.js");
        for (kind, _) in BACKEND_FAULTS {
            let keys = [
                format!("  {kind}: {{ fields:"),
                format!("  \"{kind}\": {{ fields:"),
            ];
            let mut lines = sentences.lines();
            let line = lines.find(|line| keys.iter().any(|key| line.starts_with(key)));
            // The proxy has no volumes to count, and leaves overlays out.
            let is_of_array = *kind == quota::Quota::TYPE || mk_smallest(kind).overlay.is_some();
            assert_eq!(
                line.map(|line| line.contains("ofArray: true")),
                Some(is_of_array),
                "{kind}"
            );
        }
        let count = sentences.matches("{ fields:").count();
        assert_eq!(count, BACKEND_FAULTS.len(), "no other type");
    }
}
