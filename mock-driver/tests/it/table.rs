//! Tables of calls and expected results.

use std::num::NonZeroUsize;

use csi_mock_driver::driver::Settings;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::{self, VolumeCapability};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::server::{Server, mk_create, mk_delete, mk_mount, mk_publish, mk_unpublish, published};

/// A call in a table.
#[derive(Clone)]
pub(crate) enum Call {
    /// Volume, node, capability, readonly.
    Publish(&'static str, &'static str, VolumeCapability, bool),
    /// Volume, node.
    Unpublish(&'static str, &'static str),
    Delete(&'static str),
    Create(v1::CreateVolumeRequest),
}

/// The expected result of a call: success, or a code and words of its message.
pub(crate) type Expected = Result<(), (Code, &'static [&'static str])>;

/// Case, preparing calls, the call, its expected result.
pub(crate) type Row = (&'static str, Vec<Call>, Call, Expected);

/// Runs each row on a new driver with volumes `vol-0` to `vol-4`: the preparing calls must succeed, the call must have the
/// expected result, and a refused call must not change the state.
pub(crate) async fn check(limit: Option<NonZeroUsize>, rows: Vec<Row>) {
    for (case, before, call, expected) in rows {
        let server = Server::start_with(|_, settings: &mut Settings| {
            settings.initial_volumes = 5;
            settings.array.attach_limit = limit.map(NonZeroUsize::get);
        })
        .await;
        let mut client = server.controller().await;
        for call in before {
            make(&mut client, call)
                .await
                .unwrap_or_else(|status| panic!("{case}: preparation: {status}"));
        }
        let state = published(&mut client).await;
        match (make(&mut client, call).await, expected) {
            (Ok(()), Ok(())) => {}
            (Err(status), Err((code, words))) => {
                assert_eq!(status.code(), code, "{case}: {status}");
                for word in words {
                    assert!(
                        status.message().contains(word),
                        "{case}: {word:?} is not in {status}"
                    );
                }
                assert!(
                    !status.message().is_empty() && status.details().is_empty(),
                    "{case}: {status}"
                );
                assert_eq!(
                    published(&mut client).await,
                    state,
                    "{case}: a refusal changes nothing"
                );
            }
            (outcome, expected) => panic!("{case}: {outcome:?}, expected {expected:?}"),
        }
    }
}

pub(crate) async fn make(client: &mut ControllerClient<Channel>, call: Call) -> Result<(), Status> {
    match call {
        Call::Publish(volume, node, capability, readonly) => {
            let request = v1::ControllerPublishVolumeRequest {
                volume_capability: Some(capability),
                readonly,
                ..mk_publish(volume, node)
            };
            client.controller_publish_volume(request).await.map(drop)
        }
        Call::Unpublish(volume, node) => client
            .controller_unpublish_volume(mk_unpublish(volume, node))
            .await
            .map(drop),
        Call::Delete(volume) => client.delete_volume(mk_delete(volume)).await.map(drop),
        Call::Create(request) => client.create_volume(request).await.map(drop),
    }
}

pub(crate) fn refused(code: Code, words: &'static [&'static str]) -> Expected {
    Err((code, words))
}

/// Creates a volume of that name with [`rwo`], and returns its id.
pub(crate) async fn created(client: &mut ControllerClient<Channel>, name: &str) -> String {
    client
        .create_volume(mk_create(name))
        .await
        .unwrap()
        .into_inner()
        .volume
        .unwrap()
        .volume_id
}

pub(crate) fn rwo() -> VolumeCapability {
    mk_mount("", Mode::SingleNodeWriter)
}

pub(crate) fn rwx() -> VolumeCapability {
    mk_mount("", Mode::MultiNodeMultiWriter)
}

pub(crate) fn rox() -> VolumeCapability {
    mk_mount("", Mode::MultiNodeReaderOnly)
}

pub(crate) fn one_writer() -> VolumeCapability {
    mk_mount("", Mode::MultiNodeSingleWriter)
}
