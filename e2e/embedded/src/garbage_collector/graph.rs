//! The dependency graph of the garbage collector: objects that have owners, and objects whose deletion waits for the
//! collector.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

use crate::informer::{Change, has_finalizer};

/// The finalizer of an object that is deleted after its dependents.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object whose dependents lose their owner.
pub(super) const ORPHAN: &str = "orphan";

/// UID of an object.
pub(super) type Uid = String;

/// How an object is being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deletion {
    /// It is not being deleted.
    NotStarted,
    /// The collector has to delete its dependents first.
    Foreground,
    /// The collector has to orphan its dependents first.
    Orphan,
    /// It waits for others.
    Terminating,
}

/// An object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    /// Number of its kind.
    pub(super) kind: usize,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: Uid,
    pub(super) owners: Vec<OwnerReference>,
    pub(super) deletion: Deletion,
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

// === impl Deletion ===

impl Deletion {
    fn of(meta: &ObjectMeta) -> Self {
        if meta.deletion_timestamp.is_none() {
            Self::NotStarted
        } else if has_finalizer(meta, ORPHAN) {
            Self::Orphan
        } else if has_finalizer(meta, FOREGROUND) {
            Self::Foreground
        } else {
            Self::Terminating
        }
    }

    /// Whether it waits for the garbage collector.
    fn is_ours(self) -> bool {
        matches!(self, Self::Foreground | Self::Orphan)
    }
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
            deletion: Deletion::of(meta),
        }
    }

    /// Whether the deletion of an owner in the foreground waits for this object.
    fn blocks(&self, owner: &str) -> bool {
        let mut owners = self.owners.iter();
        owners.any(|found| found.uid == owner && found.block_owner_deletion == Some(true))
    }
}

// === impl Graph ===

impl Graph {
    /// Applies a change; returns the objects to sync.
    pub(super) fn apply(&mut self, event: Event) -> Vec<Uid> {
        match event {
            Event::Applied(node) => self.put(node),
            Event::Deleted(uid) => {
                let mut affected = self.dependents_of(&uid).map(|node| node.uid.clone()).collect();
                if let Some(old) = self.remove(&uid) {
                    self.add_waiting_owners(&old, &mut affected);
                }
                affected
            }
        }
    }

    pub(super) fn get(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    pub(super) fn dependents_of(&self, owner: &str) -> impl Iterator<Item = &Node> {
        let uids = self.dependents.get(owner).into_iter().flatten();
        uids.filter_map(|uid| self.nodes.get(uid))
    }

    /// The dependents for which the deletion of an owner in the foreground waits.
    pub(super) fn blocking_dependents(&self, owner: &str) -> impl Iterator<Item = &Node> {
        self.dependents_of(owner).filter(move |node| node.blocks(owner))
    }

    /// Whether the object is being deleted in the foreground.
    pub(super) fn is_deleting_dependents(&self, uid: &str) -> bool {
        self.get(uid)
            .is_some_and(|node| node.deletion == Deletion::Foreground)
    }

    fn put(&mut self, node: Node) -> Vec<Uid> {
        let uid = node.uid.clone();
        let mut affected = Vec::new();
        let old = self.remove(&uid);
        if let Some(old) = &old {
            self.add_waiting_owners(old, &mut affected);
        }
        let was = old.as_ref().map_or(Deletion::NotStarted, |old| old.deletion);
        if node.deletion.is_ours() && node.deletion != was {
            affected.extend(self.dependents_of(&uid).map(|node| node.uid.clone()));
            affected.push(uid.clone());
        }
        let has_new_owners = old.is_none_or(|old| old.owners != node.owners) && !node.owners.is_empty();
        if node.deletion == Deletion::NotStarted && has_new_owners {
            affected.push(uid.clone());
        }
        for owner in &node.owners {
            let dependents = self.dependents.entry(owner.uid.clone()).or_default();
            dependents.insert(uid.clone());
        }
        if node.deletion.is_ours() || !node.owners.is_empty() {
            self.nodes.insert(uid, node);
        }
        affected
    }

    /// Adds the owners that are being deleted in the foreground: the object may have blocked them.
    fn add_waiting_owners(&self, node: &Node, affected: &mut Vec<Uid>) {
        let owners = node.owners.iter().map(|owner| &owner.uid);
        affected.extend(owners.filter(|uid| self.is_deleting_dependents(uid)).cloned());
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
    let relevant = |object: &Arc<K>| {
        let meta = object.meta();
        let owners = meta.owner_references.clone().unwrap_or_default();
        let deletion = Deletion::of(meta);
        (deletion.is_ours() || !owners.is_empty()).then_some((owners, deletion))
    };
    match change {
        Change::Deleted(old) => vec![deleted(old)],
        Change::Applied { old, new } => {
            let replaced = change.replaced();
            let mut events: Vec<Event> = replaced.map(deleted).into_iter().collect();
            let before = old.as_ref().filter(|_| replaced.is_none()).and_then(relevant);
            if before != relevant(new) {
                events.push(Event::Applied(Node::of(kind, new.meta())));
            }
            events
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_node(uid: &str, owners: &[&str], deletion: Deletion) -> Node {
        let owner = |uid: &&str| OwnerReference {
            uid: (*uid).to_owned(),
            block_owner_deletion: Some(true),
            ..OwnerReference::default()
        };
        Node {
            kind: 0,
            namespace: "ns".to_owned(),
            name: uid.to_owned(),
            uid: uid.to_owned(),
            owners: owners.iter().map(owner).collect(),
            deletion,
        }
    }

    #[test]
    fn changes_affect_owners_and_dependents() {
        use Deletion::{Foreground, NotStarted, Terminating};
        let mut graph = Graph::default();
        let mut apply = |event: Event| graph.apply(event);
        let applied = |uid, owners: &[&str], deletion| Event::Applied(mk_node(uid, owners, deletion));
        let deleted = |uid: &str| Event::Deleted(uid.to_owned());
        assert_eq!(apply(applied("a", &["o"], NotStarted)), ["a"]);
        assert_eq!(apply(applied("b", &["o", "p"], NotStarted)), ["b"]);
        assert!(apply(applied("a", &["o"], NotStarted)).is_empty(), "unchanged");
        assert_eq!(apply(applied("o", &[], Foreground)), ["a", "b", "o"]);
        assert_eq!(apply(applied("a", &["o"], Terminating)), ["o"]);
        assert_eq!(apply(deleted("a")), ["o"]);
        assert_eq!(apply(applied("b", &["p"], NotStarted)), ["o", "b"]);
        assert!(apply(deleted("o")).is_empty());
        assert_eq!(apply(deleted("p")), ["b"], "an owner without owners of its own");
        assert!(apply(applied("b", &[], NotStarted)).is_empty());
        assert!(graph.nodes.is_empty() && graph.dependents.is_empty());
    }

    #[test]
    fn only_dependents_that_ask_for_it_block_their_owner() {
        let mut graph = Graph::default();
        graph.apply(Event::Applied(mk_node("a", &["o"], Deletion::NotStarted)));
        let mut free = mk_node("b", &["o"], Deletion::NotStarted);
        free.owners[0].block_owner_deletion = None;
        graph.apply(Event::Applied(free));
        let blocking: Vec<_> = graph.blocking_dependents("o").map(|node| &node.uid).collect();
        assert_eq!(blocking, ["a"]);
    }
}
