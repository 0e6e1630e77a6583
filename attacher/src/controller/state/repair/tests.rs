//! Priority and backoff of repairs, refused repairs, and repairs that a status requires.

use std::time::Duration;

use super::*;
use crate::controller::SyncError;
use crate::controller::state::reconcile::tests::{Fixture, Listed, attached, newer, without_finalizer};
use crate::controller::state::{Event, Item};
use crate::informer::Change;
use crate::model::{Problem, Recorded, Version};
use crate::plan::Subject;
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

/// `attachment` with an error in its status.
fn failing(attachment: &Attachment) -> Attachment {
    Attachment {
        attach_error: Some(Box::new(Problem::default())),
        ..newer(attachment)
    }
}

/// The next item, which must be an attach.
fn attaches(fixture: &mut Fixture) -> Item {
    let item = fixture.start().expect("an item must start");
    assert!(
        matches!(item, Item::Subject(Subject::Attachment(Operation::Attach, _))),
        "{item:?}"
    );
    item
}

/// A lost attachment whose republish was refused.
fn mk_suspended() -> Fixture {
    let mut fixture = Fixture::new([attached("va")]);
    fixture.reconcile(Listed::Nowhere);
    let item = fixture.starts(Operation::Attach);
    fixture.finish(&item, refused());
    fixture
}

/// For example after the driver restarted and lost its state.
#[test]
fn repairs_do_not_delay_a_new_attach() {
    let names: Vec<String> = (0..40).map(|number| format!("va-{number}")).collect();
    let mut fixture = Fixture::new(names.iter().map(|name| attached(name)));
    fixture.reconcile(Listed::Nowhere);
    fixture.put(mk_attachment("new"));
    let mut items: Vec<Item> = std::iter::from_fn(|| fixture.start()).collect();
    assert_eq!(
        items.len(),
        5 + 1,
        "half of the lane's concurrency, and the new attach"
    );
    let is_new = |item: &Item| matches!(item, Item::Subject(Subject::Attachment(operation, attachment)) if !operation.is_repair(attachment));
    assert_eq!(items.iter().filter(|item| is_new(item)).count(), 1);
    let mut done = 0;
    while let Some(item) = items.pop() {
        fixture.finish(&item, Ok(()));
        done += 1;
        items.extend(std::iter::from_fn(|| fixture.start()));
    }
    assert_eq!(fixture.state.rounds.metrics.repaired, 40, "of {done} syncs");
}

#[test]
fn a_repair_has_no_creation_timestamp_in_the_stats() {
    let made = "2020-01-01T00:00:00Z".parse().ok();
    let of_age = |name| Attachment {
        requested_at: made,
        ..attached(name)
    };
    let mut fixture = Fixture::new([of_age("va")]);
    fixture.reconcile(Listed::Nowhere);
    let oldest = |fixture: &Fixture| fixture.state.lanes(fixture.now)[&Lane::Repair].oldest;
    assert_eq!(oldest(&fixture), None);
    fixture.starts(Operation::Attach);
    assert_eq!(oldest(&fixture), None);
}

#[test]
fn lists_do_not_end_the_backoff_of_a_failed_repair() {
    let mut fixture = Fixture::new([attached("va")]);
    fixture.reconcile(Listed::Nowhere);
    let item = fixture.starts(Operation::Attach);
    fixture.finish(&item, Err(SyncError::new(Class::Final, "failed")));
    fixture.reconcile(Listed::Nowhere);
    assert!(fixture.start().is_none(), "it waits out its backoff");
    assert_eq!(fixture.state.rounds.metrics.lost, 1, "it is the same loss");
    // The volume is listed again; another call clears the error in the status.
    fixture.reconcile(Listed::OnNode);
    let item = fixture.starts(Operation::Attach);
    fixture.finish(&item, Ok(()));
    assert!(fixture.start().is_none());
}

#[test]
fn a_deletion_turns_a_repair_into_a_detach() {
    let va = attached("va");
    let mut fixture = Fixture::new([va.clone()]);
    fixture.reconcile(Listed::Nowhere);
    fixture.put(Attachment {
        deleting: true,
        ..newer(&va)
    });
    let item = fixture.start().expect("the detach must start");
    assert!(matches!(
        item,
        Item::Subject(Subject::Attachment(Operation::Detach, _))
    ));
}

#[test]
fn backs_off_if_lists_keep_contradicting_repairs() {
    let mut fixture = Fixture::new([attached("va")]);
    let mut repaired_in = Vec::new();
    for round in 1..=20 {
        fixture.reconcile(Listed::Nowhere);
        if let Some(item) = fixture.start() {
            fixture.finish(&item, Ok(()));
            repaired_in.push(round);
        }
    }
    assert_eq!(repaired_in, [1, 2, 4, 8, 16]);
    fixture.reconcile(Listed::OnNode);
    fixture.reconcile(Listed::Nowhere);
    fixture.starts(Operation::Attach);
}

#[test]
fn keeps_a_refused_repair_suspended_despite_further_lists() {
    let mut fixture = mk_suspended();
    for listed in [Listed::Nowhere, Listed::NotAtAll, Listed::Nowhere] {
        fixture.now += LONG;
        fixture.reconcile(listed);
        fixture.state.handle(Event::Resync);
        assert!(fixture.start().is_none(), "nothing has changed");
    }
    let metrics = fixture.state.rounds.metrics;
    assert_eq!(
        (metrics.lost, metrics.refused, metrics.repaired),
        (1, 1, 0),
        "the loss counts once"
    );
    let waits = |fixture: &mut Fixture| match &fixture.state.take_findings()[..] {
        [Finding::Drift { waits, .. }] => *waits,
        findings => panic!("reported once: {findings:?}"),
    };
    assert!(!waits(&mut fixture));
    assert_eq!(fixture.state.queue.next_advance(), None, "no backoff runs");

    fixture.reconcile(Listed::OnNode);
    fixture.now += LONG;
    assert!(fixture.start().is_none(), "nothing to repair");
    fixture.reconcile(Listed::Nowhere);
    assert!(fixture.start().is_none(), "it stays suspended");
    assert_eq!(fixture.state.rounds.metrics.lost, 2, "the second loss counts");
    assert!(waits(&mut fixture), "nothing is published again");
}

#[test]
fn retries_a_suspended_repair_when_its_inputs_change() {
    type Act = fn(&mut Fixture);
    let acts: [(&str, Act); 5] = [
        ("the attachment is edited", |fixture| {
            fixture.put(newer(&attached("va")))
        }),
        ("another volume of that name", |fixture| {
            let volume = crate::model::Volume {
                uid: "another".into(),
                version: Version(9),
                ..mk_volume("pv")
            };
            fixture.state.handle(Event::Volumes(Change::Applied(volume)));
        }),
        ("the volume is being deleted", |fixture| {
            let volume = crate::model::Volume {
                deleting: true,
                version: Version(9),
                ..mk_volume("pv")
            };
            fixture.state.handle(Event::Volumes(Change::Applied(volume)));
        }),
        ("the driver is registered on the node again", |fixture| {
            let node = crate::model::Node {
                version: Version(9),
                ..mk_node("node", Some("id-2"))
            };
            fixture.state.handle(Event::Nodes(Change::Applied(node)));
        }),
        ("the driver can do more", |fixture| {
            fixture.capabilities(|capabilities| capabilities.single_node_multi_writer = true);
        }),
    ];
    for (name, act) in acts {
        let mut fixture = mk_suspended();
        act(&mut fixture);
        let item = fixture.starts(Operation::Attach);
        fixture.finish(&item, refused());
        assert!(fixture.start().is_none(), "{name}: suspended again");
        act(&mut fixture);
        assert!(fixture.start().is_none(), "{name}: no change");
        fixture.put(newer(&newer(&attached("va"))));
        let item = fixture.starts(Operation::Attach);
        fixture.finish(&item, Ok(()));
        let metrics = fixture.state.rounds.metrics;
        assert_eq!((metrics.refused, metrics.repaired), (2, 1), "{name}");
        assert!(fixture.start().is_none(), "{name}");
    }
}

#[test]
fn does_not_park_a_repair_whose_inputs_changed_during_the_sync() {
    let mut fixture = Fixture::new([attached("va")]);
    fixture.reconcile(Listed::Nowhere);
    let item = fixture.starts(Operation::Attach);
    let node = crate::model::Node {
        version: Version(9),
        ..mk_node("node", Some("id-2"))
    };
    fixture.state.handle(Event::Nodes(Change::Applied(node)));
    fixture.finish(&item, refused());
    fixture.starts(Operation::Attach);
}

#[test]
fn does_not_park_a_repair_whose_record_changed_during_the_sync() {
    let mut fixture = Fixture::new([attached("va")]);
    fixture.reconcile(Listed::Nowhere);
    let item = fixture.starts(Operation::Attach);
    let mut edited = newer(&attached("va"));
    edited.recorded.handle = Some("another-handle".into());
    fixture.put(edited);
    fixture.finish(&item, refused());
    fixture.now += LONG;
    fixture.starts(Operation::Attach);
}

#[test]
fn does_not_park_a_refused_first_attach() {
    let mut fixture = Fixture::new([]);
    fixture.put(mk_attachment("va"));
    let item = fixture.start().expect("an attach");
    fixture.finish(&item, refused());
    fixture.now += LONG;
    assert!(fixture.start().is_some(), "a pod waits for it");
    assert_eq!(fixture.state.rounds.metrics.refused, 0);
}

/// A new process knows the last attempt only from the status.
#[test]
fn republishes_an_attached_volume_with_an_error() {
    let mut fixture = Fixture::new([]);
    fixture.put(failing(&attached("va")));
    let item = attaches(&mut fixture);
    fixture.finish(&item, refused());
    fixture.now += LONG;
    assert!(fixture.start().is_none(), "suspended if refused");

    let mut fixture = Fixture::new([]);
    fixture.capabilities(|capabilities| capabilities.publish = false);
    let released = Attachment {
        finalizer: false,
        ..failing(&attached("va"))
    };
    fixture.put(released);
    assert!(
        fixture.start().is_none(),
        "a driver without publish calls cannot republish"
    );
}

/// For example after a crash of the Go sidecar between the removal of its finalizer and the status write.
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
        ("detached", unpublished, true, false),
    ] {
        let mut fixture = Fixture::new([]);
        fixture.capabilities(|capabilities| capabilities.publish = publishes);
        fixture.put(va.clone());
        if !is_work {
            assert!(fixture.start().is_none(), "{what}");
            continue;
        }
        let item = fixture.starts(Operation::Detach);
        assert!(matches!(
            item,
            Item::Subject(Subject::Attachment(Operation::Detach, _))
        ));
        let right = Attachment {
            attached: false,
            ..newer(&va)
        };
        fixture.put(right);
        fixture.finish(&item, Ok(()));
        assert!(fixture.start().is_none(), "{what}");
    }
}
