//! The playground program: each story completes on the embedded cluster, and the exit code shows whether the expected end
//! state was observed.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
#![expect(
    clippy::disallowed_methods,
    reason = "the test harness has no flags for tests"
)]

mod leftovers;
mod page;
#[path = "../../../mock-driver/tests/it/admin/browser/session.rs"]
mod session;
mod terminal;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Output};
use std::sync::OnceLock;

use anyhow::Error;
use csi_e2e::playground::story::STORIES;
use csi_e2e::process::reaper_main_if_requested;
use csi_e2e::toolchain::without_run;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use verdict::Requirement;
use verdict::Requirement::{OwnHostName, Program, RealComponents};

const BROWSER: &[Requirement] = &[Program("chromium"), Program("chromedriver")];
/// Stories with a second attacher.
const WITH_REPLICAS: &[&str] = &["leader-hand-over"];

fn main() -> ExitCode {
    reaper_main_if_requested();
    let mut trials: Vec<_> = STORIES
        .iter()
        .map(|story| {
            let needs: &[_] = if WITH_REPLICAS.contains(&story.name) {
                &[OwnHostName]
            } else {
                &[]
            };
            trial(&format!("story::{}", story.name), needs, || {
                plays_to_its_end(story.name)
            })
        })
        .collect();
    trials.extend([
        trial(
            "missing_or_unknown_story_lists_all",
            &[],
            missing_or_unknown_story_lists_all,
        ),
        trial("errors_are_on_stderr", &[], errors_are_on_stderr),
        trial(
            "page::injects_and_removes_faults",
            BROWSER,
            page::injects_and_removes_faults,
        ),
        trial(
            "page::keys_inject_and_remove_faults",
            BROWSER,
            page::keys_inject_and_remove_faults,
        ),
        trial(
            "terminal::keys_inject_a_fault_and_quit",
            &[],
            terminal::keys_inject_a_fault_and_quit,
        ),
        trial(
            "leftovers::existing_cluster_is_clean_afterwards",
            &[RealComponents],
            leftovers::existing_cluster_is_clean_afterwards,
        ),
    ]);
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trial(
    name: &str,
    needs: &'static [Requirement],
    run: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let trial = name.to_owned();
    Trial::ignorable_test(name, move || {
        let run = || run().map_err(|failed| Error::msg(failed.message().unwrap_or_default().to_owned()));
        let skipped = verdict::ran(&trial, needs, run)?;
        Ok(skipped.map_or(Completion::Completed, Completion::ignored_with))
    })
}

/// The playground, and in its environment the programs that it would build otherwise: with the features of `cargo run`, which are
/// not those of the tests, so that cargo would compile all dependencies again.
fn program() -> anyhow::Result<Command> {
    static PROGRAMS: OnceLock<Result<[PathBuf; 3], String>> = OnceLock::new();
    let built = PROGRAMS.get_or_init(|| {
        let built = without_run(async |toolchain| {
            let (attacher, driver) = (
                toolchain.csi_attacher().await?,
                toolchain.csi_mock_driver().await?,
            );
            Ok([toolchain.playground().await?, attacher, driver])
        });
        built.map_err(|error| format!("{error:#}"))
    });
    let [playground, attacher, driver] = built.as_ref().map_err(Error::msg)?;
    let mut command = Command::new(playground);
    command
        .env("CSI_ATTACHER_BIN", attacher)
        .env("CSI_MOCK_DRIVER_BIN", driver);
    Ok(command)
}

fn plays_to_its_end(name: &str) -> Result<(), Failed> {
    let output = playground(&["--story", name])?;
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let ended = output.status.success() && text.contains("Checked: all steps succeeded.");
    if !ended {
        return Err(format!("{}\n{text}\n{errors}", output.status).into());
    }
    Ok(())
}

fn missing_or_unknown_story_lists_all() -> Result<(), Failed> {
    for (arguments, code) in [(&["--story"][..], 0), (&["--story", "no-such-story"], 2)] {
        let output = playground(arguments)?;
        let text = if code == 0 { &output.stdout } else { &output.stderr };
        let text = String::from_utf8_lossy(text);
        let listed = STORIES.iter().all(|story| text.contains(story.name));
        if output.status.code() != Some(code) || !listed {
            return Err(format!("{arguments:?}: {}\n{text}", output.status).into());
        }
    }
    Ok(())
}

fn errors_are_on_stderr() -> Result<(), Failed> {
    let output = program()?
        .args(["--once", "--cluster", "kubeconfig"])
        .env("KUBECONFIG", "/nonexistent")
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.success() || !errors.contains("playground: ") {
        return Err(format!("{output:?}").into());
    }
    Ok(())
}

fn playground(arguments: &[&str]) -> Result<Output, Failed> {
    Ok(program()?.args(arguments).output()?)
}
