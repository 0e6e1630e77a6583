use std::time::Duration;

use super::*;

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
    assert_eq!(one.matches.method, Some(Method::ControllerPublishVolume));
    assert_eq!(
        one.answer(),
        Some((tonic::Code::ResourceExhausted, "no room".to_owned()))
    );
    assert_eq!(one.action.delay, Duration::from_secs(2));
    assert_eq!(one.action.hang, Some(Hang::For(Duration::from_secs(90))));
    assert!(!one.replaces_effect());
    assert_eq!((two.phase, two.times, two.answer()), (Phase::Before, None, None));
    assert_eq!(two.matches.method, Some(Method::CreateVolume));
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
    let table: [(&str, usize, &str, &str); 25] = [
        (error, 1, ".", "id"),
        (&empty, 1, "id", "empty"),
        ("id: a", 1, ".", "action"),
        ("id: a, action: {}", 1, "action", "code, a delay or a hang"),
        ("id: a, action: {code: OK}", 1, "action.code", "OK"),
        ("id: a, action: {code: internal}", 1, "action.code", "INTERNAL"),
        ("id: a, action: {code: INTERNAL, cod: 1}", 1, "action.cod", "unknown field"),
        ("id: a, action: {code: 13}", 1, "action.code", "string"),
        ("id: a, action: {delay: 5}", 1, "action.delay", "string"),
        ("id: a, action: {delay: -1s}", 1, "action.delay", "duration"),
        ("id: a, action: {hang: for-ever}", 1, "action.hang", "client-cancel"),
        ("id: a, action: {delay: 1s, message: x}", 1, "action.message", "without a code"),
        ("id: a, action: {code: INTERNAL, message: ''}", 1, "action.message", "empty"),
        ("id: a, action: {code: INTERNAL, hang: client-cancel}", 1, "action.code", "given up"),
        ("id: a, match: {method: Nope}, action: {delay: 1s}", 1, "match.method", "ListVolumes"),
        ("id: a, match: {methods: x}, action: {delay: 1s}", 1, "match.methods", "unknown field"),
        ("id: a, match: {method: Probe, volume: x}, action: {delay: 1s}", 1, "match.volume", "Probe"),
        ("id: a, match: {method: DeleteVolume, node: x}, action: {delay: 1s}", 1, "match.node", "never"),
        ("id: a, match: {method: DeleteVolume, name: x}, action: {delay: 1s}", 1, "match.name", "never"),
        ("id: a, match: {volume: ''}, action: {delay: 1s}", 1, "match.volume", "empty"),
        ("id: a, phase: later, action: {delay: 1s}", 1, "phase", "later"),
        ("id: a, times: 0, action: {delay: 1s}", 1, "times", "at least 1"),
        ("id: a, times: -1, action: {delay: 1s}", 1, "times", "-1"),
        (&twice, 2, "id", "rule 1"),
        (&text, 2, ".", "text"),
    ];
    for (rule, wrong, at, words) in table {
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
    let faults = Faults::default();
    let yaml = "
- {id: once, match: {volume: a}, action: {code: INTERNAL}, times: 1}
- {id: always, match: {volume: a}, action: {code: ABORTED}}
";
    faults.replace(Rule::read_list(yaml).unwrap());
    let occasion = |volume| Occasion {
        method: Method::ControllerPublishVolume,
        volume,
        node: "n",
        name: "",
    };
    let fire = |volume| faults.fire(&occasion(volume));
    assert!(fire("b").is_none());
    let first = fire("a").unwrap();
    assert_eq!(first.rule().id, "once");
    assert_eq!(fire("a").unwrap().rule().id, "always");
    first.give_back();
    assert_eq!(fire("a").unwrap().rule().id, "once");
    faults.replace(vec![]);
    assert!(faults.is_empty() && fire("a").is_none());
}
