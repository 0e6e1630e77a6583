//! Raw block volumes that are published read-only.

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

fn for_reading(env: &TestEnv, volume: &Volume, target: &str) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest {
        readonly: true,
        ..env.mk_publish(volume, target)
    }
}

#[tokio::test]
async fn device_of_a_read_only_attachment_rejects_writes() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let volume = env.create("a", 64 * MIB, mk_block(Mode::SingleNodeWriter)).await;
    let volume = env.attach(volume, true).await;
    env.stage(&volume).await.unwrap();
    for _ in 0..2 {
        let request = for_reading(&env, &volume, "t");
        assert_eq!(env.publish_as(request).await, Ok(()));
    }
    assert!(write(&env.target("t"), 8).is_err());
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
