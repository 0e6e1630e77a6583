//! Values of fields with a notation of their own.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tonic::Code;

use crate::fault::duration::{self, Time};
use crate::fault::random::DelayDistribution;
use crate::fault::rule::{Exit, Hang, Phase};
use crate::rpc::code;

#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub(in crate::fault) struct ErrorCode(Code);

/// The name of a code, `OK` included.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct AnyCode(pub(super) Code);

/// `action.effect`: whether the array does what the call requests.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged, expecting = "must be true, false or later")]
pub(super) enum Effect {
    Now(bool),
    Later(Later),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Later {
    Later,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a status from 0 to 255, or kill")]
enum RawExit {
    Status(u8),
    Name(Kill),
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kill {
    Kill,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDelay {
    uniform: Option<Bounds>,
    exponential: Option<Time>,
    max: Option<Time>,
}

#[derive(Deserialize)]
#[serde(expecting = "two durations, as in uniform: [100ms, 2s]")]
struct Bounds(Time, Time);

struct DelayVisitor;

// === impl ErrorCode ===

impl ErrorCode {
    pub(in crate::fault) fn or(code: Option<Self>, usual: Code) -> Code {
        code.map_or(usual, |Self(code)| code)
    }
}

impl TryFrom<String> for ErrorCode {
    type Error = String;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        let code = code::named(&name).map(Self);
        code.ok_or_else(|| format!("unknown code \"{name}\": use one of {}", code::names()))
    }
}

// === impl AnyCode ===

impl TryFrom<String> for AnyCode {
    type Error = String;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        match code::named(&name) {
            Some(code) => Ok(Self(code)),
            None if name == "OK" => Ok(Self(Code::Ok)),
            None => Err(format!(
                "unknown code \"{name}\": use one of OK, {}",
                code::names()
            )),
        }
    }
}

// === impl Effect ===

impl Effect {
    pub(super) fn phase(self) -> Phase {
        match self {
            Self::Now(false) => Phase::Before,
            Self::Now(true) => Phase::After,
            Self::Later(Later::Later) => Phase::Background,
        }
    }
}

// === impl Exit ===

impl<'de> Deserialize<'de> for Exit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match RawExit::deserialize(deserializer)? {
            RawExit::Status(status) => Self::Status(status),
            RawExit::Name(Kill::Kill) => Self::Kill,
        })
    }
}

// === impl Hang ===

impl TryFrom<String> for Hang {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.as_str() {
            "client-cancel" => Ok(Self::ClientCancel),
            "release" => Ok(Self::Release),
            text => duration::parse(text)
                .map(Self::For)
                .map_err(|error| format!("{error}, or client-cancel or release")),
        }
    }
}

// === impl DelayDistribution ===

impl<'de> Deserialize<'de> for DelayDistribution {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DelayVisitor)
    }
}

impl<'de> Visitor<'de> for DelayVisitor {
    type Value = DelayDistribution;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(
            "a duration in a string like 250ms, {uniform: [100ms, 2s]} or {exponential: 500ms, max: 10s}",
        )
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        duration::parse(text)
            .map(DelayDistribution::Fixed)
            .map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        match RawDelay::deserialize(MapAccessDeserializer::new(map))? {
            RawDelay {
                uniform: Some(Bounds(from, to)),
                exponential: None,
                max: None,
            } => Ok(DelayDistribution::Uniform {
                from: from.into(),
                to: to.into(),
            }),
            RawDelay {
                uniform: None,
                exponential: Some(mean),
                max,
            } => Ok(DelayDistribution::Exponential {
                mean: mean.into(),
                max: max.map(Into::into),
            }),
            _ => Err(A::Error::custom(
                "must be {uniform: [100ms, 2s]} or {exponential: 500ms, max: 10s}",
            )),
        }
    }
}
