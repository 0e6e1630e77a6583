use std::time::Duration;

use super::*;

fn mk_settings() -> Settings {
    Settings {
        nodes: Settings::numbered_nodes(2),
        ..Settings::default()
    }
}

fn mk_hold() -> PublishParams {
    PublishParams {
        capability: Capability {
            access: Access::Block,
            mode: AccessMode::SingleNodeWriter,
        },
        readonly: false,
    }
}

fn mk_wanted(name: &str) -> CreateVolumeParams {
    CreateVolumeParams {
        name: name.to_owned(),
        size: SizeRange::default(),
        capabilities: vec![mk_hold().capability],
        ..CreateVolumeParams::default()
    }
}

#[test]
fn ids_depend_on_the_array_and_on_what_it_made_before() {
    let make = |id_seed| {
        let mut array = Array::new(mk_settings(), id_seed);
        let first = array.create_volume(&mk_wanted("a")).unwrap().reply.id.clone();
        array.delete_volume(first.as_str()).unwrap();
        (
            first,
            array.create_volume(&mk_wanted("a")).unwrap().reply.id.clone(),
        )
    };
    let (first, second) = make(1);
    assert_ne!(first, second);
    assert_eq!(
        make(1),
        (first.clone(), second),
        "the same array makes the same ids"
    );
    assert_ne!(make(2).0, first, "another array makes others");
}

#[test]
fn premade_volumes_are_made_once() {
    let mut array = Array::new(mk_settings(), 1);
    array.add_initial_volumes(3);
    array.delete_volume("vol-1").unwrap();
    let mut array = Array::from_image(mk_settings(), array.image());
    array.add_initial_volumes(5);
    let ids: Vec<_> = array.volumes().map(|volume| volume.spec.id.as_str()).collect();
    assert_eq!(ids, ["vol-0", "vol-2", "vol-3", "vol-4"]);
    array.add_initial_volumes(2);
    assert_eq!(array.volumes().count(), 4, "fewer asked for takes none away");
}

#[test]
fn lowered_limit_refuses_new_and_keeps_existing_attachments() {
    let mut array = Array::new(mk_settings(), 1);
    array.add_initial_volumes(3);
    array.publish("vol-0", "node-0", &mk_hold()).unwrap();
    array.publish("vol-1", "node-0", &mk_hold()).unwrap();
    let mut array = Array::from_image(
        Settings {
            attach_limit: Some(1),
            ..mk_settings()
        },
        array.image(),
    );
    assert_eq!(array.publish("vol-0", "node-0", &mk_hold()).unwrap().rows, []);
    let refused = array.publish("vol-2", "node-0", &mk_hold()).unwrap_err();
    assert!(matches!(refused, Error::NodeFull { limit: 1, .. }), "{refused}");
}

#[test]
fn serial_belongs_to_the_volume_whichever_array_has_it() {
    let serial = |id_seed| {
        let mut array = Array::new(mk_settings(), id_seed);
        array.add_initial_volumes(1);
        let attachment = array.publish("vol-0", "node-0", &mk_hold()).unwrap().reply;
        attachment.publish_context::<BTreeMap<_, _>>("vol-0")["serial"].clone()
    };
    assert_eq!(serial(1), serial(2));
}

#[test]
fn a_hundred_thousand_volumes_are_listed_without_looking_at_those_before() {
    // Each page costs its own entries: with a cost that grew by the pages before, this would take
    // minutes and not a moment.
    let mut array = Array::new(
        Settings {
            page_limit: Some(10),
            ..mk_settings()
        },
        1,
    );
    array.add_initial_volumes(100_000);
    let (mut count, mut token) = (0, None);
    loop {
        let page = array.list(0, token.as_deref()).unwrap();
        count += page.entries.len();
        token = page.next_token;
        if token.is_none() {
            break;
        }
    }
    assert_eq!(count, 100_000);
}

/// Two zones with a pool each, and no node.
fn mk_zones() -> Settings {
    let pool = |zone: &str| Pool {
        name: PoolName::from(zone),
        segments: [("zone", zone)].into_iter().collect(),
        capacity: Pool::DEFAULT_CAPACITY,
    };
    Settings {
        pools: vec![pool("zone-0"), pool("zone-1")],
        ..Settings::default()
    }
}

fn zone_of(array: &Array, node: &str) -> String {
    array.node(node).unwrap().segments.to_string()
}

#[test]
fn nodes_stay_in_the_zone_they_joined_in() {
    let mut array = Array::new(mk_zones(), 1);
    for node in ["node-b", "node-a"] {
        array.set_node(node, NodeSettings::default());
    }
    let zones = |array: &Array| ["node-a", "node-b"].map(|node| zone_of(array, node));
    let joined = ["{zone=zone-1}".to_owned(), "{zone=zone-0}".to_owned()];
    assert_eq!(zones(&array), joined);
    let mut again = Array::from_image(mk_zones(), array.image());
    assert_eq!(zones(&again), joined, "after a restart");
    assert_eq!(zones(&array.clone()), joined, "in a frozen listing");

    // A node that joins again keeps its zone, although another joined in between.
    again.remove_node("node-b").unwrap();
    again.set_node("node-c", NodeSettings::default());
    let joined_again = NodeSettings {
        registered: Some(true),
        ..NodeSettings::default()
    };
    again.set_node("node-b", joined_again);
    assert_eq!(zones(&again), joined, "after it was out of the register");

    // A configured topology takes precedence, and so does that of a pool if no pool has the assigned one.
    let node_topology = [(NodeId::from("node-b"), [("zone", "zone-1")].into_iter().collect())];
    let info = Settings {
        node_topology: node_topology.into(),
        ..mk_zones()
    };
    assert_eq!(
        zone_of(&Array::from_image(info, array.image()), "node-b"),
        "{zone=zone-1}"
    );
    let mut moved = mk_zones();
    moved.pools.truncate(1);
    moved.pools[0].segments = [("zone", "other")].into_iter().collect();
    assert_eq!(
        zone_of(&Array::from_image(moved, array.image()), "node-a"),
        "{zone=other}"
    );
}

#[test]
fn nodes_of_a_fixture_without_assigned_topology_keep_that_of_the_first_start() {
    let mut array = Array::new(mk_zones(), 1);
    for node in ["node-a", "node-c"] {
        array.set_node(node, NodeSettings::default());
    }
    let mut old = serde_json::to_value(array.image()).unwrap();
    for (_, node) in old["nodes"].as_object_mut().unwrap() {
        let node = node.as_object_mut().unwrap();
        assert!(node.remove("assigned_topology").is_some());
    }
    let mut array = Array::from_image(mk_zones(), serde_json::from_value(old).unwrap());
    let zones = |array: &Array| ["node-a", "node-c"].map(|node| zone_of(array, node));
    let found = zones(&array);
    array.set_node("node-b", NodeSettings::default());
    assert_eq!(zones(&Array::from_image(mk_zones(), array.image())), found);
}

#[test]
fn current_node_id_is_found_by_every_former_one() {
    let mut array = Array::new(mk_settings(), 1);
    for (from, to) in [("node-0", "n1"), ("n1", "n2"), ("n2", "n3")] {
        array.change_node_id(from, to).unwrap();
    }
    for id in ["node-0", "n1", "n2", "n3"] {
        assert_eq!(array.current_id(id), "n3");
    }
    array.change_node_id("n3", "node-0").unwrap();
    assert_eq!(array.current_id("n1"), "node-0", "back to the first one");
    assert_eq!(array.current_id("node-1"), "node-1");
    assert_eq!(array.current_id("unknown"), "unknown");
}

#[test]
fn errors_list_five_pools_parameters_or_segments_and_a_count() {
    let names = || (0..800).map(|number| format!("n{number:03}"));
    let pools = names().map(|name| Pool {
        name: PoolName::from(name.as_str()),
        segments: names().map(|key| (key, "x")).collect(),
        capacity: Pool::DEFAULT_CAPACITY,
    });
    let mut array = Array::new(
        Settings {
            pools: pools.collect(),
            node_topology: BTreeMap::from([(NodeId::from("node-0"), [("zone", "x")].into_iter().collect())]),
            qos: QosRule::new(names().map(|name| (name, Values::Any))),
            ..mk_settings()
        },
        1,
    );
    array.add_initial_volumes(1);
    let in_no_pool = CreateVolumeParams {
        parameters: BTreeMap::from([("pool".to_owned(), "x".to_owned())]),
        ..mk_wanted("a")
    };
    let errors = [
        array.pool("x").unwrap_err(),
        array.create_volume(&in_no_pool).unwrap_err(),
        array
            .modify_volume("vol-0", &BTreeMap::from([("x".to_owned(), "1".to_owned())]))
            .unwrap_err(),
        array.publish("vol-0", "node-0", &mk_hold()).unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(
            text.contains("n004") && !text.contains("n005") && text.contains(" and 795 more"),
            "{text}"
        );
    }
    let choices = Values::OneOf(names().collect()).to_string();
    assert!(choices.ends_with("n004 and 795 more"), "{choices}");
}

#[test]
fn image_that_contradicts_itself_is_refused() {
    let mut array = Array::new(mk_settings(), 1);
    array.create_volume(&mk_wanted("a")).unwrap();
    array.create_volume(&mk_wanted("b")).unwrap();
    let volume = array.volumes().next().unwrap().spec.id.to_string();
    array.publish(&volume, "node-0", &mk_hold()).unwrap();
    let group = CreateGroupParams {
        name: "g".to_owned(),
        sources: [volume.clone()].into(),
        parameters: BTreeMap::new(),
    };
    let ids = array.group_ids(&group);
    let now = jiff::Timestamp::UNIX_EPOCH;
    array
        .create_group(
            &group,
            ids,
            Timing {
                now,
                delay: Duration::ZERO,
            },
        )
        .unwrap();
    array.image().check(&mk_settings()).unwrap();
    type Change = fn(&mut Image);
    let changes: [(&str, Change); 2] = [
        ("attachments", |image| {
            let held = image
                .volumes
                .iter_mut()
                .find(|volume| !volume.attachments.is_empty())
                .unwrap();
            let attachment = held.attachments.values().next().unwrap().clone();
            held.attachments.insert("node-1".into(), attachment);
        }),
        ("snapshots", |image| image.groups.clear()),
    ];
    for (field, change) in changes {
        let mut image = array.image();
        change(&mut image);
        let refused = image.check(&mk_settings()).unwrap_err().to_string();
        assert!(refused.contains(field), "{field}: {refused}");
    }
}
