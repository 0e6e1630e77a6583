//! In which order repairs are made and how long they wait; those that are refused, and those that a status asks for.

use std::time::Duration;

use super::*;
use crate::controller::SyncError;
use crate::controller::state::reconcile::tests::{Bench, Listed, attached, newer, without_finalizer};
use crate::controller::state::{Event, Item};
use crate::informer::Change;
use crate::model::{Problem, Recorded, Version};
use crate::plan::tests::{mk_attachment, mk_node, mk_volume};
use crate::workqueue::Class;

/// Longer than any pause.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);

fn refused() -> Result<(), SyncError> {
    Err(SyncError::new(
        Class::Refused,
        "PersistentVolume \"pv\" is marked for deletion",
    ))
}

/// With an error in its status.
fn failing(attachment: &Attachment) -> Attachment {
    Attachment {
        attach_error: Some(Box::new(Problem::default())),
        ..newer(attachment)
    }
}

/// The next item, which must be an attach.
fn attaches(bench: &mut Bench) -> Item {
    let item = bench.start().expect("a item must start");
    assert!(
        matches!(
            item,
            Item::Attachment {
                operation: Operation::Attach,
                ..
            }
        ),
        "{item:?}"
    );
    item
}

/// A lost attachment whose republish was refused.
fn mk_parked() -> Bench {
    let mut bench = Bench::new([attached("va")]);
    bench.reconcile(Listed::Nowhere);
    let item = bench.starts(Operation::Attach);
    bench.finish(&item, refused());
    bench
}

/// As after a driver that came back without its memory.
#[test]
fn repairs_do_not_delay_a_new_attach() {
    let names: Vec<String> = (0..40).map(|number| format!("va-{number}")).collect();
    let mut bench = Bench::new(names.iter().map(|name| attached(name)));
    bench.reconcile(Listed::Nowhere);
    bench.put(mk_attachment("new"));
    let mut items: Vec<Item> = std::iter::from_fn(|| bench.start()).collect();
    assert_eq!(
        items.len(),
        5 + 1,
        "half of the lane's concurrency, and the new attach"
    );
    let is_new = |item: &Item| matches!(item, Item::Attachment { attachment, operation } if !operation.is_repair(attachment));
    assert_eq!(items.iter().filter(|item| is_new(item)).count(), 1);
    let mut done = 0;
    while let Some(item) = items.pop() {
        bench.finish(&item, Ok(()));
        done += 1;
        items.extend(std::iter::from_fn(|| bench.start()));
    }
    assert_eq!(bench.state.rounds.metrics.repaired, 40, "of {done} syncs");
}

#[test]
fn a_repair_has_no_creation_timestamp_in_the_stats() {
    let made = "2020-01-01T00:00:00Z".parse().ok();
    let of_age = |name| Attachment {
        wanted_since: made,
        ..attached(name)
    };
    let mut bench = Bench::new([of_age("va")]);
    bench.reconcile(Listed::Nowhere);
    let oldest = |bench: &Bench| bench.state.lanes(bench.now)[&Lane::Repair].oldest;
    assert_eq!(oldest(&bench), None);
    bench.starts(Operation::Attach);
    assert_eq!(oldest(&bench), None);
}

#[test]
fn lists_do_not_end_the_backoff_of_a_failed_repair() {
    let mut bench = Bench::new([attached("va")]);
    bench.reconcile(Listed::Nowhere);
    let item = bench.starts(Operation::Attach);
    bench.finish(&item, Err(SyncError::new(Class::Final, "failed")));
    bench.reconcile(Listed::Nowhere);
    assert!(bench.start().is_none(), "it waits out its backoff");
    assert_eq!(bench.state.rounds.metrics.lost, 1, "it is the same loss");
    // The volume is there after all; another call clears the error in the status.
    bench.reconcile(Listed::OnNode);
    let item = bench.starts(Operation::Attach);
    bench.finish(&item, Ok(()));
    assert!(bench.start().is_none());
}

#[test]
fn a_deletion_turns_a_repair_into_a_detach() {
    let va = attached("va");
    let mut bench = Bench::new([va.clone()]);
    bench.reconcile(Listed::Nowhere);
    bench.put(Attachment {
        deleting: true,
        ..newer(&va)
    });
    let item = bench.start().expect("the detach must start");
    assert!(matches!(
        item,
        Item::Attachment {
            operation: Operation::Detach,
            ..
        }
    ));
}

#[test]
fn backs_off_if_lists_keep_contradicting_repairs() {
    let mut bench = Bench::new([attached("va")]);
    let mut repaired_in = Vec::new();
    for round in 1..=20 {
        bench.reconcile(Listed::Nowhere);
        if let Some(item) = bench.start() {
            bench.finish(&item, Ok(()));
            repaired_in.push(round);
        }
    }
    assert_eq!(repaired_in, [1, 2, 4, 8, 16]);
    bench.reconcile(Listed::OnNode);
    bench.reconcile(Listed::Nowhere);
    bench.starts(Operation::Attach);
}

#[test]
fn parks_a_refused_repair_whatever_the_lists_say() {
    let mut bench = mk_parked();
    for listed in [Listed::Nowhere, Listed::NotAtAll, Listed::Nowhere] {
        bench.now += LONG;
        bench.reconcile(listed);
        bench.state.handle(Event::Resync);
        assert!(bench.start().is_none(), "nothing has changed");
    }
    let metrics = bench.state.rounds.metrics;
    assert_eq!(
        (metrics.lost, metrics.refused, metrics.repaired),
        (1, 1, 0),
        "the loss counts once"
    );
    assert_eq!(bench.state.take_findings().len(), 1, "reported once");
    assert_eq!(bench.state.queue.next_advance(), None, "no backoff runs");

    bench.reconcile(Listed::OnNode);
    bench.now += LONG;
    assert!(bench.start().is_none(), "nothing to repair");
    bench.reconcile(Listed::Nowhere);
    assert!(bench.start().is_none(), "it stays parked");
    assert_eq!(bench.state.rounds.metrics.lost, 2, "the second loss counts");
}

#[test]
fn retries_a_parked_repair_when_its_inputs_change() {
    type Act = fn(&mut Bench);
    let acts: [(&str, Act); 5] = [
        ("the attachment is edited", |bench| {
            bench.put(newer(&attached("va")))
        }),
        ("another volume of that name", |bench| {
            let volume = crate::model::Volume {
                uid: "another".into(),
                version: Version(9),
                ..mk_volume("pv")
            };
            bench.state.handle(Event::Volumes(Change::Applied(volume)));
        }),
        ("the volume is being deleted", |bench| {
            let volume = crate::model::Volume {
                deleting: true,
                version: Version(9),
                ..mk_volume("pv")
            };
            bench.state.handle(Event::Volumes(Change::Applied(volume)));
        }),
        ("the driver is registered on the node again", |bench| {
            let node = crate::model::Node {
                version: Version(9),
                ..mk_node("node", Some("id-2"))
            };
            bench.state.handle(Event::Nodes(Change::Applied(node)));
        }),
        ("the driver can do more", |bench| {
            bench.capabilities(|capabilities| capabilities.single_node_multi_writer = true);
        }),
    ];
    for (name, act) in acts {
        let mut bench = mk_parked();
        act(&mut bench);
        let item = bench.starts(Operation::Attach);
        bench.finish(&item, refused());
        assert!(bench.start().is_none(), "{name}: parked again");
        act(&mut bench);
        assert!(bench.start().is_none(), "{name}: no change");
        bench.put(newer(&newer(&attached("va"))));
        let item = bench.starts(Operation::Attach);
        bench.finish(&item, Ok(()));
        let metrics = bench.state.rounds.metrics;
        assert_eq!((metrics.refused, metrics.repaired), (2, 1), "{name}");
        assert!(bench.start().is_none(), "{name}");
    }
}

#[test]
fn does_not_park_a_repair_whose_inputs_changed_during_the_sync() {
    let mut bench = Bench::new([attached("va")]);
    bench.reconcile(Listed::Nowhere);
    let item = bench.starts(Operation::Attach);
    let node = crate::model::Node {
        version: Version(9),
        ..mk_node("node", Some("id-2"))
    };
    bench.state.handle(Event::Nodes(Change::Applied(node)));
    bench.finish(&item, refused());
    bench.starts(Operation::Attach);
}

#[test]
fn does_not_park_a_repair_whose_record_changed_during_the_sync() {
    let mut bench = Bench::new([attached("va")]);
    bench.reconcile(Listed::Nowhere);
    let item = bench.starts(Operation::Attach);
    let mut edited = newer(&attached("va"));
    edited.recorded.handle = Some("another-handle".into());
    bench.put(edited);
    bench.finish(&item, refused());
    bench.now += LONG;
    bench.starts(Operation::Attach);
}

#[test]
fn does_not_park_a_refused_first_attach() {
    let mut bench = Bench::new([]);
    bench.put(mk_attachment("va"));
    let item = bench.start().expect("an attach");
    bench.finish(&item, refused());
    bench.now += LONG;
    assert!(bench.start().is_some(), "a pod waits for it");
    assert_eq!(bench.state.rounds.metrics.refused, 0);
}

#[test]
fn clears_the_error_of_a_parked_repair_when_the_list_agrees() {
    let mut bench = mk_parked();
    bench.put(failing(&attached("va")));
    assert!(bench.start().is_none(), "the echo of our own write");
    bench.reconcile(Listed::OnNode);
    let item = attaches(&mut bench);
    let pending = bench.state.state_of(&attached("va").uid).pending.clone();
    assert_eq!(pending, Some(PendingStatusWrite::Listed));
    bench.put(newer(&newer(&attached("va"))));
    bench.finish(&item, Ok(()));
    assert!(bench.start().is_none());
    assert_eq!(bench.state.rounds.metrics.repaired, 0, "no call was made");

    // The volume is lost again before the write.
    let mut bench = mk_parked();
    bench.put(failing(&attached("va")));
    bench.reconcile(Listed::OnNode);
    bench.reconcile(Listed::Nowhere);
    attaches(&mut bench);
    assert_eq!(bench.state.state_of(&attached("va").uid).pending, None);
}

/// A new process knows the last attempt from the status alone.
#[test]
fn republishes_an_attached_volume_with_an_error() {
    let mut bench = Bench::new([]);
    bench.put(failing(&attached("va")));
    let item = attaches(&mut bench);
    bench.finish(&item, refused());
    bench.now += LONG;
    assert!(bench.start().is_none(), "parked if refused");

    let mut bench = Bench::new([]);
    bench.capabilities(|capabilities| capabilities.publish = false);
    let released = Attachment {
        finalizer: false,
        ..failing(&attached("va"))
    };
    bench.put(released);
    assert!(
        bench.start().is_none(),
        "a driver without publish calls cannot help"
    );
}

/// The Go sidecar crashed between the removal of its finalizer and the status write, say.
#[test]
fn corrects_the_status_of_an_attachment_without_finalizer() {
    let still = |va: &Attachment| Attachment {
        attached: true,
        ..va.clone()
    };
    let unpublished = without_finalizer("va");
    let never_published = Attachment {
        recorded: Recorded::default(),
        ..without_finalizer("va")
    };
    for (what, va, publishes, is_work) in [
        ("may be published", still(&unpublished), true, true),
        // It stays published until the driver has publish calls again.
        ("cannot be unpublished", still(&unpublished), false, false),
        ("attached without a call", still(&never_published), false, true),
        ("status says detached", unpublished, true, false),
    ] {
        let mut bench = Bench::new([]);
        bench.capabilities(|capabilities| capabilities.publish = publishes);
        bench.put(va.clone());
        if !is_work {
            assert!(bench.start().is_none(), "{what}");
            continue;
        }
        let item = bench.starts(Operation::Detach);
        assert!(matches!(
            item,
            Item::Attachment {
                operation: Operation::Detach,
                ..
            }
        ));
        let right = Attachment {
            attached: false,
            ..newer(&va)
        };
        bench.put(right);
        bench.finish(&item, Ok(()));
        assert!(bench.start().is_none(), "{what}");
    }
}
