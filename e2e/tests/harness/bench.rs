//! The benchmark measures what it says, on sizes that say nothing.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use csi_e2e::bench::{self, Implementation, Plan, Quantity, Row, Sizes, Workers};
use libtest_mimic::Trial;

use crate::{Bench, trial};

pub(crate) fn trials(bench: &Arc<Bench>) -> Vec<Trial> {
    vec![trial(
        bench,
        "bench::rows_have_their_figures",
        rows_have_their_figures,
    )]
}

async fn rows_have_their_figures(bench: Arc<Bench>) -> Result<()> {
    let plan = Plan {
        rows: vec![Row::LatencyFar, Row::Behind, Row::Burst],
        sizes: Sizes {
            burst: 8,
            samples: 4,
            slow: 4,
            ..Sizes::quick()
        },
        rounds: 1,
        implementations: Some(vec![
            Implementation::Limit(4),
            Implementation::Ours(Workers::Number(4)),
        ]),
        csi_address: None,
    };
    let report = bench::run(&bench.run, &bench.toolchain, &plan).await?;
    ensure!(report.is_complete(), "{}", report.markdown());
    let ours = |row: Row, quantity| {
        let row = report.row(row.name()).context("a row is missing")?;
        let found = row.medians(quantity, "ours");
        found
            .first()
            .copied()
            .with_context(|| format!("{row:?} lacks {quantity:?}"))
    };
    // What does not hang on the machine: the writes of an attach and a detach, and the length of a socket proxy.
    ensure!(
        ours(Row::Burst, Quantity::AttachWrites)? == 2.0,
        "{}",
        report.markdown()
    );
    ensure!(
        ours(Row::Burst, Quantity::DetachWrites)? == 1.0,
        "{}",
        report.markdown()
    );
    ensure!(
        ours(Row::Burst, Quantity::VolumeWrites)? == 1.0,
        "{}",
        report.markdown()
    );
    // An event, a write and its answer, a write: four ways of 10 ms.
    ensure!(
        ours(Row::LatencyFar, Quantity::AttachP50)? >= 40.0,
        "{}",
        report.markdown()
    );
    ensure!(
        ours(Row::Behind, Quantity::PublishStart)? < 2000.0,
        "{}",
        report.markdown()
    );
    Ok(())
}
