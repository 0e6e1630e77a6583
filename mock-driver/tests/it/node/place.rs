//! Which node this is and where it stands: what the node says and what the array believes are the same.

use csi_mock_driver::array::{Array, NodeSettings, Pool, PoolName};

use super::*;

async fn told(site: &mut Site) -> v1::NodeGetInfoResponse {
    let told = site.node.node_get_info(v1::NodeGetInfoRequest {}).await;
    told.unwrap().into_inner()
}

#[tokio::test]
async fn where_the_flag_says_the_node_is_it_gets_its_volumes() {
    let mut site = Site::start_with(Choice::Emulated, |_, settings| {
        let pool = |zone: &str| Pool {
            name: PoolName::from(zone),
            segments: [("zone", zone)].into_iter().collect(),
            capacity: Pool::DEFAULT_CAPACITY,
        };
        settings.array.pools = vec![pool("zone-0"), pool("zone-1")];
        // Its turn would put the first node into the first zone.
        settings.node.topology = [("Zone".to_owned(), "zone-1".to_owned())].into();
    })
    .await;
    let place = told(&mut site).await.accessible_topology.expect("a place");
    assert_eq!(place.segments, mk_map(&[("zone", "zone-1")]));
    let request = v1::CreateVolumeRequest {
        accessibility_requirements: Some(v1::TopologyRequirement {
            requisite: vec![place.clone()],
            preferred: vec![place],
        }),
        volume_capabilities: vec![mount(Mode::SingleNodeWriter)],
        ..mk_create("a")
    };
    let made = site.controller.create_volume(request).await.unwrap().into_inner();
    let publish = v1::ControllerPublishVolumeRequest {
        volume_capability: Some(mount(Mode::SingleNodeWriter)),
        ..mk_publish(&made.volume.unwrap().volume_id, HERE)
    };
    site.controller.controller_publish_volume(publish).await.unwrap();

    let elsewhere = NodeSettings {
        segments: Some([("zone", "zone-0")].into_iter().collect()),
        ..NodeSettings::default()
    };
    let change = |array: &mut Array| Ok(array.set_node(HERE, elsewhere));
    site.server.driver().store().change(change).await.unwrap();
    let place = told(&mut site).await.accessible_topology.expect("a place");
    assert_eq!(
        place.segments,
        mk_map(&[("zone", "zone-0")]),
        "what was set later holds"
    );
    site.end().await;
}

#[tokio::test]
async fn an_id_given_at_run_time_and_what_is_attached_to_it_outlive_the_driver() {
    const NOW: &str = "another-id";
    for devices in kinds() {
        let mut site = Site::start_with(devices, |directory, settings| {
            settings.state_dir = Some(directory.join("state"));
        })
        .await;
        let driver = site.server.driver();
        let rename = |array: &mut Array| array.change_node_id(HERE, NOW);
        driver.store().change(rename).await.unwrap();
        driver.node().unwrap().tell(|told| told.id = NOW.to_owned());
        let volume = site.create("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        let request = v1::ControllerPublishVolumeRequest {
            volume_capability: Some(volume.capability.clone()),
            ..mk_publish(&volume.id, NOW)
        };
        let attached = site.controller.controller_publish_volume(request).await.unwrap();
        let volume = Volume {
            context: attached.into_inner().publish_context,
            ..volume
        };
        site.stage(&volume).await.unwrap();
        site.publish(&volume, "t").await.unwrap();
        fs::write(site.target("t").join("file"), "text").unwrap();

        let mut site = site.again(devices, |_| {}).await;
        assert_eq!(told(&mut site).await.node_id, NOW, "{devices:?}");
        let links = site.server.path("state/media/devices").join(HERE);
        let has_devices = || fs::read_dir(&links).unwrap().next().is_some();
        assert!(has_devices(), "{devices:?}: what is attached has its device");
        assert_eq!(site.stage(&volume).await, Ok(()));
        assert_eq!(site.publish(&volume, "t").await, Ok(()));
        assert_eq!(fs::read_to_string(site.target("t").join("file")).unwrap(), "text");
        site.unpublish(&volume, "t").await.unwrap();
        site.unstage(&volume).await.unwrap();
        let detach = mk_unpublish(&volume.id, NOW);
        site.controller.controller_unpublish_volume(detach).await.unwrap();
        assert!(!has_devices(), "{devices:?}");
        nothing_is_left(&site.server.path(""));
    }
}
