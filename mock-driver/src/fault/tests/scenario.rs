//! What built-in scenarios do to calls.

use csi_proto::v1;
use tonic::Code;

use super::*;
use crate::fault::scenario::{self, Scenario};

/// A call of which only the method and the size matter.
struct SizedCall {
    path: String,
    bytes: u64,
}

impl CallInfo for SizedCall {
    fn path(&self) -> &str {
        &self.path
    }

    fn volume(&self) -> &str {
        "vol-0"
    }

    fn size(&self) -> u64 {
        self.bytes
    }
}

#[test]
fn node_and_resize_scenarios_fail_matching_calls() {
    const GIB: u64 = 1 << 30;
    let (invalid, late) = (Some(Code::InvalidArgument), Some(Code::DeadlineExceeded));
    // (scenario, service/method, bytes, answers to call after call)
    let table = [
        (
            "stage-final",
            "Node/NodeStageVolume",
            0,
            vec![invalid, invalid, invalid, None],
        ),
        (
            "stage-uncertain",
            "Node/NodeStageVolume",
            0,
            vec![late, late, late, None],
        ),
        ("unstage-fails", "Node/NodeUnstageVolume", 0, vec![invalid, None]),
        ("unstage-uncertain", "Node/NodeUnstageVolume", 0, vec![late, None]),
        (
            "resize-infeasible",
            "Controller/ControllerExpandVolume",
            11 * GIB,
            vec![invalid, invalid],
        ),
        (
            "resize-infeasible",
            "Controller/ControllerExpandVolume",
            10 * GIB,
            vec![None],
        ),
        (
            "resize-denied",
            "Controller/ControllerExpandVolume",
            11 * GIB,
            vec![Some(Code::PermissionDenied)],
        ),
        (
            "resize-denied",
            "Controller/ControllerExpandVolume",
            10 * GIB,
            vec![None],
        ),
        (
            "node-resize-infeasible",
            "Node/NodeExpandVolume",
            9 * GIB,
            vec![invalid],
        ),
        (
            "node-resize-infeasible",
            "Node/NodeExpandVolume",
            8 * GIB,
            vec![None],
        ),
    ];
    for (name, method, bytes, expected) in table {
        let faults = Faults::new(Seed(1));
        faults
            .load(Origin::Scenario, Scenario::named(name).unwrap().rules())
            .unwrap();
        let call = SizedCall {
            path: format!("/csi.v1.{method}"),
            bytes,
        };
        let answer = |_| {
            faults
                .decide(&call)
                .rule
                .and_then(|fired| faults.apply(fired)?.rule().status())
                .map(|(code, _)| code)
        };
        let answers: Vec<_> = expected.iter().map(answer).collect();
        assert_eq!(answers, expected, "{name}");
    }
}

#[test]
fn a_limit_shrinks_from_the_second_call_on() {
    let faults = Faults::new(Seed(1));
    faults
        .load(
            Origin::Scenario,
            Scenario::named("limit-shrinks").unwrap().rules(),
        )
        .unwrap();
    let call = SizedCall {
        path: "/csi.v1.Node/NodeGetInfo".into(),
        bytes: 0,
    };
    assert!(faults.decide(&call).rule.is_none());
    let reply = v1::NodeGetInfoResponse {
        node_id: "n".into(),
        max_volumes_per_node: 9,
        ..Default::default()
    };
    let fired = faults.decide(&call).rule.expect("from the second call on");
    let edited = fired
        .edit_reply(&call.path, &prost::Message::encode_to_vec(&reply))
        .unwrap();
    let edited: v1::NodeGetInfoResponse = prost::Message::decode(edited.as_slice()).unwrap();
    assert_eq!((edited.node_id.as_str(), edited.max_volumes_per_node), ("n", 1));
}

#[test]
fn scenarios_delay_detaches_and_hide_devices() {
    let slow = Faults::new(Seed(1));
    slow.load(Origin::Scenario, Scenario::named("detach-slow").unwrap().rules())
        .unwrap();
    let call = SizedCall {
        path: "/csi.v1.Controller/ControllerUnpublishVolume".into(),
        bytes: 0,
    };
    let delays: Vec<_> = (0..50).map(|_| slow.decide(&call).rule.unwrap().delay).collect();
    assert!(delays.iter().all(|delay| *delay <= Duration::from_secs(20)));
    assert!(
        delays.iter().any(|delay| *delay > Duration::from_secs(3)),
        "{delays:?}"
    );

    let missing = Faults::new(Seed(1));
    scenario::play(&[Scenario::named("device-missing").unwrap()], &[], &missing).unwrap();
    assert_eq!(missing.device("vol-0", "node-0"), Some(DeviceFault::Absent));
}
