//! The effects of the commands.

use anyhow::{Context, Result, ensure};

use super::super::state::StoryState;
use super::{Command, Process};
use csi_e2e::control_plane::Component;
use csi_e2e::scenario::leader::History;

// === impl Command ===

impl Command {
    /// Executes it.
    pub(in super::super) async fn run(&self, state: &mut StoryState<'_, '_>) -> Result<()> {
        match self {
            Self::Set => Ok(()),
            Self::CreateVolumes(names, access) => {
                for name in names {
                    state.env.volume(name, *access).await?;
                }
                Ok(())
            }
            Self::CreatePod { name, node, volumes } => {
                let mut used = Vec::new();
                for name in volumes {
                    used.push(state.volume(name).await?);
                }
                let used: Vec<_> = used.iter().collect();
                state.env.pod(name, *node, &used).await
            }
            Self::CreatePods { name, count, nodes } => state.create_pods(name, *count, nodes).await,
            Self::DeletePod(name) => state.env.delete_pod(name).await,
            Self::DeletePodByForce(name) => state.env.remove_pod(name).await,
            Self::DeletePods(name) => {
                for pod in state.group(name)? {
                    state.env.delete_pod(&pod).await?;
                }
                state.groups.remove(name);
                Ok(())
            }
            Self::Wait(condition, within) => {
                let waited = tokio::time::timeout(*within, condition.wait(state, *within));
                waited.await.with_context(|| format!("not within {within:?}"))?
            }
            Self::AddRule(rule) => {
                let rule = rule.of(state).await?;
                state.rules.push(rule);
                state.env.driver.set_faults(&state.rules).await
            }
            Self::RemoveRules => {
                state.rules.clear();
                state.env.driver.clear_faults().await
            }
            Self::UnpublishOutOfBand { volume, node } => {
                let volume = state.existing_volume(volume)?;
                state.env.unpublish_out_of_band(&volume, *node).await
            }
            Self::Kill(process) => state.kill(process).await,
            Self::Start(process) => state.start(process).await,
            Self::StopReplica(name) => state.take_replica(name)?.stop().await,
            Self::StopApiServer => {
                let cluster = state.env.ctx().cluster();
                cluster.kill_component(Component::ApiServer).await?;
                state.is_api_server_down = true;
                Ok(())
            }
            Self::StartApiServer => state.start_api_server().await,
            Self::RestartControllers => {
                let cluster = state.env.ctx().cluster();
                cluster.restart_component(Component::ControllerManager).await
            }
            Self::LoseNode(node) => state.env.lose_node(*node).await,
            Self::RecoverNode(node) => state.env.recover_node(*node),
            Self::OutOfService(node) => {
                state.allow_force_detach(*node);
                state.env.set_out_of_service(*node, true).await
            }
            Self::RemoveTaints(node) => state.env.remove_taints(*node).await,
            Self::Register { node, is_registered } => {
                let node = state.env.node(*node);
                match is_registered {
                    true => node.reregister(node.node_id()).await,
                    false => node.unregister().await,
                }
            }
            Self::Pause(time) => {
                tokio::time::sleep(*time).await;
                Ok(())
            }
        }
    }
}

// === impl StoryState ===

impl StoryState<'_, '_> {
    async fn create_pods(&mut self, name: &str, count: usize, nodes: &[usize]) -> Result<()> {
        let mut volumes = Vec::new();
        for index in 0..count {
            volumes.push(self.volume(&format!("{name}-{index}")).await?);
        }
        for (index, volume) in volumes.iter().enumerate() {
            let node = nodes[index % nodes.len()];
            self.env.pod(&format!("{name}-{index}"), node, &[volume]).await?;
        }
        self.groups.insert(name.to_owned(), count);
        Ok(())
    }

    async fn kill(&mut self, process: &Process) -> Result<()> {
        match process {
            Process::Attacher => {
                self.env.attacher.crash().await?;
                self.is_attacher_dead = true;
            }
            Process::Replica(name) => self.take_replica(name)?.crash().await?,
            Process::Driver => {
                self.env.driver.kill().await?;
                self.is_driver_dead = true;
            }
        }
        Ok(())
    }

    async fn start(&mut self, process: &Process) -> Result<()> {
        match process {
            Process::Attacher => {
                ensure!(self.is_attacher_dead, "the attacher runs");
                self.env.attacher.revive().await?;
                self.is_attacher_dead = false;
            }
            Process::Replica(name) => {
                ensure!(!self.replicas.contains_key(name), "attacher {name} runs");
                if self.lease.is_none() {
                    self.lease = Some(History::begin(self.env).await?);
                }
                let replica = self.env.replica(self.env.attacher.kind(), name).await?;
                self.replicas.insert(name.clone(), replica);
            }
            Process::Driver => {
                ensure!(self.is_driver_dead, "the driver runs");
                self.env.driver.restart().await?;
                self.is_driver_dead = false;
            }
        }
        Ok(())
    }
}
