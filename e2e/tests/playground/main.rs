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

use std::process::{Command, ExitCode, Output};

use csi_e2e::playground::story::STORIES;
use csi_e2e::process::reaper_main_if_requested;
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    reaper_main_if_requested();
    let mut trials: Vec<_> = STORIES
        .iter()
        .map(|story| Trial::test(format!("story::{}", story.name), || plays_to_its_end(story.name)))
        .collect();
    trials.push(Trial::test(
        "missing_or_unknown_story_lists_all",
        missing_or_unknown_story_lists_all,
    ));
    trials.push(Trial::test("errors_are_on_stderr", errors_are_on_stderr));
    trials.push(Trial::ignorable_test(
        "page::injects_and_removes_faults",
        page::injects_and_removes_faults,
    ));
    trials.push(Trial::ignorable_test(
        "page::keys_inject_and_remove_faults",
        page::keys_inject_and_remove_faults,
    ));
    trials.push(Trial::test(
        "terminal::keys_inject_a_fault_and_quit",
        terminal::keys_inject_a_fault_and_quit,
    ));
    trials.push(Trial::ignorable_test(
        "leftovers::existing_cluster_is_clean_afterwards",
        leftovers::existing_cluster_is_clean_afterwards,
    ));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
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
    let output = Command::new(env!("CARGO_BIN_EXE_playground"))
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
    Ok(Command::new(env!("CARGO_BIN_EXE_playground"))
        .args(arguments)
        .output()?)
}
