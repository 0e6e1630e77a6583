//! A stage: all that one scenario has to itself on a shared cluster.
//!
//! Invariants: every name on a stage begins with the stage's prefix and every object it makes carries the
//! scenario label, so that stages cannot meet; a stage that is struck leaves nothing in the cluster and no
//! process behind, also when its scenario failed.

mod attachments;
mod closing;
mod outage;
mod pods;
mod replicas;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use tokio::sync::OwnedMutexGuard;

pub use closing::sweep;
pub use volumes::StageVolume;

use super::site::Site;
use crate::driver::{Driver, DriverSpec};
use crate::fixture::{self, SCENARIO_LABEL, mk_csi_driver, mk_secret};
use crate::invariant::Evidence;
use crate::invariant::evidence::VolumeFacts;
use crate::invariant::settled::unsettled;
use crate::invariant::witness::Witness;
use crate::node::{Ledger, NodeStandIn};
use crate::subject::{Kind, Subject, SubjectSpec};
use crate::wait::{self, Progress};

/// How long an ordinary step may take on a machine that is busy with other scenarios.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How long attachments may take to settle once nothing disturbs them.
const SETTLE: Duration = Duration::from_secs(60);
/// Name of the ServiceAccount the attacher runs under.
pub const ACCOUNT: &str = "csi-attacher";
/// Name of the secret that goes with every publish and unpublish.
pub const SECRET: &str = "publish-secret";
/// Its only key.
pub const SECRET_KEY: &str = "array-password";

/// The first node of a stage.
pub const A: usize = 0;
/// The second node of a stage.
pub const B: usize = 1;

/// What a scenario wants to find set up.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// How many nodes, named `a`, `b` and so on.
    pub nodes: usize,
    /// Time each publish and unpublish takes at the driver.
    pub latency: Duration,
    /// Deadline of the attacher's driver calls.
    pub timeout: Duration,
    /// How long the scenario's own part may take, whatever it waits for.
    pub within: Duration,
    /// Name of the driver, where Kubernetes knows it. Such a stage has the name to itself: others wait for it.
    /// `None`: a name that no other stage has.
    pub driver: Option<&'static str>,
    /// How often the attacher asks the driver where its volumes are.
    pub reconcile_sync: Duration,
    /// What the driver cannot do, as its flag takes it.
    pub capabilities: &'static str,
    /// More flags of the attacher.
    pub flags: &'static [&'static str],
    /// More flags, which ours alone takes.
    pub own_flags: &'static [&'static str],
}

/// One scenario's own driver, attacher, nodes, namespace and objects.
pub struct Stage<'site> {
    /// The driver.
    pub driver: Driver,
    /// The attacher under test.
    pub subject: Subject,
    spec: SubjectSpec,
    site: &'site Site,
    prefix: String,
    dir: PathBuf,
    secret: String,
    nodes: Vec<NodeStandIn>,
    volumes: BTreeMap<String, StageVolume>,
    ledger: Ledger,
    witness: Witness,
    forced: BTreeSet<(String, String)>,
    _sole: Option<OwnedMutexGuard<()>>,
    beyond: BTreeSet<(String, String)>,
}

// === impl Setting ===

impl Setting {
    /// Two nodes, a quick driver, and the attacher's usual deadline. The driver is not as quick as can be: a
    /// status written before its answer, or a finalizer removed before it, must be seen on the watch first.
    pub const DEFAULT: Self = Self {
        nodes: 2,
        latency: Duration::from_millis(20),
        timeout: Duration::from_secs(15),
        within: Duration::from_secs(420),
        driver: None,
        reconcile_sync: Duration::from_secs(60),
        capabilities: "",
        flags: &[],
        own_flags: &[],
    };
}

// === impl Stage ===

impl<'site> Stage<'site> {
    /// Sets everything up and waits until driver, attacher and nodes are there.
    ///
    /// # Errors
    /// Something could not be set up; processes are gone then, objects may be left for [`sweep`].
    pub async fn set(site: &'site Site, prefix: &str, kind: Kind, setting: Setting) -> Result<Self> {
        let cluster = site.cluster();
        let client = cluster.client();
        let sole = match setting.driver {
            Some(_) => Some(site.known_driver().await),
            None => None,
        };
        let driver_name = setting.driver.map_or_else(|| driver_name(prefix), str::to_owned);
        let dir = site.run().subdir(prefix)?;
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
        let create = PostParams::default();
        Api::<Secret>::namespaced(client.clone(), prefix)
            .create(&create, &mk_secret(prefix, SECRET, SECRET_KEY, &secret))
            .await
            .context("make the publish secret")?;
        Api::<CSIDriver>::all(client.clone())
            .create(&create, &mk_csi_driver(prefix, &driver_name))
            .await
            .context("register the driver")?;

        let spec = DriverSpec {
            name: driver_name.clone(),
            // One that no node has: whoever is registered anew has it.
            nodes: setting.nodes + 1,
            latency: setting.latency,
            capabilities: setting.capabilities.to_owned(),
            flags: Vec::new(),
        };
        let driver = Driver::start(site.run().clone(), site.driver(), &dir, spec).await?;
        let witness = Witness::start(client, &driver_name).await?;
        let subject = SubjectSpec {
            kind,
            binary: site.attacher(kind).await?.to_owned(),
            dir: dir.clone(),
            kubeconfig,
            socket: driver.socket(),
            timeout: setting.timeout,
            reconcile_sync: setting.reconcile_sync,
            flags: setting.flags,
            own_flags: setting.own_flags,
            replica: None,
        };
        let spec = subject.clone();
        let subject = Subject::start(site.run().clone(), subject).await?;
        let mut stage = Self {
            driver,
            subject,
            spec,
            site,
            prefix: prefix.to_owned(),
            dir,
            secret,
            nodes: Vec::new(),
            volumes: BTreeMap::new(),
            ledger: Ledger::default(),
            witness,
            forced: BTreeSet::new(),
            _sole: sole,
            beyond: BTreeSet::new(),
        };
        for index in 0..setting.nodes {
            stage.add_node(index).await?;
        }
        Ok(stage)
    }

    async fn add_node(&mut self, index: usize) -> Result<()> {
        let letter = char::from(b'a' + u8::try_from(index).context("a stage has few nodes")?);
        let name = format!("{}-{letter}", self.prefix);
        let node_id = self.driver.node_id(index)?;
        let node = NodeStandIn::register(
            self.client(),
            &self.prefix,
            &name,
            self.driver.name(),
            &node_id,
            self.ledger.clone(),
        );
        self.nodes.push(node.await?);
        Ok(())
    }

    /// A client with the harness's rights.
    pub fn client(&self) -> Client {
        self.site.cluster().client()
    }

    /// The site the stage stands on.
    pub fn site(&self) -> &'site Site {
        self.site
    }

    /// What every name on this stage begins with; also the namespace's name.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Directory of the stage's files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The `index`th node.
    ///
    /// # Panics
    /// If the scenario's setting has fewer nodes.
    pub fn node(&self, index: usize) -> &NodeStandIn {
        self.nodes
            .get(index)
            .expect("the setting must have the nodes its scenario uses")
    }

    /// All nodes.
    pub fn nodes(&self) -> &[NodeStandIn] {
        &self.nodes
    }

    /// What the nodes did so far.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Every state of the driver's attachments so far.
    pub fn witness(&self) -> &Witness {
        &self.witness
    }

    /// The finalizer the attacher uses.
    pub fn finalizer(&self) -> String {
        fixture::attacher_finalizer(self.driver.name())
    }

    /// Selects this stage's objects.
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

    /// Waits until every attachment of the driver is settled and the array agrees with them.
    pub async fn settle(&self) -> Result<()> {
        let attacher = self.driver.name().to_owned();
        wait::for_objects(
            &Api::<VolumeAttachment>::all(self.client()),
            kube::runtime::watcher::Config::default(),
            SETTLE,
            "all attachments to settle",
            |seen| {
                let open: Vec<_> = seen
                    .values()
                    .filter(|va| va.spec.attacher == attacher)
                    .filter_map(|va| Some(format!("{}: {}", va.metadata.name.as_deref()?, unsettled(va)?)))
                    .collect();
                Progress::of(open.is_empty(), || open.join("; "))
            },
        )
        .await
    }

    /// Everything the invariants are judged on, as of now.
    pub async fn evidence(&self) -> Result<Evidence> {
        let volumes = Api::<PersistentVolume>::all(self.client())
            .list(&self.mine())
            .await?;
        let facts = self.volumes.iter().map(|(pv, volume)| {
            (
                pv.clone(),
                VolumeFacts {
                    handle: volume.handle.clone(),
                    access: volume.access,
                },
            )
        });
        Ok(Evidence {
            finalizer: self.finalizer(),
            volumes: facts.collect(),
            node_ids: self
                .nodes
                .iter()
                .map(|node| (node.name().to_owned(), node.node_id().to_owned()))
                .collect(),
            calls: self.driver.calls()?,
            deeds: self.ledger.entries(),
            sightings: self.witness.sightings(),
            published: self.driver.published().await?,
            attachments: self.attachments().await?,
            persistent_volumes: volumes.items,
            forced: self.forced.clone(),
            beyond: self.beyond.clone(),
            secrets: vec![self.secret.clone()],
            texts: self.texts().await?,
        })
    }
}

/// The name of a stage's driver.
fn driver_name(prefix: &str) -> String {
    format!("{prefix}.csi.local")
}

/// A value that cannot be anywhere by chance.
fn secret_value() -> String {
    let random = std::hash::RandomState::new();
    let part = |salt: u8| std::hash::BuildHasher::hash_one(&random, salt);
    format!("secret-{:016x}{:016x}", part(0), part(1))
}
