//! The supported kustomizations of `deploy/`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use csi_e2e::cluster::manifest;
use csi_e2e::toolchain::workspace_root;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};
use kube::ResourceExt;
use kube::api::DynamicObject;

use super::{container_of_image, of_kind};
use crate::Harness;

/// Number of builds.
static BUILDS: AtomicUsize = AtomicUsize::new(0);

/// Overlays whose pods only the `privileged` profile admits: a node plugin that mounts for pods is
/// privileged, and controller and nodes of the mock driver share a host directory.
const PRIVILEGED: [&str; 4] = [
    "overlays/mock-driver-nodes",
    "overlays/mock-driver-snapshots",
    "overlays/mock-driver-group-snapshots",
    "overlays/mock-driver-snapshot-metadata",
];

/// A kustomization of `deploy/`, alone or with components.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Path below `deploy/`.
    resource: String,
    /// Names of components.
    components: Vec<String>,
}

/// A workload that creates pods.
pub(crate) struct Workload {
    /// Name in messages.
    pub(crate) name: String,
    /// Whether it is a DaemonSet.
    pub(crate) is_on_each_node: bool,
    pub(crate) template: PodTemplateSpec,
}

// === impl Shape ===

impl Shape {
    /// The base alone, with each component and with all compatible components, and each overlay. They are
    /// discovered, so that none can be forgotten. The Go sidecar has no authentication.
    pub(crate) fn all() -> Result<Vec<Self>> {
        let components = folders("components")?;
        let mut shapes = vec![Self::base_with::<&str>(&[])?];
        for component in &components {
            shapes.push(Self::base_with(&[component])?);
        }
        for excluded in ["authenticated-metrics", "go-sidecar"] {
            let compatible = components.iter().filter(|component| *component != excluded);
            shapes.push(Self::base_with(&compatible.collect::<Vec<_>>())?);
        }
        shapes.extend(folders("overlays")?.iter().map(|overlay| Self::overlay(overlay)));
        Ok(shapes)
    }

    /// A complete overlay.
    pub(crate) fn overlay(name: &str) -> Self {
        Self {
            resource: format!("overlays/{name}"),
            components: Vec::new(),
        }
    }

    /// The base with components.
    pub(crate) fn base_with<C: AsRef<str>>(components: &[C]) -> Result<Self> {
        Ok(Self {
            resource: "base".to_owned(),
            components: components
                .iter()
                .map(|component| component.as_ref().to_owned())
                .collect(),
        })
    }

    /// Whether the permissions include publish secrets.
    pub(crate) fn may_read_secrets(&self) -> bool {
        self.components
            .iter()
            .any(|component| component == "publish-secrets")
    }

    /// Pod security profile of its namespace.
    pub(crate) fn pod_security(&self) -> &'static str {
        if PRIVILEGED.contains(&self.resource.as_str()) {
            "privileged"
        } else {
            "restricted"
        }
    }

    /// A namespace for this shape only.
    pub(crate) fn namespace(&self) -> String {
        let name = format!(
            "{}-{}",
            self.resource.replace('/', "-"),
            self.components.join("-")
        );
        name.trim_end_matches('-').chars().take(50).collect()
    }

    /// Its objects as a YAML stream.
    pub(crate) async fn build(&self, harness: &Harness) -> Result<String> {
        self.build_with(harness, "").await
    }

    /// Its objects in [`Self::namespace`], with unique names.
    pub(crate) async fn build_for_its_namespace(&self, harness: &Harness) -> Result<String> {
        let namespace = self.namespace();
        let more = format!("namespace: {namespace}\nnameSuffix: -{namespace}\n");
        self.build_with(harness, &more).await
    }

    /// Its objects from an overlay that sets a namespace.
    pub(crate) async fn build_in(&self, harness: &Harness, namespace: &str) -> Result<String> {
        self.build_with(harness, &format!("namespace: {namespace}\n"))
            .await
    }

    /// An overlay with components on top.
    pub(crate) fn overlay_with(name: &str, components: &[String]) -> Self {
        Self {
            components: components.to_vec(),
            ..Self::overlay(name)
        }
    }

    /// Its Deployments.
    pub(crate) async fn deployments(&self, harness: &Harness) -> Result<Vec<Deployment>> {
        of_kind(&manifest::parse(&self.build(harness).await?)?, "Deployment")
    }

    /// Its workloads.
    pub(crate) async fn workloads(&self, harness: &Harness) -> Result<Vec<Workload>> {
        workloads(&manifest::parse(&self.build(harness).await?)?)
    }

    async fn build_with(&self, harness: &Harness, more: &str) -> Result<String> {
        // A directory for each build, because tests build concurrently.
        let number = BUILDS.fetch_add(1, Ordering::Relaxed);
        let dir = harness
            .run
            .subdir(&format!("kustomize-{}-{number}", self.namespace()))?;
        let deploy = below_root(&dir)?.join(below("deploy")?);
        let mut text = format!(
            "resources:\n  - {}\n{more}",
            deploy.join(&self.resource).display()
        );
        if !self.components.is_empty() {
            text.push_str("components:\n");
        }
        for component in &self.components {
            let component = deploy.join("components").join(component);
            text.push_str(&format!("  - {}\n", component.display()));
        }
        let file = dir.join("kustomization.yaml");
        std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
        let built = harness.toolchain.kustomize(&dir).await;
        built.with_context(|| format!("build {self}"))
    }
}

// === impl Workload ===

impl Workload {
    /// All of its containers.
    pub(crate) fn containers(&self) -> impl Iterator<Item = &Container> {
        let spec = self.template.spec.iter();
        spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
    }

    /// The container whose image has this name, with any registry and version.
    pub(crate) fn container_of_image(&self, image: &str) -> Option<&Container> {
        container_of_image(self.containers(), image)
    }
}

/// The workloads among some objects.
pub(crate) fn workloads(objects: &[DynamicObject]) -> Result<Vec<Workload>> {
    let mut found = Vec::new();
    for deployment in of_kind::<Deployment>(objects, "Deployment")? {
        found.push(Workload {
            name: format!("Deployment {}", deployment.name_any()),
            is_on_each_node: false,
            template: deployment.spec.template,
        });
    }
    for set in of_kind::<DaemonSet>(objects, "DaemonSet")? {
        found.push(Workload {
            name: format!("DaemonSet {}", set.name_any()),
            is_on_each_node: true,
            template: set.spec.template,
        });
    }
    Ok(found)
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deploy/{}", self.resource)?;
        for component in &self.components {
            write!(f, " with {component}")?;
        }
        Ok(())
    }
}

// === paths ===

/// Names of the subdirectories of a directory of `deploy/`, sorted.
pub(crate) fn folders(of: &str) -> Result<Vec<String>> {
    let dir = workspace_root().join("deploy").join(of);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// kustomize accepts relative paths only: from `dir` up to the root of the filesystem,
fn below_root(dir: &Path) -> Result<PathBuf> {
    let depth = dir.canonicalize()?.components().count() - 1;
    Ok(std::iter::repeat_n("..", depth).collect())
}

/// and down from there to a directory of the workspace.
fn below(folder: &str) -> Result<PathBuf> {
    let path = workspace_root().join(folder).canonicalize()?;
    Ok(path
        .strip_prefix("/")
        .context("a canonical path must be absolute")?
        .to_owned())
}
