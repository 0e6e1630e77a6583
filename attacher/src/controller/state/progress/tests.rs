//! The indices compared with full scans.

mod cases;

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::tests::Fixture;
use super::*;
use crate::controller::SyncError;
use crate::controller::state::{Event, Item, RESOURCE_EXHAUSTED};
use crate::informer::Change;
use crate::model::{Recorded, Source, Version, Volume};
use crate::plan::tests::{mk_attachment, mk_node, mk_spec, mk_volume};
use crate::workqueue::{Class, Key};

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

#[derive(Clone, Debug)]
enum Step {
    Put(Box<Attachment>),
    Gone(u8),
    Start,
    Finish { which: usize, code: Option<i32> },
    Wait,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let code = prop_oneof![
        3 => Just(Some(RESOURCE_EXHAUSTED)),
        1 => Just(Some(13)),
        1 => Just(None),
    ];
    let step = prop_oneof![
        3 => any_attachment().prop_map(|attachment| Step::Put(Box::new(attachment))),
        1 => (0..6u8).prop_map(Step::Gone),
        3 => Just(Step::Start),
        3 => (0..8usize, code).prop_map(|(which, code)| Step::Finish { which, code }),
        1 => Just(Step::Wait),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn attachments_waiting_for_capacity_equal_those_of_a_full_scan(steps in steps()) {
        let mut fixture = Fixture::new([]);
        let mut running: Vec<Item> = Vec::new();
        for (version, step) in (1..).zip(steps) {
            match step {
                Step::Put(attachment) => {
                    let put = next(&fixture.state, &attachment, version);
                    fixture.put(put);
                }
                Step::Gone(name) => {
                    let name = format!("va-{name}");
                    if let Some(known) = fixture.state.index.attachments.get(&name).cloned() {
                        let gone = Change::Deleted { name: known.name.clone(), uid: known.uid.clone() };
                        fixture.state.handle(Event::Attachments(gone));
                    }
                }
                Step::Start => running.extend(fixture.start()),
                Step::Finish { which, code } => {
                    if !running.is_empty() {
                        let item = running.swap_remove(which % running.len());
                        let error = SyncError { code, ..SyncError::new(Class::Final, "failed") };
                        fixture.finish(&item, if code.is_some() { Err(error) } else { Ok(()) });
                    }
                }
                Step::Wait => fixture.now += std::time::Duration::from_secs(300),
            }
            let state = &fixture.state;
            for attachment in state.index.attachments.iter() {
                let key = Key::Attachment(attachment.name.clone());
                if state.queue.failed_with(&key, &attachment.uid) == Some(RESOURCE_EXHAUSTED) {
                    let found = state.resource_exhausted_by_node.get(&attachment.node).any(|name| *name == attachment.name);
                    prop_assert!(found, "{} waits for capacity on {}", attachment.name, attachment.node);
                }
            }
            // Deleted attachments leave no entries.
            for node in ["node-0", "node-1"] {
                for name in state.resource_exhausted_by_node.get(node) {
                    prop_assert!(state.index.attachments.get(name).is_some(), "{name} is gone");
                }
            }
        }
    }
}
