//! The commands of `deploy/README.md` replace the attacher's image in manifests of the kubernetes-csi projects, and restore
//! it, while volumes are attached.

mod manifests;

use anyhow::{Context, Result};
use csi_e2e::document::{Shell, block};
use csi_e2e::nodes::{DRIVER, GO_ATTACHER, NODES};
use csi_e2e::toolchain::{Settings, Toolchain};
use csi_e2e::wait::{self, Progress};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;
use serde_json::{Value, json};

use crate::attached::{AttachedVolumes, DriverAlone, Journal};
use crate::env::{Env, PodSpec, READ, STEP, WRITE, XFS, is_ready};
use crate::recipes::{DEPLOY, shell};
use crate::shared_nodes::Scenario;
use crate::snapshotter::Snapshotter;

const A: &str = NODES[0];
const B: &str = NODES[1];
/// Name of the attacher's container in all manifests.
const ATTACHER: &str = "csi-attacher";
/// The attacher's image in `deploy/`.
const OURS: &str = "csi-attacher:0.1.0";
/// A class of volumes of csi-driver-host-path.
const HOSTPATH_CLASS: &str = "csi-hostpath";
const HOSTPATH_DRIVER: &str = "hostpath.csi.k8s.io";
/// Name of the journal's file beside the volumes of csi-driver-host-path.
const HOSTPATH_JOURNAL: &str = "journal.jsonl";

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "image_swapped_in_attachers_deployment",
        run: |env| Box::pin(swap_in_attachers_deployment(env)),
    },
    Scenario {
        name: "image_swapped_in_hostpaths_stateful_set",
        run: |env| Box::pin(swap_in_hostpaths_stateful_set(env)),
    },
];

/// The workload of upstream, and the commands that replace its image.
struct Swap {
    workload: Value,
    /// To this attacher, and back.
    steps: [Step; 2],
    driver: &'static str,
    class: &'static str,
    nodes: [&'static str; 2],
    journal: Journal,
}

struct Step {
    /// The beginning of the block with the commands.
    commands: &'static str,
    /// The attacher's image afterwards.
    image: &'static str,
    /// The argument that the attacher has afterwards, besides its own.
    argument: Option<&'static str>,
}

/// Three replicas and a rolling update, as upstream. The driver keeps running.
async fn swap_in_attachers_deployment(env: &Env<'_>) -> Result<()> {
    let toolchain = Toolchain::new(env.nodes.run(), Settings::of_test());
    let (objects, workload) = manifests::read(
        &toolchain,
        manifests::ATTACHERS_DEPLOYMENT,
        &env.namespace,
        manifests::forward_to_deployed_driver,
    )
    .await?;
    let shell = shell(env.nodes, &toolchain)
        .await?
        .replacing("deployment/my-driver-controller", "deployment/csi-attacher")
        .replacing("your.registry/csi-attacher:0.1.0", OURS)
        .replacing("-n my-driver", &format!("-n {}", env.namespace));
    let driver = DriverAlone::deploy(env, &shell).await?;
    let swap = Swap {
        workload,
        steps: [
            Step {
                commands: "kubectl -n my-driver set image deployment/my-driver-controller csi-attacher=your",
                image: OURS,
                argument: None,
            },
            Step {
                commands: "kubectl -n my-driver set image deployment/my-driver-controller csi-attacher=registry",
                image: GO_ATTACHER,
                argument: None,
            },
        ],
        driver: DRIVER,
        class: XFS,
        nodes: [A, B],
        journal: Journal::Deployed,
    };
    let swapped = swap.run(env, &shell, &objects).await;
    let removed = remove(&shell, &env.namespace).await;
    let restored = driver.restore(env, &shell).await;
    swapped.and(removed).and(restored)
}

/// All containers are in one pod: the driver is restarted with the attacher.
async fn swap_in_hostpaths_stateful_set(env: &Env<'_>) -> Result<()> {
    let toolchain = Toolchain::new(env.nodes.run(), Settings::of_test());
    let (objects, workload) = manifests::read(
        &toolchain,
        manifests::HOSTPATHS_STATEFUL_SET,
        &env.namespace,
        manifests::attach_and_record,
    )
    .await?;
    let class = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": HOSTPATH_CLASS},
        "provisioner": HOSTPATH_DRIVER,
    });
    let shell = shell(env.nodes, &toolchain)
        .await?
        .replacing(
            "deployment/my-driver-controller",
            "statefulset/csi-hostpathplugin",
        )
        .replacing("cp my-driver.yaml", "cp ~/upstream.yaml")
        .replacing(
            "{kind: Deployment, name: my-driver-controller}",
            "{kind: StatefulSet, name: csi-hostpathplugin}",
        )
        .replacing("containers/2/", "containers/3/")
        .replacing("-n my-driver", &format!("-n {}", env.namespace));
    let sources = Snapshotter::read(&toolchain).await?.client;
    let definitions = sources.join("config/crd").display().to_string();
    shell.run(&format!("kubectl apply -k {definitions}")).await?;
    let swap = Swap {
        workload,
        steps: [
            Step {
                commands: "cp -r deploy/overlays/existing-driver",
                image: OURS,
                argument: Some("--max-driver-calls=10"),
            },
            Step {
                commands: "kubectl apply -f ~/existing-driver",
                image: GO_ATTACHER,
                argument: None,
            },
        ],
        driver: HOSTPATH_DRIVER,
        class: HOSTPATH_CLASS,
        nodes: [A, A],
        journal: Journal::File(A, "/var/lib/csi-hostpath-data/journal.jsonl"),
    };
    let objects = format!("{objects}\n---\n{class}");
    let swapped = swap.run(env, &shell, &objects).await;
    let removed = remove(&shell, &env.namespace).await;
    let undefined = shell.run(&format!("kubectl delete -k {definitions}")).await;
    // The registrar leaves its socket, which keeps the driver registered with kubelet.
    let leftovers = "rm -rf /var/lib/csi-hostpath-data /var/lib/kubelet/plugins/csi-hostpath \
                     /var/lib/kubelet/plugins_registry/hostpath.csi.k8s.io-reg.sock";
    let emptied = env.nodes.node(A)?.command(&["sh", "-c", leftovers]).await;
    swapped.and(removed).and(undefined.and(emptied).map(drop))
}

/// Removes pods and volumes while the driver runs, and then the driver.
async fn remove(shell: &Shell, namespace: &str) -> Result<()> {
    let mut removed = Ok(());
    for commands in [
        format!(
            "kubectl --namespace={namespace} delete pods writer-0 writer-1 moving-0 moving-1 moving-2 --ignore-not-found --timeout=2m
             kubectl --namespace={namespace} delete persistentvolumeclaims --all --timeout=2m
             kubectl wait --for=delete persistentvolumes,volumeattachments --all --timeout=2m"
        ),
        "kubectl delete -f ~/upstream.yaml --timeout=2m".to_owned(),
        format!("kubectl --namespace={namespace} wait --for=delete pods --all --timeout=2m"),
    ] {
        removed = removed.and(shell.run(&commands).await.map(drop));
    }
    removed
}

// === impl Swap ===

impl Swap {
    /// The Go attacher attaches volumes. csi-attacher replaces it and moves one; then the Go attacher replaces csi-attacher.
    async fn run(&self, env: &Env<'_>, shell: &Shell, objects: &str) -> Result<()> {
        let file = shell.home().join("upstream.yaml");
        std::fs::write(&file, objects).context("write the manifests")?;
        shell.run("kubectl apply -f ~/upstream.yaml").await?;
        self.wait_until_rolled_out(env, GO_ATTACHER, None).await?;
        let kept = AttachedVolumes::start(env, self.driver, self.class, self.nodes, self.journal).await?;
        env.claim("moving", self.class, "Filesystem").await?;
        let [first, second] = self.nodes;
        let begin = PodSpec::new("moving-0", WRITE).on(first);
        env.run_pod(&begin.claim("moving")).await?;
        for (step, (old, new, node)) in self
            .steps
            .iter()
            .zip([("moving-0", "moving-1", second), ("moving-1", "moving-2", first)])
        {
            shell.run(&block(DEPLOY, step.commands)?).await?;
            self.wait_until_rolled_out(env, step.image, step.argument).await?;
            env.delete_pod(old).await?;
            env.wait_until_detached("moving").await?;
            let read = PodSpec::new(new, READ).on(node);
            env.run_pod(&read.claim("moving")).await?;
        }
        shell.ensure_all_replaced()?;
        kept.end(env, shell).await
    }

    /// Waits until all replicas are ready with this image and argument of the attacher, and no other pod is left.
    async fn wait_until_rolled_out(&self, env: &Env<'_>, image: &str, argument: Option<&str>) -> Result<()> {
        let replicas = usize::try_from(self.workload["spec"]["replicas"].as_u64().unwrap_or(1))?;
        let labels = self.workload["spec"]["selector"]["matchLabels"].as_object();
        let labels = labels.context("the workload must select its pods by labels")?;
        let labels = labels
            .iter()
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
        let selected = watcher::Config::default().labels(&labels.collect::<Vec<_>>().join(","));
        let what = format!("{replicas} pods with {image} and the argument {argument:?} to be ready");
        wait::for_objects(&env.pods(), selected, STEP, &what, |pods| {
            let has_attacher = |pod: &Pod| {
                let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice());
                let mut containers = containers.unwrap_or_default().iter();
                containers.any(|container| {
                    let mut arguments = container.args.iter().flatten();
                    container.image.as_deref() == Some(image)
                        && argument.is_none_or(|expected| arguments.any(|argument| argument == expected))
                })
            };
            let rolled_out =
                pods.len() == replicas && pods.values().all(|pod| has_attacher(pod) && is_ready(pod));
            Progress::of(rolled_out, || {
                let statuses = pods.values().map(|pod| pod.status.as_ref());
                format!("{:?}", statuses.collect::<Vec<_>>())
            })
        })
        .await
    }
}
