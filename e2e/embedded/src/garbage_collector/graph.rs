//! The dependency graph of the garbage collector: objects that have owners.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

use crate::informer::Change;

/// UID of an object.
pub(super) type Uid = String;

/// An object with owners.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    /// Number of its kind.
    pub(super) kind: usize,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: Uid,
    pub(super) owners: Vec<OwnerReference>,
}

/// A change of the graph.
#[derive(Debug)]
pub(super) enum Event {
    Applied(Node),
    Deleted(Uid),
}

#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: BTreeMap<Uid, Node>,
    /// Dependents by the UID of their owner, which may not exist.
    dependents: BTreeMap<Uid, BTreeSet<Uid>>,
}

// === impl Node ===

impl Node {
    fn of(kind: usize, meta: &ObjectMeta) -> Self {
        Self {
            kind,
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            owners: meta.owner_references.clone().unwrap_or_default(),
        }
    }
}

// === impl Graph ===

impl Graph {
    /// Applies a change; returns the objects to sync.
    pub(super) fn apply(&mut self, event: Event) -> Vec<Uid> {
        match event {
            Event::Applied(node) => self.put(node),
            Event::Deleted(uid) => {
                self.remove(&uid);
                self.dependents.get(&uid).into_iter().flatten().cloned().collect()
            }
        }
    }

    pub(super) fn get(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    fn put(&mut self, node: Node) -> Vec<Uid> {
        let uid = node.uid.clone();
        let old = self.remove(&uid);
        if node.owners.is_empty() {
            return Vec::new();
        }
        for owner in &node.owners {
            let dependents = self.dependents.entry(owner.uid.clone()).or_default();
            dependents.insert(uid.clone());
        }
        let has_new_owners = old.is_none_or(|old| old.owners != node.owners);
        self.nodes.insert(uid.clone(), node);
        has_new_owners.then_some(uid).into_iter().collect()
    }

    fn remove(&mut self, uid: &str) -> Option<Node> {
        let node = self.nodes.remove(uid)?;
        for owner in &node.owners {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
        }
        Some(node)
    }
}

// === functions ===

/// The changes of the graph after a change of an object; none for most objects, which have no owners.
pub(super) fn events_of<K: Resource<DynamicType = ()>>(kind: usize, change: &Change<K>) -> Vec<Event> {
    let deleted = |object: &Arc<K>| Event::Deleted(object.meta().uid.clone().unwrap_or_default());
    let owners = |object: &Arc<K>| object.meta().owner_references.clone().unwrap_or_default();
    match change {
        Change::Deleted(old) => vec![deleted(old)],
        Change::Applied { old, new } => {
            let replaced = change.replaced();
            let mut events: Vec<Event> = replaced.map(deleted).into_iter().collect();
            let before = old.as_ref().filter(|_| replaced.is_none()).map(owners);
            if before.unwrap_or_default() != owners(new) {
                events.push(Event::Applied(Node::of(kind, new.meta())));
            }
            events
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_node(uid: &str, owners: &[&str]) -> Node {
        let owner = |uid: &&str| OwnerReference {
            uid: (*uid).to_owned(),
            ..OwnerReference::default()
        };
        Node {
            kind: 0,
            namespace: "ns".to_owned(),
            name: uid.to_owned(),
            uid: uid.to_owned(),
            owners: owners.iter().map(owner).collect(),
        }
    }

    #[test]
    fn changes_affect_dependents() {
        let mut graph = Graph::default();
        let mut apply = |event: Event| graph.apply(event);
        let applied = |uid, owners: &[&str]| Event::Applied(mk_node(uid, owners));
        let deleted = |uid: &str| Event::Deleted(uid.to_owned());
        assert_eq!(apply(applied("a", &["o"])), ["a"]);
        assert_eq!(apply(applied("b", &["o", "p"])), ["b"]);
        assert!(apply(applied("a", &["o"])).is_empty(), "unchanged");
        assert_eq!(
            apply(deleted("o")),
            ["a", "b"],
            "an owner without owners of its own"
        );
        assert!(apply(deleted("a")).is_empty());
        assert_eq!(apply(deleted("p")), ["b"]);
        assert!(apply(applied("b", &[])).is_empty());
        assert!(graph.nodes.is_empty() && graph.dependents.is_empty());
    }
}
