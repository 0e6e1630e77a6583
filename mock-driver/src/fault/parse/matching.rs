//! `match`: which calls a rule is for.

use std::collections::BTreeMap;

use serde::Deserialize;
use wildmatch::WildMatch;

use super::field_error::FieldError;
use crate::fault::rule::{CallNumbers, LocationMatch, Match, Methods};
use crate::rpc::method::Method;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMatch {
    method: Option<String>,
    volume: Option<String>,
    node: Option<String>,
    name: Option<String>,
    #[serde(default)]
    secrets: BTreeMap<String, String>,
    #[serde(default)]
    parameters: BTreeMap<String, String>,
    #[serde(rename = "bytes-above")]
    bytes_above: Option<u64>,
    call: Option<u64>,
    every: Option<u64>,
    probability: Option<f64>,
    seed: Option<u64>,
    #[serde(default, rename = "while")]
    during: RawWhile,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWhile {
    volume: Option<LocationMatch>,
    state: Option<String>,
}

// === impl RawMatch ===

impl RawMatch {
    pub(super) fn read(self) -> Result<Match, FieldError> {
        let method = self.method.as_deref().map(read_methods).transpose()?;
        // A method that only a proxy can meet may have any field.
        let known = method.as_ref().map(Methods::known).unwrap_or_default();
        let any = |is: fn(Method) -> bool| known.is_empty() || known.iter().any(|method| is(*method));
        let has = |field: &str| known.is_empty() || known.iter().any(|rpc| rpc.takes(field));
        let never = |at: &str| {
            let names: Vec<&str> = known.iter().map(|rpc| rpc.name()).collect();
            let reason = format!(
                "{} has no such field, so the rule would never fire: remove it",
                names.join(", ")
            );
            FieldError::new(at, reason)
        };
        let pattern = |at: &str, is: fn(Method) -> bool, text: Option<String>| match text {
            None => Ok(None),
            Some(text) if text.is_empty() => {
                Err(FieldError::new(at, "must not be empty; omit it to match all"))
            }
            Some(_) if !any(is) => Err(never(at)),
            Some(text) => Ok(Some(WildMatch::new(&text))),
        };
        if !self.secrets.is_empty() && !has("secrets") {
            return Err(never("match.secrets"));
        }
        if !self.parameters.is_empty() && !has("parameters") && !has("volume_context") {
            return Err(never("match.parameters"));
        }
        for (at, number) in [("match.call", self.call), ("match.every", self.every)] {
            if number == Some(0) {
                return Err(FieldError::new(
                    at,
                    "must be at least 1: calls are counted from 1",
                ));
            }
        }
        if self
            .probability
            .is_some_and(|chance| !(chance > 0.0 && chance <= 1.0))
        {
            return Err(FieldError::new(
                "match.probability",
                "must be above 0 and at most 1, as in 0.1 for one call in ten",
            ));
        }
        if self.seed.is_some() && self.probability.is_none() {
            return Err(FieldError::new(
                "match.seed",
                "is never used without a probability",
            ));
        }
        if self.bytes_above.is_some() && !has("capacity_range") {
            return Err(never("match.bytes-above"));
        }
        let location = self.during.volume;
        if location.is_some() && !any(Method::has_volume) {
            return Err(never("match.while.volume"));
        }
        if location == Some(LocationMatch::AttachedHere) && !any(|rpc| rpc.has_volume() && rpc.has_node()) {
            return Err(FieldError::new(
                "match.while.volume",
                "attached-here needs a method with a node: use attached",
            ));
        }
        Ok(Match {
            volume: pattern("match.volume", Method::has_volume, self.volume)?,
            node: pattern("match.node", Method::has_node, self.node)?,
            name: pattern("match.name", Method::has_name, self.name)?,
            method,
            secrets: self.secrets,
            parameters: self.parameters,
            bytes_above: self.bytes_above,
            location,
            state: read_state("match.while.state", self.during.state)?,
            condition: None,
            turn: CallNumbers {
                call: self.call,
                every: self.every,
            },
            probability: self.probability,
            seed: self.seed,
        })
    }
}

/// A name, a path or a pattern of CSI's methods, or the path of another service's method.
pub(super) fn read_methods(text: &str) -> Result<Methods, FieldError> {
    if let Ok(method) = text.parse::<Method>() {
        return Ok(Methods::One(method.path().to_owned()));
    }
    let pattern = WildMatch::new(text);
    if text.contains(['*', '?']) && Method::ALL.into_iter().any(|method| method.matches(&pattern)) {
        return Ok(Methods::Like(pattern));
    }
    let is_foreign = |path: &str| path.split('/').count() == 2 && !path.starts_with("csi.v1.");
    if text.strip_prefix('/').is_some_and(is_foreign) {
        return Ok(Methods::One(text.to_owned()));
    }
    let names = Method::ALL.map(Method::name);
    let reason = format!(
        "\"{text}\" matches no CSI method; use one of {}; write those of other services as /package.Service/Method",
        names.join(", ")
    );
    Err(FieldError::new("match.method", reason))
}

pub(super) fn read_state(field: &str, text: Option<String>) -> Result<Option<String>, FieldError> {
    match text {
        Some(text) if text.is_empty() => Err(FieldError::new(
            field,
            "must not be empty; the first state is \"start\"",
        )),
        text => Ok(text),
    }
}
