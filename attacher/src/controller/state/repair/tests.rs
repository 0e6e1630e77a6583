//! In which order repairs are made and how long they wait; those that are refused, and those that a status asks for.

use std::time::Duration;

use super::*;
use crate::controller::SyncError;
use crate::controller::state::reconcile::tests::{Bench, Listed, attached, let_go, newer};
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

/// The next item, which must be an attach that the status asks for.
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

/// Lost, and refused when it was to be attached again.
fn mk_resting() -> Bench {
    let mut bench = Bench::new([attached("va")]);
    bench.survey(Listed::Nowhere);
    let item = bench.starts(Operation::Attach);
    bench.finish(&item, refused());
    bench
}

/// As after a driver that came back without its memory.
#[test]
fn a_new_attach_does_not_stand_in_line_behind_repairs() {
    let names: Vec<String> = (0..40).map(|number| format!("va-{number}")).collect();
    let mut bench = Bench::new(names.iter().map(|name| attached(name)));
    bench.survey(Listed::Nowhere);
    bench.put(mk_attachment("new"));
    let mut items: Vec<Item> = std::iter::from_fn(|| bench.start()).collect();
    assert_eq!(items.len(), 5 + 1, "half of the lane's places, and one more");
    let is_new = |item: &Item| matches!(item, Item::Attachment { repair: false, .. });
    assert_eq!(items.iter().filter(|item| is_new(item)).count(), 1);
    let mut done = 0;
    while let Some(item) = items.pop() {
        bench.finish(&item, Ok(()));
        done += 1;
        items.extend(std::iter::from_fn(|| bench.start()));
    }
    assert_eq!(bench.state.tally().repaired, 40, "of {done} syncs");
}

#[test]
fn nobody_waits_for_a_repair_since_the_attachment_was_made() {
    let made = "2020-01-01T00:00:00Z".parse().ok();
    let of_age = |name| Attachment {
        wanted_since: made,
        ..attached(name)
    };
    let mut bench = Bench::new([of_age("va")]);
    bench.survey(Listed::Nowhere);
    let oldest = |bench: &Bench| bench.state.stats(bench.now, 0).lanes[&Lane::Repair].oldest;
    assert_eq!(oldest(&bench), None);
    bench.starts(Operation::Attach);
    assert_eq!(oldest(&bench), None);
}

#[test]
fn a_repair_that_fails_waits_and_further_lists_do_not_hurry_it() {
    let mut bench = Bench::new([attached("va")]);
    bench.survey(Listed::Nowhere);
    let item = bench.starts(Operation::Attach);
    bench.finish(&item, Err(SyncError::new(Class::Final, "failed")));
    bench.survey(Listed::Nowhere);
    assert!(bench.start().is_none(), "it waits out its backoff");
    assert_eq!(bench.state.tally().lost, 1, "it is the same loss");
    // The volume is there after all; another call clears the error in the status.
    bench.survey(Listed::OnNode);
    let item = bench.starts(Operation::Attach);
    bench.finish(&item, Ok(()));
    assert!(bench.start().is_none());
}

#[test]
fn a_repair_that_is_overtaken_by_a_deletion_is_a_detach() {
    let va = attached("va");
    let mut bench = Bench::new([va.clone()]);
    bench.survey(Listed::Nowhere);
    bench.put(Attachment {
        deleting: true,
        ..newer(&va)
    });
    let item = bench.start().expect("the detach must start");
    assert!(matches!(
        item,
        Item::Attachment {
            operation: Operation::Detach,
            repair: false,
            ..
        }
    ));
}

#[test]
fn a_list_that_never_agrees_is_believed_less_and_less() {
    let mut bench = Bench::new([attached("va")]);
    let mut repaired_in = Vec::new();
    for round in 1..=20 {
        bench.survey(Listed::Nowhere);
        if let Some(item) = bench.start() {
            bench.finish(&item, Ok(()));
            repaired_in.push(round);
        }
    }
    assert_eq!(repaired_in, [1, 2, 4, 8, 16]);
    bench.survey(Listed::OnNode);
    bench.survey(Listed::Nowhere);
    bench.starts(Operation::Attach);
}

#[test]
fn a_repair_that_is_refused_rests_whatever_the_lists_say() {
    let mut bench = mk_resting();
    for listed in [Listed::Nowhere, Listed::NotAtAll, Listed::Nowhere] {
        bench.now += LONG;
        bench.survey(listed);
        bench.state.handle(Event::Resync);
        assert!(bench.start().is_none(), "nothing has changed");
    }
    let tally = bench.state.tally();
    assert_eq!(
        (tally.lost, tally.refused, tally.repaired),
        (1, 1, 0),
        "it is one loss"
    );
    assert_eq!(bench.state.take_findings().len(), 1, "told once");
    assert_eq!(
        bench.state.next_start(),
        None,
        "nobody waits for the time to pass"
    );

    bench.survey(Listed::OnNode);
    bench.now += LONG;
    assert!(bench.start().is_none(), "there is nothing to repair any more");
    bench.survey(Listed::Nowhere);
    assert!(bench.start().is_none(), "nor to try");
    assert_eq!(bench.state.tally().lost, 2, "but it is another loss");
}

#[test]
fn a_repair_that_rests_is_tried_again_when_something_changes() {
    type Act = fn(&mut Bench);
    let acts: [(&str, Act); 5] = [
        ("somebody edits the attachment", |bench| {
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
        let mut bench = mk_resting();
        act(&mut bench);
        let item = bench.starts(Operation::Attach);
        bench.finish(&item, refused());
        assert!(bench.start().is_none(), "{name}: it rests again");
        act(&mut bench);
        assert!(bench.start().is_none(), "{name}: the same is no change");
        bench.put(newer(&newer(&attached("va"))));
        let item = bench.starts(Operation::Attach);
        bench.finish(&item, Ok(()));
        let tally = bench.state.tally();
        assert_eq!((tally.refused, tally.repaired), (2, 1), "{name}");
        assert!(bench.start().is_none(), "{name}");
    }
}

#[test]
fn what_changes_while_a_repair_is_being_refused_is_not_missed() {
    let mut bench = Bench::new([attached("va")]);
    bench.survey(Listed::Nowhere);
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
fn a_first_attach_that_is_refused_does_not_rest() {
    let mut bench = Bench::new([]);
    bench.put(mk_attachment("va"));
    let item = bench.start().expect("an attach");
    bench.finish(&item, refused());
    bench.now += LONG;
    assert!(bench.start().is_some(), "a pod waits for it");
    assert_eq!(bench.state.tally().refused, 0);
}

#[test]
fn what_a_status_tells_of_a_repair_that_was_refused_goes_when_the_list_agrees() {
    let mut bench = mk_resting();
    bench.put(failing(&attached("va")));
    assert!(bench.start().is_none(), "that is our own doing");
    bench.survey(Listed::OnNode);
    let item = attaches(&mut bench);
    assert!(matches!(
        item,
        Item::Attachment {
            pending: Some(PendingStatusWrite::Listed),
            ..
        }
    ));
    bench.put(newer(&newer(&attached("va"))));
    bench.finish(&item, Ok(()));
    assert!(bench.start().is_none());
    assert_eq!(bench.state.tally().repaired, 0, "nobody did anything");

    // It may be lost again before that is written.
    let mut bench = mk_resting();
    bench.put(failing(&attached("va")));
    bench.survey(Listed::OnNode);
    bench.survey(Listed::Nowhere);
    let item = attaches(&mut bench);
    assert!(matches!(item, Item::Attachment { pending: None, .. }), "{item:?}");
}

/// Nothing but its status tells a process that has just started of the last attempt.
#[test]
fn who_is_attached_with_an_error_is_attached_again() {
    let mut bench = Bench::new([]);
    bench.put(failing(&attached("va")));
    let item = attaches(&mut bench);
    bench.finish(&item, refused());
    bench.now += LONG;
    assert!(bench.start().is_none(), "and rests if that is refused");

    let mut bench = Bench::new([]);
    bench.capabilities(|capabilities| capabilities.publish = false);
    let released = Attachment {
        finalizer: false,
        ..failing(&attached("va"))
    };
    bench.put(released);
    assert!(
        bench.start().is_none(),
        "a driver without calls makes nothing better"
    );
}

/// Our finalizer is off, and the status was not written: the Go sidecar died between the two, say.
#[test]
fn who_was_let_go_of_and_says_that_he_is_attached_is_put_right() {
    let still = |va: &Attachment| Attachment {
        attached: true,
        ..va.clone()
    };
    let unpublished = let_go("va");
    let never_published = Attachment {
        recorded: Recorded::default(),
        ..let_go("va")
    };
    for (what, va, publishes, is_work) in [
        ("it may be published", still(&unpublished), true, true),
        // Then it stays published, until the driver has calls again.
        ("nobody can unpublish it", still(&unpublished), false, false),
        (
            "it was attached without a call",
            still(&never_published),
            false,
            true,
        ),
        ("it says that it is detached", unpublished, true, false),
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
