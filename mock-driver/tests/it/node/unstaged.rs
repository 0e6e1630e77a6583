//! A driver without NODE_STAGE_UNSTAGE_VOLUME, which stages volumes internally at NodePublishVolume.

use super::*;

const OFFERS: [&str; 2] = [
    "-NODE_STAGE_UNSTAGE_VOLUME",
    "-NODE_STAGE_UNSTAGE_VOLUME,-PUBLISH_UNPUBLISH_VOLUME,-LIST_VOLUMES_PUBLISHED_NODES,-PUBLISH_READONLY",
];

async fn start(devices: Choice, offer: &str) -> TestEnv {
    TestEnv::start_with(devices, |_, settings| {
        settings.capabilities = offer.parse().unwrap()
    })
    .await
}

async fn ready(env: &mut TestEnv, offer: &str, capability: v1::VolumeCapability) -> Volume {
    let volume = env.create("a", 64 * MIB, capability).await;
    if offer.contains("PUBLISH_UNPUBLISH_VOLUME") {
        volume
    } else {
        env.attach(volume, false).await
    }
}

fn mk_delete(volume: &Volume) -> v1::DeleteVolumeRequest {
    v1::DeleteVolumeRequest {
        volume_id: volume.id.clone(),
        ..Default::default()
    }
}

/// Number of internal stages of all volumes.
fn own_stages(env: &TestEnv) -> usize {
    fs::read_dir(env.server.media().join("staging").join(HERE)).map_or(0, Iterator::count)
}

#[tokio::test]
async fn failed_publish_leaves_no_stage() {
    for devices in kinds() {
        for offer in OFFERS {
            for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
                let mut env = start(devices, offer).await;
                let volume = ready(&mut env, offer, capability).await;
                fs::create_dir(env.target("full")).unwrap();
                fs::write(env.target("full").join("file"), "precious").unwrap();
                for target in ["no-such-directory/t", "full"] {
                    env.publish(&volume, target).await.unwrap_err();
                    assert_eq!(own_stages(&env), 0, "{devices:?} {offer} {target}");
                }
                let kept = fs::read_to_string(env.target("full").join("file"));
                assert_eq!(kept.unwrap(), "precious");
                fs::remove_dir_all(env.target("full")).unwrap();
                assert_eq!(env.unpublish(&volume, "no-such-directory/t").await, Ok(()));
                if volume.context.is_empty() {
                    env.controller.delete_volume(mk_delete(&volume)).await.unwrap();
                } else {
                    env.publish(&volume, "t").await.unwrap();
                    env.unpublish(&volume, "t").await.unwrap();
                    assert_eq!(own_stages(&env), 0);
                    env.detach(&volume).await;
                }
                env.end().await;
            }
        }
    }
}

#[tokio::test]
async fn failed_target_leaves_other_targets_unchanged() {
    for devices in kinds() {
        for offer in OFFERS {
            let mut env = start(devices, offer).await;
            let volume = ready(&mut env, offer, mount(Mode::SingleNodeMultiWriter)).await;
            env.publish(&volume, "t1").await.unwrap();
            fs::write(env.target("t1").join("file"), "text").unwrap();
            env.publish(&volume, "no-such-directory/t").await.unwrap_err();
            assert_eq!(own_stages(&env), 1, "{devices:?}");
            env.publish(&volume, "t2").await.unwrap();
            assert_eq!(env.publish(&volume, "t1").await, Ok(()));
            env.unpublish(&volume, "t1").await.unwrap();
            assert_eq!(fs::read_to_string(env.target("t2").join("file")).unwrap(), "text");
            env.unpublish(&volume, "t2").await.unwrap();
            assert_eq!(own_stages(&env), 0, "{devices:?}");
            env.end().await;
        }
    }
}

#[tokio::test]
async fn unmounted_staging_is_mounted_again_for_the_next_target() {
    if !privilege::is_there() {
        return;
    }
    let offer = OFFERS[0];
    let mut env = start(Choice::Loop, offer).await;
    let volume = ready(&mut env, offer, mount(Mode::SingleNodeMultiWriter)).await;
    env.publish(&volume, "t1").await.unwrap();
    fs::write(env.target("t1").join("file"), "text").unwrap();
    let stages = fs::read_dir(env.server.media().join("staging").join(HERE)).unwrap();
    let stage = stages.map(|entry| entry.unwrap().path()).next().unwrap();
    // Like a reboot that the driver has not detected yet.
    for path in [&env.target("t1"), &stage] {
        unmount(path);
    }
    env.publish(&volume, "t2").await.unwrap();
    assert_eq!(fs::read_to_string(env.target("t2").join("file")).unwrap(), "text");
    for target in ["t1", "t2"] {
        env.unpublish(&volume, target).await.unwrap();
    }
    assert_eq!(own_stages(&env), 0);
    env.end().await;
}
