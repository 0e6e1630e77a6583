//! A test environment: the driver, attacher, nodes and objects of one scenario on a shared cluster.
//!
//! Invariants: every name in a test environment begins with its prefix, and every object has the scenario label, so that test
//! environments do not conflict. After the teardown, no object and no process is left, also if the scenario failed.

mod attachments;
mod controller_metrics;
mod load_balancer;
mod node_failure;
mod node_status;
mod nodes;
mod pods;
mod replicas;
mod sidecars;
mod teardown;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;

pub use node_status::VolumesAttached;
use replicas::Replicas;
use sidecars::SIDECAR_ACCOUNT;
pub use teardown::force_cleanup;
pub use volumes::TestVolume;

use super::test_context::TestContext;
use crate::attacher::{AttacherProcess, AttacherSpec, Kind};
use crate::cluster::{ClusterSettings, KubernetesVersion};
use crate::driver::{Driver, DriverSpec};
use crate::fixture::{self, SCENARIO_LABEL, mk_csi_driver, mk_secret};
use crate::invariant::Observations;
use crate::invariant::observations::{VolumeSpec, compare_lists};
use crate::invariant::watch_recorder::WatchRecorder;
use crate::node::Node;
use crate::objects;
use crate::observe;
use crate::process::Process;
use crate::wait::{self, Progress};

/// Timeout of an ordinary step on a machine that is busy with other scenarios.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout for the convergence of attachments without further disturbance.
const SETTLE: Duration = Duration::from_secs(60);
/// Name of the ServiceAccount the attacher runs under.
pub const ACCOUNT: &str = "csi-attacher";
/// Name of the publish Secret.
pub const SECRET: &str = "publish-secret";
/// Its only key.
pub const SECRET_KEY: &str = "array-password";

/// The first node of a test environment.
pub const A: usize = 0;
/// The second node of a test environment.
pub const B: usize = 1;

/// Setup of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct ScenarioConfig {
    /// How many nodes, named `a`, `b` and so on.
    pub nodes: usize,
    /// Time each publish and unpublish takes at the driver.
    pub latency: Duration,
    /// Deadline of the attacher's driver calls.
    pub timeout: Duration,
    /// Timeout of the scenario's steps.
    pub within: Duration,
    /// Name of the driver if Kubernetes has it built in, such as a migration driver; test environments with the same name run
    /// one after the other. `None`: a unique name.
    pub driver: Option<&'static str>,
    /// A cluster of the scenario's own, if it disturbs its components or needs other settings.
    pub own_cluster: Option<ClusterSettings>,
    /// Oldest Kubernetes version with the tested feature; the scenario is skipped with older versions.
    pub since: Option<KubernetesVersion>,
    /// Interval of the attacher's ListVolumes calls.
    pub reconcile_sync: Duration,
    /// Capabilities that the driver does not have, in the format of its flag.
    pub capabilities: &'static str,
    /// More flags of the driver's controller.
    pub driver_flags: &'static [&'static str],
    /// Whether the nodes' kubelets mount volumes, for which each node needs a driver process. Without it they only report.
    /// A mock driver without ControllerPublish would attach volumes when it mounts them, which would disturb some
    /// scenarios.
    pub node_drivers: bool,
    /// More flags of the attacher.
    pub flags: &'static [&'static str],
    /// More flags of csi-attacher only.
    pub own_flags: &'static [&'static str],
    /// Whether the scenario starts the other attacher, too. The contract then holds without csi-attacher's promises.
    pub both_kinds: bool,
}

/// One scenario's own driver, attacher, nodes, namespace and objects.
pub struct TestEnv<'ctx> {
    /// The driver.
    pub driver: Driver,
    /// The attacher under test.
    pub attacher: AttacherProcess,
    spec: AttacherSpec,
    ctx: &'ctx TestContext,
    prefix: String,
    dir: PathBuf,
    secret: String,
    nodes: Vec<Node>,
    volumes: BTreeMap<String, TestVolume>,
    recorder: WatchRecorder,
    replicas: Replicas,
    /// Sidecars besides the attacher.
    sidecars: Vec<Process>,
    provisioners: JoinSet<()>,
    force_detached: BTreeMap<(String, String), Timestamp>,
    makes_promises: bool,
    _driver_name_guard: Option<OwnedMutexGuard<()>>,
    exempt: BTreeSet<(String, String)>,
    /// UIDs.
    lost_objects: BTreeSet<String>,
}

// === impl ScenarioConfig ===

impl ScenarioConfig {
    /// Two nodes, a fast driver, and the attacher's default timeout. The driver has some latency, so that the watch shows a
    /// status that is written, or a finalizer that is removed, before the driver's response.
    pub const DEFAULT: Self = Self {
        nodes: 2,
        latency: Duration::from_millis(20),
        timeout: Duration::from_secs(15),
        within: Duration::from_secs(600),
        driver: None,
        own_cluster: None,
        since: None,
        reconcile_sync: Duration::from_secs(60),
        capabilities: "",
        driver_flags: &[],
        node_drivers: true,
        flags: &[],
        own_flags: &[],
        both_kinds: false,
    };

    /// The same with one node.
    pub const ONE_NODE: Self = Self {
        nodes: 1,
        ..Self::DEFAULT
    };
}

// === impl TestEnv ===

impl<'ctx> TestEnv<'ctx> {
    /// Sets up the test environment and waits until driver, attacher and nodes are ready.
    ///
    /// # Errors
    /// The setup failed. Its processes are stopped; objects may be left for [`force_cleanup`].
    pub async fn set_up(
        ctx: &'ctx TestContext,
        prefix: &str,
        kind: Kind,
        config: ScenarioConfig,
    ) -> Result<Self> {
        let cluster = ctx.cluster();
        let client = cluster.client();
        let driver_name_guard = match config.driver {
            Some(_) => Some(ctx.lock_well_known_driver_name().await),
            None => None,
        };
        let driver_name = config.driver.map_or_else(|| driver_name(prefix), str::to_owned);
        let dir = ctx.run().subdir(prefix)?;
        cluster
            .create_namespace(prefix)
            .await
            .context("make the scenario's namespace")?;
        cluster
            .create_attacher_account(prefix, ACCOUNT, true)
            .await
            .context("make the attacher's account")?;
        let kubeconfig = cluster
            .service_account_kubeconfig(prefix, ACCOUNT, &dir)
            .await
            .context("get the attacher's credentials")?;

        let secret = secret_value();
        objects::create(
            &Api::<Secret>::namespaced(client.clone(), prefix),
            &mk_secret(prefix, SECRET, SECRET_KEY, &secret),
        )
        .await?;
        objects::create(
            &Api::<CSIDriver>::all(client.clone()),
            &mk_csi_driver(prefix, &driver_name, true),
        )
        .await?;

        let spec = DriverSpec {
            name: driver_name.clone(),
            nodes: config.nodes,
            latency: config.latency,
            capabilities: config.capabilities.to_owned(),
            flags: config.driver_flags.iter().map(|&flag| flag.to_owned()).collect(),
        };
        let driver = Driver::start(ctx.run().clone(), ctx.driver(), &dir, spec).await?;
        let recorder = WatchRecorder::start(client, &driver_name, prefix).await?;
        let attacher = AttacherSpec {
            kind,
            binary: ctx.attacher(kind).await?.to_owned(),
            dir: dir.clone(),
            kubeconfig,
            socket: driver.socket(),
            timeout: config.timeout,
            reconcile_sync: config.reconcile_sync,
            flags: config.flags,
            own_flags: config.own_flags,
            replica: None,
        };
        let spec = attacher.clone();
        let attacher = AttacherProcess::start(ctx.run().clone(), attacher).await?;
        let mut env = Self {
            driver,
            attacher,
            spec,
            ctx,
            prefix: prefix.to_owned(),
            dir,
            secret,
            nodes: Vec::new(),
            volumes: BTreeMap::new(),
            recorder,
            replicas: Replicas::default(),
            sidecars: Vec::new(),
            provisioners: JoinSet::new(),
            force_detached: BTreeMap::new(),
            makes_promises: kind == Kind::Ours && !config.both_kinds,
            _driver_name_guard: driver_name_guard,
            exempt: BTreeSet::new(),
            lost_objects: BTreeSet::new(),
        };
        for index in 0..config.nodes {
            env.add_node(index, config.node_drivers).await?;
        }
        Ok(env)
    }

    /// A client with the harness's permissions.
    pub fn client(&self) -> Client {
        self.ctx.cluster().client()
    }

    /// The test context of the test environment.
    pub fn ctx(&self) -> &'ctx TestContext {
        self.ctx
    }

    /// Prefix of all names of this test environment, and name of its namespace.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Directory of the test environment's files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// All states so far of the driver's attachments and volumes, and of the attachers' Lease.
    pub fn recorder(&self) -> &WatchRecorder {
        &self.recorder
    }

    /// The finalizer the attacher uses.
    pub fn finalizer(&self) -> String {
        fixture::attacher_finalizer(self.driver.name())
    }

    /// Selects this test environment's objects.
    fn mine(&self) -> ListParams {
        ListParams::default().labels(&format!("{SCENARIO_LABEL}={}", self.prefix))
    }

    /// The driver's attachments now.
    pub async fn attachments(&self) -> Result<Vec<VolumeAttachment>> {
        let all = Api::<VolumeAttachment>::all(self.client())
            .list(&ListParams::default())
            .await?;
        Ok(all
            .items
            .into_iter()
            .filter(|va| va.spec.attacher == self.driver.name())
            .collect())
    }

    /// Waits until every attachment of the driver has converged and matches the array.
    pub async fn settle(&self) -> Result<()> {
        let (attacher, finalizer) = (self.driver.name().to_owned(), self.finalizer());
        let problem = |attachment: &VolumeAttachment| {
            let version = observe::attachment(attachment, &finalizer, Timestamp::UNIX_EPOCH);
            let has_error = version.attached && version.deleting.is_none() && version.attach_error.is_some();
            let problem = version.unsettled();
            problem.or(has_error.then_some("it is attached and still has an attachError"))
        };
        wait::for_objects(
            &Api::<VolumeAttachment>::all(self.client()),
            kube::runtime::watcher::Config::default(),
            SETTLE,
            "all attachments to settle",
            |seen| {
                let open: Vec<_> = seen
                    .values()
                    .filter(|va| va.spec.attacher == attacher)
                    .filter_map(|va| Some(format!("{}: {}", va.metadata.name.as_deref()?, problem(va)?)))
                    .collect();
                Progress::of(open.is_empty(), || open.join("; "))
            },
        )
        .await
    }

    /// The observations so far, for the invariants.
    pub async fn observations(&self) -> Result<Observations> {
        // Read before the journals, so that the journals have the calls of all recorded states.
        let mut watch_events = self.recorder.watch_events();
        let mut volume_events = self.recorder.volume_events();
        let lease_events = self.recorder.leases().borrow().clone();
        let is_lost = |uid: Option<&String>| uid.is_some_and(|uid| self.lost_objects.contains(uid));
        watch_events.retain(|event| !is_lost(event.object.metadata.uid.as_ref()));
        volume_events.retain(|event| !is_lost(event.object.metadata.uid.as_ref()));
        let volumes = Api::<PersistentVolume>::all(self.client())
            .list(&self.mine())
            .await?;
        let facts = self.volumes.iter().map(|(pv, volume)| {
            (
                pv.clone(),
                VolumeSpec {
                    handle: volume.handle.clone(),
                    access: volume.access,
                },
            )
        });
        // An attach or detach may end between two reads.
        let before = self.driver.published().await?;
        let attachments = self.attachments().await?;
        let (published, changing) = compare_lists(&before, &self.driver.published().await?);
        let gaps = self.recorder.gaps();
        for (at, what) in &gaps {
            tracing::warn!(%at, what, "the record has a gap: states before the next list were not checked");
        }
        Ok(Observations {
            driver: self.driver.name().to_owned(),
            finalizer: self.finalizer(),
            makes_promises: self.makes_promises,
            gaps,
            volumes: facts.collect(),
            node_ids: self
                .nodes
                .iter()
                .map(|node| (node.name().to_owned(), node.node_id().to_owned()))
                .collect(),
            calls: self.driver.calls()?,
            mounts: self.mount_events()?,
            watch_events,
            volume_events,
            lease_events,
            replicas: self.replicas.processes.clone(),
            writes: self.replicas.writes(),
            published,
            changing,
            attachments,
            persistent_volumes: volumes.items,
            force_detached: self.force_detached.clone(),
            exempt: self.exempt.clone(),
            secrets: vec![self.secret.clone()],
            texts: self.texts().await?,
        })
    }
}

/// The name of a test environment's driver.
fn driver_name(prefix: &str) -> String {
    format!("{prefix}.csi.local")
}

/// A unique value.
fn secret_value() -> String {
    let random = std::hash::RandomState::new();
    let part = |salt: u8| std::hash::BuildHasher::hash_one(&random, salt);
    format!("secret-{:016x}{:016x}", part(0), part(1))
}
