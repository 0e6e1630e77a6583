//! Raw block volumes that are attached read-write and published read-only.

use std::os::unix::fs::FileExt;

use super::*;

const BLOCK: usize = 4096;

/// Writes without the page cache, which accepts all writes.
fn write(device: &Path, byte: u8) -> std::io::Result<()> {
    let file = fs::OpenOptions::new().write(true).open(device)?;
    file.write_all_at(&[byte; BLOCK], 0)?;
    file.sync_all()
}

fn read(device: &Path) -> u8 {
    let mut bytes = [0; BLOCK];
    fs::File::open(device)
        .unwrap()
        .read_exact_at(&mut bytes, 0)
        .unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

/// The loop devices of a volume's disk.
fn devices_of(disk: &Path) -> Vec<PathBuf> {
    let disk = fs::canonicalize(disk).unwrap();
    let entries = fs::read_dir("/sys/block")
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|block| {
            let file = fs::read_to_string(block.join("loop/backing_file")).unwrap_or_default();
            Path::new(file.trim_end()) == disk
        })
        .collect()
}

fn for_reading(env: &TestEnv, volume: &Volume, target: &str) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest {
        readonly: true,
        ..env.mk_publish(volume, target)
    }
}

fn in_mode(env: &TestEnv, volume: &Volume, mode: Mode, target: &str) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest {
        volume_capability: Some(mk_block(mode)),
        ..env.mk_publish(volume, target)
    }
}

#[tokio::test]
async fn read_only_device_rejects_writes_and_shows_writes_of_others() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let volume = env
        .attached("a", 64 * MIB, mk_block(Mode::MultiNodeMultiWriter))
        .await;
    let disk = env.server.disk(&volume.id);
    env.stage(&volume).await.unwrap();
    env.publish(&volume, "rw").await.unwrap();
    assert_eq!(devices_of(&disk).len(), 1);
    let requests = [
        for_reading(&env, &volume, "ro"),
        in_mode(&env, &volume, Mode::MultiNodeReaderOnly, "readers"),
    ];
    for request in &requests {
        for _ in 0..2 {
            assert_eq!(env.publish_as(request.clone()).await, Ok(()));
        }
    }
    assert_eq!(devices_of(&disk).len(), 2, "one for all readers");
    write(&env.target("rw"), 7).unwrap();
    for target in ["ro", "readers"] {
        assert!(write(&env.target(target), 8).is_err(), "{target}");
        assert_eq!(read(&env.target(target)), 7, "{target}");
    }
    assert_eq!(read(&env.target("rw")), 7);

    env.unpublish(&volume, "ro").await.unwrap();
    assert!(
        write(&env.target("readers"), 8).is_err(),
        "other publishes are unaffected"
    );
    assert_eq!(devices_of(&disk).len(), 2);
    for _ in 0..2 {
        env.unpublish(&volume, "readers").await.unwrap();
        assert_eq!(devices_of(&disk).len(), 1, "detached with the last one");
    }
    write(&env.target("rw"), 9).unwrap();
    env.end().await;
}

#[tokio::test]
async fn device_of_a_read_only_attachment_is_shared() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let volume = env.create("a", 64 * MIB, mk_block(Mode::SingleNodeWriter)).await;
    let volume = env.attach(volume, true).await;
    let disk = env.server.disk(&volume.id);
    env.stage(&volume).await.unwrap();
    for _ in 0..2 {
        let request = for_reading(&env, &volume, "t");
        assert_eq!(env.publish_as(request).await, Ok(()));
    }
    assert!(write(&env.target("t"), 8).is_err());
    assert_eq!(devices_of(&disk).len(), 1);
    env.end().await;
}

#[tokio::test]
async fn read_only_device_is_detached_with_the_attachment_and_after_a_failed_publish() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let volume = env
        .attached("a", 64 * MIB, mk_block(Mode::SingleNodeWriter))
        .await;
    let disk = env.server.disk(&volume.id);
    env.stage(&volume).await.unwrap();
    let request = for_reading(&env, &volume, "t");
    fs::write(env.target("t"), "precious").unwrap();
    assert_eq!(
        env.publish_as(request.clone()).await,
        Err(Code::FailedPrecondition)
    );
    assert_eq!(devices_of(&disk).len(), 1);
    fs::remove_file(env.target("t")).unwrap();

    env.publish_as(request).await.unwrap();
    assert_eq!(devices_of(&disk).len(), 2);
    env.detach(&volume).await;
    assert_eq!(devices_of(&disk), Vec::<PathBuf>::new());
    env.unpublish(&volume, "t").await.unwrap();
    env.unstage(&volume).await.unwrap();
    env.end().await;
}

#[tokio::test]
async fn read_only_device_survives_a_restart_unless_its_publish_was_interrupted() {
    if !privilege::is_there() {
        return;
    }
    let keep = |directory: &Path, settings: &mut csi_mock_driver::driver::Settings| {
        settings.state_dir = Some(directory.join("state"));
    };
    let mut env = TestEnv::start_with(Choice::Loop, keep).await;
    let volume = env
        .attached("a", 64 * MIB, mk_block(Mode::SingleNodeWriter))
        .await;
    let disk = env.server.disk(&volume.id);
    env.stage(&volume).await.unwrap();
    let request = in_mode(&env, &volume, Mode::SingleNodeReaderOnly, "t");
    env.publish_as(request.clone()).await.unwrap();
    let before = devices_of(&disk);
    assert_eq!(before.len(), 2);

    let mut env = env.again(Choice::Loop, |_| {}).await;
    assert_eq!(devices_of(&disk), before, "as it was");
    assert_eq!(env.publish_as(request).await, Ok(()));
    assert!(write(&env.target("t"), 8).is_err());
    assert_eq!(devices_of(&disk), before);

    // The state after a kill between the mount and the update of the record.
    let env = env
        .again(Choice::Loop, |directory| {
            edit_records(directory, |record| {
                assert!(record.contains(DONE), "{record}");
                Some(record.replace(DONE, DOING))
            });
        })
        .await;
    assert!(fs::symlink_metadata(env.target("t")).is_err());
    assert_eq!(devices_of(&disk).len(), 1, "that of the attachment");
    let mut env = env;
    env.detach(&volume).await;
    let directory = env.server.stop().await;
    assert_nothing_left(directory.path());
}

#[tokio::test]
async fn read_only_device_grows_with_the_volume() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let volume = env
        .attached("a", 64 * MIB, mk_block(Mode::SingleNodeMultiWriter))
        .await;
    env.stage(&volume).await.unwrap();
    env.publish(&volume, "rw").await.unwrap();
    env.publish_as(for_reading(&env, &volume, "ro")).await.unwrap();
    let grow = v1::ControllerExpandVolumeRequest {
        volume_id: volume.id.clone(),
        capacity_range: Some(v1::CapacityRange {
            required_bytes: 96 * MIB,
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    env.controller.controller_expand_volume(grow).await.unwrap();
    let grow = v1::NodeExpandVolumeRequest {
        volume_id: volume.id.clone(),
        volume_path: text(&env.target("ro")),
        ..Default::default()
    };
    env.node.node_expand_volume(grow).await.unwrap();
    for target in ["rw", "ro"] {
        let mut byte = [0];
        let device = fs::File::open(env.target(target)).unwrap();
        let last = u64::try_from(96 * MIB - 1).unwrap();
        assert!(device.read_exact_at(&mut byte, last).is_ok(), "{target}");
    }
    env.end().await;
}

/// An emulated device is a link to the volume file, and always writable.
#[tokio::test]
async fn emulated_read_only_device_is_the_volume_file() {
    let mut env = TestEnv::start(Choice::Emulated).await;
    let volume = env
        .attached("a", 64 * MIB, mk_block(Mode::SingleNodeWriter))
        .await;
    env.stage(&volume).await.unwrap();
    for _ in 0..2 {
        let request = for_reading(&env, &volume, "t");
        assert_eq!(env.publish_as(request).await, Ok(()));
    }
    write(&env.server.disk(&volume.id), 7).unwrap();
    assert_eq!(read(&env.target("t")), 7);
    env.end().await;
}
