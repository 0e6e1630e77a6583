//! Required credentials of calls.

use csi_proto::v1;
use tonic::Code;

use super::{World, assert_refused, mk_expand, mk_group, mk_snapshot, mk_volume};
use crate::server::{mk_delete, mk_map, mk_publish, mk_unpublish};

const METHODS: [&str; 16] = [
    "CreateVolume",
    "DeleteVolume",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "ValidateVolumeCapabilities",
    "ControllerListVolumeHealth",
    "ControllerGetVolumeHealth",
    "CreateSnapshot",
    "DeleteSnapshot",
    "ListSnapshots",
    "GetSnapshot",
    "ControllerExpandVolume",
    "ControllerModifyVolume",
    "CreateVolumeGroupSnapshot",
    "DeleteVolumeGroupSnapshot",
    "GetVolumeGroupSnapshot",
];

/// Asserts that the call succeeded, or, with `code`, that it was refused and the response contains no credential.
fn assert_outcome(call: &str, outcome: Result<(), tonic::Status>, code: Option<Code>) {
    let Some(code) = code else {
        return outcome.expect(call);
    };
    assert_refused(call, outcome.clone(), code, &["secrets", "password"]);
    let text = outcome.unwrap_err().message().to_owned();
    assert!(
        !text.contains("xyzzy") && !text.contains("plugh"),
        "{call}: {text}"
    );
}

#[tokio::test]
async fn missing_secret_is_invalid_argument_and_a_wrong_one_is_unauthenticated() {
    let world = World::start_with(|_, settings| {
        let required = METHODS.map(|method| format!("{method}:password=xyzzy").parse().unwrap());
        settings.config.secrets = required.into_iter().collect();
        settings.initial_volumes = 1;
    })
    .await;
    let right = mk_map(&[("password", "xyzzy")]);
    for (secrets, code) in [
        (mk_map(&[]), Some(Code::InvalidArgument)),
        (mk_map(&[("user", "xyzzy")]), Some(Code::InvalidArgument)),
        (mk_map(&[("password", "plugh")]), Some(Code::Unauthenticated)),
        (right, None),
    ] {
        let (mut controller, mut groups) = (world.controller.clone(), world.groups.clone());
        macro_rules! outcome {
            ($client:ident.$call:ident($request:expr)) => {{
                let mut request = $request;
                request.secrets = secrets.clone();
                (stringify!($call), $client.$call(request).await.map(drop))
            }};
        }
        let validate = v1::ValidateVolumeCapabilitiesRequest {
            volume_id: "vol-0".into(),
            volume_capabilities: mk_volume("").volume_capabilities,
            ..Default::default()
        };
        let modify = v1::ControllerModifyVolumeRequest {
            volume_id: "vol-0".into(),
            mutable_parameters: mk_map(&[("tier", "gold")]),
            ..Default::default()
        };
        let outcomes = [
            outcome!(controller.create_volume(mk_volume("a"))),
            outcome!(controller.delete_volume(mk_delete("gone"))),
            outcome!(controller.controller_publish_volume(mk_publish("vol-0", "node-0"))),
            outcome!(controller.controller_unpublish_volume(mk_unpublish("vol-0", "node-0"))),
            outcome!(controller.validate_volume_capabilities(validate)),
            outcome!(
                controller.controller_list_volume_health(v1::ControllerListVolumeHealthRequest {
                    max_entries: 1,
                    ..Default::default()
                })
            ),
            outcome!(
                controller.controller_get_volume_health(v1::ControllerGetVolumeHealthRequest {
                    volume_id: "vol-0".into(),
                    ..Default::default()
                })
            ),
            outcome!(controller.create_snapshot(mk_snapshot("s", "vol-0"))),
            outcome!(controller.delete_snapshot(v1::DeleteSnapshotRequest {
                snapshot_id: "gone".into(),
                ..Default::default()
            })),
            outcome!(controller.list_snapshots(v1::ListSnapshotsRequest {
                max_entries: 1,
                ..Default::default()
            })),
            outcome!(controller.controller_expand_volume(mk_expand("vol-0", 2 << 30, 0))),
            outcome!(controller.controller_modify_volume(modify)),
            outcome!(groups.create_volume_group_snapshot(mk_group("g", &["vol-0"]))),
            outcome!(
                groups.delete_volume_group_snapshot(v1::DeleteVolumeGroupSnapshotRequest {
                    group_snapshot_id: "gone".into(),
                    ..Default::default()
                })
            ),
        ];
        for (call, outcome) in outcomes {
            assert_outcome(call, outcome, code);
        }
    }
}
