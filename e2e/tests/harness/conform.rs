//! `conform` finds an attacher that does not retry, and docs/conform.md has the results of the code.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use attacher_contract::{CLAUSES, Clause};
use csi_e2e::cluster::{Backend, Cluster, ClusterSettings};
use csi_e2e::conform::{self, CASES, Outcome, Program};
use csi_e2e::invariant::UNOBSERVED;
use csi_e2e::toolchain::workspace_root;

use crate::Harness;

/// Filters of csi-attacher's cases that are run here: those that take a few seconds, and those of WatchList, which csi-attacher
/// survives.
const SUBSET: [(&str, usize); 2] = [("volume-", 6), ("api-watch-list", 2)];
/// A case in which a publish fails until the fault ends.
const FAILING_PUBLISH: &str = "attach-internal";
/// Flags of an attacher that does not retry.
const NEVER_RETRIES: &[&str] = &["--retry-interval-start=1h", "--retry-interval-max=1h"];

trials! { "conform":
    document_has_the_clauses_and_cases_of_the_code,
    csi_attacher_keeps_what_the_document_says,
    an_attacher_that_never_retries_is_found,
}

async fn run(harness: &Harness, flags: &'static [&'static str], filter: &str) -> Result<Vec<Outcome>> {
    let program = Arc::new(Program {
        path: harness.toolchain.csi_attacher().await?,
        flags,
        promises: true,
    });
    let backend = Backend::Embedded(ClusterSettings::DEFAULT);
    let cluster = Cluster::start(&harness.run, &harness.toolchain, backend).await?;
    let outcomes = conform::run(&harness.run, &cluster, &program, filter).await;
    cluster.stop().await?;
    Ok(outcomes)
}

async fn an_attacher_that_never_retries_is_found(harness: Arc<Harness>) -> Result<()> {
    for (flags, expected) in [(&[][..], false), (NEVER_RETRIES, true)] {
        let outcomes = run(&harness, flags, FAILING_PUBLISH).await?;
        ensure!(!outcomes.is_empty(), "no case has the name {FAILING_PUBLISH}");
        for outcome in outcomes {
            let found = outcome.result?;
            let is_found = found.iter().any(|violation| violation.clause == Clause::Recovers);
            ensure!(is_found == expected, "with the flags {flags:?}: {found:?}");
        }
    }
    Ok(())
}

async fn csi_attacher_keeps_what_the_document_says(harness: Arc<Harness>) -> Result<()> {
    for (filter, least) in SUBSET {
        let outcomes = run(&harness, &[], filter).await?;
        ensure!(
            outcomes.len() >= least,
            "only {} cases of {filter} were run",
            outcomes.len()
        );
        for outcome in &outcomes {
            let found = outcome.result.as_ref();
            let found = found.map_err(|error| anyhow::anyhow!("{error:#}"))?;
            ensure!(found.is_empty(), "{}: {found:?}", outcome.case.name);
        }
    }
    let rows = table("## csi-attacher")?;
    let found = rows.iter().find(|row| !row.contains("| kept |"));
    ensure!(
        found.is_none(),
        "csi-attacher keeps the contract, and docs/conform.md says {found:?}"
    );
    Ok(())
}

/// The rows of both tables have the clauses, sources and numbers of cases of the code, and the cases that they name exist.
async fn document_has_the_clauses_and_cases_of_the_code(_harness: Arc<Harness>) -> Result<()> {
    let kept = CASES.iter().map(|case| Outcome {
        case,
        result: Ok(Vec::new()),
        took: Duration::ZERO,
    });
    let kept: Vec<_> = kept.collect();
    for (heading, promises) in [("## csi-attacher", true), ("## The Go sidecar", false)] {
        let expected = conform::markdown(&kept, promises);
        let expected: Vec<_> = rows(&expected).collect();
        let found = table(heading)?;
        ensure!(
            found.len() == expected.len(),
            "{heading}: {} clauses, and the code has {}",
            found.len(),
            expected.len()
        );
        for (row, kept) in found.iter().zip(expected) {
            let [clause, verdict, evidence, source] = columns(row)?;
            let [of_code, .., source_of_code] = columns(kept)?;
            ensure!(
                (clause, source) == (of_code, source_of_code),
                "{row}\nis now\n{kept}"
            );
            if verdict != "**violated**" {
                ensure!(row == kept, "{row}\nis now\n{kept}");
                continue;
            }
            for name in evidence.split('`').skip(1).step_by(2) {
                ensure!(
                    CASES.iter().any(|case| case.name == name),
                    "there is no case {name}"
                );
            }
        }
    }
    let judged = table("## Where each clause is judged")?;
    let named: Vec<_> = judged.iter().filter_map(|row| row.split('`').nth(1)).collect();
    let known: Vec<_> = CLAUSES.iter().map(|rule| rule.name).collect();
    ensure!(named == known, "the clauses are {known:?}");
    for (row, rule) in judged.iter().zip(CLAUSES) {
        let cells: Vec<_> = row.trim_end_matches('|').split('|').map(str::trim).collect();
        let [_, _, _, _, by_conform, by_scenarios] = cells[..] else {
            bail!("{row} has no five columns");
        };
        let expected = (
            CASES.iter().any(|case| case.is_about(rule.clause)),
            !UNOBSERVED.contains(&rule.clause),
        );
        let documented = (by_conform.starts_with("yes"), by_scenarios.starts_with("yes"));
        ensure!(
            documented == expected,
            "{row}\nshould say (conform, scenarios): {expected:?}"
        );
    }
    Ok(())
}

fn table(heading: &str) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(workspace_root().join("docs/conform.md"))?;
    let (_, section) = text
        .split_once(&format!("\n{heading}\n"))
        .context("a section is missing")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    Ok(rows(section).map(str::to_owned).collect())
}

/// The rows of a table below its head.
fn rows(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().filter(|line| line.starts_with('|'));
    lines.skip(2)
}

fn columns(row: &str) -> Result<[&str; 4]> {
    let row = row.trim_start_matches("| ").trim_end_matches(" |");
    let columns: Vec<_> = row.split(" | ").collect();
    columns
        .try_into()
        .map_err(|_| anyhow::anyhow!("{row} has no four columns"))
}
