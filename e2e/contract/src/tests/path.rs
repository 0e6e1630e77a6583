//! Histories of the clauses about the whole path.

use super::*;

pub(super) fn rows() -> Vec<Row> {
    let shared = || history().add(volume_with(1, |volume| volume.single_node = false));
    vec![
        (
            Clause::OneNode,
            history().attach("a").attach("b"),
            shared().attach("a").attach("b"),
        ),
        (
            Clause::OneMount,
            history().add(mounted("a", true)).add(mounted("b", true)),
            history()
                .add(mounted("a", true))
                .add(force("a"))
                .add(mounted("b", true)),
        ),
        (
            Clause::MountedIsPublished,
            history()
                .attach("a")
                .add(mounted("a", true))
                .add(unhealthy("a"))
                .detach("a"),
            history()
                .attach("a")
                .add(mounted("a", true))
                .add(force("a"))
                .detach("a"),
        ),
        (
            Clause::KeptWhilePublished,
            history()
                .attach("a")
                .add(Observation::VolumeDeleted("vol".into())),
            history()
                .attach("a")
                .detach("a")
                .add(Observation::VolumeDeleted("vol".into())),
        ),
        (
            Clause::PodsRun,
            healed(history().attach("a").add(pod("a", false))),
            history()
                .attach("a")
                .add(pod("a", false))
                .add(Observation::Settled),
        ),
        (
            Clause::AttachedForPods,
            healed(history().attach("a").add(pod("b", true))),
            healed(history().attach("a").add(pod("a", true))),
        ),
        (
            Clause::ListedWhileAttached,
            history()
                .attach("a")
                .add(listed("a", &["vol"]))
                .delete("a")
                .add(listed("a", &[]))
                .add(listed("a", &["vol"])),
            history()
                .attach("a")
                .add(listed("a", &["vol"]))
                .delete("a")
                .add(listed("a", &["vol"]))
                .add(listed("a", &[])),
        ),
        (
            Clause::PodsAttached,
            healed(history().with(honest).add(pod("a", true))),
            healed(history().with(honest).attach("a").add(pod("a", true))),
        ),
        (
            Clause::NoPanic,
            history().add(Observation::Panicked("kubelet of a".to_owned())),
            history(),
        ),
    ]
}

/// The history with the end of all faults.
fn healed(history: History) -> History {
    history.add(Observation::Healed).add(Observation::Settled)
}

/// A pod that uses the volume on a node.
fn pod(node: &str, running: bool) -> Observation {
    Observation::Pod(Arc::new(Pod {
        name: "db".into(),
        node: Some(node.into()),
        volume: Some("pv".into()),
        running,
    }))
}

#[test]
fn a_fault_after_the_end_of_all_faults_hides_nothing() {
    let waits = || {
        history()
            .with(honest)
            .attach("a")
            .add(pod("a", false))
            .add(Observation::Healed)
    };
    let settled = |history: History| history.add(Observation::Settled).broken();
    let fault = || Observation::Fault("late".to_owned());
    let runs_not = BTreeSet::from([Clause::PodsRun]);
    assert_eq!(
        settled(waits().add(Observation::ProcessEnded("one".into()))),
        runs_not
    );
    assert_eq!(settled(waits().add(fault()).add(Observation::Healed)), runs_not);
    assert_eq!(
        settled(waits().add(fault())),
        BTreeSet::from([Clause::RecordComplete])
    );
}

#[test]
fn a_running_pod_needs_an_attachment_that_stays() {
    let settled = |attachment| {
        let history = history().with(honest).attach("a").add(pod("a", true));
        let healed = history.va(attachment).add(Observation::Healed);
        healed.add(Observation::Settled).broken()
    };
    let leaving = deleting(attached("a"), 9);
    assert!(settled(leaving).contains(&Clause::PodsAttached));
    assert!(settled(guarded("a")).contains(&Clause::PodsAttached));
    let elsewhere = history().with(honest).attach("a").add(pod("b", true));
    let elsewhere = elsewhere.add(Observation::Healed).add(Observation::Settled);
    let both = BTreeSet::from([Clause::PodsAttached, Clause::AttachedForPods]);
    assert_eq!(elsewhere.broken(), both);
}

#[test]
fn only_a_call_changes_an_honest_array_under_a_mount() {
    let lost = || history().attach("a").add(mounted("a", true)).array("a", false);
    assert_eq!(lost().broken(), BTreeSet::new());
    let found = BTreeSet::from([Clause::MountedIsPublished]);
    let honest_array = history().with(honest).attach("a").add(mounted("a", true));
    assert_eq!(honest_array.clone().array("a", false).broken(), found);
    // The volume was mounted during the call.
    let during = history()
        .with(honest)
        .attach("a")
        .delete("a")
        .begin(Method::Unpublish, "a", |_| {})
        .add(mounted("a", true))
        .array("a", false);
    assert_eq!(during.broken(), found);
    let forced = honest_array.add(force("a")).delete("a").array("a", false);
    assert_eq!(forced.broken(), BTreeSet::new());
}

#[test]
fn a_force_that_begins_later_excuses_nothing() {
    let mounted_a = || history().attach("a").add(mounted("a", true));
    assert_eq!(mounted_a().add(force("a")).detach("a").broken(), BTreeSet::new());
    let before = BTreeSet::from([Clause::MountedIsPublished]);
    assert_eq!(mounted_a().detach("a").add(force("a")).broken(), before);
    // A new attachment ends the force of the old one.
    let again = mounted_a().add(force("a")).detach("a");
    let again = again.va(va("a")).va(Attachment {
        uid: "uid-2".into(),
        ..guarded("a")
    });
    let again = again.publish("a", OK).va(Attachment {
        uid: "uid-2".into(),
        ..attached("a")
    });
    assert!(
        again
            .unpublish("a", OK)
            .broken()
            .contains(&Clause::MountedIsPublished)
    );
}

fn force(node: &str) -> Observation {
    Observation::Forced("vol".into(), node.into())
}

fn listed(node: &str, volumes: &[&str]) -> Observation {
    Observation::VolumesAttached(node.into(), volumes.iter().map(|&volume| volume.into()).collect())
}
