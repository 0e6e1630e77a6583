//! Random calls for a set of volumes, snapshots and groups, with a record of the expected state.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::group_controller_client::GroupControllerClient;
use csi_proto::v1::node_client::NodeClient;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use csi_proto::v1::{self, VolumeContentSource};
use fastrand::Rng;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::KillPlan;
use crate::server::{mk_create, mk_delete, mk_map, mk_mount, mk_publish, mk_unpublish};

/// All kinds of mutating calls.
pub(super) const KINDS: [&str; 17] = [
    "create",
    "clone",
    "restore",
    "delete",
    "publish",
    "unpublish",
    "expand",
    "modify",
    "take snapshot",
    "delete snapshot",
    "take group",
    "delete group",
    "stage",
    "unstage",
    "node publish",
    "node unpublish",
    "node expand",
];

/// The driver's node, and another node of the array.
const HERE: &str = "node-0";
const THERE: &str = "node-1";
const MIB: i64 = 1 << 20;
/// Maximum numbers of a workload's volumes, snapshots and groups.
const MOST: (usize, usize, usize) = (5, 3, 2);

pub(super) struct Clients {
    controller: ControllerClient<Channel>,
    groups: GroupControllerClient<Channel>,
    node: NodeClient<Channel>,
}

/// All objects that the array lists.
pub(super) struct View {
    /// Size, source and nodes by id.
    volumes: BTreeMap<String, (i64, Option<VolumeContentSource>, Vec<String>)>,
    /// Source and group by id.
    snapshots: BTreeMap<String, (String, String)>,
}

pub(super) struct Workload {
    name: String,
    directory: PathBuf,
    rng: Rng,
    /// Number of names used so far.
    names: u64,
    volumes: Vec<Volume>,
    snapshots: Vec<Snapshot>,
    groups: Vec<Group>,
    /// The interrupted call.
    open: Option<Call>,
}

/// A call with its request, for retries.
#[derive(Clone, Debug)]
enum Call {
    Create(v1::CreateVolumeRequest),
    Delete(v1::DeleteVolumeRequest),
    Publish(v1::ControllerPublishVolumeRequest),
    Unpublish(v1::ControllerUnpublishVolumeRequest),
    Expand(v1::ControllerExpandVolumeRequest),
    Modify(v1::ControllerModifyVolumeRequest),
    TakeSnapshot(v1::CreateSnapshotRequest),
    DeleteSnapshot(v1::DeleteSnapshotRequest),
    TakeGroup(v1::CreateVolumeGroupSnapshotRequest),
    DeleteGroup(v1::DeleteVolumeGroupSnapshotRequest),
    Stage(v1::NodeStageVolumeRequest),
    Unstage(v1::NodeUnstageVolumeRequest),
    NodePublish(v1::NodePublishVolumeRequest),
    NodeUnpublish(v1::NodeUnpublishVolumeRequest),
    NodeExpand(v1::NodeExpandVolumeRequest),
}

/// The relevant part of a response.
enum Reply {
    Volume(v1::Volume),
    Context(HashMap<String, String>),
    Bytes(i64),
    Snapshot(v1::Snapshot),
    Group(v1::VolumeGroupSnapshot),
    Nothing,
}

#[derive(Debug)]
struct Volume {
    id: String,
    bytes: i64,
    source: Option<VolumeContentSource>,
    iops: Option<String>,
    node: Option<&'static str>,
    context: HashMap<String, String>,
    staged: bool,
    shown: bool,
}

#[derive(Debug)]
struct Snapshot {
    id: String,
    source: String,
    bytes: i64,
}

#[derive(Debug)]
struct Group {
    id: String,
    /// Snapshots, each with its volume.
    members: BTreeMap<String, String>,
}

// === impl Clients ===

impl Clients {
    pub(super) fn of(channel: Channel) -> Self {
        Self {
            controller: ControllerClient::new(channel.clone()),
            groups: GroupControllerClient::new(channel.clone()),
            node: NodeClient::new(channel),
        }
    }

    async fn call(&mut self, call: Call) -> Result<Reply, Status> {
        let (controller, groups, node) = (&mut self.controller, &mut self.groups, &mut self.node);
        let reply = match call {
            Call::Create(request) => {
                let reply = controller.create_volume(request).await?.into_inner();
                Reply::Volume(reply.volume.unwrap())
            }
            Call::Publish(request) => {
                let reply = controller.controller_publish_volume(request).await?;
                Reply::Context(reply.into_inner().publish_context)
            }
            Call::Expand(request) => {
                let reply = controller.controller_expand_volume(request).await?;
                Reply::Bytes(reply.into_inner().capacity_bytes)
            }
            Call::TakeSnapshot(request) => {
                let reply = controller.create_snapshot(request).await?.into_inner();
                Reply::Snapshot(reply.snapshot.unwrap())
            }
            Call::TakeGroup(request) => {
                let reply = groups.create_volume_group_snapshot(request).await?;
                Reply::Group(reply.into_inner().group_snapshot.unwrap())
            }
            Call::Delete(request) => nothing(controller.delete_volume(request).await)?,
            Call::Unpublish(request) => nothing(controller.controller_unpublish_volume(request).await)?,
            Call::Modify(request) => nothing(controller.controller_modify_volume(request).await)?,
            Call::DeleteSnapshot(request) => nothing(controller.delete_snapshot(request).await)?,
            Call::DeleteGroup(request) => nothing(groups.delete_volume_group_snapshot(request).await)?,
            Call::Stage(request) => nothing(node.node_stage_volume(request).await)?,
            Call::Unstage(request) => nothing(node.node_unstage_volume(request).await)?,
            Call::NodePublish(request) => nothing(node.node_publish_volume(request).await)?,
            Call::NodeUnpublish(request) => nothing(node.node_unpublish_volume(request).await)?,
            Call::NodeExpand(request) => nothing(node.node_expand_volume(request).await)?,
        };
        Ok(reply)
    }

    /// Whether the node has the volume at a path.
    async fn has_at(&mut self, volume: &str, path: &Path) -> bool {
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: volume.to_owned(),
            volume_path: text(path),
            ..Default::default()
        };
        match self.node.node_get_volume_stats(request).await {
            Ok(_) => true,
            Err(status) if status.code() == Code::NotFound => false,
            Err(status) => panic!("{volume} at {}: {status}", path.display()),
        }
    }

    /// Whether the volume's mutable parameter is this.
    async fn has_iops(&mut self, volume: &str, iops: &str) -> bool {
        let request = v1::ValidateVolumeCapabilitiesRequest {
            volume_id: volume.to_owned(),
            volume_capabilities: vec![capability()],
            mutable_parameters: mk_map(&[("iops", iops)]),
            ..Default::default()
        };
        let reply = self
            .controller
            .validate_volume_capabilities(request)
            .await
            .unwrap();
        reply.into_inner().confirmed.is_some()
    }

    /// The group's snapshots, each with its volume.
    async fn members(&mut self, group: &Group) -> BTreeMap<String, String> {
        let request = v1::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: group.id.clone(),
            snapshot_ids: group.members.keys().cloned().collect(),
            ..Default::default()
        };
        let reply = self.groups.get_volume_group_snapshot(request).await;
        members(reply.unwrap().into_inner().group_snapshot.unwrap())
    }
}

// === impl View ===

impl View {
    pub(super) async fn of(clients: &mut Clients) -> Self {
        let volumes = clients.controller.list_volumes(v1::ListVolumesRequest::default());
        let volumes = volumes.await.unwrap().into_inner();
        let snapshots = clients
            .controller
            .list_snapshots(v1::ListSnapshotsRequest::default());
        let snapshots = snapshots.await.unwrap().into_inner();
        assert!(volumes.next_token.is_empty() && snapshots.next_token.is_empty());
        let volumes = volumes.entries.into_iter().map(|entry| {
            let volume = entry.volume.unwrap();
            let nodes = entry.status.unwrap().published_node_ids;
            (
                volume.volume_id,
                (volume.capacity_bytes, volume.content_source, nodes),
            )
        });
        let snapshots = snapshots.entries.into_iter().map(|entry| {
            let snapshot = entry.snapshot.unwrap();
            let facts = (snapshot.source_volume_id, snapshot.group_snapshot_id);
            (snapshot.snapshot_id, facts)
        });
        Self {
            volumes: volumes.collect(),
            snapshots: snapshots.collect(),
        }
    }

    /// The ids of all objects.
    pub(super) fn ids(&self) -> BTreeSet<String> {
        self.volumes
            .keys()
            .chain(self.snapshots.keys())
            .cloned()
            .collect()
    }
}

// === impl Call ===

impl Call {
    fn kind(&self) -> &'static str {
        match self {
            Self::Create(request) => match &request.volume_content_source {
                None => "create",
                Some(source) => match source.r#type {
                    Some(Type::Snapshot(_)) => "restore",
                    Some(Type::Volume(_)) | None => "clone",
                },
            },
            Self::Delete(_) => "delete",
            Self::Publish(_) => "publish",
            Self::Unpublish(_) => "unpublish",
            Self::Expand(_) => "expand",
            Self::Modify(_) => "modify",
            Self::TakeSnapshot(_) => "take snapshot",
            Self::DeleteSnapshot(_) => "delete snapshot",
            Self::TakeGroup(_) => "take group",
            Self::DeleteGroup(_) => "delete group",
            Self::Stage(_) => "stage",
            Self::Unstage(_) => "unstage",
            Self::NodePublish(_) => "node publish",
            Self::NodeUnpublish(_) => "node unpublish",
            Self::NodeExpand(_) => "node expand",
        }
    }

    /// The id of the object that it changes, whose state is unknown until the response.
    fn subject(&self) -> &str {
        match self {
            Self::Create(_) | Self::TakeSnapshot(_) | Self::TakeGroup(_) => "",
            Self::Delete(request) => &request.volume_id,
            Self::Publish(request) => &request.volume_id,
            Self::Unpublish(request) => &request.volume_id,
            Self::Expand(request) => &request.volume_id,
            Self::Modify(request) => &request.volume_id,
            Self::DeleteSnapshot(request) => &request.snapshot_id,
            Self::DeleteGroup(request) => &request.group_snapshot_id,
            Self::Stage(request) => &request.volume_id,
            Self::Unstage(request) => &request.volume_id,
            Self::NodePublish(request) => &request.volume_id,
            Self::NodeUnpublish(request) => &request.volume_id,
            Self::NodeExpand(request) => &request.volume_id,
        }
    }
}

// === impl Workload ===

impl Workload {
    pub(super) fn new(name: &str, directory: &Path, rng: Rng) -> Self {
        fs::create_dir_all(directory.join("targets")).unwrap();
        Self {
            name: name.to_owned(),
            directory: directory.to_owned(),
            rng,
            names: 0,
            volumes: Vec::new(),
            snapshots: Vec::new(),
            groups: Vec::new(),
            open: None,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The kind of the interrupted call.
    pub(super) fn unanswered(&self) -> Option<&'static str> {
        self.open.as_ref().map(Call::kind)
    }

    /// The ids of its objects.
    pub(super) fn ids(&self) -> BTreeSet<String> {
        let volumes = self.volumes.iter().map(|volume| volume.id.clone());
        let snapshots = self.snapshots.iter().map(|snapshot| snapshot.id.clone());
        let members = self.groups.iter().flat_map(|group| group.members.keys().cloned());
        volumes.chain(snapshots).chain(members).collect()
    }

    /// Runs until a call fails, which is allowed only if the driver was killed.
    pub(super) async fn work(&mut self, mut clients: Clients, plan: &KillPlan) {
        loop {
            let call = self.next();
            self.open = Some(call.clone());
            if call.kind() == plan.aim && plan.acknowledged.load(Ordering::SeqCst) >= plan.enough {
                plan.begun.notify_one();
            }
            match clients.call(call.clone()).await {
                Ok(reply) => {
                    self.enter(call, reply);
                    self.open = None;
                    plan.acknowledged.fetch_add(1, Ordering::SeqCst);
                }
                Err(status) => {
                    let killed = plan.killed.load(Ordering::SeqCst);
                    assert!(killed, "{}: {call:?} failed: {status}", self.name);
                    return;
                }
            }
        }
    }

    /// Retries the interrupted call.
    pub(super) async fn repeat(&mut self, clients: &mut Clients) {
        let Some(call) = self.open.take() else { return };
        match clients.call(call.clone()).await {
            Ok(reply) => self.enter(call, reply),
            Err(status) => panic!("{}: repeated {call:?} failed: {status}", self.name),
        }
    }

    /// Compares the record with the array's state; if `open`, except for the object of the interrupted call.
    pub(super) async fn check(&self, clients: &mut Clients, view: &View, open: bool) {
        let apart = self.open.as_ref().filter(|_| open).map_or("", Call::subject);
        for volume in self.volumes.iter().filter(|volume| volume.id != apart) {
            let nodes: Vec<_> = volume.node.iter().map(|&node| node.to_owned()).collect();
            let known = (volume.bytes, volume.source.clone(), nodes);
            assert_eq!(
                view.volumes.get(&volume.id),
                Some(&known),
                "{}: {volume:?}",
                self.name
            );
            if let Some(iops) = &volume.iops {
                assert!(
                    clients.has_iops(&volume.id, iops).await,
                    "{}: {volume:?}",
                    self.name
                );
            }
            let staged = clients.has_at(&volume.id, &self.staging(&volume.id)).await;
            let shown = clients.has_at(&volume.id, &self.target(&volume.id)).await;
            assert_eq!(
                (staged, shown),
                (volume.staged, volume.shown),
                "{}: {volume:?}",
                self.name
            );
        }
        for snapshot in self.snapshots.iter().filter(|snapshot| snapshot.id != apart) {
            let known = (snapshot.source.clone(), String::new());
            assert_eq!(
                view.snapshots.get(&snapshot.id),
                Some(&known),
                "{}: {snapshot:?}",
                self.name
            );
        }
        for group in self.groups.iter().filter(|group| group.id != apart) {
            assert_eq!(
                clients.members(group).await,
                group.members,
                "{}: {group:?}",
                self.name
            );
            for (snapshot, source) in &group.members {
                let known = (source.clone(), group.id.clone());
                assert_eq!(
                    view.snapshots.get(snapshot),
                    Some(&known),
                    "{}: {group:?}",
                    self.name
                );
            }
        }
    }

    /// Deletes all its objects.
    pub(super) async fn leave(&mut self, clients: &mut Clients) {
        loop {
            let call = if let Some(volume) = self.volumes.first() {
                let steps = self.steps_back(volume);
                steps
                    .into_iter()
                    .next_back()
                    .expect("something must be left to do")
            } else if let Some(snapshot) = self.snapshots.first() {
                delete_snapshot(snapshot)
            } else if let Some(group) = self.groups.first() {
                delete_group(group)
            } else {
                return;
            };
            let reply = clients.call(call.clone()).await.unwrap();
            self.enter(call, reply);
        }
    }

    // === the next call ===

    fn next(&mut self) -> Call {
        let room = self.volumes.len() < MOST.0;
        if self.volumes.len() < 2 || room && self.rng.u8(..5) == 0 {
            return self.create();
        }
        let volume = self.rng.usize(..self.volumes.len());
        let name = self.new_name();
        let volume = &self.volumes[volume];
        // Publishing takes many steps, so they are more likely than reverse steps.
        let mut calls = [
            self.steps_on(volume),
            self.steps_on(volume),
            self.steps_back(volume),
        ]
        .concat();
        calls.push(expand(volume));
        calls.push(Call::Modify(v1::ControllerModifyVolumeRequest {
            volume_id: volume.id.clone(),
            mutable_parameters: mk_map(&[("iops", &self.names.to_string())]),
            ..Default::default()
        }));
        if self.snapshots.len() < MOST.1 {
            calls.push(Call::TakeSnapshot(v1::CreateSnapshotRequest {
                name: name.clone(),
                source_volume_id: volume.id.clone(),
                ..Default::default()
            }));
        }
        calls.extend(self.snapshots.iter().map(delete_snapshot));
        if self.groups.len() < MOST.2 {
            calls.push(Call::TakeGroup(v1::CreateVolumeGroupSnapshotRequest {
                name,
                source_volume_ids: self.volumes.iter().map(|volume| volume.id.clone()).collect(),
                ..Default::default()
            }));
        }
        calls.extend(self.groups.iter().map(delete_group));
        self.rng.choice(calls).expect("there must be something to do")
    }

    fn create(&mut self) -> Call {
        let snapshot = self.rng.choice(0..self.snapshots.len());
        let volume = self.rng.choice(0..self.volumes.len());
        let (source, bytes) = match (self.rng.u8(..3), snapshot, volume) {
            (0, Some(snapshot), _) => {
                let Snapshot { id, bytes, .. } = &self.snapshots[snapshot];
                let snapshot_id = id.clone();
                (Some(Type::Snapshot(SnapshotSource { snapshot_id })), *bytes)
            }
            (1, _, Some(volume)) => {
                let Volume { id, bytes, .. } = &self.volumes[volume];
                let volume_id = id.clone();
                (Some(Type::Volume(VolumeSource { volume_id })), *bytes)
            }
            _ => (None, self.rng.i64(4..8) * MIB),
        };
        let name = self.new_name();
        Call::Create(v1::CreateVolumeRequest {
            capacity_range: range(bytes),
            volume_content_source: source.map(|r#type| VolumeContentSource { r#type: Some(r#type) }),
            ..mk_create(&name)
        })
    }

    /// The next steps towards a published volume.
    fn steps_on(&self, volume: &Volume) -> Vec<Call> {
        let capability = Some(capability());
        match volume.node {
            None => vec![
                Call::Publish(mk_publish(&volume.id, HERE)),
                Call::Publish(mk_publish(&volume.id, THERE)),
            ],
            Some(THERE) => Vec::new(),
            Some(_) if !volume.staged => {
                fs::create_dir_all(self.staging(&volume.id)).unwrap();
                vec![Call::Stage(v1::NodeStageVolumeRequest {
                    volume_id: volume.id.clone(),
                    publish_context: volume.context.clone(),
                    staging_target_path: text(&self.staging(&volume.id)),
                    volume_capability: capability,
                    ..Default::default()
                })]
            }
            Some(_) if !volume.shown => vec![Call::NodePublish(v1::NodePublishVolumeRequest {
                volume_id: volume.id.clone(),
                publish_context: volume.context.clone(),
                staging_target_path: text(&self.staging(&volume.id)),
                target_path: text(&self.target(&volume.id)),
                volume_capability: capability,
                ..Default::default()
            })],
            Some(_) => vec![Call::NodeExpand(v1::NodeExpandVolumeRequest {
                volume_id: volume.id.clone(),
                volume_path: text(&self.target(&volume.id)),
                staging_target_path: text(&self.staging(&volume.id)),
                volume_capability: capability,
                ..Default::default()
            })],
        }
    }

    /// The next step back.
    fn steps_back(&self, volume: &Volume) -> Vec<Call> {
        vec![match volume.node {
            None => Call::Delete(mk_delete(&volume.id)),
            Some(_) if volume.shown => Call::NodeUnpublish(v1::NodeUnpublishVolumeRequest {
                volume_id: volume.id.clone(),
                target_path: text(&self.target(&volume.id)),
            }),
            Some(_) if volume.staged => Call::Unstage(v1::NodeUnstageVolumeRequest {
                volume_id: volume.id.clone(),
                staging_target_path: text(&self.staging(&volume.id)),
            }),
            Some(node) => Call::Unpublish(mk_unpublish(&volume.id, node)),
        }]
    }

    fn new_name(&mut self) -> String {
        self.names += 1;
        format!("{}-{}", self.name, self.names)
    }

    fn staging(&self, volume: &str) -> PathBuf {
        self.directory.join("staging").join(volume)
    }

    fn target(&self, volume: &str) -> PathBuf {
        self.directory.join("targets").join(volume)
    }

    // === the record ===

    fn enter(&mut self, call: Call, reply: Reply) {
        match (call, reply) {
            (Call::Create(request), Reply::Volume(volume)) => {
                assert_eq!(volume.content_source, request.volume_content_source);
                self.volumes.push(Volume {
                    id: volume.volume_id,
                    bytes: volume.capacity_bytes,
                    source: volume.content_source,
                    iops: None,
                    node: None,
                    context: HashMap::new(),
                    staged: false,
                    shown: false,
                });
            }
            (Call::Delete(request), _) => self.volumes.retain(|volume| volume.id != request.volume_id),
            (Call::Publish(request), Reply::Context(context)) => {
                let volume = self.volume(&request.volume_id);
                volume.node = Some(if request.node_id == HERE { HERE } else { THERE });
                volume.context = context;
            }
            (Call::Unpublish(request), _) => self.volume(&request.volume_id).node = None,
            (Call::Expand(request), Reply::Bytes(bytes)) => self.volume(&request.volume_id).bytes = bytes,
            (Call::Modify(mut request), _) => {
                self.volume(&request.volume_id).iops = request.mutable_parameters.remove("iops");
            }
            (Call::TakeSnapshot(_), Reply::Snapshot(snapshot)) => self.snapshots.push(Snapshot {
                id: snapshot.snapshot_id,
                source: snapshot.source_volume_id,
                bytes: snapshot.size_bytes,
            }),
            (Call::DeleteSnapshot(request), _) => {
                self.snapshots
                    .retain(|snapshot| snapshot.id != request.snapshot_id);
            }
            (Call::TakeGroup(_), Reply::Group(group)) => self.groups.push(Group {
                id: group.group_snapshot_id.clone(),
                members: members(group),
            }),
            (Call::DeleteGroup(request), _) => {
                self.groups.retain(|group| group.id != request.group_snapshot_id)
            }
            (Call::Stage(request), _) => self.volume(&request.volume_id).staged = true,
            (Call::Unstage(request), _) => self.volume(&request.volume_id).staged = false,
            (Call::NodePublish(request), _) => self.volume(&request.volume_id).shown = true,
            (Call::NodeUnpublish(request), _) => self.volume(&request.volume_id).shown = false,
            (Call::NodeExpand(_), _) => {}
            (call, _) => panic!("{call:?} returned the response of another call"),
        }
    }

    fn volume(&mut self, id: &str) -> &mut Volume {
        let mut volumes = self.volumes.iter_mut();
        volumes
            .find(|volume| volume.id == id)
            .expect("the volume is recorded")
    }
}

// === functions ===

fn expand(volume: &Volume) -> Call {
    Call::Expand(v1::ControllerExpandVolumeRequest {
        volume_id: volume.id.clone(),
        capacity_range: range(volume.bytes + MIB),
        volume_capability: Some(capability()),
        ..Default::default()
    })
}

fn delete_snapshot(snapshot: &Snapshot) -> Call {
    Call::DeleteSnapshot(v1::DeleteSnapshotRequest {
        snapshot_id: snapshot.id.clone(),
        ..Default::default()
    })
}

fn delete_group(group: &Group) -> Call {
    Call::DeleteGroup(v1::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.id.clone(),
        snapshot_ids: group.members.keys().cloned().collect(),
        ..Default::default()
    })
}

fn members(group: v1::VolumeGroupSnapshot) -> BTreeMap<String, String> {
    let snapshots = group.snapshots.into_iter();
    snapshots
        .map(|snapshot| (snapshot.snapshot_id, snapshot.source_volume_id))
        .collect()
}

/// The capability of all volumes.
fn capability() -> v1::VolumeCapability {
    mk_mount("", Mode::SingleNodeWriter)
}

fn range(bytes: i64) -> Option<v1::CapacityRange> {
    Some(v1::CapacityRange {
        required_bytes: bytes,
        limit_bytes: 0,
    })
}

fn nothing<T>(answer: Result<T, Status>) -> Result<Reply, Status> {
    answer.map(|_| Reply::Nothing)
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}
