//! What the commands of a story act on.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use super::command::Command;
use crate::narrate::Narrator;
use csi_e2e::attacher::AttacherProcess;
use csi_e2e::control_plane::Component;
use csi_e2e::driver::fault::FaultRule;
use csi_e2e::fixture::Access;
use csi_e2e::scenario::leader::History;
use csi_e2e::scenario::test_env::{TestEnv, TestVolume};

/// A test environment while a story is played on it, and what the story has changed in it.
pub(super) struct StoryState<'s, 'ctx> {
    pub(super) env: &'s mut TestEnv<'ctx>,
    pub(super) narrator: &'s Narrator,
    /// The driver's fault rules.
    pub(super) rules: Vec<FaultRule>,
    pub(super) is_driver_dead: bool,
    pub(super) is_attacher_dead: bool,
    pub(super) is_api_server_down: bool,
    /// The attachers that the story has started in place of the single one, and their Lease.
    pub(super) replicas: BTreeMap<String, AttacherProcess>,
    pub(super) lease: Option<History>,
    /// Number of pods by the name of their group.
    pub(super) groups: BTreeMap<String, usize>,
    /// Nodes from which volumes may be detached by force.
    pub(super) forced: BTreeSet<usize>,
}

/// The volumes of the pods that the commands of a story have created.
#[derive(Debug, Default)]
pub(super) struct PodVolumes(BTreeMap<String, Vec<String>>);

// === impl PodVolumes ===

impl PodVolumes {
    /// The volumes that the next command of the story affects; none if it affects all.
    pub(super) fn affected_by(&mut self, command: &Command) -> Vec<String> {
        match command {
            Command::CreateVolumes(names, _) => names.clone(),
            Command::CreatePod { name, volumes, .. } => {
                self.0.insert(name.clone(), volumes.clone());
                volumes.clone()
            }
            Command::CreatePods { name, count, .. } => {
                // The volume of each has its name.
                let pods: Vec<_> = (0..*count).map(|index| format!("{name}-{index}")).collect();
                self.0.insert(name.clone(), pods.clone());
                pods
            }
            Command::DeletePod(name) | Command::DeletePodByForce(name) | Command::DeletePods(name) => {
                let of_group = || name.rsplit_once('-').and_then(|(group, _)| self.0.get(group));
                match self.0.get(name) {
                    Some(volumes) => volumes.clone(),
                    None => of_group().map(|_| name.clone()).into_iter().collect(),
                }
            }
            Command::UnpublishOutOfBand { volume, .. } => vec![volume.clone()],
            Command::AddRule(rule) => rule.volume().into_iter().map(str::to_owned).collect(),
            Command::Set
            | Command::Wait(..)
            | Command::RemoveRules
            | Command::Kill(_)
            | Command::Start(_)
            | Command::StopReplica(_)
            | Command::StopApiServer
            | Command::StartApiServer
            | Command::RestartControllers
            | Command::LoseNode(_)
            | Command::RecoverNode(_)
            | Command::OutOfService(_)
            | Command::RemoveTaints(_)
            | Command::Register { .. }
            | Command::Pause(_) => Vec::new(),
        }
    }
}

// === impl StoryState ===

impl<'s, 'ctx> StoryState<'s, 'ctx> {
    pub(super) fn new(env: &'s mut TestEnv<'ctx>, narrator: &'s Narrator) -> Self {
        Self {
            env,
            narrator,
            rules: Vec::new(),
            is_driver_dead: false,
            is_attacher_dead: false,
            is_api_server_down: false,
            replicas: BTreeMap::new(),
            lease: None,
            groups: BTreeMap::new(),
            forced: BTreeSet::new(),
        }
    }

    /// The volume of this name, which is created with a claim unless it exists.
    pub(super) async fn volume(&mut self, name: &str) -> Result<TestVolume> {
        match self.env.volume_named(name) {
            Ok(volume) => Ok(volume),
            Err(_) => self.env.volume(name, Access::OneNode).await,
        }
    }

    /// The volume of this name.
    pub(super) fn existing_volume(&self, name: &str) -> Result<TestVolume> {
        self.env
            .volume_named(name)
            .with_context(|| format!("no command above has created the volume {name}"))
    }

    /// The pods of a group.
    pub(super) fn group(&self, name: &str) -> Result<Vec<String>> {
        let count = self
            .groups
            .get(name)
            .with_context(|| format!("no command above has created the pods {name}"))?;
        Ok((0..*count).map(|index| format!("{name}-{index}")).collect())
    }

    /// The attacher of this name, which the caller ends.
    pub(super) fn take_replica(&mut self, name: &str) -> Result<AttacherProcess> {
        let replica = self.replicas.remove(name);
        replica.with_context(|| format!("attacher {name} does not run"))
    }

    /// Expects all volumes to be detached from the node by force, from now on.
    pub(super) fn allow_force_detach(&mut self, node: usize) {
        self.forced.insert(node);
        for volume in self.env.all_volumes() {
            self.env.allow_force_detach(&volume, node);
        }
    }

    /// Starts the API server again.
    pub(super) async fn start_api_server(&mut self) -> Result<()> {
        ensure!(self.is_api_server_down, "the API server runs");
        let cluster = self.env.ctx().cluster();
        cluster.start_component(Component::ApiServer).await?;
        self.is_api_server_down = false;
        Ok(())
    }

    /// Ends what the story broke, so that everything can be deleted: the attachers and the driver run, without faults.
    pub(super) async fn end(&mut self) -> Result<()> {
        if self.is_api_server_down {
            self.start_api_server().await?;
        }
        self.env.driver.clear_faults().await?;
        if self.is_driver_dead {
            self.env.driver.restart().await?;
        }
        if let Some(lease) = self.lease.take() {
            lease.ensure_one_at_a_time(lease.terms())?;
            for (_, mut replica) in std::mem::take(&mut self.replicas) {
                replica.stop().await?;
            }
            self.is_attacher_dead = true;
        }
        if self.is_attacher_dead {
            self.env.attacher.revive().await?;
        }
        Ok(())
    }
}
