//! The playground program: each story completes on the embedded cluster, and the exit code shows whether the expected end
//! state was observed.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
#![expect(
    clippy::disallowed_methods,
    reason = "the test harness has no flags for tests"
)]

mod kubectl;
mod leftovers;
mod own_claim;
mod page;
mod picture;
#[path = "../../../../../mock-driver/tests/it/admin/browser/session.rs"]
mod session;
mod terminal;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Output};
use std::sync::OnceLock;

use anyhow::Error;
use csi_e2e::process::reaper_main_if_requested;
use csi_e2e::toolchain::without_run;
use libtest_mimic::{Arguments, Failed, Trial};
use playground_core::story;
use verdict::Requirement;
use verdict::Requirement::{OwnHostName, Program, RealComponents};

const BROWSER: &[Requirement] = &[Program("chromium"), Program("chromedriver")];
/// Stories with a second attacher.
const WITH_REPLICAS: &[&str] = &["leader-hand-over"];

fn main() -> ExitCode {
    reaper_main_if_requested();
    let mut trials: Vec<_> = story::names()
        .map(|name| {
            let needs: &[_] = if WITH_REPLICAS.contains(&name) {
                &[OwnHostName]
            } else {
                &[]
            };
            trial(&format!("story::{name}"), needs, move || plays_to_its_end(name))
        })
        .collect();
    trials.extend([
        trial(
            "missing_or_unknown_story_lists_all",
            &[],
            missing_or_unknown_story_lists_all,
        ),
        trial("story_of_a_file_is_checked", &[], story_of_a_file_is_checked),
        trial(
            "story_with_an_error_names_its_place",
            &[],
            story_with_an_error_names_its_place,
        ),
        trial("errors_are_on_stderr", &[], errors_are_on_stderr),
        trial("own_claim::gets_a_volume", &[], own_claim::gets_a_volume),
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
        trial("page::explains_what_waits", BROWSER, page::explains_what_waits),
        trial(
            "picture::names_what_each_waits_for",
            BROWSER,
            picture::names_what_each_waits_for,
        ),
        trial(
            "picture::comes_first_and_connects_boxes",
            BROWSER,
            picture::comes_first_and_connects_boxes,
        ),
        trial(
            "kubectl::printed_commands_work",
            kubectl::requirements(),
            kubectl::printed_commands_work,
        ),
        trial(
            "terminal::keys_inject_a_fault_and_quit",
            &[],
            terminal::keys_inject_a_fault_and_quit,
        ),
        trial(
            "terminal::story_with_replicas_shows_no_lanes",
            &[OwnHostName],
            terminal::story_with_replicas_shows_no_lanes,
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
    verdict::trial(name, needs, || {
        run().map_err(|failed| Error::msg(failed.message().unwrap_or_default().to_owned()))
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
        let listed = story::names().all(|name| text.contains(name));
        if output.status.code() != Some(code) || !listed {
            return Err(format!("{arguments:?}: {}\n{text}", output.status).into());
        }
    }
    Ok(())
}

/// A user's own story, whose last condition does not come true.
fn story_of_a_file_is_checked() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("My incident.story");
    let path = path.to_str().ok_or("the path must be UTF-8")?;
    let begin = "A pod.\n\n  pod db on a with data\n  wait db running\n";
    std::fs::write(path, begin)?;
    let output = playground(&["--story", path, "--check"])?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || !text.starts_with("ok my-incident ") || text.lines().count() != 1 {
        return Err(format!("{output:?}").into());
    }
    std::fs::write(
        path,
        format!("{begin}  expect data not published to a within 1s\n"),
    )?;
    let output = playground(&["--story", path, "--check"])?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let named = errors.contains("line 5: expect data not published to a within 1s");
    if output.status.code() != Some(1) || !named || !output.stdout.is_empty() {
        return Err(format!("{output:?}").into());
    }
    Ok(())
}

fn story_with_an_error_names_its_place() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("own.story");
    let path = path.to_str().ok_or("the path must be UTF-8")?;
    std::fs::write(path, "A pod.\n\n  pod db in a with data\n")?;
    let output = playground(&["--story", path, "--check"])?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let named = errors.contains("own.story:3:10: expected `on`") && errors.contains("pod NAME on NODE");
    if output.status.code() != Some(2) || !named {
        return Err(format!("{output:?}").into());
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
