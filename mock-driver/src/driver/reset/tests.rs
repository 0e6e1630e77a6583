use std::sync::Arc;
use std::time::Duration;

use csi_proto::v1;
use tokio::task::JoinSet;
use tokio::time::{self, Instant};
use tokio_test::{assert_pending, task};
use tonic::{Code, Request};

use super::*;
use crate::driver::Settings;
use crate::fault::{Origin, Rule, RuleKind};
use crate::journal::JournalConfig;

/// A driver whose attaches are under a rule with this action.
fn mk_driver(action: &str, change: impl FnOnce(&mut Settings)) -> Arc<Driver> {
    let mut settings = Settings {
        initial_volumes: 1,
        node_id: Some("node-0".to_owned()),
        journal_config: JournalConfig {
            kept: 10,
            ..JournalConfig::default()
        },
        ..Settings::default()
    };
    change(&mut settings);
    let driver = Driver::in_memory(settings).unwrap();
    let rule = format!("[{{id: x, match: {{method: ControllerPublishVolume}}, action: {action}}}]");
    driver
        .faults
        .load(Origin::File, Rule::read_list(&rule).unwrap())
        .unwrap();
    driver
}

fn publish(driver: &Arc<Driver>) -> JoinSet<Code> {
    let driver = driver.clone();
    let mode = v1::volume_capability::access_mode::Mode::SingleNodeWriter;
    let request = v1::ControllerPublishVolumeRequest {
        volume_id: "vol-0".to_owned(),
        node_id: "node-0".to_owned(),
        volume_capability: Some(v1::VolumeCapability {
            access_mode: Some(v1::volume_capability::AccessMode { mode: mode.into() }),
            access_type: Some(v1::volume_capability::AccessType::Block(
                v1::volume_capability::BlockVolume {},
            )),
        }),
        ..Default::default()
    };
    let mut call = JoinSet::new();
    call.spawn(async move {
        let reply = driver.answer(Request::new(request)).await;
        reply.map_or_else(|status| status.code(), |_| Code::Ok)
    });
    call
}

async fn code_of(mut call: JoinSet<Code>) -> Code {
    call.join_next().await.unwrap().unwrap()
}

fn is_attached(driver: &Driver) -> bool {
    driver
        .store
        .peek(|array| !array.volume("vol-0").unwrap().attachments.is_empty())
}

#[tokio::test(start_paused = true)]
async fn call_before_a_reset_does_not_act_after_it() {
    // (action of the rule, code of the call)
    for (action, code) in [
        ("{effect: later, delay: 30s, code: OK}", Code::Ok),
        ("{effect: later, hang: release, code: OK}", Code::Ok),
        ("{delay: 30s}", Code::Aborted),
        ("{hang: release}", Code::Aborted),
        ("{hang: 10m}", Code::Aborted),
        ("{hang: client-cancel}", Code::Aborted),
    ] {
        let driver = mk_driver(action, |_| {});
        let call = publish(&driver);
        time::sleep(Duration::from_secs(1)).await;
        driver.reset(false).await.unwrap();
        time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(code_of(call).await, code, "{action}");
        assert!(!is_attached(&driver), "{action}");
        assert!(driver.faults.remove(RuleKind::Rule, "x"), "{action}");
        assert_eq!(
            code_of(publish(&driver)).await,
            Code::Ok,
            "{action}: a call after the reset"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn import_that_is_refused_cancels_no_call() {
    let driver = mk_driver("{delay: 30s}", |_| {});
    let call = publish(&driver);
    time::sleep(Duration::from_secs(1)).await;
    let mut image = driver.store.peek(Array::image);
    image.volumes.extend(image.volumes.clone());
    driver.import(image).await.unwrap_err();
    assert_eq!(code_of(call).await, Code::Ok);
    assert!(is_attached(&driver));
}

#[tokio::test(start_paused = true)]
async fn call_before_an_import_does_not_act_after_it() {
    let driver = mk_driver("{delay: 30s}", |_| {});
    let call = publish(&driver);
    time::sleep(Duration::from_secs(1)).await;
    let image = driver.store.peek(Array::image);
    driver.import(image).await.unwrap();
    assert_eq!(code_of(call).await, Code::Aborted);
    time::sleep(Duration::from_secs(3600)).await;
    assert!(!is_attached(&driver));
    assert_eq!(
        code_of(publish(&driver)).await,
        Code::Ok,
        "a call after the import"
    );
}

#[tokio::test]
async fn import_succeeds_without_a_device_that_a_call_can_make_later() {
    let directory = tempfile::tempdir().unwrap();
    let devices = directory.path().join("devices");
    let mut settings = Settings {
        initial_volumes: 1,
        node_id: Some("node-0".to_owned()),
        ..Settings::default()
    };
    settings.node.device_dir = Some(devices.clone());
    let (driver, _) = Driver::open(settings).unwrap();
    let detached = driver.store.peek(Array::image);
    assert_eq!(code_of(publish(&driver)).await, Code::Ok);
    let attached = driver.store.peek(Array::image);
    driver.import(detached).await.unwrap();
    assert!(!is_attached(&driver));
    std::fs::remove_dir_all(&devices).unwrap();
    std::fs::write(&devices, "no directory").unwrap();
    driver.import(attached.clone()).await.unwrap();
    assert!(is_attached(&driver));
    assert_eq!(driver.store.peek(Array::image), attached);
    driver.close();
}

#[tokio::test(start_paused = true)]
async fn released_call_does_not_wait_any_more() {
    type Release = fn(&Driver);
    let releases: [(&str, Release); 3] = [
        ("release", |driver| {
            assert_eq!(driver.faults.release(Some("x")), Some(1))
        }),
        ("remove", |driver| {
            assert!(driver.faults.remove(RuleKind::Rule, "x"))
        }),
        ("disable", |driver| {
            assert!(driver.faults.set_enabled(RuleKind::Rule, "x", false));
        }),
    ];
    for action in [
        "{delay: 1h}",
        "{delay: 1h, hang: release}",
        "{hang: release}",
        "{hang: 10m}",
        "{hang: client-cancel}",
        "{effect: true, hang: 10m}",
        "{effect: later, code: OK, delay: 1h}",
    ] {
        for (name, release) in releases {
            let driver = mk_driver(action, |_| {});
            let call = publish(&driver);
            time::sleep(Duration::from_secs(1)).await;
            let released = Instant::now();
            release(&driver);
            assert_eq!(code_of(call).await, Code::Ok, "{name} {action}");
            while !is_attached(&driver) {
                time::sleep(Duration::from_millis(1)).await;
            }
            assert!(released.elapsed() < Duration::from_secs(1), "{name} {action}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn snapshot_before_a_reset_does_not_make_a_later_one_ready() {
    let driver = mk_driver("{delay: 1s}", |settings| {
        settings.config.snapshot_delay = Duration::from_secs(30);
    });
    let wanted = crate::array::CreateSnapshotParams {
        name: "s".to_owned(),
        source: "vol-0".to_owned(),
        parameters: std::collections::BTreeMap::new(),
        requirement: None,
    };
    let first = driver.create_snapshot(&wanted).await.unwrap();
    time::sleep(Duration::from_secs(20)).await;
    driver.reset(false).await.unwrap();
    let second = driver.create_snapshot(&wanted).await.unwrap();
    assert_eq!(
        first.id, second.id,
        "ids repeat, as after a restart with the same seed"
    );
    let is_ready = || {
        driver
            .store
            .peek(|array| array.snapshots().all(|snapshot| snapshot.is_ready()))
    };
    time::sleep(Duration::from_secs(20)).await;
    assert!(!is_ready());
    time::sleep(Duration::from_secs(11)).await;
    assert!(is_ready());
}

/// What a test sees of a driver before it makes a call.
async fn visible(driver: &Arc<Driver>) -> (String, Vec<String>, [Option<usize>; 3], usize, usize) {
    let image = driver.store.peek(Array::image);
    let journal = driver.journal.as_ref().unwrap();
    (
        serde_json::to_string(&image).unwrap(),
        driver
            .faults
            .reports(RuleKind::Rule)
            .iter()
            .map(|report| format!("{report:?}"))
            .collect(),
        [(); 3].map(|()| driver.random_limit()),
        journal.read(|memory| memory.durations.len() + memory.after(0).count()),
        driver.faults.injected().len(),
    )
}

#[tokio::test(start_paused = true)]
async fn reset_and_import_return_to_the_state_after_the_start() {
    let driver = mk_driver("{delay: 1s}", |settings| {
        settings.node.topology = [("zone".to_owned(), "a".to_owned())].into();
        settings.config.random_limit = true;
        settings.seed = Some(7);
    });
    driver.recover().await;
    let before = visible(&driver).await;
    assert!(before.0.contains("zone"), "{}", before.0);
    assert_eq!(code_of(publish(&driver)).await, Code::Ok);
    assert!(driver.faults.remove(RuleKind::Rule, "x"));
    driver.reset(false).await.unwrap();
    assert_eq!(visible(&driver).await, before);
    driver.import(driver.store.initial_image()).await.unwrap();
    assert_eq!(visible(&driver).await.0, before.0, "imported");
}

#[tokio::test]
async fn import_waits_for_the_operations_on_the_volumes() {
    let settings = Settings {
        initial_volumes: 1,
        ..Settings::default()
    };
    let (driver, _) = Driver::open(settings).unwrap();
    let id = || "vol-0".to_owned();
    for key in [Key::Volume(id()), Key::OnNode(id())] {
        let key = vec![(key, LockMode::Exclusive)];
        let operation = driver.locks.lock(Scope::Operation, key).await.unwrap();
        let mut import = task::spawn(driver.import(driver.store.peek(Array::image)));
        assert_pending!(import.poll());
        let mut reset = task::spawn(driver.reset(false));
        assert_pending!(reset.poll());
        drop(operation);
        import.await.unwrap();
        reset.await.unwrap();
    }
    driver.import(Image::default()).await.unwrap();
    assert_eq!(driver.store.peek(|array| array.volumes().len()), 0);
    driver.close();
}

/// As of the first members of a group.
#[tokio::test]
async fn import_removes_the_copies_of_an_interrupted_operation() {
    let (driver, _) = Driver::open(Settings::default()).unwrap();
    let file = FileId::Snapshot("snap-0".to_owned());
    let disk = driver.volume_files.ensure(&file, 1 << 20).await.unwrap();
    drop(driver.reset_scope.copying(vec![file]));
    assert!(disk.exists());
    driver.import(driver.store.peek(Array::image)).await.unwrap();
    assert!(!disk.exists());
    driver.close();
}
