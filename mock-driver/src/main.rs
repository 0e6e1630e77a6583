//! Entry of `csi-mock-driver`: flags, log, run, exit code.

use std::process::ExitCode;

use anyhow::Context;
use csi_mock_driver::ctl;
use csi_mock_driver::fault::Exit;
use csi_mock_driver::run;
use csi_mock_driver::run::args::Args;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

fn main() -> anyhow::Result<ExitCode> {
    let words: Vec<_> = std::env::args_os().collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    if ctl::is_ctl(&words) {
        return runtime.block_on(ctl::run(&words)).context("cannot print");
    }
    let args = match Args::read(words) {
        Ok(args) => args,
        Err(text) => {
            ctl::print(&text).context("cannot print")?;
            return Ok(ExitCode::from(u8::try_from(text.exit_code()).unwrap_or(2)));
        }
    };
    let targets = Targets::new()
        .with_target("csi_mock_driver", args.level())
        .with_default(LevelFilter::WARN);
    tracing_subscriber::registry()
        .with(
            tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(false),
        )
        .with(targets)
        .init();
    match runtime.block_on(run::run(args)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(run::Error::Ordered(Exit::Status(status))) => Ok(ExitCode::from(status)),
        Err(error) => Err(error.into()),
    }
}
