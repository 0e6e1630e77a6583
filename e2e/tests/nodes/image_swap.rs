//! The attacher's image is exchanged in manifests of the kubernetes-csi projects, and nothing else, while a volume is
//! attached.

use anyhow::{Context, Result, ensure};
use csi_e2e::nodes::{DRIVER_NAMESPACE, GO_ATTACHER, NODES};
use csi_e2e::wait::{self, Progress};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec as FullPodSpec};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::env::{Env, PodSpec, STEP, XFS};
use crate::shared_nodes::Scenario;

const A: &str = NODES[0];
const B: &str = NODES[1];
/// The Deployment of `deploy/` with driver, attacher and the other sidecars.
const DEPLOYED: &str = "csi-attacher";
/// Directory of the driver's socket in that Deployment.
const DEPLOYED_SOCKET_DIR: &str = "/run/csi";
/// Service account, and container of the attacher, in the manifests.
const ATTACHER: &str = "csi-attacher";
const LABEL: &str = "external-attacher=mock-driver";

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "image_swapped_in_attachers_deployment",
        run: |env| Box::pin(swap_images(env, attachers_deployment)),
    },
    Scenario {
        name: "image_swapped_in_hostpaths_stateful_set",
        run: |env| Box::pin(swap_images(env, hostpaths_stateful_set)),
    },
];

/// Makes the workload with one image of the attacher, beside the driver of the pod of `deploy/`.
type Manifest = fn(&Env<'_>, &FullPodSpec, &str) -> Result<Value>;

/// The Go attacher attaches a volume, ours takes it over and moves it, and the Go attacher takes it back.
async fn swap_images(env: &Env<'_>, manifest: Manifest) -> Result<()> {
    env.claim("data", XFS, "Filesystem").await?;
    let bound =
        |phase: Option<String>| Progress::of(phase.as_deref() == Some("Bound"), || format!("{phase:?}"));
    wait::for_object(&env.claims(), "data", STEP, "the claim to be bound", |claim| {
        bound(claim.and_then(|claim| claim.status.as_ref()?.phase.clone()))
    })
    .await?;
    let deployed = deployments(env).get(DEPLOYED).await?;
    let pod = deployed.spec.and_then(|spec| spec.template.spec);
    let pod = pod.context("the Deployment must have a pod")?;
    scale(env, 0).await?;
    let swapped = swap_beside(env, &pod, manifest).await;
    env.nodes.cluster().delete(&rbac(env)).await?;
    let workload = manifest(env, &pod, GO_ATTACHER)?.to_string();
    env.nodes.cluster().delete(&workload).await?;
    wait_until_no_pods(&env.pods(), LABEL).await?;
    scale(env, 1).await?;
    env.nodes.wait_until_deployed().await?;
    swapped
}

async fn swap_beside(env: &Env<'_>, deployed: &FullPodSpec, manifest: Manifest) -> Result<()> {
    let ours = container(&deployed.containers, ATTACHER)?.image.clone();
    let ours = ours.context("the attacher must have an image")?;
    env.nodes.cluster().apply(&rbac(env)).await?;
    run_image(env, &manifest(env, deployed, GO_ATTACHER)?, GO_ATTACHER).await?;
    env.run_pod(
        &PodSpec::new("web-1", "echo hello >/data/greeting")
            .on(A)
            .claim("data"),
    )
    .await?;
    swap(env, &manifest(env, deployed, &ours)?, &ours).await?;
    env.delete_pod("web-1").await?;
    let read = "grep -qx hello /data/greeting";
    env.run_pod(&PodSpec::new("web-2", read).on(B).claim("data"))
        .await?;
    swap(env, &manifest(env, deployed, GO_ATTACHER)?, GO_ATTACHER).await?;
    env.delete_pod("web-2").await?;
    env.run_pod(&PodSpec::new("web-3", read).on(A).claim("data"))
        .await?;
    env.delete_pod("web-3").await?;
    env.wait_until_detached("data").await
}

/// Exchanges the image, and checks that the volume stays attached.
async fn swap(env: &Env<'_>, workload: &Value, image: &str) -> Result<()> {
    let before = attachment(env).await?;
    run_image(env, workload, image).await?;
    let after = attachment(env).await?;
    ensure!(
        before.uid() == after.uid() && after.metadata.deletion_timestamp.is_none(),
        "the volume was detached: {before:?} became {after:?}"
    );
    Ok(())
}

/// The only VolumeAttachment, which must be attached.
async fn attachment(env: &Env<'_>) -> Result<VolumeAttachment> {
    let mut found = env.attachments().list(&ListParams::default()).await?.items;
    ensure!(found.len() == 1, "there must be one VolumeAttachment: {found:?}");
    let attachment = found.remove(0);
    let attached = attachment.status.as_ref().is_some_and(|status| status.attached);
    ensure!(attached, "the volume must be attached: {attachment:?}");
    Ok(attachment)
}

/// Applies the workload and waits until its only pod is ready and has the image.
async fn run_image(env: &Env<'_>, workload: &Value, image: &str) -> Result<()> {
    env.nodes.cluster().apply(&workload.to_string()).await?;
    let selected = watcher::Config::default().labels(LABEL);
    let what = format!("the pod with {image} to be ready");
    wait::for_objects(&env.pods(), selected, STEP, &what, |pods| {
        let has_image = |pod: &Pod| {
            let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice());
            let mut containers = containers.unwrap_or_default().iter();
            containers.any(|container| container.image.as_deref() == Some(image))
        };
        let is_ready = |pod: &Pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        let rolled_out = pods.len() == 1 && pods.values().all(|pod| has_image(pod) && is_ready(pod));
        Progress::of(rolled_out, || {
            let statuses = pods.values().map(|pod| pod.status.as_ref());
            format!("{:?}", statuses.collect::<Vec<_>>())
        })
    })
    .await
}

/// Starts or stops driver and sidecars of `deploy/`.
async fn scale(env: &Env<'_>, replicas: i32) -> Result<()> {
    let patch = json!({"spec": {"replicas": replicas}});
    deployments(env)
        .patch(DEPLOYED, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .context("scale the Deployment of deploy/")?;
    if replicas == 0 {
        let pods = Api::namespaced(env.nodes.client(), DRIVER_NAMESPACE);
        wait_until_no_pods(&pods, "app.kubernetes.io/component=controller").await?;
    }
    Ok(())
}

async fn wait_until_no_pods(pods: &Api<Pod>, label: &str) -> Result<()> {
    let selected = watcher::Config::default().labels(label);
    wait::for_objects(pods, selected, STEP, "the driver's pods to be gone", |pods| {
        Progress::of(pods.is_empty(), || format!("{:?}", pods.keys()))
    })
    .await
}

fn deployments(env: &Env<'_>) -> Api<Deployment> {
    Api::namespaced(env.nodes.client(), DRIVER_NAMESPACE)
}

fn container<'a>(containers: &'a [Container], name: &str) -> Result<&'a Container> {
    let found = containers.iter().find(|container| container.name == name);
    found.with_context(|| format!("the Deployment of deploy/ must have a container {name}"))
}

// === manifests ===

/// `deploy/kubernetes/deployment.yaml` of external-attacher, with one replica, because the array is in the driver's process.
fn attachers_deployment(env: &Env<'_>, deployed: &FullPodSpec, image: &str) -> Result<Value> {
    const SOCKET_DIR: &str = "/var/lib/csi/sockets/pluginproxy";
    let attacher = json!({
        "name": ATTACHER,
        "image": image,
        "args": ["--v=5", "--csi-address=$(ADDRESS)", "--leader-election", "--http-endpoint=:8080"],
        "env": [
            {"name": "MY_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "ADDRESS", "value": format!("{SOCKET_DIR}/csi.sock")},
        ],
        "imagePullPolicy": "IfNotPresent",
        "volumeMounts": [{"name": "socket", "mountPath": SOCKET_DIR}],
        "ports": [{"containerPort": 8080, "name": "http-endpoint", "protocol": "TCP"}],
        "livenessProbe": {
            "failureThreshold": 1,
            "httpGet": {"path": "/healthz/leader-election", "port": "http-endpoint"},
            "initialDelaySeconds": 10,
            "timeoutSeconds": 10,
            "periodSeconds": 20,
        },
    });
    let mut workload = workload(env, deployed, attacher, SOCKET_DIR)?;
    workload["kind"] = "Deployment".into();
    workload["spec"]["strategy"] = json!({"type": "Recreate"});
    Ok(workload)
}

/// The StatefulSet of csi-driver-host-path: no leader election, no probes, a privileged attacher and a socket on the host.
fn hostpaths_stateful_set(env: &Env<'_>, deployed: &FullPodSpec, image: &str) -> Result<Value> {
    const SOCKET_DIR: &str = "/csi";
    let attacher = json!({
        "name": ATTACHER,
        "image": image,
        "args": ["--v=5", "--csi-address=/csi/csi.sock"],
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"privileged": true},
        "volumeMounts": [{"name": "socket", "mountPath": SOCKET_DIR}],
    });
    let mut workload = workload(env, deployed, attacher, SOCKET_DIR)?;
    workload["kind"] = "StatefulSet".into();
    workload["spec"]["serviceName"] = "csi-hostpathplugin".into();
    let volumes = workload["spec"]["template"]["spec"]["volumes"].as_array_mut();
    for volume in volumes.into_iter().flatten() {
        if volume["name"] == "socket" {
            let path = "/var/lib/kubelet/plugins/csi-hostpath";
            *volume = json!({"name": "socket", "hostPath": {"path": path, "type": "DirectoryOrCreate"}});
        }
    }
    Ok(workload)
}

/// One pod with the attacher and the driver of `deploy/`, whose socket is in `socket_dir`.
fn workload(env: &Env<'_>, deployed: &FullPodSpec, attacher: Value, socket_dir: &str) -> Result<Value> {
    let init = deployed.init_containers.as_deref().unwrap_or_default();
    let driver = json!(container(init, "driver")?).to_string();
    let mut driver: Value = serde_json::from_str(&driver.replace(DEPLOYED_SOCKET_DIR, socket_dir))?;
    // An ordinary container, as upstream's drivers are.
    driver["restartPolicy"].take();
    let (key, value) = LABEL.split_once('=').context("the label must have a value")?;
    Ok(json!({
        "apiVersion": "apps/v1",
        "metadata": {"name": "upstream", "namespace": env.namespace},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {key: value}},
            "template": {
                "metadata": {"labels": {key: value}},
                "spec": {
                    "serviceAccount": ATTACHER,
                    "containers": [attacher, driver],
                    "volumes": deployed.volumes,
                },
            },
        },
    }))
}

/// `deploy/kubernetes/rbac.yaml` of external-attacher.
fn rbac(env: &Env<'_>) -> String {
    let namespace = &env.namespace;
    let group = "rbac.authorization.k8s.io";
    let subjects = json!([{"kind": "ServiceAccount", "name": ATTACHER, "namespace": namespace}]);
    let rule = |group: &str, resource: &str, verbs: &[&str]| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
    let read = ["get", "list", "watch"];
    let patch = ["get", "list", "watch", "patch"];
    let lease = ["get", "watch", "list", "delete", "update", "create"];
    let objects = [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ATTACHER, "namespace": namespace}}),
        json!({
            "apiVersion": format!("{group}/v1"),
            "kind": "ClusterRole",
            "metadata": {"name": "external-attacher-runner"},
            "rules": [
                rule("", "persistentvolumes", &patch),
                rule("storage.k8s.io", "csinodes", &read),
                rule("storage.k8s.io", "volumeattachments", &patch),
                rule("storage.k8s.io", "volumeattachments/status", &["patch"]),
            ],
        }),
        json!({
            "apiVersion": format!("{group}/v1"),
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "csi-attacher-role"},
            "subjects": subjects,
            "roleRef": {"kind": "ClusterRole", "name": "external-attacher-runner", "apiGroup": group},
        }),
        json!({
            "apiVersion": format!("{group}/v1"),
            "kind": "Role",
            "metadata": {"name": "external-attacher-cfg", "namespace": namespace},
            "rules": [rule("coordination.k8s.io", "leases", &lease)],
        }),
        json!({
            "apiVersion": format!("{group}/v1"),
            "kind": "RoleBinding",
            "metadata": {"name": "csi-attacher-role-cfg", "namespace": namespace},
            "subjects": subjects,
            "roleRef": {"kind": "Role", "name": "external-attacher-cfg", "apiGroup": group},
        }),
    ];
    objects.map(|object| object.to_string()).join("\n---\n")
}
