//! `csi-mock-driver ctl`: the command line of a running driver's admin API.
//!
//! Exit codes: 0 done; 1 refused, or an assertion failed; 2 usage error; 3 the driver cannot be reached.
//! Results go to stdout, everything else to stderr.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};

use self::command::Command;
use self::output::{Done, Output};
use crate::admin_api::Endpoint;
use crate::admin_api::client::Client;
use crate::error_chain;

mod calls;
mod command;
mod faults;
mod output;
mod print;
mod resources;
mod table;

/// Inspects a running csi-mock-driver and injects faults. The name of a resource alone lists it; so does `volumes list`.
/// Volumes, snapshots and group snapshots can be given by id or by name.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "csi-mock-driver ctl",
    bin_name = "csi-mock-driver ctl",
    version,
    args_override_self = true,
    subcommand_required = true
)]
pub struct Ctl {
    /// The --admin-endpoint of the driver: 127.0.0.1:9810 or unix:///path/admin.sock.
    #[arg(
        long,
        env = "CSI_MOCK_ADMIN_ENDPOINT",
        global = true,
        default_value = "127.0.0.1:9810"
    )]
    admin_endpoint: Endpoint,

    /// Output format.
    #[arg(short, long, value_enum, global = true, default_value_t = Output::Table)]
    output: Output,

    #[command(subcommand)]
    command: Command,
}

/// Whether a command line is a `ctl` command.
pub fn is_ctl(args: &[OsString]) -> bool {
    args.get(1).is_some_and(|word| word == "ctl")
}

/// Runs a command line whose second word is `ctl`.
pub async fn run(args: &[OsString]) -> io::Result<ExitCode> {
    let matches = Ctl::command().try_get_matches_from(without_list(&args[1..]));
    let ctl = match matches.and_then(|matches| Ctl::from_arg_matches(&matches)) {
        Ok(ctl) => ctl,
        Err(text) => {
            print(&text)?;
            return Ok(ExitCode::from(u8::try_from(text.exit_code()).unwrap_or(2)));
        }
    };
    let client = Client::new(ctl.admin_endpoint);
    match ctl.command.run(&client, ctl.output).await {
        Ok(Done::Printed) => Ok(ExitCode::SUCCESS),
        Ok(Done::Text(text, as_asserted)) => {
            print_text(&text)?;
            Ok(ExitCode::from(u8::from(!as_asserted)))
        }
        Err(failure) => {
            writeln!(
                io::stderr().lock(),
                "csi-mock-driver ctl: {}",
                error_chain(&failure)
            )?;
            Ok(ExitCode::from(failure.code()))
        }
    }
}

/// Removes the word `list` after the name of a resource, which lists it anyway.
fn without_list(args: &[OsString]) -> Vec<OsString> {
    let command = Ctl::command();
    let subcommand = |word: &OsString| command.find_subcommand(word);
    let mut args = args.to_vec();
    let resource = args.iter().position(|word| subcommand(word).is_some());
    if let Some(resource) = resource
        && args.get(resource + 1).is_some_and(|word| word == "list")
        && subcommand(&args[resource]).is_some_and(|resource| {
            matches!(resource.get_name(), "journal" | "storage") || resource.get_name().ends_with('s')
        })
    {
        args.remove(resource + 1);
    }
    args
}

/// Prints a text on standard output.
pub fn print_text(text: &str) -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    unless_seen_enough(out.write_all(text.as_bytes()).and_then(|()| out.flush()))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints help, the version or a usage error.
pub fn print(text: &clap::Error) -> io::Result<()> {
    unless_seen_enough(text.print())
}

/// A closed pipe is not an error: its reader, such as `head`, stopped reading.
fn unless_seen_enough(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
