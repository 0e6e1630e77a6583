//! Manifests of the kubernetes-csi projects, from their Go modules, and the necessary changes for a test.
//! `deploy/README.md` lists these changes.

use anyhow::{Context, Result};
use csi_e2e::cluster::manifest;
use csi_e2e::nodes::GO_ATTACHER;
use csi_e2e::toolchain::Toolchain;
use serde_json::{Value, json};

use super::{A, ATTACHER, HOSTPATH_JOURNAL};
use crate::attached::SHARED_SOCKET_DIR;

/// A file of a module that a Go module of the harness requires.
pub(super) struct File {
    required_by: &'static str,
    module: &'static str,
    path: &'static str,
}

const fn attachers(path: &'static str) -> File {
    File {
        required_by: "e2e/peers",
        module: "github.com/kubernetes-csi/external-attacher/v4",
        path,
    }
}

const fn suites(path: &'static str) -> File {
    File {
        required_by: "e2e/control-plane",
        module: "k8s.io/kubernetes",
        path,
    }
}

pub(super) const ATTACHERS_DEPLOYMENT: &[File] = &[
    attachers("deploy/kubernetes/rbac.yaml"),
    attachers("deploy/kubernetes/deployment.yaml"),
];
/// The manifests of Kubernetes' e2e tests.
#[rustfmt::skip]
pub(super) const HOSTPATHS_STATEFUL_SET: &[File] = &[
    suites("test/e2e/testing-manifests/storage-csi/external-attacher/rbac.yaml"),
    suites("test/e2e/testing-manifests/storage-csi/external-provisioner/rbac.yaml"),
    suites("test/e2e/testing-manifests/storage-csi/external-snapshot-metadata/rbac.yaml"),
    suites("test/e2e/testing-manifests/storage-csi/external-snapshotter/csi-snapshotter/rbac-csi-snapshotter.yaml"),
    suites("test/e2e/testing-manifests/storage-csi/external-health-monitor/external-health-monitor-controller/rbac.yaml"),
    suites("test/e2e/testing-manifests/storage-csi/external-resizer/rbac.yaml"),
    suites("test/e2e/testing-manifests/storage-csi/hostpath/hostpath/csi-hostpath-driverinfo.yaml"),
    suites("test/e2e/testing-manifests/storage-csi/hostpath/hostpath/csi-hostpath-plugin.yaml"),
];

/// The changed objects of the files in a namespace, as one YAML stream, and their workload.
pub(super) async fn read(
    toolchain: &Toolchain,
    files: &[File],
    namespace: &str,
    change: fn(&mut Value) -> Result<()>,
) -> Result<(String, Value)> {
    let mut objects = Vec::new();
    for file in files {
        let module = toolchain.go_module(file.required_by, file.module).await?;
        let path = module.join(file.path);
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let parsed = manifest::parse(&text).with_context(|| format!("read {}", path.display()))?;
        objects.extend(parsed.into_iter().map(|object| json!(object)));
    }
    for object in &mut objects {
        move_to_namespace(object, namespace);
    }
    let workload = objects
        .iter_mut()
        .find(|object| object["apiVersion"] == "apps/v1");
    let workload = workload.context("the manifests must have a workload")?;
    let pod = &mut workload["spec"]["template"]["spec"];
    // The harness builds only this release of the Go sidecar.
    container(pod, ATTACHER)?["image"] = GO_ATTACHER.into();
    change(pod)?;
    let workload = workload.clone();
    let texts: Vec<_> = objects.iter().map(Value::to_string).collect();
    Ok((format!("---\n{}", texts.join("\n---\n")), workload))
}

fn move_to_namespace(object: &mut Value, namespace: &str) {
    let kind = object["kind"].as_str().unwrap_or_default();
    if !kind.starts_with("Cluster") && kind != "CSIDriver" {
        object["metadata"]["namespace"] = namespace.into();
    }
    let subjects = object.get_mut("subjects").and_then(Value::as_array_mut);
    for subject in subjects.into_iter().flatten() {
        subject["namespace"] = namespace.into();
    }
}

/// The driver of each pod forwards all calls to the driver of `deploy/`, so that all pods use one array.
pub(super) fn forward_to_deployed_driver(pod: &mut Value) -> Result<()> {
    let driver = container(pod, "mock-driver")?;
    driver["image"] = "csi-mock-driver:0.1.0".into();
    driver["args"] = json!(["--proxy-to=/run/array/csi.sock"]);
    list(driver, "volumeMounts")?.push(json!({"name": "array", "mountPath": "/run/array"}));
    let directory = json!({"path": SHARED_SOCKET_DIR, "type": "Directory"});
    list(pod, "volumes")?.push(json!({"name": "array", "hostPath": directory}));
    Ok(())
}

/// The changes that Kubernetes' tests make, too: they set the node, and remove health monitor and snapshot metadata. Also
/// enables attach and the driver's journal.
pub(super) fn attach_and_record(pod: &mut Value) -> Result<()> {
    pod["nodeName"] = A.into();
    let is_removed =
        |name: &Value| name == "csi-external-health-monitor-controller" || name == "csi-snapshot-metadata";
    list(pod, "containers")?.retain(|container| !is_removed(&container["name"]));
    list(pod, "volumes")?.retain(|volume| volume["name"] != "csi-snapshot-metadata-server-certs");
    let args = list(container(pod, "hostpath")?, "args")?;
    args.push("--enable-attach".into());
    args.push(format!("--journal=/csi-data-dir/{HOSTPATH_JOURNAL}").into());
    Ok(())
}

fn container<'a>(pod: &'a mut Value, name: &str) -> Result<&'a mut Value> {
    let mut containers = list(pod, "containers")?.iter_mut();
    let found = containers.find(|container| container["name"] == name);
    found.with_context(|| format!("the workload must have a container {name}"))
}

fn list<'a>(object: &'a mut Value, field: &str) -> Result<&'a mut Vec<Value>> {
    let list = object[field].as_array_mut();
    list.with_context(|| format!("there must be a list {field}"))
}
