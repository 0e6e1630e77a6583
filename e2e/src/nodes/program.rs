//! The main function of the programs that run real nodes.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use super::init_main_if_requested;
use crate::process::reaper_main_if_requested;

/// Parses the arguments, runs the program and reports its error.
pub fn program_main<A: Parser>(program: impl AsyncFnOnce(&A) -> Result<()>) -> ExitCode {
    reaper_main_if_requested();
    init_main_if_requested();
    let args = A::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let ran = runtime
        .context("start the runtime")
        .and_then(|runtime| runtime.block_on(program(&args)));
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to stderr; a closed stderr is no error.
pub fn say(line: &str) {
    drop(writeln!(std::io::stderr(), "csi-e2e: {line}"));
}
