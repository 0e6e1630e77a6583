use siphasher::sip::SipHasher24;

use super::volume::Attachment;
use super::{Array, Counters, Done, Error, PublishParams, Row, first_difference};

// === impl Array ===

impl Array {
    /// Attaches a volume to a node, or finds it attached there with the same arguments.
    pub fn publish(
        &mut self,
        volume: &str,
        node: &str,
        params: &PublishParams,
    ) -> Result<Done<Attachment>, Error> {
        let held = self.volume(volume)?;
        let entry = self.registered(node)?;
        let (id, node) = (held.spec.id.clone(), entry.id.clone());

        if let Some(attachment) = held.attachments.get(&node) {
            return match difference(&attachment.params, params) {
                None => Ok(Done::unchanged(attachment.clone())),
                Some(field) => Err(Error::AttachedDifferently {
                    volume: id,
                    node,
                    field,
                }),
            };
        }
        if !held.spec.supports(&params.capability) {
            return Err(Error::NotSupported {
                volume: id,
                asked: params.capability.to_string(),
            });
        }
        let segments = self.segments_of(&held.spec.pool);
        if let Some(segments) = segments.filter(|segments| !entry.segments.can_access(segments)) {
            return Err(Error::OutOfReach {
                volume: id,
                node,
                required: segments.to_string(),
                topology: entry.segments.to_string(),
            });
        }
        let rival = held
            .attachments
            .iter()
            .find(|(_, other)| !other.params.tolerates(params));
        if let Some((rival, other)) = rival {
            return Err(Error::AttachedElsewhere {
                volume: id,
                node: rival.clone(),
                held: other.params.capability.mode.name(),
            });
        }
        if let Some(limit) = entry.limit.filter(|limit| entry.attached.len() >= *limit) {
            return Err(Error::NodeFull { node, limit });
        }

        let promised = self.promises.attachment(volume, node.as_str());
        let number = promised.unwrap_or(self.counters.attached + 1);
        let attachment = Attachment {
            number,
            params: params.clone(),
        };
        let mut volume = held.clone();
        volume.attachments.insert(node, attachment.clone());
        let counters = Counters {
            attached: self.counters.attached.max(number),
            ..self.counters
        };
        Ok(self.done(
            attachment,
            [Row::Counters(counters), Row::Volume(id, Some(volume))],
        ))
    }

    /// Detaches a volume from a node, or from all nodes.
    ///
    /// Succeeds if the volume or node does not exist, as a repeated call does, unless the array is strict about it.
    ///
    /// # Errors
    /// Only of a strict array: the volume does not exist, or the node does not and the volume is not attached to it.
    pub fn unpublish(&mut self, volume: &str, node: Option<&str>) -> Result<Done<()>, Error> {
        let nothing = Done::unchanged(());
        let strict = self.settings.deviations.unpublish_not_found;
        let Some(held) = self.volumes.get(volume) else {
            if strict {
                self.volume(volume)?;
            }
            return Ok(nothing);
        };
        let mut left = held.clone();
        left.attachments
            .retain(|id, _| node.is_some_and(|node| id.as_str() != node));
        if left.attachments.len() == held.attachments.len() {
            if let Some(node) = node.filter(|_| strict) {
                self.registered(node)?;
            }
            return Ok(nothing);
        }
        Ok(self.replaced((), left))
    }
}

// === impl Attachment ===

impl Attachment {
    /// The key of the attachment's number in the publish context: the same for a repeated call, another one after detach and
    /// attach.
    pub(crate) const NUMBER: &'static str = "attachment";

    /// The publish context, by which a node finds the volume's device.
    pub(crate) fn publish_context<C: FromIterator<(String, String)>>(&self, volume: &str) -> C {
        let serial = serial(volume);
        let context = [
            (Self::NUMBER, self.number.to_string()),
            ("device", format!("/dev/disk/by-id/csi-mock-{serial}")),
            ("serial", serial),
            ("writable", self.params.writes().to_string()),
        ];
        context
            .map(|(key, value)| (key.to_owned(), value))
            .into_iter()
            .collect()
    }
}

/// The serial number of a volume's device, the same on every node. Independent of the id_seed: it stays the same if the array is re-created.
pub(crate) fn serial(volume: &str) -> String {
    let mark = SipHasher24::new().hash(format!("serial/{volume}").as_bytes());
    format!("{mark:016x}")
}

fn difference(held: &PublishParams, asked: &PublishParams) -> Option<&'static str> {
    first_difference(&[
        ("volume_capability", held.capability == asked.capability),
        ("readonly", held.readonly == asked.readonly),
    ])
}
