//! The driver process of one node: `--mode=node`, for the array of the controller's process. On a real node it runs in the
//! node's namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use tonic::transport::Channel;

use super::instance::Instance;
use super::journal::{self, Effect, Journal, MountEvent};
use crate::nodes::RealNode;
use crate::process::{Run, Spec};

/// The plugin directory of a real kubelet.
const REGISTRATION_DIR: &str = "/var/lib/kubelet/plugins_registry";

/// The driver of one node.
#[derive(Debug)]
pub struct NodeDriver {
    instance: Instance,
    command: Spec,
    /// `--root-dir` of a simulated kubelet: staging and target paths lie below.
    kubelet_dir: PathBuf,
}

/// Configuration of a node's driver.
#[derive(Clone)]
pub(super) struct NodeDriverSpec<'a> {
    /// Name of the driver.
    pub(super) driver: &'a str,
    /// The driver's id of the node.
    pub(super) node_id: &'a str,
    /// Admin socket of the process with the array.
    pub(super) array: &'a Path,
    /// Directory of the volumes' data.
    pub(super) media: &'a Path,
    /// Capabilities that the driver lacks, in the format of its flag.
    pub(super) capabilities: &'a str,
    /// The real node it runs on, if any.
    pub(super) real: Option<&'a RealNode>,
}

// === impl NodeDriver ===

impl NodeDriver {
    /// Starts the driver with its files in `dir`, and waits until it is ready.
    pub(super) async fn start(
        run: Arc<Run>,
        binary: &Path,
        dir: &Path,
        spec: NodeDriverSpec<'_>,
    ) -> Result<Self> {
        let kubelet_dir = dir.join("kubelet");
        for dir in [&kubelet_dir, &dir.join("state")] {
            std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let socket = dir.join("csi.sock");
        let journal = dir.join("journal.jsonl");
        let name = format!("driver-{}", spec.node_id);
        let command = match spec.real {
            Some(node) => node.stoppable(&name, binary)?.args([
                "--devices=loop".to_owned(),
                format!("--registration-dir={REGISTRATION_DIR}"),
                format!("--registration-endpoint={}", socket.display()),
            ]),
            // Loop devices need root, and scenarios verify the order of calls, not data.
            None => Spec::new(name, binary).arg("--devices=emulated"),
        };
        let command = command.dir(dir).args([
            "--mode=node".to_owned(),
            format!("--endpoint=unix://{}", socket.display()),
            format!("--driver-name={}", spec.driver),
            format!("--node-id={}", spec.node_id),
            format!("--array-endpoint=unix://{}", spec.array.display()),
            format!("--media-dir={}", spec.media.display()),
            format!("--capabilities={}", spec.capabilities),
            format!("--state-dir={}", dir.join("state").display()),
            format!("--journal={}", journal.display()),
        ]);
        Ok(Self {
            instance: Instance::start(run, command.clone(), &socket, &journal).await?,
            command,
            kubelet_dir,
        })
    }

    /// A channel to its socket, which reconnects after a restart.
    pub fn channel(&self) -> Channel {
        self.instance.channel()
    }

    /// The journal of its calls.
    pub fn journal(&self) -> &Journal {
        self.instance.journal()
    }

    /// Directory of a simulated kubelet's staging and target paths.
    pub fn kubelet_dir(&self) -> PathBuf {
        self.kubelet_dir.clone()
    }

    /// First mount and last unmount of each volume on the node `node`: a volume is mounted while it is staged or published
    /// at any path.
    pub fn mount_events(&self, node: &str) -> Result<Vec<MountEvent>> {
        let calls = journal::calls(&self.journal().lines()?, &BTreeSet::new());
        let mut paths: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut events = Vec::new();
        for call in calls {
            let Some(end) = call.end.as_ref().filter(|_| call.effect == Effect::Done) else {
                continue;
            };
            let mounted_at = paths.entry(call.volume.clone()).or_default();
            let before = !mounted_at.is_empty();
            match call.method.as_str() {
                "NodeStageVolume" | "NodePublishVolume" => {
                    mounted_at.insert(call.path.clone());
                }
                "NodeUnstageVolume" | "NodeUnpublishVolume" => {
                    mounted_at.remove(&call.path);
                }
                _ => continue,
            }
            let mounted = !mounted_at.is_empty();
            if mounted != before {
                events.push(MountEvent {
                    at: end.at,
                    node: node.to_owned(),
                    volume: call.volume,
                    mounted,
                });
            }
        }
        Ok(events)
    }

    /// Starts the process again after [`Self::stop`], with its state.
    ///
    /// # Errors
    /// It already runs, exits, or is not ready in time.
    pub async fn restart(&mut self) -> Result<()> {
        self.instance.restart(self.command.clone()).await
    }

    /// Stops the process.
    ///
    /// # Errors
    /// It did not exit in time, or with an error.
    pub async fn stop(&self) -> Result<()> {
        self.instance.stop().await
    }
}
