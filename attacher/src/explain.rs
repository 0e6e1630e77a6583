//! `csi-attacher explain`: where a volume stands on its way to or from a node, who must act next, since
//! when, why, and what to do.
//!
//! Read only. `gather` reads what concerns the question from the API server, with whatever rights
//! the reader has; `diagnose` makes a `report` of it without any I/O, asking [`decide`](crate::decide) for
//! the attacher's own rules; `print` shows it. Nothing is shared with an attacher that runs: any
//! attacher of any version, the Go sidecar too, can be explained.

mod diagnose;
mod gather;
mod objects;
mod print;
mod reader;
mod report;
mod scene;
mod snapshot;
mod subject;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

use self::diagnose::{Question, diagnose};
use self::reader::{Reader, Trouble};
use self::report::State;
use self::subject::{Output, Request, Subject};
use crate::kube_api::{Access, ConnectError, Requests};
use crate::report::chain;
use crate::run::config;

/// The word that asks for it.
const COMMAND: &str = "explain";
/// Something is stuck.
const STUCK: u8 = 1;
/// Wrong usage, or nothing could be read.
const UNUSABLE: u8 = 2;

/// Why there is no explanation.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the kubeconfig cannot be used: give --kubeconfig and --context, or set KUBECONFIG")]
    Kubeconfig(#[source] KubeconfigError),
    #[error("there is neither a kubeconfig nor a cluster around us: give --kubeconfig")]
    NoCluster(#[source] kube::config::InClusterError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{subject}")]
    Subject {
        subject: Subject,
        #[source]
        trouble: Trouble,
    },
    #[error("the answer cannot be written as JSON")]
    Json(#[from] serde_json::Error),
    #[error("the answer cannot be written")]
    Write(#[from] std::io::Error),
}

/// Whether a command line, the program's name first, asks for an explanation.
pub fn is_asked_for(line: &[OsString]) -> bool {
    line.get(1).is_some_and(|word| word == COMMAND)
}

/// Explains what the command line asks for. The exit code is 0 when nothing is stuck, 1 when something
/// is, and 2 when there is no answer.
pub async fn main(line: Vec<OsString>) -> ExitCode {
    // clap takes the first word for the program's name.
    let request = match Request::read(line.into_iter().skip(1)) {
        Ok(request) => request,
        Err(error) => error.exit(),
    };
    match answer(&request).await {
        Ok(State::Fine | State::Progressing) => ExitCode::SUCCESS,
        Ok(State::Stuck) => ExitCode::from(STUCK),
        Err(error) => {
            // With nobody to read it there is nobody to tell.
            drop(writeln!(
                std::io::stderr(),
                "csi-attacher explain: {}",
                chain(&error)
            ));
            ExitCode::from(UNUSABLE)
        }
    }
}

async fn answer(request: &Request) -> Result<State, Error> {
    let config = configuration(request).await?;
    let subject = request.subject(&config.default_namespace);
    let access = Access::new(&config)?;
    access.log_in().await?;
    let reader = Reader::new(access.connect(None, Requests::default()));
    let gathered = gather::gather(&reader, subject.clone(), request.driver.as_deref()).await;
    let mut snapshot = gathered.map_err(|trouble| Error::Subject { subject, trouble })?;
    snapshot.gaps = reader.into_gaps();
    let now = Timestamp::now();
    let question = Question {
        driver: request.driver.as_deref(),
        patience: request.patience,
    };
    let report = diagnose(&snapshot, question, now);
    let text = match request.output {
        Output::Text => print::text(&report, now),
        Output::Json => print::json(&report)?,
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(report.state)
}

/// The flag, then the places where kubectl looks, then the cluster around us. kube reads KUBECONFIG.
async fn configuration(request: &Request) -> Result<kube::Config, Error> {
    let found = match &request.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let kubeconfig = match found {
        Ok(kubeconfig) => kubeconfig,
        Err(error) if request.kubeconfig.is_none() && is_missing(&error) => {
            return config::in_cluster().map_err(Error::NoCluster);
        }
        Err(error) => return Err(Error::Kubeconfig(error)),
    };
    let options = KubeConfigOptions {
        context: request.context.clone(),
        ..KubeConfigOptions::default()
    };
    config::of_kubeconfig(kubeconfig, &options)
        .await
        .map_err(Error::Kubeconfig)
}

fn is_missing(error: &KubeconfigError) -> bool {
    let no_file = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    matches!(error, KubeconfigError::FindPath)
        || matches!(error, KubeconfigError::ReadConfig(error, _) if no_file(error))
}
