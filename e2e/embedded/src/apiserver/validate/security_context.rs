//! Validation of the security contexts of pods and containers.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::super::field::FieldError;
use super::super::object::{self, Object};
use super::container::descending_path;
use super::fields::Fields;
use super::{LOCALHOST_PROFILE, app_armor, windows};

/// Maximum length of a sysctl's name.
const SYSCTL_LIMIT: usize = 253;
const ID_RANGE: &str = "must be between 0 and 2147483647, inclusive";
/// The sysctls of IPC namespaces without a common prefix.
const IPC_SYSCTLS: [&str; 10] = [
    "kernel.sem",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
    "kernel.shm",
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.msg",
];

/// The security context of a pod; `old` is the pod that it replaces.
pub(super) fn of_pod(spec: &Fields<'_>, old: Option<&Object>) {
    let context = &spec.child("securityContext");
    ids(context, &["fsGroup", "runAsUser", "runAsGroup"]);
    supplemental_groups(context);
    if spec.get("shareProcessNamespace") == true && spec.get("hostPID") == true {
        let why = "ShareProcessNamespace and HostPID cannot both be enabled";
        context.invalid("shareProcessNamespace", true, why);
    }
    sysctls(spec, context);
    if context.has("fsGroupChangePolicy") {
        context.one_of("fsGroupChangePolicy", &["Always", "OnRootMismatch"]);
    }
    seccomp_profile(context);
    windows::options(context);
    app_armor::profile(context);
    if context.has("supplementalGroupsPolicy") {
        context.one_of("supplementalGroupsPolicy", &["Merge", "Strict"]);
    }
    if context.has("seLinuxChangePolicy") {
        // The feature gate SELinuxMount is off.
        let field = "/spec/securityContext/seLinuxChangePolicy";
        let supported: &[&str] = match old {
            Some(old) if object::has(old, field) => &["MountOption", "Recursive"],
            _ => &["Recursive"],
        };
        context.one_of("seLinuxChangePolicy", supported);
    }
}

/// The security context of a container.
pub(super) fn of_container(container: &Fields<'_>, host_users: bool) {
    let context = &container.child("securityContext");
    ids(context, &["runAsUser", "runAsGroup"]);
    if context.has("procMount") {
        context.one_of("procMount", &["Default", "Unmasked"]);
        if host_users && context.text("procMount") == "Unmasked" {
            let why = "`hostUsers` must be false to use `Unmasked`";
            context.invalid("procMount", "Unmasked", why);
        }
    }
    seccomp_profile(context);
    if context.get("allowPrivilegeEscalation") == false {
        let conflict = |with: &str| {
            let why = format!("cannot set `allowPrivilegeEscalation` to false and {with}");
            context.push(FieldError::invalid(context.own_path(), shown(context), why));
        };
        if context.get("privileged") == true {
            conflict("`privileged` to true");
        }
        let capabilities = context.child("capabilities");
        for _ in capabilities.texts("add").filter(|name| *name == "CAP_SYS_ADMIN") {
            conflict("`capabilities.Add` CAP_SYS_ADMIN");
        }
    }
    windows::options(context);
    app_armor::profile(context);
}

pub(super) fn supplemental_groups(context: &Fields<'_>) {
    for (index, group) in context.list("supplementalGroups").iter().enumerate() {
        if !group.as_i64().is_some_and(is_valid_id) {
            let path = context.path("supplementalGroups").index(index);
            context.push(FieldError::invalid(&path, group.clone(), ID_RANGE));
        }
    }
}

fn is_valid_id(id: i64) -> bool {
    (0..=i64::from(i32::MAX)).contains(&id)
}

/// IDs of users and groups.
pub(super) fn ids(context: &Fields<'_>, fields: &[&str]) {
    for name in fields {
        context.in_range(name, 0..=i64::from(i32::MAX), ID_RANGE);
    }
}

fn sysctls(spec: &Fields<'_>, context: &Fields<'_>) {
    let mut seen = HashSet::new();
    for sysctl in context.structs("sysctls") {
        let name = sysctl.text("name");
        if name.is_empty() {
            sysctl.required("name", "");
        } else if !is_sysctl_name(name) {
            let why = format!(
                "must have at most {SYSCTL_LIMIT} characters and match regex \
                 ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
            );
            sysctl.invalid("name", name, why);
        } else if seen.contains(name) {
            sysctl.duplicate("name", name);
        }
        seen.insert(name);
        let dotted = dotted(name);
        let is_ipc = IPC_SYSCTLS.contains(&dotted.as_str()) || dotted.starts_with("fs.mqueue.");
        if spec.get("hostNetwork") == true && dotted.starts_with("net.") {
            sysctl.invalid("name", name, "may not be specified when 'hostNetwork' is true");
        } else if spec.get("hostIPC") == true && is_ipc {
            sysctl.invalid("name", name, "may not be specified when 'hostIPC' is true");
        }
    }
}

fn is_sysctl_name(name: &str) -> bool {
    let is_edge = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_segment = |segment: &str| {
        let bytes = segment.as_bytes();
        bytes.first().is_some_and(is_edge)
            && bytes.last().is_some_and(is_edge)
            && bytes
                .iter()
                .all(|byte| is_edge(byte) || matches!(byte, b'-' | b'_'))
    };
    name.len() <= SYSCTL_LIMIT && name.split(['.', '/']).all(is_segment)
}

/// A sysctl's name with dots as separators; with slashes, dots are part of its segments.
fn dotted(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name.as_bytes()[at] == b'/' => {
            let swapped = name.chars().map(|letter| match letter {
                '/' => '.',
                '.' => '/',
                other => other,
            });
            swapped.collect()
        }
        _ => name.to_owned(),
    }
}

fn seccomp_profile(context: &Fields<'_>) {
    let Some(profile) = context.given("seccompProfile") else {
        return;
    };
    match profile.text("type") {
        "" => profile.required("type", "type is required when seccompProfile is set"),
        _ => profile.one_of("type", &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
    let has_path = profile.has(LOCALHOST_PROFILE);
    match profile.text("type") {
        "Localhost" if has_path => descending_path(&profile, LOCALHOST_PROFILE),
        "Localhost" => {
            let why = "must be set when seccomp type is Localhost";
            profile.required(LOCALHOST_PROFILE, why);
        }
        _ if has_path => {
            let why = "can only be set when seccomp type is Localhost";
            profile.invalid(LOCALHOST_PROFILE, shown_profile(&profile), why);
        }
        _ => {}
    }
}

fn shown_profile(profile: &Fields<'_>) -> Value {
    json!({ "Type": profile.text("type"), "LocalhostProfile": profile.get(LOCALHOST_PROFILE) })
}

/// A container's security context as errors show it: as Go's internal type.
fn shown(context: &Fields<'_>) -> Value {
    let given =
        |name: &str, show: &dyn Fn(Fields<'_>) -> Value| context.given(name).map_or(Value::Null, show);
    let optional = |fields: &Fields<'_>, names: &[(&str, &str)]| -> Value {
        let entries = names
            .iter()
            .map(|(shown, name)| ((*shown).to_owned(), fields.get(name).clone()));
        Value::Object(entries.collect::<Map<_, _>>())
    };
    let windows = [
        ("GMSACredentialSpecName", "gmsaCredentialSpecName"),
        ("GMSACredentialSpec", "gmsaCredentialSpec"),
        ("RunAsUserName", "runAsUserName"),
        ("HostProcess", "hostProcess"),
    ];
    json!({
        "Capabilities": given("capabilities", &|fields| optional(&fields, &[("Add", "add"), ("Drop", "drop")])),
        "Privileged": context.get("privileged"),
        "SELinuxOptions": given("seLinuxOptions", &|fields| json!({
            "User": fields.text("user"),
            "Role": fields.text("role"),
            "Type": fields.text("type"),
            "Level": fields.text("level"),
        })),
        "WindowsOptions": given("windowsOptions", &|fields| optional(&fields, &windows)),
        "RunAsUser": context.get("runAsUser"),
        "RunAsGroup": context.get("runAsGroup"),
        "RunAsNonRoot": context.get("runAsNonRoot"),
        "ReadOnlyRootFilesystem": context.get("readOnlyRootFilesystem"),
        "AllowPrivilegeEscalation": context.get("allowPrivilegeEscalation"),
        "ProcMount": context.get("procMount"),
        "SeccompProfile": given("seccompProfile", &|fields| shown_profile(&fields)),
        "AppArmorProfile": given("appArmorProfile", &|fields| shown_profile(&fields)),
    })
}
