//! Attachments of the proxied driver, learned from calls.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard};

use csi_proto::v1::NodeGetInfoResponse;
use prost::Message;

use crate::fault::{CallInfo, Reservations, VolumeLocation};

/// Attachments by volume. A deleted volume has no entry.
#[derive(Debug, Default)]
pub(super) struct KnownAttachments(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    nodes: HashMap<String, BTreeSet<String>>,
    here: String,
}

// === impl KnownAttachments ===

impl KnownAttachments {
    pub(super) fn learn(&self, call: &dyn CallInfo) {
        let (volume, node) = (call.volume().to_owned(), call.node().to_owned());
        let mut known = self.lock();
        match call.path() {
            "/csi.v1.Controller/ControllerPublishVolume" => {
                known.nodes.entry(volume).or_default().insert(node);
            }
            "/csi.v1.Controller/ControllerUnpublishVolume" => match node.as_str() {
                "" => {
                    known.nodes.remove(&volume);
                }
                node => {
                    if let Some(nodes) = known.nodes.get_mut(&volume) {
                        nodes.remove(node);
                        if nodes.is_empty() {
                            known.nodes.remove(&volume);
                        }
                    }
                }
            },
            "/csi.v1.Controller/DeleteVolume" => {
                known.nodes.remove(&volume);
            }
            _ => {}
        }
    }

    /// The location of a volume. Each counts as existing, because rules about absent ones need the array.
    pub(super) fn location(&self, volume: &str, node: &str) -> VolumeLocation {
        let known = self.lock();
        let nodes = known.nodes.get(volume);
        VolumeLocation {
            exists: true,
            here: nodes.is_some_and(|nodes| nodes.contains(node)),
            elsewhere: nodes.is_some_and(|nodes| nodes.iter().any(|other| other != node)),
        }
    }

    /// Number of volumes attached, or being attached by other calls, to the node of a call.
    pub(super) fn on_node(&self, call: &dyn CallInfo, reserved: &Reservations) -> u64 {
        let known = self.lock();
        let is_here = |volume: &str| {
            let nodes = known.nodes.get(volume);
            nodes.is_some_and(|nodes| nodes.contains(call.node()))
        };
        let here = known.nodes.keys().filter(|volume| is_here(volume)).count();
        let others = reserved.attaching(call.node());
        let coming = others.filter(|other| *other != call.volume() && !is_here(other));
        u64::try_from(here + coming.count()).unwrap_or(u64::MAX)
    }

    /// Learns the driver's node from the response of NodeGetInfo.
    pub(super) fn learn_here(&self, call: &dyn CallInfo, reply: Option<&[u8]>) {
        if call.path() == "/csi.v1.Node/NodeGetInfo"
            && let Some(Ok(info)) = reply.map(NodeGetInfoResponse::decode)
        {
            self.set_here(info.node_id);
        }
    }

    pub(super) fn set_here(&self, node: String) {
        self.lock().here = node;
    }

    /// The node of the driver; empty before the first NodeGetInfo.
    pub(super) fn here(&self) -> String {
        self.lock().here.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        crate::lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::v1::{ControllerPublishVolumeRequest, DeleteVolumeRequest};

    use std::sync::Arc;

    use super::super::forwarded_request::ForwardedRequest;
    use super::*;
    use crate::rpc::method::Method;

    fn learn<M: Message>(attachments: &Arc<KnownAttachments>, rpc: &str, request: &M) {
        let rpc: Option<Method> = rpc.parse().ok();
        let path = rpc.map(Method::path).unwrap_or_default().to_owned();
        attachments.learn(&ForwardedRequest::new(
            path,
            rpc,
            Some(&request.encode_to_vec()),
            attachments.clone(),
        ));
    }

    #[test]
    fn deleted_volume_leaves_nothing_behind() {
        let attachments = Arc::new(KnownAttachments::default());
        for number in 0..500 {
            let volume_id = format!("vol-{number}");
            let publish = ControllerPublishVolumeRequest {
                volume_id: volume_id.clone(),
                node_id: "node-0".to_owned(),
                ..Default::default()
            };
            learn(&attachments, "ControllerPublishVolume", &publish);
            let delete = DeleteVolumeRequest {
                volume_id,
                ..Default::default()
            };
            learn(&attachments, "DeleteVolume", &delete);
            assert!(attachments.lock().nodes.is_empty());
        }
        // The driver may have created a volume with the same id since then.
        let location = attachments.location("vol-0", "node-0");
        assert!(location.exists && !location.here && !location.elsewhere);
    }
}
