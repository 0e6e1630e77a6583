//! Repairs that are refused, and those that a status asks for.

use std::time::Duration;

use super::*;
use crate::decide::tests::{mk_node, mk_volume};
use crate::engine::reconcile::tests::{Bench, Listed, attached, let_go, newer};
use crate::engine::{Event, Job, Outcome, Subject};
use crate::index::Change;
use crate::model::{Problem, Recorded, Version};
use crate::queue::Class;

/// Longer than any pause.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);

fn refused() -> Outcome {
    Outcome::Failed {
        class: Class::Refused,
        code: None,
        answer: None,
        message: "PersistentVolume \"pv\" is marked for deletion".into(),
    }
}

/// With an error in its status.
fn failing(attachment: &Attachment) -> Attachment {
    Attachment {
        attach_error: Some(Box::new(Problem::default())),
        ..newer(attachment)
    }
}

/// The next job, which must be an attach that the status asks for.
fn attaches(bench: &mut Bench) -> Job {
    let job = bench.start().expect("a job must start");
    assert!(matches!(job.subject(), Subject::Attachment(Wanted::Attach, _)), "{job:?}");
    job
}

/// Lost, and refused when it was to be attached again.
fn mk_resting() -> Bench {
    let mut bench = Bench::new([attached("va")]);
    bench.survey(Listed::Nowhere);
    let job = bench.starts(Wanted::Attach);
    bench.finish(&job, refused());
    bench
}

#[test]
fn a_repair_that_is_refused_rests_whatever_the_lists_say() {
    let mut bench = mk_resting();
    for listed in [Listed::Nowhere, Listed::NotAtAll, Listed::Nowhere] {
        bench.now += LONG;
        bench.survey(listed);
        bench.engine.handle(Event::Resync);
        assert!(bench.start().is_none(), "nothing has changed");
    }
    let tally = bench.engine.tally();
    assert_eq!((tally.lost, tally.refused, tally.repaired), (1, 1, 0), "it is one loss");
    assert_eq!(bench.engine.take_findings().len(), 1, "told once");
    assert_eq!(bench.engine.next_start(), None, "nobody waits for the time to pass");

    bench.survey(Listed::OnNode);
    bench.now += LONG;
    assert!(bench.start().is_none(), "there is nothing to repair any more");
    bench.survey(Listed::Nowhere);
    assert!(bench.start().is_none(), "nor to try");
    assert_eq!(bench.engine.tally().lost, 2, "but it is another loss");
}

#[test]
fn a_repair_that_rests_is_tried_again_when_something_changes() {
    type Act = fn(&mut Bench);
    let acts: [(&str, Act); 5] = [
        ("somebody edits the attachment", |bench| bench.put(newer(&attached("va")))),
        ("another volume of that name", |bench| {
            let volume = crate::model::Volume {
                uid: "another".into(),
                version: Version(9),
                ..mk_volume("pv")
            };
            bench.engine.handle(Event::Volumes(Change::Put(volume)));
        }),
        ("the volume is being deleted", |bench| {
            let volume = crate::model::Volume {
                deleting: true,
                version: Version(9),
                ..mk_volume("pv")
            };
            bench.engine.handle(Event::Volumes(Change::Put(volume)));
        }),
        ("the driver is registered on the node again", |bench| {
            let node = crate::model::Node {
                version: Version(9),
                ..mk_node("node", Some("id-2"))
            };
            bench.engine.handle(Event::Nodes(Change::Put(node)));
        }),
        ("the driver can do more", |bench| {
            bench.capabilities(|capabilities| capabilities.single_node_multi_writer = true);
        }),
    ];
    for (name, act) in acts {
        let mut bench = mk_resting();
        act(&mut bench);
        let job = bench.starts(Wanted::Attach);
        bench.finish(&job, refused());
        assert!(bench.start().is_none(), "{name}: it rests again");
        act(&mut bench);
        assert!(bench.start().is_none(), "{name}: the same is no change");
        bench.put(newer(&newer(&attached("va"))));
        let job = bench.starts(Wanted::Attach);
        bench.finish(&job, Outcome::Done);
        let tally = bench.engine.tally();
        assert_eq!((tally.refused, tally.repaired), (2, 1), "{name}");
        assert!(bench.start().is_none(), "{name}");
    }
}

#[test]
fn what_changes_while_a_repair_is_being_refused_is_not_missed() {
    let mut bench = Bench::new([attached("va")]);
    bench.survey(Listed::Nowhere);
    let job = bench.starts(Wanted::Attach);
    let node = crate::model::Node {
        version: Version(9),
        ..mk_node("node", Some("id-2"))
    };
    bench.engine.handle(Event::Nodes(Change::Put(node)));
    bench.finish(&job, refused());
    bench.starts(Wanted::Attach);
}

#[test]
fn a_first_attach_that_is_refused_does_not_rest() {
    let mut bench = Bench::new([]);
    bench.put(crate::decide::tests::mk_attachment("va"));
    let job = bench.start().expect("an attach");
    bench.finish(&job, refused());
    bench.now += LONG;
    assert!(bench.start().is_some(), "a pod waits for it");
    assert_eq!(bench.engine.tally().refused, 0);
}

#[test]
fn what_a_status_tells_of_a_repair_that_was_refused_goes_when_the_list_agrees() {
    let mut bench = mk_resting();
    bench.put(failing(&attached("va")));
    assert!(bench.start().is_none(), "that is our own doing");
    bench.survey(Listed::OnNode);
    let job = attaches(&mut bench);
    assert!(matches!(
        job,
        Job::Attachment {
            answer: Some(Answer::Listed),
            ..
        }
    ));
    bench.put(newer(&newer(&attached("va"))));
    bench.finish(&job, Outcome::Done);
    assert!(bench.start().is_none());
    assert_eq!(bench.engine.tally().repaired, 0, "nobody did anything");

    // It may be lost again before that is written.
    let mut bench = mk_resting();
    bench.put(failing(&attached("va")));
    bench.survey(Listed::OnNode);
    bench.survey(Listed::Nowhere);
    let job = attaches(&mut bench);
    assert!(matches!(job, Job::Attachment { answer: None, .. }), "{job:?}");
}

/// Nothing but its status tells a process that has just started of the last attempt.
#[test]
fn who_is_attached_with_an_error_is_attached_again() {
    let mut bench = Bench::new([]);
    bench.put(failing(&attached("va")));
    let job = attaches(&mut bench);
    bench.finish(&job, refused());
    bench.now += LONG;
    assert!(bench.start().is_none(), "and rests if that is refused");

    let mut bench = Bench::new([]);
    bench.capabilities(|capabilities| capabilities.publish = false);
    let released = Attachment {
        finalizer: false,
        ..failing(&attached("va"))
    };
    bench.put(released);
    assert!(bench.start().is_none(), "a driver without calls makes nothing better");
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
        ("it was attached without a call", still(&never_published), false, true),
        ("it says that it is detached", unpublished, true, false),
    ] {
        let mut bench = Bench::new([]);
        bench.capabilities(|capabilities| capabilities.publish = publishes);
        bench.put(va.clone());
        if !is_work {
            assert!(bench.start().is_none(), "{what}");
            continue;
        }
        let job = bench.starts(Wanted::Detach);
        assert!(matches!(job.subject(), Subject::Attachment(Wanted::Detach, _)));
        let right = Attachment {
            attached: false,
            ..newer(&va)
        };
        bench.put(right);
        bench.finish(&job, Outcome::Done);
        assert!(bench.start().is_none(), "{what}");
    }
}
