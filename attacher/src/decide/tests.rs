//! The rules as tables, and the smallest valid objects that other modules' tests start from too.

use super::*;
use crate::migration::{Fault, Plugin, UnsupportedKind};
use crate::model::{
    AccessModes, Capabilities, CsiSource, Recorded, SecretRef, Source, Target, Version, VolumeSource,
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
        wanted_since: None,
        finalizer: false,
        foreign_finalizers: false,
        node: "node".into(),
        source: Source::Volume("pv".into()),
        recorded: Recorded::default(),
        attached: false,
        metadata_keys: Box::default(),
        attach_error: None,
        detach_error: None,
    }
}

pub(crate) fn mk_spec(handle: &str) -> VolumeSpec {
    VolumeSpec {
        source: VolumeSource::Csi(Box::new(CsiSource {
            driver: DRIVER.into(),
            handle: handle.into(),
            ..CsiSource::default()
        })),
        access_modes: AccessModes {
            read_write_once: true,
            ..AccessModes::default()
        },
        ..VolumeSpec::default()
    }
}

pub(crate) fn mk_volume(name: &str) -> Volume {
    Volume {
        name: name.into(),
        uid: format!("uid-{name}").as_str().into(),
        version: Version(1),
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
        id: id.map(Arc::from),
    }
}

fn mk_facts(change: impl FnOnce(&mut Attachment, &mut Volume, &mut Node)) -> Facts {
    let (mut attachment, mut volume, mut node) = (
        mk_attachment("va"),
        mk_volume("pv"),
        mk_node("node", Some("id-1")),
    );
    change(&mut attachment, &mut volume, &mut node);
    Facts {
        attachment: attachment.into(),
        volume: Some(volume.into()),
        node: Some(node.into()),
    }
}

fn csi_of(volume: &mut Volume) -> &mut CsiSource {
    let VolumeSource::Csi(csi) = &mut volume.spec.source else {
        panic!("the fixture must be a CSI volume");
    };
    csi
}

/// Makes it an in-tree volume that was translated to what it is.
fn migrate(volume: &mut Volume) {
    let csi = std::mem::take(csi_of(volume));
    volume.spec.source = VolumeSource::Migrated(Box::new(csi));
}

fn untranslatable() -> VolumeSource {
    VolumeSource::Untranslatable(Box::new(Untranslatable {
        plugin: Plugin::AzureDisk,
        fault: Fault::AzureDisk(UnsupportedKind("Shared".into())),
    }))
}

fn target(handle: &str, node_id: &str) -> Target {
    Target {
        handle: handle.into(),
        node_id: node_id.into(),
    }
}

#[test]
fn what_is_wanted_follows_from_deletion_finalizer_and_status() {
    use Wanted::{Attach, Detach};
    for (deleting, finalizer, attached, expected) in [
        (false, false, false, Some(Attach)),
        (false, true, false, Some(Attach)),
        (false, false, true, None),
        (false, true, true, None),
        (true, false, false, None),
        (true, false, true, None),
        // A publish that failed or timed out leaves attached=false behind, and must be undone.
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
            wanted(&attachment, true),
            expected,
            "{deleting} {finalizer} {attached}"
        );
    }
}

#[test]
fn who_is_attached_with_an_error_or_without_a_guard_is_attached_again_by_a_driver_with_calls() {
    for (finalizer, recorded, failed, with_calls, without) in [
        (true, true, false, false, true),
        (true, true, true, true, true),
        (false, true, false, true, false),
        (false, false, false, false, false),
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
                wanted(&attachment, publishes),
                expected.then_some(Wanted::Attach),
                "{finalizer} {recorded} {failed} {publishes}"
            );
        }
    }
}

#[test]
fn a_status_is_wrong_when_it_outlives_our_finalizer_and_tells_of_an_attachment() {
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
            is_misstated(&attachment),
            expected,
            "{deleting} {finalizer} {attached}"
        );
    }
}

#[test]
fn a_first_attach_claims_the_volume_and_records_what_it_will_send() {
    let secret = SecretRef::parse("ns/creds");
    let facts = mk_facts(|_, volume, _| csi_of(volume).publish_secret = secret.clone());
    let plan = attach(&facts, &mk_driver()).unwrap();
    assert_eq!(plan.target, target("handle", "id-1"));
    assert_eq!(
        plan.claim,
        Some(Claim {
            volume: "pv".into(),
            uid: "uid-pv".into()
        })
    );
    assert_eq!(plan.stale, None);
    assert_eq!(plan.secret, secret);
    let annotations = Recorded {
        node_id: Some("id-1".into()),
        handle: Some("handle".into()),
        secret,
    };
    assert_eq!(plan.record, Some(Record { annotations }));
}

#[test]
fn a_repeated_attach_writes_nothing_that_is_there_already() {
    let facts = mk_facts(|attachment, volume, _| {
        volume.finalizer = true;
        attachment.finalizer = true;
        attachment.recorded.node_id = Some("id-1".into());
        attachment.recorded.handle = Some("handle".into());
    });
    let plan = attach(&facts, &mk_driver()).unwrap();
    assert_eq!((plan.claim, plan.record, plan.stale), (None, None, None));
}

#[test]
fn an_attach_that_was_sent_elsewhere_before_is_undone_there_first() {
    for (recorded, stale) in [
        ((Some("id-0"), Some("handle")), Some(target("handle", "id-0"))),
        ((Some("id-0"), None), Some(target("handle", "id-0"))),
        ((Some("id-1"), Some("old")), Some(target("old", "id-1"))),
        ((Some("id-1"), None), None),
        ((None, Some("handle")), None),
    ] {
        let facts = mk_facts(|attachment, _, _| {
            attachment.finalizer = true;
            attachment.recorded.node_id = recorded.0.map(Arc::from);
            attachment.recorded.handle = recorded.1.map(Arc::from);
        });
        let bare = Attachment {
            finalizer: false,
            ..(*facts.attachment).clone()
        };
        let unheld = Facts {
            attachment: bare.into(),
            ..facts.clone()
        };
        assert_eq!(
            attach(&unheld, &mk_driver()).unwrap().stale,
            None,
            "nothing was published: {recorded:?}"
        );
        let plan = attach(&facts, &mk_driver()).unwrap();
        assert_eq!(plan.stale.map(|stale| stale.target), stale, "{recorded:?}");
        assert_eq!(plan.target, target("handle", "id-1"));
        assert!(plan.record.is_some(), "{recorded:?}");
    }
}

#[test]
fn attach_is_refused_with_the_texts_of_the_go_sidecar() {
    type Change = fn(&mut Attachment, &mut Volume, &mut Node);
    let table: &[(Change, &str)] = &[
        (
            |va, _, _| va.source = Source::Invalid(SourceFault::Both),
            "both InlineCSIVolumeSource and PersistentVolumeName specified in VA source",
        ),
        (
            |va, _, _| va.source = Source::Invalid(SourceFault::Neither),
            "neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source",
        ),
        (
            |va, _, _| va.source = Source::Invalid(SourceFault::InlineWithoutCsi),
            "inline volume spec contains nil CSI source",
        ),
        (
            |_, pv, _| pv.deleting = true,
            r#"PersistentVolume "pv" is marked for deletion"#,
        ),
        (
            |_, pv, _| pv.spec.source = VolumeSource::Other,
            "pv spec contained non-csi source that was not migrated",
        ),
        (
            |_, pv, _| pv.spec.source = untranslatable(),
            "failed to translate in tree pv to CSI: kind(Shared) is not supported in csi migration",
        ),
        (
            |_, pv, _| {
                csi_of(pv).driver = "ebs.csi.aws.com".into();
                migrate(pv);
            },
            r#"the volume belongs to CSI driver "ebs.csi.aws.com", but the VolumeAttachment's attacher is "d.example""#,
        ),
        (
            |_, pv, _| csi_of(pv).driver = "other".into(),
            r#"the volume belongs to CSI driver "other", but the VolumeAttachment's attacher is "d.example""#,
        ),
        (
            |_, pv, _| pv.spec.access_modes = AccessModes::default(),
            "unsupported AccessMode combination: []",
        ),
        (
            |_, _, node| node.id = None,
            "CSINode node does not contain driver d.example",
        ),
        // The first check that fails decides.
        (
            |_, pv, node| {
                pv.deleting = true;
                node.id = None;
            },
            r#"PersistentVolume "pv" is marked for deletion"#,
        ),
    ];
    for (change, text) in table {
        let refusal = attach(&mk_facts(change), &mk_driver()).unwrap_err();
        assert_eq!(refusal.to_string(), *text);
    }
    let facts = Facts {
        volume: None,
        ..mk_facts(|_, _, _| ())
    };
    assert_eq!(
        attach(&facts, &mk_driver()).unwrap_err().to_string(),
        r#"persistentvolume "pv" not found"#
    );
    let facts = Facts {
        node: None,
        ..mk_facts(|_, _, _| ())
    };
    assert_eq!(
        attach(&facts, &mk_driver()).unwrap_err().to_string(),
        r#"csinode.storage.k8s.io "node" not found"#
    );
}

#[test]
fn read_only_is_sent_only_to_drivers_that_know_it() {
    let facts = mk_facts(|_, volume, _| csi_of(volume).read_only = true);
    let mut driver = mk_driver();
    assert!(!attach(&facts, &driver).unwrap().read_only);
    driver.capabilities.publish_readonly = true;
    assert!(attach(&facts, &driver).unwrap().read_only);
}

#[test]
fn an_inline_volume_claims_no_persistent_volume() {
    let facts = mk_facts(|attachment, _, _| attachment.source = Source::Inline(Box::new(mk_spec("inline"))));
    let plan = attach(&facts, &mk_driver()).unwrap();
    assert_eq!(plan.target, target("inline", "id-1"));
    assert_eq!(plan.claim, None);
    let annotations = Recorded {
        node_id: Some("id-1".into()),
        ..Recorded::default()
    };
    assert_eq!(plan.record, Some(Record { annotations }));
}

#[test]
fn the_default_filesystem_is_for_volumes_that_name_none() {
    let driver = Driver {
        default_fs_type: "ext4".into(),
        ..mk_driver()
    };
    let fs_type = |change: fn(&mut Attachment, &mut Volume, &mut Node)| {
        attach(&mk_facts(change), &driver).unwrap().capability.access
    };
    let mount = |fs_type: &str| Access::Mount {
        fs_type: fs_type.into(),
        flags: vec![],
    };
    assert_eq!(fs_type(|_, _, _| ()), mount("ext4"));
    assert_eq!(
        fs_type(|_, volume, _| csi_of(volume).fs_type = "xfs".into()),
        mount("xfs")
    );
    assert_eq!(fs_type(|_, volume, _| volume.spec.block = true), Access::Block);
}

#[test]
fn detach_goes_where_the_publish_went() {
    // recorded node id, recorded handle, node's id today -> target, other node id
    for (recorded_id, recorded_handle, today, expected, other) in [
        (
            Some("id-1"),
            Some("handle"),
            Some("id-1"),
            target("handle", "id-1"),
            None,
        ),
        (
            Some("id-0"),
            Some("handle"),
            Some("id-1"),
            target("handle", "id-0"),
            Some("id-1"),
        ),
        (Some("id-0"), Some("old"), None, target("old", "id-0"), None),
        // An attachment of the Go sidecar, which records no handle.
        (
            Some("id-0"),
            None,
            Some("id-1"),
            target("handle", "id-0"),
            Some("id-1"),
        ),
        (None, None, Some("id-1"), target("handle", "id-1"), None),
    ] {
        let facts = mk_facts(|attachment, _, node| {
            attachment.recorded.node_id = recorded_id.map(Arc::from);
            attachment.recorded.handle = recorded_handle.map(Arc::from);
            node.id = today.map(Arc::from);
        });
        let plan = detach(&facts, &mk_driver()).unwrap();
        assert_eq!(
            plan.target, expected,
            "{recorded_id:?} {recorded_handle:?} {today:?}"
        );
        assert_eq!(plan.other_node_id.as_deref(), other);
    }
}

#[test]
fn detach_survives_the_loss_of_volume_and_node() {
    let mut facts = mk_facts(|attachment, _, _| {
        attachment.recorded.node_id = Some("id-1".into());
        attachment.recorded.handle = Some("handle".into());
        attachment.recorded.secret = SecretRef::parse("ns/creds");
        attachment.foreign_finalizers = true;
    });
    facts.volume = None;
    facts.node = None;
    let plan = detach(&facts, &mk_driver()).unwrap();
    assert_eq!(plan.target, target("handle", "id-1"));
    assert_eq!(plan.secret, SecretRef::parse("ns/creds"));
    assert!(plan.foreign_finalizers);
}

#[test]
fn detach_ignores_that_the_volume_is_being_deleted() {
    let facts = mk_facts(|_, volume, _| volume.deleting = true);
    assert_eq!(
        detach(&facts, &mk_driver()).unwrap().target,
        target("handle", "id-1")
    );
}

#[test]
fn detach_without_any_trace_says_what_is_missing() {
    let facts = Facts {
        volume: None,
        ..mk_facts(|_, _, _| ())
    };
    assert_eq!(
        detach(&facts, &mk_driver()).unwrap_err().to_string(),
        r#"persistentvolume "pv" not found"#
    );
    let facts = mk_facts(|_, _, node| node.id = None);
    assert_eq!(
        detach(&facts, &mk_driver()).unwrap_err().to_string(),
        "CSINode node does not contain driver d.example"
    );
}

#[test]
fn the_secret_of_a_replaced_volume_is_not_sent_for_the_old_one() {
    let facts = mk_facts(|attachment, volume, _| {
        attachment.recorded.node_id = Some("id-1".into());
        attachment.recorded.handle = Some("old".into());
        attachment.recorded.secret = SecretRef::parse("ns/old");
        csi_of(volume).publish_secret = SecretRef::parse("ns/new");
    });
    assert_eq!(
        detach(&facts, &mk_driver()).unwrap().secret,
        SecretRef::parse("ns/old")
    );
}

#[test]
fn our_finalizer_leaves_a_volume_only_when_nobody_needs_it() {
    // finalizer, deleting, left in tree, attachments
    for (finalizer, deleting, left_in_tree, attachments, expected) in [
        (true, true, false, 0, true),
        (true, true, false, 1, false),
        (true, false, false, 0, false),
        (false, true, false, 0, false),
        // Migration is rolled back, or the PersistentVolume controller never knew of it.
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
            release(&volume, attachments, true),
            expected,
            "{finalizer} {deleting} {left_in_tree} {attachments}"
        );
    }
}

#[test]
fn a_migrated_volume_is_attached_and_detached_as_what_it_was_translated_to() {
    let facts = mk_facts(|attachment, volume, _| {
        migrate(volume);
        attachment.finalizer = true;
    });
    let plan = attach(&facts, &mk_driver()).unwrap();
    assert_eq!((plan.target, plan.migrated), (target("handle", "id-1"), true));
    assert_eq!(plan.record.unwrap().annotations.handle.as_deref(), Some("handle"));
    let plan = detach(&facts, &mk_driver()).unwrap();
    assert_eq!((plan.target, plan.migrated), (target("handle", "id-1"), true));
    let native = mk_facts(|attachment, _, _| attachment.finalizer = true);
    assert!(!attach(&native, &mk_driver()).unwrap().migrated);
    assert!(!detach(&native, &mk_driver()).unwrap().migrated);
}

#[test]
fn a_volume_left_in_tree_is_claimed_at_each_attach() {
    for (finalizer, left_in_tree, claims) in [
        (false, false, true),
        (true, false, false),
        (false, true, true),
        (true, true, true),
    ] {
        let facts = mk_facts(|_, volume, _| {
            migrate(volume);
            volume.finalizer = finalizer;
            volume.left_in_tree = left_in_tree;
        });
        let plan = attach(&facts, &mk_driver()).unwrap();
        assert_eq!(plan.claim.is_some(), claims, "{finalizer} {left_in_tree}");
    }
}

#[test]
fn a_volume_without_a_name_for_the_driver_is_detached_by_what_was_recorded() {
    let mut facts = mk_facts(|attachment, volume, _| {
        volume.spec.source = untranslatable();
        attachment.recorded.handle = Some("handle".into());
    });
    let plan = detach(&facts, &mk_driver()).unwrap();
    assert_eq!((plan.target, plan.migrated), (target("handle", "id-1"), true));
    facts = mk_facts(|_, volume, _| volume.spec.source = untranslatable());
    assert_eq!(
        detach(&facts, &mk_driver()).unwrap_err().to_string(),
        "failed to translate in tree pv to CSI: kind(Shared) is not supported in csi migration"
    );
}
