//! Raw devices that are published for reading where they are attached for writing.

use std::os::unix::fs::FileExt;

use super::*;

const BLOCK: usize = 4096;

/// Writes past the page cache, which takes everything.
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

/// The loop devices that are made of a volume's disk.
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

fn for_reading(site: &Site, volume: &Volume, target: &str) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest {
        readonly: true,
        ..site.mk_publish(volume, target)
    }
}

fn in_mode(site: &Site, volume: &Volume, mode: Mode, target: &str) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest {
        volume_capability: Some(mk_block(mode)),
        ..site.mk_publish(volume, target)
    }
}

#[tokio::test]
async fn device_published_for_reading_takes_no_writes_and_shows_what_others_write() {
    if !privilege::is_there() {
        return;
    }
    let mut site = Site::start(Choice::Loop).await;
    let volume = site
        .attached("a", 64 * MIB, mk_block(Mode::MultiNodeMultiWriter))
        .await;
    let disk = site.server.disk(&volume.id);
    site.stage(&volume).await.unwrap();
    site.publish(&volume, "rw").await.unwrap();
    assert_eq!(devices_of(&disk).len(), 1);
    let requests = [
        for_reading(&site, &volume, "ro"),
        in_mode(&site, &volume, Mode::MultiNodeReaderOnly, "readers"),
    ];
    for request in &requests {
        for _ in 0..2 {
            assert_eq!(site.publish_as(request.clone()).await, Ok(()));
        }
    }
    assert_eq!(devices_of(&disk).len(), 2, "one for all readers");
    write(&site.target("rw"), 7).unwrap();
    for target in ["ro", "readers"] {
        assert!(write(&site.target(target), 8).is_err(), "{target}");
        assert_eq!(read(&site.target(target)), 7, "{target}");
    }
    assert_eq!(read(&site.target("rw")), 7);

    site.unpublish(&volume, "ro").await.unwrap();
    assert!(write(&site.target("readers"), 8).is_err(), "others go on");
    assert_eq!(devices_of(&disk).len(), 2);
    for _ in 0..2 {
        site.unpublish(&volume, "readers").await.unwrap();
        assert_eq!(devices_of(&disk).len(), 1, "gone with the last one");
    }
    write(&site.target("rw"), 9).unwrap();
    site.end().await;
}

#[tokio::test]
async fn device_attached_for_reading_needs_no_other() {
    if !privilege::is_there() {
        return;
    }
    let mut site = Site::start(Choice::Loop).await;
    let volume = site.create("a", 64 * MIB, mk_block(Mode::SingleNodeWriter)).await;
    let volume = site.attach(volume, true).await;
    let disk = site.server.disk(&volume.id);
    site.stage(&volume).await.unwrap();
    for _ in 0..2 {
        let request = for_reading(&site, &volume, "t");
        assert_eq!(site.publish_as(request).await, Ok(()));
    }
    assert!(write(&site.target("t"), 8).is_err());
    assert_eq!(devices_of(&disk).len(), 1);
    site.end().await;
}

#[tokio::test]
async fn device_for_reading_goes_with_the_attachment_and_after_a_publish_that_failed() {
    if !privilege::is_there() {
        return;
    }
    let mut site = Site::start(Choice::Loop).await;
    let volume = site
        .attached("a", 64 * MIB, mk_block(Mode::SingleNodeWriter))
        .await;
    let disk = site.server.disk(&volume.id);
    site.stage(&volume).await.unwrap();
    let request = for_reading(&site, &volume, "t");
    fs::write(site.target("t"), "precious").unwrap();
    assert_eq!(
        site.publish_as(request.clone()).await,
        Err(Code::FailedPrecondition)
    );
    assert_eq!(devices_of(&disk).len(), 1);
    fs::remove_file(site.target("t")).unwrap();

    site.publish_as(request).await.unwrap();
    assert_eq!(devices_of(&disk).len(), 2);
    site.detach(&volume).await;
    assert_eq!(devices_of(&disk), Vec::<PathBuf>::new());
    site.unpublish(&volume, "t").await.unwrap();
    site.unstage(&volume).await.unwrap();
    site.end().await;
}

#[tokio::test]
async fn device_for_reading_outlives_the_driver_and_goes_if_its_call_was_cut_off() {
    if !privilege::is_there() {
        return;
    }
    let keep = |directory: &Path, settings: &mut csi_mock_driver::driver::Settings| {
        settings.state_dir = Some(directory.join("state"));
    };
    let mut site = Site::start_with(Choice::Loop, keep).await;
    let volume = site
        .attached("a", 64 * MIB, mk_block(Mode::SingleNodeWriter))
        .await;
    let disk = site.server.disk(&volume.id);
    site.stage(&volume).await.unwrap();
    let request = in_mode(&site, &volume, Mode::SingleNodeReaderOnly, "t");
    site.publish_as(request.clone()).await.unwrap();
    let before = devices_of(&disk);
    assert_eq!(before.len(), 2);

    let mut site = site.again(Choice::Loop, |_| {}).await;
    assert_eq!(devices_of(&disk), before, "as it was");
    assert_eq!(site.publish_as(request).await, Ok(()));
    assert!(write(&site.target("t"), 8).is_err());
    assert_eq!(devices_of(&disk), before);

    // As a kill leaves it between the mount and the note that it is done.
    let site = site
        .again(Choice::Loop, |directory| {
            edit_records(directory, |record| {
                assert!(record.contains(DONE), "{record}");
                Some(record.replace(DONE, DOING))
            });
        })
        .await;
    assert!(fs::symlink_metadata(site.target("t")).is_err());
    assert_eq!(devices_of(&disk).len(), 1, "that of the attachment");
    let mut site = site;
    site.detach(&volume).await;
    let directory = site.server.stop().await;
    nothing_is_left(directory.path());
}

#[tokio::test]
async fn device_for_reading_grows_with_the_volume() {
    if !privilege::is_there() {
        return;
    }
    let mut site = Site::start(Choice::Loop).await;
    let volume = site
        .attached("a", 64 * MIB, mk_block(Mode::SingleNodeMultiWriter))
        .await;
    site.stage(&volume).await.unwrap();
    site.publish(&volume, "rw").await.unwrap();
    site.publish_as(for_reading(&site, &volume, "ro")).await.unwrap();
    let grow = v1::ControllerExpandVolumeRequest {
        volume_id: volume.id.clone(),
        capacity_range: Some(v1::CapacityRange {
            required_bytes: 96 * MIB,
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    site.controller.controller_expand_volume(grow).await.unwrap();
    let grow = v1::NodeExpandVolumeRequest {
        volume_id: volume.id.clone(),
        volume_path: text(&site.target("ro")),
        ..Default::default()
    };
    site.node.node_expand_volume(grow).await.unwrap();
    for target in ["rw", "ro"] {
        let mut byte = [0];
        let device = fs::File::open(site.target(target)).unwrap();
        let last = u64::try_from(96 * MIB - 1).unwrap();
        assert!(device.read_exact_at(&mut byte, last).is_ok(), "{target}");
    }
    site.end().await;
}

/// What stands for a device is the file itself, and a link to it refuses nobody.
#[tokio::test]
async fn emulated_device_published_for_reading_is_the_disk() {
    let mut site = Site::start(Choice::Emulated).await;
    let volume = site
        .attached("a", 64 * MIB, mk_block(Mode::SingleNodeWriter))
        .await;
    site.stage(&volume).await.unwrap();
    for _ in 0..2 {
        let request = for_reading(&site, &volume, "t");
        assert_eq!(site.publish_as(request).await, Ok(()));
    }
    write(&site.server.disk(&volume.id), 7).unwrap();
    assert_eq!(read(&site.target("t")), 7);
    site.end().await;
}
