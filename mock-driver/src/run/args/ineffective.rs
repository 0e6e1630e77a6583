//! Flags that contradict each other or have no effect.

use super::{Args, RANDOM_LIMIT};
use crate::driver::mode::Mode;

/// The part of `--node-id` that `--node-name` replaces.
pub(super) const NAME: &str = "{name}";

// === impl Args ===

impl Args {
    /// The error of flags that cannot be meant.
    pub(super) fn contradiction(&self) -> Option<String> {
        let node = &self.node;
        let (has_id, has_name) = (!node.node_id.is_empty(), !node.node_name.is_empty());
        let takes_name = node.node_id.contains(NAME);
        // (whether it is so, text)
        let table = [
            (
                node.mode == Mode::Controller && has_id,
                "--node-id has no effect with --mode=controller, which has no Node service: remove it, or give it to the \
                 process with --mode=node",
            ),
            (
                node.mode != Mode::Node && node.array_endpoint.is_given(),
                "--array-endpoint has no effect without --mode=node: add --mode=node, or remove it",
            ),
            (
                takes_name && !has_name,
                "--node-id has {name}, which --node-name replaces: add --node-name with the node's name in Kubernetes",
            ),
            (
                !self.ready_file.as_os_str().is_empty() && !self.faults.listen_after.is_zero(),
                "--ready-file says that the driver listens, which it does not before --listen-after: remove one of them",
            ),
            (
                has_name && !takes_name,
                "--node-name has no effect unless --node-id has {name}: write --node-id={name} or --node-id=i-{name}, or \
                 remove it",
            ),
        ];
        let found = table.into_iter().find(|(is_so, _)| *is_so);
        found.map(|(_, text)| text.to_owned())
    }

    /// Warnings about flags without effect. `given` says whether a flag is on the command line, by its id.
    pub(super) fn ineffective(&self, given: impl Fn(&str) -> bool) -> Vec<String> {
        let admin = &self.admin;
        let has_admin = admin.admin_endpoint.is_given();
        let has_node = !self.node.node_id.is_empty();
        let has_journal = !admin.journal.as_os_str().is_empty();
        let registers = !self.node.registration_dir.as_os_str().is_empty();
        // (whether the flags have an effect, why not, their ids)
        let table: [(bool, &str, &[&str]); 7] = [
            (
                has_node,
                "without --node-id, because there is no Node service",
                &[
                    "topology",
                    "devices",
                    "device_dir",
                    "device_timeout",
                    "device_faults",
                    "node_unpublish_strict",
                    "registration_dir",
                ],
            ),
            (
                registers,
                "without --registration-dir",
                &["registration_endpoint"],
            ),
            (
                has_admin,
                "without --admin-endpoint",
                &["admin_allow_remote", "admin_allowed_host", "journal_size"],
            ),
            (has_journal, "without --journal", &["journal_max_size"]),
            (
                has_admin || has_journal || admin.log_grpc_calls,
                "without --journal, --admin-endpoint or --log-grpc-calls",
                &["log_secrets"],
            ),
            (
                self.array.pools.is_empty(),
                "beside --pool, which gives the topology",
                &["zones"],
            ),
            (
                self.attach_limit != RANDOM_LIMIT,
                "beside --attach-limit=-1",
                &["advertised_attach_limit"],
            ),
        ];
        let without_effect = table.into_iter().filter(|(has_effect, ..)| !has_effect);
        let mut notes: Vec<String> = without_effect
            .flat_map(|(_, why, ids)| ids.iter().map(move |id| (*id, why)))
            .filter(|(id, _)| given(id))
            .map(|(id, why)| format!("--{} has no effect {why}", id.replace('_', "-")))
            .collect();
        let nodes = self.settings().array.nodes;
        notes.extend(self.array.unknown_nodes(&nodes).map(|node| {
            format!(
                "--node-topology: the array has no node \"{node}\" at the start; the topology takes effect when a node with \
                 this id is registered"
            )
        }));
        notes
    }
}
