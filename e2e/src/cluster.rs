//! A Kubernetes cluster of any backend, as scenarios use it.
//!
//! Owns the admin's client and credentials, and the attachers' ServiceAccounts. Invariants: no attacher gets the admin's
//! credentials; an attacher's ServiceAccount has exactly the permissions that `deploy/` grants.

mod account;
mod backend;
mod dump;
mod embedded;
pub mod manifest;
mod metrics;
mod settings;
mod version;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::Kubeconfig;
use kube::core::GroupVersionKind;
use kube::discovery::{self, Scope};
use kube::runtime::conditions;
use kube::runtime::wait::Condition;
use kube::{Api, Client, ResourceExt};

pub use backend::{Backend, Provisioner};
pub use embedded::AttachDetachVolumes;
pub use metrics::{Metrics, Request, Series};
pub use settings::ClusterSettings;
pub use version::KubernetesVersion;

use crate::fixture::mk_meta;
use crate::kubeconfig;
use crate::permissions::{self, Permission};
use crate::process::Run;
use crate::toolchain::Toolchain;
use crate::wait::{self, Progress};
use backend::Running;

/// Field manager of everything the harness applies.
const MANAGER: &str = "csi-e2e";
/// Timeout for objects that a controller creates in each namespace.
const SETTLED: Duration = Duration::from_secs(60);

/// A running cluster with the roles of `deploy/`.
pub struct Cluster {
    client: Client,
    admin: PathBuf,
    running: Running,
    /// The objects of `deploy/`, without the permission to read publish Secrets.
    deploy: Vec<DynamicObject>,
    publish_secrets: Vec<DynamicObject>,
    /// The ServiceAccount and permissions of the driver's other sidecars.
    sidecars: Vec<DynamicObject>,
    /// The objects that [`Cluster::install`] created on an existing cluster.
    created: OnceLock<Vec<DynamicObject>>,
}

// === impl Cluster ===

impl Cluster {
    /// Starts or finds the cluster and applies the objects of `deploy/` except workloads: scenarios run attacher and driver as
    /// processes of the harness, so that they can kill and inspect them.
    pub async fn start(run: &Arc<Run>, toolchain: &Toolchain, backend: Backend) -> Result<Self> {
        let (running, client, admin) = Running::start(run, toolchain, backend).await?;
        let cluster = Self {
            client,
            admin,
            running,
            deploy: manifest::base().context("read deploy/base")?,
            publish_secrets: manifest::publish_secrets().context("read deploy/components/publish-secrets")?,
            sidecars: manifest::sidecars().context("read the sidecars' roles in deploy/overlays")?,
            created: OnceLock::new(),
        };
        cluster.while_alive(cluster.install()).await?;
        Ok(cluster)
    }

    /// A client with the permissions of a cluster admin, for the harness; attachers never get it.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Applies the objects of a YAML stream in order, by server-side apply if the backend has it.
    ///
    /// # Errors
    /// A field is unknown to the API server, for example.
    pub async fn apply(&self, manifests: &str) -> Result<Vec<DynamicObject>> {
        self.apply_objects(&manifest::parse(manifests)?, false).await
    }

    /// Applies the CustomResourceDefinitions of a YAML stream and waits until the API server serves them.
    pub async fn apply_definitions(&self, manifests: &str) -> Result<()> {
        let definitions = Api::<CustomResourceDefinition>::all(self.client());
        for definition in self.apply(manifests).await? {
            let name = definition.name_any();
            let what = format!("{name} to be served");
            wait::for_object(&definitions, &name, SETTLED, &what, |definition| {
                let established = conditions::is_crd_established().matches_object(definition);
                Progress::of(established, || "it is not established".to_owned())
            })
            .await?;
        }
        Ok(())
    }

    /// Deletes the objects of a YAML stream.
    pub async fn delete(&self, manifests: &str) -> Result<()> {
        for object in manifest::parse(manifests)? {
            let api = self.api_for(&object).await?;
            let deleted = api.delete(&object.name_any(), &DeleteParams::default()).await;
            ignore_not_found(deleted).with_context(|| format!("delete {}", object.name_any()))?;
        }
        Ok(())
    }

    /// Validates the objects of a YAML stream by a dry run.
    ///
    /// # Errors
    /// As for [`Cluster::apply`].
    pub async fn check(&self, manifests: &str) -> Result<Vec<DynamicObject>> {
        self.apply_objects(&manifest::parse(manifests)?, true).await
    }

    /// Permissions that `deploy/` grants an attacher, including publish Secrets.
    pub fn granted(&self) -> Result<BTreeSet<Permission>> {
        permissions::granted(self.deploy.iter().chain(&self.publish_secrets))
    }

    /// Creates a namespace, with the scenario label, and waits for its default ServiceAccount, without which no pod can be
    /// created.
    pub async fn create_namespace(&self, name: &str) -> Result<()> {
        let namespace = Namespace {
            metadata: mk_meta(name, name),
            ..Namespace::default()
        };
        Api::<Namespace>::all(self.client())
            .create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("create namespace {name}"))?;
        self.default_account(name).await
    }

    /// `gitVersion` of the API server, such as `v1.36.3`.
    pub async fn git_version(&self) -> Result<String> {
        let version = self.client.apiserver_version().await;
        Ok(version.context("read the API server's version")?.git_version)
    }

    /// The API server's metrics.
    pub async fn metrics(&self) -> Result<Metrics> {
        let request = http::Request::get("/metrics")
            .body(Vec::new())
            .context("build the request for metrics")?;
        let text = self
            .client
            .request_text(request)
            .await
            .context("read the API server's metrics")?;
        Metrics::parse(&text)
    }

    /// Applies the ServiceAccounts and RBAC objects of `deploy/`, those for publish Secrets and sidecars included, and waits for
    /// the default ServiceAccount.
    pub(crate) async fn install(&self) -> Result<()> {
        let mut objects = self.deploy.clone();
        objects.retain(|object| !manifest::is_workload(object));
        objects.extend_from_slice(&self.publish_secrets);
        let roles = self
            .sidecars
            .iter()
            .filter(|object| manifest::is_kind(object, "ClusterRole"));
        objects.extend(roles.cloned());
        if self.is_existing() {
            let absent = self.absent(&objects).await?;
            self.created.get_or_init(|| absent);
        }
        self.apply_objects(&objects, false)
            .await
            .context("apply deploy/")?;
        self.default_account("default").await
    }

    /// Deletes the objects that [`Cluster::install`] created, and waits until their namespaces are deleted.
    async fn uninstall(&self) -> Result<()> {
        let created = self.created.get().into_iter().flatten().rev();
        for object in created.filter(|object| self.serves(object)) {
            let (api, name) = (self.api_for(object).await?, object.name_any());
            ignore_not_found(api.delete(&name, &DeleteParams::default()).await)
                .with_context(|| format!("delete {name}"))?;
            if manifest::is_kind(object, "Namespace") {
                let namespaces = Api::<Namespace>::all(self.client());
                wait::for_absence(&namespaces, &name, SETTLED, "the namespace to be deleted").await?;
            }
        }
        Ok(())
    }

    /// Those of `objects` that do not exist.
    async fn absent(&self, objects: &[DynamicObject]) -> Result<Vec<DynamicObject>> {
        let mut absent = Vec::new();
        for object in objects {
            let name = object.name_any();
            let found = self.api_for(object).await?.get_opt(&name).await;
            if found.with_context(|| format!("read {name}"))?.is_none() {
                absent.push(object.clone());
            }
        }
        Ok(absent)
    }

    async fn default_account(&self, namespace: &str) -> Result<()> {
        let accounts = Api::<ServiceAccount>::namespaced(self.client(), namespace);
        let what = format!("the default service account of namespace {namespace}");
        let exists = |account: Option<&ServiceAccount>| {
            Progress::of(account.is_some(), || "it does not exist yet".to_owned())
        };
        wait::for_object(&accounts, "default", SETTLED, &what, exists).await
    }

    async fn apply_objects(&self, objects: &[DynamicObject], dry_run: bool) -> Result<Vec<DynamicObject>> {
        let mut params = PatchParams::apply(MANAGER).force().validation_strict();
        params.dry_run = dry_run;
        let mut applied = Vec::with_capacity(objects.len());
        for object in objects.iter().filter(|object| self.serves(object)) {
            let api = self.api_for(object).await?;
            let result = match self.running.has_server_side_apply() {
                true => {
                    api.patch(&object.name_any(), &params, &Patch::Apply(object))
                        .await
                }
                false => create_or_patch(&api, object, dry_run).await,
            };
            applied.push(result.with_context(|| format!("apply {}", object.name_any()))?);
        }
        Ok(applied)
    }

    fn serves(&self, object: &DynamicObject) -> bool {
        let version = object.types.as_ref().map(|types| types.api_version.as_str());
        let group = version.and_then(|version| version.split_once('/'));
        group.is_none_or(|(group, _)| self.running.serves(group))
    }

    async fn api_for(&self, object: &DynamicObject) -> Result<Api<DynamicObject>> {
        let types = object
            .types
            .as_ref()
            .context("an object must have apiVersion and kind")?;
        let kind = GroupVersionKind::try_from(types).context("parse apiVersion")?;
        self.api(&kind, object.metadata.namespace.as_deref()).await
    }

    async fn api(&self, kind: &GroupVersionKind, namespace: Option<&str>) -> Result<Api<DynamicObject>> {
        let (resource, capabilities) = discovery::pinned_kind(&self.client, kind)
            .await
            .with_context(|| format!("look up kind {}", kind.kind))?;
        match (capabilities.scope, namespace) {
            (Scope::Cluster, _) => Ok(Api::all_with(self.client(), &resource)),
            (Scope::Namespaced, Some(namespace)) => {
                Ok(Api::namespaced_with(self.client(), namespace, &resource))
            }
            (Scope::Namespaced, None) => {
                anyhow::bail!("an object of kind {} must name its namespace", kind.kind)
            }
        }
    }
}

// === functions ===

/// Treats NotFound as success of a deletion.
pub fn ignore_not_found<T>(result: kube::Result<T>) -> Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Ok(()),
    }
}

/// Creates an object, or merges it into the existing one.
async fn create_or_patch(
    api: &Api<DynamicObject>,
    object: &DynamicObject,
    dry_run: bool,
) -> kube::Result<DynamicObject> {
    let create = PostParams {
        dry_run,
        ..PostParams::default()
    };
    match api.create(&create, object).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let mut params = PatchParams::default().validation_strict();
            params.dry_run = dry_run;
            api.patch(&object.name_any(), &params, &Patch::Merge(object))
                .await
        }
        created => created,
    }
}

/// Copies the user's kubeconfig, with all references resolved, to a file of the run.
fn copy_kubeconfig(path: Option<&Path>, context: Option<String>, dir: &Path) -> Result<PathBuf> {
    let read = path.map_or_else(Kubeconfig::read, Kubeconfig::read_from);
    let mut kubeconfig = read.context("read the kubeconfig of the cluster to be used")?;
    if context.is_some() {
        kubeconfig.current_context = context;
    }
    let copy = dir.join("admin.kubeconfig");
    kubeconfig::save(&copy, &kubeconfig)?;
    Ok(copy)
}
