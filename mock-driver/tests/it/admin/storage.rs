//! Snapshots, groups of them, pools and the health of storage, over the admin API and as CSI sees them.

use csi_mock_driver::admin_api::client::Calls;
use csi_mock_driver::admin_api::query::{GroupQuery, SnapshotQuery};
use csi_mock_driver::admin_api::resource::{
    GroupSnapshotNew, HealthIssue, NodeChange, SnapshotNew, StorageHealthIssue, VolumeChange,
};
use csi_mock_driver::array::{Access, AccessMode, Capability, Pool, PoolName, Severity, StorageSeverity};
use csi_mock_driver::driver::Settings;
use csi_proto::v1;
use csi_proto::v1::StorageHealthErrorType;
use csi_proto::v1::group_controller_client::GroupControllerClient;
use csi_proto::v1::node_get_storage_health_response::StorageBackendHealth;
use http::StatusCode;
use serde_json::json;
use tonic::Code;

use super::refusal;
use super::wire::send;
use crate::server::{Server, mk_create};

const MIB: u64 = 1 << 20;

fn small_pool(_: &std::path::Path, settings: &mut Settings) {
    settings.array.pools = vec![Pool {
        name: PoolName::from("small"),
        segments: [("zone", "a")].into_iter().collect(),
        capacity: 20 * MIB,
    }];
    settings.array.sizes.default = 10 * MIB;
    settings.array.sizes.min = MIB;
    settings.initial_volumes = 1;
}

fn mk_snapshot(name: &str, source: &str) -> SnapshotNew {
    SnapshotNew {
        name: name.to_owned(),
        source: source.to_owned(),
        ..SnapshotNew::default()
    }
}

fn mk_health_issue(status: StorageSeverity, capability: Option<Capability>) -> StorageHealthIssue {
    StorageHealthIssue {
        status,
        reason: "Cable".to_owned(),
        message: "a cable is loose".to_owned(),
        capability,
    }
}

#[tokio::test]
async fn pool_cannot_shrink_below_its_allocated_size() {
    let (server, client) = Server::start_administered(small_pool).await;
    let mut csi = server.controller().await;
    let pool = client.pool("small").await.unwrap();
    assert_eq!(
        (pool.capacity_bytes, pool.used_bytes, pool.available_bytes),
        (20 * MIB, 10 * MIB, 10 * MIB)
    );
    assert_eq!(pool.topology["zone"], "a");
    assert_eq!(client.pools().await.unwrap(), [pool]);
    let mk_volume = |name: &str, mib: u64| v1::CreateVolumeRequest {
        capacity_range: Some(v1::CapacityRange {
            required_bytes: i64::try_from(mib * MIB).unwrap(),
            limit_bytes: 0,
        }),
        ..mk_create(name)
    };
    let full = csi.create_volume(mk_volume("a", 15)).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    let grown = client.resize_pool("small", 25 * MIB).await.unwrap();
    assert_eq!(grown.available_bytes, 15 * MIB);
    let capacity = csi.get_capacity(v1::GetCapacityRequest::default()).await.unwrap();
    assert_eq!(capacity.into_inner().available_capacity, 15 << 20);
    csi.create_volume(mk_volume("a", 15)).await.unwrap();

    let (status, code, message, _) = refusal(client.resize_pool("small", 25 * MIB - 1).await);
    assert_eq!(
        (status, code.as_str()),
        (StatusCode::CONFLICT, "FAILED_PRECONDITION")
    );
    assert!(
        message.contains("small") && message.contains("26214400"),
        "{message}"
    );
    let (status, _, message, _) = refusal(client.resize_pool("small", u64::MAX).await);
    assert_eq!(status, StatusCode::BAD_REQUEST, "{message}");
    let (status, _, message, _) = refusal(client.resize_pool("large", MIB).await);
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(message.contains("small"), "those there are: {message}");

    client.delete_volume("vol-0").await.unwrap();
    let shrunk = client.resize_pool("small", 15 * MIB).await.unwrap();
    assert_eq!((shrunk.used_bytes, shrunk.available_bytes), (15 * MIB, 0));
}

#[tokio::test]
async fn pool_keeps_its_size_after_a_restart() {
    let state = tempfile::tempdir().unwrap();
    for expected in [20 * MIB, 30 * MIB] {
        let (server, client) = Server::start_administered(|directory, settings| {
            small_pool(directory, settings);
            settings.state_dir = Some(state.path().to_owned());
        })
        .await;
        assert_eq!(client.pool("small").await.unwrap().capacity_bytes, expected);
        client.resize_pool("small", 30 * MIB).await.unwrap();
        server.stop().await;
    }
}

#[tokio::test]
async fn snapshots_are_created_listed_and_deleted() {
    let (server, client) = Server::start_administered(|directory, settings| {
        small_pool(directory, settings);
        settings.config.snapshot_delay = std::time::Duration::from_secs(3600);
    })
    .await;
    let taken = client.create_snapshot(&mk_snapshot("s", "vol-0")).await.unwrap();
    assert_eq!(
        (taken.name.as_str(), taken.source.as_str(), taken.size_bytes),
        ("s", "vol-0", 10 * MIB)
    );
    assert_eq!((taken.pool.as_str(), taken.ready), ("small", false));
    assert!(taken.created.ends_with('Z'), "{}", taken.created);
    let again = client.create_snapshot(&mk_snapshot("s", "vol-0")).await.unwrap();
    assert_eq!(again, taken, "taken once");
    assert_eq!(client.snapshot(&taken.id).await.unwrap(), taken);
    let listed = |source: &str| SnapshotQuery {
        source: Some(source.to_owned()),
        ..SnapshotQuery::default()
    };
    assert_eq!(
        client.snapshots(&listed("vol-0")).await.unwrap().items,
        std::slice::from_ref(&taken)
    );
    assert_eq!(client.snapshots(&listed("vol-1")).await.unwrap().matched, 0);
    let list = v1::ListSnapshotsRequest::default();
    let seen = server.controller().await.list_snapshots(list).await.unwrap();
    assert_eq!(
        seen.into_inner().entries[0]
            .snapshot
            .as_ref()
            .unwrap()
            .snapshot_id,
        taken.id
    );

    let (status, ..) = refusal(client.create_snapshot(&mk_snapshot("t", "vol-9")).await);
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (status, code, ..) = refusal(client.create_snapshot(&mk_snapshot("t", "vol-0")).await);
    assert_eq!(
        (status, code.as_str()),
        (StatusCode::CONFLICT, "RESOURCE_EXHAUSTED")
    );
    client.delete_snapshot(&taken.id).await.unwrap();
    let (status, ..) = refusal(client.delete_snapshot(&taken.id).await);
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (status, ..) = refusal(client.snapshot(&taken.id).await);
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn groups_are_created_listed_and_deleted_with_their_snapshots() {
    let (server, client) = super::administered().await;
    let new = GroupSnapshotNew {
        name: "g".to_owned(),
        sources: vec!["vol-2".to_owned(), "vol-1".to_owned()],
        ..GroupSnapshotNew::default()
    };
    let group = client.create_group_snapshot(&new).await.unwrap();
    let sources: Vec<&str> = group
        .snapshots
        .iter()
        .map(|snapshot| snapshot.source.as_str())
        .collect();
    assert_eq!((sources, group.ready), (vec!["vol-1", "vol-2"], true));
    assert_eq!(client.create_group_snapshot(&new).await.unwrap(), group);
    assert_eq!(client.group_snapshot(&group.id).await.unwrap(), group);
    // (source, search, number of groups)
    for (source, search, matched) in [
        (None, None, 1),
        (Some("vol-1"), None, 1),
        (Some("vol-3"), None, 0),
        (None, Some("g"), 1),
        (None, Some("nothing"), 0),
    ] {
        let query = GroupQuery {
            source: source.map(str::to_owned),
            search: search.map(str::to_owned),
            ..GroupQuery::default()
        };
        let page = client.group_snapshots(&query).await.unwrap();
        assert_eq!(page.matched, matched, "{query:?}");
    }
    let info = client.info().await.unwrap();
    assert_eq!((info.counts.groups, info.counts.snapshots), (1, 2));
    let get = v1::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: group.id.clone(),
        ..Default::default()
    };
    let mut groups = GroupControllerClient::new(server.channel().await);
    let seen = groups.get_volume_group_snapshot(get.clone()).await.unwrap();
    assert_eq!(seen.into_inner().group_snapshot.unwrap().snapshots.len(), 2);

    let member = &group.snapshots[0];
    assert_eq!(member.group.as_ref(), Some(&group.id));
    let (status, _, message, _) = refusal(client.delete_snapshot(&member.id).await);
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(message.contains("delete the group"), "{message}");
    client.delete_group_snapshot(&group.id).await.unwrap();
    assert_eq!(client.snapshots(&Default::default()).await.unwrap().matched, 0);
    let gone = groups.get_volume_group_snapshot(get).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    let (status, ..) = refusal(client.delete_group_snapshot(&group.id).await);
    assert_eq!(status, StatusCode::NOT_FOUND);
    let twice = GroupSnapshotNew {
        sources: vec!["vol-1".to_owned(); 2],
        ..new
    };
    let (status, _, _, field) = refusal(client.create_group_snapshot(&twice).await);
    assert_eq!(
        (status, field.as_deref()),
        (StatusCode::BAD_REQUEST, Some("sources"))
    );
}

async fn backend_health(server: &Server) -> Vec<StorageBackendHealth> {
    let request = v1::NodeGetStorageHealthRequest::default();
    let mut node = server.node().await;
    let health = node.node_get_storage_health(request).await.unwrap();
    health.into_inner().backend_health
}

#[tokio::test]
async fn storage_health_applies_to_one_node_or_to_all() {
    let (server, client) = Server::start_administered(|_, settings| {
        settings.node_id = Some("node-1".to_owned());
    })
    .await;
    assert!(backend_health(&server).await.is_empty());
    let capability = Capability {
        access: Access::Block,
        mode: AccessMode::SingleNodeWriter,
    };
    let issue = mk_health_issue(StorageSeverity::Degraded, Some(capability));
    let shown = serde_json::to_value(&issue).unwrap();
    assert_eq!(
        (&shown["status"], &shown["capability"]),
        (&json!("DEGRADED"), &json!("block SINGLE_NODE_WRITER"))
    );
    let all = client.set_storage_health(vec![issue.clone()]).await.unwrap();
    assert_eq!(all.health, [issue]);
    for node in ["node-1", "node-2"] {
        let change = NodeChange {
            health: Some(vec![mk_health_issue(StorageSeverity::Unreachable, None)]),
            ..NodeChange::default()
        };
        let changed = client.change_node(node, &change).await.unwrap();
        assert_eq!(changed.health[0].status, StorageSeverity::Unreachable);
    }
    let health = backend_health(&server).await;
    use StorageHealthErrorType::{StorageDegraded, StorageUnreachable};
    let statuses: Vec<_> = health.iter().map(StorageBackendHealth::status).collect();
    assert_eq!(statuses, [StorageDegraded, StorageUnreachable]);
    assert!(health[0].volume_capability.is_some() && health[1].volume_capability.is_none());
    assert_eq!(health[1].reason, "Cable");
    let storage = client.storage().await.unwrap();
    let nodes: Vec<_> = storage.nodes.iter().map(|own| own.node.as_str()).collect();
    assert_eq!(nodes, ["node-1", "node-2"]);

    client.set_storage_health(Vec::new()).await.unwrap();
    let well = NodeChange {
        health: Some(Vec::new()),
        ..NodeChange::default()
    };
    assert!(
        client
            .change_node("node-1", &well)
            .await
            .unwrap()
            .health
            .is_empty()
    );
    assert!(backend_health(&server).await.is_empty());
}

#[tokio::test]
async fn invalid_health_issues_are_refused_by_field() {
    let (server, client) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 1).await;
    for (path, issue, field) in [
        (
            "storage",
            json!({"status": "TIRED", "reason": "x"}),
            "health[0].status",
        ),
        (
            "volumes/vol-0",
            json!({"status": "TIRED", "reason": "x"}),
            "health[0].status",
        ),
        (
            "storage",
            json!({"status": "DEGRADED", "reason": "x", "capability": "everything"}),
            "health[0].capability",
        ),
    ] {
        let body = json!({"health": [issue]}).to_string();
        let length = body.len();
        let request = format!(
            "PATCH /api/v1/{path} HTTP/1.1\nHost: HOST\nContent-Type: application/json\nContent-Length: {length}\nConnection: close\n\n{body}"
        );
        let (status, text) = send(&server, &request).await;
        assert!(
            status == 400 && text.contains(&format!("\"field\":\"{field}\"")),
            "{text}"
        );
    }
    let (status, ..) = refusal(
        client
            .change_node(
                "node-77",
                &NodeChange {
                    health: Some(Vec::new()),
                    ..NodeChange::default()
                },
            )
            .await,
    );
    assert_eq!(status, StatusCode::NOT_FOUND);
}

/// A VolumeCondition as callers before CSI 1.13 decode it, in each message that has it as field 2.
#[derive(Clone, PartialEq, prost::Message)]
struct Conditioned {
    #[prost(message, optional, tag = "2")]
    condition: Option<Condition>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Condition {
    #[prost(bool, tag = "1")]
    abnormal: bool,
    #[prost(string, tag = "2")]
    message: String,
}

/// An entry of ListVolumes, or the response of ControllerGetVolume.
#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(message, optional, tag = "2")]
    status: Option<Conditioned>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct List {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

/// Stages and publishes the only volume at a path.
async fn bring(server: &Server, target: &std::path::Path) {
    let publish = crate::server::mk_publish("vol-0", "node-0");
    let context = server
        .controller()
        .await
        .controller_publish_volume(publish.clone())
        .await
        .unwrap()
        .into_inner()
        .publish_context;
    let staging = server.path("staging");
    std::fs::create_dir_all(&staging).unwrap();
    let path = |path: &std::path::Path| path.display().to_string();
    let mut node = server.node().await;
    node.node_stage_volume(v1::NodeStageVolumeRequest {
        volume_id: "vol-0".to_owned(),
        publish_context: context.clone(),
        staging_target_path: path(&staging),
        volume_capability: publish.volume_capability.clone(),
        ..Default::default()
    })
    .await
    .unwrap();
    node.node_publish_volume(v1::NodePublishVolumeRequest {
        volume_id: "vol-0".to_owned(),
        publish_context: context,
        staging_target_path: path(&staging),
        target_path: path(target),
        volume_capability: publish.volume_capability,
        ..Default::default()
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn condition_set_by_admin_api_is_in_all_replies() {
    let (server, client) = Server::start_administered(|_, settings| {
        settings.initial_volumes = 1;
        settings.node_id = Some("node-0".to_owned());
        settings.node.devices = csi_mock_driver::node::device::Choice::Emulated;
    })
    .await;
    for capability in ["VOLUME_CONDITION", "NODE_VOLUME_CONDITION"] {
        client.set_capability(capability, true).await.unwrap();
    }
    let target = server.path("target");
    bring(&server, &target).await;
    let channel = server.channel().await;
    for (health, expected) in [
        (vec![], Condition::default()),
        (
            vec![HealthIssue {
                status: Severity::Inaccessible,
                reason: "Fire".to_owned(),
                message: "it burns".to_owned(),
            }],
            Condition {
                abnormal: true,
                message: "it burns".to_owned(),
            },
        ),
        (vec![], Condition::default()),
    ] {
        let change = VolumeChange {
            health: Some(health),
            ..VolumeChange::default()
        };
        client.change_volume("vol-0", &change).await.unwrap();
        let list = v1::ListVolumesRequest::default();
        let list: List = crate::wire::call(&channel, "/csi.v1.Controller/ListVolumes", list)
            .await
            .unwrap();
        let get = v1::ControllerGetVolumeRequest {
            volume_id: "vol-0".to_owned(),
        };
        let got: Entry = crate::wire::call(&channel, "/csi.v1.Controller/ControllerGetVolume", get)
            .await
            .unwrap();
        let stats = v1::NodeGetVolumeStatsRequest {
            volume_id: "vol-0".to_owned(),
            volume_path: target.display().to_string(),
            ..Default::default()
        };
        let stats: Conditioned = crate::wire::call(&channel, "/csi.v1.Node/NodeGetVolumeStats", stats)
            .await
            .unwrap();
        let conditions = [
            list.entries[0].status.clone().unwrap().condition,
            got.status.unwrap().condition,
            stats.condition,
        ];
        assert_eq!(conditions, [(); 3].map(|()| Some(expected.clone())));

        let shown = match expected.abnormal {
            true => serde_json::json!({"abnormal": true, "message": expected.message}),
            false => serde_json::json!({}),
        };
        for (method, pointer) in [
            ("ListVolumes", "/entries/0/status/volume_condition"),
            ("ControllerGetVolume", "/status/volume_condition"),
            ("NodeGetVolumeStats", "/volume_condition"),
        ] {
            let calls = client.journal(&Calls::of(method)).await.unwrap().items;
            let response = calls.last().unwrap().response.as_ref().unwrap();
            assert_eq!(response.pointer(pointer), Some(&shown), "{method}: {response}");
        }
    }
}
