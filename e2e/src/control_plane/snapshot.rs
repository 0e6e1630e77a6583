//! Saves and restores snapshots of etcd, as an administrator does for disaster recovery.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Component, ControlPlane};
use crate::process::Process;

/// Timeout of etcd-snapshot.
const SNAPSHOT: Duration = Duration::from_secs(60);

// === impl ControlPlane ===

impl ControlPlane {
    /// Saves a snapshot of etcd.
    pub async fn save_snapshot(&self) -> Result<PathBuf> {
        let file = self.layout.dir().join("etcd.snapshot");
        let endpoint = self.layout.url(Component::Etcd);
        self.etcd_snapshot(&["save", &endpoint, as_str(&file)?]).await?;
        Ok(file)
    }

    /// Restores a snapshot: etcd returns to its state at a revision later than any that clients have seen, and earlier
    /// revisions are marked as compacted, so that no watch resumes in the lost history.
    ///
    /// kube-scheduler and kube-controller-manager restart, as [Kubernetes recommends]: with a cache of the lost history the
    /// attach/detach controller may detach a mounted volume, or never restore `volumesAttached` of a Node.
    ///
    /// [Kubernetes recommends]: https://kubernetes.io/docs/tasks/administer-cluster/configure-upgrade-etcd/#restoring-an-etcd-cluster
    pub async fn restore_snapshot(&self, snapshot: &Path) -> Result<()> {
        let clients = [
            Component::Scheduler,
            Component::StandbyControllerManager,
            Component::ControllerManager,
        ];
        let clients: Vec<Component> = clients
            .into_iter()
            .filter(|component| self.process(*component).is_some())
            .collect();
        for component in clients
            .iter()
            .copied()
            .chain([Component::ApiServer, Component::Etcd])
        {
            self.kill(component).await?;
        }
        let data = self.layout.etcd_data();
        fs::remove_dir_all(&data).context("remove etcd's data")?;
        let peers = self.layout.etcd_peers_url();
        self.etcd_snapshot(&["restore", as_str(snapshot)?, as_str(&data)?, &peers])
            .await?;
        for component in [Component::Etcd, Component::ApiServer].into_iter().chain(clients) {
            self.start_component(component).await?;
        }
        Ok(())
    }

    async fn etcd_snapshot(&self, args: &[&str]) -> Result<()> {
        let process = Process::spawn(&self.run, self.layout.etcd_snapshot(args))?;
        let exit = process.exited_within(SNAPSHOT).await?;
        ensure!(
            exit.status.success(),
            "etcd-snapshot ended with {}: {}",
            exit.status,
            process.log_tail(super::TAIL_LINES)
        );
        Ok(())
    }
}

fn as_str(path: &Path) -> Result<&str> {
    path.to_str().context("a path of the run must be UTF-8")
}
