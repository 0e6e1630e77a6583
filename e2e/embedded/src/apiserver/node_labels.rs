//! Deprecated labels of nodes.

/// Beta labels, the release that deprecated them, and their replacements.
const BETA: [(&str, &str, &str); 5] = [
    ("beta.kubernetes.io/arch", "v1.14", "kubernetes.io/arch"),
    ("beta.kubernetes.io/os", "v1.14", "kubernetes.io/os"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "v1.17",
        "topology.kubernetes.io/region",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "v1.17",
        "topology.kubernetes.io/zone",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "v1.17",
        "node.kubernetes.io/instance-type",
    ),
];

/// The label that replaces a beta label.
pub(crate) fn replacement(label: &str) -> Option<&'static str> {
    let found = BETA.iter().find(|(beta, ..)| *beta == label);
    found.map(|(.., replacement)| *replacement)
}

/// The warning about a deprecated label.
pub(crate) fn deprecation(label: &str) -> Option<String> {
    if let Some((_, since, replacement)) = BETA.iter().find(|(beta, ..)| *beta == label) {
        return Some(format!("deprecated since {since}; use {replacement:?} instead"));
    }
    let warning = match label {
        "app.kubernetes.io/created-by" => "deprecated since v1.9",
        "scheduler.alpha.kubernetes.io/preferAvoidPods" => {
            "deprecated since v1.22; use Taints and Tolerations instead"
        }
        "node-role.kubernetes.io/master" => "use \"node-role.kubernetes.io/control-plane\" instead",
        _ => return None,
    };
    Some(warning.to_owned())
}
