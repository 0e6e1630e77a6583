//! A driver whose volumes nobody attaches: the node alone knows what is in use.

use super::*;

const OFFER: &str = "-PUBLISH_UNPUBLISH_VOLUME,-LIST_VOLUMES_PUBLISHED_NODES,-PUBLISH_READONLY";

fn links(site: &Site) -> usize {
    fs::read_dir(site.server.media().join("devices").join(HERE)).map_or(0, Iterator::count)
}

#[tokio::test]
async fn volume_in_use_is_not_deleted_and_its_device_goes_with_the_last_path() {
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            let mut site = Site::start_with(devices, |_, settings| {
                settings.capabilities = OFFER.parse().unwrap();
            })
            .await;
            let volume = site.create("a", 64 * MIB, capability).await;
            site.stage(&volume).await.unwrap();
            site.publish(&volume, "t").await.unwrap();
            let delete = v1::DeleteVolumeRequest {
                volume_id: volume.id.clone(),
                ..Default::default()
            };
            let used = code(site.controller.delete_volume(delete.clone()).await);
            assert_eq!(used, Err(Code::FailedPrecondition), "published");
            site.unpublish(&volume, "t").await.unwrap();
            let used = code(site.controller.delete_volume(delete.clone()).await);
            assert_eq!(used, Err(Code::FailedPrecondition), "staged");
            assert!(site.server.disk(&volume.id).exists() && links(&site) > 0);
            for _ in 0..2 {
                site.unstage(&volume).await.unwrap();
                assert_eq!(links(&site), 0, "{devices:?}");
            }
            for _ in 0..2 {
                site.controller.delete_volume(delete.clone()).await.unwrap();
            }
            site.end().await;
        }
    }
}

#[tokio::test]
async fn attaching_is_optional_in_place_of_host_path() {
    for devices in kinds() {
        let mut site = Site::start_with(devices, |_, settings| settings.config.attach_optional = true).await;
        let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        site.stage(&volume).await.unwrap();
        site.publish(&volume, "t").await.unwrap();

        // attachRequired becomes false: the VolumeAttachment goes although a pod uses the volume.
        site.detach(&volume).await;
        let file = site.target("t").join("file");
        fs::write(&file, "text").unwrap();
        site.unpublish(&volume, "t").await.unwrap();
        site.unstage(&volume).await.unwrap();
        assert_eq!(links(&site), 0, "{devices:?}");

        // The next pod's volume comes without ControllerPublishVolume.
        let volume = Volume {
            context: mk_map(&[]),
            ..volume
        };
        site.stage(&volume).await.unwrap();
        site.publish(&volume, "t").await.unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "text", "{devices:?}");
        site.unpublish(&volume, "t").await.unwrap();
        site.unstage(&volume).await.unwrap();
        assert_eq!(links(&site), 0, "{devices:?}");
        site.end().await;
    }
}

#[tokio::test]
async fn device_in_use_outlives_the_process() {
    for devices in kinds() {
        let set = |directory: &Path, settings: &mut csi_mock_driver::driver::Settings| {
            settings.capabilities = OFFER.parse().unwrap();
            settings.state_dir = Some(directory.join("state"));
        };
        let mut site = Site::start_with(devices, set).await;
        let volume = site.create("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        site.stage(&volume).await.unwrap();
        site.publish(&volume, "t").await.unwrap();
        fs::write(site.target("t").join("file"), "text").unwrap();
        let mut site = site.again_with(devices, |_| {}, set).await;
        let staging = site.staging(&volume);
        assert_eq!(
            site.health(&volume, Some(&staging)).await,
            Ok(vec![]),
            "{devices:?}"
        );
        assert_eq!(site.publish(&volume, "t").await, Ok(()));
        assert_eq!(fs::read_to_string(site.target("t").join("file")).unwrap(), "text");
        site.unpublish(&volume, "t").await.unwrap();
        site.unstage(&volume).await.unwrap();
        let directory = site.server.stop().await;
        nothing_is_left(directory.path());
    }
}
