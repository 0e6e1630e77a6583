//! Users and other controllers, which create, change and delete objects at random.

use std::time::Duration;

use csi_attacher::model::{Attachment, Volume};

use super::{NODES, State, VOLUMES, World};

/// Number of attachments that are created and deleted.
const ATTACHMENTS: usize = 8;
/// How many of them may have a second attachment of the same volume and node.
const SECOND_ATTACHMENTS: usize = 4;

// === impl World ===

impl World {
    /// Performs random acts for `time`.
    pub(in super::super) async fn users_for(&self, time: Duration) {
        let end = tokio::time::Instant::now() + time;
        loop {
            let pause = {
                let mut state = self.state();
                state.act();
                Duration::from_millis(state.random.u64(1..80))
            };
            if tokio::time::Instant::now() + pause >= end {
                return tokio::time::sleep_until(end).await;
            }
            tokio::time::sleep(pause).await;
        }
    }

    pub(in super::super) fn attach_all(&self, attachments: usize) {
        let mut state = self.state();
        (0..VOLUMES).for_each(|volume| state.create_volume(volume, false));
        (0..attachments).for_each(|number| state.create_attachment(number, false));
    }

    /// Creates one attachment of an in-tree volume that is not migrated, from which the attacher removes its finalizer each time.
    pub(in super::super) fn attach_left_in_tree(&self) {
        let mut state = self.state();
        state.create_volume(0, true);
        state.create_attachment(0, false);
    }

    pub(in super::super) fn detach_all(&self) {
        let mut state = self.state();
        let all: Vec<_> = state.attachments.values().cloned().collect();
        for attachment in all {
            state.put_attachment(Attachment {
                deleting: true,
                ..attachment
            });
        }
    }

    /// Removes all finalizers of other controllers and deletes all objects.
    pub(in super::super) fn delete_everything(&self) {
        {
            let mut state = self.state();
            let all: Vec<_> = state.attachments.values().cloned().collect();
            for attachment in all {
                state.put_attachment(Attachment {
                    foreign_finalizers: false,
                    ..attachment
                });
            }
            let all: Vec<_> = state.volumes.values().cloned().collect();
            for volume in all {
                state.put_volume(Volume {
                    deleting: true,
                    ..volume
                });
            }
        }
        self.detach_all();
    }
}

// === impl State ===

impl State {
    fn act(&mut self) {
        let mut number = self.random.usize(0..ATTACHMENTS);
        if number < SECOND_ATTACHMENTS && self.random.bool() {
            number += NODES * VOLUMES;
        }
        let name = format!("va-{number}");
        match self.random.u8(0..21) {
            0..8 => {
                let foreign = self.percent(20);
                let left_in_tree = self.percent(30);
                self.create_volume(number % VOLUMES, left_in_tree);
                self.create_attachment(number, foreign);
            }
            8..14 => {
                if let Some(attachment) = self.attachments.get(&name).cloned() {
                    self.put_attachment(Attachment {
                        deleting: true,
                        ..attachment
                    });
                }
            }
            14 => {
                if let Some(attachment) = self.attachments.get(&name).cloned() {
                    self.put_attachment(Attachment {
                        foreign_finalizers: false,
                        ..attachment
                    });
                }
            }
            // The watch event may arrive when the attachment is already deleting.
            15 => {
                let active = self.attachments.get(&name).filter(|known| !known.deleting);
                if let Some(attachment) = active.cloned() {
                    self.put_attachment(Attachment {
                        foreign_finalizers: true,
                        ..attachment
                    });
                }
            }
            16 => {
                if let Some(volume) = self.volumes.get(&format!("pv-{}", number % VOLUMES)).cloned() {
                    self.put_volume(Volume {
                        deleting: true,
                        ..volume
                    });
                }
            }
            17 if self.faults.lies && self.random.bool() => self.unregister_driver(number % NODES),
            17 => self.register_node(number % NODES),
            18 => self.act_outside_kubernetes(),
            // CSI migration is rolled back, or enabled again.
            19 => {
                if let Some(volume) = self.volumes.get(&format!("pv-{}", number % VOLUMES)).cloned() {
                    self.put_volume(Volume {
                        left_in_tree: volume.spec.migrated && !volume.left_in_tree,
                        ..volume
                    });
                }
            }
            // A change of a field that the attacher does not store, such as a label.
            _ => {
                if let Some(attachment) = self.attachments.get(&name).cloned() {
                    self.put_attachment(attachment);
                }
            }
        }
    }
}
