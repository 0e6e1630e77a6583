//! Warnings about pods (`pkg/api/pod/warnings.go` of Kubernetes).

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::super::names;
use super::super::node_labels;
use super::super::object::{
    self, ANN_SECCOMP_CONTAINER_PREFIX, ANN_SECCOMP_POD, CONTAINER_LISTS, Object, at, entries, has, list,
    text,
};
use super::{address, annotations, claim_spec, fractional, node_selector_term, overlap, removed_volume};

const DEPRECATED_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];
/// Sources of volumes that only pods can have.
const DEPRECATED_VOLUMES: [(&str, &str); 3] = [
    (
        "gitRepo",
        "deprecated in v1.11, and disabled by default in v1.33+",
    ),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
];
const NULL_SELECTOR: &str = "labelSelector: a null labelSelector results in matching no pod";
/// Resources in bytes.
const BYTES: [&str; 2] = ["memory", "ephemeral-storage"];

/// Warnings about a new pod.
pub(super) fn warnings(pod: &Object) -> Vec<String> {
    let mut warnings = Vec::new();
    let found = names::dns1123_label(object::name(pod));
    if !found.is_empty() {
        warnings.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is \
             recommended: [{}]",
            found.join(" ")
        ));
    }
    let spec = object::struct_at(pod, "spec");
    node_labels_of(spec, &mut warnings);
    warnings.extend(annotations(pod, &DEPRECATED_ANNOTATIONS));
    for (index, volume) in list(spec, "/volumes").iter().enumerate() {
        volume_source(volume, &format!("spec.volumes[{index}]"), &mut warnings);
    }
    warnings.extend(overlap::warnings(list(spec, "/volumes")));
    duplicates(spec, "hostAliases", "ip", &mut warnings);
    duplicates(spec, "imagePullSecrets", "name", &mut warnings);
    for (index, secret) in list(spec, "/imagePullSecrets").iter().enumerate() {
        if secret["name"].as_str().unwrap_or_default().is_empty() {
            warnings.push(format!(
                "spec.imagePullSecrets[{index}].name: invalid empty name \"\""
            ));
        }
    }
    warnings.extend(BYTES.iter().filter_map(|resource| {
        fractional(
            spec,
            &format!("/overhead/{resource}"),
            &format!("spec.overhead[{resource}]"),
        )
    }));
    seccomp(pod, spec, ANN_SECCOMP_POD, &mut warnings);
    for (path, container) in containers(spec) {
        let key = format!("{ANN_SECCOMP_CONTAINER_PREFIX}{}", text(container, "/name"));
        seccomp(pod, container, &key, &mut warnings);
        for (resource, kind) in BYTES
            .iter()
            .flat_map(|resource| [(resource, "limits"), (resource, "requests")])
        {
            let pointer = format!("/resources/{kind}/{resource}");
            warnings.extend(fractional(
                container,
                &pointer,
                &format!("{path}.resources.{kind}[{resource}]"),
            ));
        }
        variables(container, &path, &mut warnings);
    }
    ports(spec, &mut warnings);
    null_selectors(spec, &mut warnings);
    for (index, server) in list(spec, "/dnsConfig/nameservers").iter().enumerate() {
        warnings.extend(address(server, &format!("spec.dnsConfig.nameservers[{index}]")));
    }
    for (index, alias) in list(spec, "/hostAliases").iter().enumerate() {
        warnings.extend(address(alias, &format!("spec.hostAliases[{index}].ip")));
    }
    warnings
}

/// The containers and their paths.
fn containers(spec: &Object) -> impl Iterator<Item = (String, &Object)> {
    CONTAINER_LISTS.into_iter().flat_map(move |name| {
        let containers = list(spec, &format!("/{name}")).iter().enumerate();
        containers.filter_map(move |(index, item)| Some((format!("spec.{name}[{index}]"), item.as_object()?)))
    })
}

/// Deprecated labels of nodes in the selector, the affinity and topology spread constraints.
fn node_labels_of(spec: &Object, warnings: &mut Vec<String>) {
    for (label, _) in entries(spec, "/nodeSelector") {
        let why = node_labels::deprecation(label);
        warnings.extend(why.map(|why| format!("spec.nodeSelector[{label}]: {why}")));
    }
    let required = "requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    for (field, is_preference) in [(required, false), (preferred, true)] {
        for (index, term) in list(spec, &format!("/affinity/nodeAffinity/{field}"))
            .iter()
            .enumerate()
        {
            let path = format!("spec.affinity.nodeAffinity.{}[{index}]", field.replace('/', "."));
            warnings.extend(if is_preference {
                node_selector_term(&term["preference"], &format!("{path}.preference"), true)
            } else {
                node_selector_term(term, &path, false)
            });
        }
    }
    for (index, constraint) in list(spec, "/topologySpreadConstraints").iter().enumerate() {
        let path = format!("spec.topologySpreadConstraints[{index}]");
        let key = constraint["topologyKey"].as_str().unwrap_or_default();
        let why = node_labels::deprecation(key);
        warnings.extend(why.map(|why| format!("{path}.topologyKey: {key} is {why}")));
        if constraint["labelSelector"].is_null() {
            warnings.push(format!("{path}.{NULL_SELECTOR}"));
        }
    }
}

fn volume_source(volume: &Value, path: &str, warnings: &mut Vec<String>) {
    for (field, why) in DEPRECATED_VOLUMES
        .iter()
        .filter(|(field, _)| volume[field].is_object())
    {
        warnings.push(format!("{path}.{field}: {why}"));
    }
    warnings.extend(removed_volume(volume, path));
    if let Value::Object(template) = &volume["ephemeral"]["volumeClaimTemplate"] {
        let path = format!("{path}.ephemeral.volumeClaimTemplate.spec");
        warnings.extend(claim_spec(template, &path));
    }
}

/// Items of a list with the same key.
fn duplicates(spec: &Object, field: &str, key: &str, warnings: &mut Vec<String>) {
    let mut seen = HashSet::new();
    for (index, item) in list(spec, &format!("/{field}")).iter().enumerate() {
        let value = item[key].as_str().unwrap_or_default();
        if !seen.insert(value) {
            warnings.push(format!("spec.{field}[{index}].{key}: duplicate {key} {value:?}"));
        }
    }
}

/// An annotation of seccomp without the field that replaces it.
fn seccomp(pod: &Object, owner: &Object, key: &str, warnings: &mut Vec<String>) {
    if !has(owner, "/securityContext/seccompProfile") {
        let why = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
        warnings.extend(annotations(pod, &[(key, why)]));
    }
}

/// Variables that hide an earlier one without referring to it.
fn variables(container: &Object, path: &str, warnings: &mut Vec<String>) {
    let mut seen = HashSet::new();
    for (index, variable) in list(container, "/env").iter().enumerate() {
        let [name, value] = ["name", "value"].map(|field| variable[field].as_str().unwrap_or_default());
        if seen.insert(name) {
            continue;
        }
        let reference = format!("$({name})");
        if !variable["valueFrom"].is_null() || value == reference || !value.contains(&reference) {
            warnings.push(format!(
                "{path}.env[{index}]: hides previous definition of {name:?}, which may be dropped when using apply"
            ));
        }
    }
}

/// Ports that are hard to tell apart.
fn ports(spec: &Object, warnings: &mut Vec<String>) {
    let ports: Vec<(String, &Map<String, Value>)> = containers(spec)
        .flat_map(|(path, container)| {
            let ports = list(container, "/ports").iter().enumerate();
            ports.filter_map(move |(index, port)| Some((format!("{path}.ports[{index}]"), port.as_object()?)))
        })
        .collect();
    let number = |port: &Object, field: &str| at(port, field).as_i64().unwrap_or_default();
    for (index, (path, port)) in ports.iter().enumerate() {
        let (host_ip, host_port) = (text(port, "/hostIP"), number(port, "/hostPort"));
        let (container_port, protocol) = (number(port, "/containerPort"), text(port, "/protocol"));
        if !host_ip.is_empty() && host_port == 0 {
            let name = text(port, "/name");
            warnings.push(format!(
                "{path}: hostIP set without hostPort: {{Name:{name} HostPort:0 ContainerPort:{container_port} \
                 Protocol:{protocol} HostIP:{host_ip}}}"
            ));
        }
        for (other_path, other) in &ports[..index] {
            if number(other, "/containerPort") != container_port || text(other, "/protocol") != protocol {
                continue;
            }
            let (other_ip, other_port) = (text(other, "/hostIP"), number(other, "/hostPort"));
            let is_same_port = host_port == other_port;
            let what = if is_same_port && host_ip == other_ip {
                "duplicate"
            } else if host_port == 0 || other_port == 0 {
                "overlapping"
            } else if is_same_port && host_ip.is_empty() != other_ip.is_empty() {
                "dangerously ambiguous"
            } else {
                continue;
            };
            warnings.push(format!("{path}: {what} port definition with {other_path}"));
        }
    }
    let mut named: HashMap<&str, &str> = HashMap::new();
    for (path, port) in &ports {
        let name = text(port, "/name");
        if name.is_empty() {
            continue;
        }
        if let Some(other) = named.get(name) {
            warnings.push(format!(
                "{path}: duplicate port name {name:?} with {other}, services and probes that select ports by name will use \
                 {other}"
            ));
        } else {
            named.insert(name, path);
        }
    }
}

/// Terms of the affinity between pods without a selector.
fn null_selectors(spec: &Object, warnings: &mut Vec<String>) {
    for affinity in ["podAffinity", "podAntiAffinity"] {
        for (kind, pointer, path) in [
            ("required", "/labelSelector", ""),
            ("preferred", "/podAffinityTerm/labelSelector", "podAffinityTerm."),
        ] {
            let field = format!("{kind}DuringSchedulingIgnoredDuringExecution");
            for (index, term) in list(spec, &format!("/affinity/{affinity}/{field}"))
                .iter()
                .enumerate()
            {
                if term.pointer(pointer).is_none_or(Value::is_null) {
                    warnings.push(format!(
                        "spec.affinity.{affinity}.{field}[{index}].{path}{NULL_SELECTOR}"
                    ));
                }
            }
        }
    }
}
