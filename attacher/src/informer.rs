//! The newest state of every object that concerns us, and the reverse maps between them.
//!
//! One struct owns all maps and keeps primary and reverse maps together, so that no event is
//! answered by a scan. Two sources feed it: the watches, and the API server's answers to our own
//! writes. The second makes it as new as our last write, so the echo of that write, which the watch
//! brings later, is [`StoreDelta::Stale`] and starts nothing.

mod indexer;
pub mod reflector;
mod store;

use std::sync::Arc;

use crate::model::{Attachment, Node, Source, Uid, Volume};
use crate::plan::AttachInputs;
pub(crate) use indexer::Indexer;
use store::{PutResult, Store};

/// What happened to an object, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// Ahead of the watch: a list of all objects is about to be asked for. What the API server answers to our
    /// writes from here on may be newer than that list, however late the watch's events come.
    RelistStarting,
    /// From the watch: a list of all objects begins. What it does not name is gone.
    ReplaceStarted,
    /// From the watch: the object as it was then.
    Applied(T),
    /// From the watch: the object is gone.
    Deleted {
        /// Its name.
        name: Arc<str>,
        /// Its UID; another object of the same name may exist by now.
        uid: Uid,
    },
    /// From the watch: the list that began is complete.
    Replaced,
    /// From the answer to a write of ours: the object as it is after the write.
    LocallyUpdated(T),
    /// From the answer to a write of ours: the object is gone. Events from before that may still be
    /// on their way and must not bring it back.
    LocallyDeleted {
        /// Its name.
        name: Arc<str>,
        /// Its UID.
        uid: Uid,
    },
}

/// What a change did to an object that we know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreDelta<T> {
    /// Nothing: we knew that, or something newer.
    Stale,
    /// The object is new, or takes the place of a deleted one of its name (`replaced`).
    New {
        /// The deleted object.
        replaced: Option<Arc<T>>,
    },
    /// The object changed.
    Changed {
        /// What it was before.
        before: Arc<T>,
    },
    /// The object is gone.
    Gone {
        /// What it was.
        before: Arc<T>,
    },
}

/// See the module.
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

/// How many objects are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
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

    /// How many objects are known.
    pub fn known(&self) -> Known {
        Known {
            attachments: self.attachments.len(),
            volumes: self.volumes.len(),
            nodes: self.nodes.len(),
        }
    }

    /// What is known about an attachment, its volume and its node.
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
    pub fn attachments_of_volume(&self, volume: &str) -> impl ExactSizeIterator<Item = &Arc<str>> {
        self.by_volume.get(volume)
    }

    /// Names of the attachments to this node.
    pub fn attachments_of_node(&self, node: &str) -> impl ExactSizeIterator<Item = &Arc<str>> {
        self.by_node.get(node)
    }

    /// The volume handle of this attachment: the one that is recorded on it, else today's.
    pub fn handle<'i>(&'i self, attachment: &'i Attachment) -> Option<&'i Arc<str>> {
        let recorded = attachment.recorded.handle.as_ref();
        recorded.or_else(|| self.handle_today(attachment))
    }

    /// The volume handle that this attachment's source has today, as far as it is known.
    pub fn handle_today<'i>(&'i self, attachment: &'i Attachment) -> Option<&'i Arc<str>> {
        match &attachment.source {
            Source::Volume(name) => handle_of(self.volume(name)?),
            Source::Inline(spec) => Some(&spec.csi()?.handle),
            Source::Invalid(_) => None,
        }
    }

    /// Names of the attachments of this volume handle.
    pub fn attachments_of_handle(&self, handle: &str) -> impl ExactSizeIterator<Item = &Arc<str>> {
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

    /// Takes in what happened to attachments; returns what it did to each one that it touched.
    pub fn attachments_changed(
        &mut self,
        change: Change<Attachment>,
    ) -> Vec<(Arc<str>, StoreDelta<Attachment>)> {
        let effects = self.attachments.change(change);
        for (name, effect) in &effects {
            let (old, new) = match effect {
                StoreDelta::Stale => continue,
                StoreDelta::New { replaced } => (replaced.clone(), self.attachments.get(name).cloned()),
                StoreDelta::Changed { before } => (Some(before.clone()), self.attachments.get(name).cloned()),
                StoreDelta::Gone { before } => (Some(before.clone()), None),
            };
            let handle = |attachment: &Option<Arc<Attachment>>| {
                let attachment = attachment.as_ref()?;
                self.handle(attachment).cloned()
            };
            let (left, named) = (handle(&old), handle(&new));
            if left != named {
                self.by_handle.replace(left.as_ref(), named.as_ref(), name);
            }
            if matches!(effect, StoreDelta::Changed { .. }) {
                // `spec` is immutable, so what merely changed refers to what it referred to.
                continue;
            }
            let (old, new) = (old.as_deref(), new.as_deref());
            self.by_node
                .replace(old.map(|old| &old.node), new.map(|new| &new.node), name);
            let (left, named) = (
                old.and_then(Attachment::volume_name),
                new.and_then(Attachment::volume_name),
            );
            self.by_volume.replace(left, named, name);
        }
        effects
    }

    /// Takes in what happened to PersistentVolumes.
    pub fn volumes_changed(&mut self, change: Change<Volume>) -> Vec<(Arc<str>, StoreDelta<Volume>)> {
        let effects = self.volumes.change(change);
        for (name, effect) in &effects {
            let (old, new) = match effect {
                StoreDelta::Stale => continue,
                StoreDelta::New { replaced } => (replaced.as_deref(), self.volumes.get(name)),
                StoreDelta::Changed { before } => (Some(&**before), self.volumes.get(name)),
                StoreDelta::Gone { before } => (Some(&**before), None),
            };
            let (left, named) = (old.and_then(handle_of), new.and_then(|new| handle_of(new)));
            if left == named {
                continue;
            }
            for attachment in self.by_volume.get(name) {
                let unrecorded = |attachment: &Arc<Attachment>| attachment.recorded.handle.is_none();
                if self.attachments.get(attachment).is_some_and(unrecorded) {
                    self.by_handle.replace(left, named, attachment);
                }
            }
        }
        effects
    }

    /// Takes in what happened to CSINodes.
    pub fn nodes_changed(&mut self, change: Change<Node>) -> Vec<(Arc<str>, StoreDelta<Node>)> {
        self.nodes.change(change)
    }
}

fn handle_of(volume: &Volume) -> Option<&Arc<str>> {
    Some(&volume.spec.csi()?.handle)
}

// === impl StoreDelta ===

impl<T> StoreDelta<T> {
    fn from_placed(placed: PutResult<T>) -> Self {
        match placed {
            PutResult::Stale => Self::Stale,
            PutResult::New => Self::New { replaced: None },
            PutResult::InsteadOf(replaced) => Self::New {
                replaced: Some(replaced),
            },
            PutResult::Newer(before) => Self::Changed { before },
        }
    }
}

#[cfg(test)]
mod tests;
