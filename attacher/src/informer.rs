//! The newest known state of all objects that concern the driver, with indexes between them.
//!
//! It has two sources: the watches, and the API server's responses to our own writes. Because of the second, the watch event
//! of our own write is stale when it arrives, and changes nothing.

mod indexer;
pub(crate) mod reflector;
mod store;

use std::sync::Arc;

use crate::model::handle::index_value;
use crate::model::{Attachment, Node, Source, Uid, Version, Volume};
use indexer::Indexer;
use store::Store;

/// A change of an object, from the watch or from the response to a write of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// The reflector is about to request a list. Responses to our writes from here on may be newer than that list.
    RelistStarting,
    /// From the watch: a list of all objects begins. Objects that it does not contain are deleted.
    ReplaceStarted,
    /// From the watch or a list: the object at one of its versions.
    Applied(T),
    /// From the watch: the object is deleted.
    Deleted {
        /// Its name.
        name: Arc<str>,
        /// Its UID; another object of the same name may exist by now.
        uid: Uid,
    },
    /// From the watch: the list is complete.
    Replaced,
    /// From the response to a write of ours: the object after the write.
    LocallyUpdated(T),
    /// From the response to a request of ours: the object is deleted. Older watch events may follow and must not add it again;
    /// a later one does.
    LocallyDeleted {
        /// Its name.
        name: Arc<str>,
        /// Its UID.
        uid: Uid,
        /// Its last version, if the response has it; otherwise the newest known version counts.
        version: Option<Version>,
    },
}

/// The effect of a change on the object of one name. If both versions exist and their UIDs differ, the object was replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreDelta<T> {
    pub(crate) name: Arc<str>,
    pub(crate) before: Option<Arc<T>>,
    pub(crate) after: Option<Arc<T>>,
}

/// The objects of the three kinds. Their changes also update the indexers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Informer {
    pub(crate) attachments: Store<Attachment>,
    pub(crate) volumes: Store<Volume>,
    pub(crate) nodes: Store<Node>,
    /// Attachments by the name of their PersistentVolume.
    pub(crate) by_volume: Indexer,
    /// Attachments by the name of their node.
    pub(crate) by_node: Indexer,
    /// Attachments by the [`index_value`] of [`Informer::handle`].
    by_handle: Indexer,
    /// CSINodes by the driver's node id.
    pub(crate) by_node_id: Indexer,
}

// === impl Informer ===

impl Informer {
    /// The volume handle of this attachment: the recorded one, else that of its source; `None` if its PersistentVolume is
    /// unknown or was re-created.
    pub(crate) fn handle<'i>(&'i self, attachment: &'i Attachment) -> Option<&'i Arc<str>> {
        let volume = attachment.volume_name().and_then(|name| self.volumes.get(name));
        handle(attachment, volume)
    }

    /// The attachments of the volume with this handle, and maybe of others: that depends on the node
    /// ([`may_be_same_volume`](crate::model::handle::may_be_same_volume)).
    pub(crate) fn of_handle(&self, handle: &Arc<str>) -> impl Iterator<Item = &Arc<Attachment>> + use<'_> {
        let names = self.by_handle.get(&index_value(handle));
        names.filter_map(|name| self.attachments.get(name))
    }

    /// The newest version of the VolumeAttachment with this UID; `None` if it is deleted.
    pub(crate) fn newest(&self, attachment: &Attachment) -> Option<&Arc<Attachment>> {
        let newest = self.attachments.get(&attachment.name)?;
        (newest.uid == attachment.uid).then_some(newest)
    }

    /// The id that the CSINode shows now.
    pub(crate) fn node_id(&self, node: &str) -> Option<&Arc<str>> {
        self.nodes.get(node)?.id.as_ref()
    }

    pub(crate) fn of_volume(&self, volume: &str) -> impl Iterator<Item = &Arc<Attachment>> + use<'_> {
        let names = self.by_volume.get(volume);
        names.filter_map(|name| self.attachments.get(name))
    }

    pub(crate) fn on_node(&self, node: &str) -> impl Iterator<Item = &Arc<Attachment>> + use<'_> {
        let names = self.by_node.get(node);
        names.filter_map(|name| self.attachments.get(name))
    }

    pub(crate) fn attachments_changed(&mut self, change: Change<Attachment>) -> Vec<StoreDelta<Attachment>> {
        let deltas = self.attachments.apply(change);
        for StoreDelta { name, before, after } in &deltas {
            let (before, after) = (before.as_deref(), after.as_deref());
            let handle = |attachment| self.handle(attachment).map(index_value);
            let (old, new) = (before.and_then(handle), after.and_then(handle));
            self.by_handle.update(old.as_ref(), new.as_ref(), name);
            let (old, new) = (before.map(|before| &before.node), after.map(|after| &after.node));
            self.by_node.update(old, new, name);
            let volume = Attachment::volume_name;
            self.by_volume
                .update(before.and_then(volume), after.and_then(volume), name);
        }
        deltas
    }

    pub(crate) fn volumes_changed(&mut self, change: Change<Volume>) -> Vec<StoreDelta<Volume>> {
        let deltas = self.volumes.apply(change);
        for StoreDelta { name, before, after } in &deltas {
            let of_volume = self
                .by_volume
                .get(name)
                .filter_map(|name| self.attachments.get(name));
            for attachment in of_volume {
                let of = |volume: &Option<_>| handle(attachment, volume.as_ref()).map(index_value);
                let (old, new) = (of(before), of(after));
                self.by_handle
                    .update(old.as_ref(), new.as_ref(), &attachment.name);
            }
        }
        deltas
    }

    pub(crate) fn nodes_changed(&mut self, change: Change<Node>) -> Vec<StoreDelta<Node>> {
        let deltas = self.nodes.apply(change);
        for StoreDelta { name, before, after } in &deltas {
            let id = |node: &'_ Option<Arc<Node>>| node.as_ref().and_then(|node| node.id.clone());
            self.by_node_id
                .update(id(before).as_ref(), id(after).as_ref(), name);
        }
        deltas
    }
}

/// The volume handle of an attachment whose PersistentVolume is `volume`.
fn handle<'i>(attachment: &'i Attachment, volume: Option<&'i Arc<Volume>>) -> Option<&'i Arc<str>> {
    match (&attachment.recorded.handle, &attachment.source) {
        (Some(recorded), _) => Some(recorded),
        (None, Source::Volume(_)) => {
            let volume = volume.filter(|volume| !attachment.may_predate(volume));
            Some(&volume?.spec.csi()?.handle)
        }
        (None, Source::Inline(spec)) => Some(&spec.csi()?.handle),
        (None, Source::Invalid(_)) => None,
    }
}

#[cfg(test)]
mod tests;
