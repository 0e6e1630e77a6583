//! A node: kubelet and containerd in their own namespaces, so that they can use their default paths.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use procfs::process::{MountInfo, Process as ProcProcess, all_processes};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;

use super::gates;
use super::init::{INIT, KUBELET, READY, ROOT_DIR};
use super::network::{Addresses, Network, in_namespaces};
use crate::mutex::lock;
use crate::process::{Process, Run, Spec, leftovers, readable_within};
use crate::toolchain::NodePrograms;
use crate::wait::{self, Progress};

/// The namespaces of a node.
const NAMESPACES: [&str; 5] = ["--mount", "--uts", "--ipc", "--net", "--pid"];
/// Image of every pod's sandbox.
pub(super) const SANDBOX_IMAGE: &str = "registry.k8s.io/pause:3.10";
/// containerd's socket in the node.
const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
/// Timeout of starting the init process or containerd, and of the exit of killed processes.
const STEP: Duration = Duration::from_secs(60);

/// A real node.
pub struct RealNode {
    run: Arc<Run>,
    name: String,
    dir: PathBuf,
    root_dir: String,
    programs: Arc<NodePrograms>,
    path: String,
    addresses: Addresses,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// `unshare`; the kernel kills the node's init process with it.
    unshare: Option<Arc<Process>>,
    /// Process id of the init process on the machine.
    init: u32,
    containerd: Option<Arc<Process>>,
    kubelet: Option<Arc<Process>>,
}

// === impl RealNode ===

impl RealNode {
    /// Creates the namespaces and starts containerd; [`Self::start_kubelet`] starts kubelet.
    pub(super) async fn boot(
        run: &Arc<Run>,
        dir: PathBuf,
        root_dir: &str,
        programs: &Arc<NodePrograms>,
        network: &Network,
        addresses: Addresses,
    ) -> Result<Self> {
        let name = dir
            .file_name()
            .context("the directory must be named as the node")?;
        let name = name.to_string_lossy().into_owned();
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let dirs = [&programs.containerd, &programs.shim];
        let dirs = dirs.map(|program| program.parent().unwrap_or(Path::new("/")).display().to_string());
        let path = format!(
            "{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            dirs.join(":")
        );
        let node = Self {
            run: Arc::clone(run),
            name,
            dir,
            root_dir: root_dir.to_owned(),
            programs: Arc::clone(programs),
            path,
            addresses,
            state: Mutex::default(),
        };
        node.write_configuration()?;
        node.start_init(network).await?;
        Ok(node)
    }

    /// Name of the Node object.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the node runs, that is, did not crash.
    pub fn is_up(&self) -> bool {
        self.lock().init != 0
    }

    /// Address of the node.
    pub fn address(&self) -> Ipv4Addr {
        self.addresses.node()
    }

    /// Process id of the init process on the machine.
    pub fn init(&self) -> Result<u32> {
        let init = self.lock().init;
        ensure!(init != 0, "{} does not run", self.name);
        Ok(init)
    }

    /// kubelet's kubeconfig.
    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// Starts the node again after [`Self::crash`], with the files that survive a reboot.
    pub(super) async fn start_init(&self, network: &Network) -> Result<()> {
        let ready = self.dir.join(READY);
        drop(fs::remove_file(&ready));
        let exe = std::env::current_exe().context("find this executable")?;
        let spec = Spec::new(self.log_name("init"), "unshare")
            .args(NAMESPACES)
            .args(["--fork", "--kill-child", "--mount-proc", "--"])
            .arg(exe)
            .env(INIT, &self.dir)
            .env(ROOT_DIR, &self.root_dir);
        let unshare = Arc::new(Process::spawn(&self.run, spec)?);
        wait::poll(STEP, &format!("{} to be set up", self.name), || async {
            unshare.ensure_alive()?;
            Ok(Progress::of(ready.exists(), || {
                "its init is not ready".to_owned()
            }))
        })
        .await?;
        let init = child_of(unshare.pid())?;
        {
            let mut state = self.lock();
            state.unshare = Some(unshare);
            state.init = init;
        }
        network.connect(&self.name, self.addresses, init).await?;
        self.start_containerd().await
    }

    async fn start_containerd(&self) -> Result<()> {
        let config = self.dir.join("containerd.toml");
        let spec = self
            .spec("containerd", &self.programs.containerd)?
            .arg("--config")
            .arg(config);
        let containerd = Arc::new(Process::spawn(&self.run, spec)?);
        let ctr = self.ctr();
        wait::poll(STEP, &format!("containerd of {}", self.name), || async {
            containerd.ensure_alive()?;
            let version = self.command(&[&ctr, "version"]).await;
            Ok(Progress::of(version.is_ok(), || format!("{version:?}")))
        })
        .await?;
        self.lock().containerd = Some(containerd);
        Ok(())
    }

    /// Starts kubelet.
    ///
    /// # Errors
    /// kubelet already runs, or the node does not run.
    pub fn start_kubelet(&self) -> Result<()> {
        ensure!(
            self.lock().kubelet.is_none(),
            "kubelet of {} runs already",
            self.name
        );
        let file = |name: &str| self.dir.join(name).display().to_string();
        let spec = self
            .spec("kubelet", &self.programs.kubelet)?
            .args(["--config", &file("kubelet.yaml")])
            .args(["--kubeconfig", &file("kubeconfig"), "--root-dir", &self.root_dir])
            .args(["--cert-dir", &file("pki"), "--hostname-override", &self.name])
            .args(["--node-ip", &self.addresses.node().to_string(), "--v=3"]);
        let kubelet = Arc::new(Process::spawn(&self.run, spec)?);
        self.lock().kubelet = Some(kubelet);
        Ok(())
    }

    /// Whether kubelet runs, that is, was not killed.
    pub fn runs_kubelet(&self) -> bool {
        self.lock().kubelet.is_some()
    }

    /// Kills kubelet by SIGKILL; containers keep running.
    pub async fn kill_kubelet(&self) -> Result<()> {
        let kubelet = self.lock().kubelet.take();
        let kubelet = kubelet.with_context(|| format!("kubelet of {} does not run", self.name))?;
        kubelet.kill().await.map(drop)
    }

    /// Kills all processes of the node at once, like a power failure.
    pub async fn crash(&self) -> Result<()> {
        let State {
            unshare,
            init,
            containerd,
            kubelet,
        } = std::mem::take(&mut *self.lock());
        let Some(unshare) = unshare else {
            return Ok(());
        };
        let init = i32::try_from(init)
            .ok()
            .and_then(Pid::from_raw)
            .context("a node must have a process")?;
        let ended = pidfd_open(init, PidfdFlags::empty()).context("watch the node's first process")?;
        unshare.kill().await?;
        for program in [containerd, kubelet].into_iter().flatten() {
            program.kill().await?;
        }
        // The init process exits after all others of its PID namespace.
        let ended = tokio::task::spawn_blocking(move || readable_within(&ended, STEP)).await;
        ensure!(
            ended.context("wait for the end of the node")??,
            "processes of {} are left {STEP:?} after SIGKILL",
            self.name
        );
        Ok(())
    }

    /// Unpacks the image layout in `layout` into containerd.
    pub(super) async fn import_images(&self, layout: &Path) -> Result<()> {
        let import = format!(
            "tar --directory='{}' --create --file=- . | '{}' --namespace k8s.io images import - >/dev/null",
            layout.display(),
            self.ctr()
        );
        self.command(&["sh", "-c", &import]).await.map(drop)
    }

    /// Runs a command in the namespaces of the node and returns its output.
    pub async fn command(&self, command: &[&str]) -> Result<String> {
        let init = self.init()?;
        in_namespaces(&self.run, init, &NAMESPACES, command, "").await
    }

    /// The node's mounts.
    pub fn mounts(&self) -> Result<Vec<MountInfo>> {
        let init = i32::try_from(self.lock().init).context("process ids are 32 bits")?;
        let mounts = ProcProcess::new(init).and_then(|process| process.mountinfo());
        Ok(mounts
            .with_context(|| format!("read the mounts of {}", self.name))?
            .0)
    }

    /// kubelet's `--root-dir`.
    pub fn root_dir(&self) -> &str {
        &self.root_dir
    }

    /// The directory on the host that is mounted at [`Self::root_dir`] in the node.
    pub fn kubelet_dir(&self) -> PathBuf {
        self.dir.join(KUBELET)
    }

    /// The directory with all files and logs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Fails with the last log lines if a program of the node has exited by itself.
    pub(super) fn ensure_alive(&self) -> Result<()> {
        let state = self.lock();
        let programs = [&state.unshare, &state.containerd, &state.kubelet];
        programs
            .into_iter()
            .flatten()
            .try_for_each(|program| program.ensure_alive())
    }

    fn ctr(&self) -> String {
        self.programs.ctr.display().to_string()
    }

    fn log_name(&self, program: &str) -> String {
        format!("{}-{program}", self.name)
    }

    /// A program in the namespaces of the node.
    fn spec(&self, name: &str, program: &Path) -> Result<Spec> {
        self.enter(Spec::new(self.log_name(name), "nsenter"), program)
    }

    /// Like [`Self::spec`], for a program that handles SIGTERM, which must not terminate nsenter.
    pub(crate) fn stoppable(&self, name: &str, program: &Path) -> Result<Spec> {
        let env = Spec::new(self.log_name(name), "env").args(["--ignore-signal=TERM", "nsenter"]);
        self.enter(env, program)
    }

    fn enter(&self, nsenter: Spec, program: &Path) -> Result<Spec> {
        let init = self.init()?;
        Ok(nsenter
            .args(["--target", &init.to_string()])
            .args(NAMESPACES)
            .arg("--")
            .arg(program)
            .env("PATH", &self.path))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn write_configuration(&self) -> Result<()> {
        let write = |name: &str, text: &str| {
            let path = self.dir.join(name);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))
        };
        let cni = self.dir.join("cni");
        fs::create_dir_all(&cni).with_context(|| format!("make {}", cni.display()))?;
        let network = json!({"cniVersion": "0.4.0", "name": "ptp", "plugins": [{
            "type": "ptp",
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "dataDir": "/run/cni",
                "subnet": self.addresses.pods(),
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }]});
        write("cni/ptp.conflist", &network.to_string())?;
        write("containerd.toml", &containerd_toml(&cni))?;
        let cgroup = leftovers::make_cgroup(self.run.dir(), &self.name)?;
        let kubelet = kubelet_configuration(&cgroup, gates(&self.programs));
        write("kubelet.yaml", &kubelet.to_string())
    }
}

fn containerd_toml(cni: &Path) -> String {
    // Without CAP_SYS_RESOURCE, the oom_score_adj of a container cannot be lowered.
    format!(
        r#"version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{SANDBOX_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "{}"
"#,
        cni.display()
    )
}

fn kubelet_configuration(cgroup: &str, gates: &[&str]) -> serde_json::Value {
    let gates: BTreeMap<_, _> = gates.iter().map(|gate| (*gate, true)).collect();
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        // Only the API server reaches it.
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "featureGates": gates,
        "failSwapOn": false,
        // The machine's disk and memory are shared with other programs.
        "evictionHard": {
            "memory.available": "1Mi",
            "nodefs.available": "0%",
            "imagefs.available": "0%",
            "nodefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        // No image is pulled from a registry.
        "imagePullCredentialsVerificationPolicy": "NeverVerify",
        "resolvConf": "",
        // The control plane must detect a lost node within seconds.
        "nodeLeaseDurationSeconds": 8,
        "nodeStatusUpdateFrequency": "2s",
        "nodeStatusReportFrequency": "10s",
    })
}

/// The only child of a process.
fn child_of(parent: u32) -> Result<u32> {
    let parent = i32::try_from(parent).context("process ids are 32 bits")?;
    let processes = all_processes().context("list processes")?.flatten();
    let child = processes
        .filter_map(|process| process.stat().ok())
        .find(|stat| stat.ppid == parent)
        .context("unshare must have a child")?;
    u32::try_from(child.pid).context("process ids are positive")
}
