//! The rules as tables, and minimal valid objects for other modules' tests.

mod attach;
mod detach;
mod machine;
mod proof;
mod target_usage;

use super::*;
use crate::model::{
    Capabilities, CsiSource, Metadata, NoCsiSource, PublishTarget, Recorded, SecretRef, Source, Uid, Version,
};

pub(crate) const DRIVER: &str = "d.example";

pub(crate) fn mk_driver() -> Driver {
    Driver::new(
        DRIVER,
        Capabilities {
            publish: true,
            ..Capabilities::default()
        },
        "",
    )
}

pub(crate) fn mk_attachment(name: &str) -> Attachment {
    Attachment {
        name: name.into(),
        uid: format!("uid-{name}").as_str().into(),
        version: Version(1),
        deleting: false,
        created: None,
        requested_at: None,
        finalizer: false,
        foreign_finalizers: false,
        node: "node".into(),
        source: Source::Volume("pv".into()),
        recorded: Recorded::default(),
        attached: false,
        metadata: Metadata::default(),
        attach_error: None,
        detach_error: None,
    }
}

pub(crate) fn mk_spec(handle: &str) -> VolumeSpec {
    VolumeSpec {
        csi: Ok(CsiSource {
            driver: DRIVER.into(),
            handle: handle.into(),
            ..CsiSource::default()
        }),
        access_modes: vec!["ReadWriteOnce".to_owned()],
        ..VolumeSpec::default()
    }
}

pub(crate) fn mk_volume(name: &str) -> Volume {
    Volume {
        name: name.into(),
        uid: format!("uid-{name}").as_str().into(),
        version: Version(1),
        created: None,
        deleting: false,
        finalizer: false,
        left_in_tree: false,
        spec: mk_spec("handle"),
    }
}

pub(crate) fn mk_node(name: &str, id: Option<&str>) -> Node {
    Node {
        name: name.into(),
        uid: "uid-node".into(),
        version: Version(1),
        created: None,
        id: id.map(Arc::from),
    }
}

/// A proof by OK.
pub(crate) fn mk_proof(uid: &Uid) -> Proof {
    let plan = detach(&mk_inputs(|_, _, _| ()), &mk_driver()).unwrap();
    let evidence = proof::mk_evidence(uid, &plan, UnpublishResult::Unpublished);
    let Decision::Released(proof) = decide(&evidence) else {
        panic!("OK must be a proof");
    };
    proof
}

fn mk_inputs(change: impl FnOnce(&mut Attachment, &mut Volume, &mut Node)) -> AttachInputs {
    let (mut attachment, mut volume, mut node) = (
        mk_attachment("va"),
        mk_volume("pv"),
        mk_node("node", Some("id-1")),
    );
    change(&mut attachment, &mut volume, &mut node);
    AttachInputs {
        attachment: attachment.into(),
        volume: Some(volume.into()),
        node: Some(node.into()),
    }
}

fn csi_of(volume: &mut Volume) -> &mut CsiSource {
    volume
        .spec
        .csi
        .as_mut()
        .expect("the fixture must be a CSI volume")
}

fn untranslatable() -> NoCsiSource {
    NoCsiSource::Untranslatable {
        driver: "disk.csi.azure.com",
        reason: "kind(Shared) is not supported in csi migration".to_owned(),
    }
}

fn target(handle: &str, node_id: &str) -> PublishTarget {
    PublishTarget {
        volume_id: handle.into(),
        node_id: node_id.into(),
    }
}

#[test]
fn operation_follows_from_deletion_finalizer_and_status() {
    use Operation::{Attach, Detach};
    for (deleting, finalizer, attached, expected) in [
        (false, false, false, Some(Attach)),
        (false, true, false, Some(Attach)),
        // Its deletion would send no unpublish.
        (false, false, true, Some(Attach)),
        (false, true, true, None),
        (true, false, false, None),
        (true, false, true, None),
        // A publish that failed or timed out leaves attached=false, and must be undone.
        (true, true, false, Some(Detach)),
        (true, true, true, Some(Detach)),
    ] {
        let attachment = Attachment {
            deleting,
            finalizer,
            attached,
            ..mk_attachment("va")
        };
        assert_eq!(
            operation(&attachment, true),
            expected,
            "{deleting} {finalizer} {attached}"
        );
    }
}

#[test]
fn republishes_if_attach_error_or_finalizer_missing() {
    for (finalizer, recorded, failed, with_calls, without) in [
        (true, true, false, false, false),
        (true, true, true, true, false),
        (false, true, false, true, false),
        (false, false, false, true, false),
        (false, false, true, true, false),
    ] {
        let attachment = Attachment {
            finalizer,
            attached: true,
            recorded: Recorded {
                node_id: recorded.then(|| "id-1".into()),
                ..Recorded::default()
            },
            attach_error: failed.then(Box::default),
            ..mk_attachment("va")
        };
        for (publishes, expected) in [(true, with_calls), (false, without)] {
            assert_eq!(
                operation(&attachment, publishes),
                expected.then_some(Operation::Attach),
                "{finalizer} {recorded} {failed} {publishes}"
            );
        }
    }
}

#[test]
fn status_is_stale_if_attached_without_our_finalizer() {
    for (deleting, finalizer, attached, expected) in [
        (true, false, true, true),
        (true, false, false, false),
        (true, true, true, false),
        (false, false, true, false),
    ] {
        let attachment = Attachment {
            deleting,
            finalizer,
            attached,
            ..mk_attachment("va")
        };
        assert_eq!(
            has_outdated_status(&attachment),
            expected,
            "{deleting} {finalizer} {attached}"
        );
    }
}

#[test]
fn removes_pv_finalizer_only_if_unneeded() {
    // finalizer, deleting, left in tree, attachments
    for (finalizer, deleting, left_in_tree, attachments, expected) in [
        (true, true, false, 0, true),
        (true, true, false, 1, false),
        (true, false, false, 0, false),
        (false, true, false, 0, false),
        // Migration was rolled back, or the PersistentVolume controller has not annotated it.
        (true, false, true, 0, true),
        (true, false, true, 1, false),
        (false, false, true, 0, false),
        (true, true, true, 0, true),
    ] {
        let volume = Volume {
            finalizer,
            deleting,
            left_in_tree,
            ..mk_volume("pv")
        };
        assert_eq!(
            removes_pv_finalizer(&volume, attachments),
            expected,
            "{finalizer} {deleting} {left_in_tree} {attachments}"
        );
    }
}

#[test]
fn plans_a_migrated_volume_as_translated() {
    let inputs = mk_inputs(|attachment, volume, _| {
        volume.spec.migrated = true;
        attachment.finalizer = true;
    });
    let plan = attach(&inputs, &mk_driver()).unwrap();
    assert_eq!((plan.target, plan.migrated), (target("handle", "id-1"), true));
    assert_eq!(plan.record.unwrap().annotations.handle.as_deref(), Some("handle"));
    let plan = detach(&inputs, &mk_driver()).unwrap();
    assert_eq!((plan.target, plan.migrated), (target("handle", "id-1"), true));
    let native = mk_inputs(|attachment, _, _| attachment.finalizer = true);
    assert!(!attach(&native, &mk_driver()).unwrap().migrated);
    assert!(!detach(&native, &mk_driver()).unwrap().migrated);
}

/// Its PersistentVolume was re-created. The clocks of two API servers may differ by a minute.
#[test]
fn an_attachment_that_may_be_published_without_handle_has_no_younger_volume() {
    type Change = fn(&mut Attachment);
    let finalizer: Change = |attachment| attachment.finalizer = true;
    let cases: [(Change, bool); 5] = [
        // It was never published.
        (|_| (), true),
        (finalizer, false),
        (|attachment| attachment.attached = true, false),
        (
            |attachment| attachment.recorded.node_id = Some("id-1".into()),
            false,
        ),
        (
            |attachment| {
                attachment.finalizer = true;
                attachment.recorded.handle = Some("handle".into());
            },
            true,
        ),
    ];
    for (number, (change, is_its_own)) in cases.into_iter().enumerate() {
        for (age, expected) in [(-1, true), (60, true), (61, is_its_own)] {
            let inputs = mk_inputs(|attachment, volume, _| {
                change(attachment);
                attachment.created = jiff::Timestamp::from_second(5).ok();
                volume.created = jiff::Timestamp::from_second(5 + age).ok();
            });
            let driver = mk_driver();
            let case = format!("{number} {age}");
            assert_eq!(attach(&inputs, &driver).is_ok(), expected, "{case}");
            assert_eq!(detach(&inputs, &driver).is_ok(), expected, "{case}");
            let listed = reconcile::expected_target(&inputs, &driver);
            assert_eq!(listed.is_some(), expected, "{case}");
            let (volume, attachment) = (inputs.volume.as_deref().unwrap(), &*inputs.attachment);
            let backfills = lacks_handle(attachment) && expected;
            assert_eq!(lacks_handle_of(volume, attachment), backfills, "{case}");
        }
    }
}

/// By `sha256sum`: the attach/detach controller's names for volumes `handle` and `other`.
#[test]
fn a_younger_volume_is_the_attachments_own_by_name_or_within_a_minute() {
    let named = "csi-cbbfa141d1e287b8fa777e2fd2c4522e1d5f843e78e39ac4241da0210e7b2912";
    let of_another = "csi-dbc863ee602a07d694d28eae3b4571dc7667c850f452fe3cc20c051a40f0fb88";
    let of_another_driver = ("other.example", named);
    for ((driver, name), age, expected) in [
        ((DRIVER, named), 0, true),
        ((DRIVER, named), 61, true),
        ((DRIVER, of_another), 0, true),
        ((DRIVER, of_another), 1, false),
        (of_another_driver, 1, false),
        ((DRIVER, &named[..67]), 60, true),
        ((DRIVER, &named[..67]), 61, false),
    ] {
        let mut attachment = Attachment {
            created: jiff::Timestamp::from_second(5).ok(),
            finalizer: true,
            ..mk_attachment(name)
        };
        let mut volume = mk_volume("pv");
        volume.created = jiff::Timestamp::from_second(5 + age).ok();
        csi_of(&mut volume).driver = driver.to_owned();
        let case = format!("{driver} {name} {age}");
        assert_eq!(attachment.may_predate(&volume), !expected, "{case}");
        attachment.node = "node-2".into();
        assert_eq!(
            attachment.may_predate(&volume),
            !expected || name == named && age > 0,
            "{case}"
        );
    }
}
