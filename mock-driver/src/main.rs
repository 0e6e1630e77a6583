//! Entry of `csi-mock-driver`: flags, log, run, exit code.

use std::process::ExitCode;

use anyhow::Context;
use csi_mock_driver::fault::Exit;
use csi_mock_driver::run::args::Args;
use csi_mock_driver::{ctl, log, run};

fn main() -> anyhow::Result<ExitCode> {
    let words: Vec<_> = std::env::args_os().collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    if ctl::is_ctl(&words) {
        return runtime.block_on(ctl::run(&words)).context("cannot print");
    }
    if words.get(1).is_some_and(|word| word == "clean") {
        return run::clean::clean(&words[2..]).context("cannot clean");
    }
    if let Some(text) = run::replay::help(&words).or_else(|| Args::scenario_help(&words)) {
        return ctl::print_text(&text).context("cannot print");
    }
    let (words, stubs) = match words.get(1).is_some_and(|word| word == "replay") {
        true => run::replay::command_line(&words)?,
        false => (words, Vec::new()),
    };
    let args = match Args::read(words) {
        Ok(args) => args.with_stubs(stubs),
        Err(text) => {
            ctl::print(&text).context("cannot print")?;
            return Ok(ExitCode::from(u8::try_from(text.exit_code()).unwrap_or(2)));
        }
    };
    log::start(args.level()).context("cannot start the log")?;
    let ended = runtime.block_on(run::run(args));
    log::flush();
    // A thread that still works ends with the process, which holds its locks until then.
    runtime.shutdown_background();
    match ended {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(run::Error::Ordered(Exit::Status(status))) => Ok(ExitCode::from(status)),
        Err(error) => Err(error.into()),
    }
}
