//! Target and secret of a detach.

use super::*;

#[test]
fn detach_uses_the_recorded_target() {
    use NodeState::*;
    // recorded node id, recorded handle, present node id -> target, how the present id relates to it
    for (recorded_id, recorded_handle, present_id, expected, present) in [
        (
            Some("id-1"),
            Some("handle"),
            Some("id-1"),
            target("handle", "id-1"),
            SameId,
        ),
        (
            Some("id-0"),
            Some("handle"),
            Some("id-1"),
            target("handle", "id-0"),
            OtherId("id-1".into()),
        ),
        (
            Some("id-0"),
            Some("old"),
            None,
            target("old", "id-0"),
            Unregistered,
        ),
        // An attachment of the Go sidecar, which records no handle.
        (
            Some("id-0"),
            None,
            Some("id-1"),
            target("handle", "id-0"),
            OtherId("id-1".into()),
        ),
        (None, None, Some("id-1"), target("handle", "id-1"), SameId),
    ] {
        let inputs = mk_inputs(|attachment, _, node| {
            attachment.recorded.node_id = recorded_id.map(Arc::from);
            attachment.recorded.handle = recorded_handle.map(Arc::from);
            node.id = present_id.map(Arc::from);
        });
        let plan = detach(&inputs, &mk_driver()).unwrap();
        assert_eq!(
            plan.target, expected,
            "{recorded_id:?} {recorded_handle:?} {present_id:?}"
        );
        assert_eq!(plan.node, present);
    }
}

#[test]
fn detach_works_without_volume_and_node() {
    let mut inputs = mk_inputs(|attachment, _, _| {
        attachment.recorded.node_id = Some("id-1".into());
        attachment.recorded.handle = Some("handle".into());
        attachment.recorded.secret = SecretRef::parse("ns/creds");
    });
    inputs.volume = None;
    inputs.node = None;
    let plan = detach(&inputs, &mk_driver()).unwrap();
    assert_eq!(plan.target, target("handle", "id-1"));
    assert_eq!(plan.node, NodeState::Gone);
    assert_eq!(plan.secret, SecretRef::parse("ns/creds"));
}

#[test]
fn detach_ignores_that_the_volume_is_being_deleted() {
    let inputs = mk_inputs(|_, volume, _| volume.deleting = true);
    assert_eq!(
        detach(&inputs, &mk_driver()).unwrap().target,
        target("handle", "id-1")
    );
}

#[test]
fn detach_without_record_names_the_missing_object() {
    let inputs = AttachInputs {
        volume: None,
        ..mk_inputs(|_, _, _| ())
    };
    assert_eq!(
        detach(&inputs, &mk_driver()).unwrap_err().to_string(),
        r#"persistentvolume "pv" not found"#
    );
    let inputs = mk_inputs(|_, _, node| node.id = None);
    assert_eq!(
        detach(&inputs, &mk_driver()).unwrap_err().to_string(),
        "CSINode node does not contain driver d.example"
    );
}

#[test]
fn detach_uses_the_recorded_secret_of_a_replaced_volume() {
    let inputs = mk_inputs(|attachment, volume, _| {
        attachment.recorded.node_id = Some("id-1".into());
        attachment.recorded.handle = Some("old".into());
        attachment.recorded.secret = SecretRef::parse("ns/old");
        csi_of(volume).publish_secret = SecretRef::parse("ns/new");
    });
    assert_eq!(
        detach(&inputs, &mk_driver()).unwrap().secret,
        SecretRef::parse("ns/old")
    );
}

#[test]
fn detaches_an_untranslatable_volume_by_its_record() {
    let mut inputs = mk_inputs(|attachment, volume, _| {
        (volume.spec.csi, volume.spec.migrated) = (Err(untranslatable()), true);
        attachment.recorded.handle = Some("handle".into());
    });
    let plan = detach(&inputs, &mk_driver()).unwrap();
    assert_eq!((plan.target, plan.migrated), (target("handle", "id-1"), true));
    inputs = mk_inputs(|_, volume, _| volume.spec.csi = Err(untranslatable()));
    assert_eq!(
        detach(&inputs, &mk_driver()).unwrap_err().to_string(),
        "failed to translate in tree pv to CSI: kind(Shared) is not supported in csi migration"
    );
}
