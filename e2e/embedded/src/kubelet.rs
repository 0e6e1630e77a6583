//! The volume handling of kubelet: registers its node, mounts the volumes of its pods through the CSI driver,
//! reports `volumesInUse`, and runs the lifecycle of pods.
//!
//! One future owns all state. Dropping it simulates a crash: the state of mounted volumes stays on the node's disk,
//! and the next kubelet reconstructs them.

mod csi_mounter;
mod csi_unmounter;
mod desired_state_of_world_populator;
mod disk;
mod driver_registration;
mod mount_checks;
mod mount_spec;
mod node_info_manager;
mod node_registration;
mod node_status;
mod operation_result;
mod pod_status;
mod pod_workers;
mod process;
mod volume_manager;

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until};

use csi_mounter::CsiMounter;
use desired_state_of_world_populator::{DesiredStateOfWorldPopulator, ResolveError};
use driver_registration::CsiNodeUpdater;
use node_registration::NodeRegistration;
use operation_result::Finished;
use pod_status::PodStatusManager;
use pod_workers::{PodAction, PodWorkers};
use volume_manager::{Operation, Outcome, VolumeManager};

use crate::event_recorder::{EventRecorder, EventType};
use crate::informer::WatchBackoff;
use crate::injected_bug::InjectedBug;
use crate::volume::UniqueVolumeName;

pub use disk::NodeDisk;
pub use process::{KubeletConfig, KubeletProcess};

/// Default period of writing a node status that has not changed.
pub const DEFAULT_NODE_STATUS_REPORT_FREQUENCY: Duration = HEARTBEAT;
/// Period of renewing the lease, and of checking whether the node status must be written.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Delay before a failed registration is retried.
const REGISTRATION_RETRY: Duration = Duration::from_secs(1);
/// Delay of the reconciler's next sync after a failed operation. Without it, two operations on one volume that both
/// fail immediately would alternate endlessly: each replaces the other's backoff.
const LOOP_PERIOD: Duration = Duration::from_millis(100);
/// Delay before a failed write of `volumesInUse` is retried.
const IN_USE_RETRY: Duration = Duration::from_millis(500);

/// A request to a running kubelet.
#[derive(Clone, Debug)]
enum Command {
    /// The driver was restarted: call NodeGetInfo and register it again.
    RegisterDriver,
    /// The containers of the pod with this UID exited with this code.
    ExitContainers(String, i32),
}

/// One node's kubelet.
struct Kubelet {
    config: KubeletConfig,
    recorder: EventRecorder,
    registration: NodeRegistration,
    mounter: CsiMounter,
    populator: DesiredStateOfWorldPopulator,
    pod_status: PodStatusManager,
    /// The Node of kubelet's start, which owns the CSINode.
    registered_node: Node,
    node: Node,
    updater: CsiNodeUpdater,
    volumes: VolumeManager,
    pods: PodWorkers,
    listed: Vec<String>,
    /// The first list of pods is complete.
    synced: bool,
    /// The pods of the first list are in the desired state of world; before that, every mount would look orphaned.
    populated: bool,
    /// Earliest start of the reconciler's next sync after a failed operation.
    next_round: Option<Instant>,
    /// The `volumesInUse` that the API server has; unknown after a start.
    stored_in_use: Option<BTreeSet<UniqueVolumeName>>,
    storing_in_use: bool,
    /// Time of the next write of a node status that has not changed.
    next_status_report: Instant,
    running: FuturesUnordered<BoxFuture<'static, Report>>,
}

/// The result of an asynchronous step of kubelet.
enum Report {
    DriverRegistered(String),
    OperationFinished(Box<Operation>, Finished),
    Resolved(String, Result<Vec<mount_spec::MountSpec>, ResolveError>),
    /// The pod with this UID has a volume beyond the node's attach limit.
    AttachLimitExceeded(String),
    InUseStored(BTreeSet<UniqueVolumeName>),
    Started(String),
    Stopped(String),
    /// Whether writing the node status failed.
    HeartbeatEnded(bool),
    Nothing,
}

/// Runs a kubelet until the future is dropped.
async fn run(config: KubeletConfig, recorder: EventRecorder, commands: UnboundedReceiver<Command>) {
    let registration = NodeRegistration {
        client: config.client.clone(),
        clock: config.clock.clone(),
        name: config.name.clone(),
        labels: config.labels.clone(),
    };
    let node = loop {
        match registration.register().await {
            Ok(node) => break node,
            Err(error) => tracing::debug!(node = config.name, %error, "node was not registered"),
        }
        sleep(REGISTRATION_RETRY).await;
    };
    let mut volumes = VolumeManager::default();
    for volume in config.disk.volumes() {
        if config.injected_bug == Some(InjectedBug::FailedReconstruction) {
            continue;
        }
        volumes.add_reconstructed(volume.spec, volume.pod.as_deref());
    }
    let mut kubelet = Kubelet {
        mounter: CsiMounter::new(config.client.clone(), &config.name, None, config.disk.clone()),
        populator: DesiredStateOfWorldPopulator {
            client: config.client.clone(),
        },
        pod_status: PodStatusManager {
            client: config.client.clone(),
            clock: config.clock.clone(),
        },
        next_status_report: Instant::now() + config.node_status_report_frequency,
        config,
        recorder,
        registration,
        registered_node: node.clone(),
        node,
        updater: CsiNodeUpdater::new(),
        volumes,
        pods: PodWorkers::default(),
        listed: Vec::new(),
        synced: false,
        populated: false,
        next_round: None,
        stored_in_use: None,
        storing_in_use: false,
        running: FuturesUnordered::new(),
    };
    kubelet.register_driver();
    kubelet.run(commands).await;
}

// === impl Kubelet: loop ===

impl Kubelet {
    async fn run(&mut self, mut commands: UnboundedReceiver<Command>) {
        let pods = Api::<Pod>::all(self.config.client.clone());
        let mine = watcher::Config::default().fields(&format!("spec.nodeName={}", self.config.name));
        let mut pods = watcher(pods, mine).backoff(WatchBackoff::default()).boxed();
        let nodes = Api::<Node>::all(self.config.client.clone());
        let myself = watcher::Config::default().fields(&format!("metadata.name={}", self.config.name));
        let mut nodes = watcher(nodes, myself).backoff(WatchBackoff::default()).boxed();
        let mut heartbeat = interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.sync();
            let now = Instant::now();
            let wake = self
                .volumes
                .next_retry(now)
                .into_iter()
                .chain(self.pods.next_due())
                .chain(self.next_round)
                .chain(self.updater.due)
                .min();
            tokio::select! {
                biased;
                Some(report) = self.running.next(), if !self.running.is_empty() => self.handle_report(report),
                Some(event) = pods.next() => self.pod_event(event),
                Some(event) = nodes.next() => self.node_event(event),
                Some(event) = self.updater.drivers.next() => self.driver_event(event),
                Some(command) = commands.recv() => self.command(command),
                due = heartbeat.tick() => self.beat(due),
                () = sleep_until(wake.unwrap_or(now)), if wake.is_some() => {}
            }
        }
    }

    fn sync(&mut self) {
        let now = Instant::now();
        self.update_driver_if_due(now);
        for action in self.pods.actions(&mut self.volumes, now) {
            self.start_pod_action(action);
        }
        self.populated |= self.synced && self.pods.all_resolved_once();
        if !self.populated {
            return;
        }
        // A new pod may use a volume that is still mounted for an earlier pod.
        if let (Some(stored), false) = (&self.stored_in_use, self.storing_in_use) {
            self.volumes.mark_volumes_as_reported_in_use(stored);
        }
        if self.next_round.is_none_or(|next| now >= next) {
            self.next_round = None;
            for operation in self.volumes.reconcile(now) {
                self.start_operation(operation);
            }
        }
        self.store_in_use();
    }

    fn handle_report(&mut self, report: Report) {
        let now = Instant::now();
        match report {
            Report::DriverRegistered(name) => self.driver_registered(name),
            Report::OperationFinished(operation, finished) => self.operation_finished(&operation, finished),
            Report::Resolved(uid, specs) => self.pods.resolved(&uid, specs, &mut self.volumes, now),
            Report::AttachLimitExceeded(uid) => self.reject_pod(&uid),
            Report::InUseStored(stored) => {
                self.volumes.mark_volumes_as_reported_in_use(&stored);
                self.stored_in_use = Some(stored);
                self.storing_in_use = false;
            }
            Report::Started(uid) => self.pods.started(&uid),
            Report::Stopped(uid) => self.pods.stopped(&uid, &mut self.volumes),
            Report::HeartbeatEnded(failed) => {
                if failed {
                    self.next_status_report = now;
                }
            }
            Report::Nothing => {}
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::RegisterDriver => self.register_driver(),
            Command::ExitContainers(pod, code) => self.pods.exited(&pod, code),
        }
    }

    fn pod_event(&mut self, event: watcher::Result<Event<Pod>>) {
        match event {
            Ok(Event::Init) => self.listed.clear(),
            Ok(Event::InitApply(pod)) => {
                self.listed.push(pod.uid().unwrap_or_default());
                self.pods.apply(pod);
            }
            Ok(Event::InitDone) => {
                self.pods.keep_only(&self.listed, &mut self.volumes);
                self.synced = true;
            }
            Ok(Event::Apply(pod)) => self.pods.apply(pod),
            Ok(Event::Delete(pod)) => {
                self.pods
                    .remove(&pod.uid().unwrap_or_default(), &mut self.volumes);
            }
            Err(error) => tracing::debug!(node = self.config.name, %error, "watch of pods failed"),
        }
    }
}

// === impl Kubelet: actions ===

impl Kubelet {
    fn start_pod_action(&mut self, action: PodAction) {
        let status = self.pod_status.clone();
        let doing = match action {
            PodAction::Resolve(pod) => {
                let populator = self.populator.clone();
                async move {
                    let specs = populator.resolve(&pod).await;
                    Report::Resolved(pod.uid().unwrap_or_default(), specs)
                }
                .boxed()
            }
            PodAction::Start(pod) => async move {
                status.report_running(&pod).await;
                Report::Started(pod.uid().unwrap_or_default())
            }
            .boxed(),
            PodAction::Stop(pod, exit_code) => async move {
                status.report_stopped(&pod, exit_code).await;
                Report::Stopped(pod.uid().unwrap_or_default())
            }
            .boxed(),
            PodAction::Remove(pod) => async move {
                status.remove(&pod).await;
                Report::Nothing
            }
            .boxed(),
            PodAction::VerifyAttachLimit(pod) => return self.verify_attach_limit(&pod),
            PodAction::ReportFailedMount(pod, message) => {
                self.recorder
                    .event(&*pod, EventType::Warning, "FailedMount", &message);
                return;
            }
        };
        self.running.push(doing);
    }

    fn start_operation(&mut self, operation: Operation) {
        let mounter = self.mounter.clone();
        let pod = match &operation {
            Operation::MountVolume { spec, pod, .. } => {
                if let Some(finished) = self.refuse_mount(spec, pod) {
                    let report = Report::OperationFinished(Box::new(operation), finished);
                    self.running.push(std::future::ready(report).boxed());
                    return;
                }
                self.pods.get(pod).cloned()
            }
            Operation::VerifyControllerAttachedVolume(_)
            | Operation::UnmountVolume { .. }
            | Operation::UnmountDevice(_) => None,
        };
        self.running.push(
            async move {
                let finished = mounter.run(&operation, pod.as_ref()).await;
                Report::OperationFinished(Box::new(operation), finished)
            }
            .boxed(),
        );
    }

    fn operation_finished(&mut self, operation: &Operation, finished: Finished) {
        let now = Instant::now();
        if finished.outcome != Outcome::Done {
            self.next_round.get_or_insert(now + LOOP_PERIOD);
        }
        self.volumes.finish(operation, finished.outcome, now);
        match operation {
            Operation::MountVolume { spec, pod, .. } => {
                self.remove_unmounted_records(spec, pod, finished.outcome);
                if let Some(pod) = self.pods.get(pod) {
                    self.record_mount(pod, spec, finished);
                }
            }
            Operation::VerifyControllerAttachedVolume(_)
            | Operation::UnmountVolume { .. }
            | Operation::UnmountDevice(_) => {}
        }
    }

    /// Removes volumes from the disk that are certainly not mounted: a restarted kubelet must reconstruct the
    /// actual state of world.
    fn remove_unmounted_records(&self, spec: &mount_spec::MountSpec, pod: &str, outcome: Outcome) {
        let disk = &self.config.disk;
        match outcome {
            Outcome::NotStaged if !self.volumes.may_be_staged(&spec.unique_name) => {
                disk.remove(&disk.staging_path(spec));
            }
            Outcome::NotPublished if self.volumes.mount_state(&spec.unique_name, pod).is_none() => {
                disk.remove(&disk.target_path(spec, pod));
            }
            Outcome::Done
            | Outcome::NotAttachedYet
            | Outcome::Failed
            | Outcome::NotStaged
            | Outcome::StageUncertain
            | Outcome::PublishNotCalled
            | Outcome::NotPublished
            | Outcome::PublishUncertain => {}
        }
    }
}
