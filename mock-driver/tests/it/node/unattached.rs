//! A driver without ControllerPublishVolume: only the node knows the volumes in use.

use super::*;

const OFFER: &str = "-PUBLISH_UNPUBLISH_VOLUME,-LIST_VOLUMES_PUBLISHED_NODES,-PUBLISH_READONLY";

fn links(env: &TestEnv) -> usize {
    fs::read_dir(env.server.media().join("devices").join(HERE)).map_or(0, Iterator::count)
}

#[tokio::test]
async fn volume_in_use_is_not_deleted_and_its_device_is_detached_with_the_last_path() {
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            let mut env = TestEnv::start_with(devices, |_, settings| {
                settings.capabilities = OFFER.parse().unwrap();
            })
            .await;
            let volume = env.create("a", 64 * MIB, capability).await;
            env.stage(&volume).await.unwrap();
            env.publish(&volume, "t").await.unwrap();
            let delete = v1::DeleteVolumeRequest {
                volume_id: volume.id.clone(),
                ..Default::default()
            };
            let used = code(env.controller.delete_volume(delete.clone()).await);
            assert_eq!(used, Err(Code::FailedPrecondition), "published");
            env.unpublish(&volume, "t").await.unwrap();
            let used = code(env.controller.delete_volume(delete.clone()).await);
            assert_eq!(used, Err(Code::FailedPrecondition), "staged");
            assert!(env.server.disk(&volume.id).exists() && links(&env) > 0);
            for _ in 0..2 {
                env.unstage(&volume).await.unwrap();
                assert_eq!(links(&env), 0, "{devices:?}");
            }
            for _ in 0..2 {
                env.controller.delete_volume(delete.clone()).await.unwrap();
            }
            env.end().await;
        }
    }
}

#[tokio::test]
async fn attach_is_optional_as_in_csi_driver_host_path() {
    for devices in kinds() {
        let mut env =
            TestEnv::start_with(devices, |_, settings| settings.config.attach_optional = true).await;
        let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        env.stage(&volume).await.unwrap();
        env.publish(&volume, "t").await.unwrap();

        // attachRequired becomes false: the VolumeAttachment is deleted although a pod uses the volume.
        env.detach(&volume).await;
        let file = env.target("t").join("file");
        fs::write(&file, "text").unwrap();
        env.unpublish(&volume, "t").await.unwrap();
        env.unstage(&volume).await.unwrap();
        assert_eq!(links(&env), 0, "{devices:?}");

        // The next pod's volume is published without ControllerPublishVolume.
        let volume = Volume {
            context: mk_map(&[]),
            ..volume
        };
        env.stage(&volume).await.unwrap();
        env.publish(&volume, "t").await.unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "text", "{devices:?}");
        env.unpublish(&volume, "t").await.unwrap();
        env.unstage(&volume).await.unwrap();
        assert_eq!(links(&env), 0, "{devices:?}");
        env.end().await;
    }
}

#[tokio::test]
async fn device_in_use_outlives_the_process() {
    for devices in kinds() {
        let set = |directory: &Path, settings: &mut csi_mock_driver::driver::Settings| {
            settings.capabilities = OFFER.parse().unwrap();
            settings.state_dir = Some(directory.join("state"));
        };
        let mut env = TestEnv::start_with(devices, set).await;
        let volume = env.create("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        env.stage(&volume).await.unwrap();
        env.publish(&volume, "t").await.unwrap();
        fs::write(env.target("t").join("file"), "text").unwrap();
        let mut env = env.again_with(devices, |_| {}, set).await;
        let staging = env.staging(&volume);
        assert_eq!(
            env.health(&volume, Some(&staging)).await,
            Ok(vec![]),
            "{devices:?}"
        );
        assert_eq!(env.publish(&volume, "t").await, Ok(()));
        assert_eq!(fs::read_to_string(env.target("t").join("file")).unwrap(), "text");
        env.unpublish(&volume, "t").await.unwrap();
        env.unstage(&volume).await.unwrap();
        let directory = env.server.stop().await;
        assert_nothing_left(directory.path());
    }
}
