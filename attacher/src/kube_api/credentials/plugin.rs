//! Credentials from another program, as kubectl's and client-go's exec plugins give them: for managed
//! clusters there is often no other way in.
//!
//! One run at a time, whoever waits for it; its answer holds until the time that it names, or until the API
//! server does not take it. A run outlives the request that asked for it, since a person may have to log in
//! first, but not us.

use std::fmt;
use std::io::{self, IsTerminal};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::HeaderValue;
use jiff::{SignedDuration, Timestamp};
use kube::config::{ExecConfig, ExecInteractiveMode};
use serde::Deserialize;
use serde_json::json;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::super::tls::{Identity, TlsError};
use super::{CredentialsError, Pass, authorization, nonempty};

/// How long a plugin may take. A person may be at a browser meanwhile.
const RUN: Duration = Duration::from_secs(300);
/// How long a failure is the answer to everybody, so that a thousand jobs do not run the plugin a thousand
/// times; and how long an answer is not asked for again because the API server refused it.
const PAUSE: Duration = Duration::from_secs(5);
/// An answer is not used so shortly before it expires, for the request has yet to arrive.
const MARGIN: SignedDuration = SignedDuration::from_secs(10);

/// See the module.
pub(crate) struct Plugin {
    exec: Arc<ExecConfig>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    latest: Option<(Instant, Result<Issued, Arc<PluginError>>)>,
    running: Option<BoxFuture<'static, Result<Issued, PluginError>>>,
}

/// What a plugin answered.
#[derive(Clone)]
struct Issued {
    pass: Pass,
    until: Option<Timestamp>,
}

/// A plugin did not give credentials.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// It is not known which program it is.
    #[error("the user's exec has no command")]
    NoCommand,
    /// There is nobody whom it could ask.
    #[error("the exec plugin {0:?} has interactiveMode Always, and standard input is no terminal")]
    NoTerminal(String),
    /// It cannot be run.
    #[error("the exec plugin {command:?} cannot be run{hint}")]
    Run {
        /// The program.
        command: String,
        /// `installHint`, after a colon.
        hint: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It has not ended.
    #[error("the exec plugin {0:?} was stopped after {RUN:?} without an answer")]
    Slow(String),
    /// It ended badly. Its standard error is ours, and what else it wrote may be secret.
    #[error("the exec plugin {command:?} failed with {status}")]
    Failed {
        /// The program.
        command: String,
        /// How it ended.
        status: ExitStatus,
    },
    /// It wrote something else than credentials.
    #[error("the exec plugin {command:?} did not print an ExecCredential with {missing}")]
    Answer {
        /// The program.
        command: String,
        /// What is not there, or not as it should be.
        missing: &'static str,
    },
    /// It gave a certificate or key that is of no use.
    #[error("the exec plugin {command:?} gave a client certificate that is not usable")]
    Certificate {
        /// The program.
        command: String,
        /// Why.
        #[source]
        source: TlsError,
    },
}

/// What a plugin prints. Some print YAML.
#[derive(Deserialize)]
struct ExecCredential {
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

// === impl Plugin ===

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Plugin").field(&self.exec.command).finish()
    }
}

impl Plugin {
    pub(super) fn new(exec: &ExecConfig) -> Result<Self, PluginError> {
        let Some(command) = nonempty(exec.command.as_deref()) else {
            return Err(PluginError::NoCommand);
        };
        if exec.interactive_mode == Some(ExecInteractiveMode::Always) && !io::stdin().is_terminal() {
            return Err(PluginError::NoTerminal(command.to_owned()));
        }
        Ok(Self {
            exec: Arc::new(exec.clone()),
            state: Mutex::default(),
        })
    }

    /// What it last said, or says now.
    pub(super) async fn pass(&self) -> Result<Pass, Arc<PluginError>> {
        let mut state = self.state.lock().await;
        if let Some((at, latest)) = &state.latest {
            match latest {
                // A plugin that keeps answers itself gives the same one until it expires: who asks again at once
                // would run it for each request of those last seconds.
                Ok(issued) if issued.holds_at(Timestamp::now(), at.elapsed() >= PAUSE) => {
                    return Ok(issued.pass.clone());
                }
                Err(error) if at.elapsed() < PAUSE => return Err(error.clone()),
                Ok(_) | Err(_) => {}
            }
        }
        // Whoever waits here may be dropped; the run stays and the next one waits on.
        let running = state
            .running
            .get_or_insert_with(|| Box::pin(run(self.exec.clone())));
        let answer = running.as_mut().await.map_err(Arc::new);
        let answer = answer
            .map(|issued| issued.after(state.latest.as_ref().and_then(|(_, latest)| latest.as_ref().ok())));
        state.running = None;
        state.latest = Some((Instant::now(), answer.clone()));
        answer.map(|issued| issued.pass)
    }

    /// The API server did not take `pass`: the next request waits for another one.
    pub(super) async fn refused(&self, pass: &Pass) {
        let mut state = self.state.lock().await;
        let is_it = |issued: &Issued| {
            issued.pass.authorization == pass.authorization
                && issued.pass.identity.as_ref().map(Arc::as_ptr) == pass.identity.as_ref().map(Arc::as_ptr)
        };
        if let Some((at, Ok(issued))) = &state.latest
            && at.elapsed() >= PAUSE
            && is_it(issued)
        {
            state.latest = None;
        }
    }
}

// === impl Issued ===

impl Issued {
    /// With the certificate of the answer before, if it is the same: connections are made for one.
    fn after(mut self, before: Option<&Self>) -> Self {
        let before = before.and_then(|before| before.pass.identity.as_ref());
        if let Some((ours, before)) = self.pass.identity.as_mut().zip(before)
            && ours.is_same(before)
        {
            *ours = Arc::clone(before);
        }
        self
    }

    fn holds_at(&self, now: Timestamp, with_margin: bool) -> bool {
        let margin = if with_margin { MARGIN } else { SignedDuration::ZERO };
        self.until.is_none_or(|until| now + margin < until)
    }
}

async fn run(exec: Arc<ExecConfig>) -> Result<Issued, PluginError> {
    let command = exec.command.clone().unwrap_or_default();
    let interactive = exec.interactive_mode != Some(ExecInteractiveMode::Never) && io::stdin().is_terminal();
    let mut spec = json!({ "interactive": interactive });
    if let Some(cluster) = &exec.cluster {
        spec["cluster"] = json!(cluster);
    }
    let info = json!({ "kind": "ExecCredential", "apiVersion": exec.api_version, "spec": spec });
    let variables = exec.env.iter().flatten();
    let variables = variables.filter_map(|variable| variable.get("name").zip(variable.get("value")));
    let output = Command::new(&command)
        .args(exec.args.iter().flatten())
        .envs(variables)
        .env("KUBERNETES_EXEC_INFO", info.to_string())
        .stdin(if interactive {
            Stdio::inherit()
        } else {
            Stdio::null()
        })
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output();
    let output = match timeout(RUN, output).await {
        Ok(Ok(output)) => output,
        Ok(Err(source)) => {
            let hint = nonempty(exec.install_hint.as_deref());
            let hint = hint.map(|hint| format!(": {}", hint.trim())).unwrap_or_default();
            return Err(PluginError::Run {
                command,
                hint,
                source,
            });
        }
        Err(_) => return Err(PluginError::Slow(command)),
    };
    if !output.status.success() {
        let status = output.status;
        return Err(PluginError::Failed { command, status });
    }
    issued(command, &output.stdout)
}

/// Reads what a plugin printed.
fn issued(command: String, stdout: &[u8]) -> Result<Issued, PluginError> {
    let answer = serde_saphyr::from_slice::<ExecCredential>(stdout);
    let Some(status) = answer.ok().and_then(|answer| answer.status) else {
        let missing = "a status";
        return Err(PluginError::Answer { command, missing });
    };
    let token = nonempty(status.token.as_deref());
    let token: Option<Result<HeaderValue, CredentialsError>> =
        token.map(|token| authorization("Bearer", token, "token"));
    let Ok(authorization) = token.transpose() else {
        let missing = "a token that can be sent in an HTTP header";
        return Err(PluginError::Answer { command, missing });
    };
    let certificate = nonempty(status.client_certificate_data.as_deref());
    let identity = match (certificate, nonempty(status.client_key_data.as_deref())) {
        (Some(certificate), Some(key)) => match Identity::from_pem(certificate.as_bytes(), key.as_bytes()) {
            Ok(identity) => Some(Arc::new(identity)),
            Err(source) => return Err(PluginError::Certificate { command, source }),
        },
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            let missing = "both clientCertificateData and clientKeyData";
            return Err(PluginError::Answer { command, missing });
        }
    };
    if authorization.is_none() && identity.is_none() {
        let missing = "a token or a client certificate";
        return Err(PluginError::Answer { command, missing });
    }
    let until = nonempty(status.expiration_timestamp.as_deref()).map(str::parse::<Timestamp>);
    let Ok(until) = until.transpose() else {
        let missing = "an RFC 3339 time in expirationTimestamp";
        return Err(PluginError::Answer { command, missing });
    };
    let pass = Pass {
        authorization,
        identity,
    };
    Ok(Issued { pass, until })
}
