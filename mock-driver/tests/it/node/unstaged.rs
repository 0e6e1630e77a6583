//! A driver without NODE_STAGE_UNSTAGE_VOLUME, which stages volumes by itself for their targets.

use super::*;

const OFFERS: [&str; 2] = [
    "-NODE_STAGE_UNSTAGE_VOLUME",
    "-NODE_STAGE_UNSTAGE_VOLUME,-PUBLISH_UNPUBLISH_VOLUME,-LIST_VOLUMES_PUBLISHED_NODES,-PUBLISH_READONLY",
];

async fn start(devices: Choice, offer: &str) -> Site {
    Site::start_with(devices, |_, settings| {
        settings.capabilities = offer.parse().unwrap()
    })
    .await
}

async fn ready(site: &mut Site, offer: &str, capability: v1::VolumeCapability) -> Volume {
    let volume = site.create("a", 64 * MIB, capability).await;
    if offer.contains("PUBLISH_UNPUBLISH_VOLUME") {
        volume
    } else {
        site.attach(volume, false).await
    }
}

fn mk_delete(volume: &Volume) -> v1::DeleteVolumeRequest {
    v1::DeleteVolumeRequest {
        volume_id: volume.id.clone(),
        ..Default::default()
    }
}

/// What the node itself has staged, of whatever volume.
fn own_stages(site: &Site) -> usize {
    fs::read_dir(site.server.media().join("staging").join(HERE)).map_or(0, Iterator::count)
}

#[tokio::test]
async fn publish_that_fails_leaves_no_stage_behind() {
    for devices in kinds() {
        for offer in OFFERS {
            for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
                let mut site = start(devices, offer).await;
                let volume = ready(&mut site, offer, capability).await;
                fs::create_dir(site.target("full")).unwrap();
                fs::write(site.target("full").join("file"), "precious").unwrap();
                for target in ["no-such-directory/t", "full"] {
                    site.publish(&volume, target).await.unwrap_err();
                    assert_eq!(own_stages(&site), 0, "{devices:?} {offer} {target}");
                }
                let kept = fs::read_to_string(site.target("full").join("file"));
                assert_eq!(kept.unwrap(), "precious");
                fs::remove_dir_all(site.target("full")).unwrap();
                assert_eq!(site.unpublish(&volume, "no-such-directory/t").await, Ok(()));
                if volume.context.is_empty() {
                    site.controller.delete_volume(mk_delete(&volume)).await.unwrap();
                } else {
                    site.publish(&volume, "t").await.unwrap();
                    site.unpublish(&volume, "t").await.unwrap();
                    assert_eq!(own_stages(&site), 0);
                    site.detach(&volume).await;
                }
                site.end().await;
            }
        }
    }
}

#[tokio::test]
async fn target_that_fails_leaves_the_others_what_they_have() {
    for devices in kinds() {
        for offer in OFFERS {
            let mut site = start(devices, offer).await;
            let volume = ready(&mut site, offer, mount(Mode::SingleNodeMultiWriter)).await;
            site.publish(&volume, "t1").await.unwrap();
            fs::write(site.target("t1").join("file"), "text").unwrap();
            site.publish(&volume, "no-such-directory/t").await.unwrap_err();
            assert_eq!(own_stages(&site), 1, "{devices:?}");
            site.publish(&volume, "t2").await.unwrap();
            assert_eq!(site.publish(&volume, "t1").await, Ok(()));
            site.unpublish(&volume, "t1").await.unwrap();
            assert_eq!(
                fs::read_to_string(site.target("t2").join("file")).unwrap(),
                "text"
            );
            site.unpublish(&volume, "t2").await.unwrap();
            assert_eq!(own_stages(&site), 0, "{devices:?}");
            site.end().await;
        }
    }
}

#[tokio::test]
async fn stage_that_somebody_unmounted_is_mounted_again_for_the_next_target() {
    if !privilege::is_there() {
        return;
    }
    let offer = OFFERS[0];
    let mut site = start(Choice::Loop, offer).await;
    let volume = ready(&mut site, offer, mount(Mode::SingleNodeMultiWriter)).await;
    site.publish(&volume, "t1").await.unwrap();
    fs::write(site.target("t1").join("file"), "text").unwrap();
    let stages = fs::read_dir(site.server.media().join("staging").join(HERE)).unwrap();
    let stage = stages.map(|entry| entry.unwrap().path()).next().unwrap();
    // As a reboot does, which nobody has noticed yet.
    for path in [&site.target("t1"), &stage] {
        unmount(path);
    }
    site.publish(&volume, "t2").await.unwrap();
    assert_eq!(
        fs::read_to_string(site.target("t2").join("file")).unwrap(),
        "text"
    );
    for target in ["t1", "t2"] {
        site.unpublish(&volume, target).await.unwrap();
    }
    assert_eq!(own_stages(&site), 0);
    site.end().await;
}
