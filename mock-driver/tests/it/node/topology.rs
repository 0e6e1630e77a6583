//! Id and topology of the node in NodeGetInfo and in the array.

use csi_mock_driver::array::{Array, NodeSettings, Pool, PoolName};

use super::*;

async fn node_info(env: &mut TestEnv) -> v1::NodeGetInfoResponse {
    let info = env.node.node_get_info(v1::NodeGetInfoRequest {}).await;
    info.unwrap().into_inner()
}

#[tokio::test]
async fn volumes_with_the_topology_of_the_flag_are_accessible_from_the_node() {
    let mut env = TestEnv::start_with(Choice::Emulated, |_, settings| {
        let pool = |zone: &str| Pool {
            name: PoolName::from(zone),
            segments: [("zone", zone)].into_iter().collect(),
            capacity: Pool::DEFAULT_CAPACITY,
        };
        settings.array.pools = vec![pool("zone-0"), pool("zone-1")];
        // By default, the first node is in the first zone.
        settings.node.topology = [("Zone".to_owned(), "zone-1".to_owned())].into();
    })
    .await;
    let topology = node_info(&mut env).await.accessible_topology.expect("a topology");
    assert_eq!(topology.segments, mk_map(&[("zone", "zone-1")]));
    let request = v1::CreateVolumeRequest {
        accessibility_requirements: Some(v1::TopologyRequirement {
            requisite: vec![topology.clone()],
            preferred: vec![topology],
        }),
        volume_capabilities: vec![mount(Mode::SingleNodeWriter)],
        ..mk_create("a")
    };
    let made = env.controller.create_volume(request).await.unwrap().into_inner();
    let publish = v1::ControllerPublishVolumeRequest {
        volume_capability: Some(mount(Mode::SingleNodeWriter)),
        ..mk_publish(&made.volume.unwrap().volume_id, HERE)
    };
    env.controller.controller_publish_volume(publish).await.unwrap();

    let elsewhere = NodeSettings {
        segments: Some([("zone", "zone-0")].into_iter().collect()),
        ..NodeSettings::default()
    };
    let change = |array: &mut Array| Ok(array.set_node(HERE, elsewhere));
    env.server.driver().store.change(change).await.unwrap();
    let topology = node_info(&mut env).await.accessible_topology.expect("a topology");
    assert_eq!(
        topology.segments,
        mk_map(&[("zone", "zone-0")]),
        "a later change takes precedence"
    );
    env.end().await;
}

#[tokio::test]
async fn node_id_set_at_run_time_and_its_attachments_survive_a_restart() {
    const NOW: &str = "another-id";
    for devices in kinds() {
        let mut env = TestEnv::start_with(devices, |directory, settings| {
            settings.state_dir = Some(directory.join("state"));
        })
        .await;
        let driver = env.server.driver();
        let rename = |array: &mut Array| array.change_node_id(HERE, NOW);
        driver.store.change(rename).await.unwrap();
        driver
            .node
            .as_ref()
            .unwrap()
            .set_info(|info| info.id = NOW.to_owned());
        let volume = env.create("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        let request = v1::ControllerPublishVolumeRequest {
            volume_capability: Some(volume.capability.clone()),
            ..mk_publish(&volume.id, NOW)
        };
        let attached = env.controller.controller_publish_volume(request).await.unwrap();
        let volume = Volume {
            context: attached.into_inner().publish_context,
            ..volume
        };
        env.stage(&volume).await.unwrap();
        env.publish(&volume, "t").await.unwrap();
        fs::write(env.target("t").join("file"), "text").unwrap();

        let mut env = env.again(devices, |_| {}).await;
        assert_eq!(node_info(&mut env).await.node_id, NOW, "{devices:?}");
        let links = env.server.path("state/media/devices").join(HERE);
        let has_devices = || fs::read_dir(&links).unwrap().next().is_some();
        assert!(has_devices(), "{devices:?}: an attached volume has its device");
        assert_eq!(env.stage(&volume).await, Ok(()));
        assert_eq!(env.publish(&volume, "t").await, Ok(()));
        assert_eq!(fs::read_to_string(env.target("t").join("file")).unwrap(), "text");
        env.unpublish(&volume, "t").await.unwrap();
        env.unstage(&volume).await.unwrap();
        let detach = mk_unpublish(&volume.id, NOW);
        env.controller.controller_unpublish_volume(detach).await.unwrap();
        assert!(!has_devices(), "{devices:?}");
        assert_nothing_left(&env.server.path(""));
    }
}
