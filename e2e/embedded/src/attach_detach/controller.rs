//! Assembles the controller and handles the events of the informers.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::{Client, ResourceExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::sleep;

use super::actual_state_of_world::AttachState;
use super::csi_plugin::CsiPlugin;
use super::desired_state_of_world_populator::DesiredStateOfWorldPopulator;
use super::node_status_updater::NodeStatusUpdater;
use super::operation_executor::{OperationExecutor, run_operations};
use super::pod_volumes::{create_volume_spec, determine_volume_action, process_pod_volumes};
use super::pods_by_claim::PodsByClaim;
use super::reconciler::{ForceDetach, Reconciler};
use super::state_sync::StateSync;
use super::view::AttachDetachView;
use super::{SharedState, State};
use crate::event_recorder::EventRecorder;
use crate::informer::{Change, key_of};
use crate::informers::{Informers, run_all};
use crate::injected_bug::InjectedBug;
use crate::node;
use crate::persistent_volume::claim_phase;
use crate::pod;
use crate::volume::{UniqueVolumeName, VolumeSpec};

/// The attach/detach controller.
pub(crate) struct AttachDetachController {
    client: Client,
    informers: Informers,
    recorder: EventRecorder,
    plugin: Arc<CsiPlugin>,
    state: Arc<SharedState>,
    options: AttachDetachOptions,
}

/// Flags and timer constants of the attach/detach controller.
#[derive(Clone, Debug)]
pub struct AttachDetachOptions {
    /// When to force-detach a volume that is still mounted.
    pub force_detach: ForceDetach,
    /// `--attach-detach-reconcile-sync-period`: period of verifying the attached volumes.
    pub reconcile_sync_period: Duration,
    /// Timeout of waiting for the external-attacher.
    pub csi_timeout: Duration,
    /// `DesiredStateOfWorldPopulatorLoopSleepPeriod`: period of removing deleted pods from the desired state of world.
    pub populator_loop_sleep_period: Duration,
    /// `DesiredStateOfWorldPopulatorListPodsRetryDuration`: period of adding pods whose events the controller missed.
    pub populator_list_pods_retry_duration: Duration,
    /// Receives volume and node of each detach of a volume that is still mounted, before the VolumeAttachment is deleted, if the node
    /// is not ready or is out of service as the controller knows it.
    pub forced_detaches: Option<UnboundedSender<(UniqueVolumeName, String)>>,
    /// A bug to inject.
    pub injected_bug: Option<InjectedBug>,
}

/// Handles the events of the informers.
struct EventHandlers {
    informers: Informers,
    plugin: Arc<CsiPlugin>,
    state: Arc<SharedState>,
    pods_by_claim: PodsByClaim,
    injected_bug: Option<InjectedBug>,
}

// === impl AttachDetachOptions ===

impl Default for AttachDetachOptions {
    fn default() -> Self {
        Self {
            force_detach: ForceDetach::default(),
            reconcile_sync_period: Duration::from_secs(60),
            csi_timeout: Duration::from_secs(2 * 60),
            populator_loop_sleep_period: Duration::from_secs(60),
            populator_list_pods_retry_duration: Duration::from_secs(3 * 60),
            forced_detaches: None,
            injected_bug: None,
        }
    }
}

// === impl AttachDetachController ===

impl AttachDetachController {
    pub(crate) fn new(
        client: Client,
        informers: Informers,
        recorder: EventRecorder,
        rng: fastrand::Rng,
        options: AttachDetachOptions,
    ) -> Self {
        let plugin = CsiPlugin::new(client.clone(), informers.clone(), rng, options.csi_timeout);
        Self {
            plugin: Arc::new(plugin),
            state: Arc::default(),
            client,
            informers,
            recorder,
            options,
        }
    }

    /// A view of the controller's state.
    pub(crate) fn view(&self) -> AttachDetachView {
        AttachDetachView::new(self.state.clone(), self.informers.clone())
    }

    /// Runs until the future is dropped. Call this before the informers start, so that the controller misses no change.
    pub(crate) fn run(self) -> BoxFuture<'static, ()> {
        let pods = self.informers.pods.subscribe();
        let nodes = self.informers.nodes.subscribe();
        let claims = self.informers.claims.subscribe();
        async move {
            self.informers.wait_for_sync().await;
            let handlers = EventHandlers {
                informers: self.informers.clone(),
                plugin: self.plugin.clone(),
                state: self.state.clone(),
                pods_by_claim: PodsByClaim::default(),
                injected_bug: self.options.injected_bug,
            };
            handlers.populate_actual_state_of_world();
            handlers.populate_desired_state_of_world();
            let late_population = handlers.late_population();
            let (executor, operations) = OperationExecutor::new(
                self.state.clone(),
                self.plugin.clone(),
                self.recorder,
                self.options.injected_bug,
            );
            let reconciler = Reconciler {
                state: self.state.clone(),
                nodes: self.informers.nodes.clone(),
                executor,
                node_status_updater: NodeStatusUpdater::new(
                    self.client,
                    self.informers.nodes.clone(),
                    self.state.clone(),
                ),
                force_detach: self.options.force_detach,
                forced_detaches: self.options.forced_detaches.clone(),
                injected_bug: self.options.injected_bug,
            };
            let sync = StateSync {
                state: self.state.clone(),
                plugin: self.plugin.clone(),
                period: self.options.reconcile_sync_period,
            };
            let populator = DesiredStateOfWorldPopulator {
                state: self.state,
                informers: self.informers,
                plugin: self.plugin,
                options: self.options,
            };
            let loops: [BoxFuture<'static, ()>; 6] = [
                handlers.run(pods, nodes, claims).boxed(),
                late_population,
                populator.run().boxed(),
                reconciler.run().boxed(),
                sync.run().boxed(),
                run_operations(operations).boxed(),
            ];
            run_all(loops).await;
        }
        .boxed()
    }
}

// === impl EventHandlers: recovery at start ===

impl EventHandlers {
    fn populate_actual_state_of_world(&self) {
        let mut state = self.state.lock();
        for node in self.informers.nodes.list() {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let status = node.status.clone().unwrap_or_default();
            for volume in status.volumes_attached.unwrap_or_default() {
                // A pod that uses the volume adds the spec. Without such a pod the volume is detached, which needs no
                // spec.
                state
                    .actual
                    .mark_volume_as_attached(&volume.name, None, name, &volume.device_path);
                state.mark_unsettled(&volume.name, name);
            }
            let in_use = status.volumes_in_use.unwrap_or_default();
            state.actual.set_volumes_mounted_by_node(&in_use, name);
            add_node(&mut state, &node);
        }
        self.process_volume_attachments(&mut state);
    }

    /// Marks volumes as uncertain that have a VolumeAttachment and are not reported as attached: the reconciler attaches
    /// or detaches them.
    fn process_volume_attachments(&self, state: &mut State) {
        for attachment in self.informers.attachments.list() {
            let Some(volume) = &attachment.spec.source.persistent_volume_name else {
                continue;
            };
            let Some(volume) = self.informers.volumes.get("", volume) else {
                continue;
            };
            let Some(spec) = VolumeSpec::from_persistent_volume(&volume) else {
                continue;
            };
            let (mut name, node) = (spec.unique_name(), &attachment.spec.node_name);
            let migrated = volume.spec.as_ref().is_some_and(|spec| spec.csi.is_none());
            if !migrated && !self.plugin.can_attach(&spec.driver) {
                continue;
            }
            if migrated && self.injected_bug == Some(InjectedBug::MigratedVolumeNotRecognized) {
                name = format!("kubernetes.io/in-tree/{}", spec.handle);
            }
            if state.actual.attach_state(&name, node) == AttachState::Detached {
                state
                    .actual
                    .mark_volume_as_uncertain(&name, Some(Arc::new(spec)), node);
                state.mark_unsettled(&name, node);
            }
        }
    }

    /// With the injected bug, adds the current pods to the desired state a few seconds later, as a controller with many
    /// pods does.
    fn late_population(&self) -> BoxFuture<'static, ()> {
        if self.injected_bug != Some(InjectedBug::DeletedPodStaysDesired) {
            return std::future::ready(()).boxed();
        }
        let pods = self.informers.pods.list();
        let (state, informers, plugin) = (self.state.clone(), self.informers.clone(), self.plugin.clone());
        async move {
            sleep(Duration::from_secs(5)).await;
            for pod in pods.iter().filter(|pod| determine_volume_action(pod)) {
                process_pod_volumes(pod, true, &mut state.lock(), &informers, &plugin);
            }
        }
        .boxed()
    }

    fn populate_desired_state_of_world(&self) {
        for pod in self.informers.pods.list() {
            self.pod_applied(&pod);
            let Some(node) = pod::node_name(&pod) else {
                continue;
            };
            for volume in pod::volumes(&pod) {
                let Some(spec) = create_volume_spec(&pod, volume, &self.informers, &self.plugin) else {
                    continue;
                };
                let name = spec.unique_name();
                let mut state = self.state.lock();
                if state.actual.attach_state(&name, node) == AttachState::Attached {
                    state.actual.mark_volume_as_attached(&name, Some(spec), node, "");
                }
            }
        }
    }
}

// === impl EventHandlers: changes ===

impl EventHandlers {
    async fn run(
        mut self,
        mut pods: UnboundedReceiver<Change<Pod>>,
        mut nodes: UnboundedReceiver<Change<Node>>,
        mut claims: UnboundedReceiver<Change<PersistentVolumeClaim>>,
    ) {
        loop {
            tokio::select! {
                biased;
                Some(change) = nodes.recv() => self.node_changed(&change),
                Some(change) = pods.recv() => self.pod_changed(&change),
                Some(change) = claims.recv() => self.claim_changed(&change),
                else => return,
            }
        }
    }

    fn pod_changed(&mut self, change: &Change<Pod>) {
        self.pods_by_claim.apply(change);
        match change {
            Change::Applied { new, .. } => self.pod_applied(new),
            Change::Deleted(pod) => self.process(pod, false),
        }
    }

    fn pod_applied(&self, pod: &Pod) {
        if pod::node_name(pod).is_some() {
            let add = determine_volume_action(pod);
            self.process(pod, add);
        }
    }

    fn process(&self, pod: &Pod, add: bool) {
        process_pod_volumes(pod, add, &mut self.state.lock(), &self.informers, &self.plugin);
    }

    /// Adds the volume of a bound claim to the pods that wait for it.
    fn claim_changed(&self, change: &Change<PersistentVolumeClaim>) {
        let Change::Applied { new: claim, .. } = change else {
            return;
        };
        if claim_phase(claim) != "Bound" {
            return;
        }
        for (namespace, name) in self.pods_by_claim.get(&key_of(&**claim)) {
            if let Some(pod) = self.informers.pods.get(namespace, name)
                && !pod::is_terminated(&pod)
            {
                self.pod_applied(&pod);
            }
        }
    }

    fn node_changed(&self, change: &Change<Node>) {
        let mut state = self.state.lock();
        let node = change.object();
        let name = node.metadata.name.as_deref().unwrap_or_default();
        match change {
            Change::Applied { old, .. } => {
                add_node(&mut state, node);
                if old.is_none() {
                    // A re-created node has lost its `volumesAttached`.
                    state.actual.set_node_status_update_needed(name);
                }
            }
            Change::Deleted(_) => {
                if let Err(error) = state.desired.delete_node(name) {
                    tracing::debug!(%error, "node was deleted");
                }
            }
        }
        let in_use = node
            .status
            .as_ref()
            .and_then(|status| status.volumes_in_use.as_deref());
        // While a volume waits for its detach, the reconciler checks it anyway, so changes of `volumesInUse`, health and
        // taints need no handling here.
        state
            .actual
            .set_volumes_mounted_by_node(in_use.unwrap_or_default(), name);
    }
}

/// Adds a node if it has controller-managed attach and detach.
fn add_node(state: &mut State, object: &Node) {
    if object.annotations().contains_key(node::CONTROLLER_MANAGED_ATTACH) {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        state.desired.add_node(name);
    }
}
