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
                .add(Observation::Forced("vol".into(), "a".into()))
                .add(mounted("b", true)),
        ),
        (
            Clause::MountedIsPublished,
            history()
                .attach("a")
                .add(mounted("a", true))
                .delete("a")
                .add(unhealthy("a"))
                .unpublish("a", OK)
                .gone("a"),
            history()
                .attach("a")
                .add(mounted("a", true))
                .add(unhealthy("a"))
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
            history()
                .attach("a")
                .add(pod("a", false))
                .add(Observation::Healed)
                .add(Observation::Settled),
            history()
                .attach("a")
                .add(pod("a", false))
                .add(Observation::Settled),
        ),
        (
            Clause::AttachedForPods,
            history()
                .attach("a")
                .add(pod("b", true))
                .add(Observation::Healed)
                .add(Observation::Settled),
            history()
                .attach("a")
                .add(pod("a", true))
                .add(Observation::Healed)
                .add(Observation::Settled),
        ),
        (
            Clause::NoPanic,
            history().add(Observation::Panicked("kubelet of a".to_owned())),
            history(),
        ),
    ]
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
fn a_force_that_begins_later_excuses_nothing() {
    let mounted_a = || history().attach("a").add(mounted("a", true));
    let force = || Observation::Forced("vol".into(), "a".into());
    assert_eq!(mounted_a().add(force()).detach("a").broken(), BTreeSet::new());
    let before = BTreeSet::from([Clause::MountedIsPublished]);
    assert_eq!(mounted_a().detach("a").add(force()).broken(), before);
    // The detach begins on a healthy node, which fails before the call.
    assert_eq!(
        mounted_a()
            .delete("a")
            .add(unhealthy("a"))
            .va(deleting(attached("a"), 9))
            .unpublish("a", OK)
            .broken(),
        before
    );
    // A new attachment ends the force of the old one.
    let again = mounted_a().add(unhealthy("a")).detach("a");
    let again = again.add(Observation::Node {
        node: "a".into(),
        healthy: true,
    });
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
