//! The environment of a scenario on real nodes: a namespace, claims and pods, and checks that nothing of them is left.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use csi_e2e::nodes::{BUSYBOX, DRIVER_NAMESPACE, RealNode, RealNodes};
use csi_e2e::objects;
use csi_e2e::wait::{self, Progress};
use csi_mock_driver::admin_api::client::{Calls, Client};
use csi_mock_driver::admin_api::resource::Call;
use k8s_openapi::api::core::v1::{Event, Namespace, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::leftovers::left_on_nodes;

/// Timeout of a step when other work shares the cores; most take seconds.
pub(crate) const STEP: Duration = Duration::from_secs(120);
/// A class of `deploy/`: ext4, provisioned after scheduling.
pub(crate) const EXT4: &str = "csi-mock";
/// A class of `deploy/`: XFS, provisioned at once.
pub(crate) const XFS: &str = "csi-mock-immediate-xfs";
/// Script of a pod that writes to the volume at `/data`.
pub(crate) const WRITE: &str = "echo hello >/data/greeting";
/// Script of a pod that reads the data of [`WRITE`].
pub(crate) const READ: &str = "grep -qx hello /data/greeting";

pub(crate) struct Env<'a> {
    pub(crate) nodes: &'a RealNodes,
    pub(crate) namespace: String,
}

/// A pod with one container of busybox.
pub(crate) struct PodSpec<'a> {
    name: &'a str,
    node: Option<&'a str>,
    /// The pod becomes ready at the end of the script.
    script: &'a str,
    volumes: Vec<Value>,
    mounts: Vec<Value>,
    devices: Vec<Value>,
    security_context: Value,
}

// === impl PodSpec ===

impl<'a> PodSpec<'a> {
    pub(crate) fn new(name: &'a str, script: &'a str) -> Self {
        Self {
            name,
            node: None,
            script,
            volumes: Vec::new(),
            mounts: Vec::new(),
            devices: Vec::new(),
            security_context: json!({}),
        }
    }

    pub(crate) fn on(mut self, node: &'a str) -> Self {
        self.node = Some(node);
        self
    }

    /// Mounts a claim at `/data`.
    pub(crate) fn claim(self, claim: &str) -> Self {
        let source = json!({"persistentVolumeClaim": {"claimName": claim}});
        self.volume("data", source, json!({"mountPath": "/data"}))
    }

    /// Has the claim's device at `/dev/data`.
    pub(crate) fn device(mut self, claim: &str) -> Self {
        self.volumes
            .push(json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}}));
        self.devices
            .push(json!({"name": "data", "devicePath": "/dev/data"}));
        self
    }

    pub(crate) fn volume(mut self, name: &str, mut source: Value, mut mount: Value) -> Self {
        source["name"] = name.into();
        mount["name"] = name.into();
        if !self.volumes.contains(&source) {
            self.volumes.push(source);
        }
        self.mounts.push(mount);
        self
    }

    pub(crate) fn security_context(mut self, security_context: Value) -> Self {
        self.security_context = security_context;
        self
    }

    pub(crate) fn object(&self) -> Value {
        let script = format!("set -e\n{}\ntouch /tmp/ready\nexec sleep 1000000", self.script);
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                // The shell is the first process, which has no handler for SIGTERM.
                "terminationGracePeriodSeconds": 1,
                "securityContext": self.security_context,
                "containers": [{
                    "name": "shell",
                    "image": BUSYBOX,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sh", "-c", script],
                    "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1},
                    "volumeMounts": self.mounts,
                    "volumeDevices": self.devices,
                }],
                "volumes": self.volumes,
            },
        });
        if let Some(node) = self.node {
            pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        }
        pod
    }
}

/// Whether the pod's Ready condition is true.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Creates a claim of 512 MiB: `mode` is `Filesystem` or `Block`.
pub(crate) async fn create_claim(
    claims: &Api<PersistentVolumeClaim>,
    name: &str,
    class: &str,
    mode: &str,
    access: &str,
) -> Result<()> {
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": class,
            "volumeMode": mode,
            "accessModes": [access],
            "resources": {"requests": {"storage": "512Mi"}},
        },
    });
    let claim = serde_json::from_value(claim).context("write a claim")?;
    let created = claims.create(&PostParams::default(), &claim).await;
    created.map(drop).with_context(|| format!("create claim {name}"))
}

// === impl Env ===

impl<'a> Env<'a> {
    pub(crate) async fn set_up(nodes: &'a RealNodes, scenario: &str) -> Result<Self> {
        let namespace = scenario.replace('_', "-");
        nodes.cluster().create_namespace(&namespace).await?;
        Ok(Self { nodes, namespace })
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.nodes.client(), &self.namespace)
    }

    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.nodes.client(), &self.namespace)
    }

    pub(crate) fn attachments(&self) -> Api<VolumeAttachment> {
        Api::all(self.nodes.client())
    }

    pub(crate) async fn claim(&self, name: &str, class: &str, mode: &str) -> Result<()> {
        create_claim(&self.claims(), name, class, mode, "ReadWriteOnce").await
    }

    /// Creates a claim of a raw block volume for many nodes.
    pub(crate) async fn shared_block_claim(&self, name: &str) -> Result<()> {
        create_claim(&self.claims(), name, EXT4, "Block", "ReadWriteMany").await
    }

    pub(crate) async fn create_pod(&self, pod: &PodSpec<'_>) -> Result<()> {
        let object = serde_json::from_value(pod.object()).context("write a pod")?;
        let created = self.pods().create(&PostParams::default(), &object).await;
        created
            .map(drop)
            .with_context(|| format!("create pod {}", pod.name))
    }

    /// Creates a pod and waits until its script has completed.
    pub(crate) async fn run_pod(&self, pod: &PodSpec<'_>) -> Result<()> {
        self.create_pod(pod).await?;
        self.wait_until_ready(pod.name).await
    }

    /// Runs a pod on the node that writes to the claim `data`.
    pub(crate) async fn run_writer(&self, name: &str, node: &str) -> Result<()> {
        self.run_pod(&PodSpec::new(name, WRITE).on(node).claim("data"))
            .await
    }

    /// Runs a pod on the node that reads from the claim `data` what [`Self::run_writer`] wrote.
    pub(crate) async fn run_reader(&self, name: &str, node: &str) -> Result<()> {
        self.run_pod(&PodSpec::new(name, READ).on(node).claim("data"))
            .await
    }

    pub(crate) async fn wait_until_ready(&self, name: &str) -> Result<()> {
        let what = format!("pod {name} to be ready");
        let pods = self.pods();
        let ended = wait::for_object(&pods, name, STEP, &what, |pod| {
            let status = pod.and_then(|pod| pod.status.clone()).unwrap_or_default();
            let phase = status.phase.unwrap_or_default();
            match phase.as_str() {
                "Failed" | "Succeeded" => Progress::Reached(true),
                _ if pod.is_some_and(is_ready) => Progress::Reached(false),
                _ => Progress::Pending(format!("{phase} {:?}", status.container_statuses)),
            }
        });
        ensure!(!ended.await?, "the script of pod {name} failed");
        Ok(())
    }

    /// Deletes a pod and waits until its containers have exited and its volumes are unmounted.
    pub(crate) async fn delete_pod(&self, name: &str) -> Result<()> {
        objects::delete(&self.pods(), name).await?;
        wait::for_absence(&self.pods(), name, STEP, &format!("pod {name} to be gone")).await
    }

    /// Deletes a pod without waiting for its kubelet.
    pub(crate) async fn force_delete_pod(&self, name: &str) -> Result<()> {
        let params = DeleteParams::default().grace_period(0);
        self.pods()
            .delete(name, &params)
            .await
            .map(drop)
            .context("force-delete a pod")
    }

    /// The PersistentVolume of a bound claim.
    pub(crate) async fn volume_of(&self, claim: &str) -> Result<String> {
        let found = self.claims().get(claim).await?;
        let volume = found.spec.and_then(|spec| spec.volume_name);
        volume.with_context(|| format!("claim {claim} is not bound"))
    }

    /// The nodes to which a claim's volume is attached.
    pub(crate) async fn attached_to(&self, claim: &str) -> Result<Vec<String>> {
        let volume = self.volume_of(claim).await?;
        let attachments = self.attachments().list(&ListParams::default()).await?;
        let attached = attachments.into_iter().filter(|attachment| {
            attachment.spec.source.persistent_volume_name.as_ref() == Some(&volume)
                && attachment.status.as_ref().is_some_and(|status| status.attached)
        });
        Ok(attached.map(|attachment| attachment.spec.node_name).collect())
    }

    /// Waits until no VolumeAttachment of a claim's volume is left.
    pub(crate) async fn wait_until_detached(&self, claim: &str) -> Result<()> {
        self.wait_for_attachments(claim, &[]).await
    }

    /// Waits until a claim's volume has VolumeAttachments to these nodes only.
    pub(crate) async fn wait_for_attachments(&self, claim: &str, nodes: &[&str]) -> Result<()> {
        let volume = self.volume_of(claim).await?;
        let what = format!("the volume of {claim} to have attachments to {nodes:?}");
        wait::for_objects(
            &self.attachments(),
            watcher::Config::default(),
            STEP,
            &what,
            |found| {
                let of_volume = found.values().filter(|attachment| {
                    attachment.spec.source.persistent_volume_name.as_ref() == Some(&volume)
                });
                let mut left: Vec<_> = of_volume
                    .map(|attachment| attachment.spec.node_name.as_str())
                    .collect();
                left.sort_unstable();
                Progress::of(left == nodes, || format!("attached to {left:?}"))
            },
        )
        .await
    }

    /// The UID of a pod, by which kubelet names its directory.
    pub(crate) async fn uid(&self, pod: &str) -> Result<String> {
        self.pods().get(pod).await?.uid().context("a pod must have a UID")
    }

    /// The size in bytes and the type of the filesystem that kubelet mounted for a claim of a pod.
    pub(crate) async fn filesystem(&self, node: &RealNode, pod: &str, claim: &str) -> Result<(u64, String)> {
        let (uid, volume) = (self.uid(pod).await?, self.volume_of(claim).await?);
        let path = format!(
            "{}/pods/{uid}/volumes/kubernetes.io~csi/{volume}/mount",
            node.root_dir()
        );
        let output = node
            .command(&["stat", "--file-system", "--format=%b %S %T", &path])
            .await?;
        let words: Vec<_> = output.split_whitespace().collect();
        let [blocks, size, kind] = words[..] else {
            bail!("stat printed {output:?}");
        };
        Ok((blocks.parse::<u64>()? * size.parse::<u64>()?, kind.to_owned()))
    }

    /// Deletes the pod of the node's driver, and waits until its successor is ready and registered.
    pub(crate) async fn restart_node_driver(&self, node: &str) -> Result<()> {
        let pods = Api::<Pod>::namespaced(self.nodes.client(), DRIVER_NAMESPACE);
        let selected = ListParams::default()
            .labels("app.kubernetes.io/component=node")
            .fields(&format!("spec.nodeName={node}"));
        for pod in pods.list(&selected).await? {
            let name = pod.name_any();
            objects::delete(&pods, &name).await?;
            wait::for_absence(&pods, &name, STEP, "the driver's pod to be gone").await?;
        }
        self.nodes.wait_until_deployed().await
    }

    /// Waits for an Event about a pod with this reason and this text in its message.
    pub(crate) async fn wait_for_event(&self, pod: &str, reason: &str, text: &str) -> Result<()> {
        let events = Api::<Event>::namespaced(self.nodes.client(), &self.namespace);
        let of_pod = watcher::Config::default().fields(&format!("involvedObject.name={pod},reason={reason}"));
        let what = format!("Event {reason} about pod {pod} with {text:?}");
        wait::for_objects(&events, of_pod, STEP, &what, |found| {
            let messages: Vec<_> = found
                .values()
                .filter_map(|event| event.message.as_deref())
                .collect();
            let has_text = messages.iter().any(|message| message.contains(text));
            Progress::of(has_text, || format!("the messages are {messages:?}"))
        })
        .await
    }

    /// The finished calls of this method to the node's driver for a claim's volume.
    pub(crate) async fn calls(&self, node: &str, method: &str, claim: &str) -> Result<Vec<Call>> {
        let volumes = Api::<PersistentVolume>::all(self.nodes.client());
        let volume = volumes.get(&self.volume_of(claim).await?).await?;
        let source = volume.spec.and_then(|spec| spec.csi);
        let handle = source.context("a volume must be a CSI volume")?.volume_handle;
        let calls = Calls::of(method).volume(&handle);
        let page = self.nodes.node_driver(node)?.journal(&calls).await;
        Ok(page.context("read the driver's journal")?.items)
    }

    /// Waits until the driver executes a call.
    pub(crate) async fn wait_for_running_call(&self, driver: &Client, method: &str) -> Result<()> {
        wait::poll(STEP, &format!("a call of {method}"), || async {
            let running = driver.running().await;
            let running = running.context("list the driver's running calls")?;
            let is_running = running.iter().any(|call| call.method.ends_with(method));
            Ok(Progress::of(is_running, || format!("{running:?} run")))
        })
        .await
    }

    /// Deletes the namespace and checks that nothing of its volumes is left.
    pub(crate) async fn tear_down(&self) -> Result<()> {
        let namespaces = Api::<Namespace>::all(self.nodes.client());
        objects::delete(&namespaces, &self.namespace).await?;
        wait::for_absence(&namespaces, &self.namespace, STEP, "the namespace to be gone").await?;
        let volumes = Api::<PersistentVolume>::all(self.nodes.client());
        let all = watcher::Config::default;
        wait::for_objects(&volumes, all(), STEP, "volumes to be deleted", none_left).await?;
        wait::for_objects(
            &self.attachments(),
            all(),
            STEP,
            "attachments to be gone",
            none_left,
        )
        .await?;
        self.wait_until_nothing_is_mounted().await
    }

    /// Waits until the nodes have no mounts, directories or loop devices of volumes.
    pub(crate) async fn wait_until_nothing_is_mounted(&self) -> Result<()> {
        let what = "the nodes to have no mounts, directories and loop devices";
        wait::poll(STEP, what, || async {
            let left = left_on_nodes(self.nodes)?;
            Ok(Progress::of(left.is_empty(), || format!("{left:?} are left")))
        })
        .await
    }

    /// The state of the namespace, for the error of a scenario.
    pub(crate) async fn describe(&self) -> String {
        let mut text = String::new();
        let events = Api::<Event>::namespaced(self.nodes.client(), &self.namespace);
        for event in events.list(&ListParams::default()).await.into_iter().flatten() {
            let of = event.involved_object.name.unwrap_or_default();
            let message = event.message.unwrap_or_default();
            let written = writeln!(text, "{of}: {} {message}", event.reason.unwrap_or_default());
            written.expect("writing to a String must succeed");
        }
        text
    }
}

fn none_left<K>(left: &wait::Seen<K>) -> Progress<()> {
    Progress::of(left.is_empty(), || format!("{:?}", left.keys()))
}
