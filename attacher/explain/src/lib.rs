//! `kubectl csi-attach explain`: how far a volume is on its way to or from a node, who must act next, since when,
//! why, and what to do.
//!
//! Read only. `collect` reads the related objects with the user's permissions into a `snapshot`, `diagnose` derives a
//! `report` from it without I/O, and `printer` prints that. The plugin works with any version of the attacher and with
//! the Go sidecar. Only `rules` uses the attacher's code (see there).

mod api;
mod args;
mod chain;
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
use jiff::Timestamp;

use self::api::{ApiReader, ReadError};
use self::args::{Args, Command, ExplainArgs, Output};
use self::chain::chain;
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

async fn explain(args: &ExplainArgs) -> Result<State, Error> {
    let (client, namespace) = client::connect(args).await?;
    let resource = args.resource(&namespace);
    let mut printed = read(args, client.clone(), &resource).await?;
    print_report(args, &printed)?;
    if !args.watch {
        return Ok(printed.state);
    }
    loop {
        tokio::time::sleep(WATCH_INTERVAL).await;
        match read(args, client.clone(), &resource).await {
            Ok(report) if report.differs(&printed) => {
                print_report(args, &report)?;
                printed = report;
            }
            Ok(_) => {}
            // The API server may be back at the next time.
            Err(Error::Resource {
                error: ReadError::Failed(text),
                ..
            }) => drop(writeln!(std::io::stderr(), "cannot read {resource}: {text}")),
            Err(error) => return Err(error),
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
