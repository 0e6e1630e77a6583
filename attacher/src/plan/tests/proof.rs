//! Which evidence is a proof of detach. docs/adr/0004-recorded-target.md has the same table.

use std::time::{Duration, Instant};

use super::*;
use crate::plan::reconcile::ListedState;

const MINUTE: Duration = Duration::from_secs(60);

/// One time for all tests of this process.
#[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
fn now() -> Instant {
    static NOW: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *NOW.get_or_init(Instant::now)
}

/// `count` equal answers, evenly spread over `over`.
fn answers(result: UnpublishResult, count: u32, over: Duration) -> Option<Answers> {
    let first = now();
    (0..count).fold(None, |before, number| {
        let at = first + over * number / (count - 1).max(1);
        Some(Answers::after(before.as_ref(), first, result, at))
    })
}

fn target_evidence(result: UnpublishResult, count: u32, over: Duration) -> TargetEvidence {
    let is_counted = matches!(
        result,
        UnpublishResult::NotFound | UnpublishResult::InvalidArgument
    );
    TargetEvidence {
        result,
        answers: is_counted.then(|| answers(result, count, over)).flatten(),
        lists: ListEvidence::default(),
    }
}

/// After one call for the recorded id.
pub(super) fn mk_evidence<'e>(uid: &'e Uid, plan: &'e DetachPlan, recorded: UnpublishResult) -> Evidence<'e> {
    Evidence {
        uid,
        plan,
        recorded: target_evidence(recorded, 1, Duration::ZERO),
        present: None,
        is_node_confirmed_gone: false,
        assume_after: Duration::ZERO,
        session_age: 1000 * MINUTE,
    }
}

fn mk_plan(node: NodeState) -> DetachPlan {
    let inputs = mk_inputs(|attachment, _, _| attachment.recorded.node_id = Some("recorded".into()));
    DetachPlan {
        node,
        ..detach(&inputs, &mk_driver()).unwrap()
    }
}

fn other_id() -> NodeState {
    NodeState::OtherId("present".into())
}

/// In one word.
fn outcome(evidence: &Evidence<'_>) -> &'static str {
    match decide(evidence) {
        Decision::Released(proof) => {
            assert_eq!(proof.uid(), evidence.uid);
            let mut ids = vec!["recorded".into()];
            ids.extend(evidence.present.as_ref().map(|_| "present".into()));
            assert_eq!(proof.node_ids(), ids, "the ids that were unpublished");
            "released"
        }
        Decision::UnpublishPresent => "ask",
        Decision::ConfirmNodeGone => "confirm",
        Decision::Retry => "retry",
        Decision::Unproven => "unproven",
    }
}

const RESULTS: [UnpublishResult; 5] = [
    UnpublishResult::Unpublished,
    UnpublishResult::InUse,
    UnpublishResult::NotFound,
    UnpublishResult::InvalidArgument,
    UnpublishResult::Failed,
];

/// One answer each, without lists and without the operator's word.
#[test]
fn first_answers_release_only_what_the_driver_knows() {
    use UnpublishResult::*;
    let uid = Uid::from("uid-va");
    for (recorded, without_other_id) in [
        (Unpublished, "released"),
        (InUse, "released"),
        (NotFound, "unproven"),
        (InvalidArgument, "unproven"),
        (Failed, "retry"),
    ] {
        for node in [NodeState::SameId, NodeState::Unregistered, NodeState::Gone] {
            let plan = mk_plan(node.clone());
            let evidence = mk_evidence(&uid, &plan, recorded);
            assert_eq!(outcome(&evidence), without_other_id, "{recorded:?} {node:?}");
        }
    }
    #[rustfmt::skip]
    let table = [
        // recorded: OK, in use, NOT_FOUND, INVALID_ARGUMENT, any other code for the present id
        (Unpublished,     ["released", "released", "unproven", "released", "retry"]),
        (InUse,           ["released", "released", "unproven", "released", "retry"]),
        (NotFound,        ["unproven", "unproven", "unproven", "unproven", "retry"]),
        (InvalidArgument, ["unproven", "unproven", "unproven", "unproven", "retry"]),
        (Failed,          ["retry",    "retry",    "retry",    "retry",    "retry"]),
    ];
    let plan = mk_plan(other_id());
    for (recorded, expected) in table {
        let evidence = mk_evidence(&uid, &plan, recorded);
        let before = if recorded == Failed { "retry" } else { "ask" };
        assert_eq!(outcome(&evidence), before, "{recorded:?}");
        for (present, expected) in RESULTS.into_iter().zip(expected) {
            let evidence = Evidence {
                present: Some(target_evidence(present, 1, Duration::ZERO)),
                ..mk_evidence(&uid, &plan, recorded)
            };
            assert_eq!(outcome(&evidence), expected, "{recorded:?} {present:?}");
        }
    }
}

#[test]
fn three_answers_over_a_minute_release_one_id_if_the_other_is_released() {
    use UnpublishResult::*;
    let uid = Uid::from("uid-va");
    let plan = mk_plan(other_id());
    let almost = MINUTE - Duration::from_millis(1);
    for (recorded, present, count, over, expected) in [
        (Unpublished, NotFound, 3, MINUTE, "released"),
        (InUse, NotFound, 3, MINUTE, "released"),
        (Unpublished, NotFound, 2, MINUTE, "unproven"),
        (Unpublished, NotFound, 3, almost, "unproven"),
        (NotFound, Unpublished, 3, MINUTE, "released"),
        (NotFound, InUse, 3, MINUTE, "released"),
        (InvalidArgument, Unpublished, 3, MINUTE, "released"),
        (InvalidArgument, InUse, 3, MINUTE, "released"),
        (InvalidArgument, Unpublished, 2, MINUTE, "unproven"),
        (NotFound, Unpublished, 100, almost, "unproven"),
        (NotFound, NotFound, 100, 100 * MINUTE, "unproven"),
        (NotFound, InvalidArgument, 100, 100 * MINUTE, "unproven"),
        (InvalidArgument, NotFound, 100, 100 * MINUTE, "unproven"),
        (NotFound, Failed, 100, 100 * MINUTE, "retry"),
    ] {
        let evidence = Evidence {
            recorded: target_evidence(recorded, count, over),
            present: Some(target_evidence(present, count, over)),
            ..mk_evidence(&uid, &plan, recorded)
        };
        assert_eq!(
            outcome(&evidence),
            expected,
            "{recorded:?} {present:?} {count} {over:?}"
        );
    }
    for node in [NodeState::SameId, NodeState::Unregistered, NodeState::Gone] {
        for recorded in [NotFound, InvalidArgument] {
            let plan = mk_plan(node.clone());
            let evidence = Evidence {
                recorded: target_evidence(recorded, 100, 100 * MINUTE),
                ..mk_evidence(&uid, &plan, recorded)
            };
            assert_eq!(outcome(&evidence), "unproven", "{recorded:?} {node:?}");
        }
    }
}

#[test]
fn resets_answers_when_session_or_code_changes() {
    use UnpublishResult::*;
    let (uid, first) = (Uid::from("uid-va"), now());
    let later = |seconds| first + Duration::from_secs(seconds);
    let answer =
        |before: Option<&Answers>, session, result, at| Answers::after(before, session, result, later(at));
    let one = answer(None, first, NotFound, 0);
    let two = answer(Some(&one), first, NotFound, 40);
    let plan = mk_plan(other_id());
    for (name, third, expected) in [
        ("same", answer(Some(&two), first, NotFound, 80), "released"),
        ("session", answer(Some(&two), later(1), NotFound, 80), "unproven"),
        ("code", answer(Some(&two), first, InvalidArgument, 80), "unproven"),
    ] {
        let recorded = TargetEvidence {
            answers: Some(third),
            ..target_evidence(NotFound, 1, Duration::ZERO)
        };
        let evidence = Evidence {
            recorded,
            present: Some(target_evidence(Unpublished, 1, Duration::ZERO)),
            ..mk_evidence(&uid, &plan, NotFound)
        };
        assert_eq!(outcome(&evidence), expected, "{name}");
    }
}

/// Their detaches alternate.
#[test]
fn two_subjects_of_one_target_count_their_own_answers() {
    let (first, second, session) = (Uid::from("first"), Uid::from("second"), now());
    let plan = mk_plan(other_id());
    let mut evidence = DetachEvidence::default();
    for at in [0, 40, 80] {
        for uid in [&first, &second] {
            let now = session + Duration::from_secs(at);
            evidence.answered(uid, &plan.target, session, UnpublishResult::NotFound, now);
        }
    }
    let outcome_of = |evidence: &DetachEvidence, uid: &Uid| {
        let recorded = evidence.about(uid, &plan.target, UnpublishResult::NotFound);
        let present = Some(target_evidence(UnpublishResult::Unpublished, 1, Duration::ZERO));
        outcome(&Evidence {
            recorded,
            present,
            ..mk_evidence(uid, &plan, UnpublishResult::NotFound)
        })
    };
    assert_eq!(outcome_of(&evidence, &first), "released");
    evidence.forget(&first);
    assert_eq!(outcome_of(&evidence, &first), "unproven");
    assert_eq!(outcome_of(&evidence, &second), "released");
}

/// The volume stays on a machine that has lost its name, and whose id the driver does not look up any more.
#[test]
fn a_list_that_shows_the_volume_there_outweighs_repeated_answers() {
    use ListedState::*;
    use UnpublishResult::*;
    let uid = Uid::from("uid-va");
    let plan = mk_plan(other_id());
    for (listed, expected) in [
        (&[][..], "released"),
        (&[(Published, 5)], "unproven"),
        (&[(Published, 5), (Unknown, 5)], "released"),
        (&[(Published, 5), (Elsewhere, 5)], "released"),
    ] {
        let refused = TargetEvidence {
            lists: lists(listed),
            ..target_evidence(NotFound, 3, MINUTE)
        };
        let ok = target_evidence(Unpublished, 1, Duration::ZERO);
        for (recorded, present) in [(&refused, &ok), (&ok, &refused)] {
            let evidence = Evidence {
                recorded: recorded.clone(),
                present: Some(present.clone()),
                ..mk_evidence(&uid, &plan, recorded.result)
            };
            assert_eq!(outcome(&evidence), expected, "{listed:?}");
        }
    }
}

/// Without the Secret that the volume has, NOT_FOUND is like any other failure.
#[test]
fn results_follow_from_code_and_secret() {
    use UnpublishResult::*;
    for code in 1..17 {
        let expected = match code {
            3 => InvalidArgument,
            5 => NotFound,
            _ => Failed,
        };
        assert_eq!(UnpublishResult::from_code(code, true), expected, "{code}");
        assert_eq!(UnpublishResult::from_code(code, false), Failed, "{code}");
    }
}

fn lists(states: &[(ListedState, u64)]) -> ListEvidence {
    let first = now();
    let states = states.iter().zip(0u32..);
    states.fold(ListEvidence::default(), |before, ((state, entries), number)| {
        before.with(*state, *entries, first + MINUTE * number)
    })
}

#[test]
fn two_lists_in_a_row_with_the_volume_elsewhere_are_a_proof() {
    use ListedState::*;
    for (states, expected) in [
        (&[][..], false),
        (&[(Elsewhere, 5)], false),
        (&[(Elsewhere, 5), (Elsewhere, 5)], true),
        (&[(Elsewhere, 5), (Elsewhere, 5), (Elsewhere, 5)], true),
        // An entry without status, and no entry, prove nothing.
        (&[(Elsewhere, 5), (Unknown, 5)], false),
        (&[(Elsewhere, 5), (Absent, 5)], false),
        (&[(Absent, 5), (Absent, 5), (Absent, 5)], false),
        (&[(Absent, 0), (Absent, 0)], false),
        (&[(Unknown, 5), (Unknown, 5)], false),
        (&[(Elsewhere, 5), (Published, 5), (Elsewhere, 5)], false),
        (&[(Elsewhere, 5), (Elsewhere, 5), (Published, 5)], false),
    ] {
        assert_eq!(lists(states).is_proof(), expected, "{states:?}");
    }
    let proof = lists(&[(Elsewhere, 5), (Elsewhere, 5)]);
    let uid = Uid::from("uid-va");
    use UnpublishResult::*;
    for (recorded, present, recorded_listed, present_listed, expected) in [
        (NotFound, None, true, false, "released"),
        (InvalidArgument, None, true, false, "released"),
        (Failed, None, true, false, "retry"),
        (NotFound, Some(NotFound), true, true, "released"),
        (NotFound, Some(InvalidArgument), true, true, "released"),
        (NotFound, Some(NotFound), true, false, "unproven"),
        (NotFound, Some(NotFound), false, true, "unproven"),
        (NotFound, Some(Unpublished), true, false, "released"),
        (Unpublished, Some(NotFound), false, true, "released"),
        (NotFound, Some(Failed), true, true, "retry"),
    ] {
        let node = if present.is_some() {
            other_id()
        } else {
            NodeState::SameId
        };
        let plan = mk_plan(node);
        let with = |mut target: TargetEvidence, is_listed: bool| {
            target.lists = if is_listed { proof } else { ListEvidence::default() };
            target
        };
        let mut evidence = mk_evidence(&uid, &plan, recorded);
        evidence.recorded = with(evidence.recorded, recorded_listed);
        evidence.present =
            present.map(|present| with(target_evidence(present, 1, Duration::ZERO), present_listed));
        assert_eq!(outcome(&evidence), expected, "{recorded:?} {present:?}");
    }
}

/// A failed list ends it: nothing is known of that time.
#[test]
fn the_time_without_an_entry_begins_again_after_a_failed_list() {
    let mut evidence = DetachEvidence::default();
    evidence.begin_round();
    let mut list = |fails: bool, minute: u32| {
        if fails {
            evidence.list_failed();
        } else {
            let target = target("handle", "id");
            let (uid, before) = (Uid::from("uid"), evidence.take_lists());
            let began = now() + MINUTE * minute;
            evidence.listed(uid, target, &before, ListedState::Absent, 5, began);
        }
        let about = evidence.about(
            &Uid::from("uid"),
            &target("handle", "id"),
            UnpublishResult::NotFound,
        );
        about.lists.unlisted.map(|(first, last)| last - first)
    };
    assert_eq!(list(false, 0), Some(Duration::ZERO));
    assert_eq!(list(false, 5), Some(5 * MINUTE));
    assert_eq!(list(true, 6), None);
    assert_eq!(list(false, 7), Some(Duration::ZERO));
}

/// Only OK and time end what a publish of unknown result may still do.
#[test]
fn lists_count_after_a_publish_that_cannot_take_effect_any_more() {
    use PublishEnd::*;
    use UnpublishResult::{NotFound, Unpublished};
    for (ends, answer, minute, expected) in [
        (&[Succeeded][..], NotFound, 0, true),
        (&[NoEffect], NotFound, 0, true),
        (&[Unknown], NotFound, 0, false),
        (&[Unknown], NotFound, 9, false),
        (&[Unknown], NotFound, 10, true),
        (&[Unknown], Unpublished, 0, true),
        (&[Unknown, Succeeded], NotFound, 0, true),
        (&[Unknown, NoEffect], NotFound, 0, false),
        (&[Succeeded, Unknown], NotFound, 0, false),
    ] {
        let (uid, target) = (Uid::from("uid"), target("handle", "id"));
        let mut evidence = DetachEvidence::default();
        for end in ends {
            evidence.publish_begins(&uid, &target);
            evidence.publish_ended(&uid, *end, now());
        }
        evidence.answered(&uid, &target, now(), answer, now());
        for _ in 0..2 {
            evidence.begin_round();
            let (before, began) = (evidence.take_lists(), now() + MINUTE * minute);
            let (uid, target) = (uid.clone(), target.clone());
            evidence.listed(uid, target, &before, ListedState::Elsewhere, 5, began);
        }
        let lists = evidence.about(&uid, &target, NotFound).lists;
        assert_eq!(lists.is_proof(), expected, "{ends:?} {answer:?} {minute}");
    }
}

/// After a panic the driver may still execute it.
#[test]
fn a_publish_ends_with_its_sync() {
    let (uid, target) = (Uid::from("uid"), target("handle", "id"));
    let mut evidence = DetachEvidence::default();
    evidence.publish_begins(&uid, &target);
    evidence.publish_ended(&Uid::from("other"), PublishEnd::Unknown, now());
    evidence.publish_ended(&uid, PublishEnd::Unknown, now());
    for (minute, proves) in [(9, false), (10, false), (11, true)] {
        evidence.begin_round();
        let (before, began) = (evidence.take_lists(), now() + MINUTE * minute);
        let (uid, target) = (uid.clone(), target.clone());
        let is_proof = evidence.listed(uid, target, &before, ListedState::Elsewhere, 5, began);
        assert_eq!(is_proof, proves, "{minute}");
    }
}

/// `--assume-unpublished-after=10m`.
#[test]
fn the_operators_word_needs_time_answers_and_an_absent_node_or_volume() {
    use ListedState::{Absent, Elsewhere};
    use UnpublishResult::*;
    let uid = Uid::from("uid-va");
    let after = 10 * MINUTE;
    let unlisted = lists(&[(Absent, 5); 11]);
    let empty = lists(&[(Absent, 0); 11]);
    let interrupted = lists(
        &[
            [(Absent, 5); 10].as_slice(),
            &[(Elsewhere, 5)],
            &[(Absent, 5); 10],
        ]
        .concat(),
    );
    let none = ListEvidence::default();
    // They end or begin a minute too early or late.
    let shifted = |first, last| ListEvidence {
        unlisted: Some((now() + first, now() + last)),
        ..none
    };
    let (early, late) = (shifted(Duration::ZERO, 9 * MINUTE), shifted(MINUTE, 20 * MINUTE));
    for (node, result, count, over, lists, confirmed, expected) in [
        (NodeState::Gone, NotFound, 3, after, none, true, "released"),
        (NodeState::Gone, NotFound, 3, after, none, false, "confirm"),
        (NodeState::Gone, NotFound, 2, after, none, false, "unproven"),
        (NodeState::Gone, NotFound, 9, 9 * MINUTE, none, false, "unproven"),
        (NodeState::Gone, InvalidArgument, 9, after, none, true, "unproven"),
        (NodeState::Gone, Failed, 9, after, unlisted, true, "retry"),
        (
            NodeState::Unregistered,
            NotFound,
            9,
            after,
            none,
            true,
            "unproven",
        ),
        (NodeState::SameId, NotFound, 9, after, none, true, "unproven"),
        (NodeState::SameId, NotFound, 3, after, unlisted, false, "released"),
        (NodeState::Gone, NotFound, 3, after, unlisted, false, "released"),
        (NodeState::SameId, NotFound, 2, after, unlisted, false, "unproven"),
        (NodeState::SameId, NotFound, 3, after, early, false, "unproven"),
        (NodeState::SameId, NotFound, 3, after, late, false, "unproven"),
        (NodeState::SameId, NotFound, 3, 2 * after, late, false, "released"),
        (NodeState::SameId, NotFound, 3, after, empty, false, "unproven"),
        (
            NodeState::SameId,
            NotFound,
            3,
            after,
            interrupted,
            false,
            "unproven",
        ),
    ] {
        let plan = mk_plan(node.clone());
        let with = |assume_after| Evidence {
            recorded: TargetEvidence {
                lists,
                ..target_evidence(result, count, over)
            },
            is_node_confirmed_gone: confirmed,
            assume_after,
            ..mk_evidence(&uid, &plan, result)
        };
        let case = format!("{node:?} {result:?} {count} {over:?} {lists:?} {confirmed}");
        assert_eq!(outcome(&with(after)), expected, "{case}");
        let never = if result == Failed { "retry" } else { "unproven" };
        assert_eq!(outcome(&with(Duration::ZERO)), never, "{case}");
    }
}

#[test]
fn a_driver_without_publish_calls_needs_the_operators_word_for_one_whole_session() {
    let uid = Uid::from("uid-va");
    for (assume_after, session_age, expected) in [
        (Duration::ZERO, 1000 * MINUTE, "unproven"),
        (MINUTE, MINUTE / 2, "unproven"),
        (MINUTE, MINUTE, "released"),
    ] {
        for node in [NodeState::SameId, NodeState::Unregistered, NodeState::Gone] {
            let plan = mk_plan(node);
            let evidence = Evidence {
                assume_after,
                session_age,
                ..mk_evidence(&uid, &plan, UnpublishResult::NoPublishCalls)
            };
            assert_eq!(outcome(&evidence), expected);
        }
    }
}

/// The Go sidecar removes its finalizer after OK for the present id, or for the recorded one if there is no present one.
#[test]
fn is_never_less_safe_than_the_go_sidecar() {
    use UnpublishResult::*;
    let uid = Uid::from("uid-va");
    let all_lists = [
        ListEvidence::default(),
        lists(&[(ListedState::Elsewhere, 5); 2]),
        lists(&[(ListedState::Absent, 5); 11]),
    ];
    let nodes = [
        NodeState::SameId,
        other_id(),
        NodeState::Unregistered,
        NodeState::Gone,
    ];
    let repeats = [(1, Duration::ZERO), (3, MINUTE), (3, 10 * MINUTE)];
    let results = RESULTS.into_iter().chain([NoPublishCalls]);
    let mut released = 0;
    for (node, recorded) in nodes
        .iter()
        .flat_map(|node| results.clone().map(move |result| (node, result)))
    {
        for present in results.clone() {
            for (count, over) in repeats {
                for (recorded_lists, present_lists) in all_lists
                    .iter()
                    .flat_map(|a| all_lists.iter().map(move |b| (*a, *b)))
                {
                    for (assume_after, is_node_confirmed_gone) in
                        [(Duration::ZERO, true), (10 * MINUTE, false), (10 * MINUTE, true)]
                    {
                        let plan = mk_plan(node.clone());
                        let with = |result, lists| TargetEvidence {
                            lists,
                            ..target_evidence(result, count, over)
                        };
                        let evidence = Evidence {
                            recorded: with(recorded, recorded_lists),
                            present: plan.present_target().map(|_| with(present, present_lists)),
                            is_node_confirmed_gone,
                            assume_after,
                            ..mk_evidence(&uid, &plan, recorded)
                        };
                        if !matches!(decide(&evidence), Decision::Released(_)) {
                            continue;
                        }
                        released += 1;
                        let asked: Vec<_> = [Some(recorded), evidence.present.as_ref().map(|_| present)]
                            .into_iter()
                            .flatten()
                            .collect();
                        let known = |result: &UnpublishResult| matches!(result, Unpublished | InUse);
                        let by_lists = recorded_lists.is_proof() || present_lists.is_proof();
                        let by_word = !assume_after.is_zero();
                        let by_repetition = count >= 3 && over >= MINUTE && asked.iter().any(known);
                        // The driver does not understand the present id, so nothing can be published there.
                        let misunderstood = known(&recorded) && present == InvalidArgument;
                        assert!(
                            asked.iter().all(known) || by_lists || by_word || by_repetition || misunderstood,
                            "{evidence:?}"
                        );
                        assert!(!asked.contains(&Failed), "{evidence:?}");
                    }
                }
            }
        }
    }
    assert!(released > 100, "{released}");
}
