//! The indices against scans of everything.

mod answerable;

use proptest::prelude::*;

use super::super::tests::Bench;
use super::*;
use crate::decide::tests::{mk_attachment, mk_node, mk_spec, mk_volume};
use crate::engine::{Event, Outcome, RESOURCE_EXHAUSTED, Subject};
use crate::index::Change;
use crate::model::{Recorded, Source, Version, Volume};
use crate::queue::{Class, Key};

/// Who else than `attachment` holds `target`, by looking at all attachments.
fn held_by_a_scan(engine: &Engine, attachment: &Attachment, target: &Target) -> Held {
    let handle = |other: &Attachment| match (&other.recorded.handle, &other.source) {
        (Some(recorded), _) => Some(recorded.clone()),
        (None, Source::Volume(name)) => engine
            .volume(name)
            .and_then(|v| Some(v.spec.csi()?.handle.clone())),
        (None, Source::Inline(spec)) => spec.csi().map(|csi| csi.handle.clone()),
        (None, Source::Invalid(_)) => None,
    };
    let today = |other: &Attachment| engine.index.node(&other.node).and_then(|node| node.id.clone());
    let is_there = |other: &Attachment| {
        let node_id = other.recorded.node_id.clone().or_else(|| today(other));
        let same_volume = match handle(other) {
            Some(handle) => handle == target.handle,
            None => other.source == attachment.source,
        };
        same_volume && node_id.as_ref() == Some(&target.node_id)
    };
    let others = engine
        .index
        .attachments()
        .filter(|other| other.uid != attachment.uid && is_there(other));
    let held = others.map(|other| match (other.deleting, other.finalizer, other.attached) {
        (true, true, _) => Held::ByLeaving,
        (false, true, _) => Held::ByLiving,
        (false, false, true) => Held::ByUnguarded,
        (true, false, _) | (false, false, false) => Held::ByNobody,
    });
    held.max().unwrap_or(Held::ByNobody)
}

/// What is put next. `spec` is immutable, so with another volume or node it is another object of the same name.
fn next(engine: &Engine, attachment: &Attachment, version: u64) -> Attachment {
    let known = engine.attachment(&attachment.name);
    let same = known.filter(|known| known.source == attachment.source && known.node == attachment.node);
    Attachment {
        uid: same.map_or_else(|| version.to_string().as_str().into(), |known| known.uid.clone()),
        version: Version(version),
        ..attachment.clone()
    }
}

/// A volume of this handle comes, perhaps in the place of another, or the volume goes.
fn mk_volume_of(engine: &Engine, name: u8, handle: u8, version: u64) -> Change<Volume> {
    let name = format!("pv-{name}");
    match (engine.volume(&name), handle) {
        (Some(known), 3) => Change::Gone {
            name: known.name.clone(),
            uid: known.uid.clone(),
        },
        (_, handle) => Change::Put(Volume {
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
    fn who_holds_a_volume_is_what_a_scan_finds(
        attachments in prop::collection::vec(any_attachment(), 0..8),
        volumes in prop::collection::vec((0..2u8, 0..4u8), 0..6),
    ) {
        let mut engine = Bench::new([]).engine;
        for node in 0..2 {
            let node = mk_node(&format!("node-{node}"), Some(&format!("id-{node}")));
            engine.handle(Event::Nodes(Change::Put(node)));
        }
        for (version, attachment) in (1..).zip(&attachments) {
            let put = next(&engine, attachment, version);
            engine.handle(Event::Attachments(Change::Put(put)));
        }
        for (version, (name, handle)) in (100..).zip(volumes) {
            let change = mk_volume_of(&engine, name, handle, version);
            engine.handle(Event::Volumes(change));
        }
        for attachment in &attachments {
            for handle in ["handle-0", "handle-1", "handle-2"] {
                for node_id in ["id-0", "id-1"] {
                    let target = Target { handle: handle.into(), node_id: node_id.into() };
                    prop_assert_eq!(
                        engine.held_besides(attachment, &target, UsedBy::Record),
                        held_by_a_scan(&engine, attachment, &target)
                    );
                }
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
    fn who_waits_for_room_on_a_node_is_what_a_scan_finds(steps in steps()) {
        let mut bench = Bench::new([]);
        let mut running: Vec<Subject> = Vec::new();
        for (version, step) in (1..).zip(steps) {
            match step {
                Step::Put(attachment) => {
                    let put = next(&bench.engine, &attachment, version);
                    bench.put(put);
                }
                Step::Gone(name) => {
                    let name = format!("va-{name}");
                    if let Some(known) = bench.engine.attachment(&name).cloned() {
                        let gone = Change::Gone { name: known.name.clone(), uid: known.uid.clone() };
                        bench.engine.handle(Event::Attachments(gone));
                    }
                }
                Step::Start => running.extend(bench.start()),
                Step::Finish { which, code } => {
                    if !running.is_empty() {
                        let subject = running.swap_remove(which % running.len());
                        let class = Class::Final;
                        let failed = Outcome::Failed { class, code, answer: None, message: "failed".into() };
                        bench.finish(subject, if code.is_some() { failed } else { Outcome::Done });
                    }
                }
                Step::Wait => bench.now += std::time::Duration::from_secs(300),
            }
            let engine = &bench.engine;
            for attachment in engine.index.attachments() {
                let key = Key::Attachment(attachment.name.clone());
                if engine.queue.failed_with(&key, &attachment.uid) == Some(RESOURCE_EXHAUSTED) {
                    let found = engine.short_of_room.get(&attachment.node).any(|name| *name == attachment.name);
                    prop_assert!(found, "{} waits for room on {}", attachment.name, attachment.node);
                }
            }
            // And nothing is kept of what is gone.
            for node in ["node-0", "node-1"] {
                for name in engine.short_of_room.get(node) {
                    prop_assert!(engine.attachment(name).is_some(), "{name} is gone");
                }
            }
        }
    }
}
