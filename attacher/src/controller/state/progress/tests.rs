//! The index of handles compared with full scans.

mod cases;

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::tests::Fixture;
use super::*;
use crate::controller::state::Event;
use crate::informer::Change;
use crate::model::{Recorded, Source, Version, Volume};
use crate::plan::tests::{mk_attachment, mk_node, mk_spec, mk_volume};

/// The other VolumeAttachments of the volume, by a scan of all.
fn others_by_a_scan(state: &ControllerState, attachment: &Attachment, volume_id: &str) -> BTreeSet<Arc<str>> {
    let handle = |other: &Attachment| match (&other.recorded.handle, &other.source) {
        (Some(recorded), _) => Some(recorded.clone()),
        (None, Source::Volume(name)) => state
            .index
            .volumes
            .get(name)
            .and_then(|v| Some(v.spec.csi()?.handle.clone())),
        (None, Source::Inline(spec)) => spec.csi().map(|csi| csi.handle.clone()),
        (None, Source::Invalid(_)) => None,
    };
    let others = state.index.attachments.iter().filter(|other| {
        let same_volume = match handle(other) {
            Some(handle) => *handle == *volume_id,
            None => other.source == attachment.source,
        };
        other.uid != attachment.uid && same_volume
    });
    others.map(|other| other.name.clone()).collect()
}

/// The next version. `spec` is immutable, so another volume or node makes it another object of the same name.
fn next(state: &ControllerState, attachment: &Attachment, version: u64) -> Attachment {
    let known = state.index.attachments.get(&attachment.name);
    let same = known.filter(|known| known.source == attachment.source && known.node == attachment.node);
    Attachment {
        uid: same.map_or_else(|| version.to_string().as_str().into(), |known| known.uid.clone()),
        version: Version(version),
        ..attachment.clone()
    }
}

/// A volume with this handle is created, maybe instead of another, or deleted.
fn mk_volume_of(state: &ControllerState, name: u8, handle: u8, version: u64) -> Change<Volume> {
    let name = format!("pv-{name}");
    match (state.index.volumes.get(&name), handle) {
        (Some(known), 3) => Change::Deleted {
            name: known.name.clone(),
            uid: known.uid.clone(),
        },
        (_, handle) => Change::Applied(Volume {
            uid: version.to_string().as_str().into(),
            version: Version(version),
            spec: mk_spec(&format!("handle-{handle}")),
            ..mk_volume(&name)
        }),
    }
}

fn any_attachment() -> impl Strategy<Value = Attachment> {
    let spec = (0..6u8, 0..4u8, 0..2u8);
    let recorded = (0..3u8, 0..3u8);
    let state = (any::<bool>(), any::<bool>(), any::<bool>());
    (spec, recorded, state).prop_map(
        |((name, volume, node), (handle, node_id), (finalizer, deleting, attached))| {
            let any_of = |prefix: &str, n: u8| (n < 2).then(|| format!("{prefix}-{n}").as_str().into());
            Attachment {
                source: if volume < 2 {
                    Source::Volume(format!("pv-{volume}").as_str().into())
                } else {
                    Source::Inline(Box::new(mk_spec(&format!("handle-{volume}"))))
                },
                node: format!("node-{node}").as_str().into(),
                recorded: Recorded {
                    handle: any_of("handle", handle),
                    node_id: any_of("id", node_id),
                    secret: None,
                },
                finalizer,
                deleting,
                attached,
                ..mk_attachment(&format!("va-{name}"))
            }
        },
    )
}

proptest! {
    #[test]
    fn other_attachments_of_a_volume_equal_those_of_a_full_scan(
        attachments in prop::collection::vec(any_attachment(), 0..8),
        volumes in prop::collection::vec((0..2u8, 0..4u8), 0..6),
    ) {
        let mut state = Fixture::new([]).state;
        for node in 0..2 {
            let node = mk_node(&format!("node-{node}"), Some(&format!("id-{node}")));
            state.handle(Event::Nodes(Change::Applied(node)));
        }
        for (version, attachment) in (1..).zip(&attachments) {
            let put = next(&state, attachment, version);
            state.handle(Event::Attachments(Change::Applied(put)));
        }
        for (version, (name, handle)) in (100..).zip(volumes) {
            let change = mk_volume_of(&state, name, handle, version);
            state.handle(Event::Volumes(change));
        }
        for attachment in &attachments {
            let inputs = state.inputs(&attachment.clone().into());
            for handle in ["handle-0", "handle-1", "handle-2"] {
                let target = PublishTarget { volume_id: handle.into(), node_id: "id-0".into() };
                let others = state.others(&inputs, Some(&target));
                let of_volume = others.iter().filter(|other| other.handle.is_none_or(|known| **known == *handle));
                let names: BTreeSet<_> = of_volume.map(|other| other.attachment.name.clone()).collect();
                prop_assert_eq!(names, others_by_a_scan(&state, attachment, handle));
            }
        }
    }
}
