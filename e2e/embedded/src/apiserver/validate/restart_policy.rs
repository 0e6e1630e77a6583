//! Validation of how containers restart: when they exit, and when their resources are resized.

use std::collections::HashSet;

use super::super::field::FieldError;
use super::fields::Fields;

const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const RULES: &str = "restartPolicyRules";

pub(super) fn of_container(container: &Fields<'_>) {
    let rules = container.list(RULES).len();
    if container.has("restartPolicy") {
        container.one_of("restartPolicy", &["Always", "Never", "OnFailure"]);
    } else if rules > 0 {
        rules_without_policy(container);
    }
    if rules > MAX_RULES {
        let error = FieldError::too_many(&container.path(RULES), rules, MAX_RULES);
        container.push(error);
    }
    for rule in container.structs(RULES) {
        rule.one_of("action", &["Restart", "RestartAllContainers"]);
        let Some(exit_codes) = rule.given("exitCodes") else {
            rule.required("exitCodes", "must be specified");
            continue;
        };
        exit_codes.one_of("operator", &["In", "NotIn"]);
        let values = exit_codes.list("values").len();
        if values > MAX_EXIT_CODES {
            let error = FieldError::too_many(&exit_codes.path("values"), values, MAX_EXIT_CODES);
            exit_codes.push(error);
        }
    }
}

/// As upstream, rules without a policy are not validated.
pub(super) fn of_init_container(container: &Fields<'_>) {
    if container.has("restartPolicy") {
        of_container(container);
    } else if !container.list(RULES).is_empty() {
        rules_without_policy(container);
    }
}

fn rules_without_policy(container: &Fields<'_>) {
    let why = "must specify restartPolicy when restart rules are used";
    container.required("restartPolicy", why);
}

/// Whether the resize of a resource restarts the container; as upstream, most errors' paths do not name the entry.
pub(super) fn resize_policy(container: &Fields<'_>, pod_policy: &str) {
    const FIELD: &str = "resizePolicy";
    let mut resources = HashSet::new();
    for entry in container.structs(FIELD) {
        let resource = entry.text("resourceName");
        if !resources.insert(resource) {
            entry.push(FieldError::duplicate(entry.own_path(), resource));
        }
        let policy = entry.text("restartPolicy");
        for (value, supported) in [
            (resource, ["cpu", "memory"]),
            (policy, ["NotRequired", "RestartContainer"]),
        ] {
            match value {
                "" => container.required(FIELD, ""),
                _ => container.supported(FIELD, value, &supported),
            }
        }
        if pod_policy == "Never" && policy != "NotRequired" {
            let why = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            container.invalid(FIELD, policy, why);
        }
    }
}

/// Rejects RestartContainer in the resize policy of an init container that is not a sidecar.
pub(super) fn no_restart_container(container: &Fields<'_>) {
    for entry in container.structs("resizePolicy") {
        if entry.text("restartPolicy") == "RestartContainer" {
            let why = "must not be set to 'RestartContainer' for non-sidecar initContainers";
            entry.invalid("restartPolicy", "RestartContainer", why);
        }
    }
}

/// Whether a container of the pod can restart all of them (`AllContainersCouldRestart` of Kubernetes).
pub(super) fn restarts_all_containers(spec: &Fields<'_>) -> bool {
    let containers = ["initContainers", "containers"].into_iter();
    let mut rules = containers
        .flat_map(|list| spec.structs(list))
        .flat_map(|container| container.structs(RULES));
    rules.any(|rule| rule.text("action") == "RestartAllContainers")
}

/// Whether the container restarts after this exit code (`ContainerShouldRestart` of Kubernetes).
pub(super) fn restarts(container: &Fields<'_>, spec: &Fields<'_>, exit_code: i64) -> bool {
    let applies = |rule: Fields<'_>| {
        let exit_codes = rule.child("exitCodes");
        let is_listed = exit_codes.list("values").iter().any(|code| *code == exit_code);
        match exit_codes.text("operator") {
            "In" => is_listed,
            "NotIn" => !is_listed,
            _ => false,
        }
    };
    let owner = if container.has("restartPolicy") {
        container
    } else {
        spec
    };
    if container.has("restartPolicy") && container.structs(RULES).any(applies) {
        return true;
    }
    match owner.text("restartPolicy") {
        "OnFailure" => exit_code != 0,
        policy => policy != "Never",
    }
}
