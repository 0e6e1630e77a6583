//! Fault injection of the simulation.

use std::time::Duration;

use csi_mock_driver::fault::{self, Origin};
use embedded_cluster::apiserver::{Fault, Rule, Status};
use embedded_cluster::cluster::{CONTROLLERS, KUBELETS, PROVISIONERS};
use fastrand::Rng;
use jiff::SignedDuration;

use crate::history::{FaultInjector, REPLICAS, Step};
use crate::world::NODES;

/// A fault of the API server.
#[derive(Clone, Copy, Debug)]
enum ApiFault {
    Latency,
    StorageTimeout,
    TooManyRequests,
    Conflict,
    LostResponse,
    LostRequest,
    DroppedWatch,
    /// Writes of the attacher are executed late.
    LateExecution,
    StaleWatch,
}

const API_FAULTS: [ApiFault; 9] = [
    ApiFault::Latency,
    ApiFault::StorageTimeout,
    ApiFault::TooManyRequests,
    ApiFault::Conflict,
    ApiFault::LostResponse,
    ApiFault::LostRequest,
    ApiFault::DroppedWatch,
    ApiFault::LateExecution,
    ApiFault::StaleWatch,
];
const ATTACHER: &str = "csi-attacher";
/// The clients of the API server, for faults of a single one.
const CLIENTS: [&str; 4] = [ATTACHER, CONTROLLERS, KUBELETS, PROVISIONERS];

// === impl FaultInjector ===

impl FaultInjector {
    pub(crate) async fn move_pod(&mut self) {
        let pods = self.world.users.wanted();
        let pod = self.random.usize(..pods.len());
        let force = self.random.u32(..5) == 0;
        self.world.users.delete(&pods[pod], force).await;
    }

    pub(crate) async fn delete_claim(&mut self) {
        let pods = self.world.users.wanted();
        let pod = self.random.usize(..pods.len());
        self.world.users.delete_with_claim(&pods[pod]).await;
    }

    pub(crate) fn crash_provisioner(&mut self) {
        if self.mark_faulty("provisioner") {
            self.world.crash_provisioner();
            let after = self.within(0, 40);
            self.plan(after, Step::StartProvisioner);
        }
    }

    pub(crate) fn end_replica(&mut self) {
        let replica = self.random.usize(..2);
        if !self.mark_faulty(REPLICAS[replica]) {
            return;
        }
        if self.random.u32(..3) == 0 {
            self.world.replicas[replica].stop();
        } else {
            self.world.replicas[replica].crash();
        }
        let after = self.within(0, 40);
        self.plan(after, Step::StartReplica(replica));
    }

    pub(crate) fn crash_controllers(&mut self) {
        if self.mark_faulty("controllers") {
            self.world.observer.fault("controllers", "crash");
            self.world.cluster.crash_controllers();
            let after = self.within(0, 40);
            self.plan(after, Step::StartControllers);
        }
    }

    pub(crate) fn crash_kubelet(&mut self) {
        let node = NODES[self.random.usize(..NODES.len())];
        if self.mark_faulty(node) {
            self.world.observer.fault(node, "kubelet crashes");
            self.world.cluster.crash_node(node);
            let after = self.within(0, 40);
            self.plan(after, Step::StartKubelet(node));
        }
    }

    pub(crate) fn end_driver(&mut self) {
        if self.random.bool() {
            let node = NODES[self.random.usize(..NODES.len())];
            if self.mark_faulty(node) {
                self.world.machines[node].process.set_down(true);
                let after = self.within(0, 60);
                self.plan(after, Step::StartNodeDriver(node));
            }
        } else if self.mark_faulty("driver") {
            self.world.socket.set_down(true);
            let after = self.within(0, 30);
            self.plan(after, Step::StartDriver);
        }
    }

    pub(crate) fn api_server_down(&mut self) {
        if self.mark_faulty("API server") {
            self.world.observer.fault("API server", "down");
            self.world.cluster.api_server().set_down(true);
            let after = self.within(0, 30);
            self.plan(after, Step::ApiServerUp);
        }
    }

    pub(crate) fn api_faults(&mut self) {
        if !self.mark_faulty("API faults") {
            return;
        }
        let mut rules = Vec::new();
        for _ in 0..self.random.u32(1..4) {
            let mut client = CLIENTS[self.random.usize(..CLIENTS.len())];
            let (any, watches): (&[&'static str], &[&'static str]) = (&[], &["watch"]);
            let writes: &[&'static str] = &["create", "update", "patch", "delete"];
            let updates: &[&'static str] = &["update", "patch"];
            let (verbs, fault) = match API_FAULTS[self.random.u32(..9) as usize] {
                ApiFault::Latency => (any, Fault::Latency(self.within(0, 3))),
                ApiFault::StorageTimeout => (writes, Fault::Error(Status::storage_timeout())),
                ApiFault::TooManyRequests => (any, Fault::Error(Status::too_many_requests(1))),
                ApiFault::Conflict => (updates, Fault::Conflict),
                ApiFault::LostResponse => (writes, Fault::LostResponse),
                ApiFault::LostRequest => (any, Fault::LostRequest),
                ApiFault::DroppedWatch => (watches, Fault::DroppedWatch(self.within(0, 10))),
                ApiFault::LateExecution => {
                    // The attach/detach controller detects unexpected VolumeAttachments only at its start.
                    client = ATTACHER;
                    // A late write may reach the next VolumeAttachment of the same name.
                    for _ in 0..2 {
                        let after = self.within(0, 30);
                        self.plan(after, Step::MovePod);
                    }
                    (updates, Fault::LateExecution(self.within(5, 60)))
                }
                ApiFault::StaleWatch => (watches, Fault::StaleWatch(self.within(0, 20))),
            };
            let probability = 0.1 + 0.5 * self.random.f64();
            self.world
                .observer
                .fault("API server", format!("{fault:?} for {client} ({probability:.2})"));
            let rule = Rule::always(fault).verbs(verbs);
            rules.push(rule.probability(probability).user_agent(client));
        }
        rules.extend(latencies(&mut self.random));
        let server = self.world.cluster.api_server();
        server.set_faults(rules);
        if self.random.bool() {
            // The fault affects only new watches.
            server.disconnect_watches();
        }
        let after = self.within(2, 40);
        self.plan(after, Step::EndApiFaults);
    }

    /// `method`: of the calls that fail; by default a random one.
    pub(crate) async fn driver_faults(&mut self, method: Option<&'static str>) {
        if !self.mark_faulty("driver faults") {
            return;
        }
        let methods = [
            "ControllerPublishVolume",
            "ControllerUnpublishVolume",
            "NodeStageVolume",
            "NodePublishVolume",
            "NodeUnstageVolume",
            "NodeUnpublishVolume",
            "CreateVolume",
            "DeleteVolume",
        ];
        // Sometimes all unmounts fail for longer than the attach/detach controller's timeout.
        let outlasts = method.is_none() && self.random.u32(..8) == 0;
        let range = if outlasts { 4..6 } else { 0..methods.len() };
        let method = method.unwrap_or_else(|| methods[self.random.usize(range)]);
        let end = match self.random.u32(..7) {
            _ if outlasts => "action: {code: UNAVAILABLE}",
            0 => "action: {code: UNAVAILABLE}",
            1 => "action: {code: INTERNAL}",
            2 => "phase: after, action: {code: DEADLINE_EXCEEDED}",
            // Kubelet treats a final code as proof that nothing is mounted.
            3 if method.starts_with("Node") => "phase: after, action: {code: UNAVAILABLE}",
            3 => "phase: after, action: {code: INTERNAL}",
            4 => "action: {delay: {uniform: [1s, 30s]}}",
            5 => "phase: after, action: {delay: {uniform: [1s, 30s]}}",
            _ => "action: {hang: client-cancel}",
        };
        let probability = if outlasts {
            1.0
        } else {
            [0.3, 0.7, 1.0][self.random.usize(..3)]
        };
        let mut faults =
            format!("rules: [{{id: call, match: {{method: {method}, probability: {probability}}}, {end}}}]");
        match self.random.u32(..6) {
            0 => faults += "\nbackend-faults: [{id: list, type: frozen-list, age: 30s}]",
            1 => faults += "\nbackend-faults: [{id: list, type: list-lacks, volume: '*'}]",
            _ => {}
        }
        self.world.observer.fault("driver", faults.replace('\n', " "));
        let rules = fault::Rule::read_list(&faults).expect("the rules must be valid");
        let loaded = self.world.array.faults.load(Origin::Admin, rules);
        loaded.expect("no other origin has rules");
        let after = if outlasts {
            self.move_pod().await;
            self.within(6 * 60 + 30, 9 * 60)
        } else {
            self.within(5, 60)
        };
        self.plan(after, Step::EndDriverFaults);
    }

    /// A machine fails, and restarts after an administrator has confirmed that it is off.
    pub(crate) fn lose_node(&mut self) {
        let node = NODES[self.random.usize(..NODES.len())];
        if self.faulty.iter().any(|component| NODES.contains(component)) || !self.mark_faulty(node) {
            return;
        }
        let generation = self.world.switch_off(node);
        self.world.users.set_in_service(node, false);
        let after = self.within(60, 90);
        self.plan(after, Step::TaintLostNode(node, generation));
    }

    /// Another machine replaces a failed one, and the node registers with another id.
    pub(crate) fn lose_machine(&mut self) {
        let node = NODES[self.random.usize(..NODES.len())];
        if self.faulty.iter().any(|component| NODES.contains(component)) || !self.mark_faulty(node) {
            return;
        }
        self.world.switch_off(node);
        self.world.users.set_in_service(node, false);
        self.plan(Duration::ZERO, Step::DeleteNode(node));
        if self.random.bool() && self.mark_faulty("driver") {
            // The machine ran the controller plugin, too, which may start only after the node registers again.
            self.world.socket.set_down(true);
            let after = self.within(120, 900);
            self.plan(after, Step::StartDriver);
        }
    }

    pub(crate) fn end_watches(&mut self) {
        let server = self.world.cluster.api_server();
        self.world
            .observer
            .fault("API server", "compacts and ends all watches");
        server.compact();
        server.disconnect_watches();
    }

    pub(crate) fn jump(&mut self) {
        let seconds = self.random.i64(-3_600..3_600);
        self.world
            .observer
            .fault("clock", format!("jumps by {seconds} s"));
        self.world.clock.jump(SignedDuration::from_secs(seconds));
    }
}

// === functions ===

/// Latencies of requests in every history, so that requests of different clients overtake each other.
pub(crate) fn latencies(random: &mut Rng) -> Vec<Rule> {
    let mut latency = |client: &'static str| {
        let time = Duration::from_millis(random.u64(1..60));
        Rule::always(Fault::Latency(time))
            .probability(0.5)
            .user_agent(client)
    };
    let rules = CLIENTS
        .into_iter()
        .flat_map(|client| [latency(client), latency(client)]);
    rules.collect()
}
