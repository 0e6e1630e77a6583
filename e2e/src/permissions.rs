//! Compares the RBAC permissions that `deploy/` grants an attacher with those that it uses: none may be missing or
//! superfluous.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::ResourceExt;
use kube::api::DynamicObject;

use crate::control_plane::Request;

/// A permission, as in a PolicyRule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// Verb.
    pub verb: String,
    /// API group; empty for the core.
    pub group: String,
    /// Resource, with its subresource after a slash.
    pub resource: String,
}

/// Verb, API group and resource of permissions that no scenario uses, because no scenario can cause the condition they are
/// for.
const ALLOWED_UNUSED: [(&str, &str, &str); 5] = [
    // Read only after a rejected write or a lost response.
    ("get", "storage.k8s.io", "volumeattachments"),
    ("get", "", "persistentvolumes"),
    // Read only before a node counts as gone by `--assume-unpublished-after`.
    ("get", "storage.k8s.io", "csinodes"),
    // The Go sidecar's leader election writes Events of the core group.
    ("create", "", "events"),
    ("patch", "", "events"),
];

/// The scenario in which an attacher reads a Secret without permission.
pub const SECRET_NAMESPACE_GONE: &str = "secret-namespace-gone";

/// Whether a scenario expects the API server to deny the request.
pub fn is_refused_on_purpose(request: &Request) -> bool {
    request.namespace.ends_with(SECRET_NAMESPACE_GONE)
        && request.verb == "get"
        && request.resource == "secrets"
}

// === impl Permission ===

impl Permission {
    fn new(verb: &str, group: &str, resource: &str) -> Self {
        Self {
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if self.group.is_empty() {
            Ok(())
        } else {
            write!(f, ".{}", self.group)
        }
    }
}

// === granted and used ===

/// The permissions that the roles in `objects` grant.
///
/// # Errors
/// A rule has wildcards or non-resource URLs, which no attacher needs.
pub fn granted<'a>(objects: impl IntoIterator<Item = &'a DynamicObject>) -> Result<BTreeSet<Permission>> {
    let mut permissions = BTreeSet::new();
    for object in objects {
        let kind = object.types.as_ref().map_or("", |types| types.kind.as_str());
        if !matches!(kind, "Role" | "ClusterRole") {
            continue;
        }
        let name = object.name_any();
        let rules = object.data.get("rules").cloned().unwrap_or_default();
        let rules: Vec<PolicyRule> =
            serde_json::from_value(rules).with_context(|| format!("{kind} {name} must hold rules"))?;
        for rule in rules {
            let (groups, resources) = (
                rule.api_groups.unwrap_or_default(),
                rule.resources.unwrap_or_default(),
            );
            let all = groups.iter().chain(&resources).chain(&rule.verbs);
            if rule.non_resource_urls.is_some_and(|urls| !urls.is_empty())
                || all.clone().any(|word| word == "*")
            {
                bail!("{kind} {name} must name each group, resource and verb, and no paths");
            }
            for (group, resource) in groups
                .iter()
                .flat_map(|group| resources.iter().map(move |of| (group, of)))
            {
                permissions.extend(
                    rule.verbs
                        .iter()
                        .map(|verb| Permission::new(verb, group, resource)),
                );
            }
        }
    }
    Ok(permissions)
}

/// The permissions that the requests selected by `wanted` used.
pub fn used(requests: &BTreeSet<Request>, wanted: impl Fn(&Request) -> bool) -> BTreeSet<Permission> {
    let wanted = requests.iter().filter(|request| wanted(request));
    wanted
        .map(|request| Permission::new(&request.verb, &request.group, &request.resource))
        .collect()
}

/// Errors in the permissions: those used but not granted and, if all scenarios ran, those granted but neither used
/// nor allowed to be unused.
pub fn permission_errors(
    granted: &BTreeSet<Permission>,
    used: &BTreeSet<Permission>,
    all_scenarios_ran: bool,
) -> Vec<String> {
    let missing = used
        .difference(granted)
        .map(|permission| format!("{permission}: used, but not granted"));
    let mut permission_errors: Vec<_> = missing.collect();
    let allowed_unused = allowed_unused();
    permission_errors.extend(
        allowed_unused
            .difference(granted)
            .map(|permission| format!("{permission}: allowed to be unused, but not granted")),
    );
    if all_scenarios_ran {
        let idle = granted
            .difference(used)
            .filter(|permission| !allowed_unused.contains(permission));
        permission_errors
            .extend(idle.map(|permission| format!("{permission}: granted, but not used by any scenario")));
    }
    permission_errors
}

fn allowed_unused() -> BTreeSet<Permission> {
    ALLOWED_UNUSED
        .map(|(verb, group, resource)| Permission::new(verb, group, resource))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(rules: serde_json::Value) -> DynamicObject {
        let role = serde_json::json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "r"},
            "rules": rules,
        });
        serde_json::from_value(role).unwrap()
    }

    fn text(permissions: &BTreeSet<Permission>) -> Vec<String> {
        permissions.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_rule_grants_each_verb_on_each_resource_of_each_group() {
        let rules = serde_json::json!([
            {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
            {"apiGroups": ["storage.k8s.io"], "resources": ["volumeattachments/status"], "verbs": ["patch"]},
        ]);
        let granted = granted([&role(rules)]).unwrap();
        assert_eq!(
            text(&granted),
            [
                "create events",
                "create events.events.k8s.io",
                "patch events",
                "patch events.events.k8s.io",
                "patch volumeattachments/status.storage.k8s.io",
            ]
        );
    }

    #[test]
    fn what_cannot_be_listed_is_refused() {
        for rule in [
            serde_json::json!({"apiGroups": ["*"], "resources": ["pods"], "verbs": ["get"]}),
            serde_json::json!({"apiGroups": [""], "resources": ["*"], "verbs": ["get"]}),
            serde_json::json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}),
            serde_json::json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]}),
        ] {
            let error = granted([&role(serde_json::json!([rule]))])
                .unwrap_err()
                .to_string();
            assert!(error.contains("ClusterRole r"), "{error}");
        }
    }

    #[test]
    fn permissions_are_compared_both_ways() {
        let mut granted = allowed_unused();
        granted.insert(Permission::new("list", "", "pods"));
        granted.insert(Permission::new("watch", "", "pods"));
        let used = BTreeSet::from([
            Permission::new("list", "", "pods"),
            Permission::new("get", "", "secrets"),
        ]);
        let wanting = "get secrets: used, but not granted";
        let idle = "watch pods: granted, but not used by any scenario";
        assert_eq!(permission_errors(&granted, &used, false), [wanting]);
        assert_eq!(permission_errors(&granted, &used, true), [wanting, idle]);
        let stale = permission_errors(&BTreeSet::new(), &BTreeSet::new(), false);
        assert_eq!(stale.len(), allowed_unused().len(), "{stale:?}");
    }
}
