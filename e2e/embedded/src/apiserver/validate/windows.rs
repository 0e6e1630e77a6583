//! Validation of Windows options and of the fields that depend on a pod's operating system.

use super::super::field::FieldError;
use super::super::names;
use super::all_containers;
use super::fields::Fields;

/// Maximum size of a GMSA credential spec in bytes.
const CREDENTIAL_SPEC_LIMIT: usize = 64 * 1024;
const DOMAIN_LIMIT: usize = 256;
const USER_LIMIT: usize = 104;
/// Characters that the NetBIOS name of a domain must not contain.
const NOT_IN_DOMAINS: &str = "\\/:*?\"<>|";
const NOT_IN_USERS: &str = "\"/\\:;|=,+*?<>@[]";
const OPTIONS: &str = "windowsOptions";

/// Fields that a Windows pod must not set in the order of validation, and whether they are in the security context.
const POD_FIELDS: [(&str, bool); 15] = [
    ("appArmorProfile", true),
    ("seLinuxOptions", true),
    ("hostUsers", false),
    ("hostPID", false),
    ("hostIPC", false),
    ("seccompProfile", true),
    ("fsGroup", true),
    ("fsGroupChangePolicy", true),
    ("sysctls", true),
    ("shareProcessNamespace", false),
    ("runAsUser", true),
    ("runAsGroup", true),
    ("supplementalGroups", true),
    ("supplementalGroupsPolicy", true),
    ("seLinuxChangePolicy", true),
];
/// Fields of the security context that a Windows container must not set.
const CONTAINER_FIELDS: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// The Windows options in a security context.
pub(super) fn options(context: &Fields<'_>) {
    let Some(options) = context.given(OPTIONS) else {
        return;
    };
    let [name, spec, user] = ["gmsaCredentialSpecName", "gmsaCredentialSpec", "runAsUserName"];
    if options.has(name) {
        options.check(name, names::dns1123_subdomain);
    }
    if options.has(spec) {
        match options.text(spec).len() {
            0 => options.invalid(spec, "", "gmsaCredentialSpec cannot be an empty string"),
            1..=CREDENTIAL_SPEC_LIMIT => {}
            _ => {
                let why = "gmsaCredentialSpec size must be under 64 KiB";
                options.invalid(spec, options.text(spec), why);
            }
        }
    }
    if options.has(user) {
        options.check(user, user_name);
    }
}

/// A user's name with an optional domain before a backslash.
fn user_name(name: &str) -> Vec<String> {
    let (domain, user) = match name.split_once('\\') {
        Some((domain, user)) => (Some(domain), user),
        None => (None, name),
    };
    let refused = if name.is_empty() {
        "cannot be an empty string"
    } else if name.bytes().any(|byte| byte.is_ascii_control()) {
        "cannot contain control characters"
    } else if user.contains('\\') {
        "cannot contain more than one backslash"
    } else {
        ""
    };
    if !refused.is_empty() {
        return vec![format!("runAsUserName {refused}")];
    }
    let mut errors = Vec::new();
    if let Some(domain) = domain {
        if domain.len() >= DOMAIN_LIMIT {
            errors.push(format!("Domain length must be under {DOMAIN_LIMIT} characters"));
        }
        if !is_net_bios_name(domain) && !domain.split('.').all(is_dns_label) {
            errors.push("Domain doesn't match the NetBios nor the DNS format".to_owned());
        }
    }
    if user.is_empty() {
        errors.push("User cannot be empty".to_owned());
    } else if user.len() > USER_LIMIT {
        errors.push(format!(
            "User length must not be longer than {USER_LIMIT} characters"
        ));
    }
    if !user.is_empty() && user.trim_start_matches(['.', ' ']).is_empty() {
        errors.push("User cannot contain only periods or spaces".to_owned());
    }
    if user.contains(|letter: char| NOT_IN_USERS.contains(letter)) {
        errors.push("User cannot contain the following characters: \"/\\:;|=,+*?<>@[]".to_owned());
    }
    let of_field = |why: String| format!("runAsUserName's {why}");
    errors.into_iter().map(of_field).collect()
}

fn is_net_bios_name(domain: &str) -> bool {
    (1..=15).contains(&domain.chars().count())
        && !domain.starts_with('.')
        && !domain.contains(|letter: char| NOT_IN_DOMAINS.contains(letter))
}

fn is_dns_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn options_of<'a>(owner: &Fields<'a>) -> Fields<'a> {
    owner.child("securityContext").child(OPTIONS)
}

/// Containers that run as processes of the host: all or none.
pub(super) fn host_process(spec: &Fields<'_>) {
    let of_pod = options_of(spec).get("hostProcess").as_bool();
    let (mut containers, mut on_host) = (0, 0);
    for container in all_containers(spec) {
        let own = options_of(&container).get("hostProcess").as_bool();
        if let (Some(of_pod), Some(own)) = (of_pod, own)
            && of_pod != own
        {
            let why = format!("pod hostProcess value must be identical if both are specified, was {of_pod}");
            options_of(&container).invalid("hostProcess", own, why);
        }
        containers += 1;
        on_host += usize::from(own.or(of_pod) == Some(true));
    }
    if on_host == 0 {
        return;
    }
    if on_host != containers {
        let why =
            "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        spec.push(FieldError::invalid(spec.own_path(), "", why));
    }
    if spec.get("hostNetwork") != true {
        let why = "hostNetwork must be true if pod contains any hostProcess containers";
        spec.invalid("hostNetwork", false, why);
    }
}

/// The fields that a pod must not set because of its operating system.
pub(super) fn operating_system(spec: &Fields<'_>) {
    let Some(os) = spec.given("os") else {
        return;
    };
    match os.text("name") {
        "" => os.required("name", ""),
        "linux" => linux(spec),
        "windows" => windows(spec),
        other => {
            let error = FieldError::not_supported(os.own_path(), other, &["linux", "windows"]);
            os.push(error);
        }
    }
}

fn linux(spec: &Fields<'_>) {
    for owner in std::iter::once(spec.clone()).chain(all_containers(spec)) {
        let context = owner.child("securityContext");
        if context.has(OPTIONS) {
            context.forbidden(OPTIONS, "windows options cannot be set for a linux pod");
        }
    }
}

fn windows(spec: &Fields<'_>) {
    let forbid = |owner: &Fields<'_>, field: &str| {
        if owner.has(field) {
            owner.forbidden(field, "cannot be set for a windows pod");
        }
    };
    let context = spec.child("securityContext");
    for (field, is_in_context) in POD_FIELDS {
        forbid(if is_in_context { &context } else { spec }, field);
    }
    for container in all_containers(spec) {
        let context = container.child("securityContext");
        for field in CONTAINER_FIELDS {
            forbid(&context, field);
        }
    }
}

/// The fields that a pod in a user namespace of its own must not set.
pub(super) fn host_users(spec: &Fields<'_>) {
    const WHY: &str = "when `hostUsers` is false";
    if spec.get("hostUsers") != false {
        return;
    }
    // As in kube-apiserver, two of the paths have the names of the Go fields.
    for (field, path) in [
        ("hostNetwork", "hostNetwork"),
        ("hostPID", "HostPID"),
        ("hostIPC", "HostIPC"),
    ] {
        if spec.get(field) == true {
            spec.forbidden(path, WHY);
        }
    }
    for container in all_containers(spec) {
        if !container.list("volumeDevices").is_empty() {
            container.forbidden("volumeDevices", WHY);
        }
    }
}
