//! Invariant 1: a single-node volume is published to one node at a time, and not unpublished while mounted.
//!
//! It is checked on the order of the driver's calls and the nodes' mounts. A call counts from its arrival until its response, as
//! it may take effect at any time in between.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{Observations, Violation};
use crate::driver::journal::{Call, Effect, PUBLISH, UNPUBLISH};

/// Finds volumes that were published to or mounted on two nodes, or unpublished while mounted.
pub fn check(observations: &Observations) -> Vec<Violation> {
    let mut violations = two_nodes_at_the_driver(observations);
    violations.extend(two_nodes_mounted(observations));
    violations.extend(unpublished_while_mounted(observations));
    violations
}

fn two_nodes_at_the_driver(observations: &Observations) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut published: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, call) in by_effect(observations) {
        let nodes = published.entry(&call.volume).or_default();
        match call.method.as_str() {
            PUBLISH => {
                nodes.insert(&call.node);
                if nodes.len() > 1 && observations.is_exclusive(&call.volume) {
                    violations.push(Violation::new(
                        1,
                        format!(
                            "volume {} was published to {nodes:?} at once ({})",
                            call.volume, call.start
                        ),
                    ));
                }
            }
            _ if call.node.is_empty() => nodes.clear(),
            _ => {
                nodes.remove(call.node.as_str());
            }
        }
    }
    violations
}

fn two_nodes_mounted(observations: &Observations) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut mounted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for event in &observations.mounts {
        let nodes = mounted.entry(&event.volume).or_default();
        if !event.mounted {
            nodes.remove(event.node.as_str());
            continue;
        }
        // A node from which the volume was force-detached cannot unmount it.
        nodes.retain(|node| !is_force_detached(observations, &event.volume, node));
        nodes.insert(&event.node);
        if nodes.len() > 1 && observations.is_exclusive(&event.volume) {
            violations.push(Violation::new(
                1,
                format!(
                    "volume {} was mounted on {nodes:?} at once ({})",
                    event.volume, event.at
                ),
            ));
        }
    }
    violations
}

fn unpublished_while_mounted(observations: &Observations) -> Vec<Violation> {
    let mut violations = Vec::new();
    for call in observations.calls.iter().filter(|call| call.method == UNPUBLISH) {
        for (node, node_id) in &observations.node_ids {
            let concerned = call.node.is_empty() || &call.node == node_id;
            if concerned
                && mounted_at(observations, &call.volume, node, call.start)
                && !is_force_detached(observations, &call.volume, node)
            {
                violations.push(Violation::new(
                    1,
                    format!(
                        "unpublish of volume {} from {node} ({}) while mounted there",
                        call.volume, call.start
                    ),
                ));
            }
        }
    }
    violations
}

/// Publish and unpublish calls that took effect, in the order with the smallest overlap: a volume counts as published from the
/// response on, and as unpublished from the call on, also if the driver died during the call. An overlap in this order is
/// certain.
fn by_effect(observations: &Observations) -> Vec<(Timestamp, &Call)> {
    let mut calls: Vec<_> = observations
        .calls
        .iter()
        .filter_map(|call| match (call.method.as_str(), call.effect) {
            (PUBLISH, Effect::Done) => Some((call.effect_by.unwrap_or(call.start), call)),
            (UNPUBLISH, Effect::Done | Effect::Unknown) => Some((call.start, call)),
            _ => None,
        })
        .collect();
    calls.sort_by_key(|(at, _)| *at);
    calls
}

fn mounted_at(observations: &Observations, volume: &str, node: &str, at: Timestamp) -> bool {
    let before = observations.mounts.iter().take_while(|event| event.at <= at);
    let latest = before
        .filter(|event| event.node == node && event.volume == volume)
        .last();
    latest.is_some_and(|event| event.mounted)
}

fn is_force_detached(observations: &Observations, handle: &str, node: &str) -> bool {
    observations
        .force_detached
        .contains(&(handle.to_owned(), node.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::observations::samples::*;
    use super::*;

    #[test]
    fn a_move_by_detach_before_attach_is_fine() {
        let mut observations = mk_observations();
        observations.calls = vec![
            publish("vol", "id-a", 1),
            unpublish("vol", "id-a", 3),
            publish("vol", "id-b", 5),
        ];
        assert_eq!(check(&observations), []);
    }

    #[test]
    fn a_second_publish_before_the_unpublish_is_found() {
        let mut observations = mk_observations();
        observations.calls = vec![
            publish("vol", "id-a", 1),
            publish("vol", "id-b", 3),
            unpublish("vol", "id-a", 5),
        ];
        let violations = check(&observations);
        assert_eq!(violations.len(), 1, "{violations:?}");
        assert!(violations[0].seen.contains("published to"), "{violations:?}");
    }

    #[test]
    fn a_failed_unpublish_leaves_the_volume_where_it_is() {
        let mut observations = mk_observations();
        let mut failed = unpublish("vol", "id-a", 3);
        failed.effect = Effect::Nothing;
        observations.calls = vec![publish("vol", "id-a", 1), failed, publish("vol", "id-b", 5)];
        assert_eq!(check(&observations).len(), 1);
    }

    #[test]
    fn an_unpublish_in_which_the_driver_died_may_have_been_done() {
        let mut observations = mk_observations();
        let mut cut_off = unpublish("vol", "id-a", 3);
        cut_off.effect = Effect::Unknown;
        observations.calls = vec![
            publish("vol", "id-a", 1),
            cut_off,
            publish("vol", "id-b", 5),
            unpublish("vol", "id-a", 6),
        ];
        assert_eq!(check(&observations), []);
    }

    #[test]
    fn a_shared_volume_may_be_on_two_nodes() {
        let mut observations = mk_observations();
        observations.calls = vec![publish("shared", "id-a", 1), publish("shared", "id-b", 3)];
        observations.mounts = vec![mounted("a", "shared", 2), mounted("b", "shared", 4)];
        assert_eq!(check(&observations), []);
    }

    #[test]
    fn two_mounts_are_found_even_if_the_driver_saw_nothing() {
        let mut observations = mk_observations();
        observations.mounts = vec![mounted("a", "vol", 1), mounted("b", "vol", 2)];
        assert_eq!(check(&observations).len(), 1);
        observations
            .force_detached
            .insert(("vol".to_owned(), "a".to_owned()));
        assert_eq!(check(&observations), [], "the first node had lost it by force");
    }

    #[test]
    fn an_unpublish_under_a_mount_is_found() {
        let mut observations = mk_observations();
        observations.calls = vec![publish("vol", "id-a", 1), unpublish("vol", "id-a", 4)];
        observations.mounts = vec![mounted("a", "vol", 2), unmounted("a", "vol", 6)];
        assert_eq!(check(&observations).len(), 1);
        observations.mounts = vec![mounted("a", "vol", 2), unmounted("a", "vol", 3)];
        assert_eq!(check(&observations), []);
    }

    #[test]
    fn an_unpublish_from_all_nodes_counts_for_each() {
        let mut observations = mk_observations();
        observations.calls = vec![publish("vol", "id-a", 1), unpublish("vol", "", 4)];
        observations.mounts = vec![mounted("a", "vol", 2)];
        assert_eq!(check(&observations).len(), 1);
    }
}
