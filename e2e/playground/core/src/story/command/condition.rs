//! Conditions that `wait` and `expect` await.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::super::Setup;
use super::super::state::StoryState;
use super::super::words::{SyntaxError, Words};
use super::rule::METHODS;
use csi_e2e::driver::journal::Call;
use csi_e2e::scenario::move_order;
use csi_e2e::wait::Progress;

/// The forms of all conditions, after `wait`.
pub(super) const FORMS: &[&str] = &[
    "wait POD running [within DURATION]",
    "wait POD not running",
    "wait POD event REASON [\"TEXT\"] [within DURATION]",
    "wait POD unschedulable [\"TEXT\"] [within DURATION]",
    "wait pods NAME running [within DURATION]",
    "wait VOLUME attached to NODE [within DURATION]",
    "wait VOLUME detached from NODE [within DURATION]",
    "wait VOLUME detached from NODE before attached to NODE",
    "wait VOLUME published to NODE [within DURATION]",
    "wait VOLUME not published to NODE [within DURATION]",
    "wait VOLUME attach error on NODE [\"TEXT\"] [within DURATION]",
    "wait VOLUME detach error on NODE [\"TEXT\"] [within DURATION]",
    "wait N METHOD succeeded [within DURATION]",
    "wait no METHOD [for VOLUME] [on NODE]",
    "wait attacher NAME leads [within DURATION]",
];

/// The highest number of calls.
const MAX_CALLS: usize = 10_000;

#[derive(Debug)]
pub(crate) enum Condition {
    Running(String),
    NotRunning(String),
    Event {
        pod: String,
        reason: String,
        text: String,
    },
    Unschedulable {
        pod: String,
        text: String,
    },
    AllRunning(String),
    Attached {
        volume: String,
        node: usize,
    },
    Detached {
        volume: String,
        node: usize,
    },
    /// By the driver's journal.
    Moved {
        volume: String,
        from: usize,
        to: usize,
    },
    /// At the array.
    Published {
        volume: String,
        node: usize,
        is_wanted: bool,
    },
    Error {
        volume: String,
        node: usize,
        is_of_attach: bool,
        text: String,
    },
    Succeeded {
        method: &'static str,
        count: usize,
    },
    NoCall {
        method: &'static str,
        volume: Option<String>,
        node: Option<usize>,
    },
    Leads(String),
}

// === impl Condition ===

impl Condition {
    pub(super) fn parse(words: &mut Words, setup: &Setup) -> Result<Self, SyntaxError> {
        if words.peek().parse::<usize>().is_ok() {
            let count = words.number(MAX_CALLS)?;
            let method = words.choice("a method", METHODS)?;
            words.expect("succeeded")?;
            return Ok(Self::Succeeded { method, count });
        }
        if words.accept("no") {
            return Self::parse_no_call(words, setup);
        }
        if words.accept("pods") {
            let name = words.name("the name of the pods")?;
            words.expect("running")?;
            return Ok(Self::AllRunning(name));
        }
        if words.accept("attacher") {
            let name = words.name("the name of an attacher")?;
            words.expect("leads")?;
            return Ok(Self::Leads(name));
        }
        let name = words.name("the name of a pod or volume")?;
        Self::parse_state(words, setup, name)
    }

    fn parse_no_call(words: &mut Words, setup: &Setup) -> Result<Self, SyntaxError> {
        let method = words.choice("a method", METHODS)?;
        let (volume, node) = words.volume_and_node(setup)?;
        Ok(Self::NoCall { method, volume, node })
    }

    /// Reads the state of a pod or volume.
    fn parse_state(words: &mut Words, setup: &Setup, name: String) -> Result<Self, SyntaxError> {
        if words.accept("not running") {
            return Ok(Self::NotRunning(name));
        }
        let is_wanted = !words.accept("not");
        let states: &'static [_] = match is_wanted {
            true => &[
                "running",
                "event",
                "unschedulable",
                "attached",
                "detached",
                "published",
                "attach",
                "detach",
            ],
            false => &["published"],
        };
        let state = words.choice("a state", states)?;
        Ok(match state {
            "running" => Self::Running(name),
            "event" => Self::Event {
                pod: name,
                reason: words.reason()?,
                text: words.text(),
            },
            "unschedulable" => Self::Unschedulable {
                pod: name,
                text: words.text(),
            },
            "attached" => {
                words.expect("to")?;
                let node = words.node(setup)?;
                Self::Attached { volume: name, node }
            }
            "published" => {
                words.expect("to")?;
                let node = words.node(setup)?;
                Self::Published {
                    volume: name,
                    node,
                    is_wanted,
                }
            }
            "detached" => {
                words.expect("from")?;
                let node = words.node(setup)?;
                match words.accept("before attached to") {
                    true => Self::Moved {
                        volume: name,
                        from: node,
                        to: words.node(setup)?,
                    },
                    false => Self::Detached { volume: name, node },
                }
            }
            _ => {
                words.expect("error on")?;
                Self::Error {
                    volume: name,
                    node: words.node(setup)?,
                    is_of_attach: state == "attach",
                    text: words.text(),
                }
            }
        })
    }

    /// Waits until it holds.
    ///
    /// # Errors
    /// It does not hold in time; or it can no longer hold.
    pub(super) async fn wait(&self, state: &mut StoryState<'_, '_>, within: Duration) -> Result<()> {
        let env = &*state.env;
        match self {
            Self::Running(pod) => env.wait_until_running(pod, within).await,
            Self::NotRunning(pod) => env.ensure_not_running(pod).await,
            Self::Event { pod, reason, text } => {
                env.wait_for_event(pod, reason, text, within).await.map(drop)
            }
            Self::Unschedulable { pod, text } => {
                let message = env.wait_until_unschedulable(pod, text).await?;
                state.narrator.you(&format!(
                    "read the condition PodScheduled of pod {pod}: {message}"
                ));
                Ok(())
            }
            Self::AllRunning(name) => {
                for pod in state.group(name)? {
                    env.wait_until_running(&pod, within).await?;
                }
                Ok(())
            }
            Self::Attached { volume, node } => {
                let volume = state.existing_volume(volume)?;
                let attachment = env.attachment_name(&volume, *node);
                env.wait_until_attached(&attachment).await.map(drop)
            }
            Self::Detached { volume, node } => {
                let volume = state.existing_volume(volume)?;
                env.wait_until_detached(&volume, *node, within).await
            }
            Self::Moved { volume, from, to } => {
                let volume = state.existing_volume(volume)?;
                move_order::ensure_detached_before_attach(env, &volume, *from, *to).map(drop)
            }
            Self::Published {
                volume,
                node,
                is_wanted,
            } => {
                let volume = state.existing_volume(volume)?;
                env.wait_until_published(&volume, *node, *is_wanted).await
            }
            Self::Error {
                volume,
                node,
                is_of_attach,
                text,
            } => {
                let volume = state.existing_volume(volume)?;
                let what = format!("an error of the attachment with \"{text}\"");
                env.wait_for_attachment(&volume, *node, within, &what, |attachment| {
                    let status = attachment.and_then(|attachment| attachment.status.as_ref());
                    let error = status.and_then(|status| match is_of_attach {
                        true => status.attach_error.as_ref(),
                        false => status.detach_error.as_ref(),
                    });
                    let message = error
                        .and_then(|error| error.message.as_deref())
                        .unwrap_or_default();
                    let is_wanted = error.is_some() && message.contains(text.as_str());
                    Progress::of(is_wanted, || format!("its error is {message:?}"))
                })
                .await
            }
            Self::Succeeded { method, count } => wait_for_calls(state, method, *count, within).await,
            Self::NoCall { method, volume, node } => ensure_no_call(state, method, volume.as_deref(), *node),
            Self::Leads(name) => {
                let lease = state.lease.as_mut();
                let lease = lease.context("no command above has started an attacher with a name")?;
                lease.wait_for_holder(name).await
            }
        }
    }
}

async fn wait_for_calls(
    state: &StoryState<'_, '_>,
    method: &str,
    count: usize,
    within: Duration,
) -> Result<()> {
    let what = format!("{count} successful calls of {method}");
    state
        .env
        .driver
        .wait_for_calls(within, &what, |calls| {
            let succeeded = calls
                .iter()
                .filter(|call| is_of(call, method) && call.succeeded());
            let succeeded = succeeded.count();
            Progress::of(succeeded >= count, || format!("{succeeded} succeeded"))
        })
        .await
}

fn ensure_no_call(
    state: &StoryState<'_, '_>,
    method: &str,
    volume: Option<&str>,
    node: Option<usize>,
) -> Result<()> {
    let handle = match volume {
        Some(volume) => Some(state.existing_volume(volume)?.handle),
        None => None,
    };
    let node_id = node.map(|node| state.env.node(node).node_id());
    let calls = state.env.driver.calls()?;
    let found = calls.iter().find(|call| {
        is_of(call, method)
            && handle.as_ref().is_none_or(|handle| call.volume == *handle)
            && node_id.is_none_or(|node_id| call.node == node_id)
    });
    ensure!(found.is_none(), "the driver was called: {found:?}");
    Ok(())
}

fn is_of(call: &Call, method: &str) -> bool {
    call.method == method
}
