//! Observations of a scenario, and the clauses that they break.

mod samples;

use k8s_openapi::api::core::v1::SecretReference;
use samples::*;

use super::*;

fn running(observations: &Observations) -> BTreeSet<Clause> {
    let violations = check_running(observations);
    violations.iter().map(|violation| violation.clause).collect()
}

fn cleaned_up(observations: &Observations) -> BTreeSet<Clause> {
    let violations = check_cleaned_up(observations);
    violations.iter().map(|violation| violation.clause).collect()
}

fn clauses(clauses: &[Clause]) -> BTreeSet<Clause> {
    clauses.iter().copied().collect()
}

/// Attached at second 3 and still attached at the end.
fn attached_to_a() -> Observations {
    let mut observations = mk_observations();
    observations.calls = vec![publish("vol", "id-a", 2)];
    observations.watch_events = vec![seen(attachment(), 1), seen(attached(attachment()), 3)];
    observations.attachments = vec![attached(attachment())];
    publish_to(&mut observations, "vol", "id-a");
    observations
}

fn publish_to(observations: &mut Observations, volume: &str, node: &str) {
    let nodes = observations.published.entry(volume.to_owned()).or_default();
    nodes.insert(node.to_owned());
}

/// Attached and detached, with the VolumeAttachment gone at second 7.
fn detached_from_a() -> Observations {
    let mut observations = mk_observations();
    observations.calls = vec![publish("vol", "id-a", 2), unpublish("vol", "id-a", 6)];
    let going = || deleting(attached(attachment()), 5);
    observations.watch_events = vec![
        seen(attachment(), 1),
        seen(attached(attachment()), 3),
        seen(going(), 5),
        gone(going(), 7),
    ];
    observations
}

#[test]
fn a_life_in_order_breaks_nothing() {
    assert_eq!(check_running(&attached_to_a()), []);
    assert_eq!(check_cleaned_up(&detached_from_a()), []);
}

#[test]
fn attached_needs_an_answered_publish_to_the_node() {
    for calls in [
        vec![],
        vec![publish("vol", "id-a", 4)],
        vec![publish("vol", "id-b", 2)],
    ] {
        let mut observations = attached_to_a();
        observations.calls = calls;
        assert!(running(&observations).contains(&Clause::AttachedWhilePublished));
    }
}

#[test]
fn an_unpublish_under_a_live_attachment_is_found() {
    let mut observations = attached_to_a();
    observations.calls.push(unpublish("vol", "id-a", 4));
    observations.calls.push(publish("vol", "id-a", 5));
    assert_eq!(
        running(&observations),
        clauses(&[Clause::NoDetachUnderAttachment])
    );
    let mut observations = detached_from_a();
    observations.calls[1] = unpublish("vol", "id-a", 4);
    // A deletion requested later does not excuse it.
    assert_eq!(
        cleaned_up(&observations),
        clauses(&[Clause::NoDetachUnderAttachment])
    );
}

#[test]
fn an_exempt_volume_must_be_published_at_the_end_only() {
    let mut observations = attached_to_a();
    observations.calls.clear();
    observations.exempt.insert(("vol".to_owned(), "id-a".to_owned()));
    assert_eq!(check_running(&observations), []);
    observations.published.clear();
    assert_eq!(running(&observations), clauses(&[Clause::ArrayAgrees]));
}

#[test]
fn a_change_during_the_final_reads_is_no_difference() {
    let mut observations = attached_to_a();
    observations.published.clear();
    observations
        .changing
        .insert(("vol".to_owned(), "id-a".to_owned()));
    assert_eq!(check_running(&observations), []);
}

#[test]
fn a_publication_needs_an_attachment() {
    let mut observations = mk_observations();
    publish_to(&mut observations, "vol", "id-a");
    assert_eq!(running(&observations), clauses(&[Clause::ArrayAgrees]));
    let mut observations = attached_to_a();
    publish_to(&mut observations, "vol", "id-b");
    assert_eq!(
        running(&observations),
        clauses(&[Clause::ArrayAgrees, Clause::OneNode])
    );
}

#[test]
fn an_attachment_may_go_only_after_its_volume() {
    let forgets = [Clause::FinalizerWithProof, Clause::NothingForgotten];
    let mut observations = detached_from_a();
    observations.calls[1] = unpublish("vol", "id-a", 8);
    assert_eq!(
        cleaned_up(&observations),
        clauses(&forgets),
        "the unpublish came too late"
    );
    observations.calls.truncate(1);
    assert!(
        cleaned_up(&observations).is_superset(&clauses(&forgets)),
        "no unpublish"
    );
    observations.calls = vec![
        publish("vol", "id-a", 2),
        unpublish("vol", "id-a", 5),
        publish("vol", "id-a", 6),
    ];
    assert!(
        cleaned_up(&observations).contains(&Clause::NothingForgotten),
        "published again"
    );
}

#[test]
fn a_second_publish_before_the_unpublish_is_found() {
    let mut observations = mk_observations();
    observations.calls = vec![
        publish("vol", "id-a", 1),
        publish("vol", "id-b", 3),
        unpublish("vol", "id-a", 5),
        unpublish("vol", "id-b", 5),
    ];
    assert_eq!(cleaned_up(&observations), clauses(&[Clause::OneNode]));
    observations.calls[2].effect = Effect::Nothing;
    assert!(cleaned_up(&observations).contains(&Clause::OneNode));
    for call in &mut observations.calls {
        call.volume = "shared".to_owned();
    }
    assert!(
        !cleaned_up(&observations).contains(&Clause::OneNode),
        "a shared volume may be on two nodes"
    );
}

#[test]
fn an_unpublish_in_which_the_driver_died_may_have_been_done() {
    let mut observations = mk_observations();
    let mut cut_off = unpublish("vol", "id-a", 3);
    cut_off.effect = Effect::Unknown;
    cut_off.end = None;
    observations.calls = vec![publish("vol", "id-a", 1), cut_off, publish("vol", "id-b", 5)];
    assert!(!cleaned_up(&observations).contains(&Clause::OneNode));
}

#[test]
fn a_call_ends_with_the_driver() {
    let mut observations = detached_from_a();
    let mut cut_off = publish("vol", "id-a", 1);
    cut_off.effect = Effect::Unknown;
    cut_off.end = None;
    observations.calls.insert(0, cut_off);
    assert_eq!(check_cleaned_up(&observations), []);
    observations.calls[0] = publish("vol", "id-a", 1);
    observations.calls[0].end.as_mut().expect("it ended").at = at(4);
    assert_eq!(cleaned_up(&observations), clauses(&[Clause::OneCallAtATime]));
}

#[test]
fn two_mounts_are_found_unless_forced_before() {
    let mut observations = mk_observations();
    observations.mounts = vec![
        mounted("a", "vol", 1),
        mounted("b", "vol", 3),
        unmounted("a", "vol", 4),
        unmounted("b", "vol", 4),
    ];
    assert_eq!(cleaned_up(&observations), clauses(&[Clause::OneMount]));
    let force = ("vol".to_owned(), "a".to_owned());
    observations.force_detached.insert(force.clone(), at(4));
    assert_eq!(
        cleaned_up(&observations),
        clauses(&[Clause::OneMount]),
        "the force came later"
    );
    observations.force_detached.insert(force, at(2));
    assert_eq!(
        check_cleaned_up(&observations),
        [],
        "the first node had lost it by force"
    );
}

#[test]
fn an_unpublish_under_a_mount_is_found_unless_forced_before() {
    let mut observations = detached_from_a();
    observations.mounts = vec![mounted("a", "vol", 3), unmounted("a", "vol", 8)];
    assert_eq!(cleaned_up(&observations), clauses(&[Clause::MountedIsPublished]));
    let force = ("vol".to_owned(), "a".to_owned());
    observations.force_detached.insert(force.clone(), at(7));
    assert_eq!(
        cleaned_up(&observations),
        clauses(&[Clause::MountedIsPublished]),
        "the force came later"
    );
    observations.force_detached.insert(force, at(5));
    assert_eq!(check_cleaned_up(&observations), []);
    observations.force_detached.clear();
    observations.calls[1] = unpublish("vol", "", 6);
    assert_eq!(
        cleaned_up(&observations),
        clauses(&[Clause::MountedIsPublished]),
        "an unpublish from all nodes"
    );
}

#[test]
fn nothing_may_be_left_after_clean_up() {
    let mut observations = attached_to_a();
    observations.persistent_volumes = vec![persistent_volume(&["external-attacher/d"])];
    observations.mounts = vec![mounted("a", "vol", 4)];
    let violations = check_cleaned_up(&observations);
    assert_eq!(violations.len(), 4, "{violations:?}");
    assert_eq!(cleaned_up(&observations), clauses(&[Clause::NothingLeft]));
    let mut observations = detached_from_a();
    observations.persistent_volumes = vec![persistent_volume(&["kubernetes.io/pv-protection"])];
    assert_eq!(
        check_cleaned_up(&observations),
        [],
        "another controller's finalizer"
    );
    observations.mounts = vec![mounted("a", "vol", 4)];
    let force = ("vol".to_owned(), "a".to_owned());
    observations.force_detached.insert(force, at(4));
    assert_eq!(check_cleaned_up(&observations), [], "a dead node cannot unmount");
}

#[test]
fn attached_or_failed_with_a_cause_is_settled() {
    let cases = [
        ("failed", failed(attachment(), "no slot"), true),
        ("silent", attachment(), false),
        ("failed without a message", failed(attachment(), ""), false),
        ("deleting without a detachError", deleting(attachment(), 1), false),
    ];
    for (case, attachment, settled) in cases {
        let mut observations = mk_observations();
        observations.attachments = vec![attachment];
        assert_eq!(check_running(&observations).is_empty(), settled, "{case}");
    }
    let mut observations = attached_to_a();
    let mut both = failed(attachment(), "no slot");
    both.status.as_mut().expect("it has a status").attached = true;
    observations.attachments = vec![both];
    assert_eq!(running(&observations), clauses(&[Clause::ErrorCleared]));
}

#[test]
fn a_secret_is_found_and_not_shown_again() {
    let mut observations = mk_observations();
    observations.secrets = vec!["hunter2-hunter2".to_owned()];
    observations.texts = vec![("the log".to_owned(), "password: aHVudGVyMi1odW50ZXIy".to_owned())];
    let violations = check_running(&observations);
    assert_eq!(running(&observations), clauses(&[Clause::NoSecretShown]));
    assert!(!violations[0].to_string().contains("hunter2"), "{violations:?}");
}

#[test]
fn the_final_lists_close_a_gap() {
    let mut observations = attached_to_a();
    observations.gaps = vec![(at(2), "watch".to_owned())];
    assert_eq!(check_running(&observations), []);
}

#[test]
fn a_volume_keeps_the_finalizer_while_an_attachment_needs_it() {
    let guarded = || persistent_volume(&["external-attacher/d"]);
    let mut observations = detached_from_a();
    observations.volume_events = vec![seen(guarded(), 1), seen(persistent_volume(&[]), 4)];
    assert_eq!(cleaned_up(&observations), clauses(&[Clause::VolumeGuarded]));
    // The watch of PersistentVolumes is faster, and the resourceVersion shows that the VolumeAttachment was gone before.
    let mut released = seen(persistent_volume(&[]), 8);
    released.at = at(6);
    observations.volume_events[1] = released.clone();
    assert_eq!(check_cleaned_up(&observations), []);
    // After a gap, nothing shows the order.
    released.object.metadata.resource_version = Some("4".to_owned());
    observations.volume_events[1] = released;
    assert_eq!(cleaned_up(&observations), clauses(&[Clause::VolumeGuarded]));
    observations.gaps = vec![(at(5), "watch".to_owned())];
    assert_eq!(check_cleaned_up(&observations), []);
    observations.gaps.clear();
    let twice = persistent_volume(&["external-attacher/d"; 2]);
    observations.volume_events = vec![seen(twice, 1), seen(persistent_volume(&[]), 9)];
    assert_eq!(cleaned_up(&observations), clauses(&[Clause::FinalizerOnce]));
}

#[test]
fn a_publish_needs_the_secret_that_the_volume_names() {
    let mut named = persistent_volume(&["external-attacher/d"]);
    let source = named.spec.as_mut().and_then(|spec| spec.csi.as_mut());
    let source = source.expect("it has a CSI source");
    source.controller_publish_secret_ref = Some(SecretReference::default());
    let mut observations = attached_to_a();
    assert_eq!(check_running(&observations), [], "the volume is not known");
    observations.volume_events = vec![seen(named, 1)];
    assert_eq!(running(&observations), clauses(&[Clause::SecretSent]));
    observations.calls[0].secrets.insert("password".to_owned());
    assert_eq!(check_running(&observations), []);
}

#[test]
fn a_replica_acts_only_while_it_holds_the_lease() {
    let of_one = || {
        let mut observations = attached_to_a();
        observations.replicas.add(1, "one");
        observations.calls[0].by = Some(1);
        observations
    };
    let cases = [
        ("it leads", vec![lease("one", 1)], true),
        ("no watch shows a Lease", vec![], false),
        ("it leads later", vec![lease("one", 3)], false),
        ("it has led", vec![lease("one", -1), lease("two", 1)], false),
        (
            "it has released the Lease",
            vec![lease("one", -1), lease("", 1)],
            false,
        ),
        (
            "the Lease has expired",
            vec![lease("one", -9), lease("one", 4)],
            false,
        ),
        (
            "it renews the Lease",
            vec![lease("one", -9), lease("one", 0)],
            true,
        ),
        ("it is renewed no more", vec![lease("one", -9)], false),
    ];
    for (case, events, is_leader) in cases {
        let mut observations = of_one();
        observations.lease_events = events;
        let found = running(&observations);
        assert_eq!(found.contains(&Clause::OnlyTheLeader), !is_leader, "{case}");
        observations.calls[0].by = Some(2);
        assert_eq!(
            check_running(&observations),
            [],
            "{case}, and another process calls"
        );
        let write = attacher_contract::observation::Write {
            by: Some("one".into()),
            object: "VolumeAttachment va".to_owned(),
            empty: false,
            changed: true,
        };
        observations.writes = vec![(at(2), write)];
        let found = running(&observations);
        assert_eq!(
            found.contains(&Clause::OnlyTheLeader),
            !is_leader,
            "{case}, and it writes"
        );
    }
    let mut observations = of_one();
    observations.gaps = vec![(at(2), "watch".to_owned())];
    assert_eq!(check_running(&observations), [], "holders may have been missed");
}
