//! `kubectl csi-attach explain`: how far a volume is on its way to or from a node, who must act next, since when,
//! why, and what to do.
//!
//! Read only. `collect` reads the related objects with the user's permissions into a `snapshot`, `diagnose` derives a
//! `report` from it without I/O, and `printer` prints that. The plugin works with any version of the attacher and with
//! the Go sidecar. Of the attacher's code it uses the rules (`rules`) and the texts of errors and Events.

mod api;
mod args;
mod client;
mod collect;
mod completion;
mod diagnose;
mod error;
mod objects;
mod path;
mod printer;
mod report;
mod resource;
mod rules;
mod snapshot;
mod time;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::CommandFactory;
use csi_attacher::report::chain;
use jiff::Timestamp;

use self::api::{ApiReader, ReadError};
use self::args::{Args, Command, ExplainArgs, Output};
use self::diagnose::diagnose;
use self::error::Error;
use self::report::{Report, State};
use self::resource::Resource;

/// A volume is stuck.
const STUCK: u8 = 1;
/// Wrong usage, or the object or the cluster cannot be read.
const FAILED: u8 = 2;

/// The command line, for man pages and completions.
pub fn command() -> clap::Command {
    Args::command()
}

/// Between two explanations of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);

/// Runs the command line, the program's name first, and returns the process's exit code.
pub async fn run(line: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match Args::read(line) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    let result = match args.command {
        Command::Explain(args) => explain(&args).await,
        Command::Completion { shell } => print(&completion::script(shell)).map(|()| State::Fine),
        Command::Complete { words } => print(completion::candidates(&words).as_bytes()).map(|()| State::Fine),
    };
    match result {
        Ok(State::Fine | State::Progressing) => ExitCode::SUCCESS,
        Ok(State::Stuck) => ExitCode::from(STUCK),
        Err(error) => {
            // Ignore a closed stderr; the exit code stays the same.
            drop(writeln!(std::io::stderr(), "error: {}", chain(&error)));
            ExitCode::from(FAILED)
        }
    }
}

/// What `explain -A` prints about the client's cluster.
///
/// # Errors
/// The cluster cannot be read. Single objects that cannot be read are notes of the text.
pub async fn explain_all(client: kube::Client) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let args = Args::read(["kubectl-csi_attach", "explain", "-A"].map(OsString::from));
    let Command::Explain(args) = args.expect("the command line must be valid").command else {
        unreachable!("the command line names `explain`");
    };
    let report = read(&args, client, &args.resource("")).await?;
    Ok(printer::text(&report, Timestamp::now()))
}

async fn explain(args: &ExplainArgs) -> Result<State, Error> {
    let (client, namespace) = client::connect(args).await?;
    let resource = args.resource(&namespace);
    let read = async || read(args, client.clone(), &resource).await;
    let report = read().await?;
    print_report(args, &report)?;
    if !args.watch {
        return Ok(report.state);
    }
    Err(watch(&resource, report, read, |report| print_report(args, report)).await)
}

/// Reads the object periodically, and prints each report that differs from the one printed before. Ends if the object cannot be read
/// or a report cannot be printed.
async fn watch(
    resource: &Resource,
    mut printed: Report,
    read: impl AsyncFn() -> Result<Report, Error>,
    mut print: impl FnMut(&Report) -> Result<(), Error>,
) -> Error {
    loop {
        tokio::time::sleep(WATCH_INTERVAL).await;
        match read().await {
            Ok(report) if report.differs(&printed) => {
                if let Err(error) = print(&report) {
                    return error;
                }
                printed = report;
            }
            Ok(_) => {}
            // The API server may be back at the next time.
            Err(Error::Resource {
                error: ReadError::Failed(text),
                ..
            }) => drop(writeln!(std::io::stderr(), "cannot read {resource}: {text}")),
            Err(error) => return error,
        }
    }
}

async fn read(args: &ExplainArgs, client: kube::Client, resource: &Resource) -> Result<Report, Error> {
    let reader = ApiReader::new(client);
    let collected = collect::collect(&reader, resource.clone(), args.driver.as_deref()).await;
    let mut snapshot = collected.map_err(|error| Error::Resource {
        resource: resource.clone(),
        error,
    })?;
    snapshot.gaps = reader.into_gaps();
    Ok(diagnose(
        &snapshot,
        args.driver.as_deref(),
        args.stuck_after,
        Timestamp::now(),
    ))
}

fn print_report(args: &ExplainArgs, report: &Report) -> Result<(), Error> {
    let text = match (args.output, args.watch) {
        (Output::Text, false) => printer::text(report, Timestamp::now()),
        (Output::Text, true) => printer::text(report, Timestamp::now()) + "\n",
        (Output::Json, _) => printer::json(report)?,
    };
    print(text.as_bytes())
}

fn print(text: &[u8]) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text)?;
    Ok(stdout.flush()?)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// A client of an API server that responds to the paths that `listed` knows with objects, and to others with an error.
    fn mk_client(listed: impl Fn(&str) -> Option<Value> + Send + 'static) -> kube::Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let (status, body) = match listed(request.uri().path()) {
                Some(items) => (StatusCode::OK, json!({"metadata": {}, "items": items})),
                None => (
                    StatusCode::SERVICE_UNAVAILABLE,
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "etcd is down", "code": 503}),
                ),
            };
            let body = Body::from(body.to_string().into_bytes());
            std::future::ready(Ok::<_, Infallible>(
                Response::builder().status(status).body(body).unwrap(),
            ))
        });
        kube::Client::new(service, "default")
    }

    #[tokio::test]
    async fn cluster_that_cannot_be_read_is_an_error() {
        let error = explain_all(mk_client(|_| None)).await.unwrap_err();
        let text = chain(&*error);
        assert!(
            text.starts_with("cannot read") && text.contains("etcd is down"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn limits_its_result_to_readable_objects() {
        let client = mk_client(|path| match path {
            "/apis/storage.k8s.io/v1/volumeattachments" => Some(json!([])),
            _ => None,
        });
        let text = explain_all(client).await.unwrap();
        assert!(
            text.contains("No volume waits among the objects that could be read."),
            "{text}"
        );
        assert!(text.contains("cannot read pods"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn watch_prints_reports_that_differ_until_the_output_is_closed() {
        const READS: [Option<&[&str]>; 5] = [
            Some(&["va-1"]),
            Some(&["va-1"]),
            None,
            Some(&["va-1", "va-2"]),
            Some(&["va-2"]),
        ];
        let count = Arc::new(AtomicUsize::new(0));
        let round = Arc::clone(&count);
        let client = mk_client(move |path| {
            let names = READS[round.load(Ordering::Relaxed)]?;
            let attachments = names.iter().map(|name| {
                let source = json!({"persistentVolumeName": "pv-1"});
                json!({"metadata": {"name": name}, "spec": {"attacher": "d.example", "nodeName": "node-a", "source": source}})
            });
            Some(match path.ends_with("/volumeattachments") {
                true => attachments.collect(),
                false => json!([]),
            })
        });
        let args = Args::read(["kubectl-csi_attach", "explain", "-A", "-w"].map(OsString::from));
        let Command::Explain(args) = args.unwrap().command else {
            panic!("the command line names `explain`");
        };
        let resource = args.resource("");
        let first = read(&args, client.clone(), &resource).await.unwrap();
        let next = async || {
            count.fetch_add(1, Ordering::Relaxed);
            read(&args, client.clone(), &resource).await
        };
        let printed = Cell::new(Vec::new());
        let print = |report: &Report| {
            let names = report
                .paths
                .iter()
                .map(|path| path.names.volume_attachment.clone());
            let mut all = printed.take();
            all.push(names.flatten().collect::<Vec<_>>());
            let is_closed = all.len() == 2;
            printed.set(all);
            match is_closed {
                true => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
                false => Ok(()),
            }
        };
        let start = tokio::time::Instant::now();
        let error = watch(&resource, first, next, print).await;
        assert!(matches!(error, Error::Write(_)), "{error}");
        assert_eq!(printed.take(), [vec!["va-1", "va-2"], vec!["va-2"]]);
        assert_eq!(start.elapsed(), 4 * WATCH_INTERVAL);
    }
}
