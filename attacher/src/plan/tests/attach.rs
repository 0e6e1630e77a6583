//! Checks, writes and requests of an attach.

use csi_proto::v1::volume_capability::{AccessType, BlockVolume, MountVolume};

use super::*;

#[test]
fn first_attach_adds_finalizers_and_records_the_call() {
    let secret = SecretRef::parse("ns/creds");
    let inputs = mk_inputs(|_, volume, _| csi_of(volume).publish_secret = secret.clone());
    let plan = attach(&inputs, &mk_driver()).unwrap();
    assert_eq!(plan.target, target("handle", "id-1"));
    assert_eq!(
        plan.pv_finalizer,
        Some(PvFinalizer {
            volume: "pv".into(),
            uid: "uid-pv".into()
        })
    );
    assert_eq!(plan.former, None);
    assert_eq!(plan.secret, secret);
    let annotations = Recorded {
        node_id: Some("id-1".into()),
        handle: Some("handle".into()),
        secret,
    };
    let is_unconditional = false;
    assert_eq!(
        plan.record,
        Some(Record {
            annotations,
            is_unconditional
        })
    );
}

#[test]
fn repeated_attach_writes_nothing() {
    let inputs = mk_inputs(|attachment, volume, _| {
        volume.finalizer = true;
        attachment.finalizer = true;
        attachment.recorded.node_id = Some("id-1".into());
        attachment.recorded.handle = Some("handle".into());
    });
    let plan = attach(&inputs, &mk_driver()).unwrap();
    assert_eq!((plan.pv_finalizer, plan.record, plan.former), (None, None, None));
}

#[test]
fn unpublishes_the_former_target_first() {
    for (recorded, former) in [
        ((Some("id-0"), Some("handle")), Some(target("handle", "id-0"))),
        ((Some("id-0"), None), Some(target("handle", "id-0"))),
        ((Some("id-1"), Some("old")), Some(target("old", "id-1"))),
        ((Some("id-1"), None), None),
        ((None, Some("handle")), None),
    ] {
        let inputs = mk_inputs(|attachment, _, _| {
            attachment.finalizer = true;
            attachment.recorded.node_id = recorded.0.map(Arc::from);
            attachment.recorded.handle = recorded.1.map(Arc::from);
        });
        let without_finalizer = Attachment {
            finalizer: false,
            ..(*inputs.attachment).clone()
        };
        let unprotected = AttachInputs {
            attachment: without_finalizer.into(),
            ..inputs.clone()
        };
        // Another client may have removed it.
        let unprotected = attach(&unprotected, &mk_driver()).unwrap().former;
        assert_eq!(unprotected.map(|former| former.target), former, "{recorded:?}");
        let plan = attach(&inputs, &mk_driver()).unwrap();
        assert_eq!(plan.former.map(|former| former.target), former, "{recorded:?}");
        assert_eq!(plan.target, target("handle", "id-1"));
        assert!(plan.record.is_some(), "{recorded:?}");
    }
}

/// Its access modes, attributes and Secret are those of another volume.
#[test]
fn refuses_to_republish_a_volume_whose_persistent_volume_was_replaced() {
    for (attached, handle, refused) in [
        (true, Some("handle"), false),
        (true, None, false),
        (true, Some("old"), true),
        // Its publish failed or was not completed, so that it is unpublished.
        (false, Some("old"), false),
    ] {
        let inputs = mk_inputs(|attachment, volume, _| {
            attachment.attached = attached;
            attachment.recorded.node_id = Some("id-1".into());
            attachment.recorded.handle = handle.map(Arc::from);
            attachment.recorded.secret = SecretRef::parse("ns/old");
            let csi = csi_of(volume);
            csi.publish_secret = SecretRef::parse("ns/new");
            csi.attributes.insert("device".into(), "lun-2".into());
        });
        let plan = attach(&inputs, &mk_driver());
        if refused {
            let text = r#"the volume "old" is attached, and the PersistentVolume, which was replaced, names volume "handle" now"#;
            assert_eq!(plan.unwrap_err().to_string(), text);
            let detach = detach(&inputs, &mk_driver()).unwrap();
            assert_eq!(detach.target, target("old", "id-1"));
            assert_eq!(detach.secret, SecretRef::parse("ns/old"));
            continue;
        }
        let plan = plan.unwrap();
        assert_eq!(plan.target, target("handle", "id-1"));
        assert_eq!(plan.secret, SecretRef::parse("ns/new"), "{attached} {handle:?}");
        assert_eq!(plan.volume_context["device"], "lun-2");
        // So the detach sends the secret of the volume that was published.
        let annotations = plan.record.expect("our finalizer is missing").annotations;
        assert_eq!(annotations.secret, SecretRef::parse("ns/new"));
        let mut published = inputs.clone();
        published.attachment = Arc::new(Attachment {
            recorded: annotations,
            ..(*inputs.attachment).clone()
        });
        let detach = detach(&published, &mk_driver()).unwrap();
        assert_eq!(detach.secret, plan.secret, "{attached} {handle:?}");
    }
}

#[test]
fn refuses_with_the_go_sidecars_texts() {
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
            |_, pv, _| pv.spec.csi = Err(NoCsiSource::NotMigrated),
            "pv spec contained non-csi source that was not migrated",
        ),
        (
            |_, pv, _| pv.spec.csi = Err(untranslatable()),
            "failed to translate in tree pv to CSI: kind(Shared) is not supported in csi migration",
        ),
        (
            |_, pv, _| {
                csi_of(pv).driver = "ebs.csi.aws.com".into();
                pv.spec.migrated = true;
            },
            r#"the volume belongs to CSI driver "ebs.csi.aws.com", but the VolumeAttachment's attacher is "d.example""#,
        ),
        (
            |_, pv, _| csi_of(pv).driver = "other".into(),
            r#"the volume belongs to CSI driver "other", but the VolumeAttachment's attacher is "d.example""#,
        ),
        (
            |_, pv, _| pv.spec.access_modes = Vec::new(),
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
        let refusal = attach(&mk_inputs(change), &mk_driver()).unwrap_err();
        assert_eq!(refusal.to_string(), *text);
    }
    let inputs = AttachInputs {
        volume: None,
        ..mk_inputs(|_, _, _| ())
    };
    assert_eq!(
        attach(&inputs, &mk_driver()).unwrap_err().to_string(),
        r#"persistentvolume "pv" not found"#
    );
    let inputs = AttachInputs {
        node: None,
        ..mk_inputs(|_, _, _| ())
    };
    assert_eq!(
        attach(&inputs, &mk_driver()).unwrap_err().to_string(),
        r#"csinode.storage.k8s.io "node" not found"#
    );
}

#[test]
fn sends_readonly_only_with_the_capability() {
    let inputs = mk_inputs(|_, volume, _| csi_of(volume).read_only = true);
    let mut driver = mk_driver();
    assert!(!attach(&inputs, &driver).unwrap().read_only);
    driver.capabilities.publish_readonly = true;
    assert!(attach(&inputs, &driver).unwrap().read_only);
}

#[test]
fn inline_volume_needs_no_pv_finalizer() {
    let inputs =
        mk_inputs(|attachment, _, _| attachment.source = Source::Inline(Box::new(mk_spec("inline"))));
    let plan = attach(&inputs, &mk_driver()).unwrap();
    assert_eq!(plan.target, target("inline", "id-1"));
    assert_eq!(plan.pv_finalizer, None);
    let annotations = Recorded {
        node_id: Some("id-1".into()),
        ..Recorded::default()
    };
    let is_unconditional = false;
    assert_eq!(
        plan.record,
        Some(Record {
            annotations,
            is_unconditional
        })
    );
}

#[test]
fn default_fstype_applies_to_volumes_without_one() {
    let driver = Driver {
        default_fs_type: "ext4".into(),
        ..mk_driver()
    };
    let fs_type = |change: fn(&mut Attachment, &mut Volume, &mut Node)| {
        let plan = attach(&mk_inputs(change), &driver).unwrap();
        plan.capability.access_type.unwrap()
    };
    let mount = |fs_type: &str| {
        AccessType::Mount(MountVolume {
            fs_type: fs_type.into(),
            ..MountVolume::default()
        })
    };
    assert_eq!(fs_type(|_, _, _| ()), mount("ext4"));
    assert_eq!(
        fs_type(|_, volume, _| csi_of(volume).fs_type = "xfs".into()),
        mount("xfs")
    );
    assert_eq!(
        fs_type(|_, volume, _| volume.spec.block = true),
        AccessType::Block(BlockVolume {})
    );
}

#[test]
fn adds_pv_finalizer_of_a_volume_left_in_tree_at_each_attach() {
    for (finalizer, left_in_tree, adds) in [
        (false, false, true),
        (true, false, false),
        (false, true, true),
        (true, true, true),
    ] {
        let inputs = mk_inputs(|_, volume, _| {
            volume.spec.migrated = true;
            volume.finalizer = finalizer;
            volume.left_in_tree = left_in_tree;
        });
        let plan = attach(&inputs, &mk_driver()).unwrap();
        assert_eq!(plan.pv_finalizer.is_some(), adds, "{finalizer} {left_in_tree}");
    }
}

/// A zone label was added to the PersistentVolume of a migrated disk.
#[test]
fn another_form_of_the_recorded_handle_is_the_same_volume() {
    let recorded = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d";
    for (attached, present, is_same) in [
        (true, "projects/UNSPECIFIED/zones/us-east1-a/disks/d", true),
        (false, "projects/UNSPECIFIED/zones/us-east1-a/disks/d", true),
        (true, "projects/UNSPECIFIED/zones/us-east1-b/disks/d", false),
        (false, "projects/UNSPECIFIED/zones/us-east1-b/disks/d", false),
    ] {
        let node_id: Arc<str> = "projects/p/zones/us-east1-a/instances/i".into();
        let inputs = mk_inputs(|attachment, volume, node| {
            node.id = Some(node_id.clone());
            attachment.finalizer = true;
            attachment.attached = attached;
            attachment.recorded.handle = Some(recorded.into());
            attachment.recorded.node_id = Some(node_id.clone());
            csi_of(volume).handle = present.into();
        });
        match attach(&inputs, &mk_driver()) {
            Ok(plan) => {
                assert_eq!(*plan.target.volume_id, *present, "it is sent as it is");
                assert_eq!(plan.former.is_none(), is_same, "{attached} {present}");
                let record = plan.record.expect("the handle is recorded as it is now");
                assert_eq!(record.annotations.handle.as_deref(), Some(present));
            }
            Err(refusal) => {
                assert!(matches!(refusal, Refusal::VolumeReplaced { .. }), "{refusal}");
                assert!(attached && !is_same, "{present}");
            }
        }
    }
}

/// Its former target is of the same volume, so that it is unpublished with the volume's Secret, and need not be proven.
#[test]
fn another_form_of_the_recorded_handle_is_the_same_volume_under_another_node_id() {
    for (present, is_same) in [("us-east1-a", true), ("us-east1-b", false)] {
        let inputs = mk_inputs(|attachment, volume, node| {
            node.id = Some("projects/p/zones/us-east1-a/instances/new".into());
            attachment.finalizer = true;
            attachment.recorded = Recorded {
                node_id: Some("projects/p/zones/us-east1-a/instances/old".into()),
                handle: Some("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d".into()),
                secret: SecretRef::parse("ns/old"),
            };
            let csi = csi_of(volume);
            csi.handle = format!("projects/UNSPECIFIED/zones/{present}/disks/d")
                .as_str()
                .into();
            csi.publish_secret = SecretRef::parse("ns/new");
        });
        let former = attach(&inputs, &mk_driver()).unwrap().former.unwrap();
        let expected = match is_same {
            true => (SecretRef::parse("ns/new"), SecretRef::parse("ns/old")),
            false => (SecretRef::parse("ns/old"), None),
        };
        assert_eq!((former.secret, former.recorded_secret), expected, "{present}");
    }
}
