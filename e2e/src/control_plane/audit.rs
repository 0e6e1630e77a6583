//! The API server's audit log.
//!
//! Only requests of ServiceAccounts outside kube-system are logged; the controllers of the control plane use
//! accounts in kube-system. The log contains metadata, never bodies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::json;

/// The decision of authorization. The status code is ambiguous: admission also returns 403 for a write into a
/// terminating namespace.
const DECISION: (&str, &str) = ("authorization.k8s.io/decision", "forbid");

/// A request, its user, and whether it was allowed. Equal requests of a user are deduplicated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// Namespace of the service account.
    pub namespace: String,
    /// Its name.
    pub account: String,
    /// The program's User-Agent.
    pub user_agent: String,
    /// The RBAC verb.
    pub verb: String,
    /// The API group; empty for the core.
    pub group: String,
    /// The RBAC resource with its subresource.
    pub resource: String,
    /// Whether authorization denied it.
    pub forbidden: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    verb: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    object_ref: Option<Object>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    api_group: String,
}

// === impl Request ===

impl Request {
    /// `None` for users that are not ServiceAccounts, and for non-resource paths such as `/version`.
    fn from_event(event: Event) -> Option<Self> {
        let account = event.user.username.strip_prefix("system:serviceaccount:")?;
        let (namespace, account) = account.split_once(':')?;
        let object = event.object_ref?;
        let resource = if object.subresource.is_empty() {
            object.resource
        } else {
            format!("{}/{}", object.resource, object.subresource)
        };
        Some(Self {
            namespace: namespace.to_owned(),
            account: account.to_owned(),
            user_agent: event.user_agent,
            verb: event.verb,
            group: object.api_group,
            resource,
            forbidden: event
                .annotations
                .get(DECISION.0)
                .is_some_and(|decision| decision == DECISION.1),
        })
    }
}

// === flags and log of the API server ===

/// Writes the audit policy into `dir`, and returns the API server's flags for it and for a log in `dir`.
pub(super) fn flags(dir: &Path) -> Result<Vec<String>> {
    let policy = dir.join("audit-policy.yaml");
    let rules = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        // A watch is logged when it starts, because it may never end.
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
            {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
            {"level": "None"},
        ],
    });
    let text = serde_json::to_string_pretty(&rules).context("serialise the audit policy")?;
    fs::write(&policy, text).with_context(|| format!("write {}", policy.display()))?;
    Ok(vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log(dir).display()),
        // Larger than any run's log, because rotated files are not read.
        "--audit-log-maxsize=10000".to_owned(),
    ])
}

/// All requests in the log in `dir` so far.
pub(super) fn read(dir: &Path) -> Result<BTreeSet<Request>> {
    let path = log(dir);
    let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
    let mut requests = BTreeSet::new();
    for line in BufReader::new(file).lines() {
        let line = line.with_context(|| format!("read {}", path.display()))?;
        // The last line may be incomplete.
        if let Ok(event) = serde_json::from_str::<Event>(&line) {
            requests.extend(Request::from_event(event));
        }
    }
    Ok(requests)
}

fn log(dir: &Path) -> PathBuf {
    dir.join("audit.log")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_those_of_accounts_for_objects_once() {
        let dir = tempfile::tempdir().unwrap();
        let status = r#"{"level":"Metadata","stage":"ResponseComplete","verb":"patch","userAgent":"csi-attacher/1",
            "user":{"username":"system:serviceaccount:ns:sa"},
            "objectRef":{"resource":"volumeattachments","name":"x","apiGroup":"storage.k8s.io","subresource":"status"},
            "annotations":{"authorization.k8s.io/decision":"allow"}}"#
            .replace('\n', " ");
        let forbidden = r#"{"verb":"get","user":{"username":"system:serviceaccount:ns:sa"},
            "objectRef":{"resource":"secrets"},"annotations":{"authorization.k8s.io/decision":"forbid"}}"#
            .replace('\n', " ");
        let path =
            r#"{"verb":"get","user":{"username":"system:serviceaccount:ns:sa"},"requestURI":"/version"}"#;
        let user = r#"{"verb":"get","user":{"username":"admin"},"objectRef":{"resource":"pods"}}"#;
        let half = r#"{"verb":"get","user"#;
        let lines = [&status, &status, &forbidden, path, user, half].join("\n");
        fs::write(dir.path().join("audit.log"), lines).unwrap();
        let request = |user_agent: &str, verb: &str, group: &str, resource: &str, forbidden| Request {
            namespace: "ns".to_owned(),
            account: "sa".to_owned(),
            user_agent: user_agent.to_owned(),
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            forbidden,
        };
        let expected = BTreeSet::from([
            request("", "get", "", "secrets", true),
            request(
                "csi-attacher/1",
                "patch",
                "storage.k8s.io",
                "volumeattachments/status",
                false,
            ),
        ]);
        assert_eq!(read(dir.path()).unwrap(), expected);
    }
}
