//! kube-controller-manager and kube-scheduler as one future, external-provisioner as another.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Client;

use crate::apiserver::Clock;
use crate::attach_detach::{AttachDetachController, AttachDetachOptions, AttachDetachView};
use crate::driver_connection::DriverConnection;
use crate::event_recorder::EventBroadcaster;
use crate::garbage_collector::GarbageCollector;
use crate::informers::{Informers, ProvisionerInformers, run_all};
use crate::namespace_controller::NamespaceController;
use crate::node_lifecycle::NodeLifecycleController;
use crate::persistent_volume::{
    EphemeralVolumeController, PersistentVolumeController, ProtectionController, Provisioner,
};
use crate::pod_gc::PodGc;
use crate::scheduler::Scheduler;
use crate::taint_eviction::{self, TaintEvictionController};

/// Configuration of a control plane.
#[derive(Clone)]
pub(crate) struct ControlPlaneConfig {
    pub client: Client,
    pub clock: Clock,
    pub seed: u64,
    pub attach_detach: AttachDetachOptions,
    pub node_monitor_grace_period: Duration,
}

/// Assembles the controllers. Dropping the future simulates a crash of all of them.
pub(crate) fn control_plane(config: ControlPlaneConfig) -> (AttachDetachView, BoxFuture<'static, ()>) {
    let ControlPlaneConfig {
        client,
        clock,
        seed,
        attach_detach,
        node_monitor_grace_period,
    } = config;
    let informers = Informers::default();
    let events = EventBroadcaster::new(client.clone(), clock.clone());
    let attach_detach = AttachDetachController::new(
        client.clone(),
        informers.clone(),
        events.recorder("attachdetach-controller", ""),
        fastrand::Rng::with_seed(seed),
        attach_detach,
    );
    let view = attach_detach.view();
    let pv_controller = PersistentVolumeController {
        client: client.clone(),
        informers: informers.clone(),
        recorder: events.recorder("persistentvolume-controller", ""),
    };
    let ephemeral = EphemeralVolumeController {
        client: client.clone(),
        informers: informers.clone(),
        recorder: events.recorder("ephemeral_volume", ""),
    };
    let protection = ProtectionController {
        client: client.clone(),
        informers: informers.clone(),
    };
    let scheduler = Scheduler {
        client: client.clone(),
        informers: informers.clone(),
        recorder: events.recorder("default-scheduler", ""),
        clock: clock.clone(),
    };
    let node_lifecycle = NodeLifecycleController {
        client: client.clone(),
        informers: informers.clone(),
        recorder: events.recorder("node-controller", ""),
        clock: clock.clone(),
        monitor_grace_period: node_monitor_grace_period,
    };
    let taint_eviction = TaintEvictionController {
        client: client.clone(),
        informers: informers.clone(),
        recorder: events.recorder(taint_eviction::COMPONENT, ""),
        clock: clock.clone(),
    };
    // Each `run` subscribes when it is called, before the informers start.
    let running: Vec<BoxFuture<'static, ()>> = vec![
        attach_detach.run(),
        pv_controller.run().boxed(),
        ephemeral.run().boxed(),
        protection.run().boxed(),
        scheduler.run().boxed(),
        node_lifecycle.run().boxed(),
        taint_eviction.run().boxed(),
        controllers_without_events(&client, &clock, &informers).boxed(),
        informers.run(client).boxed(),
        events.run().boxed(),
    ];
    (view, run_all(running).boxed())
}

/// Runs the controllers that record no events. They subscribe when this function is called, and not when its future is polled.
fn controllers_without_events(
    client: &Client,
    clock: &Clock,
    informers: &Informers,
) -> impl Future<Output = ()> + Send + 'static {
    let namespaces = NamespaceController {
        client: client.clone(),
        informers: informers.clone(),
    };
    let pod_gc = PodGc {
        clock: clock.clone(),
        client: client.clone(),
        informers: informers.clone(),
    };
    let garbage_collector = GarbageCollector {
        client: client.clone(),
        informers: informers.clone(),
    };
    run_all([
        pod_gc.run().boxed(),
        namespaces.run().boxed(),
        garbage_collector.run().boxed(),
    ])
}

/// The external-provisioner of one driver. Dropping the future simulates its crash.
pub(crate) fn provisioner(client: Client, clock: Clock, driver: DriverConnection) -> BoxFuture<'static, ()> {
    let informers = ProvisionerInformers::default();
    let events = EventBroadcaster::new(client.clone(), clock);
    let provisioner = Provisioner {
        client: client.clone(),
        informers: informers.clone(),
        recorder: events.recorder("external-provisioner", ""),
        driver,
    };
    // It subscribes before the informers start.
    let running: Vec<BoxFuture<'static, ()>> = vec![
        provisioner.run().boxed(),
        informers.run(client).boxed(),
        events.run().boxed(),
    ];
    run_all(running).boxed()
}
