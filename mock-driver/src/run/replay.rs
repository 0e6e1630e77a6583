//! `csi-mock-driver replay`: answers as a recorded driver did, by method, volume, node, page and order.
//!
//! The journal becomes a list of rules with a stub for each call, in a proxy without a driver. A call that the recording does not have, or not
//! any more, gets FAILED_PRECONDITION from the rule `departure`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::driver::NO_DRIVER;
use crate::fault::{Rule, RuleError, response};
use crate::journal::Line;
use crate::rpc::method::{Kind, Method};

const USAGE: &str = "usage: csi-mock-driver replay --journal=FILE [--timing] --endpoint=unix:///SOCKET [FLAG]...

Answers as the driver did whose --journal is FILE, that of a proxy included: by method, volume, node, page and order; with --timing
after the recorded durations. Other flags are those of a driver with --proxy-to, such as --admin-endpoint. The rule `departure`
answers calls that the recording does not have.
";

/// A call that ended this early without an answer lost its connection; a later one was cancelled by its client.
const CUT_OFF: Duration = Duration::from_secs(1);

/// A replay that cannot start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "documented by the error messages")]
pub enum Error {
    #[error("{USAGE}")]
    Usage,
    #[error("--journal: {path}: a recorded call cannot be replayed: {reason}")]
    Stub { path: String, reason: RuleError },
    #[error("--journal: cannot read {path}")]
    Read { path: String, source: io::Error },
    #[error(
        "--journal: {path}: the calls before these were rotated away: record with a larger --journal-max-size"
    )]
    CutOff { path: String },
    #[error("--journal: {path}: line {line} is not of a journal: {reason}")]
    Line {
        path: String,
        line: usize,
        reason: String,
    },
}

struct Recorded {
    method: String,
    request: Value,
    /// Name of the code, message, response and duration; `None` for a call that did not end.
    end: Option<(String, String, Option<Value>, Duration)>,
}

/// The help of a replay, if the command line asks for it.
pub fn help(words: &[OsString]) -> Option<String> {
    let is_replay = words.get(1).is_some_and(|word| word == "replay");
    let asks = words
        .iter()
        .any(|word| word == "--help" || word == "-h" || word == "-help");
    (is_replay && asks).then(|| USAGE.to_owned())
}

/// The command line of a driver that replays, and its stubs.
///
/// # Errors
/// The command line or the journal is malformed.
pub fn command_line(words: &[OsString]) -> Result<(Vec<OsString>, Vec<Rule>), Error> {
    let mut flags = vec![words.first().cloned().unwrap_or_default()];
    let (mut journal, mut timing) = (None, false);
    let mut rest = words.iter().skip(2);
    while let Some(word) = rest.next() {
        let text = word.to_string_lossy();
        match text.split_once('=') {
            Some(("--journal", file)) => journal = Some(file.to_owned()),
            None if text == "--journal" => {
                journal = rest.next().map(|file| file.to_string_lossy().into_owned())
            }
            None if text == "--timing" => timing = true,
            Some(_) | None => flags.push(word.clone()),
        }
    }
    let path = journal.ok_or(Error::Usage)?;
    let rotated = format!("{path}.1");
    let before = match std::fs::read_to_string(&rotated) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read.map_err(|source| Error::Read {
            path: rotated.clone(),
            source,
        })?,
    };
    if is_cut_off(&before) {
        return Err(Error::CutOff { path: rotated });
    }
    let text = std::fs::read_to_string(&path).map_err(|source| Error::Read {
        path: path.clone(),
        source,
    })?;
    let calls = recorded(&[before.as_str(), &text].concat()).map_err(|(line, reason)| {
        let lines = before.lines().count();
        let (path, line) = match line > lines {
            true => (path.clone(), line - lines),
            false => (rotated, line),
        };
        Error::Line { path, line, reason }
    })?;
    let stubs = Value::Array(stubs_of(&calls, timing)).to_string();
    let stubs = Rule::read_list(&stubs).map_err(|reason| Error::Stub { path, reason })?;
    flags.push(format!("--proxy-to={NO_DRIVER}").into());
    Ok((flags, stubs))
}

/// Whether calls before those of a rotated journal are missing.
fn is_cut_off(text: &str) -> bool {
    let first = text.lines().find_map(|line| match serde_json::from_str(line) {
        Ok(Line::Begin { call, .. } | Line::End { call, .. }) => Some(call),
        Ok(_) | Err(_) => None,
    });
    first.is_some_and(|call| call > 1)
}

/// The calls of a journal in the order in which they began. The last line may be incomplete.
///
/// A driver that is started again appends to the journal, and counts its calls from 1 again.
fn recorded(text: &str) -> Result<Vec<Recorded>, (usize, String)> {
    let mut calls: Vec<Recorded> = Vec::new();
    let mut running: HashMap<(u64, Timestamp), usize> = HashMap::new();
    let last = text.lines().count();
    for (index, line) in text.lines().enumerate() {
        match serde_json::from_str(line) {
            Ok(Line::Begin {
                call,
                method,
                start,
                request,
                ..
            }) => {
                running.insert((call, start), calls.len());
                calls.push(Recorded {
                    method: method.into_owned(),
                    request: request.into_owned(),
                    end: None,
                });
            }
            Ok(Line::End {
                call,
                method,
                start,
                end,
                code,
                message,
                request,
                response,
                ..
            }) => {
                let took = Duration::try_from(end.duration_since(start)).unwrap_or_default();
                let response = response.map(std::borrow::Cow::into_owned);
                let end = Some((code.into_owned(), message.into_owned(), response, took));
                match running.remove(&(call, start)) {
                    Some(begun) => calls[begun].end = end,
                    None => calls.push(Recorded {
                        method: method.into_owned(),
                        request: request.into_owned(),
                        end,
                    }),
                }
            }
            Ok(Line::Lost { .. }) => {
                let reason = "the journal has dropped calls here, so it cannot be replayed";
                return Err((index + 1, reason.to_owned()));
            }
            Ok(Line::Late { .. } | Line::Faults { .. }) => {}
            Err(_) if index + 1 == last => {}
            Err(error) => return Err((index + 1, error.to_string())),
        }
    }
    Ok(calls)
}

/// A rule for each call, which fires once; the last answer of a method that only reads is repeated for the same request.
fn stubs_of(calls: &[Recorded], timing: bool) -> Vec<Value> {
    let mut rules: Vec<Value> = Vec::new();
    let matches: Vec<Value> = calls.iter().map(matches).collect();
    let texts = matches.iter().map(Value::to_string);
    let last: HashMap<String, usize> = texts.zip(0..).collect();
    for (index, (call, matching)) in calls.iter().zip(&matches).enumerate() {
        let rpc = Method::at(&call.method);
        let Some(action) = action(call, rpc, timing) else {
            continue;
        };
        let mut rule = json!({"id": format!("call-{}", index + 1), "match": matching, "action": action});
        let is_last = last.get(&matching.to_string()) == Some(&index);
        if !rpc.is_some_and(|rpc| rpc.kind() == Kind::Read) || !is_last {
            rule["times"] = json!(1);
        }
        rules.push(rule);
    }
    let message = "replay: the recording has no such call, no further one, or not the messages of its stream";
    rules.push(json!({"id": "departure", "match": {"method": "*"},
        "action": {"code": "FAILED_PRECONDITION", "message": message}}));
    rules
}

/// The fields of requests that identify their objects, node and page.
const SUBJECT: [&str; 9] = [
    "volume_id",
    "source_volume_id",
    "snapshot_id",
    "group_snapshot_id",
    "base_snapshot_id",
    "target_snapshot_id",
    "name",
    "node_id",
    "starting_token",
];

/// Matches requests with the same objects, node and page.
fn matches(call: &Recorded) -> Value {
    let mut matches = json!({"method": call.method});
    let rpc = Method::at(&call.method);
    for field in SUBJECT {
        match call
            .request
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
        {
            "" if rpc.is_some_and(|rpc| rpc.takes(field)) => {
                matches["request"][field] = json!({"exists": false});
            }
            "" => {}
            // A pattern is compared faster than a path, but must not have wildcards.
            id if field == "volume_id" && !id.contains(['*', '?']) => matches["volume"] = json!(id),
            id => matches["request"][field] = json!({ "equals": id }),
        }
    }
    matches
}

/// What answers a call as recorded; `None` if that is not known.
fn action(call: &Recorded, rpc: Option<Method>, timing: bool) -> Option<Value> {
    let Some((code, message, response, took)) = &call.end else {
        return Some(json!({"drop-connection": true}));
    };
    let mut action = match (code.as_str(), rpc) {
        ("CANCELLED", _) if *took >= CUT_OFF => return Some(json!({"hang": "client-cancel"})),
        ("CANCELLED", _) => json!({"drop-connection": true}),
        // A proxy does not read the messages of a stream.
        ("OK", Some(rpc)) if rpc.streams() && response.is_none() => return None,
        ("OK", Some(rpc)) => {
            let mut reply = response.clone().unwrap_or_else(|| json!({}));
            response::escape(&mut reply);
            json!({"response": if rpc.streams() { json!([reply]) } else { reply }})
        }
        // The journal has no message of another service.
        ("OK", None) => json!({"pretend": "OK"}),
        (code, _) if message.is_empty() => json!({"code": code}),
        (code, _) => json!({"code": code, "message": message}),
    };
    if timing {
        action["delay"] = json!(format!("{}us", took.as_micros()));
    }
    Some(action)
}
