//! Differential test of the embedded API server: it and the real kube-apiserver get the same seeded sequences of requests,
//! and must return equal responses.
//!
//! `DIFFERENTIAL_REQUESTS` sets the number of requests, `DIFFERENTIAL_SEED` the first seed. See e2e/README.md.

mod explained;
mod generator;
mod kinds;
mod normalize;
mod openapi;
mod report;
mod request;
mod server;
mod session;
mod tables;
mod versions;

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, ensure};
use csi_e2e::control_plane::{Component, ControlPlane, Options};
use csi_e2e::process::{Run, reaper_main_if_requested};
use csi_e2e::toolchain::{Settings, Toolchain};
use embedded_cluster::apiserver::{self, ApiServer};
use libtest_mimic::{Arguments, Completion, Trial};
use tokio::runtime::Runtime;
use verdict::Requirement::RealComponents;

use report::Report;
use session::Session;

const NAME: &str = "API servers respond equally";
/// Requests of a run without `DIFFERENTIAL_REQUESTS`.
const REQUESTS: u64 = 2_000;
/// Sequences with differences after which a run ends.
const DIFFERENCES_LIMIT: usize = 20;

fn main() -> Result<ExitCode> {
    reaper_main_if_requested();
    let arguments = Arguments::from_args();
    let run = Run::start()?;
    let runtime = Arc::new(Runtime::new()?);
    let toolchain = Toolchain::new(&run, Settings::of_test());
    let trial = {
        let (run, runtime) = (Arc::clone(&run), Arc::clone(&runtime));
        Trial::ignorable_test(NAME, move || {
            let skipped = verdict::ran(NAME, &[RealComponents], || {
                runtime.block_on(api_servers_respond_equally(&run, &toolchain))
            })?;
            Ok(skipped.map_or(Completion::Completed, Completion::ignored_with))
        })
    };
    let conclusion = libtest_mimic::run(&arguments, vec![trial]);
    runtime.block_on(run.finish())?;
    Ok(conclusion.exit_code())
}

async fn api_servers_respond_equally(run: &Arc<Run>, toolchain: &Toolchain) -> Result<()> {
    let requests = setting("DIFFERENTIAL_REQUESTS")?.unwrap_or(REQUESTS);
    let seed = setting("DIFFERENTIAL_SEED")?.unwrap_or(0);
    // By default kube-apiserver compacts etcd every five minutes, and responds to requests for older versions with 410 Gone.
    let flags = vec![
        "--etcd-compaction-interval=0".to_owned(),
        // Admission plugins that the embedded server does not have.
        "--disable-admission-plugins=PodSecurity,Priority,RuntimeClass,ServiceAccount".to_owned(),
    ];
    let options = Options {
        api_server_only: true,
        extra_flags: BTreeMap::from([(Component::ApiServer, flags)]),
        ..Options::default()
    };
    let plane = ControlPlane::start(run, toolchain, &options).await?;
    plane.while_alive(schemas_are_equal(&plane)).await?;
    let report = plane.while_alive(compare(&plane, requests, seed)).await?;
    let tables = tables::differences(csi_e2e::kubeconfig::client(plane.kubeconfig()).await?);
    let mut differences = plane.while_alive(tables).await?;
    differences.extend(plane.while_alive(versions::differences(&plane)).await?);
    plane.stop().await?;
    show(&report);
    show(differences.join("\n"));
    report.verify()?;
    ensure!(differences.is_empty(), "reads of old versions differ");
    Ok(())
}

#[expect(
    clippy::print_stdout,
    reason = "the differences and the table are the test's result"
)]
fn show(result: impl fmt::Display) {
    println!("{result}");
}

async fn schemas_are_equal(plane: &ControlPlane) -> Result<()> {
    let real = csi_e2e::kubeconfig::client(plane.kubeconfig()).await?;
    let ours = ApiServer::new(&apiserver::Options::default()).client();
    let differences = openapi::differences(&ours, &real).await?;
    ensure!(
        differences.is_empty(),
        "the OpenAPI schemas differ:\n{}",
        differences.join("\n")
    );
    Ok(())
}

/// Runs sequences until `requests` have been sent.
async fn compare(plane: &ControlPlane, requests: u64, first_seed: u64) -> Result<Report> {
    let limit = setting("DIFFERENTIAL_DIFFERENCES")?.map_or(DIFFERENCES_LIMIT, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    });
    let session = Session::new(csi_e2e::kubeconfig::client(plane.kubeconfig()).await?);
    let mut report = Report::new();
    let mut seed = first_seed;
    while report.requests() < requests && report.differences() < limit {
        let sequence = generator::sequence(seed);
        let compared = session.send(&sequence.kinds, &sequence.requests).await;
        let compared = match compared {
            Ok(compared) => compared,
            Err(error) => {
                show(&report);
                return Err(error.context(format!("DIFFERENTIAL_SEED={seed}")));
            }
        };
        report.add(&sequence, &compared);
        for difference in &compared.differences {
            let request = &sequence.requests[difference.index];
            if report.count(request, difference) {
                let before = session.shorten(&sequence, difference).await?;
                show(report.add_difference(seed, request, difference, &before));
            }
        }
        seed += 1;
    }
    Ok(report)
}

/// A number from the environment.
#[expect(
    clippy::disallowed_methods,
    reason = "the test harness has no flags for tests"
)]
fn setting(variable: &str) -> Result<Option<u64>> {
    let Ok(text) = std::env::var(variable) else {
        return Ok(None);
    };
    let number = text.parse();
    ensure!(number.is_ok(), "{variable} must be a number, but is {text:?}");
    Ok(number.ok())
}
