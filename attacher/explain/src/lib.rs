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

use clap::CommandFactory;
use jiff::Timestamp;

use self::api::ApiReader;
use self::args::{Args, Command, ExplainArgs, Output};
use self::chain::chain;
use self::diagnose::diagnose;
use self::error::Error;
use self::report::State;

/// A volume is stuck.
const STUCK: u8 = 1;
/// Wrong usage, or the object or the cluster cannot be read.
const FAILED: u8 = 2;

/// The command line, for man pages and completions.
pub fn command() -> clap::Command {
    Args::command()
}

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
    let reader = ApiReader::new(client);
    let collected = collect::collect(&reader, resource.clone(), args.driver.as_deref()).await;
    let mut snapshot = collected.map_err(|error| Error::Resource { resource, error })?;
    snapshot.gaps = reader.into_gaps();
    let now = Timestamp::now();
    let report = diagnose(&snapshot, args.driver.as_deref(), args.stuck_after, now);
    let text = match args.output {
        Output::Text => printer::text(&report, now),
        Output::Json => printer::json(&report)?,
    };
    print(text.as_bytes())?;
    Ok(report.state)
}

fn print(text: &[u8]) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text)?;
    Ok(stdout.flush()?)
}
