//! Histories of the clauses about the end of an operation or of a history.

use super::*;

pub(super) fn rows() -> Vec<Row> {
    vec![
        (
            Clause::Uneventful,
            history()
                .va(va("a"))
                .va(guarded("a"))
                .publish("a", OK)
                .publish("a", OK)
                .va(attached("a")),
            history()
                .va(va("a"))
                .va(guarded("a"))
                .add(Observation::Fault("restart".to_owned()))
                .publish("a", OK)
                .publish("a", OK)
                .va(attached("a")),
        ),
        (
            Clause::Settles,
            history().va(va("a")).add(Observation::Settled),
            history()
                .va(va("a"))
                .va(Attachment {
                    attach_error: Some("no slot".to_owned()),
                    ..va("a")
                })
                .add(Observation::Settled),
        ),
        (
            // The attacher gave up after the driver's last refusal.
            Clause::Recovers,
            history()
                .va(guarded("a"))
                .publish("a", "ABORTED")
                .va(failed("a", "the port is locked"))
                .add(Observation::Healed)
                .add(Observation::Settled),
            history()
                .va(guarded("a"))
                .add(Observation::Healed)
                .publish("a", "ABORTED")
                .va(failed("a", "the port is locked"))
                .add(Observation::Settled),
        ),
        (
            Clause::ArrayAgrees,
            history().array("a", true).add(Observation::Settled),
            history().attach("a").add(Observation::Settled),
        ),
        (
            Clause::NothingLeft,
            history().attach("a").detach("a").add(Observation::CleanedUp),
            history()
                .attach("a")
                .detach("a")
                .add(volume(0))
                .add(Observation::CleanedUp),
        ),
        (
            Clause::RecordComplete,
            history()
                .add(Observation::GapBegan("watch".to_owned()))
                .add(Observation::Settled),
            history()
                .add(Observation::GapBegan("watch".to_owned()))
                .add(Observation::GapEnded("watch".to_owned()))
                .add(Observation::Settled),
        ),
    ]
}

#[test]
fn nothing_outlasts_the_faults_of_an_honest_environment() {
    let settled = |history: History| history.add(Observation::Settled).broken();
    let agrees = BTreeSet::from([Clause::ArrayAgrees]);
    // A refusal after the end of the faults.
    let refused = || {
        let history = history().va(guarded("a")).add(Observation::Healed);
        let history = history.publish("a", "ABORTED");
        history.va(failed("a", "the port is locked"))
    };
    assert_eq!(settled(refused()), BTreeSet::new());
    assert_eq!(
        settled(refused().with(honest)),
        BTreeSet::from([Clause::Recovers])
    );
    // The driver denied what the array still has published.
    let denied = || {
        let history = history()
            .attach("a")
            .delete("a")
            .begin(Method::Unpublish, "a", |_| {});
        history.end(OK).gone("a").add(volume(0))
    };
    assert_eq!(settled(denied()), BTreeSet::new());
    assert_eq!(settled(denied().with(honest)), agrees);
    assert_eq!(denied().add(Observation::CleanedUp).broken(), BTreeSet::new());
    let left = denied().with(honest).add(Observation::CleanedUp).broken();
    assert_eq!(left, BTreeSet::from([Clause::NothingLeft]));
    // The node registers another ID now.
    let moved = || {
        let history = history().attach("a");
        history.add(Observation::CsiNode("a".into(), Registration::Id("id-2".into())))
    };
    assert_eq!(settled(moved()), BTreeSet::new());
    assert_eq!(settled(moved().with(honest)), agrees);
}

#[test]
fn a_mount_may_stay_only_on_an_unhealthy_node() {
    let left = history()
        .attach("a")
        .add(mounted("a", true))
        .add(unhealthy("a"))
        .add(Observation::Forced("vol".into(), "a".into()))
        .detach("a")
        .add(volume(0));
    assert_eq!(left.clone().add(Observation::CleanedUp).broken(), BTreeSet::new());
    let back = left.add(Observation::Node {
        node: "a".into(),
        healthy: true,
    });
    let found = back.add(Observation::CleanedUp).broken();
    assert_eq!(found, BTreeSet::from([Clause::NothingLeft]));
}

#[test]
fn only_a_call_that_begins_after_the_faults_shows_that_the_attacher_retries() {
    let running = history()
        .va(guarded("a"))
        .begin(Method::Publish, "a", |_| {})
        .add(Observation::Healed)
        .end("CANCELLED")
        .va(failed("a", "the call was cancelled"));
    let found = running.add(Observation::Settled).broken();
    assert_eq!(found, BTreeSet::from([Clause::Recovers]));
}

#[test]
fn a_volume_of_another_driver_is_never_attached() {
    let foreign = |is| history().add(volume_with(0, |volume| volume.foreign = is));
    let refused = |history: History| {
        let refused = Attachment {
            attach_error: Some("the volume is another driver's".to_owned()),
            ..va("a")
        };
        let healed = history.va(refused).add(Observation::Healed);
        healed.add(Observation::Settled).broken()
    };
    assert_eq!(refused(foreign(true)), BTreeSet::new());
    assert_eq!(refused(foreign(false)), BTreeSet::from([Clause::Recovers]));
}
