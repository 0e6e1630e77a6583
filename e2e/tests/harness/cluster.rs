//! The real control plane: authorization, metrics, and failures of its components.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use csi_e2e::cluster::Cluster;
use csi_e2e::control_plane::Component;
use csi_e2e::kubeconfig;
use csi_e2e::objects;
use csi_e2e::wait::{self, Progress};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::ListParams;
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process};

use crate::Harness;

/// Timeout; only reached on failure.
const DEADLINE: Duration = Duration::from_secs(60);

trials! { "cluster":
    attacher_has_only_its_documented_permissions,
    publish_secrets_are_readable_only_with_opt_in,
    accounts_are_independent,
    unknown_fields_are_refused,
    requests_are_counted,
    dump_shows_objects_without_secrets,
    killed_component_is_reported,
    components_restart_with_their_data,
}

/// All permissions of an attacher, and requests that must be forbidden.
const PERMISSIONS: &[(bool, &str, &str, &[&str])] = &[
    (true, "", "persistentvolumes", &["get", "list", "watch", "patch"]),
    (true, "storage.k8s.io", "csinodes", &["get", "list", "watch"]),
    (
        true,
        "storage.k8s.io",
        "volumeattachments",
        &["get", "list", "watch", "patch"],
    ),
    (true, "storage.k8s.io", "volumeattachments/status", &["patch"]),
    (
        true,
        "coordination.k8s.io",
        "leases",
        &["get", "watch", "create", "update"],
    ),
    (true, "events.k8s.io", "events", &["create", "patch"]),
    (
        false,
        "",
        "persistentvolumes",
        &["create", "update", "delete", "deletecollection"],
    ),
    (false, "", "persistentvolumes/status", &["patch", "update"]),
    (
        false,
        "storage.k8s.io",
        "csinodes",
        &["create", "update", "patch", "delete"],
    ),
    (
        false,
        "storage.k8s.io",
        "volumeattachments",
        &["create", "update", "delete", "deletecollection"],
    ),
    (
        false,
        "storage.k8s.io",
        "volumeattachments/status",
        &["get", "update"],
    ),
    (
        false,
        "coordination.k8s.io",
        "leases",
        &["list", "patch", "delete"],
    ),
    (
        false,
        "",
        "secrets",
        &["get", "list", "watch", "create", "update", "patch", "delete"],
    ),
    (false, "", "nodes", &["get", "list", "watch", "patch"]),
    (false, "", "pods", &["get", "list", "watch", "create", "delete"]),
    (true, "", "events", &["create", "patch"]),
    (false, "", "events", &["get", "list", "delete"]),
    (false, "events.k8s.io", "events", &["get", "list", "delete"]),
    (
        false,
        "rbac.authorization.k8s.io",
        "clusterroles",
        &["get", "create", "bind", "escalate"],
    ),
];

async fn attacher_has_only_its_documented_permissions(harness: Arc<Harness>) -> Result<()> {
    let (cluster, _shared) = (harness.cluster().await?, harness.control_plane_lock.read().await);
    let client = attacher(&harness, cluster, "permissions", false).await?;
    for (allowed, group, resource, verbs) in PERMISSIONS {
        for verb in *verbs {
            let may = may(&client, "permissions", group, resource, verb).await?;
            ensure!(
                may == *allowed,
                "{verb} {resource} in group {group:?}: allowed is {may}"
            );
        }
    }
    // Requests have the same result as the access review.
    Api::<VolumeAttachment>::all(client.clone())
        .list(&ListParams::default())
        .await?;
    expect_forbidden(
        Api::<Secret>::all(client.clone())
            .list(&ListParams::default())
            .await,
    )?;
    expect_forbidden(Api::<Pod>::all(client).list(&ListParams::default()).await)
}

async fn publish_secrets_are_readable_only_with_opt_in(harness: Arc<Harness>) -> Result<()> {
    let (cluster, _shared) = (harness.cluster().await?, harness.control_plane_lock.read().await);
    let client = attacher(&harness, cluster, "opt-in", true).await?;
    for (allowed, namespace, verb) in [
        (true, "opt-in", "get"),
        (false, "opt-in", "list"),
        (false, "opt-in", "watch"),
        (false, "kube-system", "get"),
    ] {
        let may = may(&client, namespace, "", "secrets", verb).await?;
        ensure!(may == allowed, "{verb} secrets in {namespace}: allowed is {may}");
    }
    Ok(())
}

async fn accounts_are_independent(harness: Arc<Harness>) -> Result<()> {
    let (cluster, _shared) = (harness.cluster().await?, harness.control_plane_lock.read().await);
    let first = attacher(&harness, cluster, "first", false).await?;
    let second = attacher(&harness, cluster, "second", false).await?;
    cluster.delete_account("first", "attacher").await?;
    cluster
        .delete_account("first", "attacher")
        .await
        .context("a repeated deletion must succeed")?;
    // The authorizer gets the deletion from a watch.
    wait::poll(DEADLINE, "the first account to lose its permissions", || async {
        let may = may(&first, "first", "storage.k8s.io", "volumeattachments", "list").await?;
        Ok(Progress::of(!may, || "it keeps them".to_owned()))
    })
    .await?;
    ensure!(
        may(&second, "second", "storage.k8s.io", "volumeattachments", "list").await?,
        "both lost their permissions"
    );
    Ok(())
}

async fn unknown_fields_are_refused(harness: Arc<Harness>) -> Result<()> {
    let (cluster, _shared) = (harness.cluster().await?, harness.control_plane_lock.read().await);
    let manifest =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: default}\ndatum: {a: b}\n";
    let error = cluster
        .apply(manifest)
        .await
        .err()
        .context("a misspelt field must be an error")?;
    ensure!(format!("{error:#}").contains("datum"), "{error:#}");
    let applied = cluster.apply(&manifest.replace("datum", "data")).await?;
    ensure!(
        applied.len() == 1 && applied[0].data["data"]["a"] == "b",
        "{applied:?}"
    );
    Ok(())
}

async fn requests_are_counted(harness: Arc<Harness>) -> Result<()> {
    let (cluster, _shared) = (harness.cluster().await?, harness.control_plane_lock.read().await);
    cluster.create_namespace("counted").await?;
    let secrets = Api::<Secret>::namespaced(cluster.client(), "counted");
    let before = cluster.metrics().await?;
    for number in 0..7 {
        let mut secret = Secret::default();
        secret.metadata.name = Some(format!("secret-{number}"));
        objects::create(&secrets, &secret).await?;
    }
    // Only this test posts secrets: other tests use apply, and no controller creates any.
    let counted = cluster
        .metrics()
        .await?
        .since(&before)
        .requests("POST", "secrets", "");
    ensure!(counted == 7, "{counted} requests counted, 7 made");
    Ok(())
}

async fn dump_shows_objects_without_secrets(harness: Arc<Harness>) -> Result<()> {
    let (cluster, _shared) = (harness.cluster().await?, harness.control_plane_lock.read().await);
    cluster.create_namespace("dumped").await?;
    let secret =
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: dumped}\nstringData: {k: hush}\n";
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: shown, namespace: dumped}\n\
               spec: {nodeName: nowhere, containers: [{name: c, image: i}]}\n";
    let driver =
        "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {name: dumped.csi.local}\nspec: {}\n";
    cluster.apply(&[secret, pod, driver].join("---\n")).await?;
    let dump = cluster
        .dump("dumped", &|object| {
            object.metadata.name.as_deref() == Some("dumped.csi.local")
        })
        .await?;
    for part in ["# Pod shown", "# CSIDriver dumped.csi.local"] {
        ensure!(dump.contains(part), "no {part:?} in:\n{dump}");
    }
    for part in ["hush", "aHVzaA", "managedFields", "mock.csi.local"] {
        ensure!(!dump.contains(part), "{part:?} in:\n{dump}");
    }
    Ok(())
}

async fn killed_component_is_reported(harness: Arc<Harness>) -> Result<()> {
    let cluster = harness.cluster().await?;
    let _exclusive = harness.control_plane_lock.write().await;
    let pid = cluster
        .component_pid(Component::ControllerManager)?
        .context("the controllers must run")?;
    let pid = Pid::from_raw(i32::try_from(pid)?).context("a process id must not be 0")?;
    let killed = async {
        kill_process(pid, Signal::KILL)?;
        std::future::pending::<Result<()>>().await
    };
    let result = tokio::time::timeout(DEADLINE, cluster.while_alive(killed)).await;
    let error = result
        .context("the exit must be reported")?
        .err()
        .context("the exit must be an error")?;
    let text = format!("{error:#}");
    ensure!(
        text.contains("kube-controller-manager") && text.contains("signal: 9"),
        "{text}"
    );
    cluster.start_component(Component::ControllerManager).await?;
    cluster.while_alive(async { Ok(()) }).await
}

async fn components_restart_with_their_data(harness: Arc<Harness>) -> Result<()> {
    let cluster = harness.cluster().await?;
    let _exclusive = harness.control_plane_lock.write().await;
    cluster.create_namespace("kept").await?;
    cluster
        .apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept, namespace: kept}\n")
        .await?;
    let restarts = async {
        cluster.restart_component(Component::ControllerManager).await?;
        cluster.restart_component(Component::ApiServer).await?;
        cluster.kill_component(Component::ApiServer).await?;
        cluster.kill_component(Component::Etcd).await?;
        if cluster.start_component(Component::Etcd).await.is_ok()
            && cluster.start_component(Component::Etcd).await.is_ok()
        {
            bail!("a running component was started a second time");
        }
        cluster.start_component(Component::ApiServer).await
    };
    // A component that is stopped on purpose must not count as failed.
    cluster.while_alive(restarts).await?;
    Api::<ConfigMap>::namespaced(cluster.client(), "kept")
        .get("kept")
        .await
        .context("the data must be kept")?;
    // Only a working controller manager creates a namespace's default account.
    cluster.create_namespace("after").await
}

// === requests ===

/// Creates an attacher's account in a new namespace; returns its client.
async fn attacher(
    harness: &Harness,
    cluster: &Cluster,
    namespace: &str,
    publish_secrets: bool,
) -> Result<Client> {
    cluster.create_namespace(namespace).await?;
    cluster
        .create_attacher_account(namespace, "attacher", publish_secrets)
        .await?;
    let dir = harness.run.subdir(namespace)?;
    let path = cluster
        .service_account_kubeconfig(namespace, "attacher", &dir)
        .await?;
    kubeconfig::client(&path).await
}

async fn may(client: &Client, namespace: &str, group: &str, resource: &str, verb: &str) -> Result<bool> {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let attributes = ResourceAttributes {
        group: Some(group.to_owned()),
        namespace: Some(namespace.to_owned()),
        resource: Some(resource.to_owned()),
        subresource: Some(subresource.to_owned()),
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..Default::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let response = objects::create(&Api::<SelfSubjectAccessReview>::all(client.clone()), &review).await?;
    Ok(response.status.context("a review must have a status")?.allowed)
}

fn expect_forbidden<T>(response: kube::Result<T>) -> Result<()> {
    match response {
        Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(()),
        Err(error) => Err(error).context("the request failed for another reason than missing permissions"),
        Ok(_) => bail!("the request was allowed"),
    }
}
