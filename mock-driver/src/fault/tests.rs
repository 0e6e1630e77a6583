use std::collections::BTreeMap;
use std::time::Duration;

use tonic::Code;

use super::*;

/// A publish of a volume to a node.
#[derive(Clone, Default)]
struct Publish {
    volume: String,
    secrets: BTreeMap<String, String>,
    context: BTreeMap<String, String>,
    place: Option<Place>,
}

impl Publish {
    fn of(volume: &str) -> Self {
        Self {
            volume: volume.to_owned(),
            ..Self::default()
        }
    }
}

impl Occasion for Publish {
    fn path(&self) -> &str {
        "/csi.v1.Controller/ControllerPublishVolume"
    }

    fn volume(&self) -> &str {
        &self.volume
    }

    fn node(&self) -> &str {
        "n"
    }

    fn name(&self) -> &str {
        ""
    }

    fn entry(&self, field: &str, key: &str) -> Option<String> {
        let map = match field {
            "secrets" => &self.secrets,
            "volume_context" => &self.context,
            _ => return None,
        };
        map.get(key).cloned()
    }

    fn size(&self) -> u64 {
        0
    }

    fn place(&self) -> Option<Place> {
        self.place
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

/// Which rule fires for each of some calls; empty text for none.
fn fired(faults: &Faults, calls: impl IntoIterator<Item = Publish>) -> Vec<String> {
    let fire = |call: Publish| {
        let fired = faults.fire(&call).and_then(|fired| faults.act(fired));
        fired.map(|fired| fired.rule().id.clone()).unwrap_or_default()
    };
    calls.into_iter().map(fire).collect()
}

#[test]
fn every_field_is_read() {
    let yaml = "
- id: one
  match: {method: ControllerPublishVolume, volume: 'vol-*', node: node-1}
  phase: after
  action: {code: RESOURCE_EXHAUSTED, message: no room, delay: 2s, hang: 1m30s}
  times: 3
- {id: two, match: {method: /csi.v1.Controller/CreateVolume, name: x}, action: {hang: client-cancel}}
";
    let rules = Rule::read_list(yaml).unwrap();
    let [one, two] = &rules[..] else {
        panic!("{rules:?}")
    };
    assert_eq!(
        (one.id.as_str(), one.phase, one.times),
        ("one", Phase::After, Some(3))
    );
    let path = |name: &str| Some(Methods::One(format!("/csi.v1.Controller/{name}")));
    assert_eq!(one.matches.method, path("ControllerPublishVolume"));
    assert_eq!(
        one.answer(),
        Some((tonic::Code::ResourceExhausted, "no room".to_owned()))
    );
    assert_eq!(one.action.delay, Some(Spread::Fixed(Duration::from_secs(2))));
    assert_eq!(one.action.hang, Some(Hang::For(Duration::from_secs(90))));
    assert!(!one.replaces_effect());
    assert_eq!((two.phase, two.times, two.answer()), (Phase::Before, None, None));
    assert_eq!(two.matches.method, path("CreateVolume"));
    assert!(two.replaces_effect());
}

#[test]
fn example_in_the_documentation_is_valid() {
    let documentation = include_str!("../fault.rs")
        .lines()
        .map_while(|line| line.strip_prefix("//!"));
    let example: Vec<&str> = documentation
        .skip_while(|line| *line != " ```yaml")
        .skip(1)
        .take_while(|line| *line != " ```")
        .collect();
    let rules = Rule::read_list(&example.join("\n")).unwrap();
    let ids: Vec<&str> = rules.iter().map(|rule| rule.id.as_str()).collect();
    assert_eq!(ids, ["no-room", "lost-answer", "slow"]);
}

#[test]
fn empty_text_is_an_empty_list() {
    for text in ["", "[]", "# nothing\n", "---\n", "null"] {
        assert_eq!(Rule::read_list(text), Ok(vec![]), "{text:?}");
    }
}

#[test]
fn mistakes_are_told_by_rule_and_field() {
    let error = "action: {code: INTERNAL}";
    let empty = format!("id: '', {error}");
    let (twice, text) = (
        format!("id: a, {error}}}\n- {{id: a, {error}"),
        format!("id: a, {error}}}\n- text #"),
    );
    // (first rule without its braces, number of the wrong one, its field, words of the reason)
    #[rustfmt::skip]
    let table: Vec<(&str, usize, &str, &str)> = vec![
        (error, 1, ".", "id"),
        (&empty, 1, "id", "empty"),
        ("id: a", 1, ".", "action"),
        ("id: a, match: {method: Nope}, action: {delay: 1s}", 1, "match.method", "ListVolumes"),
        ("id: a, match: {method: 'Nope*'}, action: {delay: 1s}", 1, "match.method", "fits none"),
        ("id: a, match: {method: /csi.v1.Node/Nope}, action: {delay: 1s}", 1, "match.method", "no method"),
        ("id: a, match: {methods: x}, action: {delay: 1s}", 1, "match.methods", "unknown field"),
        ("id: a, match: {method: Probe, volume: x}, action: {delay: 1s}", 1, "match.volume", "Probe"),
        ("id: a, match: {method: DeleteVolume, node: x}, action: {delay: 1s}", 1, "match.node", "never"),
        ("id: a, match: {method: DeleteVolume, name: x}, action: {delay: 1s}", 1, "match.name", "never"),
        ("id: a, match: {method: Probe, secrets: {a: b}}, action: {delay: 1s}", 1, "match.secrets", "never"),
        ("id: a, match: {method: Probe, parameters: {a: b}}, action: {delay: 1s}", 1, "match.parameters", "never"),
        ("id: a, match: {method: Probe, while: {volume: attached}}, action: {delay: 1s}", 1, "match.while.volume", "never"),
        ("id: a, match: {while: {volume: lost}}, action: {delay: 1s}", 1, "match.while.volume", "absent"),
        ("id: a, match: {while: {state: ''}}, action: {delay: 1s}", 1, "match.while.state", "start"),
        ("id: a, match: {volume: ''}, action: {delay: 1s}", 1, "match.volume", "empty"),
        ("id: a, match: {call: 0}, action: {delay: 1s}", 1, "match.call", "from 1"),
        ("id: a, match: {every: 0}, action: {delay: 1s}", 1, "match.every", "from 1"),
        ("id: a, match: {probability: 0}, action: {delay: 1s}", 1, "match.probability", "above 0"),
        ("id: a, match: {probability: 1.5}, action: {delay: 1s}", 1, "match.probability", "at most 1"),
        ("id: a, match: {seed: 7}, action: {delay: 1s}", 1, "match.seed", "probability"),
        ("id: a, phase: later, action: {delay: 1s}", 1, "phase", "later"),
        ("id: a, enabled: perhaps, action: {delay: 1s}", 1, "enabled", "boolean"),
        ("id: a, times: 0, action: {delay: 1s}", 1, "times", "at least 1"),
        ("id: a, times: -1, action: {delay: 1s}", 1, "times", "-1"),
        (&twice, 2, "id", "rule 1"),
        (&text, 2, ".", "text"),
    ];
    assert_mistakes(&table);
}

#[test]
fn mistakes_in_actions_are_told_by_field() {
    // As above.
    #[rustfmt::skip]
    let table = [
        ("id: a, action: {}", 1, "action", "a code, a delay"),
        ("id: a, action: {code: OK}", 1, "action.code", "OK"),
        ("id: a, action: {code: internal}", 1, "action.code", "INTERNAL"),
        ("id: a, action: {code: INTERNAL, cod: 1}", 1, "action.cod", "unknown field"),
        ("id: a, action: {code: 13}", 1, "action.code", "string"),
        ("id: a, action: {delay: 5}", 1, "action.delay", "string"),
        ("id: a, action: {delay: -1s}", 1, "action.delay", "duration"),
        ("id: a, action: {delay: {uniform: [2s, 1s]}}", 1, "action.delay.uniform", "longer"),
        ("id: a, action: {delay: {uniform: 2s}}", 1, "action.delay", "uniform: ["),
        ("id: a, action: {delay: {gauss: 2s}}", 1, "action.delay.gauss", "exponential"),
        ("id: a, action: {hang: for-ever}", 1, "action.hang", "client-cancel"),
        ("id: a, action: {delay: 1s, message: x}", 1, "action.message", "without a code"),
        ("id: a, action: {code: INTERNAL, message: ''}", 1, "action.message", "empty"),
        ("id: a, action: {code: INTERNAL, hang: client-cancel}", 1, "action.code", "given up"),
        ("id: a, action: {exit: 1, hang: client-cancel}", 1, "action.hang", "never ends"),
        ("id: a, action: {exit: 256}", 1, "action.exit", "255"),
        ("id: a, action: {exit: 1, drop-connection: true}", 1, "action.exit", "contradicts"),
        ("id: a, action: {socket-away: soon}", 1, "action.socket-away", "duration"),
        ("id: a, action: {set-state: ''}", 1, "action.set-state", "empty"),
        ("id: a, action: {edit: {ready: false}}", 1, "action.edit", "phase: after"),
        ("id: a, phase: after, action: {edit: {ready: false}}", 1, "action.edit", "match.method"),
        ("id: a, match: {method: ControllerPublishVolume}, phase: after, action: {edit: {device: x}}", 1, "action.edit.device", "publish_context"),
        ("id: a, match: {method: ControllerPublishVolume}, phase: after, action: {edit: {publish_context.a: b}, hang: client-cancel}", 1, "action.edit", "given up"),
        ("id: a, match: {method: ControllerPublishVolume}, phase: after, action: {edit: {}}", 1, "action.edit", "name a field"),
        ("id: a, match: {method: ControllerPublishVolume}, phase: after, action: {edit: {publish_context.a: b}, code: INTERNAL}", 1, "action.edit", "contradicts action.code"),
        ("id: a, match: {method: GetMetadataDelta}, phase: after, action: {edit: {block_metadata: []}}", 1, "action.edit", "stream"),
        ("id: a, phase: background, action: {code: ABORTED}", 1, "action", "delay or a hang"),
        ("id: a, phase: background, action: {hang: client-cancel}", 1, "action.hang", "release"),
        ("id: a, phase: background, action: {delay: 1s, exit: 1}", 1, "action", "only"),
    ];
    assert_mistakes(&table);
}

fn assert_mistakes(table: &[(&str, usize, &str, &str)]) {
    for &(rule, wrong, at, words) in table {
        match Rule::read_list(&format!("- {{{rule}}}")) {
            Err(RuleError::Rule {
                number,
                field,
                reason,
                ..
            }) => {
                assert_eq!((number, field.as_str()), (wrong, at), "{rule}: {reason}");
                assert!(reason.contains(words), "{rule}: {reason}");
            }
            other => panic!("{rule}: {other:?}"),
        }
    }
}

#[test]
fn what_is_no_list_of_rules_is_refused_as_a_whole() {
    for yaml in [
        "{id: a}",
        "- {id: a",
        "text",
        "- id: a\n  id: b\n  action: {code: INTERNAL}",
    ] {
        assert!(
            matches!(Rule::read_list(yaml), Err(RuleError::NotAList { .. })),
            "{yaml}"
        );
    }
}

#[test]
fn counted_rule_gives_way_to_the_next_and_takes_a_firing_back() {
    let faults = mk_rules(
        "
- {id: once, match: {volume: a}, phase: after, action: {code: INTERNAL}, times: 1}
- {id: always, match: {volume: a}, action: {code: ABORTED}}
",
    );
    let fire = |volume| faults.fire(&Publish::of(volume));
    assert!(fire("b").is_none());
    let first = fire("a").unwrap();
    assert_eq!(first.rule().id, "once");
    assert_eq!(fire("a").unwrap().rule().id, "always");
    drop(first);
    let again = faults.act(fire("a").unwrap()).unwrap();
    assert_eq!(again.rule().id, "once");
    drop(again);
    assert_eq!(fire("a").unwrap().rule().id, "always", "it has acted");
    faults.replace(Origin::File, vec![]).unwrap();
    assert!(faults.is_empty() && fire("a").is_none());
}

#[test]
fn turn_and_chance_of_a_call_that_failed_by_itself_are_the_next_ones() {
    let faults = mk_rules("- {id: third, match: {call: 3}, phase: after, action: {exit: kill}}");
    let call = Publish::of("a");
    assert_eq!(fired(&faults, [call.clone(), call.clone()]), ["", ""]);
    let third = faults.fire(&call).unwrap();
    // The fourth comes before the third has failed.
    assert!(faults.fire(&call).is_none());
    drop(third);
    assert_eq!((faults.reports()[0].seen, faults.reports()[0].fired), (3, 0));
    assert_eq!(fired(&faults, [call.clone(), call.clone()]), ["third", ""]);
    assert_eq!((faults.reports()[0].seen, faults.reports()[0].fired), (5, 1));

    // What was taken before the counts were set to zero is not given back to the new ones.
    let faults = mk_rules("- {id: first, match: {call: 1}, phase: after, action: {code: INTERNAL}}");
    let old = faults.fire(&call).unwrap();
    faults.reset();
    assert!(
        faults
            .fire(&call)
            .is_some_and(|fired| faults.act(fired).is_some())
    );
    drop(old);
    assert_eq!((faults.reports()[0].seen, faults.reports()[0].fired), (1, 1));
    assert!(faults.fire(&call).is_none());

    let faults = mk_rules("- {id: x, match: {probability: 0.1}, phase: after, action: {code: INTERNAL}}");
    let before = (0..1000).find(|_| faults.fire(&call).is_some()).unwrap();
    assert!(before > 0, "one that does not fire has had its chance");
    for _ in 0..20 {
        assert!(faults.fire(&call).is_some(), "the same chance until it is taken");
    }
}

#[test]
fn state_is_set_when_the_rule_acts_and_by_one_call_only() {
    let faults = mk_rules(
        "
- {id: once, match: {while: {state: start}}, phase: after, action: {set-state: sick}}
- {id: sick, match: {while: {state: sick}}, action: {code: INTERNAL}}
",
    );
    let call = Publish::of("a");
    drop(faults.fire(&call).unwrap());
    assert_eq!(&*faults.state(), FIRST_STATE, "it did not act");
    let (one, other) = (faults.fire(&call).unwrap(), faults.fire(&call).unwrap());
    assert_eq!((&*one.rule().id, &*other.rule().id), ("once", "once"));
    assert!(faults.act(other).is_some());
    assert_eq!(&*faults.state(), "sick");
    assert!(faults.act(one).is_none(), "the state it is for has ended");
    assert_eq!(faults.reports()[0].fired, 1);
    assert_eq!(fired(&faults, [call]), ["sick"]);
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
fn while_asks_where_the_volume_is_and_which_state_the_rules_are_in() {
    let place = |exists, here, elsewhere| {
        Some(Place {
            exists,
            here,
            elsewhere,
        })
    };
    let places = [
        place(true, true, false),
        place(true, false, true),
        place(true, false, false),
        place(false, false, false),
        None,
    ];
    // (asked, for which of the places it fires)
    let table = [
        ("attached", [true, true, false, false, false]),
        ("attached-here", [true, false, false, false, false]),
        ("attached-elsewhere", [false, true, false, false, false]),
        ("detached", [false, false, true, false, false]),
        ("absent", [false, false, false, true, false]),
    ];
    for (asked, fires) in table {
        let yaml = format!("- {{id: x, match: {{while: {{volume: {asked}}}}}, action: {{code: ABORTED}}}}");
        let faults = mk_rules(&yaml);
        let calls = places.map(|place| Publish {
            place,
            ..Publish::of("a")
        });
        let expected = fires.map(|fires| if fires { "x" } else { "" });
        assert_eq!(fired(&faults, calls), expected, "{asked}");
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

#[test]
fn chance_repeats_with_the_seed_whatever_comes_between_and_keeps_its_rate() {
    let yaml = "- {id: x, match: {probability: 0.1}, action: {code: ABORTED}}";
    let volumes = || (0..200_u32).flat_map(|n| (0..20).map(move |_| Publish::of(&format!("vol-{n}"))));
    let fates = |seed: u64, calls: Vec<Publish>| {
        let faults = mk_seeded(yaml, seed);
        let mut fates: BTreeMap<String, Vec<bool>> = BTreeMap::new();
        for call in calls {
            let fired = faults.fire(&call).is_some();
            fates.entry(call.volume).or_default().push(fired);
        }
        fates
    };
    let in_order = fates(7, volumes().collect());
    // The same calls for each volume, the volumes taking turns the other way round.
    let mut mixed: Vec<Publish> = Vec::new();
    for _ in 0..20 {
        mixed.extend((0..200).rev().map(|n| Publish::of(&format!("vol-{n}"))));
    }
    assert_eq!(in_order, fates(7, mixed));
    assert_ne!(in_order, fates(8, volumes().collect()));
    let hits = in_order.values().flatten().filter(|fired| **fired).count();
    assert!((340..=460).contains(&hits), "{hits} of 4000");

    let own = "- {id: x, match: {probability: 0.5, seed: 3}, action: {code: ABORTED}}";
    let run = |seed| fired(&mk_seeded(own, seed), (0..50).map(|_| Publish::of("a")));
    assert_eq!(run(1), run(2), "a seed of its own");
}

#[test]
fn drawn_delays_repeat_with_the_seed() {
    let yaml = "- {id: x, action: {delay: {uniform: [1s, 2s]}}}";
    let delays = |seed| -> Vec<Duration> {
        let faults = mk_seeded(yaml, seed);
        (0..20)
            .map(|_| faults.fire(&Publish::of("a")).unwrap().delay())
            .collect()
    };
    assert_eq!(delays(1), delays(1));
    assert_ne!(delays(1), delays(2));
    assert!(
        delays(1).windows(2).any(|pair| pair[0] != pair[1]),
        "each call has its own"
    );
}

#[test]
fn rules_are_put_replaced_switched_and_removed_at_run_time() {
    let rule = |text: &str| Rule::from_value(serde_json::from_str(text).unwrap()).unwrap();
    let faults = mk_rules(
        "[{id: file, action: {code: INTERNAL}}, {id: idle, enabled: false, action: {code: ABORTED}}]",
    );
    let scenario = Rule::read_list("[{id: scene, action: {code: UNKNOWN}}]").unwrap();
    faults.replace(Origin::Scenario, scenario.clone()).unwrap();
    let first = || fired(&faults, [Publish::of("a")]).remove(0);
    assert_eq!(first(), "file");

    faults.put(rule(
        r#"{"id": "mine", "action": {"code": "ABORTED"}, "times": 1}"#,
    ));
    assert_eq!((first(), first()), ("mine".into(), "file".into()));
    faults.put(rule(
        r#"{"id": "file", "match": {"volume": "b"}, "action": {"code": "ABORTED"}}"#,
    ));
    assert_eq!(first(), "scene", "replaced in its place");
    assert!(faults.set_enabled("idle", true));
    assert_eq!(first(), "idle");
    assert!(faults.remove("idle") && !faults.remove("idle") && !faults.set_enabled("idle", true));
    assert!(faults.set_enabled("scene", false));
    assert_eq!(first(), "");

    let reports = faults.reports();
    let list: Vec<_> = reports
        .iter()
        .map(|report| {
            (
                report.id.as_str(),
                report.origin,
                report.enabled,
                report.seen,
                report.fired,
            )
        })
        .collect();
    let expected = [
        ("mine", Origin::Admin, true, 1, 1),
        ("file", Origin::File, true, 0, 0),
        ("scene", Origin::Scenario, false, 1, 1),
    ];
    assert_eq!(list, expected);
    assert_eq!(reports[0].times, Some(1));
    assert_eq!(reports[0].rule["action"]["code"], "ABORTED");

    faults.set_state("odd");
    faults.reset();
    assert_eq!((first(), &*faults.state()), ("mine".into(), FIRST_STATE));
    assert!(faults.reports()[2].enabled, "as it was written");

    let clash = faults.replace(Origin::File, scenario).unwrap_err();
    assert!(clash.to_string().contains("\"scene\""), "{clash}");
    assert_eq!(faults.len(), 3, "nothing has changed");
}

#[tokio::test]
async fn release_lets_go_what_fired_before_it_and_so_does_the_end_of_a_rule() {
    use tokio_test::{assert_pending, assert_ready, task};

    type End = (&'static str, fn(&Faults));
    let ends: [End; 5] = [
        ("release", |faults| assert_eq!(faults.release(Some("x")), Some(1))),
        ("release all", |faults| assert_eq!(faults.release(None), Some(1))),
        ("switch off", |faults| assert!(faults.set_enabled("x", false))),
        ("remove", |faults| assert!(faults.remove("x"))),
        ("reload", |faults| faults.replace(Origin::File, vec![]).unwrap()),
    ];
    for (case, end) in ends {
        let faults = mk_rules("- {id: x, action: {hang: release}}");
        let mut fired = faults.fire(&Publish::of("a")).unwrap();
        assert_eq!(faults.reports()[0].holds, 1, "{case}");
        assert_eq!(faults.release(Some("y")), None, "{case}");
        let mut hanging = task::spawn(fired.released());
        assert_pending!(hanging.poll(), "{case}");
        end(&faults);
        assert_ready!(hanging.poll(), "{case}");
        drop(hanging);
        drop(fired);
        assert!(faults.reports().iter().all(|report| report.holds == 0), "{case}");
    }
}

#[test]
fn foreign_methods_are_matched_by_path_and_patterns_by_name() {
    let methods = |text: &str| {
        let yaml = format!("- {{id: x, match: {{method: {text}}}, action: {{code: ABORTED}}}}");
        Rule::read_list(&yaml).unwrap().remove(0).matches.method.unwrap()
    };
    assert_eq!(
        methods("/vendor.v1.Copy/Start"),
        Methods::One("/vendor.v1.Copy/Start".into())
    );
    assert!(methods("/vendor.v1.Copy/Start").known().is_empty());
    assert_eq!(methods("'Node*'").known().len(), 10);
    assert_eq!(methods("'/csi.v1.Identity/*'").known().len(), 3);
    assert_eq!(
        Code::Aborted,
        Rule::read_list("[{id: a, action: {code: ABORTED}}]").unwrap()[0]
            .answer()
            .unwrap()
            .0
    );
}
