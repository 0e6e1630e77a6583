//! Smoke test of all rows: checks results that do not depend on the speed of the machine.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use csi_bench::{Implementation, Plan, Quantity, Row, Sizes, Workers};
use csi_e2e::driver::journal::{Journal, Line, PUBLISH, UNPUBLISH, name_of};
use csi_e2e::process::Run;
use csi_e2e::test_binary::{self, TestBinary};
use verdict::Requirement::RealComponents;

const OURS: Implementation = Implementation::Ours(Workers::Number(4));
/// Detaches of two seconds each, more than the attacher executes at once.
const DETACHES: usize = 20;

fn main() -> Result<ExitCode> {
    test_binary::main(|binary| {
        vec![binary.trial(
            "rows_have_their_figures",
            &[RealComponents],
            rows_have_their_figures,
        )]
    })
}

async fn rows_have_their_figures(binary: &TestBinary) -> Result<()> {
    let plan = Plan {
        rows: vec![Row::LatencyFar, Row::Behind, Row::Burst, Row::Own],
        sizes: Sizes {
            burst: 8,
            samples: 4,
            slow: DETACHES,
            own: 4,
            ..Sizes::quick()
        },
        rounds: 1,
        implementations: Some(vec![Implementation::Limit(4), OURS]),
        earlier: None,
        csi_address: None,
    };
    let report = csi_bench::run(&binary.run, &binary.toolchain, &plan).await?;
    ensure!(report.is_complete(), "{}", report.markdown());
    let ours = |row: Row, quantity| {
        let row = report.row(&row.to_string()).context("a row is missing")?;
        let found = row.medians(quantity, "ours");
        found
            .first()
            .copied()
            .with_context(|| format!("{row:?} lacks {quantity:?}"))
    };
    // Machine-independent results: the writes per attach and detach, and the minimum latency with a network
    // delay.
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
    ensure!(ours(Row::Own, Quantity::Ready)? > 0.0, "{}", report.markdown());
    // A watch event, a write, its response, and a second write: four one-way delays of 10 ms.
    ensure!(
        ours(Row::LatencyFar, Quantity::AttachP50)? >= 40.0,
        "{}",
        report.markdown()
    );
    ensure!(
        ours(Row::Behind, Quantity::PublishStart)? > 0.0,
        "{}",
        report.markdown()
    );
    let begun = detaches_before_the_attach(&binary.run)?;
    ensure!(
        begun < DETACHES,
        "the attach waited until all {begun} detaches had begun"
    );
    Ok(())
}

/// Number of detaches that had begun before the attach behind them.
fn detaches_before_the_attach(run: &Run) -> Result<usize> {
    let dir = run.subdir(&format!("{}-0-{OURS}", Row::Behind))?;
    let lines = Journal::create(&dir.join("journal.jsonl"))?.lines()?;
    let begun = lines.iter().filter_map(|line| match line {
        Line::Begin { method, .. } => Some(name_of(method)),
        Line::End { .. } | Line::Late { .. } | Line::Faults { .. } | Line::Lost { .. } => None,
    });
    let methods: Vec<_> = begun.collect();
    let attach = methods.iter().rposition(|method| *method == PUBLISH);
    let before = &methods[..attach.context("the journal has no attach")?];
    Ok(before.iter().filter(|method| **method == UNPUBLISH).count())
}
