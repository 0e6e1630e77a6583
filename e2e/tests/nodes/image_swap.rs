//! The attacher's image is exchanged in manifests of the kubernetes-csi projects, and nothing else, while a volume is
//! attached. The manifests are read from the projects' own releases.

use anyhow::{Context, Result, ensure};
use csi_e2e::cluster::manifest;
use csi_e2e::nodes::{DRIVER_NAMESPACE, GO_ATTACHER, NODES};
use csi_e2e::toolchain::{Settings, Toolchain};
use csi_e2e::wait::{self, Progress};
use csi_mock_driver::admin_api::client::Calls;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, PodSpec as FullPodSpec};
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
/// The driver's socket in that Deployment.
const DEPLOYED_SOCKET: (&str, &str) = ("/run/csi", "csi.sock");
/// Volume with the driver's socket, in that Deployment and in upstream's manifests.
const SOCKET_VOLUMES: (&str, &str) = ("socket", "socket-dir");
/// Name of the attacher's container in all manifests.
const ATTACHER: &str = "csi-attacher";

/// A file of a module that a Go module of the harness requires.
struct File {
    required_by: &'static str,
    module: &'static str,
    path: &'static str,
}

/// Manifests of upstream with one workload, in which the attacher runs.
struct Manifests {
    files: &'static [File],
    /// The driver's socket, as the workload's containers see it: folder and name.
    socket: (&'static str, &'static str),
}

const RBAC: File = File {
    required_by: "e2e/peers",
    module: "github.com/kubernetes-csi/external-attacher/v4",
    path: "deploy/kubernetes/rbac.yaml",
};
const ATTACHERS_DEPLOYMENT: Manifests = Manifests {
    files: &[
        RBAC,
        File {
            path: "deploy/kubernetes/deployment.yaml",
            ..RBAC
        },
    ],
    socket: ("/var/lib/csi/sockets/pluginproxy", "mock.socket"),
};
/// As Kubernetes' e2e tests deploy csi-driver-host-path.
const HOSTPATHS_STATEFUL_SET: Manifests = Manifests {
    files: &[
        RBAC,
        File {
            required_by: "e2e/control-plane",
            module: "k8s.io/kubernetes",
            path: "test/e2e/testing-manifests/storage-csi/hostpath/hostpath/csi-hostpath-plugin.yaml",
        },
    ],
    socket: ("/csi", "csi.sock"),
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "image_swapped_in_attachers_deployment",
        run: |env| Box::pin(swap_images(env, &ATTACHERS_DEPLOYMENT)),
    },
    Scenario {
        name: "image_swapped_in_hostpaths_stateful_set",
        run: |env| Box::pin(swap_images(env, &HOSTPATHS_STATEFUL_SET)),
    },
];

/// The workload, with the driver of `deploy/` in place of its own, and the other objects.
struct Objects {
    workload: Value,
    others: Vec<Value>,
}

/// The Go attacher attaches a volume, ours takes it over and moves it, and the Go attacher takes it back.
async fn swap_images(env: &Env<'_>, manifests: &Manifests) -> Result<()> {
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
    let ours = pod.containers.iter().find(|container| container.name == ATTACHER);
    let ours = ours.and_then(|container| container.image.as_deref());
    let ours = ours.context("the Deployment must have an attacher with an image")?;
    let objects = Objects::read(env, manifests, &pod).await?;
    scale(env, 0).await?;
    let swapped = swap_beside(env, &objects, ours).await;
    let cluster = env.nodes.cluster();
    cluster.delete(&stream(&objects.others)).await?;
    cluster.delete(&objects.workload.to_string()).await?;
    wait_until_no_pods(&env.pods(), &objects.selector()?).await?;
    scale(env, 1).await?;
    env.nodes.wait_until_deployed().await?;
    swapped
}

async fn swap_beside(env: &Env<'_>, objects: &Objects, ours: &str) -> Result<()> {
    env.nodes.cluster().apply(&stream(&objects.others)).await?;
    run_image(env, objects, GO_ATTACHER).await?;
    env.run_pod(
        &PodSpec::new("web-1", "echo hello >/data/greeting")
            .on(A)
            .claim("data"),
    )
    .await?;
    swap(env, objects, ours, "web-1").await?;
    env.delete_pod("web-1").await?;
    let read = "grep -qx hello /data/greeting";
    env.run_pod(&PodSpec::new("web-2", read).on(B).claim("data"))
        .await?;
    swap(env, objects, GO_ATTACHER, "web-2").await?;
    env.delete_pod("web-2").await?;
    env.run_pod(&PodSpec::new("web-3", read).on(A).claim("data"))
        .await?;
    env.delete_pod("web-3").await?;
    env.wait_until_detached("data").await
}

/// Exchanges the image, and checks that the volume stays attached and its pod stays as it is.
async fn swap(env: &Env<'_>, objects: &Objects, image: &str, pod: &str) -> Result<()> {
    let running = async || anyhow::Ok((attachment(env).await?, env.pods().get(pod).await?));
    let (attachment_before, pod_before) = running().await?;
    run_image(env, objects, image).await?;
    let (attachment, pod) = running().await?;
    ensure!(
        attachment_before.uid() == attachment.uid() && attachment.metadata.deletion_timestamp.is_none(),
        "the volume was detached: {attachment_before:?} became {attachment:?}"
    );
    // The driver started with the attacher, so its journal has all calls of the new attacher.
    let unpublished = env
        .nodes
        .array()?
        .journal(&Calls::of("ControllerUnpublishVolume"))
        .await?;
    ensure!(
        unpublished.items.is_empty(),
        "{image} called ControllerUnpublishVolume: {:?}",
        unpublished.items
    );
    let containers = |pod: &Pod| pod.status.clone().and_then(|status| status.container_statuses);
    ensure!(
        pod_before.uid() == pod.uid() && containers(&pod_before) == containers(&pod),
        "the pod with the volume was restarted: {pod_before:?} became {pod:?}"
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

/// Applies the workload with this image of the attacher, and waits until its only pod is ready and has the image.
async fn run_image(env: &Env<'_>, objects: &Objects, image: &str) -> Result<()> {
    let workload = objects.with_image(image)?.to_string();
    env.nodes.cluster().apply(&workload).await?;
    let selected = watcher::Config::default().labels(&objects.selector()?);
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

fn stream(objects: &[Value]) -> String {
    let objects = objects.iter().map(Value::to_string);
    objects.collect::<Vec<_>>().join("\n---\n")
}

// === impl Objects ===

impl Objects {
    async fn read(env: &Env<'_>, manifests: &Manifests, deployed: &FullPodSpec) -> Result<Self> {
        let toolchain = Toolchain::new(env.nodes.run(), Settings::from_env());
        let mut others = Vec::new();
        for file in manifests.files {
            let module = toolchain.go_module(file.required_by, file.module).await?;
            let path = module.join(file.path);
            let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            let objects = manifest::parse(&text).with_context(|| format!("read {}", path.display()))?;
            others.extend(objects.into_iter().map(|object| json!(object)));
        }
        for object in &mut others {
            move_to_namespace(object, &env.namespace);
        }
        let is_workload = |object: &Value| object["apiVersion"] == "apps/v1";
        let position = others.iter().position(is_workload);
        let mut workload = others.remove(position.context("the manifests must have a workload")?);
        if workload["kind"] == "Deployment" {
            // The array belongs to one driver process at a time.
            workload["spec"]["replicas"] = 1.into();
            workload["spec"]["strategy"] = json!({"type": "Recreate"});
        }
        replace_driver(
            &mut workload["spec"]["template"]["spec"],
            deployed,
            manifests.socket,
        )?;
        Ok(Self { workload, others })
    }

    /// The workload with this image of the attacher.
    fn with_image(&self, image: &str) -> Result<Value> {
        let mut workload = self.workload.clone();
        let containers = workload["spec"]["template"]["spec"]["containers"].as_array_mut();
        let mut containers = containers.into_iter().flatten();
        let attacher = containers.find(|container| container["name"] == ATTACHER);
        attacher.context("the workload must have an attacher")?["image"] = image.into();
        Ok(workload)
    }

    /// Selects the workload's pods.
    fn selector(&self) -> Result<String> {
        let labels = self.workload["spec"]["selector"]["matchLabels"].as_object();
        let labels = labels.context("the workload must select its pods by labels")?;
        let labels = labels
            .iter()
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
        Ok(labels.collect::<Vec<_>>().join(","))
    }
}

fn move_to_namespace(object: &mut Value, namespace: &str) {
    let kind = object["kind"].as_str().unwrap_or_default();
    if !kind.starts_with("Cluster") {
        object["metadata"]["namespace"] = namespace.into();
    }
    let subjects = object.get_mut("subjects").and_then(Value::as_array_mut);
    for subject in subjects.into_iter().flatten() {
        subject["namespace"] = namespace.into();
    }
}

/// Keeps only the attacher of the pod's containers, and adds the driver of `deploy/` with its volumes.
fn replace_driver(pod: &mut Value, deployed: &FullPodSpec, socket: (&str, &str)) -> Result<()> {
    let init = deployed.init_containers.as_deref().unwrap_or_default();
    let driver = init.iter().find(|container| container.name == "driver");
    let driver = driver.context("the Deployment of deploy/ must have a container driver")?;
    let address = |(folder, name)| format!("{folder}/{name}");
    let driver = json!(driver)
        .to_string()
        .replace(&address(DEPLOYED_SOCKET), &address(socket))
        .replace(DEPLOYED_SOCKET.0, socket.0);
    let mut driver: Value = serde_json::from_str(&driver)?;
    // An ordinary container, as upstream's drivers are.
    driver
        .as_object_mut()
        .context("a container must be an object")?
        .remove("restartPolicy");
    for mount in driver["volumeMounts"].as_array_mut().into_iter().flatten() {
        if mount["name"] == SOCKET_VOLUMES.0 {
            mount["name"] = SOCKET_VOLUMES.1.into();
        }
    }
    let containers = pod["containers"].as_array_mut();
    let containers = containers.context("the workload must have containers")?;
    containers.retain(|container| container["name"] == ATTACHER);
    containers.push(driver);
    let volumes = pod["volumes"].as_array_mut();
    let volumes = volumes.context("the workload must have volumes")?;
    volumes.retain(|volume| volume["name"] == SOCKET_VOLUMES.1);
    let deployed = deployed.volumes.iter().flatten();
    let deployed = deployed.filter(|volume| volume.name != SOCKET_VOLUMES.0);
    volumes.extend(deployed.map(|volume| json!(volume)));
    Ok(())
}
