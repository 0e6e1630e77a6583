//! One array process and several node processes, which share the media directory.

use csi_mock_driver::admin_api::Endpoint;
use csi_mock_driver::admin_api::client::Client;
use csi_mock_driver::admin_api::resource::{NodeChange, NodeNew};
use csi_mock_driver::array::{Array, Pool, PoolName, StorageHealthIssue, StorageSeverity};
use csi_mock_driver::driver::mode::Mode as Services;
use csi_mock_driver::driver::{Driver, OpenError, Settings};
use csi_mock_driver::store;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::Notify;

use super::*;
use crate::server::DEADLINE;

/// A node process.
struct Member {
    env: TestEnv,
    name: &'static str,
}

async fn array(shared: &TempDir) -> Server {
    array_with(shared, |_| {}).await
}

async fn array_with(shared: &TempDir, change: impl FnOnce(&mut Settings)) -> Server {
    let media = shared.path().join("media");
    let admin = shared.path().join("admin.sock");
    Server::start_with_admin(&admin, |_, settings| {
        settings.mode = Services::Controller;
        settings.media_dir = Some(media);
        change(settings);
    })
    .await
}

async fn member(shared: &TempDir, name: &'static str, devices: Choice) -> Member {
    member_at(shared, name, devices, &[]).await
}

async fn member_at(
    shared: &TempDir,
    name: &'static str,
    devices: Choice,
    topology: &[(&str, &str)],
) -> Member {
    let directory = tempfile::tempdir().unwrap();
    member_in(directory, shared, name, |settings| {
        settings.node.devices = devices;
        settings.node.topology = mk_map(topology).into_iter().collect();
    })
    .await
}

async fn member_in(
    directory: TempDir,
    shared: &TempDir,
    name: &'static str,
    change: impl FnOnce(&mut Settings),
) -> Member {
    let media = shared.path().join("media");
    let admin = format!("unix://{}", shared.path().join("admin.sock").display());
    let server = Server::start_in(directory, |_, settings| {
        settings.mode = Services::Node;
        settings.array_endpoint = admin.parse().unwrap();
        settings.node_id = Some(name.to_owned());
        settings.media_dir = Some(media);
        change(settings);
    })
    .await;
    for directory in ["staging", "targets"] {
        fs::create_dir_all(server.path(directory)).unwrap();
    }
    Member {
        env: TestEnv {
            controller: server.controller().await,
            node: server.node().await,
            server,
        },
        name,
    }
}

async fn attach(controller: &mut ControllerClient<Channel>, volume: &Volume, node: &str) -> Volume {
    let request = v1::ControllerPublishVolumeRequest {
        volume_capability: Some(volume.capability.clone()),
        ..mk_publish(&volume.id, node)
    };
    let attached = async {
        loop {
            // The node registers itself; before that the array does not know it.
            match controller.controller_publish_volume(request.clone()).await {
                Ok(response) => return response.into_inner().publish_context,
                Err(status) => assert_eq!(status.code(), Code::NotFound, "{status}"),
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    Volume {
        context: tokio::time::timeout(DEADLINE, attached)
            .await
            .expect("the node must register"),
        ..volume.clone()
    }
}

#[tokio::test]
async fn node_b_reads_the_data_of_node_a_after_detach_and_attach() {
    for devices in kinds() {
        let shared = tempfile::tempdir().unwrap();
        let array = array(&shared).await;
        let mut controller = array.controller().await;
        let mut members = [
            member(&shared, "node-a", devices).await,
            member(&shared, "node-b", devices).await,
        ];
        let request = v1::CreateVolumeRequest {
            capacity_range: Some(v1::CapacityRange {
                required_bytes: 64 * MIB,
                limit_bytes: 0,
            }),
            ..mk_create("a")
        };
        let made = controller
            .create_volume(request)
            .await
            .unwrap()
            .into_inner()
            .volume
            .unwrap();
        let volume = Volume {
            id: made.volume_id,
            capability: mk_mount("", Mode::SingleNodeWriter),
            context: mk_map(&[]),
        };
        for (number, member) in members.iter_mut().enumerate() {
            let env = &mut member.env;
            assert_eq!(
                env.stage(&volume).await,
                Err(Code::FailedPrecondition),
                "not attached here"
            );
            let volume = attach(&mut controller, &volume, member.name).await;
            env.stage(&volume).await.unwrap();
            env.publish(&volume, "t").await.unwrap();
            let file = env.target("t").join("file");
            if number == 0 {
                fs::write(&file, "of node a").unwrap();
            } else {
                assert_eq!(fs::read_to_string(&file).unwrap(), "of node a", "{devices:?}");
            }
            env.unpublish(&volume, "t").await.unwrap();
            env.unstage(&volume).await.unwrap();
            let detach = mk_unpublish(&volume.id, member.name);
            controller.controller_unpublish_volume(detach).await.unwrap();
        }
        // The devices are detached without a call to the nodes.
        for member in members {
            let links = shared.path().join("media/devices").join(member.name);
            let gone = async {
                while fs::read_dir(&links).is_ok_and(|mut links| links.next().is_some()) {
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
            };
            tokio::time::timeout(DEADLINE, gone)
                .await
                .expect("the device must be detached");
            member.env.server.stop().await;
        }
        array.stop().await;
        assert_nothing_left(shared.path());
    }
}

#[tokio::test]
async fn first_node_get_info_returns_the_topology_assigned_by_the_array() {
    let shared = tempfile::tempdir().unwrap();
    let admin = shared.path().join("admin.sock");
    let zone = |number: usize| [("mock.csi.local/zone", format!("zone-{number}"))].into_iter();
    let array = Server::start_with_admin(&admin, |_, settings| {
        settings.mode = Services::Controller;
        settings.array.nodes = Vec::new();
        settings.array.pools = (0..2)
            .map(|number| Pool {
                name: PoolName::from(format!("pool-{number}")),
                segments: zone(number).collect(),
                capacity: Pool::DEFAULT_CAPACITY,
            })
            .collect();
    })
    .await;
    for (number, name) in ["node-a", "node-b"].into_iter().enumerate() {
        let mut member = member(&shared, name, Choice::Emulated).await;
        let info = member.env.node.node_get_info(v1::NodeGetInfoRequest {}).await;
        let info = info.unwrap().into_inner();
        let segments = info.accessible_topology.expect("a topology").segments;
        assert_eq!(
            segments["mock.csi.local/zone"],
            format!("zone-{number}"),
            "{name}"
        );
        member.env.server.stop().await;
    }
    array.stop().await;
}

#[tokio::test]
async fn processes_serve_their_services_and_node_needs_an_array() {
    let shared = tempfile::tempdir().unwrap();
    let array = array(&shared).await;
    let mut member = member(&shared, "node-a", Choice::Emulated).await;
    let mut node = array.node().await;
    let refused = node.node_get_info(v1::NodeGetInfoRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    let refused = member
        .env
        .controller
        .list_volumes(v1::ListVolumesRequest::default())
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);

    let volume = Volume {
        id: "no-such-volume".to_owned(),
        capability: mk_mount("", Mode::SingleNodeWriter),
        context: mk_map(&[]),
    };
    assert_eq!(member.env.stage(&volume).await, Err(Code::NotFound));
    let issue = StorageHealthIssue {
        status: StorageSeverity::Degraded,
        reason: "Cable".to_owned(),
        message: String::new(),
        capability: None,
    };
    let hurt = |all: &mut Array| all.set_storage_health(None, vec![issue]);
    array.driver().store.change(hurt).await.unwrap();
    let health = member
        .env
        .node
        .node_get_storage_health(v1::NodeGetStorageHealthRequest::default())
        .await;
    assert_eq!(
        health.unwrap().into_inner().backend_health[0].reason,
        "Cable",
        "the array's services"
    );
    array.stop().await;
    assert_eq!(member.env.stage(&volume).await, Err(Code::Unavailable));
    let health = member
        .env
        .node
        .node_get_storage_health(v1::NodeGetStorageHealthRequest::default())
        .await;
    assert_eq!(
        health.unwrap().into_inner().backend_health[0].reason,
        "ArrayUnreachable"
    );
    member.env.server.stop().await;
}

#[tokio::test]
async fn removed_node_does_not_rejoin_and_renamed_node_takes_new_id() {
    let shared = tempfile::tempdir().unwrap();
    let array = array(&shared).await;
    let admin = format!("unix://{}", shared.path().join("admin.sock").display());
    let client = Client::new(admin.parse().unwrap());
    let mut member = member(&shared, "node-a", Choice::Emulated).await;
    let info = async |node: &mut NodeClient<Channel>| {
        let info = node.node_get_info(v1::NodeGetInfoRequest {}).await;
        info.unwrap().into_inner().node_id
    };
    assert_eq!(info(&mut member.env.node).await, "node-a");

    // It keeps retrying, and the array keeps refusing it.
    client.remove_node("node-a").await.unwrap();
    assert_eq!(info(&mut member.env.node).await, "node-a");
    let out = client.node("node-a").await.unwrap();
    assert!(!out.registered && out.volumes.is_empty(), "{out:?}");
    let listed = client.nodes(&Default::default()).await.unwrap();
    assert!(listed.items.iter().all(|node| node.id != "node-a"), "{listed:?}");

    let back = NodeChange {
        registered: Some(true),
        ..NodeChange::default()
    };
    assert!(client.change_node("node-a", &back).await.unwrap().registered);
    let other = NodeChange {
        id: Some("node-z".to_owned()),
        ..NodeChange::default()
    };
    client.change_node("node-a", &other).await.unwrap();
    assert_eq!(info(&mut member.env.node).await, "node-z");
    let known = |id: &'static str| array.driver().store.peek(move |all| all.node(id).is_ok());
    assert!(known("node-z") && !known("node-a"), "one machine, one node");
    let old = client.node("node-a").await.unwrap();
    assert_eq!(
        (old.registered, old.renamed_to.as_deref()),
        (false, Some("node-z"))
    );

    // If registered again, the old id is a separate node.
    let new = NodeNew {
        id: "node-a".to_owned(),
        limit: None,
        topology: None,
    };
    let new = client.register_node(&new).await.unwrap();
    assert!(new.registered && new.renamed_to.is_none(), "{new:?}");
    member.env.server.stop().await;
    array.stop().await;
}

#[tokio::test]
async fn node_reports_topology_at_start_and_keeps_later_settings() {
    const KEY: &str = "mock.csi.local/zone";
    let shared = tempfile::tempdir().unwrap();
    let array = array(&shared).await;
    let admin = format!("unix://{}", shared.path().join("admin.sock").display());
    let client = Client::new(admin.parse().unwrap());
    let info = async |member: &mut Member| {
        let info = member.env.node.node_get_info(v1::NodeGetInfoRequest {}).await;
        info.unwrap().into_inner().accessible_topology.unwrap().segments
    };
    let start = async |zone: &str| {
        member_at(
            &shared,
            "node-a",
            Choice::Emulated,
            &[("mock.csi.local/Zone", zone)],
        )
        .await
    };
    for zone in ["a", "b"] {
        let mut member = start(zone).await;
        assert_eq!(info(&mut member).await, mk_map(&[(KEY, zone)]));
        assert_eq!(client.node("node-a").await.unwrap().topology[KEY], zone);
        member.env.server.stop().await;
    }

    let mut member = start("b").await;
    assert_eq!(info(&mut member).await, mk_map(&[(KEY, "b")]));
    let moved = NodeChange {
        topology: Some([(KEY.to_owned(), "c".to_owned())].into()),
        ..NodeChange::default()
    };
    client.change_node("node-a", &moved).await.unwrap();
    for _ in 0..2 {
        assert_eq!(info(&mut member).await, mk_map(&[(KEY, "c")]), "not undone");
    }
    client.remove_node("node-a").await.unwrap();
    member.env.server.stop().await;

    let mut member = start("d").await;
    assert_eq!(info(&mut member).await, mk_map(&[(KEY, "d")]));
    assert!(
        !client.node("node-a").await.unwrap().registered,
        "removed, whatever its topology"
    );
    member.env.server.stop().await;
    array.stop().await;
}

/// A fake array process that responds 404 to all requests except those for `volume`, to which it never responds.
async fn respond_except_to(volume: &str, requests: UnixListener, seen: &Notify) {
    let body = r#"{"code":"NOT_FOUND","message":"not here"}"#;
    let head = "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\nconnection: close";
    let response = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut open = Vec::new();
    loop {
        let (mut stream, _) = requests.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.windows(4).any(|end| end == b"\r\n\r\n") {
            assert!(stream.read_buf(&mut request).await.unwrap() > 0);
        }
        if String::from_utf8_lossy(&request).contains(&format!("/volumes/{volume}")) {
            open.push(stream);
            seen.notify_one();
        } else {
            stream.write_all(response.as_bytes()).await.ok();
        }
    }
}

#[tokio::test]
async fn volume_without_response_times_out_and_delays_no_other() {
    let shared = tempfile::tempdir().unwrap();
    let requests = UnixListener::bind(shared.path().join("admin.sock")).unwrap();
    let seen = Notify::new();
    let calls = async {
        let member = member(&shared, "node-a", Choice::Emulated).await;
        let (mut first, mut second) = (member.env.node.clone(), member.env.server.node().await);
        let stage = |volume: &str| v1::NodeStageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: text(&member.env.server.path("staging")),
            volume_capability: Some(mk_mount("", Mode::SingleNodeWriter)),
            ..Default::default()
        };
        let mut silent = std::pin::pin!(first.node_stage_volume(stage("silent")));
        tokio::select! {
            biased;
            early = &mut silent => panic!("{early:?}"),
            () = seen.notified() => {}
        }
        tokio::select! {
            biased;
            early = &mut silent => panic!("{early:?}"),
            other = second.node_stage_volume(stage("other")) => {
                assert_eq!(other.unwrap_err().code(), Code::NotFound);
            }
        }
        let refused = silent.await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        member.env.server.stop().await;
    };
    let served = respond_except_to("silent", requests, &seen);
    tokio::select! {
        biased;
        outcome = tokio::time::timeout(DEADLINE, calls) => outcome.expect("no call may hang"),
        () = served => {}
    }
}

#[tokio::test]
async fn process_without_array_names_the_array_endpoint() {
    let shared = tempfile::tempdir().unwrap();
    let array = array(&shared).await;
    let endpoint: Endpoint = format!("unix://{}", shared.path().join("admin.sock").display())
        .parse()
        .unwrap();
    let requested = endpoint.clone();
    let (member, client) = Server::start_administered(|_, settings| {
        settings.mode = Services::Node;
        settings.array_endpoint = requested;
        settings.node_id = Some("node-a".to_owned());
        settings.node.devices = Choice::Emulated;
    })
    .await;
    for path in [
        "volumes",
        "volumes/vol-0",
        "nodes",
        "attachments",
        "snapshots",
        "group-snapshots",
        "pools",
        "storage",
    ] {
        let refused = client
            .text(&format!("/api/v1/{path}"))
            .await
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains(&format!("--array-endpoint={endpoint}")),
            "{path}: {refused}"
        );
    }
    client.info().await.unwrap();
    client.faults().await.unwrap();
    member.stop().await;
    array.stop().await;
}

const UNATTACHED: &str = "-PUBLISH_UNPUBLISH_VOLUME,-LIST_VOLUMES_PUBLISHED_NODES,-PUBLISH_READONLY";

/// A volume that is not attached.
async fn unattached(controller: &mut ControllerClient<Channel>, name: &str) -> Volume {
    let request = v1::CreateVolumeRequest {
        capacity_range: Some(v1::CapacityRange {
            required_bytes: 64 * MIB,
            limit_bytes: 0,
        }),
        ..mk_create(name)
    };
    let made = controller.create_volume(request).await.unwrap().into_inner();
    Volume {
        id: made.volume.unwrap().volume_id,
        capability: mk_mount("", Mode::SingleNodeWriter),
        context: mk_map(&[]),
    }
}

/// Number of a node's device links. Notes of detached devices stay until the kernel has freed these.
fn links(shared: &TempDir, node: &str) -> usize {
    let directory = shared.path().join("media/devices").join(node);
    let names = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name());
    names
        .filter(|name| !name.to_string_lossy().starts_with(".detached-"))
        .count()
}

#[tokio::test]
async fn volume_without_attachment_is_not_deleted_while_it_is_used() {
    for devices in kinds() {
        let shared = tempfile::tempdir().unwrap();
        let array = array_with(&shared, |settings| {
            settings.capabilities = UNATTACHED.parse().unwrap()
        })
        .await;
        let mut controller = array.controller().await;
        let [mut a, mut b] = [
            member_unattached(tempfile::tempdir().unwrap(), &shared, "node-a", devices).await,
            member_unattached(tempfile::tempdir().unwrap(), &shared, "node-b", devices).await,
        ];
        let volume = unattached(&mut controller, "a").await;
        let delete = v1::DeleteVolumeRequest {
            volume_id: volume.id.clone(),
            ..Default::default()
        };
        for (number, member) in [&mut a, &mut b].into_iter().enumerate() {
            let (env, name) = (&mut member.env, member.name);
            let case = format!("{devices:?} {name}");
            for _ in 0..2 {
                env.stage(&volume).await.unwrap();
                env.publish(&volume, "t").await.unwrap();
            }
            let file = env.target("t").join("file");
            if number == 0 {
                fs::write(&file, "of node a").unwrap();
            } else {
                assert_eq!(fs::read_to_string(&file).unwrap(), "of node a", "{case}");
            }
            let used = code(controller.delete_volume(delete.clone()).await);
            assert_eq!(used, Err(Code::FailedPrecondition), "{case}: published");
            env.unpublish(&volume, "t").await.unwrap();
            let used = code(controller.delete_volume(delete.clone()).await);
            assert_eq!(used, Err(Code::FailedPrecondition), "{case}: staged");
            assert!(links(&shared, name) > 0, "{case}");
            for _ in 0..2 {
                env.unstage(&volume).await.unwrap();
                assert_eq!(links(&shared, name), 0, "{case}: at once");
            }
        }
        for _ in 0..2 {
            controller.delete_volume(delete.clone()).await.unwrap();
        }
        for member in [a, b] {
            member.env.server.stop().await;
        }
        array.stop().await;
        assert_nothing_left(shared.path());
    }
}

async fn member_unattached(
    directory: TempDir,
    shared: &TempDir,
    name: &'static str,
    devices: Choice,
) -> Member {
    member_in(directory, shared, name, |settings| {
        settings.node.devices = devices;
        settings.capabilities = UNATTACHED.parse().unwrap();
    })
    .await
}

#[tokio::test]
async fn volume_that_a_node_cannot_use_is_detached() {
    let shared = tempfile::tempdir().unwrap();
    let array = array_with(&shared, |settings| {
        settings.capabilities = UNATTACHED.parse().unwrap()
    })
    .await;
    let mut controller = array.controller().await;
    let devices = Choice::Emulated;
    let [mut a, mut b] = [
        member_unattached(tempfile::tempdir().unwrap(), &shared, "node-a", devices).await,
        member_unattached(tempfile::tempdir().unwrap(), &shared, "node-b", devices).await,
    ];
    let volume = unattached(&mut controller, "a").await;
    let wrong = Volume {
        capability: mk_mount("no-such-type", Mode::SingleNodeWriter),
        ..volume.clone()
    };
    assert_eq!(a.env.stage(&wrong).await, Err(Code::FailedPrecondition));
    assert_eq!(links(&shared, "node-a"), 0);

    // It is a single-node volume.
    b.env.stage(&volume).await.unwrap();
    assert_eq!(a.env.stage(&volume).await, Err(Code::FailedPrecondition));
    assert_eq!(links(&shared, "node-a"), 0);
    // A graceful shutdown undoes the operations in memory.
    let directory = b.env.server.stop().await;
    a.env.stage(&volume).await.unwrap();
    a.env.unstage(&volume).await.unwrap();

    let gone = Volume {
        id: "no-such-volume".to_owned(),
        ..volume
    };
    assert_eq!(a.env.stage(&gone).await, Err(Code::NotFound));
    a.env.server.stop().await;
    array.stop().await;
    drop(directory);
}

#[tokio::test]
async fn resources_of_a_killed_node_are_released() {
    let shared = tempfile::tempdir().unwrap();
    let array = array_with(&shared, |settings| {
        settings.capabilities = UNATTACHED.parse().unwrap()
    })
    .await;
    let mut controller = array.controller().await;
    let keep = |directory: &Path| {
        let state = directory.join("state");
        move |settings: &mut Settings| {
            settings.state_dir = Some(state);
            settings.capabilities = UNATTACHED.parse().unwrap();
        }
    };
    let directory = tempfile::tempdir().unwrap();
    let set = keep(directory.path());
    let mut member = member_in(directory, &shared, "node-a", set).await;
    let (used, left) = (
        unattached(&mut controller, "used").await,
        unattached(&mut controller, "left").await,
    );
    for volume in [&used, &left] {
        member.env.stage(volume).await.unwrap();
    }
    let path = member.env.staging(&left);
    let directory = member.env.server.stop().await;
    // The state after a kill between the updates of the array's and the node's record.
    edit_records(directory.path(), |record| {
        (!record.contains(&text(&path))).then(|| record.to_owned())
    });
    let set = keep(directory.path());
    let member = member_in(directory, &shared, "node-a", set).await;
    let delete = |volume: &Volume| v1::DeleteVolumeRequest {
        volume_id: volume.id.clone(),
        ..Default::default()
    };
    let free = async {
        while controller.delete_volume(delete(&left)).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, free)
        .await
        .expect("must be released");
    let still = code(controller.delete_volume(delete(&used)).await);
    assert_eq!(still, Err(Code::FailedPrecondition), "a volume in use stays");
    let mut member = member;
    member.env.unstage(&used).await.unwrap();
    controller.delete_volume(delete(&used)).await.unwrap();
    member.env.server.stop().await;
    array.stop().await;
}

#[tokio::test]
async fn second_node_process_on_a_state_directory_is_refused() {
    let shared = tempfile::tempdir().unwrap();
    let array = array(&shared).await;
    let state = shared.path().join("node-state");
    let member = member_in(tempfile::tempdir().unwrap(), &shared, "node-a", |settings| {
        settings.state_dir = Some(state.clone());
    })
    .await;
    let second = Settings {
        mode: Services::Node,
        array_endpoint: format!("unix://{}", shared.path().join("admin.sock").display())
            .parse()
            .unwrap(),
        node_id: Some("node-a".to_owned()),
        media_dir: Some(shared.path().join("media")),
        state_dir: Some(state),
        ..Settings::default()
    };
    let refused = Driver::open(second.clone()).unwrap_err();
    let is_in_use = |error: &OpenError| matches!(error, OpenError::Store(store::OpenError::InUse { .. }));
    assert!(is_in_use(&refused), "{refused}");
    let serving = member.env.server.driver().clone();
    member.env.server.stop().await;
    // A program that another test starts has a copy of the lock until it begins to run.
    let opened = async {
        while let Err(error) = Driver::open(second.clone()) {
            assert!(is_in_use(&error), "{error}");
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, opened)
        .await
        .expect("free when the process has stopped");
    drop(serving);
    array.stop().await;
}

#[tokio::test]
async fn second_node_process_with_the_same_id_and_media_directory_is_refused() {
    let shared = tempfile::tempdir().unwrap();
    let array = array(&shared).await;
    let member = member(&shared, "node-a", Choice::Emulated).await;
    let mut second = Settings {
        mode: Services::Node,
        array_endpoint: "unix:///other-array/admin.sock".parse().unwrap(),
        node_id: Some("node-a".to_owned()),
        media_dir: Some(shared.path().join("media")),
        ..Settings::default()
    };
    second.node.devices = Choice::Emulated;
    let refused = Driver::open(second.clone()).unwrap_err();
    assert!(refused.is_in_use(), "{refused}");
    let text = refused.to_string();
    assert!(
        text.contains("devices/node-a") && text.contains("--media-dir"),
        "{text}"
    );

    second.node_id = Some("node-b".to_owned());
    Driver::open(second.clone()).unwrap();
    second.node_id = Some("node-a".to_owned());
    member.env.server.stop().await;
    // A program that another test starts has a copy of the lock until it begins to run.
    let opened = async {
        while let Err(error) = Driver::open(second.clone()) {
            assert!(error.is_in_use(), "{error}");
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, opened)
        .await
        .expect("free when the process has stopped");
    array.stop().await;
}

#[tokio::test]
async fn node_process_refuses_media_directory_that_is_not_the_arrays() {
    let (shared, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (array, _other_array) = (array(&shared).await, array(&other).await);
    let unmounted = shared.path().join("unmounted");
    fs::create_dir(&unmounted).unwrap();
    let damaged = shared.path().join("damaged");
    fs::create_dir(&damaged).unwrap();
    fs::write(damaged.join("media.json"), "{").unwrap();
    let endpoint: Endpoint = format!("unix://{}", shared.path().join("admin.sock").display())
        .parse()
        .unwrap();
    let cure = "mount its filesystem, or give the --media-dir of that process";
    for (media, cause, cure) in [
        (unmounted, "is missing", cure),
        (other.path().join("media"), "names array", cure),
        (damaged, "is not a marker", "give another directory"),
    ] {
        // Leftovers of a node with the same id.
        let leftovers = [".old-x", "y"].map(|name| media.join("ephemeral/node-a").join(name));
        for leftover in &leftovers {
            fs::create_dir_all(leftover).unwrap();
        }
        let mut member = Server::start_with(|_, settings| {
            settings.mode = Services::Node;
            settings.array_endpoint = endpoint.clone();
            settings.node_id = Some("node-a".to_owned());
            settings.media_dir = Some(media.clone());
        })
        .await;
        let path = format!("--media-dir: {}", media.display());
        let refused = member.ended().await.unwrap_err().to_string();
        for part in [path.as_str(), cause, cure] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        for leftover in leftovers {
            assert!(leftover.exists(), "{}", leftover.display());
        }
    }
    let client = Client::new(endpoint);
    client
        .node("node-a")
        .await
        .expect_err("it must not join the array");
    array.stop().await;
}

#[tokio::test]
async fn node_process_removes_its_leftovers_from_the_arrays_media_directory() {
    let shared = tempfile::tempdir().unwrap();
    let array = array(&shared).await;
    let leftover = array.media().join("ephemeral/node-a/.old-x");
    fs::create_dir_all(&leftover).unwrap();
    let member = member(&shared, "node-a", Choice::Emulated).await;
    let removed = async {
        while leftover.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, removed)
        .await
        .expect("must be removed");
    member.env.server.stop().await;
    array.stop().await;
}

#[tokio::test]
async fn node_process_with_volume_conditions_offers_no_controller_method() {
    let shared = tempfile::tempdir().unwrap();
    let _array = array(&shared).await;
    let directory = tempfile::tempdir().unwrap();
    let mut member = member_in(directory, &shared, "node-a", |settings| {
        settings.node.devices = Choice::Emulated;
        settings.capabilities = "+VOLUME_CONDITION,+NODE_VOLUME_CONDITION".parse().unwrap();
    })
    .await;
    let controller = &mut member.env.controller;
    let listed = controller.list_volumes(v1::ListVolumesRequest::default()).await;
    assert_eq!(code(listed), Err(Code::Unimplemented));
    let request = v1::ControllerGetVolumeRequest {
        volume_id: "vol-0".to_owned(),
    };
    let got = controller.controller_get_volume(request).await;
    assert_eq!(code(got), Err(Code::Unimplemented));
}

#[tokio::test]
async fn volume_without_a_device_keeps_no_other_volume_from_its_device() {
    let shared = tempfile::tempdir().unwrap();
    let array = array(&shared).await;
    let mut controller = array.controller().await;
    let mut volumes = Vec::new();
    for name in ["a", "b", "c"] {
        let created = controller.create_volume(mk_create(name)).await.unwrap();
        volumes.push(Volume {
            id: created.into_inner().volume.unwrap().volume_id,
            capability: mk_mount("", Mode::SingleNodeWriter),
            context: mk_map(&[]),
        });
    }
    volumes.sort_by(|one, other| one.id.cmp(&other.id));
    let media = shared.path().join("media");
    fs::create_dir_all(media.join("volumes")).unwrap();
    // No directory can be created there.
    fs::write(media.join("volumes").join(&volumes[0].id), "").unwrap();
    let _member = member(&shared, "node-a", Choice::Emulated).await;
    for volume in &volumes {
        attach(&mut controller, volume, "node-a").await;
    }
    let links = media.join("devices/node-a");
    let both = async {
        while fs::read_dir(&links).map_or(0, Iterator::count) < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, both)
        .await
        .expect("the other two must get their devices");
}
