//! CSINodes, and the machines behind them.

use std::collections::HashSet;
use std::sync::Arc;

use csi_attacher::controller::state::Event;
use csi_attacher::informer::Change;
use csi_attacher::model::{Node, PublishTarget};
use jiff::Timestamp;
use tokio::time::Instant;

use super::observer::target_of;
use super::{FORMER_ID_KNOWN, FormerId, NODES, RENAMED_NODE, State};

// === impl State ===

impl State {
    /// The driver's pod on the node restarts: kubelet removes its entry, or adds it again. The machine lives.
    pub(super) fn unregister_driver(&mut self, node: usize) {
        let name = format!("node-{node}");
        let Some(mut node) = self.nodes.get(&name).cloned() else {
            return;
        };
        node.id = match node.id.take() {
            // OK for the recorded id is a proof without a present one (docs/adr/0004-recorded-target.md), even if the machine
            // was renamed and its driver answers OK for the id that it does not know any more.
            Some(id) if self.former_ids.values().any(|former| former.next == id) => return,
            Some(id) => {
                self.unregistered.insert(name.clone(), id);
                None
            }
            None => self.unregistered.remove(&name),
        };
        self.put_node(&name, node.id);
    }

    /// Registers the node under another ID, as another machine, with or without removal of the previous one, or as the same
    /// machine.
    pub(super) fn register_node(&mut self, node: usize) {
        let name = format!("node-{node}");
        let id: Arc<str> = format!("id-{node}-{}", self.uids).as_str().into();
        let before = self.nodes.get(&name).and_then(|node| node.id.clone());
        if let Some(before) = before.or_else(|| self.unregistered.remove(&name)) {
            let was_renamed = self.former_ids.values().any(|former| former.next == before);
            match self.random.u8(0..4) {
                0..2 => self.remove_machine(before),
                // Twice as likely for a machine that was renamed before: no record names all of its three IDs.
                2 if node == RENAMED_NODE => self.change_node_id(&name, &before, &id),
                3 if was_renamed => self.change_node_id(&name, &before, &id),
                _ => {}
            }
        }
        self.nodes.remove(&name);
        self.put_node(&name, Some(id));
        self.observe_array();
    }

    /// As `register_node`, as another machine or as the same one.
    pub(super) fn register_machine(&mut self, node: usize, is_other: bool) {
        let name = format!("node-{node}");
        let id: Arc<str> = format!("id-{node}-{}", self.uids).as_str().into();
        if let Some(before) = self.nodes.get(&name).and_then(|node| node.id.clone()) {
            match is_other {
                true => self.remove_machine(before),
                false => self.change_node_id(&name, &before, &id),
            }
        }
        self.put_node(&name, Some(id));
        self.observe_array();
    }

    fn remove_machine(&mut self, id: Arc<str>) {
        self.published.retain(|target| target.node_id != id);
        self.note(format_args!("the machine {id} is removed"));
        self.removed_ids.insert(id);
    }

    /// Changes the machine's node ID. Its publishes stay, except those that the driver denied: the contract excuses them by
    /// the former ID.
    fn change_node_id(&mut self, name: &str, before: &Arc<str>, next: &Arc<str>) {
        // The record of the other node's VolumeAttachment would name the machine by an ID that its CSINode keeps. The machine's own
        // CSINode may lack the driver at the moment.
        let mut others = self.nodes.values().filter(|node| *node.name != *name);
        if others.any(|node| node.id.as_ref() == Some(before)) {
            return;
        }
        let contract = self.contract.world();
        self.published
            .retain(|target| target.node_id != *before || !contract.is_denied(&target_of(target)));
        let renamed = |targets: &mut HashSet<PublishTarget>| {
            *targets = std::mem::take(targets)
                .into_iter()
                .map(|target| match target.node_id == *before {
                    true => PublishTarget {
                        node_id: next.clone(),
                        ..target
                    },
                    false => target,
                })
                .collect();
        };
        self.note(format_args!("the node ID of the machine {before} is now {next}"));
        renamed(&mut self.published);
        renamed(self.array.previous());
        let former = FormerId {
            next: next.clone(),
            known_until: Instant::now() + FORMER_ID_KNOWN,
        };
        self.former_ids.insert(before.clone(), former);
    }

    /// The target with the present ID of its machine.
    pub(super) fn present(&self, target: &PublishTarget) -> PublishTarget {
        let mut target = target.clone();
        while let Some(former) = self.former_ids.get(&target.node_id) {
            target.node_id = former.next.clone();
        }
        target
    }

    /// Whether the driver knows the machine by another ID only.
    pub(super) fn is_unknown_id(&self, target: &PublishTarget) -> bool {
        self.former_ids
            .get(&target.node_id)
            .is_some_and(|former| Instant::now() >= former.known_until)
    }

    /// Deletes the CSINode of a living node, or creates it again.
    pub(super) fn remove_node(&mut self, node: usize) {
        let name = format!("node-{node}");
        if !self.nodes.contains_key(&name) {
            return self.restore_registration(node);
        }
        let id = self.nodes[&name].id.clone();
        if id
            .iter()
            .any(|id| self.former_ids.values().any(|former| former.next == *id))
        {
            return;
        }
        let Some(node) = self.nodes.remove(&name) else {
            return;
        };
        if let Some(id) = id {
            self.unregistered.insert(name.clone(), id);
        }
        let gone = Change::Deleted {
            name: node.name,
            uid: node.uid,
        };
        self.emit(Event::Nodes(gone));
        self.observe_node(&name);
    }

    /// Registers the node under the ID of another node, as a metadata service behind a gateway does.
    pub(super) fn share_node_id(&mut self, node: usize) {
        let other = format!("node-{}", (node + 1) % NODES);
        let Some(id) = self.nodes.get(&other).and_then(|other| other.id.clone()) else {
            return;
        };
        let name = format!("node-{node}");
        let is_renamed = self.former_ids.values().any(|former| former.next == id);
        if is_renamed || !self.nodes.contains_key(&name) || node == RENAMED_NODE {
            return;
        }
        self.put_node(&name, Some(id));
    }

    /// Ends what [`Self::unregister_driver`], [`Self::remove_node`] and [`Self::share_node_id`] began.
    pub(super) fn restore_registration(&mut self, node: usize) {
        let name = format!("node-{node}");
        if let Some(id) = self.unregistered.remove(&name) {
            return self.put_node(&name, Some(id));
        }
        let id = self.nodes.get(&name).and_then(|node| node.id.clone());
        if id.is_some()
            && self
                .nodes
                .values()
                .any(|other| *other.name != *name && other.id == id)
        {
            let id = format!("id-{node}-{}", self.uids);
            self.put_node(&name, Some(id.as_str().into()));
        }
    }

    fn put_node(&mut self, name: &str, id: Option<Arc<str>>) {
        let known = self.nodes.get(name).map(|node| node.uid.clone());
        let node = Node {
            name: name.into(),
            uid: known.unwrap_or_else(|| self.next_uid()),
            version: self.next_version(),
            // Nodes keep their names, and have been there before the first VolumeAttachment.
            created: Some(Timestamp::UNIX_EPOCH),
            id,
        };
        self.nodes.insert(name.to_owned(), node.clone());
        self.emit(Event::Nodes(Change::Applied(node)));
        self.observe_node(name);
    }
}
