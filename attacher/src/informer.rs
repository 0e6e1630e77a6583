//! The newest known state of all objects that concern the driver, with indexes between them.
//!
//! Two sources feed it: the watches, and the API server's responses to our own writes. With the second, the watch event of a
//! write of ours is [`StoreDelta::Stale`] when it arrives, and enqueues nothing.

mod indexer;
pub mod reflector;
mod store;

use std::sync::Arc;

use crate::model::{Attachment, Node, Source, Uid, Volume};
use crate::plan::AttachInputs;
pub(crate) use indexer::Indexer;
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
    /// From the response to a write of ours: the object is deleted. Older watch events may follow and must not add it again.
    LocallyDeleted {
        /// Its name.
        name: Arc<str>,
        /// Its UID.
        uid: Uid,
    },
}

/// The effect of a change on one object of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreDelta<T> {
    /// None: the store has this version or a newer one.
    Stale,
    /// The object is new.
    Added {
        /// The object of the same name, with another UID, that it replaces.
        replaced: Option<Arc<T>>,
    },
    /// The object changed.
    Updated {
        /// The version before.
        before: Arc<T>,
    },
    /// The object is deleted.
    Deleted {
        /// The last version.
        before: Arc<T>,
    },
}

/// The objects of the three kinds.
#[derive(Debug, Default)]
pub struct Informer {
    attachments: Store<Attachment>,
    volumes: Store<Volume>,
    nodes: Store<Node>,
    by_volume: Indexer,
    by_node: Indexer,
    /// By [`Informer::handle`].
    by_handle: Indexer,
}

/// Numbers of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// VolumeAttachments of our driver.
    pub attachments: usize,
    /// PersistentVolumes that concern us.
    pub volumes: usize,
    /// CSINodes.
    pub nodes: usize,
}

// === impl Informer ===

impl Informer {
    /// The attachment of this name.
    pub fn attachment(&self, name: &str) -> Option<&Arc<Attachment>> {
        self.attachments.get(name)
    }

    /// The PersistentVolume of this name.
    pub fn volume(&self, name: &str) -> Option<&Arc<Volume>> {
        self.volumes.get(name)
    }

    /// The CSINode of this name.
    pub fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.get(name)
    }

    /// Numbers of objects.
    pub fn counts(&self) -> ObjectCounts {
        ObjectCounts {
            attachments: self.attachments.len(),
            volumes: self.volumes.len(),
            nodes: self.nodes.len(),
        }
    }

    /// An attachment with its volume and its node.
    pub fn inputs(&self, attachment: &Arc<Attachment>) -> AttachInputs {
        AttachInputs {
            attachment: attachment.clone(),
            volume: attachment
                .volume_name()
                .and_then(|name| self.volumes.get(name))
                .cloned(),
            node: self.nodes.get(&attachment.node).cloned(),
        }
    }

    /// Names of the attachments that name this PersistentVolume.
    pub fn attachments_of_volume(&self, volume: &str) -> impl Iterator<Item = &Arc<str>> {
        self.by_volume.get(volume)
    }

    /// Names of the attachments to this node.
    pub fn attachments_of_node(&self, node: &str) -> impl Iterator<Item = &Arc<str>> {
        self.by_node.get(node)
    }

    /// The volume handle of this attachment: the recorded one, else that of its source.
    pub fn handle<'i>(&'i self, attachment: &'i Attachment) -> Option<&'i Arc<str>> {
        let recorded = attachment.recorded.handle.as_ref();
        recorded.or_else(|| self.handle_of_source(attachment))
    }

    /// The volume handle of this attachment's source; `None` without its PersistentVolume.
    pub fn handle_of_source<'i>(&'i self, attachment: &'i Attachment) -> Option<&'i Arc<str>> {
        match &attachment.source {
            Source::Volume(name) => handle_of(self.volume(name)?),
            Source::Inline(spec) => Some(&spec.csi()?.handle),
            Source::Invalid(_) => None,
        }
    }

    /// Names of the attachments of this volume handle.
    pub fn attachments_of_handle(&self, handle: &str) -> impl Iterator<Item = &Arc<str>> {
        self.by_handle.get(handle)
    }

    /// All attachments.
    pub fn attachments(&self) -> impl Iterator<Item = &Arc<Attachment>> {
        self.attachments.iter()
    }

    /// All PersistentVolumes.
    pub fn volumes(&self) -> impl Iterator<Item = &Arc<Volume>> {
        self.volumes.iter()
    }

    /// Applies a change; returns its effect on each attachment concerned.
    pub fn attachments_changed(
        &mut self,
        change: Change<Attachment>,
    ) -> Vec<(Arc<str>, StoreDelta<Attachment>)> {
        let deltas = self.attachments.apply(change);
        for (name, delta) in &deltas {
            let (old, new) = match delta {
                StoreDelta::Stale => continue,
                StoreDelta::Added { replaced } => (replaced.clone(), self.attachments.get(name).cloned()),
                StoreDelta::Updated { before } => (Some(before.clone()), self.attachments.get(name).cloned()),
                StoreDelta::Deleted { before } => (Some(before.clone()), None),
            };
            let handle = |attachment: &Option<Arc<Attachment>>| {
                let attachment = attachment.as_ref()?;
                self.handle(attachment).cloned()
            };
            let (old_handle, new_handle) = (handle(&old), handle(&new));
            if old_handle != new_handle {
                self.by_handle
                    .replace(old_handle.as_ref(), new_handle.as_ref(), name);
            }
            if matches!(delta, StoreDelta::Updated { .. }) {
                // `spec` is immutable, so an update changes neither node nor volume.
                continue;
            }
            let (old, new) = (old.as_deref(), new.as_deref());
            self.by_node
                .replace(old.map(|old| &old.node), new.map(|new| &new.node), name);
            let (old_volume, new_volume) = (
                old.and_then(Attachment::volume_name),
                new.and_then(Attachment::volume_name),
            );
            self.by_volume.replace(old_volume, new_volume, name);
        }
        deltas
    }

    /// Applies a change of PersistentVolumes.
    pub fn volumes_changed(&mut self, change: Change<Volume>) -> Vec<(Arc<str>, StoreDelta<Volume>)> {
        let deltas = self.volumes.apply(change);
        for (name, delta) in &deltas {
            let (old, new) = match delta {
                StoreDelta::Stale => continue,
                StoreDelta::Added { replaced } => (replaced.as_deref(), self.volumes.get(name)),
                StoreDelta::Updated { before } => (Some(&**before), self.volumes.get(name)),
                StoreDelta::Deleted { before } => (Some(&**before), None),
            };
            let (old_handle, new_handle) = (old.and_then(handle_of), new.and_then(|new| handle_of(new)));
            if old_handle == new_handle {
                continue;
            }
            for attachment in self.by_volume.get(name) {
                let unrecorded = |attachment: &Arc<Attachment>| attachment.recorded.handle.is_none();
                if self.attachments.get(attachment).is_some_and(unrecorded) {
                    self.by_handle.replace(old_handle, new_handle, attachment);
                }
            }
        }
        deltas
    }

    /// Applies a change of CSINodes.
    pub fn nodes_changed(&mut self, change: Change<Node>) -> Vec<(Arc<str>, StoreDelta<Node>)> {
        self.nodes.apply(change)
    }
}

fn handle_of(volume: &Volume) -> Option<&Arc<str>> {
    Some(&volume.spec.csi()?.handle)
}

#[cfg(test)]
mod tests;
