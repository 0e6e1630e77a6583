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

use anyhow::{Result, ensure};
use csi_e2e::control_plane::{Component, ControlPlane, Options};
use csi_e2e::test_binary::{self, TestBinary, setting};
use embedded_cluster::apiserver::{self, ApiServer};
use verdict::Requirement::RealComponents;

use report::Report;
use session::Session;

const NAME: &str = "API servers respond equally";
/// Requests of a run without `DIFFERENTIAL_REQUESTS`.
const REQUESTS: u64 = 2_000;
/// Sequences with differences after which a run ends.
const DIFFERENCES_LIMIT: usize = 20;

fn main() -> Result<ExitCode> {
    test_binary::main(|binary| vec![binary.trial(NAME, &[RealComponents], api_servers_respond_equally)])
}

async fn api_servers_respond_equally(binary: &TestBinary) -> Result<()> {
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
    let plane = ControlPlane::start(&binary.run, &binary.toolchain, &options).await?;
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
