//! Failover between two replicas.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use rustix::process::Signal;

use super::{attach_one, detach_one, plain_env, timeout_for, warm_up};
use crate::bench_env::BenchEnv;
use crate::implementation::Implementation;
use crate::quantity::{Figures, Quantity};
use crate::{Harness, NAMESPACE};
use csi_e2e::attacher::with_host_name;
use csi_e2e::fixture::leader_lease_name;
use csi_e2e::process::{Process, Spec};
use csi_e2e::wait::{self, Progress};

/// Maximum time for an attacher to exit after SIGTERM.
const STOP: Duration = Duration::from_secs(30);

pub(super) async fn measure(
    harness: &Harness<'_>,
    implementation: Implementation,
    name: String,
    signal: Signal,
) -> Result<Figures> {
    let env = plain_env(harness, name, 2).await?;
    let took = failover(harness, implementation, &env, signal).await;
    let took = env.clear(harness, took).await?;
    Ok(Figures::from([(Quantity::Recovery, took.as_secs_f64())]))
}

/// Returns the time from the signal to the leader until the standby has attached a volume.
async fn failover(
    harness: &Harness<'_>,
    implementation: Implementation,
    env: &BenchEnv,
    signal: Signal,
) -> Result<Duration> {
    let leader = Process::spawn(harness.run, replica(harness, implementation, env, "first")?)?;
    leader
        .while_alive(async {
            warm_up(harness, env, 0).await?;
            is_led_by(harness, env, "first").await
        })
        .await?;
    let standby = Process::spawn(harness.run, replica(harness, implementation, env, "second")?)?;
    wait_for_lease_read(implementation, &standby).await?;
    leader.ensure_alive()?;
    let work = async {
        leader.signal(signal)?;
        let signalled = Instant::now();
        let attached = attach_one(harness, env, 1).await?;
        is_led_by(harness, env, "second").await?;
        detach_one(harness, env, 1).await?;
        Ok(attached - signalled)
    };
    let took = standby.while_alive(work).await?;
    standby.stop(STOP).await?;
    Ok(took)
}

fn replica(
    harness: &Harness<'_>,
    implementation: Implementation,
    env: &BenchEnv,
    host: &str,
) -> Result<Spec> {
    let program = implementation.program(&harness.programs)?;
    Ok(with_host_name(host, program)
        .dir(&env.dir)
        .args(implementation.flags(env))
        // The Go attacher logs the leader at this level only.
        .args(implementation.is_go().then_some("-v=3"))
        .args([
            "--leader-election".to_owned(),
            format!("--leader-election-namespace={NAMESPACE}"),
        ]))
}

/// Waits until the standby has logged the current leader.
async fn wait_for_lease_read(implementation: Implementation, standby: &Process) -> Result<()> {
    let message = match implementation.is_go() {
        true => "New leader detected",
        false => "new leader elected",
    };
    let logged = wait::poll(timeout_for(1), "the standby to read the lease", || async {
        let log = standby.log_tail(usize::MAX);
        Ok(Progress::of(log.contains(message), || {
            format!("it has not logged {message:?}")
        }))
    });
    standby.while_alive(logged).await
}

async fn is_led_by(harness: &Harness<'_>, env: &BenchEnv, host: &str) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(harness.cluster.client(), NAMESPACE);
    let name = leader_lease_name(&env.driver);
    let what = format!("a lease that {host} holds");
    let held = |lease: Option<&Lease>| {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
        Progress::of(holder == Some(host), || format!("its holder is {holder:?}"))
    };
    wait::for_object(&leases, &name, timeout_for(1), &what, held)
        .await
        .context("the attacher does not elect a leader")
}
