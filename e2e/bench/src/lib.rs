//! Benchmark of attachers: each in turn runs on one control plane with the same objects and the same driver,
//! so that ratios do not depend on the machine's load.
//!
//! A [`Row`] is one measurement, an [`Implementation`] is a measured program. Rounds are interleaved, so that
//! a slowdown of the machine affects all of them. The limit is measured beside the attachers: a bare loop
//! that only sends the writes of an attacher. kube-controller-manager does not run; the benchmark creates the
//! VolumeAttachments.

mod background_load;
pub mod baseline;
mod bench_env;
pub mod cli;
mod csi_client;
mod embedded;
pub mod goal;
mod implementation;
mod limit;
mod measure;
mod objects;
mod own_load;
mod proxy;
mod quantity;
pub mod report;
mod row;
mod statistic;
mod tracker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

pub use implementation::{Implementation, Workers};
pub use quantity::{Better, Quantity};
pub use report::Report;
pub use row::{Row, Sizes};
pub use statistic::Summary;

use background_load::BackgroundLoad;
use csi_e2e::cluster::{Backend, Cluster};
use csi_e2e::control_plane::{Component, Options};
use csi_e2e::process::Run;
use csi_e2e::toolchain::{Peer, Toolchain};
use own_load::OwnLoad;
use quantity::Figures;
use report::{ImplementationReport, RowReport};
use row::Load;

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The rows.
    pub rows: Vec<Row>,
    /// The sizes.
    pub sizes: Sizes,
    /// Number of rounds; tables show medians.
    pub rounds: usize,
    /// Implementations, if not the default ones of each row.
    pub implementations: Option<Vec<Implementation>>,
    /// Executable of an earlier build of csi-attacher, measured beside the current one.
    pub earlier: Option<PathBuf>,
    /// Socket of a running driver to use instead of the mock driver.
    pub csi_address: Option<PathBuf>,
}

/// Executables of the implementations.
struct Programs {
    ours: PathBuf,
    earlier: Option<PathBuf>,
    go: Option<PathBuf>,
    driver: PathBuf,
}

/// Shared state of all measurements.
struct Harness<'a> {
    run: &'a Arc<Run>,
    cluster: &'a Cluster,
    programs: Programs,
    sizes: Sizes,
    csi_address: Option<PathBuf>,
    /// Objects of the rows in which all implementations start with the same attached volumes.
    own_load: tokio::sync::Mutex<OwnLoad>,
}

/// Results of one implementation in all rounds of one row.
#[derive(Debug, Default)]
struct Found {
    figures: Vec<Figures>,
    failures: Vec<String>,
}

/// Namespace of the implementations' service accounts.
const NAMESPACE: &str = "bench";

// === impl Plan ===

impl Plan {
    /// The implementations of a row, in the order of its table.
    fn implementations(&self, row: Row) -> Vec<Implementation> {
        match &self.implementations {
            None => {
                let earlier = |implementation| match implementation {
                    Implementation::Ours(workers) => {
                        self.earlier.as_ref().map(|_| Implementation::Earlier(workers))
                    }
                    Implementation::Limit(_) | Implementation::Earlier(_) | Implementation::Go(_) => None,
                };
                let default = row.implementations(&self.sizes);
                default
                    .into_iter()
                    .flat_map(|implementation| std::iter::once(implementation).chain(earlier(implementation)))
                    .collect()
            }
            Some(chosen) => {
                let fits = |implementation: &&Implementation| row.has_limit() || !implementation.is_limit();
                chosen.iter().filter(fits).copied().collect()
            }
        }
    }

    /// Rows that are measured together, round by round, because they need the same load in the cluster.
    fn groups(&self) -> BTreeMap<Load, Vec<Row>> {
        let mut rows = self.rows.clone();
        rows.sort_unstable();
        rows.dedup();
        let mut groups: BTreeMap<Load, Vec<Row>> = BTreeMap::new();
        for row in rows {
            groups.entry(row.load(&self.sizes)).or_default().push(row);
        }
        groups
    }
}

/// Measures everything in `plan`. A failed measurement is reported and does not end the run.
///
/// # Errors
///
/// The control plane or a program is not available.
pub async fn run(run: &Arc<Run>, toolchain: &Toolchain, plan: &Plan) -> Result<Report> {
    let programs = programs(toolchain, plan).await?;
    let cluster = Cluster::start(run, toolchain, Backend::ControlPlane(Options::default())).await?;
    // Before the controller that creates its default service account is killed.
    cluster.create_namespace(NAMESPACE).await?;
    // It would interfere: delete attachments that no pod needs, add finalizers to volumes, and use CPU.
    cluster.kill_component(Component::ControllerManager).await?;
    let harness = Harness {
        run,
        cluster: &cluster,
        programs,
        sizes: plan.sizes.clone(),
        csi_address: plan.csi_address.clone(),
        own_load: tokio::sync::Mutex::default(),
    };
    let report = cluster.while_alive(measure_all(&harness, plan)).await?;
    cluster.stop().await?;
    Ok(report)
}

async fn programs(toolchain: &Toolchain, plan: &Plan) -> Result<Programs> {
    let mut implementations = plan.rows.iter().flat_map(|row| plan.implementations(*row));
    let go = match implementations.any(Implementation::is_go) {
        true => Some(
            toolchain
                .peer(Peer::ExternalAttacher)
                .await
                .context("build the Go attacher")?,
        ),
        false => None,
    };
    Ok(Programs {
        earlier: plan.earlier.clone(),
        ours: toolchain.csi_attacher().await.context("build our attacher")?,
        go,
        driver: toolchain
            .csi_mock_driver()
            .await
            .context("build the mock driver")?,
    })
}

async fn measure_all(harness: &Harness<'_>, plan: &Plan) -> Result<Report> {
    let mut background_load = BackgroundLoad::default();
    let mut report = Report::default();
    for (load, rows) in plan.groups() {
        if let Load::Foreign(size) = load {
            harness.own_load.lock().await.wipe(harness).await?;
            background_load.grow_to(size, harness.cluster).await?;
        }
        let mut found: BTreeMap<Row, Vec<Found>> = BTreeMap::new();
        for round in 0..plan.rounds {
            for row in &rows {
                let implementations = plan.implementations(*row);
                let found = found.entry(*row).or_default();
                found.resize_with(implementations.len(), Found::default);
                for place in places(implementations.len(), round) {
                    let implementation = implementations[place];
                    tracing::info!(round, %row, %implementation, "measuring");
                    match measure::measure(harness, *row, implementation, round).await {
                        Ok(figures) => found[place].figures.push(figures),
                        Err(error) => {
                            tracing::error!(round, %row, %implementation, "{error:#}");
                            found[place].failures.push(format!("{error:#}"));
                        }
                    }
                }
            }
        }
        for (row, found) in found {
            report.rows.push(row_report(row, plan, found));
        }
    }
    Ok(report)
}

/// The order of a round. Every second round is reversed, so that growth over time does not affect one
/// implementation alone.
fn places(count: usize, round: usize) -> Vec<usize> {
    if round.is_multiple_of(2) {
        (0..count).collect()
    } else {
        (0..count).rev().collect()
    }
}

fn row_report(row: Row, plan: &Plan, found: Vec<Found>) -> RowReport {
    let implementations = plan.implementations(row).into_iter().zip(found);
    let implementations = implementations.map(|(implementation, found)| {
        let mut values: BTreeMap<Quantity, Vec<f64>> = BTreeMap::new();
        for (quantity, value) in found.figures.into_iter().flatten() {
            values.entry(quantity).or_default().push(value);
        }
        let summaries = values
            .into_iter()
            .filter_map(|(quantity, values)| Some((quantity, Summary::of(values)?)));
        ImplementationReport {
            implementation: implementation.to_string(),
            figures: summaries.collect(),
            failures: found.failures,
        }
    });
    RowReport {
        row: row.to_string(),
        title: row.title(&plan.sizes),
        implementations: implementations.collect(),
    }
}

/// Timeout for this many volumes: long enough for 10 per second, and for backoffs of minutes.
fn timeout_for(volumes: usize) -> Duration {
    Duration::from_secs(600 + volumes as u64 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_plan(rows: &[Row]) -> Plan {
        Plan {
            rows: rows.to_vec(),
            sizes: Sizes::quick(),
            rounds: 2,
            implementations: None,
            earlier: None,
            csi_address: None,
        }
    }

    #[test]
    fn rows_that_fill_the_cluster_come_after_the_others() {
        let plan = mk_plan(&[Row::ForeignMany, Row::Latency, Row::Own, Row::Burst, Row::Latency]);
        let groups: Vec<_> = plan.groups().into_values().collect();
        assert_eq!(
            groups,
            [
                vec![Row::Burst, Row::Latency],
                vec![Row::Own],
                vec![Row::ForeignMany]
            ]
        );
    }

    #[test]
    fn chosen_contenders_take_part_where_they_can() {
        let (limit, ours) = (Implementation::Limit(16), Implementation::Ours(Workers::Default));
        let plan = Plan {
            implementations: Some(vec![limit, ours]),
            ..mk_plan(&[])
        };
        assert_eq!(plan.implementations(Row::Burst), [limit, ours]);
        assert_eq!(plan.implementations(Row::Slow), [ours]);
    }

    #[test]
    fn an_earlier_build_is_measured_like_ours() {
        let plan = Plan {
            earlier: Some("csi-attacher".into()),
            ..mk_plan(&[])
        };
        let names: Vec<_> = plan
            .implementations(Row::Restart)
            .iter()
            .map(Implementation::to_string)
            .collect();
        assert_eq!(names, ["ours-10", "earlier-10", "go-10"]);
    }

    #[test]
    fn rounds_alternate() {
        assert_eq!(places(3, 0), [0, 1, 2]);
        assert_eq!(places(3, 1), [2, 1, 0]);
    }

    #[test]
    fn a_row_is_the_sum_of_its_rounds() {
        let figures = |value| Figures::from([(Quantity::Recovery, value)]);
        let found = vec![
            Found {
                figures: vec![figures(3.0), figures(1.0)],
                failures: vec![],
            },
            Found {
                figures: vec![],
                failures: vec!["no luck".to_owned()],
            },
        ];
        let row = row_report(Row::Restart, &mk_plan(&[Row::Restart]), found);
        assert_eq!(row.medians(Quantity::Recovery, "ours"), [2.0]);
        assert_eq!(row.implementations[1].failures, ["no luck"]);
        assert_eq!(row.implementations[1].implementation, "go-10");
    }
}
