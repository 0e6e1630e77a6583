//! The lines of the journal's file.

use std::borrow::Cow;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::call::Peer;

/// A line of the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Line<'a> {
    /// A call began.
    Begin {
        /// Number of the call since the driver's start.
        call: u64,
        /// Path of the RPC.
        method: Cow<'a, str>,
        /// The calling process.
        #[serde(skip_serializing_if = "Option::is_none")]
        peer: Option<Peer>,
        /// Start time.
        #[serde(serialize_with = "as_text")]
        start: Timestamp,
        /// The request, without secrets.
        request: Cow<'a, Value>,
    },
    /// A call ended, or its client disconnected or cancelled it (`CANCELLED`).
    End {
        /// Number of the call since the driver's start.
        call: u64,
        /// Path of the RPC.
        method: Cow<'a, str>,
        /// The calling process.
        #[serde(skip_serializing_if = "Option::is_none")]
        peer: Option<Peer>,
        /// Start time.
        #[serde(serialize_with = "as_text")]
        start: Timestamp,
        /// End time.
        #[serde(serialize_with = "as_text")]
        end: Timestamp,
        /// Name of the gRPC code.
        code: Cow<'a, str>,
        /// Text of the error; empty with `OK`.
        message: Cow<'a, str>,
        /// The fault rule that applied to it.
        #[serde(skip_serializing_if = "Option::is_none")]
        fault: Option<String>,
        /// The request, without secrets.
        request: Cow<'a, Value>,
        /// The response, without secrets; absent with an error.
        #[serde(skip_serializing_if = "Option::is_none")]
        response: Option<Cow<'a, Value>>,
    },
    /// The array completed the operation of a call that had ended.
    Late {
        /// Number of the call since the driver's start.
        call: u64,
        /// Path of the RPC.
        method: Cow<'a, str>,
        /// When it completed.
        #[serde(serialize_with = "as_text")]
        end: Timestamp,
        /// Name of the gRPC code of its result.
        code: Cow<'a, str>,
        /// Text of the error; empty with `OK`.
        message: Cow<'a, str>,
    },
    /// A fault file was loaded or rejected.
    Faults {
        /// Time.
        #[serde(serialize_with = "as_text")]
        time: Timestamp,
        /// The file.
        file: Cow<'a, Path>,
        /// Number of active rules.
        rules: usize,
        /// Their ids; absent if the file was rejected.
        #[serde(skip_serializing_if = "Option::is_none")]
        ids: Option<Cow<'a, [String]>>,
        /// The error of a rejected file.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<Cow<'a, str>>,
    },
    /// Lines are missing here: the file was stalled or full.
    Lost {
        /// Time.
        #[serde(serialize_with = "as_text")]
        time: Timestamp,
        /// Number of missing lines.
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
