use tonic::Code;

use crate::admin::problem::Refusal;
use crate::admin::request::Reply;
use crate::admin::state::Admin;
use crate::admin_api::resource::{Counts, Info};
use crate::error_chain;
use crate::journal;

pub(super) async fn info(admin: &Admin) -> Reply<Info> {
    let driver = &admin.driver;
    let array = driver.volume_files.claimed_by();
    Ok(Info {
        driver: driver.settings.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: driver.node.as_ref().map(|node| node.info().id),
        has_array: driver.has_array(),
        array: array.map_err(|error| Refusal::new(Code::Internal, error_chain(&error)))?,
        started: journal::text(admin.started),
        latency_seconds: driver.settings.latency.as_secs_f64(),
        counts: counts(admin).await?,
    })
}

pub(in crate::admin) async fn counts(admin: &Admin) -> Reply<Counts> {
    let driver = &admin.driver;
    let mut counts = driver
        .store
        .read(|array| {
            let mut counts = Counts {
                faults: driver.faults.len(),
                ..Counts::default()
            };
            if !driver.has_array() {
                return Ok(counts);
            }
            counts = Counts {
                volumes: array.volumes().len(),
                snapshots: array.snapshots().count(),
                groups: array.groups().count(),
                ..counts
            };
            for node in array.nodes() {
                counts.nodes += usize::from(node.registered);
                counts.attachments += node.attached.len();
            }
            Ok(counts)
        })
        .await?;
    if let Some(journal) = &driver.journal {
        journal.read(|memory| {
            counts.running = memory.running().len();
            for ((_, code), times) in &memory.durations {
                let calls = times.get_sample_count();
                counts.calls += calls;
                counts.failed += if *code == "OK" { 0 } else { calls };
            }
        });
    }
    Ok(counts)
}
