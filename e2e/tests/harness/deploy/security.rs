//! Pod security of `deploy/`: pods have minimal privileges, by the test's rules and by the API server's
//! admission.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use csi_e2e::cluster::Cluster;
use csi_e2e::wait::{self, Progress};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, ResourceExt};

use super::shape::{Shape, Workload};
use super::{DEADLINE, POD_SECURITY};
use crate::Harness;

/// A namespace that enforces `restricted`.
const STRICT: &str = "deploy-strict";
/// Grace period beyond the attacher's own: for the last statuses, the lease and the driver's shutdown.
const BEYOND_GRACE: i64 = 10;
/// Default of `--shutdown-grace`, in seconds.
const SHUTDOWN_GRACE: i64 = 20;

trials! { "deploy":
    containers_are_hardened,
    only_node_plugins_are_privileged,
}

/// Requirements beyond the `restricted` profile.
async fn containers_are_hardened(harness: Arc<Harness>) -> Result<()> {
    for shape in Shape::all()? {
        for workload in shape.workloads(&harness).await? {
            let spec = workload.template.spec.clone();
            let spec = spec.context("a pod template must have a spec")?;
            let grace = spec.termination_grace_period_seconds.unwrap_or(30);
            ensure!(
                grace >= SHUTDOWN_GRACE + BEYOND_GRACE,
                "{shape}: {grace} s are too short for running calls"
            );
            ensure!(
                spec.host_network != Some(true),
                "{shape}: the pods use the node's network"
            );
            for container in workload.containers() {
                let what = format!("{shape}: container {}", container.name);
                let context = container.security_context.clone().unwrap_or_default();
                ensure!(
                    context.read_only_root_filesystem == Some(true),
                    "{what} can write its root"
                );
                let resources = container.resources.clone().unwrap_or_default();
                let (requests, limits) = (
                    resources.requests.unwrap_or_default(),
                    resources.limits.unwrap_or_default(),
                );
                for resource in ["cpu", "memory"] {
                    ensure!(requests.contains_key(resource), "{what} requests no {resource}");
                }
                ensure!(limits.contains_key("memory"), "{what} has no memory limit");
            }
        }
    }
    Ok(())
}

/// Also in a privileged namespace only the node's own container is privileged. The others may run as root,
/// which owns the shared directory, but without capabilities.
async fn only_node_plugins_are_privileged(harness: Arc<Harness>) -> Result<()> {
    for shape in Shape::all()? {
        for workload in shape.workloads(&harness).await? {
            let pod = workload.template.spec.as_ref();
            let pod = pod
                .and_then(|spec| spec.security_context.clone())
                .unwrap_or_default();
            for container in workload.containers() {
                let what = format!("{shape}: {}, container {}", workload.name, container.name);
                let context = container.security_context.clone().unwrap_or_default();
                if workload.is_on_each_node {
                    ensure!(context.privileged == Some(true), "{what} cannot mount for pods");
                    continue;
                }
                ensure!(context.privileged != Some(true), "{what} is privileged");
                ensure!(
                    context.allow_privilege_escalation == Some(false),
                    "{what} can gain privileges"
                );
                let capabilities = context.capabilities.unwrap_or_default();
                ensure!(
                    capabilities.add.is_none() && capabilities.drop.is_some_and(|drop| drop == ["ALL"]),
                    "{what} has capabilities"
                );
                ensure!(
                    pod.run_as_non_root == Some(true) || shape.pod_security() == "privileged",
                    "{what} may be root"
                );
                ensure!(pod.seccomp_profile.is_some(), "{what} may make any system call");
            }
        }
    }
    Ok(())
}

/// A kustomization may need a less restricted namespace, but must say so.
pub(super) async fn lets_pods_do(cluster: &Cluster, namespace: &str, expected: &str) -> Result<()> {
    let found = Api::<Namespace>::all(cluster.client()).get(namespace).await?;
    let found = found.labels().get(POD_SECURITY).map(String::as_str);
    ensure!(
        found == Some(expected),
        "the namespace enforces {found:?}, not {expected}"
    );
    Ok(())
}

/// Whether the API server admits the pods (dry run; the control plane has no node to run them). A
/// kustomization that declares a privileged namespace must be rejected in a restricted one.
pub(super) async fn admits(cluster: &Cluster, namespace: &str, workload: &Workload) -> Result<()> {
    let mut pod = Pod {
        metadata: ObjectMeta {
            name: Some("admitted".to_owned()),
            ..ObjectMeta::default()
        },
        spec: workload.template.spec.clone(),
        status: None,
    };
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let pods = Api::<Pod>::namespaced(cluster.client(), namespace);
    // A controller counts the pods of a new quota first.
    wait::poll(DEADLINE, "the ResourceQuota to have a status", || async {
        match pods.create(&dry, &pod).await {
            Ok(_) => Ok(Progress::Reached(())),
            Err(kube::Error::Api(status)) if status.message.contains("status unknown for quota") => {
                Ok(Progress::Pending(status.message.clone()))
            }
            Err(error) => Err(error.into()),
        }
    })
    .await
    .with_context(|| format!("{} creates a pod", workload.name))?;
    if !workload.is_on_each_node {
        return Ok(());
    }
    cluster.apply(&strict_namespace()).await?;
    // Admission checks the ServiceAccount first, and a controller creates the namespace's default one.
    if let Some(spec) = &mut pod.spec {
        spec.service_account_name = None;
        spec.service_account = None;
        spec.automount_service_account_token = Some(false);
    }
    let strict = Api::<Pod>::namespaced(cluster.client(), STRICT);
    let created = wait::poll(DEADLINE, "the default ServiceAccount to exist", || async {
        Ok(match strict.create(&dry, &pod).await {
            Err(kube::Error::Api(status))
                if status.message.contains("serviceaccount \"default\" not found") =>
            {
                Progress::Pending(status.message.clone())
            }
            created => Progress::Reached(created),
        })
    });
    match created.await? {
        Ok(_) => bail!("{} needs no privileged namespace", workload.name),
        Err(kube::Error::Api(status)) if status.message.contains("PodSecurity") => Ok(()),
        Err(error) => Err(error).with_context(|| format!("{} is rejected for another reason", workload.name)),
    }
}

fn strict_namespace() -> String {
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {STRICT}\n  labels:\n    {POD_SECURITY}: restricted\n"
    )
}
