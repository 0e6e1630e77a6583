//! An in-memory CSI driver that records its calls and checks that a volume is on one node at a time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use csi_proto::v1;
use csi_proto::v1::controller_server::{Controller, ControllerServer};
use csi_proto::v1::identity_server::{Identity, IdentityServer};
use csi_proto::v1::node_server::{Node, NodeServer};
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use v1::node_service_capability::rpc::Type as NodeRpc;
use v1::plugin_capability::service::Type as PluginService;

/// A migration driver, so that volumes may be migrated in-tree ones.
pub(crate) const DRIVER: &str = "ebs.csi.aws.com";
pub(crate) const ZONE: &str = "topology.ebs.csi.aws.com/zone";

/// The driver's state and history.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub volumes: BTreeMap<String, String>,
    pub published: BTreeMap<String, BTreeSet<String>>,
    pub staged: BTreeSet<(String, String)>,
    pub mounted: BTreeSet<(String, String)>,
    /// The `grpc-timeout` of the last call of each method.
    pub timeouts: BTreeMap<&'static str, String>,
    /// Calls that violated a rule of CSI.
    pub violations: Vec<String>,
    /// The error of CreateVolume, if it fails after the volume was created.
    pub create_error: Option<Status>,
    /// The error of ControllerPublishVolume, if it fails.
    pub publish_error: Option<Status>,
    /// The error of NodeGetCapabilities, if it fails.
    pub capabilities_error: Option<Status>,
    /// The error of NodeStageVolume, if it fails.
    pub stage_error: Option<Status>,
    /// The error of NodePublishVolume, if it fails after the volume was mounted.
    pub node_publish_error: Option<Status>,
    /// The error of NodeUnstageVolume, if it fails.
    pub unstage_error: Option<Status>,
    pub topology: bool,
    pub limit: i64,
}

/// The driver on one node; empty for the controller.
#[derive(Clone, Debug)]
pub(crate) struct FakeDriver {
    state: Arc<Mutex<State>>,
    node: String,
    zone: String,
}

// === impl FakeDriver ===

impl FakeDriver {
    pub(crate) fn new() -> Self {
        Self {
            state: Arc::default(),
            node: String::new(),
            zone: String::new(),
        }
    }

    pub(crate) fn on_node(&self, node: &str, zone: &str) -> Self {
        Self {
            state: self.state.clone(),
            node: node.to_owned(),
            zone: zone.to_owned(),
        }
    }

    pub(crate) fn services(&self) -> Routes {
        Routes::new(IdentityServer::new(self.clone()))
            .add_service(ControllerServer::new(self.clone()))
            .add_service(NodeServer::new(self.clone()))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The effect of ControllerPublishVolume.
    pub(crate) fn attach(&self, volume: &str, node: &str) -> Result<(), Status> {
        let mut state = self.state();
        if let Some(error) = &state.publish_error {
            return Err(error.clone());
        }
        let nodes = state.published.entry(volume.to_owned()).or_default();
        nodes.insert(node.to_owned());
        if nodes.len() > 1 {
            let text = format!("{volume} is published to {nodes:?}");
            state.violations.push(text);
        }
        Ok(())
    }

    /// The effect of ControllerUnpublishVolume.
    pub(crate) fn detach(&self, volume: &str, node: &str) {
        let mut state = self.state();
        if let Some(nodes) = state.published.get_mut(volume) {
            nodes.remove(node);
        }
        state.published.retain(|_, nodes| !nodes.is_empty());
    }

    fn record_timeout<T>(&self, method: &'static str, request: &Request<T>) {
        let timeout = request.metadata().get("grpc-timeout");
        let timeout = timeout.map(|timeout| timeout.to_str().unwrap().to_owned());
        self.state().timeouts.insert(method, timeout.unwrap_or_default());
    }

    fn check(&self, ok: bool, text: &str) {
        if !ok {
            self.state().violations.push(format!("{}: {text}", self.node));
        }
    }
}

#[tonic::async_trait]
impl Identity for FakeDriver {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        Ok(Response::new(v1::GetPluginInfoResponse {
            name: DRIVER.to_owned(),
            ..Default::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        let mut types = vec![PluginService::ControllerService];
        if self.state().topology {
            types.push(PluginService::VolumeAccessibilityConstraints);
        }
        let capabilities = types.into_iter().map(|service| v1::PluginCapability {
            r#type: Some(v1::plugin_capability::Type::Service(
                v1::plugin_capability::Service {
                    r#type: service.into(),
                },
            )),
        });
        Ok(Response::new(v1::GetPluginCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }
}

#[tonic::async_trait]
impl Controller for FakeDriver {
    async fn create_volume(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Result<Response<v1::CreateVolumeResponse>, Status> {
        self.record_timeout("CreateVolume", &request);
        let request = request.into_inner();
        let volume_id = format!("vol-{}", request.name);
        self.state().volumes.insert(volume_id.clone(), request.name);
        if let Some(error) = &self.state().create_error {
            return Err(error.clone());
        }
        let preferred = request.accessibility_requirements.unwrap_or_default().preferred;
        Ok(Response::new(v1::CreateVolumeResponse {
            volume: Some(v1::Volume {
                volume_id,
                capacity_bytes: request.capacity_range.unwrap_or_default().required_bytes,
                accessible_topology: preferred.into_iter().take(1).collect(),
                ..Default::default()
            }),
        }))
    }

    async fn delete_volume(
        &self,
        request: Request<v1::DeleteVolumeRequest>,
    ) -> Result<Response<v1::DeleteVolumeResponse>, Status> {
        self.record_timeout("DeleteVolume", &request);
        let id = request.into_inner().volume_id;
        let attached = self.state().published.contains_key(&id);
        self.check(!attached, &format!("{id} is deleted while it is published"));
        self.state().volumes.remove(&id);
        Ok(Response::new(v1::DeleteVolumeResponse {}))
    }
}

#[tonic::async_trait]
impl Node for FakeDriver {
    async fn node_get_info(
        &self,
        request: Request<v1::NodeGetInfoRequest>,
    ) -> Result<Response<v1::NodeGetInfoResponse>, Status> {
        self.record_timeout("NodeGetInfo", &request);
        let segments = HashMap::from([(ZONE.to_owned(), self.zone.clone())]);
        let topology = self.state().topology.then_some(v1::Topology { segments });
        Ok(Response::new(v1::NodeGetInfoResponse {
            node_id: self.node.clone(),
            max_volumes_per_node: self.state().limit,
            accessible_topology: topology,
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<v1::NodeGetCapabilitiesResponse>, Status> {
        if let Some(error) = &self.state().capabilities_error {
            return Err(error.clone());
        }
        Ok(Response::new(v1::NodeGetCapabilitiesResponse {
            capabilities: vec![v1::NodeServiceCapability {
                r#type: Some(v1::node_service_capability::Type::Rpc(
                    v1::node_service_capability::Rpc {
                        r#type: NodeRpc::StageUnstageVolume.into(),
                    },
                )),
            }],
        }))
    }

    async fn node_stage_volume(
        &self,
        request: Request<v1::NodeStageVolumeRequest>,
    ) -> Result<Response<v1::NodeStageVolumeResponse>, Status> {
        self.record_timeout("NodeStageVolume", &request);
        let request = request.into_inner();
        if let Some(error) = &self.state().stage_error {
            return Err(error.clone());
        }
        let attached = self
            .state()
            .published
            .get(&request.volume_id)
            .is_some_and(|nodes| nodes.contains(&self.node));
        let needs_attach = !request.publish_context.is_empty();
        self.check(
            attached || !needs_attach,
            "staged before it was published to the node",
        );
        self.state().staged.insert((self.node.clone(), request.volume_id));
        Ok(Response::new(v1::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<v1::NodeUnstageVolumeRequest>,
    ) -> Result<Response<v1::NodeUnstageVolumeResponse>, Status> {
        self.record_timeout("NodeUnstageVolume", &request);
        let request = request.into_inner();
        if let Some(error) = &self.state().unstage_error {
            return Err(error.clone());
        }
        let mounted = self.state().mounted.iter().any(|(node, _)| *node == self.node);
        self.check(!mounted, "unstaged while it is mounted");
        self.state()
            .staged
            .remove(&(self.node.clone(), request.volume_id));
        Ok(Response::new(v1::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<v1::NodePublishVolumeRequest>,
    ) -> Result<Response<v1::NodePublishVolumeResponse>, Status> {
        self.record_timeout("NodePublishVolume", &request);
        let request = request.into_inner();
        let staged = self
            .state()
            .staged
            .contains(&(self.node.clone(), request.volume_id.clone()));
        self.check(staged, "published before it was staged");
        self.state()
            .mounted
            .insert((self.node.clone(), request.target_path));
        if let Some(error) = &self.state().node_publish_error {
            return Err(error.clone());
        }
        Ok(Response::new(v1::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<v1::NodeUnpublishVolumeResponse>, Status> {
        self.record_timeout("NodeUnpublishVolume", &request);
        let target = request.into_inner().target_path;
        self.state().mounted.remove(&(self.node.clone(), target));
        Ok(Response::new(v1::NodeUnpublishVolumeResponse {}))
    }
}
