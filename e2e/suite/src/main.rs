//! Kubernetes' storage suite against the mock driver and csi-attacher on two real kubelets.

mod results;
mod selection;
mod ssh;
mod suite;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use csi_e2e::nodes::{ROOT_DIR, RealNodes, missing_requirement, program_main, say};
use csi_e2e::process::{Run, stdout_of_blocking};
use csi_e2e::toolchain::{Settings, Toolchain, workspace_root};

use results::Results;
use selection::{Family, Selection};
use suite::SUITE_OVERLAY;

/// File with the results.
const RESULTS: &str = "docs/conformance.md";

/// Runs Kubernetes' storage suite on two real kubelets.
#[derive(Debug, Parser)]
struct Args {
    /// A regular expression: only tests whose names match it after their family's.
    #[arg(default_value = "")]
    focus: String,
    /// Families of tests; all by default.
    #[arg(long = "suite", value_delimiter = ',')]
    families: Vec<Family>,
    /// Run some tests of each family.
    #[arg(long, conflicts_with_all = ["focus", "families", "write"])]
    smoke: bool,
    /// Number of concurrent tests.
    #[arg(long, default_value_t = 4)]
    processes: u16,
    /// Number of zones of the array, to which the nodes are assigned round-robin.
    #[arg(long, default_value_t = 1, conflicts_with = "write")]
    zones: u8,
    /// Write the table to docs/conformance.md; not with a focus, because it replaces the results of whole
    /// families.
    #[arg(long, conflicts_with = "focus")]
    write: bool,
}

impl Args {
    fn selection(&self) -> Selection {
        if self.smoke {
            return Selection::smoke();
        }
        let families = match self.families.as_slice() {
            [] => &Family::ALL,
            families => families,
        };
        Selection::new(families, &self.focus)
    }
}

fn main() -> ExitCode {
    program_main(in_run)
}

async fn in_run(args: &Args) -> Result<()> {
    let settings = Settings::from_env();
    if let Some(reason) = missing_requirement(&settings) {
        bail!("{reason}");
    }
    let commit = args.write.then(commit).transpose()?;
    let run = Run::start()?;
    let toolchain = Toolchain::new(&run, settings);
    let suite = toolchain.build_suite_programs().await?;
    let mut programs = toolchain.build_node_programs().await?;
    programs.suite = Some(suite.clone());
    let nodes = RealNodes::start(&run, &toolchain, programs, SUITE_OVERLAY, ROOT_DIR).await?;
    suite::deploy(&nodes, &toolchain, args.zones).await?;
    say("the driver is ready; the suite begins");
    let selection = args.selection();
    let since = Instant::now();
    let ran = suite::run(&nodes, &suite, &selection, args.processes).await;
    let minutes = since.elapsed().as_secs() / 60;
    if !ran.as_ref().is_ok_and(|(results, _)| results.failed() == 0) {
        run.keep_files()?;
    }
    let (results, log) = ran?;
    for (title, text) in results.sections() {
        say(&format!("{title}\n\n{text}"));
    }
    say(&format!("after {minutes} minutes; log: {}", log.display()));
    if let Some(commit) = commit {
        let version = nodes.cluster().git_version().await?;
        let tested = format!("Kubernetes {}, commit {commit}", version.trim_start_matches('v'));
        write_sections(&workspace_root().join(RESULTS), &tested, minutes, &results)?;
    }
    nodes.stop().await?;
    drop(nodes);
    run.finish().await?;
    match results.failed() {
        0 => Ok(()),
        failed => bail!("{failed} tests failed"),
    }
}

/// The commit of the tree, with `-dirty` if it has other changes than results.
fn commit() -> Result<String> {
    let results = format!(":(exclude,top){RESULTS}");
    let mut commit = git(&["rev-parse", "--short", "HEAD"])?;
    if !git(&["status", "--porcelain", "--", ":/", &results])?.is_empty() {
        commit += "-dirty";
    }
    Ok(commit)
}

fn git(args: &[&str]) -> Result<String> {
    let output = stdout_of_blocking(Command::new("git").args(args).current_dir(workspace_root()))?;
    Ok(output.trim().to_owned())
}

/// Replaces the sections of the families that were run.
fn write_sections(file: &Path, tested: &str, minutes: u64, results: &Results) -> Result<()> {
    let written = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let mut parts = written.split("\n## ");
    let introduction = parts.next().unwrap_or_default();
    let sections = parts.filter_map(|part| part.split_once('\n'));
    let mut sections: BTreeMap<_, _> = sections
        .map(|(title, text)| (title.to_owned(), text.trim().to_owned()))
        .collect();
    let today = jiff::Zoned::now().date();
    let families: Vec<_> = results.sections().map(|(title, _)| title).collect();
    let families = families.join(", ");
    for (title, text) in results.sections() {
        let text = format!(
            "{tested}, {today}, all tests, in a run of {minutes} minutes with {families}.\n\n{}",
            text.trim()
        );
        sections.insert(title.to_owned(), text);
    }
    let mut text = introduction.trim().to_owned();
    for (title, section) in sections {
        text += &format!("\n\n## {title}\n\n{section}");
    }
    std::fs::write(file, text + "\n").with_context(|| format!("write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_families_are_written() {
        for (arguments, is_accepted) in [
            (&["--write"][..], true),
            (&["--write", "--suite=mock"], true),
            (&["volume attach"], true),
            (&["--write", "volume attach"], false),
            (&["--write", "--smoke"], false),
            (&["--write", "--zones=2"], false),
        ] {
            let parsed = Args::try_parse_from(["k8s-e2e"].iter().chain(arguments));
            assert_eq!(parsed.is_ok(), is_accepted, "{arguments:?}: {parsed:?}");
        }
    }
}
