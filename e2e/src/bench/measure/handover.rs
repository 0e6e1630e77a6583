//! Two replicas, of which the leader goes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use rustix::process::Signal;

use super::{STOP, attach_one, detach_one, patience, plain_ground, warm_up};
use crate::bench::contender::Contender;
use crate::bench::ground::Ground;
use crate::bench::quantity::{Figures, Quantity};
use crate::bench::{Bench, NAMESPACE};
use crate::process::{Process, Spec};
use crate::subject::with_host_name;
use crate::wait::{self, Progress};

/// How long the other replica gets to become a standby that has seen the lease: longer than the 5 s between
/// two looks at it.
const STANDBY: Duration = Duration::from_secs(8);

pub(super) async fn measure(
    bench: &Bench<'_>,
    contender: Contender,
    name: String,
    signal: Signal,
) -> Result<Figures> {
    let ground = plain_ground(bench, name, 2).await?;
    let leader = Process::spawn(bench.run, replica(bench, contender, &ground, "first")?)?;
    leader
        .while_alive(async {
            warm_up(bench, &ground, 0).await?;
            is_led_by(bench, &ground, "first").await
        })
        .await?;
    let standby = Process::spawn(bench.run, replica(bench, contender, &ground, "second")?)?;
    tokio::time::sleep(STANDBY).await;
    leader.ensure_alive()?;
    let work = async {
        leader.signal(signal)?;
        let signalled = Instant::now();
        let attached = attach_one(bench, &ground, 1, patience(1)).await?;
        is_led_by(bench, &ground, "second").await?;
        detach_one(bench, &ground, 1).await?;
        Ok(attached - signalled)
    };
    let took = standby.while_alive(work).await?;
    standby.stop(STOP).await?;
    ground.clear(bench).await?;
    Ok(Figures::from([(Quantity::Recovery, took.as_secs_f64())]))
}

/// A replica in a namespace of its own for host names: an attacher's identity in the lease is its host's name.
fn replica(bench: &Bench<'_>, contender: Contender, ground: &Ground, host: &str) -> Result<Spec> {
    let program = contender.program(&bench.programs)?;
    let as_host = "hostname \"$0\" && exec \"$@\"";
    Ok(with_host_name(&format!("attacher-{host}"))
        .dir(&ground.dir)
        .args(["sh", "-c", as_host, host])
        .arg(program)
        .args(contender.flags(ground))
        .args([
            "--leader-election".to_owned(),
            format!("--leader-election-namespace={NAMESPACE}"),
        ]))
}

async fn is_led_by(bench: &Bench<'_>, ground: &Ground, host: &str) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(bench.cluster.client(), NAMESPACE);
    let driver: String = ground
        .driver
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let what = format!("a lease that {host} holds");
    let held = |lease: Option<&Lease>| {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
        Progress::of(holder == Some(host), || format!("its holder is {holder:?}"))
    };
    wait::for_object(
        &leases,
        &format!("external-attacher-leader-{driver}"),
        patience(1),
        &what,
        held,
    )
    .await
    .context("the attacher does not elect a leader")
}
