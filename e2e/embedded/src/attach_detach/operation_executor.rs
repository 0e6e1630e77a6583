//! Runs attach and detach operations concurrently with the reconciler, at most one per volume, or per volume and
//! node if the volume may be attached to several nodes.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::SharedState;
use super::actual_state_of_world::AttachedVolume;
use super::csi_plugin::CsiPlugin;
use super::desired_state_of_world::{PodToAdd, VolumeToAttach};
use crate::event_recorder::{EventRecorder, EventType};
use crate::injected_bug::InjectedBug;
use crate::nestedpendingoperations::{NestedPendingOperations, NotStarted, OperationKey};
use crate::volume::VolumeSpec;

const ATTACH_OPERATION: &str = "volume_attach";
pub(crate) const DETACH_OPERATION: &str = "volume_detach";

/// Starts operations; [`run_operations`] executes them.
#[derive(Clone)]
pub(crate) struct OperationExecutor {
    state: Arc<SharedState>,
    plugin: Arc<CsiPlugin>,
    recorder: EventRecorder,
    queue: mpsc::UnboundedSender<BoxFuture<'static, ()>>,
    injected_bug: Option<InjectedBug>,
}

// === impl OperationExecutor ===

impl OperationExecutor {
    /// The executor, and a receiver of the operations it starts. At most one is queued per volume, so the queue
    /// is bounded by the number of volumes.
    pub(crate) fn new(
        state: Arc<SharedState>,
        plugin: Arc<CsiPlugin>,
        recorder: EventRecorder,
        injected_bug: Option<InjectedBug>,
    ) -> (Self, mpsc::UnboundedReceiver<BoxFuture<'static, ()>>) {
        let (queue, operations) = mpsc::unbounded_channel();
        let executor = Self {
            state,
            plugin,
            recorder,
            queue,
            injected_bug,
        };
        (executor, operations)
    }

    /// Starts to attach a volume.
    pub(crate) fn attach_volume(&self, volume: VolumeToAttach) -> Result<(), NotStarted> {
        let key = operation_key(&volume.volume_name, Some(&volume.spec), &volume.node_name);
        self.start(&key, ATTACH_OPERATION, &volume.node_name)?;
        let executor = self.clone();
        self.enqueue(
            async move {
                let succeeded = executor.run_attach(&volume).await;
                executor.finish(&key, succeeded, &volume.node_name);
            }
            .boxed(),
        );
        Ok(())
    }

    /// Starts to detach a volume. `verify`: check that the node does not use it; false for a forced detach.
    pub(crate) fn detach_volume(&self, volume: AttachedVolume, verify: bool) -> Result<(), NotStarted> {
        let key = operation_key(&volume.volume_name, volume.spec.as_deref(), &volume.node_name);
        self.start(&key, DETACH_OPERATION, &volume.node_name)?;
        let executor = self.clone();
        self.enqueue(
            async move {
                let succeeded = executor.run_detach(&volume, verify).await;
                executor.finish(&key, succeeded, &volume.node_name);
            }
            .boxed(),
        );
        Ok(())
    }

    /// Records an event about a pod.
    pub(crate) fn pod_event(&self, pod: &PodToAdd, kind: EventType, reason: &str, message: &str) {
        self.recorder
            .event_about(pod_reference(pod), kind, reason, message);
    }

    async fn run_attach(&self, volume: &VolumeToAttach) -> bool {
        let name = &volume.spec.name;
        match self.plugin.attach(&volume.spec, &volume.node_name).await {
            Ok(()) => {
                self.state.lock().actual.mark_volume_as_attached(
                    &volume.volume_name,
                    Some(volume.spec.clone()),
                    &volume.node_name,
                    "",
                );
                let message = format!("AttachVolume.Attach succeeded for volume {name:?} ");
                for pod in &volume.scheduled_pods {
                    self.pod_event(pod, EventType::Normal, "SuccessfulAttachVolume", &message);
                }
                true
            }
            Err(error) => {
                self.state.lock().actual.mark_volume_as_uncertain(
                    &volume.volume_name,
                    Some(volume.spec.clone()),
                    &volume.node_name,
                );
                let message = format!("AttachVolume.Attach failed for volume {name:?} : {error}");
                for pod in &volume.scheduled_pods {
                    self.pod_event(pod, EventType::Warning, "FailedAttachVolume", &message);
                }
                false
            }
        }
    }

    async fn run_detach(&self, volume: &AttachedVolume, verify: bool) -> bool {
        let (name, node) = (&volume.volume_name, &volume.node_name);
        let detached = async {
            if verify {
                self.plugin
                    .verify_safe_to_detach(name, volume.spec.as_deref(), node)
                    .boxed()
                    .await?;
            }
            let mut name = name.clone();
            if let (Some(spec), Some(InjectedBug::MigratedVolumeNotRecognized)) =
                (&volume.spec, self.injected_bug)
            {
                name = spec.unique_name();
            }
            self.plugin.detach(&name, node).await
        };
        match detached.await {
            Ok(()) => {
                self.state.lock().actual.mark_volume_as_detached(name, node);
                true
            }
            Err(error) => {
                tracing::debug!(volume = %name, %node, %error, "DetachVolume.Detach failed");
                let actual = &mut self.state.lock().actual;
                if self.injected_bug == Some(InjectedBug::AttachedAfterFailedDetach) {
                    actual.add_volume_to_report_as_attached(name, node);
                } else {
                    // Only a successful attach adds the volume to the node's `volumesAttached` again.
                    actual.mark_volume_as_uncertain(name, volume.spec.clone(), node);
                }
                false
            }
        }
    }

    fn start(&self, key: &OperationKey, name: &'static str, node: &str) -> Result<(), NotStarted> {
        let mut state = self.state.lock();
        state.pending.start(key, name, Instant::now())?;
        state.unsettled.remove(&(key.volume.clone(), node.to_owned()));
        Ok(())
    }

    fn finish(&self, key: &OperationKey, succeeded: bool, node: &str) {
        let mut state = self.state.lock();
        state.pending.finish(key, succeeded, Instant::now());
        state.mark_unsettled(&key.volume, node);
    }

    fn enqueue(&self, operation: BoxFuture<'static, ()>) {
        // The send fails only if the controller, and so its operations, were dropped.
        drop(self.queue.send(operation));
    }
}

// === functions ===

/// Executes operations until the channel is closed.
pub(crate) async fn run_operations(mut operations: mpsc::UnboundedReceiver<BoxFuture<'static, ()>>) {
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(()) = running.next(), if !running.is_empty() => {}
            Some(operation) = operations.recv() => running.push(operation),
            else => return,
        }
    }
}

/// A volume for a single node must not be attached and detached concurrently, on any nodes.
fn operation_key(volume: &str, spec: Option<&VolumeSpec>, node: &str) -> OperationKey {
    OperationKey::on_node(volume, key_node(spec, node))
}

/// Whether an operation of this key is pending; does not allocate.
pub(crate) fn is_operation_pending(
    pending: &NestedPendingOperations,
    volume: &str,
    spec: Option<&VolumeSpec>,
    node: &str,
) -> bool {
    pending.is_operation_pending(volume, "", key_node(spec, node))
}

/// The node of an operation's key; empty, which matches any, for a volume of a single node.
pub(crate) fn key_node<'a>(spec: Option<&VolumeSpec>, node: &'a str) -> &'a str {
    match spec {
        Some(spec) if !spec.is_multi_attach_allowed() => "",
        Some(_) | None => node,
    }
}

fn pod_reference(pod: &PodToAdd) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}
