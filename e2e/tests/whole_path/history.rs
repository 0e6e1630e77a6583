//! One simulation run: workload and faults derived from a seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use csi_mock_driver::fault::Origin;
use fastrand::Rng;
use tokio::time::{Instant, sleep_until};

use crate::fault_injection::latencies;
use crate::injected_bug::Bug;
use crate::world::World;

/// Faults and injected bug of a history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// What is injected, equally likely: an entry for each percent, or only those that lead to a bug. Empty: nothing.
    pub faults: &'static [FaultKind],
    pub bug: Option<Bug>,
}

/// A kind of fault, or another action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    MovePod,
    DeleteClaim,
    EndReplica,
    CrashProvisioner,
    CrashControllers,
    CrashKubelet,
    EndDriver,
    ApiServerDown,
    Api,
    /// Faults of calls of any method.
    Driver,
    /// Only failing detaches.
    FailingDetach,
    LoseNode,
    LoseMachine,
    EndWatches,
    Jump,
}

/// Injects faults and ends them later.
pub(crate) struct FaultInjector {
    pub world: World,
    kinds: &'static [FaultKind],
    bug: Option<Bug>,
    pub random: Rng,
    /// Steps by time, then in the order of planning.
    planned: BinaryHeap<Reverse<(Instant, u32, Step)>>,
    count: u32,
    /// Components with a fault: each has one at a time.
    pub faulty: Vec<&'static str>,
}

/// A later step of a fault, usually its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    StartReplica(usize),
    StartControllers,
    StartKubelet(&'static str),
    StartDriver,
    StartProvisioner,
    StartNodeDriver(&'static str),
    ApiServerUp,
    EndApiFaults,
    EndDriverFaults,
    TaintLostNode(&'static str, u32),
    ReturnNode(&'static str, u32),
    RemoveTaint(&'static str),
    DeleteNode(&'static str),
    ReplaceMachine(&'static str),
    MovePod,
}

/// All kinds, by their weight.
pub(crate) const ALL: &[FaultKind] = &{
    const WEIGHTS: [(FaultKind, usize); 14] = [
        (FaultKind::MovePod, 24),
        (FaultKind::DeleteClaim, 6),
        (FaultKind::EndReplica, 6),
        (FaultKind::CrashProvisioner, 4),
        (FaultKind::CrashControllers, 10),
        (FaultKind::CrashKubelet, 10),
        (FaultKind::EndDriver, 6),
        (FaultKind::ApiServerDown, 4),
        (FaultKind::Api, 10),
        (FaultKind::Driver, 8),
        (FaultKind::LoseNode, 4),
        (FaultKind::LoseMachine, 3),
        (FaultKind::EndWatches, 2),
        (FaultKind::Jump, 3),
    ];
    let mut kinds = [FaultKind::Jump; 100];
    let (mut next, mut weight) = (0, 0);
    while weight < WEIGHTS.len() {
        let (kind, end) = (WEIGHTS[weight].0, next + WEIGHTS[weight].1);
        while next < end {
            kinds[next] = kind;
            next += 1;
        }
        weight += 1;
    }
    kinds
};
pub(crate) const REPLICAS: [&str; 2] = ["attacher-0", "attacher-1"];
/// Delay before an administrator retries a step that the API server did not confirm.
const RETRY: Duration = Duration::from_secs(1);

/// Runs the history of `seed` and returns its timeline.
///
/// # Errors
/// The violated invariant, with the timeline of its volume.
pub(crate) async fn play(seed: u64, plan: Plan) -> Result<String, String> {
    let mut injector = FaultInjector {
        world: World::start(seed, plan).await,
        kinds: plan.faults,
        bug: plan.bug,
        random: Rng::with_seed(seed ^ 0x5eed),
        planned: BinaryHeap::new(),
        count: 0,
        faulty: Vec::new(),
    };
    let latencies = latencies(&mut injector.random);
    injector.world.cluster.api_server().set_faults(latencies);
    if plan.faults.contains(&FaultKind::Api) && injector.random.u32(..4) == 0 {
        // Faults affect the first attaches, too.
        injector.api_faults();
    } else {
        injector.world.until_all_run().await?;
    }
    if !plan.faults.is_empty() {
        injector.inject_faults().await?;
    } else {
        for pod in injector.world.users.wanted() {
            injector.world.users.delete(&pod, false).await;
        }
    }
    injector.world.until_all_run().await?;
    injector.world.tear_down().await?;
    injector.world.verify()?;
    Ok(injector.world.observer.timeline())
}

// === impl FaultInjector ===

impl FaultInjector {
    /// Injects faults for a while, then waits until all have ended.
    async fn inject_faults(&mut self) -> Result<(), String> {
        for _ in 0..self.random.u32(6..16) {
            let pause = self.pause();
            self.pass(pause).await?;
            self.inject_fault().await;
        }
        while let Some(Reverse((at, _, _))) = self.planned.peek() {
            let rest = at.saturating_duration_since(Instant::now());
            self.pass(rest).await?;
        }
        Ok(())
    }

    /// Mostly short, so that faults hit running operations.
    fn pause(&mut self) -> Duration {
        let longest = [500, 4_000, 20_000][self.random.usize(..3)];
        Duration::from_millis(self.random.u64(..longest))
    }

    /// Advances the time, and executes the due steps.
    async fn pass(&mut self, time: Duration) -> Result<(), String> {
        let end = Instant::now() + time;
        while let Some(Reverse((at, _, _))) = self.planned.peek()
            && *at <= end
        {
            sleep_until(*at).await;
            self.world.verify()?;
            if let Some(Reverse((_, _, step))) = self.planned.pop() {
                self.execute(step).await;
            }
        }
        sleep_until(end).await;
        self.world.verify()
    }

    pub(crate) fn plan(&mut self, after: Duration, step: Step) {
        self.count += 1;
        self.planned
            .push(Reverse((Instant::now() + after, self.count, step)));
    }

    pub(crate) fn within(&mut self, shortest: u64, longest: u64) -> Duration {
        Duration::from_millis(self.random.u64(shortest * 1_000..longest * 1_000))
    }

    /// Marks a component as faulty; false if it already is.
    pub(crate) fn mark_faulty(&mut self, component: &'static str) -> bool {
        let marks = !self.faulty.contains(&component);
        if marks {
            self.faulty.push(component);
        }
        marks
    }

    fn clear_fault(&mut self, component: &'static str) {
        self.faulty.retain(|faulty| *faulty != component);
    }

    async fn inject_fault(&mut self) {
        match self.kinds[self.random.usize(..self.kinds.len())] {
            FaultKind::MovePod => self.move_pod().await,
            FaultKind::DeleteClaim => self.delete_claim().await,
            FaultKind::EndReplica => self.end_replica(),
            FaultKind::CrashProvisioner => self.crash_provisioner(),
            FaultKind::CrashControllers => self.crash_controllers(),
            FaultKind::CrashKubelet => self.crash_kubelet(),
            FaultKind::EndDriver => self.end_driver(),
            FaultKind::ApiServerDown => self.api_server_down(),
            FaultKind::Api => self.api_faults(),
            FaultKind::Driver => self.driver_faults(None).await,
            FaultKind::FailingDetach => self.driver_faults(Some("ControllerUnpublishVolume")).await,
            FaultKind::LoseNode => self.lose_node(),
            FaultKind::LoseMachine => self.lose_machine(),
            FaultKind::EndWatches => self.end_watches(),
            FaultKind::Jump => self.jump(),
        }
    }

    async fn execute(&mut self, step: Step) {
        let world = &mut self.world;
        match step {
            Step::StartReplica(replica) => {
                world.replicas[replica].start();
                self.clear_fault(REPLICAS[replica]);
            }
            Step::StartControllers => self.start_controllers(),
            Step::StartKubelet(node) => {
                world.observer.fault(node, "kubelet starts");
                if self.bug != Some(Bug::StagedVolumesCount) {
                    world.observer.kubelet_starts(&world.machines[node].id);
                }
                world.cluster.start_node(node);
                self.clear_fault(node);
            }
            Step::StartDriver => {
                world.socket.set_down(false);
                self.clear_fault("driver");
            }
            Step::StartProvisioner => {
                world.start_provisioner();
                self.clear_fault("provisioner");
            }
            Step::StartNodeDriver(node) => {
                world.machines[node].process.set_down(false);
                self.clear_fault(node);
            }
            Step::ApiServerUp => {
                world.observer.fault("API server", "up");
                world.cluster.api_server().set_down(false);
                self.clear_fault("API server");
            }
            Step::EndApiFaults => {
                world.observer.fault("API server", "no more faults");
                let latencies = latencies(&mut self.random);
                self.world.cluster.api_server().set_faults(latencies);
                self.clear_fault("API faults");
            }
            Step::EndDriverFaults => {
                world.observer.fault("driver", "no more faults");
                let loaded = world.array.faults.load(Origin::Admin, Vec::new());
                loaded.expect("no other origin has rules");
                self.clear_fault("driver faults");
            }
            Step::TaintLostNode(node, generation) => {
                if world.set_out_of_service(node, true).await && world.users.drain(node).await {
                    let after = self.within(10, 120);
                    self.plan(after, Step::ReturnNode(node, generation));
                } else {
                    self.plan(RETRY, step);
                }
            }
            Step::ReturnNode(node, generation) => {
                world.switch_on(node, generation);
                let after = self.within(1, 30);
                self.plan(after, Step::RemoveTaint(node));
            }
            Step::RemoveTaint(node) => {
                if world.set_out_of_service(node, false).await {
                    world.users.set_in_service(node, true);
                    self.clear_fault(node);
                } else {
                    self.plan(RETRY, step);
                }
            }
            Step::DeleteNode(node) => {
                if world.delete_node(node).await {
                    // Longer than an informer's backoff after failed lists: no attach uses the former node id.
                    let after = self.within(60, 180);
                    self.plan(after, Step::ReplaceMachine(node));
                } else {
                    self.plan(RETRY, step);
                }
            }
            Step::MovePod => self.move_pod().await,
            Step::ReplaceMachine(node) => self.replace_machine(node).await,
        }
    }

    fn start_controllers(&mut self) {
        // Users do not wait for the controllers.
        if self.random.bool() {
            let after = self.within(0, 4);
            self.plan(after, Step::MovePod);
        }
        self.world.observer.fault("controllers", "start");
        self.world.cluster.restart_controllers();
        self.clear_fault("controllers");
    }

    /// Waits first, like Cluster API, until the node is drained and the controllers detach its volumes. Otherwise a pod that is
    /// scheduled at once would keep the attachment to the old machine.
    async fn replace_machine(&mut self, node: &'static str) {
        let world = &mut self.world;
        if world.users.drain(node).await && world.detaches_from(node).await {
            world.replace_machine(node).await;
            world.users.set_in_service(node, true);
            self.clear_fault(node);
        } else {
            self.plan(RETRY, Step::ReplaceMachine(node));
        }
    }
}
