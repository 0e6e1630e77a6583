use std::collections::HashMap;

use csi_proto::v1::{
    ControllerPublishVolumeRequest, CreateVolumeRequest, ListSnapshotsResponse, ProbeRequest, Snapshot,
    list_snapshots_response,
};
use prost_types::Timestamp;
use serde_json::json;

use super::*;

const PUBLISH: &str = "/csi.v1.Controller/ControllerPublishVolume";

fn mk_request(secrets: &[(&str, &str)]) -> ControllerPublishVolumeRequest {
    let secrets: HashMap<String, String> = secrets
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect();
    ControllerPublishVolumeRequest {
        volume_id: "vol-0".into(),
        node_id: "node-0".into(),
        secrets,
        ..Default::default()
    }
}

fn shown(renderer: &Renderer, request: &ControllerPublishVolumeRequest) -> [Value; 2] {
    let wire = renderer.keep_wire(PUBLISH, Direction::Request, &request.encode_to_vec());
    [renderer.json(&renderer.keep(request)), renderer.json(&wire)]
}

#[test]
fn secrets_are_hashed_and_the_rest_is_shown() {
    let renderer = Renderer::new(Some([7; 16]));
    let request = mk_request(&[("user", "root"), ("same", "root"), ("password", "hunter2")]);
    let [typed, wire] = shown(&renderer, &request);
    assert_eq!(typed, wire, "whichever way it came");
    let text = typed.to_string();
    assert!(!text.contains("hunter2") && !text.contains("root"), "{text}");
    assert_eq!(typed["volume_id"], json!("vol-0"));
    assert_eq!(typed["secrets"]["user"], typed["secrets"]["same"]);
    assert_ne!(typed["secrets"]["user"], typed["secrets"]["password"]);
    assert_eq!(typed.get("readonly"), None, "defaults are left out");
}

#[test]
fn another_key_makes_another_hash_and_none_shows_all() {
    let request = mk_request(&[("password", "hunter2")]);
    let one = shown(&Renderer::new(Some([1; 16])), &request);
    let other = shown(&Renderer::new(Some([2; 16])), &request);
    for (one, other) in one.iter().zip(&other) {
        assert_ne!(one["secrets"]["password"], other["secrets"]["password"]);
    }
    for shown in shown(&Renderer::new(None), &request) {
        assert_eq!(shown["secrets"]["password"], "hunter2");
    }
}

#[test]
fn tokens_of_a_pod_are_hashed_although_csi_does_not_mark_them() {
    let mut request = mk_request(&[]);
    let tokens = r#"{"aud":{"token":"ey.hunter2.sig"}}"#;
    request.volume_context = [
        (TOKENS.to_owned(), tokens.to_owned()),
        ("csi.storage.k8s.io/pod.name".to_owned(), "web-0".to_owned()),
    ]
    .into();
    let [typed, wire] = shown(&Renderer::new(Some([7; 16])), &request);
    assert_eq!(typed, wire, "whichever way it came");
    assert!(!typed.to_string().contains("hunter2"), "{typed}");
    let context = &typed[CONTEXT];
    assert!(context[TOKENS].as_str().unwrap().starts_with("hash:"), "{typed}");
    assert_eq!(context["csi.storage.k8s.io/pod.name"], "web-0");
    for shown in shown(&Renderer::new(None), &request) {
        assert_eq!(shown[CONTEXT][TOKENS], tokens);
    }
}

#[test]
fn fields_without_json_are_shown_raw() {
    let listed = |seconds, nanos| {
        let snapshot = |id: &str, creation_time| Snapshot {
            snapshot_id: id.to_owned(),
            size_bytes: 7,
            creation_time,
            ..Default::default()
        };
        let good = snapshot("good", Some(Timestamp { seconds: 0, nanos: 0 }));
        let bad = snapshot("bad", Some(Timestamp { seconds, nanos }));
        let entry = |snapshot| list_snapshots_response::Entry {
            snapshot: Some(snapshot),
        };
        ListSnapshotsResponse {
            entries: vec![entry(good), entry(bad)],
            next_token: "next".to_owned(),
        }
    };
    let path = "/csi.v1.Controller/ListSnapshots";
    let renderer = Renderer::new(Some([7; 16]));
    // Milliseconds, a drivers' favourite, and worse.
    for (seconds, nanos) in [(1_700_000_000_000, 5), (i64::MIN, i32::MIN), (i64::MAX, i32::MAX)] {
        let reply = listed(seconds, nanos);
        let wire = renderer.keep_wire(path, Direction::Response, &reply.encode_to_vec());
        for shown in [renderer.json(&renderer.keep(&reply)), renderer.json(&wire)] {
            let [good, bad] = [0, 1].map(|nth| shown["entries"][nth]["snapshot"].clone());
            assert_eq!(good["creation_time"], "1970-01-01T00:00:00Z");
            assert_eq!(bad["creation_time"], json!({"seconds": seconds, "nanos": nanos}));
            assert_eq!(
                (&bad["snapshot_id"], &bad["size_bytes"]),
                (&json!("bad"), &json!(7))
            );
            assert_eq!(shown["next_token"], "next");
        }
    }
}

#[test]
fn unknown_fields_are_dropped_and_unknown_messages_shown_by_size() {
    let renderer = Renderer::new(Some([7; 16]));
    let request = mk_request(&[]).encode_to_vec();
    let foreign = renderer.keep_wire("/acme.v1.Array/Login", Direction::Request, &request);
    assert_eq!(renderer.json(&foreign), json!({"bytes": request.len()}));
    let broken = renderer.keep_wire(PUBLISH, Direction::Request, b"\xff\xff");
    assert_eq!(renderer.json(&broken), json!({"bytes": 2}));
    // A field of a later CSI version, which may be a secret: number 1000, a text.
    let mut later = request.clone();
    later.extend_from_slice(b"\xc2\x3e\x07hunter2");
    let kept = renderer.keep_wire(PUBLISH, Direction::Request, &later);
    assert_eq!(kept.len(), request.len());
    assert_eq!(renderer.json(&kept)["volume_id"], "vol-0");
}

#[test]
fn extracts_volume_and_node_from_requests() {
    let renderer = Renderer::new(None);
    let subject = |kept: RedactedMessage| {
        let Subject { volume, node } = kept.subject();
        (volume, node)
    };
    let both = ("vol-0".to_owned(), "node-0".to_owned());
    assert_eq!(subject(renderer.keep(&mk_request(&[("a", "b")]))), both);
    let create = CreateVolumeRequest {
        name: "pvc-1".into(),
        ..Default::default()
    };
    assert_eq!(subject(renderer.keep(&create)).0, "pvc-1");
    assert_eq!(subject(renderer.keep(&ProbeRequest {})), Default::default());
}
