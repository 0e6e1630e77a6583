//! The manifests of `deploy/`, validated by kustomize, the API server and the programs that they run.

mod authenticated_metrics;
mod certificate;
mod charts;
mod driver;
mod existing_driver;
mod finalizers_only;
mod image;
mod kinds;
mod monitoring;
mod on_kubelets;
mod program;
mod security;
mod shape;
mod sidecars;
mod testdriver;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use csi_e2e::cluster::{Cluster, manifest};
use csi_e2e::objects;
use csi_e2e::permissions::{Permission, granted};
use csi_e2e::wait::{self, Progress};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::Role;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::DynamicObject;
use kube::{Api, ResourceExt};
use serde::de::DeserializeOwned;

use crate::Harness;
use crate::deploy::shape::Shape;

/// The Pod Security Admission label.
const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";
/// Timeout; only reached on failure.
const DEADLINE: Duration = Duration::from_secs(60);

trials! { "deploy":
    the_harness_reads_the_base_as_kustomize_does,
    every_kustomization_is_accepted_and_its_pods_are_created,
    selectors_match_pods,
    components_follow_the_namespace_of_an_overlay,
    permissions_of_the_go_sidecar_suffice_for_ours,
    ; authenticated_metrics, certificate, charts, driver, existing_driver, finalizers_only, program, security, sidecars,
    testdriver, image, monitoring, on_kubelets
}

/// Scenarios run with the manifests as the harness reads them.
async fn the_harness_reads_the_base_as_kustomize_does(harness: Arc<Harness>) -> Result<()> {
    let shape = Shape::base_with(&["publish-secrets"])?;
    let built = manifest::parse(&shape.build(&harness).await?)?;
    let read = [manifest::base()?, manifest::publish_secrets()?].concat();
    let (built, read) = (by_name(&built)?, by_name(&read)?);
    let names = |objects: &BTreeMap<String, serde_json::Value>| objects.keys().cloned().collect::<Vec<_>>();
    ensure!(
        names(&built) == names(&read),
        "kustomize builds {:?}, the harness reads {:?}",
        names(&built),
        names(&read)
    );
    for (name, object) in &built {
        ensure!(
            Some(object) == read.get(name),
            "{name} is\n{object}\nand is read as\n{:?}",
            read.get(name)
        );
    }
    Ok(())
}

/// Checks each kustomization, and applies it in a namespace that enforces the `restricted` profile, unless it
/// declares another one: the real controllers create the pods, or admission rejects them.
async fn every_kustomization_is_accepted_and_its_pods_are_created(harness: Arc<Harness>) -> Result<()> {
    let (cluster, _shared) = (harness.cluster().await?, harness.control_plane_lock.read().await);
    kinds::install(cluster).await?;
    for shape in Shape::all()? {
        let what = format!("{shape}");
        let objects = shape.build(&harness).await?;
        cluster.apply(&only_namespaces(&objects)?).await?;
        let checked = cluster.check(&objects).await.with_context(|| what.clone())?;
        ensure!(!checked.is_empty(), "{what} has no objects");

        let namespace = shape.namespace();
        let restricted = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {namespace}\n  labels:\n    \
             {POD_SECURITY}: restricted\n"
        );
        cluster.apply(&restricted).await?;
        let own = shape.build_for_its_namespace(&harness).await?;
        let applied = cluster.apply(&own).await.with_context(|| what.clone())?;
        security::lets_pods_do(cluster, &namespace, shape.pod_security())
            .await
            .with_context(|| what.clone())?;
        for workload in shape::workloads(&applied)? {
            security::admits(cluster, &namespace, &workload)
                .await
                .with_context(|| what.clone())?;
            sidecars::may_do_their_work(cluster, &namespace, &workload)
                .await
                .with_context(|| what.clone())?;
        }
        for deployment in of_kind::<Deployment>(&applied, "Deployment")? {
            pods_are_created(cluster, &namespace, &deployment)
                .await
                .with_context(|| what.clone())?;
            permissions_arrive(cluster, &namespace, &deployment, shape.may_read_secrets())
                .await
                .with_context(|| what.clone())?;
            renews_its_lease(cluster, &namespace, &deployment, &applied)
                .await
                .with_context(|| what.clone())?;
        }
    }
    Ok(())
}

async fn pods_are_created(cluster: &Cluster, namespace: &str, deployment: &Deployment) -> Result<()> {
    let wanted = deployment.spec.replicas;
    let deployments = Api::<Deployment>::namespaced(cluster.client(), namespace);
    let created = |deployment: Option<&Deployment>| {
        let status = deployment
            .and_then(|deployment| deployment.status.clone())
            .unwrap_or_default();
        Progress::of(status.replicas == wanted, || {
            let conditions = status.conditions.into_iter().flatten();
            let messages: Vec<_> = conditions.filter_map(|condition| condition.message).collect();
            format!(
                "{:?} of {wanted:?} pods were created: {messages:?}",
                status.replicas
            )
        })
    };
    wait::for_object(
        &deployments,
        &deployment.name_any(),
        DEADLINE,
        "the pods to be created",
        created,
    )
    .await
}

/// The ServiceAccount of the pods.
fn account(deployment: &Deployment) -> Result<String> {
    let spec = template(deployment)
        .spec
        .context("a pod template must have a spec")?;
    spec.service_account_name
        .context("the pods must have an account of their own")
}

/// The roles are bound to the pods' account in every kustomization.
async fn permissions_arrive(
    cluster: &Cluster,
    namespace: &str,
    deployment: &Deployment,
    secrets: bool,
) -> Result<()> {
    let account = account(deployment)?;
    for (expected, group, resource, verb) in [
        (true, "storage.k8s.io", "volumeattachments", "patch"),
        (true, "coordination.k8s.io", "leases", "create"),
        (secrets, "", "secrets", "get"),
    ] {
        let right = Permission {
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
        };
        cluster
            .wait_until_granted(namespace, &account, Some(namespace), &right, expected)
            .await?;
    }
    Ok(())
}

/// The account may update its driver's Lease, and no other one if the kustomization names the driver.
async fn renews_its_lease(
    cluster: &Cluster,
    namespace: &str,
    deployment: &Deployment,
    objects: &[DynamicObject],
) -> Result<()> {
    let account = account(deployment)?;
    let rules = of_kind::<Role>(objects, "Role")?
        .into_iter()
        .flat_map(|role| role.rules.unwrap_or_default());
    let lease = rules
        .filter(|rule| {
            rule.resources
                .iter()
                .flatten()
                .any(|resource| resource == "leases")
        })
        .find_map(|rule| rule.resource_names?.into_iter().next());
    let reviews = Api::<SubjectAccessReview>::all(cluster.client());
    let may_update = async |name: &str| -> Result<bool> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(format!("system:serviceaccount:{namespace}:{account}")),
                resource_attributes: Some(ResourceAttributes {
                    group: Some("coordination.k8s.io".to_owned()),
                    resource: Some("leases".to_owned()),
                    verb: Some("update".to_owned()),
                    namespace: Some(namespace.to_owned()),
                    name: Some(name.to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviewed = objects::create(&reviews, &review).await?;
        Ok(reviewed.status.is_some_and(|status| status.allowed))
    };
    let own = lease.as_deref().unwrap_or("external-attacher-leader-any");
    wait::poll(DEADLINE, "the Role of the Lease to be bound", || async {
        Ok(Progress::of(may_update(own).await?, || {
            format!("{account} may not update {own}")
        }))
    })
    .await?;
    ensure!(
        lease.is_none() || !may_update("other").await?,
        "{account} may update Leases of others"
    );
    Ok(())
}

/// As in the README: an overlay on any of the mock driver's, with components, that sets a namespace.
async fn components_follow_the_namespace_of_an_overlay(harness: Arc<Harness>) -> Result<()> {
    let components = shape::folders("components")?;
    let overlays = shape::folders("overlays")?;
    let of_the_driver: Vec<_> = overlays
        .iter()
        .filter(|overlay| overlay.starts_with("mock-driver"))
        .collect();
    ensure!(of_the_driver.len() >= 5, "only {of_the_driver:?} were found");
    for overlay in of_the_driver {
        follow_the_namespace(&harness, &Shape::overlay_with(overlay, &components)).await?;
    }
    Ok(())
}

async fn follow_the_namespace(harness: &Harness, shape: &Shape) -> Result<()> {
    const NAMESPACE: &str = "csi-mock-driver";
    let built = manifest::parse(&shape.build_in(harness, NAMESPACE).await?)?;
    for object in &built {
        let namespace = object.metadata.namespace.as_deref();
        ensure!(
            namespace.is_none_or(|namespace| namespace == NAMESPACE),
            "{shape}: {} is in {namespace:?}",
            object.name_any()
        );
        for subject in object
            .data
            .get("subjects")
            .and_then(|subjects| subjects.as_array())
            .into_iter()
            .flatten()
        {
            ensure!(
                subject["namespace"] == NAMESPACE,
                "{shape}: {} binds {subject}",
                object.name_any()
            );
        }
    }
    ensure!(
        built.iter().any(|object| {
            object
                .types
                .as_ref()
                .is_some_and(|types| types.kind == "Namespace")
                && object.name_any() == NAMESPACE
        }),
        "{shape}: the namespace {NAMESPACE} is not created"
    );
    Ok(())
}

/// Replacing the image needs no other change. Events are optional.
async fn permissions_of_the_go_sidecar_suffice_for_ours(harness: Arc<Harness>) -> Result<()> {
    let theirs = manifest::parse(&Shape::overlay("existing-driver").build(&harness).await?)?;
    let (theirs, ours) = (granted(&theirs)?, granted(&manifest::base()?)?);
    let missing: Vec<_> = ours
        .difference(&theirs)
        .filter(|right| right.resource != "events")
        .map(ToString::to_string)
        .collect();
    ensure!(
        missing.is_empty(),
        "a driver grants the Go sidecar no permission for {missing:?}"
    );
    Ok(())
}

/// Labels and names that must match across objects.
async fn selectors_match_pods(harness: Arc<Harness>) -> Result<()> {
    for shape in Shape::all()? {
        let objects = manifest::parse(&shape.build(&harness).await?)?;
        let templates: Vec<_> = of_kind::<Deployment>(&objects, "Deployment")?
            .iter()
            .map(template)
            .collect();
        for budget in of_kind::<PodDisruptionBudget>(&objects, "PodDisruptionBudget")? {
            let selector = budget.spec.and_then(|spec| spec.selector);
            let selector = selector.context("a PodDisruptionBudget must have a selector")?;
            ensure!(
                templates.iter().any(|template| selects(&selector, template)),
                "{shape}: the PodDisruptionBudget selects no pods"
            );
        }
        for template in &templates {
            let spec = template
                .spec
                .as_ref()
                .context("a pod template must have a spec")?;
            for constraint in spec.topology_spread_constraints.iter().flatten() {
                let selector = constraint.label_selector.as_ref();
                let selector = selector.context("a spread constraint must have a selector")?;
                ensure!(
                    selects(selector, template),
                    "{shape}: the spread constraint by {} does not select the pods",
                    constraint.topology_key
                );
            }
        }
    }
    Ok(())
}

// === reading ===

fn template(deployment: &Deployment) -> PodTemplateSpec {
    deployment.spec.template.clone()
}

/// The container whose image has this name, with any registry and version.
fn container_of_image<'a>(
    mut containers: impl Iterator<Item = &'a Container>,
    image: &str,
) -> Option<&'a Container> {
    containers.find(|container| image_name(container.image.as_deref().unwrap_or_default()).0 == image)
}

/// Name and version of an image.
fn image_name(image: &str) -> (&str, Option<&str>) {
    let last = image.rsplit('/').next().unwrap_or_default();
    last.split_once(':')
        .map_or((last, None), |(name, version)| (name, Some(version)))
}

fn selects(selector: &LabelSelector, template: &PodTemplateSpec) -> bool {
    let labels = template
        .metadata
        .as_ref()
        .and_then(|metadata| metadata.labels.as_ref());
    let wanted = selector.match_labels.iter().flatten();
    selector.match_labels.is_some()
        && wanted
            .into_iter()
            .all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

fn of_kind<K: DeserializeOwned>(objects: &[DynamicObject], kind: &str) -> Result<Vec<K>> {
    let wanted = objects
        .iter()
        .filter(|object| object.types.as_ref().is_some_and(|types| types.kind == kind));
    wanted
        .map(|object| {
            let value = serde_json::to_value(object)?;
            serde_json::from_value(value).with_context(|| format!("decode {kind} {}", object.name_any()))
        })
        .collect()
}

fn by_name(objects: &[DynamicObject]) -> Result<BTreeMap<String, serde_json::Value>> {
    let mut found = BTreeMap::new();
    for object in objects {
        let kind = object.types.clone().unwrap_or_default().kind;
        let name = format!("{kind} {}", object.name_any());
        let twice = found.insert(name.clone(), serde_json::to_value(object)?);
        ensure!(twice.is_none(), "{name} exists twice");
    }
    Ok(found)
}

fn only_namespaces(yaml: &str) -> Result<String> {
    let mut namespaces = String::new();
    let names: BTreeSet<_> = manifest::parse(yaml)?
        .into_iter()
        .filter_map(|object| object.metadata.namespace)
        .collect();
    for name in names {
        namespaces.push_str(&format!(
            "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n"
        ));
    }
    Ok(namespaces)
}
