use std::collections::BTreeMap;
use std::fs;

use tokio::time::Instant;

use super::*;
use crate::driver::Settings;

mod lost;

const MIB: u64 = 1 << 20;

/// A driver with volumes of 8 MiB, of which the first two are full of data.
async fn mk_driver() -> Arc<Driver> {
    let mut settings = Settings {
        initial_volumes: 3,
        ..Settings::default()
    };
    settings.array.sizes.default = 8 * MIB;
    let (driver, _) = Driver::open(settings).unwrap();
    for volume in ["vol-0", "vol-1"] {
        let file_id = FileId::Volume(volume.to_owned());
        let disk = driver.volume_files.ensure(&file_id, 8 * MIB).await.unwrap();
        fs::write(disk, vec![7; 8 << 20]).unwrap();
    }
    driver
}

async fn modify(driver: &Driver, volume: &str, key: &str, value: &str) {
    let asked = BTreeMap::from([(key.to_owned(), value.to_owned())]);
    driver
        .store
        .change(|array| array.modify_volume(volume, &asked))
        .await
        .unwrap();
}

fn mk_snapshot(name: &str, source: &str) -> CreateSnapshotParams {
    CreateSnapshotParams {
        name: name.to_owned(),
        source: source.to_owned(),
        parameters: BTreeMap::new(),
        requirement: None,
    }
}

fn mk_wanted(name: &str, source: Source) -> CreateVolumeParams {
    CreateVolumeParams {
        name: name.to_owned(),
        source: Some(source),
        ..CreateVolumeParams::default()
    }
}

#[tokio::test(start_paused = true)]
async fn snapshots_are_taken_at_once_and_ready_when_their_bytes_are_copied() {
    let driver = mk_driver().await;
    let start = Instant::now();
    for (case, volume, throughput, seconds) in [
        ("no bound", "vol-0", None, 0),
        ("bound", "vol-0", Some("2"), 4),
        ("no bytes", "vol-2", Some("1"), 0),
    ] {
        if let Some(throughput) = throughput {
            modify(&driver, volume, "throughput", throughput).await;
        }
        let taken = driver.create_snapshot(&mk_snapshot(case, volume)).await.unwrap();
        let ready_after = Some(Duration::from_secs(seconds)).filter(|_| seconds > 0);
        assert_eq!(taken.ready_after, ready_after, "{case}");
    }
    modify(&driver, "vol-1", "iops", "16").await;
    let group = CreateGroupParams {
        name: "g".to_owned(),
        sources: ["vol-0", "vol-1", "vol-2"].map(str::to_owned).into(),
        parameters: BTreeMap::new(),
    };
    let members = driver.create_group(&group).await.unwrap();
    let is_slowest = |member: &Arc<Snapshot>| member.ready_after == Some(Duration::from_secs(4));
    assert!(members.snapshots.iter().all(is_slowest));
    assert_eq!(start.elapsed(), Duration::ZERO, "no call waits");
}

#[tokio::test(start_paused = true)]
async fn volumes_are_made_when_their_bytes_are_copied() {
    let driver = mk_driver().await;
    let snapshot = driver.create_snapshot(&mk_snapshot("s", "vol-0")).await.unwrap();
    modify(&driver, "vol-0", "throughput", "2").await;
    let bounded = |mut wanted: CreateVolumeParams, key: &str, value: &str, is_class: bool| {
        let parameters = match is_class {
            true => &mut wanted.parameters,
            false => &mut wanted.mutable_parameters,
        };
        parameters.insert(key.to_owned(), value.to_owned());
        wanted
    };
    let restored = |name: &str| mk_wanted(name, Source::Snapshot(snapshot.id.clone()));
    let cloned = |name: &str, source: &str| mk_wanted(name, Source::Volume(source.into()));
    // (what, seconds)
    let table = [
        (restored("a"), 0),
        (bounded(restored("b"), "iops", "4", false), 8),
        (bounded(restored("c"), "throughput", "1", true), 8),
        (cloned("d", "vol-1"), 0),
        (cloned("e", "vol-0"), 4),
        (bounded(cloned("f", "vol-0"), "throughput", "1", false), 8),
        (bounded(cloned("g", "vol-0"), "throughput", "100", false), 4),
        (bounded(cloned("h", "vol-2"), "throughput", "1", false), 0),
    ];
    for (wanted, seconds) in table {
        let start = Instant::now();
        let made = driver.create_volume(&wanted).await.unwrap();
        assert_eq!(start.elapsed().as_secs(), seconds, "{}", wanted.name);
        let start = Instant::now();
        assert_eq!(driver.create_volume(&wanted).await.unwrap(), made);
        assert_eq!(start.elapsed(), Duration::ZERO, "{}: made already", wanted.name);
    }
}

#[tokio::test(start_paused = true)]
async fn mutable_latency_overrides_that_of_the_class() {
    let driver = mk_driver().await;
    let with_latency = |name: &str, latency: &str| CreateVolumeParams {
        name: name.to_owned(),
        parameters: BTreeMap::from([("latency".to_owned(), latency.to_owned())]),
        ..CreateVolumeParams::default()
    };
    let made = driver.create_volume(&with_latency("a", "250")).await.unwrap();
    for (modified, millis) in [(None, 250), (Some("10"), 10), (Some("0"), 0)] {
        if let Some(latency) = modified {
            modify(&driver, made.id.as_str(), "latency", latency).await;
        }
        let start = Instant::now();
        driver.apply_qos_latency(made.id.as_str()).await;
        assert_eq!(start.elapsed(), Duration::from_millis(millis), "{modified:?}");
    }
    let refused = driver
        .create_volume(&with_latency("b", "slow"))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(refused.message().contains("parameters") && refused.message().contains("latency"));
}
