//! Validation of the volume sources that both pods and PersistentVolumes can have.

use serde_json::json;

use super::super::field::FieldError;
use super::super::names;
use super::container::descending_path;
use super::fields::Fields;

const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];
/// Maximum length of an iSCSI initiator's target portal with the volume's name.
const ISCSI_LIMIT: usize = 64;
pub(super) const ISCSI_TOO_LONG: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
                                         iscsi.initiatorName is specified.";
const QUOBYTE_REGISTRY: &str = "must be a host:port pair or multiple pairs separated by commas";
const QUOBYTE_TENANT_LIMIT: usize = 64;

/// Validates the source of a volume: the first one in this order of kinds; others are forbidden, except `flexVolume` in a
/// PersistentVolume.
pub(super) fn only_one(
    volume: &Fields<'_>,
    kinds: &[&'static str],
    in_pod: bool,
    mut validate: impl FnMut(&'static str, &Fields<'_>),
) {
    const WHY: &str = "may not specify more than 1 volume type";
    let mut is_first = true;
    for kind in kinds.iter().copied().filter(|kind| volume.has(kind)) {
        // Kubernetes names these fields differently in its errors; `downwarAPI` is its typo.
        match kind {
            _ if is_first || kind == "flexVolume" && !in_pod => {
                let path = if kind == "gcePersistentDisk" {
                    "persistentDisk"
                } else {
                    kind
                };
                validate(kind, &volume.child(kind).at_path(volume.path(path)));
            }
            "cephfs" => volume.forbidden("cephFS", WHY),
            "downwardAPI" => volume.forbidden("downwarAPI", WHY),
            _ => volume.forbidden(kind, WHY),
        }
        is_first = false;
    }
    if is_first {
        let why = "must specify a volume type";
        volume.push(FieldError::required(volume.own_path(), why));
    }
}

/// Validates a source of this kind; `pv` is the name of the PersistentVolume, or `None` in a pod.
pub(super) fn validate(kind: &str, source: &Fields<'_>, pv: Option<&str>) {
    let require = |fields: &[&str]| {
        for field in fields {
            if source.text(field).is_empty() && source.list(field).is_empty() {
                source.required(field, "");
            }
        }
    };
    let partition = || source.in_range("partition", 0..=255, "must be between 1 and 255, inclusive");
    match kind {
        "awsElasticBlockStore" => {
            require(&["volumeID"]);
            partition();
        }
        "azureDisk" => {
            require(&["diskName", "diskURI"]);
            azure_disk(source);
        }
        "azureFile" => {
            require(&["secretName", "shareName"]);
            if source.has("secretNamespace") {
                source.require("secretNamespace");
            }
        }
        "cephfs" => require(&["monitors"]),
        "cinder" => {
            require(&["volumeID"]);
            secret_ref(source, pv);
        }
        "fc" => fibre_channel(source),
        "flexVolume" => {
            require(&["driver"]);
            flex_options(source);
        }
        "flocker" => flocker(source),
        "gcePersistentDisk" => {
            require(&["pdName"]);
            partition();
        }
        "gitRepo" => {
            require(&["repository"]);
            descending_path(source, "directory");
        }
        "glusterfs" => {
            require(&["endpoints", "path"]);
            glusterfs_namespace(source);
        }
        "hostPath" => host_path(source),
        "iscsi" => iscsi(source, pv),
        "nfs" => {
            require(&["server", "path"]);
            if !source.text("path").starts_with('/') {
                source.invalid("path", source.text("path"), "must be an absolute path");
            }
        }
        "persistentVolumeClaim" => require(&["claimName"]),
        "photonPersistentDisk" => require(&["pdID"]),
        "portworxVolume" => require(&["volumeID"]),
        "quobyte" => quobyte(source),
        "rbd" => require(&["monitors", "image"]),
        "scaleIO" => require(&["gateway", "system", "volumeName"]),
        "storageos" => {
            source.check_required("volumeName", names::dns1123_label);
            source.check_given("volumeNamespace", names::dns1123_label);
            secret_ref(source, pv);
        }
        "vsphereVolume" => require(&["volumePath"]),
        _ => {}
    }
}

/// A Secret, in a pod that of its namespace.
fn secret_ref(source: &Fields<'_>, pv: Option<&str>) {
    if let Some(secret) = source.given("secretRef") {
        secret.require("name");
        if pv.is_some() {
            secret.require("namespace");
        }
    }
}

/// Path and type of a directory or file of the node.
fn host_path(source: &Fields<'_>) {
    if !source.require("path").is_empty() {
        no_backsteps(source, "path");
        source.one_of("type", &HOST_PATH_TYPES);
    }
}

pub(super) fn no_backsteps(source: &Fields<'_>, field: &str) {
    let path = source.text(field);
    if path.split('/').any(|part| part == "..") {
        source.invalid(field, path, "must not contain '..'");
    }
}

fn azure_disk(source: &Fields<'_>) {
    source.one_of("cachingMode", &["None", "ReadOnly", "ReadWrite"]);
    source.one_of("kind", &["Dedicated", "Managed", "Shared"]);
    let (prefix, form) = if source.text("kind") == "Managed" {
        let form =
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
        ("/subscriptions/", form)
    } else {
        let form = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
        ("https://", form)
    };
    if !source.text("diskURI").starts_with(prefix) {
        source.one_of("diskURI", &[form]);
    }
}

fn fibre_channel(source: &Fields<'_>) {
    let names = source.list("targetWWNs");
    match (names.is_empty(), source.list("wwids").is_empty()) {
        (true, true) => {
            let why = "must specify either targetWWNs or wwids, but not both";
            source.required("targetWWNs", why);
        }
        (false, false) => {
            let why = "targetWWNs and wwids can not be specified simultaneously";
            source.invalid("targetWWNs", json!(names), why);
        }
        _ => {}
    }
    if names.is_empty() {
        return;
    }
    if source.has("lun") {
        lun(source);
    } else {
        source.required("lun", "lun is required if targetWWNs is specified");
    }
}

fn lun(source: &Fields<'_>) {
    source.in_range("lun", 0..=255, "must be between 0 and 255, inclusive");
}

fn flex_options(source: &Fields<'_>) {
    for (key, _) in source.entries("options") {
        let namespace = key.split('/').next().unwrap_or_default();
        let namespace = format!(".{}", namespace.to_lowercase());
        if namespace.ends_with(".kubernetes.io") || namespace.ends_with(".k8s.io") {
            let why = "kubernetes.io and k8s.io namespaces are reserved";
            let path = source.path("options").key(key);
            source.push(FieldError::invalid(&path, key.as_str(), why));
        }
    }
}

fn flocker(source: &Fields<'_>) {
    let [name, uuid] = ["datasetName", "datasetUUID"].map(|field| source.text(field));
    if name.is_empty() && uuid.is_empty() {
        let why = "one of datasetName and datasetUUID is required";
        source.push(FieldError::required(source.own_path(), why));
    }
    if !name.is_empty() && !uuid.is_empty() {
        let why = "datasetName and datasetUUID can not be specified simultaneously";
        source.push(FieldError::invalid(source.own_path(), "resource", why));
    }
    if name.contains('/') {
        source.invalid("datasetName", name, "must not contain '/'");
    }
}

fn glusterfs_namespace(source: &Fields<'_>) {
    let field = "endpointsNamespace";
    source.check_given(field, names::dns1123_label);
    if source.get(field) == "" {
        let why = "if the endpointnamespace is set, it must be a valid namespace name";
        source.invalid(field, "", why);
    }
}

fn quobyte(source: &Fields<'_>) {
    let registry = source.text("registry");
    if registry.is_empty() {
        source.required("registry", QUOBYTE_REGISTRY);
    } else if source.text("tenant").len() > QUOBYTE_TENANT_LIMIT {
        let why = "must be a UUID and may not exceed a length of 64 characters";
        source.required("tenant", why);
    } else {
        for _ in registry.split(',').filter(|pair| !is_host_and_port(pair)) {
            source.invalid("registry", registry, QUOBYTE_REGISTRY);
        }
    }
    source.require("volume");
}

/// Whether Go's `net.SplitHostPort` splits the text.
fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = in_brackets.is_some() || !host.contains(':');
    is_host && !in_brackets.unwrap_or(host).contains(['[', ']']) && !port.contains(['[', ']'])
}

fn iscsi(source: &Fields<'_>, pv: Option<&str>) {
    let portal = source.require("targetPortal");
    if pv.is_some_and(|name| is_iscsi_too_long(source, name)) {
        source.invalid("targetportal", portal, ISCSI_TOO_LONG);
    }
    if !source.require("iqn").is_empty() {
        iscsi_name(source, "iqn", "iqn", pv);
    }
    lun(source);
    let needs_secret = ["chapAuthDiscovery", "chapAuthSession"].map(|field| source.get(field) == true);
    match source.given("secretRef") {
        Some(secret) if pv.is_some() => {
            secret.require("name");
        }
        None if needs_secret.contains(&true) => source.required("secretRef", ""),
        _ => {}
    }
    if source.has("initiatorName") {
        iscsi_name(source, "initiatorName", "initiatorname", pv);
    }
}

/// Whether the initiator's interface would get a name that is too long.
pub(super) fn is_iscsi_too_long(source: &Fields<'_>, volume: &str) -> bool {
    let length = volume.len() + 1 + source.text("targetPortal").len();
    source.has("initiatorName") && length > ISCSI_LIMIT
}

fn iscsi_name(source: &Fields<'_>, field: &str, shown: &str, pv: Option<&str>) {
    let name = source.text(field);
    let why = match (has_iscsi_format(name), pv) {
        (Some(true), _) => return,
        (None, None) => "must be valid format starting with iqn, eui, or naa",
        _ => "must be valid format",
    };
    source.invalid(shown, name, why);
}

/// Whether the name has the format of its prefix; `None` if the prefix is unknown.
fn has_iscsi_format(name: &str) -> Option<bool> {
    // The dot in Kubernetes' regular expressions matches any character.
    let is_identifier = |rest: &str, length| {
        let mut letters = rest.chars();
        letters.next().is_some()
            && letters.as_str().len() == length
            && letters.all(|letter| letter.is_ascii_alphanumeric())
    };
    let (prefix, rest) = name.split_at_checked(3)?;
    match prefix {
        // Kubernetes' regular expression may match a later part.
        "iqn" => Some(
            name.match_indices("iqn.")
                .any(|(at, iqn)| is_after_iqn(&name[at + iqn.len()..])),
        ),
        "eui" => Some(is_identifier(rest, 16)),
        "naa" => Some(is_identifier(rest, 32)),
        _ => None,
    }
}

/// Year and month, a domain, and a colon with a unique name.
fn is_after_iqn(rest: &str) -> bool {
    let Some((date, rest)) = rest.split_once('.') else {
        return false;
    };
    let is_date = date.len() == 7
        && date.bytes().enumerate().all(|(at, byte)| match at {
            4 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    let in_domain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    rest.split_once(':').is_some_and(|(domain, name)| {
        is_date
            && !domain.is_empty()
            && domain.bytes().all(in_domain)
            && !name.is_empty()
            && !name.contains(|letter: char| ",;*&$|".contains(letter) || letter.is_ascii_whitespace())
    })
}
