//! Users and other controllers, which create, change and delete objects at random.

use std::time::Duration;

use attacher_contract::Observation;
use csi_attacher::model::{Attachment, Volume};
use tokio::time::Instant;

use super::observer::name_of;
use super::{Lie, NODES, State, VOLUMES, World};

/// Number of attachments that are created and deleted.
const ATTACHMENTS: usize = 8;
/// How many of them may have a second attachment of the same volume and node.
const SECOND_ATTACHMENTS: usize = 4;

/// What changes while the volume is attached.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Environment {
    Same,
    /// The driver's pod on the node restarts.
    NoDriver,
    NoCsiNode,
    /// Another machine has the node's name.
    OtherMachine,
    /// The machine has another node ID.
    OtherId,
    /// Another node has the same node ID.
    SharedId,
    /// The driver reports no publish calls.
    NoCapability,
    /// It does for one session.
    CapabilityBack,
    /// The PersistentVolume is being deleted.
    NoVolume,
}

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

    /// A change around the attached volume of node 0.
    pub(in super::super) fn change(&self, environment: Environment) {
        let mut state = self.state();
        match environment {
            Environment::Same => {}
            Environment::NoDriver => state.unregister_driver(0),
            Environment::NoCsiNode => state.remove_node(0),
            Environment::OtherMachine => state.register_machine(0, true),
            Environment::OtherId => state.register_machine(0, false),
            Environment::SharedId => state.share_node_id(0),
            Environment::NoCapability => state.set_publish_capability(false),
            Environment::CapabilityBack => {
                state.set_publish_capability(false);
                state.set_publish_capability(true);
            }
            Environment::NoVolume => {
                if let Some(volume) = state.volumes.get("pv-0").cloned() {
                    state.put_volume(Volume {
                        deleting: true,
                        ..volume
                    });
                }
            }
        }
    }

    pub(in super::super) fn detach_one(&self) {
        let mut state = self.state();
        if let Some(attachment) = state.attachments.get("va-0").cloned() {
            state.put_attachment(Attachment {
                deleting: true,
                ..attachment
            });
        }
    }

    /// Waits until the attachment is gone, at most for `time`.
    pub(in super::super) async fn gone_within(&self, time: Duration) {
        let gone = self.until_at_once(|state| !state.attachments.contains_key("va-0"));
        tokio::time::timeout(time, gone).await.ok();
    }

    pub(in super::super) fn attach_second(&self) {
        self.state().create_attachment(NODES * VOLUMES, false);
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
    /// kube-apiserver reads the object, and deletes it: it may lose a finalizer that it accepted in between
    /// (kubernetes#77988).
    fn delete(&mut self, attachment: Attachment) {
        let added = self.finalizer_added.get(&attachment.uid);
        let is_new = added.is_some_and(|added| added.elapsed() < Duration::from_millis(50));
        let loses = is_new && !attachment.foreign_finalizers && self.lies(Lie::LostFinalizer, 50);
        if loses {
            self.observe(Observation::FinalizerTaken(name_of(&attachment.uid)));
        }
        self.put_attachment(Attachment {
            deleting: true,
            finalizer: attachment.finalizer && !loses,
            ..attachment
        });
    }

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
                    self.delete(attachment);
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
            17 if self.lies(Lie::CsiNode, 40) => self.unregister_driver(number % NODES),
            17 if self.lies(Lie::CsiNodeGone, 40) => self.remove_node(number % NODES),
            17 if self.lies(Lie::SharedNodeId, 30) => self.share_node_id(number % NODES),
            17 => self.register_node(number % NODES),
            18 if self.lies(Lie::SecretForbidden, 30) => {
                let time = Duration::from_millis(self.random.u64(..2_000));
                self.secret_forbidden_until = Some(Instant::now() + time);
            }
            18 if self.lies(Lie::ClockJumps, 30) => {
                super::CLOCK_ERROR.set(self.random.i64(-100_000..100_000))
            }
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
