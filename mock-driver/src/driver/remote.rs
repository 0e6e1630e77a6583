//! An array in another process, through that process's admin API.
//!
//! A node polls its attachments, so that devices are created and removed without a call; and it reads a volume again before
//! it uses it, so that no call depends on the polling. Volume files are not part of this: all processes share their
//! directory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::{Mutex, OnceCell, RwLock};
use tonic::Code;

use crate::admin_api::Endpoint;
use crate::admin_api::client::{self, Client};
use crate::admin_api::resource;
use crate::array::{Attachment, Capability, PublishParams, Segments, StorageHealthIssue};
use crate::driver::locks::{BusyRule, Guard, Key, LockMode, LockTable, Scope};
use crate::error_chain;
use crate::node::{self, ArrayVolume, Node};
use crate::rpc::code;

pub(crate) const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// Timeout of a response. The array's process only reads memory or writes a few bytes; a call that takes longer is better
/// retried.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct RemoteArray {
    client: Client,
    /// For attaching and detaching, which take the volume's `latency`. A client that timed out would not know the result.
    client_without_timeout: Client,
    pub(crate) endpoint: Endpoint,
    /// A task that acts on a response about a volume holds its lock from the request on.
    locks: LockTable,
    /// Read-locked while devices are attached, so that the sweep removes none meanwhile.
    pub(super) devices: RwLock<()>,
    /// Whether this process has reported its node's topology; locked during the node's registration.
    pub(super) topology_reported: Mutex<bool>,
    /// Set after the first successful check, or if no check is needed.
    media: OnceCell<()>,
    seen: std::sync::Mutex<SweepState>,
}

/// The attachments of this process's node at the last response.
#[derive(Debug, Default)]
struct SweepState {
    here: BTreeSet<String>,
    /// Volumes found attached since the sweep's request, whose response may be older.
    since: BTreeSet<String>,
}

// === impl RemoteArray ===

impl RemoteArray {
    /// With `shares_media`, the media directory must be the array's.
    pub(crate) fn at(endpoint: Endpoint, shares_media: bool) -> Self {
        Self {
            client: Client::new(endpoint.clone()).within(ANSWER_WITHIN),
            client_without_timeout: Client::new(endpoint.clone()),
            endpoint,
            locks: LockTable::new(BusyRule::Wait),
            devices: RwLock::default(),
            topology_reported: Mutex::default(),
            media: OnceCell::new_with((!shares_media).then_some(())),
            seen: std::sync::Mutex::default(),
        }
    }

    /// Call before the sweep's request.
    pub(crate) fn begin_sweep(&self) {
        self.seen().since.clear();
    }

    /// Stores the sweep's response and returns the volumes whose devices remain.
    pub(crate) fn end_sweep(&self, attached: &[String]) -> Vec<String> {
        let mut seen = self.seen();
        seen.here = attached.iter().chain(&seen.since).cloned().collect();
        seen.here.iter().cloned().collect()
    }

    pub(crate) fn note(&self, volume: &str, is_attached: bool) {
        let mut seen = self.seen();
        let SweepState { here, since } = &mut *seen;
        for set in [here, since] {
            if is_attached {
                set.insert(volume.to_owned());
            } else {
                set.remove(volume);
            }
        }
    }

    /// Whether the volume was attached to this process's node at the last response.
    pub(crate) fn is_here(&self, volume: &str) -> bool {
        self.seen().here.contains(volume)
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, SweepState> {
        crate::lock(&self.seen)
    }

    /// Locks a volume for a request and the action on its response.
    pub(crate) async fn lock_volume(&self, volume: &str) -> Option<Vec<Guard>> {
        let keys = vec![(Key::OnNode(volume.to_owned()), LockMode::Exclusive)];
        self.locks.lock(Scope::Operation, keys).await.ok()
    }

    /// Checks that the media directory is the array's, and then removes leftovers of the node in it; once.
    pub(crate) async fn check_media(&self, node: &Arc<Node>) -> Result<(), node::Error> {
        let check = async || {
            let info = self.client.info().await.map_err(|error| no_array(&error))?;
            // Without an array it has no media directory.
            if let Some(array) = info.array {
                node.volume_files
                    .check_array(&array, &self.endpoint.to_string())?;
            }
            node.sweep_ephemeral().await;
            Ok(())
        };
        self.media.get_or_try_init(check).await.copied()
    }

    /// Whether [`RemoteArray::check_media`] has succeeded or is not needed.
    pub(crate) fn has_checked_media(&self) -> bool {
        self.media.initialized()
    }

    /// The view of a volume from a node; `None` if the volume does not exist.
    pub(crate) async fn view(&self, volume: &str, node: &str) -> Result<Option<ArrayVolume>, node::Error> {
        let found = match self.client.volume(volume).await {
            Ok(found) => found,
            Err(error) if is_not_found(&error) => return Ok(None),
            Err(error) => return Err(no_array(&error)),
        };
        let attachment = found
            .attachments
            .iter()
            .find(|attachment| attachment.node == node);
        Ok(Some(ArrayVolume {
            bytes: found.capacity_bytes,
            attachment: attachment.map(read_attachment).transpose()?,
            issues: found.health,
        }))
    }

    /// The array's record of a node; `None` if the node never joined. A node that was removed still has a record: it must not
    /// join again by itself.
    pub(crate) async fn node(&self, id: &str) -> Result<Option<resource::Node>, node::Error> {
        match self.client.node(id).await {
            Ok(node) => Ok(Some(node)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(no_array(&error)),
        }
    }

    pub(crate) async fn attach(
        &self,
        volume: &str,
        node: &str,
        capability: &Capability,
    ) -> Result<(), node::Error> {
        let attach = resource::Attach {
            access_mode: Some(capability.mode.name().to_owned()),
            block: capability.is_block(),
            readonly: false,
        };
        let attached = self.client_without_timeout.attach(volume, node, &attach).await;
        attached.map(drop).map_err(refusal)
    }

    /// Detaches a volume from a node; succeeds if it is not attached.
    pub(crate) async fn detach(&self, volume: &str, node: &str) -> Result<(), node::Error> {
        match self.client_without_timeout.detach(volume, node).await {
            Err(error) if !is_not_found(&error) => Err(refusal(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Health issues of the storage from a node's point of view; those of all nodes first.
    pub(crate) async fn storage_health(&self, node: &str) -> Result<Vec<StorageHealthIssue>, node::Error> {
        let storage = self.client.storage().await.map_err(|error| no_array(&error))?;
        let own = storage.nodes.into_iter().filter(|own| own.node == node);
        let all = storage.health.into_iter().chain(own.flat_map(|own| own.health));
        Ok(all.collect())
    }

    pub(crate) async fn join(&self, id: &str, segments: &Segments) -> Result<(), node::Error> {
        let new = resource::NodeNew {
            id: id.to_owned(),
            limit: None,
            topology: Some(segments.as_map().clone()).filter(|topology| !topology.is_empty()),
        };
        let joined = self.client.register_node(&new).await;
        joined.map(drop).map_err(|error| no_array(&error))
    }

    /// Changes the topology of a known node, registered or not.
    pub(crate) async fn set_node_topology(&self, id: &str, segments: &Segments) -> Result<(), node::Error> {
        let change = resource::NodeChange {
            topology: Some(segments.as_map().clone()),
            ..resource::NodeChange::default()
        };
        let changed = self.client.change_node(id, &change).await;
        changed.map(drop).map_err(|error| no_array(&error))
    }
}

fn is_not_found(error: &client::Error) -> bool {
    matches!(error, client::Error::Refused { status, .. } if *status == StatusCode::NOT_FOUND)
}

fn refusal(error: client::Error) -> node::Error {
    if let client::Error::Refused { problem, .. } = error {
        let code = code::named(&problem.code).unwrap_or(Code::Unknown);
        return node::Error::refused(code, problem.message);
    }
    no_array(&error)
}

fn no_array(error: &client::Error) -> node::Error {
    node::Error::no_array(&error_chain(error))
}

fn read_attachment(attachment: &resource::Attachment) -> Result<Attachment, node::Error> {
    let capability = Capability::read(&attachment.capability)
        .ok_or_else(|| node::Error::no_array(&format!("unknown capability \"{}\"", attachment.capability)))?;
    Ok(Attachment {
        number: attachment.number,
        params: PublishParams {
            capability,
            readonly: attachment.readonly,
        },
    })
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;
    use crate::store::volume_files::VolumeFiles;

    #[tokio::test(start_paused = true)]
    async fn requests_time_out_if_array_does_not_answer() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("admin.sock");
        // As that of a process that was stopped: the kernel takes connections for it. Attaching and detaching wait.
        let _listener = UnixListener::bind(&socket).unwrap();
        let remote = RemoteArray::at(format!("unix://{}", socket.display()).parse().unwrap(), true);
        let segments = Segments::default();
        let files = VolumeFiles::kept(directory.path().to_owned());
        let node = Node::open(
            "node-0".to_owned(),
            node::Settings::default(),
            files,
            None,
            Arc::default(),
        )
        .unwrap();
        let refused = [
            remote.check_media(&Arc::new(node)).await,
            remote.view("vol-0", "node-0").await.map(drop),
            remote.node("node-0").await.map(drop),
            remote.storage_health("node-0").await.map(drop),
            remote.join("node-0", &segments).await,
            remote.set_node_topology("node-0", &segments).await,
        ];
        for refused in refused {
            let error = refused.unwrap_err();
            assert_eq!(error.code(), Code::Unavailable);
            assert!(error.to_string().contains("timed out after 5s"), "{error}");
        }
    }

    #[tokio::test]
    async fn sweep_keeps_volumes_found_attached_since_it_began() {
        let remote = RemoteArray::at(Endpoint::None, false);
        remote.note("before", true);
        remote.begin_sweep();
        remote.note("meanwhile", true);
        remote.note("come-and-gone", true);
        remote.note("come-and-gone", false);
        let kept = remote.end_sweep(&["listed".to_owned()]);
        assert_eq!(kept, ["listed", "meanwhile"]);
        for (volume, is_here) in [("before", false), ("meanwhile", true), ("listed", true)] {
            assert_eq!(remote.is_here(volume), is_here, "{volume}");
        }
    }

    #[tokio::test]
    async fn one_volume_waits_for_itself_only() {
        let remote = RemoteArray::at(Endpoint::None, false);
        let first = remote.lock_volume("a").await;
        let mut second = tokio_test::task::spawn(remote.lock_volume("a"));
        tokio_test::assert_pending!(second.poll());
        drop(remote.lock_volume("b").await);
        drop(first);
        assert!(second.is_woken());
    }
}
