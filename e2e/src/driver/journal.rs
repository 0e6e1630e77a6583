//! The driver's journal of calls, read back.
//!
//! The driver writes a line before it sends the response in that line, so a client that has received a
//! response finds the call here. A line that could not be written is an error of the reader. [`Journal`] reads the file; [`calls`] combines the lines of each call and
//! determines its effect on the array.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use rustix::fs::inotify;
use serde_json::Value;
use tokio::net::unix::pipe;
use tokio::time::{Instant, timeout_at};

use crate::wait::Progress;

/// The call that attaches.
pub const PUBLISH: &str = "ControllerPublishVolume";
/// The call that detaches.
pub const UNPUBLISH: &str = "ControllerUnpublishVolume";

/// A line of the journal.
pub type Line = csi_mock_driver::journal::Line<'static>;

/// A call, combined from its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Id of the process that sent it, if known.
    pub by: Option<i32>,
    /// Name of the RPC.
    pub method: String,
    /// Volume id of the request; empty if it has none.
    pub volume: String,
    /// Node id of the request; empty if it has none, or for an unpublish from all nodes.
    pub node: String,
    /// Staging or target path of the request; empty for controller calls.
    pub path: String,
    /// Keys of the request's secrets.
    pub secrets: BTreeSet<String>,
    /// When it arrived.
    pub start: Timestamp,
    /// Its end; `None` while it runs, or if the driver exited during it.
    pub end: Option<End>,
    /// Its effect on the array.
    pub effect: Effect,
    /// The latest time of its effect: its end, or later if the client cancelled it.
    pub effect_by: Option<Timestamp>,
}

/// The end of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// When.
    pub at: Timestamp,
    /// Name of the gRPC code.
    pub code: String,
    /// Error message.
    pub message: String,
    /// `publish_context` of the response.
    pub context: BTreeMap<String, String>,
}

/// The effect of a call on the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It succeeded.
    Done,
    /// It had no effect.
    Nothing,
    /// Unknown: it is still running, or the driver exited during it.
    Unknown,
}

/// A mount or unmount of a volume in the journal of a node's driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEvent {
    /// Time of the driver's response.
    pub at: Timestamp,
    /// Name of the node.
    pub node: String,
    /// The driver's id of the volume.
    pub volume: String,
    /// Whether it is a mount.
    pub mounted: bool,
}

/// The journal file of one driver.
#[derive(Clone, Debug)]
pub struct Journal {
    path: PathBuf,
}

/// A reader that returns each line once, as it is written.
#[derive(Debug)]
pub struct Tail {
    file: File,
    changes: pipe::Receiver,
    rest: Vec<u8>,
}

// === impl Call ===

impl Call {
    /// Whether the call returned OK.
    pub fn succeeded(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.code == "OK")
    }

    fn begun(by: Option<i32>, method: &str, start: Timestamp, request: &Value) -> Self {
        let text = |field: &str| {
            request
                .get(field)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let secrets = request.get("secrets").and_then(Value::as_object);
        Self {
            by,
            method: name_of(method).to_owned(),
            volume: text("volume_id"),
            node: text("node_id"),
            path: match name_of(method) {
                "NodeStageVolume" | "NodeUnstageVolume" => text("staging_target_path"),
                _ => text("target_path"),
            },
            secrets: secrets
                .into_iter()
                .flat_map(|secrets| secrets.keys().cloned())
                .collect(),
            start,
            end: None,
            effect: Effect::Unknown,
            effect_by: None,
        }
    }
}

// === impl Journal ===

impl Journal {
    /// The journal at `path`. Creates the file, so that it can be followed before the driver writes to it.
    pub fn create(path: &Path) -> Result<Self> {
        File::options()
            .create(true)
            .append(true)
            .open(path)
            .with_context(|| format!("create the driver's journal {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
        })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All lines written so far.
    pub fn lines(&self) -> Result<Vec<Line>> {
        self.tail()?.read()
    }

    /// A reader that starts at the first line.
    pub fn tail(&self) -> Result<Tail> {
        Tail::open(&self.path)
    }

    /// Waits until `condition` holds for the lines written so far.
    pub async fn wait_for<T>(
        &self,
        within: Duration,
        what: &str,
        mut condition: impl FnMut(&[Line]) -> Progress<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + within;
        let mut tail = self.tail()?;
        let mut lines = Vec::new();
        loop {
            lines.extend(tail.read()?);
            let missing = match condition(&lines) {
                Progress::Reached(value) => return Ok(value),
                Progress::Pending(missing) => missing,
            };
            match timeout_at(deadline, tail.changed()).await {
                Ok(changed) => changed?,
                Err(_) => {
                    bail!("waited {within:?} for {what} in the driver's journal: {missing}");
                }
            }
        }
    }
}

// === impl Tail ===

impl Tail {
    fn open(path: &Path) -> Result<Self> {
        let context = || format!("follow {}", path.display());
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)
            .with_context(context)?;
        inotify::add_watch(&watch, path, inotify::WatchFlags::MODIFY).with_context(context)?;
        let file = File::open(path).with_context(context)?;
        Ok(Self {
            file,
            // The runtime handles an inotify descriptor like a pipe: it is readable after an event.
            changes: pipe::Receiver::from_file_unchecked(File::from(watch)).with_context(context)?,
            rest: Vec::new(),
        })
    }

    /// The complete lines written since the last read.
    ///
    /// # Errors
    /// The driver could not write lines, so that nothing can be concluded from the others.
    pub fn read(&mut self) -> Result<Vec<Line>> {
        self.file
            .read_to_end(&mut self.rest)
            .context("read the journal")?;
        let whole = self
            .rest
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |at| at + 1);
        let lines: Result<Vec<Line>> = self.rest[..whole]
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| {
                serde_json::from_slice(line)
                    .with_context(|| format!("odd journal line {}", String::from_utf8_lossy(line)))
            })
            .collect();
        self.rest.drain(..whole);
        let lines = lines?;
        if let Some(Line::Lost { lines, .. }) = lines.iter().find(|line| matches!(line, Line::Lost { .. })) {
            bail!("the driver's journal has a gap: {lines} lines could not be written");
        }
        Ok(lines)
    }

    /// Waits until the file was written to since the last call.
    pub async fn changed(&mut self) -> Result<()> {
        // The content of the events does not matter, only their occurrence.
        let mut events = [0; 4096];
        loop {
            self.changes.readable().await.context("wait for the journal")?;
            match self.changes.try_read(&mut events) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("wait for the journal"),
            }
        }
    }
}

// === functions ===

/// Name of an RPC without its service, from a path such as `/csi.v1.Controller/ControllerPublishVolume`.
pub fn name_of(method: &str) -> &str {
    method.rsplit_once('/').map_or(method, |(_, name)| name)
}

/// Combines the lines of each call, in the order of arrival. `after_effect_rules`: the fault rules that fail
/// a call after its effect.
pub fn calls(lines: &[Line], after_effect_rules: &BTreeSet<String>) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    // Call numbers restart with the driver: a number refers to its latest call.
    let mut places: BTreeMap<u64, usize> = BTreeMap::new();
    for line in lines {
        match line {
            Line::Begin {
                call,
                method,
                peer,
                start,
                request,
            } => {
                places.insert(*call, calls.len());
                let by = peer.and_then(|peer| peer.pid);
                calls.push(Call::begun(by, method, *start, request));
            }
            Line::End {
                call,
                end,
                code,
                message,
                fault,
                response,
                ..
            } => {
                let Some(known) = places.get(call).and_then(|&place| calls.get_mut(place)) else {
                    continue;
                };
                let failed_after_effect = fault
                    .as_ref()
                    .is_some_and(|rule| after_effect_rules.contains(rule));
                known.effect = match &**code {
                    "OK" => Effect::Done,
                    // A later line records whether the array completes a call that its client cancelled.
                    "CANCELLED" => Effect::Unknown,
                    _ if failed_after_effect => Effect::Done,
                    _ => Effect::Nothing,
                };
                let context = response
                    .as_ref()
                    .and_then(|response| response.get("publish_context"));
                known.effect_by = Some(*end);
                known.end = Some(End {
                    at: *end,
                    code: code.to_string(),
                    message: message.to_string(),
                    context: context
                        .and_then(|map| serde_json::from_value(map.clone()).ok())
                        .unwrap_or_default(),
                });
            }
            Line::Late { call, end, code, .. } => {
                let Some(known) = places.get(call).and_then(|&place| calls.get_mut(place)) else {
                    continue;
                };
                known.effect_by = Some(*end);
                known.effect = if code == "OK" {
                    Effect::Done
                } else {
                    Effect::Nothing
                };
            }
            Line::Faults { .. } | Line::Lost { .. } => {}
        }
    }
    calls
}

#[cfg(test)]
mod tests;
