use std::borrow::Cow;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::call::Peer;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Line<'a> {
    Begin {
        /// Number of the call since the driver's start.
        call: u64,
        method: Cow<'a, str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        peer: Option<Peer>,
        #[serde(serialize_with = "as_text")]
        start: Timestamp,
        request: Cow<'a, Value>,
    },
    /// A call ended, or its client disconnected or cancelled it (`CANCELLED`).
    End {
        call: u64,
        method: Cow<'a, str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        peer: Option<Peer>,
        #[serde(serialize_with = "as_text")]
        start: Timestamp,
        #[serde(serialize_with = "as_text")]
        end: Timestamp,
        code: Cow<'a, str>,
        /// Text of the error; empty with `OK`.
        message: Cow<'a, str>,
        /// The fault rule that applied to it.
        #[serde(skip_serializing_if = "Option::is_none")]
        fault: Option<String>,
        request: Cow<'a, Value>,
        /// The response, without secrets; absent with an error.
        #[serde(skip_serializing_if = "Option::is_none")]
        response: Option<Cow<'a, Value>>,
    },
    /// The array completed the operation of a call that had ended.
    Late {
        call: u64,
        method: Cow<'a, str>,
        #[serde(serialize_with = "as_text")]
        end: Timestamp,
        /// Name of the gRPC code of its result.
        code: Cow<'a, str>,
        /// Text of the error; empty with `OK`.
        message: Cow<'a, str>,
    },
    Faults {
        #[serde(serialize_with = "as_text")]
        time: Timestamp,
        file: Cow<'a, Path>,
        rules: usize,
        /// Their ids; absent if the file was rejected.
        #[serde(skip_serializing_if = "Option::is_none")]
        ids: Option<Cow<'a, [String]>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<Cow<'a, str>>,
    },
    /// Lines are missing here: the file was stalled or full.
    Lost {
        #[serde(serialize_with = "as_text")]
        time: Timestamp,
        lines: u64,
    },
}

/// RFC 3339 in UTC, always six digits, so that texts sort like times.
pub(crate) fn text(time: Timestamp) -> String {
    format!("{time:.6}")
}

fn as_text<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{time:.6}"))
}
