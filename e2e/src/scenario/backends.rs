//! Backends, attachers and kinds of nodes that each scenario runs with.

use std::fmt::Write;

use super::{ALL, ExpectedOutcome, KnownIssue, RANDOMIZED, Scenario, UPGRADES};
use crate::attacher::Kind;
use crate::cluster::ClusterSettings;
use crate::nodes::NODES;

/// Scenarios that do not run on the embedded cluster, and the real programs that they test.
const NOT_EMBEDDED: &[(&str, &str)] = &[
    ("etcd-restored", "it restores a snapshot of the real etcd"),
    (
        "volume-expanded",
        "it runs the real external-resizer, for a kubelet that expands volumes",
    ),
    (
        "snapshot-restored",
        "it runs the real external-snapshotter and snapshot-controller, for an API server with CustomResourceDefinitions",
    ),
];
/// Scenarios that run with the Go attacher on the embedded cluster, to verify its compatibility with the API server.
const GO_ON_EMBEDDED: &[&str] = &["pod-attaches", "pod-moves"];
/// Scenarios that need simulated kubelets, with the reasons.
const SIMULATED: &[(&str, &str)] = &[
    ("completed-pods", "it chooses the exit codes of containers"),
    (
        "explain-lost-objects",
        "it deletes the Node object under its kubelet",
    ),
    ("node-recreated", "it deletes the Node object under its kubelet"),
    (
        "node-lost",
        "the node stays lost; lost_node_is_taken_out_of_service boots it again",
    ),
];

// === impl Scenario ===

impl Scenario {
    /// The scenarios that an attacher runs on the backends `embedded`, `control-plane` and `kubeconfig`.
    pub fn all(kind: Kind) -> impl Iterator<Item = &'static Self> {
        let (randomized, upgrades) = match kind {
            Kind::Ours => (RANDOMIZED, UPGRADES),
            Kind::Go => (&[][..], &[][..]),
        };
        ALL.iter().chain(randomized).chain(upgrades)
    }

    /// Reason why the scenario does not run on the embedded cluster.
    pub fn not_embedded(&self) -> Option<&'static str> {
        reason(NOT_EMBEDDED, self.name)
    }

    /// Whether the scenario runs on the embedded cluster with this attacher. The Go attacher runs all scenarios on the control
    /// plane.
    pub fn is_for_embedded(&self, kind: Kind) -> bool {
        match kind {
            Kind::Ours => true,
            Kind::Go => GO_ON_EMBEDDED.contains(&self.name),
        }
    }

    /// Whether the scenario starts the Go attacher.
    pub fn starts_go(&self, kind: Kind) -> bool {
        kind == Kind::Go || self.config.both_kinds
    }

    /// Whether the scenario cannot share a real control plane.
    pub fn needs_own_control_plane(&self) -> bool {
        let own_cluster = self.config.own_cluster;
        own_cluster.is_some_and(ClusterSettings::needs_own_control_plane)
    }

    /// Reason why the scenario does not run on the real nodes, which all scenarios share.
    pub fn needs_simulated_nodes(&self) -> Option<&'static str> {
        let config = &self.config;
        [
            (self.needs_own_control_plane(), "it needs a cluster of its own"),
            (!config.node_drivers, "its kubelets must not mount"),
            (config.nodes > NODES.len(), "it needs more nodes"),
        ]
        .into_iter()
        .find_map(|(applies, reason)| applies.then_some(reason))
        .or(reason(SIMULATED, self.name))
    }
}

// === functions ===

/// The table of all scenarios in `e2e/README.md`.
pub fn markdown_table() -> String {
    let mut table = String::from(
        "| scenario | embedded | control plane | real kubelets | Go sidecar | content |\n|---|---|---|---|---|---|\n",
    );
    for scenario in Scenario::all(Kind::Ours) {
        let mark = |reason: Option<&str>| if reason.is_some() { "-" } else { "yes" };
        let runs_with_go = Scenario::all(Kind::Go).any(|other| other.name == scenario.name);
        let is_in_all = ALL.iter().any(|other| other.name == scenario.name);
        let embedded = mark(scenario.not_embedded());
        let control_plane = scenario
            .config
            .since
            .map_or_else(|| "yes".to_owned(), |since| format!("since {since}"));
        let kubelets = match is_in_all {
            true => mark(scenario.needs_simulated_nodes()),
            false => "-",
        };
        let go = match scenario.go {
            _ if !runs_with_go => "-".to_owned(),
            ExpectedOutcome::Passes => "passes".to_owned(),
            ExpectedOutcome::Fails { issue, always, .. } => {
                let KnownIssue(number) = issue;
                let verb = if always { "fails" } else { "may fail" };
                format!("{verb}, [issue {number}](../docs/go-sidecar.md#issue-{number})")
            }
        };
        let (name, about) = (scenario.name, scenario.about);
        writeln!(
            table,
            "| `{name}` | {embedded} | {control_plane} | {kubelets} | {go} | {about} |"
        )
        .expect("writing to a String must succeed");
    }
    table
}

fn reason(reasons: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    let found = reasons.iter().find(|(scenario, _)| *scenario == name);
    found.map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_name_scenarios() {
        let names = NOT_EMBEDDED.iter().chain(SIMULATED).map(|(name, _)| name);
        for name in names.chain(GO_ON_EMBEDDED) {
            assert!(Scenario::named(name).is_some(), "{name}");
        }
    }
}
