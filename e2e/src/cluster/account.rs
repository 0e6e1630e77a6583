//! The ServiceAccounts of attachers.
//!
//! Invariants: a ServiceAccount has exactly the permissions that `deploy/` grants, and is returned only after the API server
//! grants them. The API server gets a new binding from a watch, and would otherwise reject the first requests of a fast client.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{DeleteParams, DynamicObject, Patch, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{Cluster, SETTLED, ignore_not_found, manifest};
use crate::kubeconfig;
use crate::objects;
use crate::permissions::{self, Permission};
use crate::wait::{self, Progress};

/// Lifetime of an attacher's token, longer than any run.
const TOKEN_SECONDS: i64 = 24 * 60 * 60;
/// The role of the attach/detach controller.
const ATTACH_DETACH_ROLE: &str = "system:controller:attachdetach-controller";
/// Namespace and name of the account of the attach/detach controller.
const ATTACH_DETACH_ACCOUNT: (&str, &str) = ("kube-system", "attachdetach-controller");
/// The rule that allows the attach/detach controller to patch node statuses.
const NODES_STATUS: &str = "nodes/status";

// === impl Cluster ===

impl Cluster {
    /// Creates an attacher's ServiceAccount in `namespace` and grants it exactly the permissions of `deploy/`; with
    /// `publish_secrets`, also those of the opt-in component, for Secrets in this namespace.
    pub async fn create_attacher_account(
        &self,
        namespace: &str,
        name: &str,
        publish_secrets: bool,
    ) -> Result<()> {
        let mut objects = self.deploy.clone();
        if publish_secrets {
            objects.extend_from_slice(&self.publish_secrets);
        }
        self.create_account(namespace, name, &objects).await
    }

    /// Creates a ServiceAccount for the driver's other sidecars in `namespace`, with their permissions in `deploy/`.
    pub async fn create_sidecar_account(&self, namespace: &str, name: &str) -> Result<()> {
        self.create_account(namespace, name, &self.sidecars).await
    }

    async fn create_account(&self, namespace: &str, name: &str, objects: &[DynamicObject]) -> Result<()> {
        let own = manifest::for_account(objects, namespace, name)?;
        self.apply_objects(&own, false).await?;
        for (binding, role) in bindings(&own, objects)? {
            let of_namespace = binding.metadata.namespace.as_deref();
            for permission in permissions::granted([role])? {
                self.wait_until_granted(namespace, name, of_namespace, &permission, true)
                    .await
                    .with_context(|| format!("bound by {}", binding.name_any()))?;
            }
        }
        Ok(())
    }

    /// Deletes the cluster-scoped objects of an account; the others are deleted with its namespace.
    pub async fn delete_account(&self, namespace: &str, name: &str) -> Result<()> {
        let mut objects = manifest::for_account(&self.deploy, namespace, name)?;
        objects.extend(manifest::for_account(&self.sidecars, namespace, name)?);
        objects.retain(|object| object.metadata.namespace.is_none());
        for object in objects.iter().filter(|object| self.serves(object)) {
            let api = self.api_for(object).await?;
            let deleted = api.delete(&object.name_any(), &DeleteParams::default()).await;
            ignore_not_found(deleted).with_context(|| format!("delete {}", object.name_any()))?;
        }
        Ok(())
    }

    /// Writes `<service account>.kubeconfig` into `dir`, with the credentials of the ServiceAccount.
    pub async fn service_account_kubeconfig(
        &self,
        namespace: &str,
        service_account: &str,
        dir: &Path,
    ) -> Result<PathBuf> {
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let issued = Api::<ServiceAccount>::namespaced(self.client(), namespace)
            .create_token_request(service_account, &PostParams::default(), &request)
            .await
            .with_context(|| format!("request a token for {namespace}/{service_account}"))?;
        let token = issued
            .status
            .and_then(|status| status.token)
            .context("the TokenRequest must have a token")?;
        let path = dir.join(format!("{service_account}.kubeconfig"));
        kubeconfig::write(&path, kubeconfig::current_cluster(&self.admin)?, &token)?;
        Ok(path)
    }

    /// Whether the API server authorizes requests. Without authorization every request is allowed.
    pub fn has_authorization(&self) -> bool {
        self.running.serves("rbac.authorization.k8s.io")
    }

    /// Waits until the API server allows, or denies, the account to read Secrets in `of_namespace`. Returns at once without
    /// authorization.
    pub async fn wait_until_secrets_are(
        &self,
        readable: bool,
        namespace: &str,
        name: &str,
        of_namespace: &str,
    ) -> Result<()> {
        let permission = Permission {
            verb: "get".to_owned(),
            group: String::new(),
            resource: "secrets".to_owned(),
        };
        self.wait_until_granted(namespace, name, Some(of_namespace), &permission, readable)
            .await
    }

    /// Allows or denies the attach/detach controller to patch node statuses.
    pub async fn allow_node_status_patches(&self, allowed: bool) -> Result<()> {
        if self.deny_by_fault(NODES_STATUS, !allowed) {
            return Ok(());
        }
        let roles = Api::<ClusterRole>::all(self.client());
        let role = roles.get(ATTACH_DETACH_ROLE).await?;
        let mut rules = role.rules.unwrap_or_default();
        let concerns_status = |rule: &PolicyRule| {
            rule.resources
                .iter()
                .flatten()
                .any(|resource| resource == NODES_STATUS)
        };
        rules.retain(|rule| !concerns_status(rule));
        if allowed {
            rules.push(PolicyRule {
                api_groups: Some(vec![String::new()]),
                resources: Some(vec![NODES_STATUS.to_owned()]),
                verbs: vec!["patch".to_owned()],
                ..PolicyRule::default()
            });
        }
        let patch = Patch::Merge(json!({"rules": rules}));
        objects::patch(&roles, ATTACH_DETACH_ROLE, &patch).await?;
        let permission = Permission {
            verb: "patch".to_owned(),
            group: String::new(),
            resource: NODES_STATUS.to_owned(),
        };
        let (namespace, name) = ATTACH_DETACH_ACCOUNT;
        self.wait_until_granted(namespace, name, None, &permission, allowed)
            .await
    }

    /// Waits until the API server, which watches roles and bindings, grants the account a permission, or denies it if
    /// `granted` is false.
    pub async fn wait_until_granted(
        &self,
        namespace: &str,
        name: &str,
        of_namespace: Option<&str>,
        permission: &Permission,
        granted: bool,
    ) -> Result<()> {
        if !self.has_authorization() {
            return Ok(());
        }
        let expected = if granted { "allowed" } else { "denied" };
        let what = format!("{namespace}/{name} to be {expected}: {permission}");
        wait::poll(SETTLED, &what, || async {
            let found = self.grants(namespace, name, of_namespace, permission).await?;
            Ok(Progress::of(found == granted, || format!("it is {found}")))
        })
        .await
    }

    /// Whether the API server grants the account a permission in `of_namespace`; `None`: cluster-wide.
    pub async fn grants(
        &self,
        namespace: &str,
        name: &str,
        of_namespace: Option<&str>,
        permission: &Permission,
    ) -> Result<bool> {
        if !self.has_authorization() {
            return Ok(true);
        }
        let (resource, subresource) = match permission.resource.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
            None => (permission.resource.as_str(), None),
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(format!("system:serviceaccount:{namespace}:{name}")),
                resource_attributes: Some(ResourceAttributes {
                    group: Some(permission.group.clone()),
                    namespace: of_namespace.map(str::to_owned),
                    resource: Some(resource.to_owned()),
                    subresource,
                    verb: Some(permission.verb.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviewed = objects::create(&Api::<SubjectAccessReview>::all(self.client()), &review).await?;
        Ok(reviewed.status.is_some_and(|status| status.allowed))
    }
}

/// Each binding in `own` with its role, which is in `own` or `installed`.
fn bindings<'a>(
    own: &'a [DynamicObject],
    installed: &'a [DynamicObject],
) -> Result<Vec<(&'a DynamicObject, &'a DynamicObject)>> {
    let mut found = Vec::new();
    for binding in own {
        let Some(reference) = binding.data.get("roleRef") else {
            continue;
        };
        let role = own.iter().chain(installed).find(|object| {
            let kind = object.types.as_ref().map(|types| types.kind.as_str());
            reference["kind"].as_str() == kind && reference["name"] == object.name_any()
        });
        let role = role.with_context(|| format!("{} names a role that is not here", binding.name_any()))?;
        found.push((binding, role));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_binding_finds_its_role() {
        let mut installed = manifest::base().unwrap();
        installed.extend(manifest::publish_secrets().unwrap());
        let own = manifest::for_account(&installed, "scenario", "attacher").unwrap();
        let pairs: Vec<_> = bindings(&own, &installed)
            .unwrap()
            .into_iter()
            .map(|(binding, role)| (binding.name_any(), role.name_any()))
            .collect();
        let pair = |binding: &str, role: &str| (binding.to_owned(), role.to_owned());
        assert_eq!(
            pairs,
            [
                pair("csi-attacher-scenario-attacher", "csi-attacher"),
                pair("csi-attacher-lease-attacher", "csi-attacher-lease"),
                pair(
                    "csi-attacher-publish-secrets-attacher",
                    "csi-attacher-publish-secrets"
                ),
            ]
        );
        assert!(bindings(&own, &[]).is_err());
    }
}
