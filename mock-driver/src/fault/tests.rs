//! Which rules fire for which calls, how often, and what becomes of their counts.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::*;

mod backend_fault;
mod chance;
mod io;
mod list;
mod scenario;

/// A publish of a volume to a node.
#[derive(Clone, Default)]
struct Publish {
    volume: String,
    secrets: BTreeMap<String, String>,
    context: BTreeMap<String, String>,
    location: Option<VolumeLocation>,
}

impl Publish {
    fn of(volume: &str) -> Self {
        Self {
            volume: volume.to_owned(),
            ..Self::default()
        }
    }
}

impl CallInfo for Publish {
    fn path(&self) -> &str {
        "/csi.v1.Controller/ControllerPublishVolume"
    }

    fn volume(&self) -> &str {
        &self.volume
    }

    fn node(&self) -> &str {
        "n"
    }

    fn entry(&self, field: &str, key: &str) -> Option<String> {
        let map = match field {
            "secrets" => &self.secrets,
            "volume_context" => &self.context,
            _ => return None,
        };
        map.get(key).cloned()
    }

    fn location(&self) -> Option<VolumeLocation> {
        self.location
    }
}

fn mk_rules(yaml: &str) -> Faults {
    mk_seeded(yaml, 1)
}

fn mk_seeded(yaml: &str, seed: u64) -> Faults {
    let faults = Faults::new(Seed(seed));
    faults
        .replace(Origin::File, Rule::read_list(yaml).unwrap())
        .unwrap();
    faults
}

/// The calls that a rule has matched, and its firings.
fn counts(faults: &Faults, index: usize) -> (u64, u64) {
    let report = &faults.reports(RuleKind::Rule)[index];
    (report.seen, report.fired)
}

/// The total of applied firings.
fn injected(faults: &Faults) -> u64 {
    faults.injected().iter().map(|(_, total)| total).sum()
}

/// Which rule fires for each of some calls; empty text for none.
fn fired(faults: &Faults, calls: impl IntoIterator<Item = Publish>) -> Vec<String> {
    let fire = |call: Publish| {
        let fired = faults.decide(&call).rule.and_then(|fired| faults.apply(fired));
        fired.map(|fired| fired.rule().id.clone()).unwrap_or_default()
    };
    calls.into_iter().map(fire).collect()
}

#[test]
fn exhausted_rule_yields_to_the_next_and_regains_a_reverted_firing() {
    let faults = mk_rules(
        "
- {id: once, match: {volume: a}, phase: after, action: {code: INTERNAL}, times: 1}
- {id: always, match: {volume: a}, action: {code: ABORTED}}
",
    );
    let fire = |volume| faults.decide(&Publish::of(volume)).rule;
    assert!(fire("b").is_none());
    let first = fire("a").unwrap();
    assert_eq!(first.rule().id, "once");
    assert_eq!(fire("a").unwrap().rule().id, "always");
    drop(first);
    let again = faults.apply(fire("a").unwrap()).unwrap();
    assert_eq!(again.rule().id, "once");
    drop(again);
    assert_eq!(fire("a").unwrap().rule().id, "always", "it has acted");
    faults.replace(Origin::File, vec![]).unwrap();
    assert!(faults.is_empty() && fire("a").is_none());
}

#[test]
fn failed_call_returns_its_number_and_draw_to_the_next() {
    let faults = mk_rules("- {id: third, match: {call: 3}, phase: after, action: {exit: kill}}");
    let call = Publish::of("a");
    assert_eq!(fired(&faults, [call.clone(), call.clone()]), ["", ""]);
    let third = faults.decide(&call).rule.unwrap();
    // The fourth comes before the third has failed.
    assert!(faults.decide(&call).rule.is_none());
    drop(third);
    assert_eq!(counts(&faults, 0), (3, 0));
    assert_eq!(fired(&faults, [call.clone(), call.clone()]), ["third", ""]);
    assert_eq!(counts(&faults, 0), (5, 1));

    // Numbers taken before a reset are not put back into the new counts.
    let faults = mk_rules("- {id: first, match: {call: 1}, phase: after, action: {code: INTERNAL}}");
    let old = faults.decide(&call).rule.unwrap();
    faults.reset();
    assert!(
        faults
            .decide(&call)
            .rule
            .is_some_and(|fired| faults.apply(fired).is_some())
    );
    drop(old);
    assert_eq!(counts(&faults, 0), (1, 1));
    assert!(faults.decide(&call).rule.is_none());

    let faults = mk_rules("- {id: x, match: {probability: 0.1}, phase: after, action: {code: INTERNAL}}");
    let before = (0..1000).find(|_| faults.decide(&call).rule.is_some()).unwrap();
    assert!(before > 0, "one that does not fire has had its chance");
    for _ in 0..20 {
        assert!(
            faults.decide(&call).rule.is_some(),
            "the same chance until it is taken"
        );
    }
}

#[test]
fn counter_of_injected_faults_never_decreases() {
    let faults = mk_rules("- {id: x, match: {method: '*'}, phase: after, action: {code: INTERNAL}}");
    let call = Publish::of("a");
    let counted = || injected(&faults);
    let taken_back = faults.decide(&call).rule.unwrap();
    assert_eq!(counted(), 0, "it may be taken back");
    let acted = faults.decide(&call).rule.unwrap();
    let acted = faults.apply(acted).unwrap();
    assert_eq!(counted(), 1);
    drop((taken_back, acted));
    assert_eq!(counted(), 1);
    let before = mk_rules("- {id: x, match: {method: '*'}, action: {code: INTERNAL}}");
    let in_flight = before.decide(&call);
    assert_eq!(injected(&before), 1, "a rule of phase before acts at once");
    drop(in_flight);

    let rule = |yaml: &str| Rule::read_list(yaml).unwrap();
    type Change<'f> = (&'f str, &'f dyn Fn(&Faults));
    let changes: [Change<'_>; 5] = [
        ("reset", &|faults| faults.reset()),
        ("reload", &|faults| {
            faults
                .replace(
                    Origin::File,
                    rule("- {id: x, match: {method: '*'}, action: {code: INTERNAL}, times: 9}"),
                )
                .unwrap();
        }),
        ("remove", &|faults| assert!(faults.remove(RuleKind::Rule, "x"))),
        ("put", &|faults| {
            let mut rules = rule("- {id: x, match: {method: '*'}, action: {code: INTERNAL}}");
            faults.put(rules.remove(0)).unwrap();
        }),
        ("put again", &|faults| {
            let mut rules = rule("- {id: x, match: {method: '*'}, action: {code: INTERNAL}, times: 8}");
            faults.put(rules.remove(0)).unwrap();
        }),
    ];
    let mut expected = 1;
    for (what, change) in changes {
        change(&before);
        assert_eq!(injected(&before), expected, "after {what}");
        if before.decide(&call).rule.is_some() {
            expected += 1;
        }
        assert_eq!(injected(&before), expected, "a call after {what}");
    }
    assert_eq!(expected, 5, "every rule but the removed one fired");

    // A firing of phase after that acts after a reset.
    let acts_late = faults.decide(&call).rule.unwrap();
    faults.reset();
    assert!(faults.apply(acts_late).is_some());
    assert_eq!(injected(&faults), 2);
}

#[test]
fn calls_that_race_for_a_state_are_seen_once_each() {
    const CALLS: u64 = 400;
    let faults = mk_rules(
        "
- {id: seen, match: {every: 1000000}, action: {code: ABORTED}}
- {id: there, match: {while: {state: start}}, action: {set-state: away}}
- {id: back, match: {while: {state: away}}, action: {set-state: start}}
",
    );
    let (call, threads) = (Publish::of("a"), 4);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| (0..CALLS / threads).for_each(|_| drop(faults.decide(&call).rule)));
        }
    });
    assert_eq!(counts(&faults, 0), (CALLS, 0), "asked once about each call");
    let fired = [1, 2].map(|index| counts(&faults, index).1);
    assert_eq!(fired, [CALLS / 2, CALLS / 2]);
}

#[test]
fn state_is_set_when_the_rule_acts_and_by_one_call_only() {
    let faults = mk_rules(
        "
- {id: once, match: {while: {state: start}}, phase: after, action: {set-state: unhealthy}}
- {id: unhealthy, match: {while: {state: unhealthy}}, action: {code: INTERNAL}}
",
    );
    let call = Publish::of("a");
    drop(faults.decide(&call).rule.unwrap());
    assert_eq!(&*faults.state(), FIRST_STATE, "it did not act");
    let (one, other) = (
        faults.decide(&call).rule.unwrap(),
        faults.decide(&call).rule.unwrap(),
    );
    assert_eq!((&*one.rule().id, &*other.rule().id), ("once", "once"));
    assert!(faults.apply(other).is_some());
    assert_eq!(&*faults.state(), "unhealthy");
    assert!(faults.apply(one).is_none(), "the state it is for has ended");
    assert_eq!(faults.reports(RuleKind::Rule)[0].fired, 1);
    assert_eq!(fired(&faults, [call]), ["unhealthy"]);
}

#[test]
fn call_and_every_choose_calls_by_number() {
    // (match, calls that fire of the first ten)
    let table: [(&str, &[usize]); 5] = [
        ("call: 3", &[3]),
        ("every: 3", &[3, 6, 9]),
        ("call: 1, every: 2", &[1, 3, 5, 7, 9]),
        ("call: 8, every: 1", &[8, 9, 10]),
        ("every: 1", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ];
    for (matches, numbers) in table {
        let faults = mk_rules(&format!(
            "- {{id: x, match: {{{matches}}}, action: {{code: ABORTED}}}}"
        ));
        let fired = fired(&faults, (0..10).map(|_| Publish::of("a")));
        let numbers_fired: Vec<usize> = (1..=10).filter(|number| fired[number - 1] == "x").collect();
        assert_eq!(numbers_fired, numbers, "{matches}");
    }
}

#[test]
fn secrets_and_parameters_must_have_the_very_values() {
    let faults = mk_rules(
        "
- {id: s, match: {secrets: {user: root, pin: '1'}}, action: {code: UNAUTHENTICATED}}
- {id: p, match: {method: ControllerPublishVolume, parameters: {tier: gold}}, action: {code: ABORTED}}
",
    );
    let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect()
    };
    let with = |secrets: &[(&str, &str)], context: &[(&str, &str)]| Publish {
        secrets: map(secrets),
        context: map(context),
        ..Publish::of("a")
    };
    let calls = [
        with(&[("user", "root"), ("pin", "1"), ("more", "x")], &[]),
        with(&[("user", "root")], &[]),
        with(&[("user", "root"), ("pin", "2")], &[("tier", "gold")]),
        with(&[], &[("tier", "lead")]),
    ];
    assert_eq!(fired(&faults, calls), ["s", "", "p", ""]);
}

#[test]
fn while_matches_the_location_of_the_volume_and_the_state_of_the_rules() {
    let location = |exists, here, elsewhere| {
        Some(VolumeLocation {
            exists,
            here,
            elsewhere,
        })
    };
    let locations = [
        location(true, true, false),
        location(true, false, true),
        location(true, false, false),
        location(false, false, false),
        None,
    ];
    // (selector, for which of the locations it fires)
    let table = [
        ("attached", [true, true, false, false, false]),
        ("attached-here", [true, false, false, false, false]),
        ("attached-elsewhere", [false, true, false, false, false]),
        ("detached", [false, false, true, false, false]),
        ("absent", [false, false, false, true, false]),
    ];
    for (selector, fires) in table {
        let yaml =
            format!("- {{id: x, match: {{while: {{volume: {selector}}}}}, action: {{code: ABORTED}}}}");
        let faults = mk_rules(&yaml);
        let calls = locations.map(|location| Publish {
            location,
            ..Publish::of("a")
        });
        let expected = fires.map(|fires| if fires { "x" } else { "" });
        assert_eq!(fired(&faults, calls), expected, "{selector}");
    }

    let faults = mk_rules(
        "
- {id: breaks, match: {while: {state: start}, call: 2}, action: {set-state: broken}}
- {id: broken, match: {while: {state: broken}}, action: {code: ABORTED}, times: 2}
- {id: mends, match: {while: {state: broken}}, action: {set-state: start}}
",
    );
    let fired = fired(&faults, (0..6).map(|_| Publish::of("a")));
    assert_eq!(fired, ["", "breaks", "broken", "broken", "mends", ""]);
}

/// In the journal, rules and backend faults share the ids.
#[test]
fn rule_and_backend_fault_cannot_have_one_id() {
    let rule =
        || Rule::from_value(json!({"id": "x", "match": {"method": "*"}, "action": {"delay": "1s"}})).unwrap();
    let fault = || Rule::backend_fault_from_value(json!({"id": "x", "type": "tracking-off"})).unwrap();
    for (first, second, kind) in [(rule(), fault(), "a rule"), (fault(), rule(), "a backend fault")] {
        for origin in [Origin::Admin, Origin::File] {
            let faults = Faults::new(Seed(1));
            faults.load(origin, vec![first.clone()]).unwrap();
            let clash = faults.put(second.clone()).unwrap_err().to_string();
            assert!(clash.contains(kind) && clash.contains(origin.name()), "{clash}");
            faults
                .put(Rule {
                    id: "y".to_owned(),
                    ..second.clone()
                })
                .unwrap();
        }
    }
}

#[test]
fn absent_volumes_need_the_array() {
    let absent = json!({"id": "x", "match": {"while": {"volume": "absent"}}, "action": {"delay": "1s"}});
    let absent = Rule::from_value(absent).unwrap();
    Faults::new(Seed(1)).put(absent.clone()).unwrap();
    let proxy = Faults::new(Seed(1)).within(vec![Needs::Calls]);
    let refused = proxy.put(absent).unwrap_err();
    assert!(matches!(refused, RuleConflict::NoEffect { .. }), "{refused}");
}
