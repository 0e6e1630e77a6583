//! Reschedules pods with volumes from node to node until the user quits, who can inject faults meanwhile.
//!
//! No step waits for its effect, because the user may have injected a fault that prevents it: the view shows
//! the result.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::action::Action;
use super::{LATENCY, error_text};
use crate::narrate::{Narrator, Pace};
use csi_e2e::control_plane::Component;
use csi_e2e::driver::fault::{FaultRule, Method};
use csi_e2e::fixture::Access;
use csi_e2e::scenario::test_env::{B, ScenarioConfig, TestEnv, TestVolume};

/// Pause between two moves.
const MOVE: Duration = Duration::from_secs(5);
/// How long a notice stays, unless another one replaces it.
const NOTICE_PERIOD: Duration = Duration::from_secs(15);
/// Latency of a slow driver.
const SLOW: Duration = Duration::from_secs(6);
const METHODS: [Method; 2] = [Method::ControllerPublishVolume, Method::ControllerUnpublishVolume];
/// Names of the volumes and of the pods that use them.
const WORKLOADS: [(&str, &str); 3] = [("data", "db"), ("logs", "web"), ("cache", "api")];

/// Setup of the test environment.
pub(crate) const CONFIG: ScenarioConfig = ScenarioConfig {
    nodes: 3,
    latency: LATENCY,
    ..ScenarioConfig::DEFAULT
};

/// The active faults, and the result of the last action.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActionStatus {
    pub(crate) broken: BTreeSet<Action>,
    pub(crate) notice: String,
    noticed_at: Option<Instant>,
}

/// Moves the pods of a test environment, and performs the actions.
pub(crate) struct PodMover<'e, 'ctx> {
    env: &'e mut TestEnv<'ctx>,
    narrator: &'e Narrator,
    status: &'e watch::Sender<ActionStatus>,
    workloads: Vec<Workload>,
    turn: usize,
}

/// A volume and its pod.
struct Workload {
    name: &'static str,
    volume: TestVolume,
    generation: usize,
    node: usize,
    /// None if it could not be created.
    pod: Option<String>,
}

// === impl ActionStatus ===

impl ActionStatus {
    /// Stores a result. An empty one clears a notice only after the user had time to read it.
    fn report(&mut self, done: Result<String>, now: Instant) {
        let notice = done.unwrap_or_else(|error| format!("failed: {}", error_text(&error)));
        let is_read = self
            .noticed_at
            .is_none_or(|at| now.duration_since(at) >= NOTICE_PERIOD);
        if notice.is_empty() && !is_read {
            return;
        }
        self.noticed_at = (!notice.is_empty()).then_some(now);
        self.notice = notice;
    }
}

// === impl PodMover ===

impl<'e, 'ctx> PodMover<'e, 'ctx> {
    pub(crate) fn new(
        env: &'e mut TestEnv<'ctx>,
        narrator: &'e Narrator,
        status: &'e watch::Sender<ActionStatus>,
    ) -> Self {
        Self {
            env,
            narrator,
            status,
            workloads: Vec::new(),
            turn: 0,
        }
    }

    /// Creates the volumes, then moves pods and performs actions until the last sender of actions is dropped.
    ///
    /// # Errors
    /// The volumes could not be created. A failed action or move only becomes the notice.
    pub(crate) async fn run(&mut self, mut actions: mpsc::Receiver<Action>) -> Result<()> {
        for (index, (volume, name)) in WORKLOADS.into_iter().enumerate() {
            self.workloads.push(Workload {
                name,
                volume: self.env.volume(volume, Access::OneNode).await?,
                generation: 0,
                node: index,
                pod: None,
            });
        }
        for _ in WORKLOADS {
            let moved = self.move_next().await;
            self.report(moved);
        }
        let mut moves = interval(MOVE);
        moves.set_missed_tick_behavior(MissedTickBehavior::Delay);
        moves.tick().await;
        loop {
            let done = tokio::select! {
                biased;
                action = actions.recv() => match action {
                    Some(action) => self.toggle(action).await,
                    None => return Ok(()),
                },
                () = next_move(self.narrator.pace(), &mut moves) => self.move_next().await,
            };
            self.report(done);
        }
    }

    /// Restarts the API server, so that the cluster can be cleaned up, and stops the attacher.
    pub(crate) async fn end(&mut self) -> Result<()> {
        if self.is_broken(Action::ApiOutage) {
            self.toggle(Action::ApiOutage).await?;
        }
        match self.is_broken(Action::KillAttacher) {
            true => Ok(()),
            false => self.env.attacher.crash().await,
        }
    }

    fn report(&self, done: Result<String>) {
        self.status
            .send_modify(|status| status.report(done, Instant::now()));
    }

    fn set_broken(&self, action: Action, broken: bool) {
        self.status.send_modify(|status| {
            status.broken.retain(|other| *other != action);
            status.broken.extend(broken.then_some(action));
        });
    }

    fn is_broken(&self, action: Action) -> bool {
        self.status.borrow().broken.contains(&action)
    }
}

// === impl PodMover: faults ===

impl PodMover<'_, '_> {
    /// Injects or removes a fault; returns a description.
    async fn toggle(&mut self, action: Action) -> Result<String> {
        let breaks = !self.is_broken(action);
        let text = match action {
            Action::SlowDriver | Action::FailAttach => self.set_faults(action, breaks).await?,
            Action::LoseNode => self.lose_node(breaks).await?,
            Action::OutOfService => self.set_out_of_service(breaks).await?,
            Action::KillAttacher => self.kill_attacher(breaks).await?,
            Action::ApiOutage => self.take_api_server_down(breaks).await?,
            Action::RestartControllers => self.restart_controllers().await?,
        };
        self.narrator.you(text);
        self.set_broken(action, breaks && action != Action::RestartControllers);
        Ok(text.to_owned())
    }

    async fn set_faults(&mut self, changed: Action, breaks: bool) -> Result<&'static str> {
        let in_force = |action: Action| {
            if action == changed {
                breaks
            } else {
                self.is_broken(action)
            }
        };
        let mut rules = Vec::new();
        if in_force(Action::FailAttach) {
            let message = "all slots of the node are taken";
            let publish = Method::ControllerPublishVolume;
            rules.push(FaultRule::fail(
                "failing-attach",
                publish,
                "RESOURCE_EXHAUSTED",
                message,
            ));
        }
        if in_force(Action::SlowDriver) {
            let slow = |method: Method| FaultRule::delay_response(&format!("slow-{method:?}"), method, SLOW);
            rules.extend(METHODS.map(slow));
        }
        self.env.driver.set_faults(&rules).await?;
        Ok(match (changed, breaks) {
            (Action::FailAttach, true) => "set a fault rule: the driver refuses each attach",
            (Action::FailAttach, false) => "remove the fault rule: attaches succeed again",
            (_, true) => "set fault rules: each driver call takes 6 s",
            (_, false) => "remove the fault rules: the driver is fast again",
        })
    }

    async fn lose_node(&mut self, breaks: bool) -> Result<&'static str> {
        if breaks {
            self.env.lose_node(B).await?;
            // Even if the report fails, for example during an API outage.
            self.set_broken(Action::LoseNode, true);
            self.env.report_not_ready(B, "the node was stopped").await?;
            return Ok("stop node b: its kubelet no longer unmounts or reports");
        }
        if self.is_broken(Action::OutOfService) {
            self.set_out_of_service(false).await?;
            self.set_broken(Action::OutOfService, false);
        }
        self.env.recover_node(B)?;
        Ok("start node b again with its kubelet")
    }

    async fn set_out_of_service(&mut self, breaks: bool) -> Result<&'static str> {
        if !breaks {
            self.env.set_out_of_service(B, false).await?;
            return Ok("remove the out-of-service taint of node b");
        }
        ensure!(
            self.is_broken(Action::LoseNode),
            "stop node b first (n): the taint would force-detach mounted volumes"
        );
        self.env.set_out_of_service(B, true).await?;
        // As the pod garbage collector would do in its next round.
        let node = self.env.node(B).name();
        let there = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let removed = DeleteParams::default().grace_period(0);
        self.pods()
            .delete_collection(&removed, &there)
            .await
            .context("remove the pods of node b")?;
        Ok("add the out-of-service taint to node b and delete its pods: its volumes may be force-detached")
    }

    async fn kill_attacher(&mut self, breaks: bool) -> Result<&'static str> {
        if breaks {
            self.env.attacher.crash().await?;
            return Ok("kill -9 the attacher");
        }
        self.env.attacher.revive().await?;
        Ok("start the attacher again")
    }

    async fn take_api_server_down(&mut self, breaks: bool) -> Result<&'static str> {
        let cluster = self.env.ctx().cluster();
        if breaks {
            cluster.kill_component(Component::ApiServer).await?;
            return Ok("stop the API server");
        }
        cluster.start_component(Component::ApiServer).await?;
        Ok("start the API server again")
    }

    async fn restart_controllers(&mut self) -> Result<&'static str> {
        let cluster = self.env.ctx().cluster();
        cluster.restart_component(Component::ControllerManager).await?;
        Ok("restart kube-controller-manager: it rebuilds its desired and actual state of world from the API")
    }
}

// === impl PodMover: moving pods ===

impl PodMover<'_, '_> {
    /// Moves the pod of the next workload, if it runs, to the next existing node.
    async fn move_next(&mut self) -> Result<String> {
        if self.is_broken(Action::ApiOutage) {
            return Ok("the API server is down: no pod moves".to_owned());
        }
        let turn = self.turn % self.workloads.len();
        self.turn += 1;
        let workload = &self.workloads[turn];
        if let Some(pod) = &workload.pod {
            let present = self.pods().get_opt(pod).await.context("read the pod")?;
            let phase = present
                .as_ref()
                .and_then(|pod| pod.status.as_ref()?.phase.as_deref());
            if present.is_some() && phase != Some("Running") {
                return Ok(format!("pod {pod} does not run yet and does not move"));
            }
        }
        let nodes = self.env.nodes().len();
        let lost = self.is_broken(Action::LoseNode);
        let (name, generation) = (workload.name, workload.generation + 1);
        let step = if generation == 1 { 0 } else { 1 };
        let next = (workload.node + step) % nodes;
        let node = if lost && next == B {
            (next + 1) % nodes
        } else {
            next
        };
        let successor = format!("{name}-{generation}");
        let letter = char::from(b'a' + u8::try_from(node).context("there are few nodes")?);
        let text = match &workload.pod {
            Some(pod) => format!("delete pod {pod}, and create pod {successor} for node {letter}"),
            None => format!("create pod {successor} for node {letter}"),
        };
        self.narrator
            .you_to(vec![self.workloads[turn].volume.claim.clone()], &text);
        if let Some(pod) = self.workloads[turn].pod.take() {
            let deleted = self.pods().delete(&pod, &DeleteParams::default()).await;
            csi_e2e::cluster::ignore_not_found(deleted).with_context(|| format!("delete pod {pod}"))?;
        }
        let volume = self.workloads[turn].volume.clone();
        self.env.pod(&successor, node, &[&volume]).await?;
        let workload = &mut self.workloads[turn];
        (workload.generation, workload.node, workload.pod) = (generation, node, Some(successor));
        Ok(String::new())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.env.client(), self.env.prefix())
    }
}

/// Waits for the next move: until it is due, or while paused until the user asks for it.
async fn next_move(pace: &Pace, moves: &mut Interval) {
    if !pace.is_paused() {
        moves.tick().await;
    }
    pace.turn().await;
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn move_does_not_clear_a_fresh_notice() {
        let mut status = ActionStatus::default();
        let start = Instant::now();
        status.report(Err(anyhow!("stop node b first")), start);
        status.report(Ok(String::new()), start + MOVE);
        assert_eq!(status.notice, "failed: stop node b first");
        status.report(Ok(String::new()), start + NOTICE_PERIOD);
        assert_eq!(status.notice, "");
        status.report(Ok("kill -9 the attacher".to_owned()), start + NOTICE_PERIOD);
        status.report(Ok("no pod moves".to_owned()), start + NOTICE_PERIOD);
        assert_eq!(status.notice, "no pod moves");
    }
}
