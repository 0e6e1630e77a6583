//! Warnings for the client that writes an object (`WarningsOnCreate` and `WarningsOnUpdate` of a kind's strategy).

mod overlap;
mod pod;

use std::net::Ipv6Addr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::names;
use super::node_labels;
use super::object::{self, ANN_MOUNT_OPTIONS, Object, at, entries, has, list, text};
use super::resource::Kind;
use super::strategy::Part;
use crate::quantity::Quantity;
use crate::volume::ANN_BETA_STORAGE_CLASS;

const BETA_CLASS: (&str, &str) = (
    ANN_BETA_STORAGE_CLASS,
    "deprecated since v1.8; use \"storageClassName\" attribute instead",
);
const BETA_MOUNT_OPTIONS: (&str, &str) = (
    ANN_MOUNT_OPTIONS,
    "deprecated since v1.31; use \"mountOptions\" attribute instead",
);
const ENFORCE_MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";

/// Sources of volumes in pods and PersistentVolumes, their names in warnings, and the releases that deprecated and removed them.
const REMOVED_VOLUMES: [(&str, &str, &str, &str); 6] = [
    ("cephfs", "cephfs", "v1.28", "v1.31"),
    ("photonPersistentDisk", "photonPersistentDisk", "v1.11", "v1.16"),
    ("scaleIO", "scaleIO", "v1.16", "v1.22"),
    ("storageos", "storageOS", "v1.22", "v1.25"),
    ("glusterfs", "glusterfs", "v1.25", "v1.26"),
    ("rbd", "rbd", "v1.28", "v1.31"),
];

/// Warnings about a new object.
pub(crate) fn create(kind: Kind, object: &Object) -> Vec<String> {
    of_object(kind, object, None)
}

/// Warnings about a changed object.
pub(crate) fn update(kind: Kind, part: Part, object: &Object, old: &Object) -> Vec<String> {
    match part {
        Part::Main => of_object(kind, object, Some(old)),
        Part::Status if kind == Kind::Pod => {
            let mut warnings = addresses(object, "/status/podIPs", "status.podIPs");
            warnings.extend(addresses(object, "/status/hostIPs", "status.hostIPs"));
            warnings
        }
        Part::Status | Part::Finalize | Part::EphemeralContainers => Vec::new(),
    }
}

fn of_object(kind: Kind, object: &Object, old: Option<&Object>) -> Vec<String> {
    match kind {
        Kind::CsiDriver => csi_driver(object, old).into_iter().collect(),
        Kind::CsiStorageCapacity => node_topology(object),
        Kind::Node => node(object),
        Kind::PersistentVolume => persistent_volume(object),
        Kind::PersistentVolumeClaim => {
            let mut warnings = annotations(object, &[BETA_CLASS]);
            warnings.extend(claim_spec(object, "spec"));
            warnings
        }
        Kind::Pod if old.is_none() => pod::warnings(object),
        Kind::Secret => certificate(object).into_iter().collect(),
        Kind::ServiceAccount if old.is_none_or(|old| service_account(old).is_empty()) => {
            service_account(object)
        }
        Kind::StorageClass => allowed_topologies(object),
        Kind::CsiNode
        | Kind::Event
        | Kind::Lease
        | Kind::Namespace
        | Kind::Pod
        | Kind::ServiceAccount
        | Kind::VolumeAttachment => Vec::new(),
    }
}

/// Warnings about these annotations.
fn annotations(object: &Object, deprecated: &[(&str, &str)]) -> Vec<String> {
    let given = at(object, "/metadata/annotations");
    let found = deprecated.iter().filter(|(key, _)| given.get(key).is_some());
    let warning = |(key, why): &(&str, &str)| format!("metadata.annotations[{key}]: {why}");
    found.map(warning).collect()
}

fn persistent_volume(object: &Object) -> Vec<String> {
    let mut warnings = annotations(object, &[BETA_CLASS, BETA_MOUNT_OPTIONS]);
    if text(object, "/spec/persistentVolumeReclaimPolicy") == "Recycle" {
        warnings.push(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended \
             approach is to use dynamic provisioning."
                .to_owned(),
        );
    }
    let terms = "spec.nodeAffinity.required.nodeSelectorTerms";
    for (index, term) in list(object, "/spec/nodeAffinity/required/nodeSelectorTerms")
        .iter()
        .enumerate()
    {
        warnings.extend(node_selector_term(term, &format!("{terms}[{index}]"), false));
    }
    warnings.extend(removed_volume(at(object, "/spec"), "spec"));
    warnings
}

/// A warning about the source of a volume that Kubernetes has removed.
fn removed_volume(volume: &Value, path: &str) -> Option<String> {
    let mut removed = REMOVED_VOLUMES
        .iter()
        .filter(|(field, ..)| volume[field].is_object());
    let (_, shown, deprecated, removed) = removed.next()?;
    Some(format!(
        "{path}.{shown}: deprecated in {deprecated}, non-functional in {removed}+"
    ))
}

/// Deprecated labels in a node selector term; of a preference also invalid values.
fn node_selector_term(term: &Value, path: &str, is_preference: bool) -> Vec<String> {
    let expressions = term["matchExpressions"].as_array();
    let mut warnings = Vec::new();
    for (index, expression) in expressions.into_iter().flatten().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        warnings.extend(deprecated_key(expression, &path));
        let values = expression["values"].as_array().filter(|_| is_preference);
        for (index, value) in values.into_iter().flatten().filter_map(Value::as_str).enumerate() {
            let invalid = names::label_value(value).into_iter();
            warnings.extend(invalid.map(|why| format!("{path}.values[{index}]: {value} is invalid, {why}")));
        }
    }
    warnings
}

/// A deprecated label in a requirement.
fn deprecated_key(requirement: &Value, path: &str) -> Option<String> {
    let key = requirement["key"].as_str()?;
    node_labels::deprecation(key).map(|why| format!("{path}.key: {key} is {why}"))
}

fn node_topology(object: &Object) -> Vec<String> {
    let expressions = list(object, "/nodeTopology/matchExpressions").iter().enumerate();
    let of_expressions = expressions.filter_map(|(index, expression)| {
        deprecated_key(expression, &format!("nodeTopology.matchExpressions[{index}]"))
    });
    let mut warnings: Vec<String> = of_expressions.collect();
    warnings.extend(
        entries(object, "/nodeTopology/matchLabels").filter_map(|(label, _)| {
            let why = node_labels::deprecation(label)?;
            Some(format!("nodeTopology.matchLabels.{label}: {why}"))
        }),
    );
    warnings
}

fn allowed_topologies(object: &Object) -> Vec<String> {
    let mut warnings = Vec::new();
    for (term_index, term) in list(object, "/allowedTopologies").iter().enumerate() {
        let expressions = term["matchLabelExpressions"].as_array();
        for (index, expression) in expressions.into_iter().flatten().enumerate() {
            let why = expression["key"].as_str().and_then(node_labels::deprecation);
            let path = format!("allowedTopologies[{term_index}].matchLabelExpressions[{index}].key");
            warnings.extend(why.map(|why| format!("{path}: {why}")));
        }
    }
    warnings
}

fn node(object: &Object) -> Vec<String> {
    let mut warnings = Vec::new();
    if has(object, "/spec/externalID") {
        warnings.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned());
    }
    for (index, cidr) in list(object, "/spec/podCIDRs").iter().enumerate() {
        let given = cidr.as_str().unwrap_or_default();
        if let Some((address, bits)) = given.split_once('/')
            && let Some(address) = canonical(address)
        {
            warnings.push(format!(
                "spec.podCIDRs[{index}]: IPv6 CIDR value {given:?} should be in RFC 5952 canonical format (\"{address}/{bits}\")"
            ));
        }
    }
    warnings
}

/// The canonical form of an IPv6 address, if it has another form.
fn canonical(address: &str) -> Option<String> {
    let parsed: Ipv6Addr = address.parse().ok()?;
    Some(parsed.to_string()).filter(|canonical| canonical != address)
}

/// Addresses of this list that are not canonical.
fn addresses(object: &Object, pointer: &str, path: &str) -> Vec<String> {
    let addresses = list(object, pointer).iter().enumerate();
    let warnings = addresses.filter_map(|(index, item)| address(item, &format!("{path}[{index}].ip")));
    warnings.collect()
}

/// A warning about an address that is not canonical: a text, or in the field `ip`.
fn address(item: &Value, path: &str) -> Option<String> {
    let given = item.as_str().or_else(|| item["ip"].as_str())?;
    let address = canonical(given)?;
    Some(format!(
        "{path}: IPv6 address {given:?} should be in RFC 5952 canonical format ({address:?})"
    ))
}

/// A certificate or key that is not in PEM. Other errors of Go's `tls.X509KeyPair` are not implemented.
fn certificate(object: &Object) -> Option<String> {
    if text(object, "/type") != "kubernetes.io/tls" {
        return None;
    }
    let data = object::struct_at(object, "data");
    let is_pem = |key: &str| {
        let decoded = data
            .get(key)
            .and_then(Value::as_str)
            .map(|text| STANDARD.decode(text));
        let decoded = decoded.and_then(Result::ok).unwrap_or_default();
        String::from_utf8_lossy(&decoded).contains("-----BEGIN ")
    };
    let mut inputs = [("tls.crt", "certificate"), ("tls.key", "key")].into_iter();
    let (_, input) = inputs.find(|(key, _)| !is_pem(key))?;
    Some(format!("tls: failed to find any PEM data in {input} input"))
}

fn service_account(object: &Object) -> Vec<String> {
    let why = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";
    annotations(object, &[(ENFORCE_MOUNTABLE_SECRETS, why)])
}

fn csi_driver(object: &Object, old: Option<&Object>) -> Option<String> {
    let requests = |object| list(object, "/spec/tokenRequests");
    let is_old = old.is_some_and(|old| requests(old) == requests(object));
    if is_old || requests(object).is_empty() || has(object, "/spec/serviceAccountTokenInSecrets") {
        return None;
    }
    let warning = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent \
                   possible logging of tokens in volume attributes";
    Some(warning.to_owned())
}

/// Amounts of a claim that are no whole number of bytes.
fn claim_spec(owner: &Object, path: &str) -> Vec<String> {
    let amounts = ["requests", "limits"].into_iter().filter_map(|list| {
        let pointer = format!("/spec/resources/{list}/storage");
        fractional(owner, &pointer, &format!("{path}.resources.{list}[storage]"))
    });
    amounts.collect()
}

fn fractional(object: &Object, pointer: &str, field: &str) -> Option<String> {
    let value = text(object, pointer);
    let is_fractional = Quantity::parse(value).is_some_and(|amount| !amount.is_whole());
    is_fractional.then(|| format!("{field}: fractional byte value {value:?} is invalid, must be an integer"))
}
