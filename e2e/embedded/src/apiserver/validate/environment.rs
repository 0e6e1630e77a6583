//! Validation of a container's environment variables.

use super::super::field::FieldError;
use super::super::names;
use super::all_containers;
use super::fields::Fields;
use super::volume_source::no_backsteps;

/// Pod fields that an environment variable may reference.
const POD_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Other pod fields of the downward API.
const OTHER_POD_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "spec.restartPolicy",
    "spec.schedulerName",
    "status.phase",
];
/// Pod fields that a file of a volume may contain.
pub(super) const VOLUME_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// Validates a source of a variable's value.
type Check = fn(&Fields<'_>);

pub(super) fn variables(container: &Fields<'_>) {
    for variable in container.structs("env") {
        variable.check_required("name", names::variable);
        if let Some(source) = variable.given("valueFrom") {
            value_from(&source, variable.text("value"));
        }
    }
    for source in container.structs("envFrom") {
        env_from(container, &source);
    }
}

fn env_from(container: &Fields<'_>, source: &Fields<'_>) {
    source.check_given("prefix", names::variable);
    let mut sources = 0;
    for reference in ["configMapRef", "secretRef"]
        .into_iter()
        .filter_map(|kind| source.given(kind))
    {
        sources += 1;
        reference.check_required("name", |name| names::subdomain_name(name, true));
    }
    let why = match sources {
        0 => "must specify one of: `configMapRef` or `secretRef`",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    // The path of Kubernetes has no index.
    container.invalid("envFrom", "", why);
}

fn value_from(source: &Fields<'_>, value: &str) {
    let checks: [(&str, Check); 5] = [
        ("fieldRef", |reference| field_ref(reference, &POD_FIELDS)),
        ("resourceFieldRef", resource_field_ref),
        ("configMapKeyRef", key_ref),
        ("secretKeyRef", key_ref),
        ("fileKeyRef", file_key_ref),
    ];
    let mut sources = 0;
    for (name, check) in checks {
        if let Some(given) = source.given(name) {
            sources += 1;
            check(&given);
        }
    }
    let why = match sources {
        0 => {
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        }
        _ if !value.is_empty() => "may not be specified when `value` is not empty",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    source.push(FieldError::invalid(source.own_path(), "", why));
}

/// A reference to one of these fields of the pod.
pub(super) fn field_ref(reference: &Fields<'_>, fields: &[&str]) {
    let (version, path) = (reference.require("apiVersion"), reference.text("fieldPath"));
    if version.is_empty() {
        return;
    }
    if reference.require("fieldPath").is_empty() {
        return;
    }
    let failed = |why: String| {
        reference.invalid("fieldPath", path, format!("error converting fieldPath: {why}"));
    };
    if version != "v1" {
        return failed(format!("unsupported pod version: {version}"));
    }
    let subscript = path.strip_suffix("']").and_then(|path| path.split_once("['"));
    let subscript = subscript.filter(|(field, _)| !field.is_empty());
    match subscript {
        Some(("metadata.annotations", key)) => {
            let own =
                |why| reference.push(FieldError::invalid(reference.own_path(), key.to_lowercase(), why));
            names::qualified(&key.to_lowercase()).into_iter().for_each(own);
        }
        Some(("metadata.labels", key)) => {
            let own = |why| reference.push(FieldError::invalid(reference.own_path(), key, why));
            names::qualified(key).into_iter().for_each(own);
        }
        Some(_) => failed(format!("field label does not support subscript: {path}")),
        None if path == "spec.host" => reference.supported("fieldPath", "spec.nodeName", fields),
        None if POD_FIELDS.contains(&path) || OTHER_POD_FIELDS.contains(&path) => {
            reference.supported("fieldPath", path, fields);
        }
        None => failed(format!("field label not supported: {path}")),
    }
}

/// A reference to the resources of another container.
pub(super) fn resource_field_ref_of_volume(reference: &Fields<'_>) {
    if reference.require("containerName").is_empty() {
        divisor(reference, reference.text("resource"));
    } else {
        resource_field_ref(reference);
    }
}

fn resource_field_ref(reference: &Fields<'_>) {
    let resource = reference.require("resource");
    let is_huge_page =
        resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
    if !resource.is_empty() && !is_huge_page {
        reference.supported("resource", resource, &RESOURCES);
    }
    divisor(reference, resource);
}

/// The divisor of the value: a power of ten or two; for CPU, 1 or 1m.
fn divisor(reference: &Fields<'_>, resource: &str) {
    let divisor = reference.text("divisor");
    if matches!(divisor, "" | "0") {
        return;
    }
    let what = match resource.split_once('.').map_or("", |(_, name)| name) {
        "cpu" if matches!(divisor, "1" | "1m") => return,
        "cpu" => {
            let why = "only divisor's values 1m and 1 are supported with the cpu resource";
            return reference.invalid("divisor", resource, why);
        }
        "memory" => "memory",
        "ephemeral-storage" => "local ephemeral storage",
        name if name.starts_with("hugepages-") => "hugepages",
        _ => return,
    };
    let units = [
        "", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
    ];
    if !divisor
        .strip_prefix('1')
        .is_some_and(|unit| units.contains(&unit))
    {
        let units = "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei";
        let why = format!("only divisor's values {units} are supported with the {what} resource");
        reference.invalid("divisor", resource, why);
    }
}

/// The key of a Secret or ConfigMap.
fn key_ref(reference: &Fields<'_>) {
    reference.check("name", names::dns1123_subdomain);
    reference.check_required("key", names::config_map_key);
}

fn file_key_ref(reference: &Fields<'_>) {
    reference.check_required("key", names::variable);
    reference.check_required("volumeName", names::dns1123_label);
    reference.require("path");
    no_backsteps(reference, "path");
}

/// Files with variables must be in volumes of type `emptyDir`.
pub(super) fn file_key_ref_volumes(spec: &Fields<'_>) {
    for variable in all_containers(spec).flat_map(|container| container.structs("env")) {
        let Some(reference) = variable.child("valueFrom").given("fileKeyRef") else {
            continue;
        };
        let name = reference.text("volumeName");
        let volumes = spec
            .structs("volumes")
            .filter(|volume| volume.text("name") == name);
        match volumes.last() {
            None => reference.push(FieldError::not_found(&reference.path("volumeName"), name)),
            Some(volume) if volume.has("emptyDir") => {}
            Some(_) => reference.invalid("volumeName", name, "referenced volume must be of type emptyDir"),
        }
    }
}
