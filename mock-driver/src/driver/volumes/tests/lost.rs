//! Copies whose confirmation is lost, since the state database cannot be written.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;

use super::super::*;
use super::MIB;
use crate::array::{Access, AccessMode, Capability};
use crate::driver::Settings;
use crate::store::tests::mk_store_on_a_full_disk;

/// A driver with a volume `vol-0` that has bytes, and a state database that cannot be written.
async fn mk_driver(directory: &Path) -> Driver {
    let settings = Settings {
        media_dir: Some(directory.to_owned()),
        ..Settings::default()
    };
    let (driver, _) = Driver::open(settings).unwrap();
    let driver = Driver {
        store: Arc::new(mk_store_on_a_full_disk().0),
        ..Arc::into_inner(driver).unwrap()
    };
    let source = FileId::Volume("vol-0".to_owned());
    let disk = driver.volume_files.ensure(&source, MIB).await.unwrap();
    std::fs::write(disk, "precious").unwrap();
    driver
}

fn is_lost<T: Debug>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Store(store::Error::Lost(_))))
}

fn is_copied(driver: &Driver, file_id: &FileId) -> bool {
    let bytes = std::fs::read(driver.volume_files.disk(file_id).unwrap());
    bytes.is_ok_and(|bytes| bytes.starts_with(b"precious"))
}

/// The only snapshot, which the array has, whatever the log has.
fn snapshot(driver: &Driver) -> FileId {
    let ids = driver.store.peek(|array| {
        let all = array.snapshots().map(|snapshot| snapshot.id.to_string());
        all.collect::<Vec<_>>()
    });
    let [id] = ids.as_slice() else {
        panic!("there must be one: {ids:?}");
    };
    FileId::Snapshot(id.clone())
}

#[tokio::test]
async fn snapshot_whose_confirmation_is_lost_keeps_its_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let driver = mk_driver(directory.path()).await;
    let wanted = CreateSnapshotParams {
        name: "s".to_owned(),
        source: "vol-0".to_owned(),
        parameters: BTreeMap::new(),
        requirement: None,
    };
    let outcome = driver.create_snapshot(&wanted).await;
    assert!(is_lost(&outcome), "{outcome:?}");
    assert!(is_copied(&driver, &snapshot(&driver)));
}

#[tokio::test]
async fn group_whose_confirmation_is_lost_keeps_its_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let driver = mk_driver(directory.path()).await;
    let wanted = CreateGroupParams {
        name: "g".to_owned(),
        sources: ["vol-0".to_owned()].into(),
        parameters: BTreeMap::new(),
    };
    let outcome = driver.create_group(&wanted).await;
    assert!(is_lost(&outcome), "{outcome:?}");
    assert!(is_copied(&driver, &snapshot(&driver)));
}

#[tokio::test]
async fn clone_whose_confirmation_is_lost_keeps_its_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let driver = mk_driver(directory.path()).await;
    let wanted = CreateVolumeParams {
        name: "c".to_owned(),
        size: SizeRange {
            required: 0,
            limit: 0,
        },
        capabilities: vec![Capability {
            access: Access::Block,
            mode: AccessMode::SingleNodeWriter,
        }],
        parameters: BTreeMap::new(),
        mutable_parameters: BTreeMap::new(),
        source: Some(Source::Volume("vol-0".into())),
        requirement: None,
    };
    let outcome = driver.create_volume(&wanted).await;
    assert!(is_lost(&outcome), "{outcome:?}");
    let ids = driver.store.peek(|array| {
        let all = array.volumes().map(|volume| volume.spec.id.to_string());
        all.filter(|id| id != "vol-0").collect::<Vec<_>>()
    });
    let [id] = ids.as_slice() else {
        panic!("the array must have it, whatever the log has: {ids:?}");
    };
    assert!(is_copied(&driver, &FileId::Volume(id.clone())));
}

#[tokio::test]
async fn copy_that_the_array_refuses_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let driver = mk_driver(directory.path()).await;
    let (from, copy) = (
        FileId::Volume("vol-0".to_owned()),
        FileId::Snapshot("snap-1".to_owned()),
    );
    driver.volume_files.copy(&from, &copy, MIB).await.unwrap();
    assert!(is_copied(&driver, &copy));
    let refuse = |_: &mut Array| -> Result<array::Done<()>, array::Error> {
        Err(array::Error::VolumeNotFound {
            volume: "vol-0".to_owned(),
        })
    };
    let outcome = driver
        .change_with(driver.reset_scope.copying(vec![copy.clone()]), refuse)
        .await;
    assert!(
        matches!(outcome, Err(Error::Store(store::Error::Refused(_)))),
        "{outcome:?}"
    );
    assert!(!driver.volume_files.exists(&copy).unwrap());
}
