//! Valid rules, and the errors of malformed ones.

use std::time::Duration;

use tonic::Code;

use super::action::FIELDS;
use crate::fault::rule::Methods;
use crate::fault::{DelayDistribution, Hang, Phase, Rule, RuleError};

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
        one.status(),
        Some((tonic::Code::ResourceExhausted, "no room".to_owned()))
    );
    assert_eq!(
        one.action.delay,
        Some(DelayDistribution::Fixed(Duration::from_secs(2)))
    );
    assert_eq!(one.action.hang, Some(Hang::For(Duration::from_secs(90))));
    assert!(!one.replaces_effect());
    assert_eq!((two.phase, two.times, two.status()), (Phase::Before, None, None));
    assert_eq!(two.matches.method, path("CreateVolume"));
    assert!(two.replaces_effect());
}

#[test]
fn null_is_an_absent_field() {
    let rules =
        Rule::read_list("[{id: one, match: {method: '*'}, phase: null, action: {code: ABORTED}}]").unwrap();
    assert_eq!(rules[0].phase, Phase::Before);
    let faults = "[{id: old, type: frozen-list, age: null}, {id: late, type: not-ready, for: null}]";
    Rule::read_list(&format!("backend-faults: {faults}")).unwrap();
}

#[test]
fn example_in_the_documentation_is_valid() {
    let (_, text) = include_str!("../../../docs/faults.md")
        .split_once("```yaml\n")
        .unwrap();
    let (example, _) = text.split_once("```").unwrap();
    let rules = Rule::read_list(example).unwrap();
    let ids: Vec<&str> = rules.iter().map(|rule| rule.id.as_str()).collect();
    assert_eq!(ids, ["no-room", "slow", "attached-once", "unhealthy", "old-list"]);
}

#[test]
fn all_rules_and_fixtures_in_the_documentation_are_valid() {
    let blocks = include_str!("../../../docs/faults.md").split("```yaml\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap());
    let (fixtures, rules): (Vec<_>, Vec<_>) = blocks.partition(|block| block.starts_with("volumes:"));
    let lengths = rules.iter().map(|rules| Rule::read_list(rules).unwrap().len());
    assert!(rules.len() >= 4 && lengths.sum::<usize>() >= 12);
    let [fixture] = fixtures[..] else {
        panic!("{fixtures:?}")
    };
    let fixture: crate::array::Image = serde_saphyr::from_str(fixture).unwrap();
    let settings = crate::array::Settings {
        nodes: crate::array::Settings::numbered_nodes(3),
        ..Default::default()
    };
    fixture.check(&settings).unwrap();
}

#[test]
fn empty_text_is_an_empty_list() {
    for text in ["", "[]", "# nothing\n", "---\n", "null"] {
        assert_eq!(Rule::read_list(text), Ok(vec![]), "{text:?}");
    }
}

#[test]
fn errors_name_rule_and_field() {
    let error = "match: {method: '*'}, action: {code: INTERNAL}";
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
        ("id: a, match: {method: 'Nope*'}, action: {delay: 1s}", 1, "match.method", "matches no CSI method"),
        ("id: a, match: {method: /csi.v1.Node/Nope}, action: {delay: 1s}", 1, "match.method", "matches no CSI method"),
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
fn errors_in_actions_name_the_field() {
    // As above.
    #[rustfmt::skip]
    let table = [
        ("id: a, action: {}", 1, "action", "code, pretend, edit"),
        ("id: a, match: {method: Probe}, phase: after, action: {code: OK}", 1, "action.code", "has succeeded"),
        ("id: a, action: {code: OK, message: x}", 1, "action.message", "an error"),
        ("id: a, phase: after, action: {pretend: OK}", 1, "action.pretend", "phase: before"),
        ("id: a, action: {pretend: OK, code: OK}", 1, "action.pretend", "contradicts action.code"),
        ("id: a, action: {effect: maybe, code: OK}", 1, "action.effect", "true, false or later"),
        ("id: a, phase: after, action: {effect: true, code: ABORTED}", 1, "action.effect", "contradicts phase"),
        ("id: a, action: {effect: true, pretend: OK}", 1, "action.pretend", "phase: before"),
        ("id: a, action: {effect: later, code: OK}", 1, "action", "delay or a hang"),
        ("id: a, action: {code: internal}", 1, "action.code", "INTERNAL"),
        ("id: a, action: {code: INTERNAL, cod: 1}", 1, "action.cod", "unknown field"),
        ("id: a, action: {code: 13}", 1, "action.code", "string"),
        ("id: a, action: {delay: 5}", 1, "action.delay", "string"),
        ("id: a, action: {delay: -1s}", 1, "action.delay", "duration"),
        ("id: a, action: {delay: {uniform: [2s, 1s]}}", 1, "action.delay.uniform", "longer"),
        ("id: a, action: {delay: {uniform: 2s}}", 1, "action.delay.uniform", "uniform: ["),
        ("id: a, action: {delay: {max: 2s}}", 1, "action.delay", "exponential: 500ms"),
        ("id: a, action: {exit: stop}", 1, "action.exit", "or kill"),
        ("id: a, action: {delay: {gauss: 2s}}", 1, "action.delay.gauss", "exponential"),
        ("id: a, action: {hang: for-ever}", 1, "action.hang", "client-cancel"),
        ("id: a, action: {delay: 1s, message: x}", 1, "action.message", "without a code"),
        ("id: a, action: {code: INTERNAL, message: ''}", 1, "action.message", "empty"),
        ("id: a, action: {code: INTERNAL, hang: client-cancel}", 1, "action.code", "has cancelled the call"),
        ("id: a, action: {exit: 1, hang: client-cancel}", 1, "action.exit", "use a duration"),
        ("id: a, action: {exit: 256}", 1, "action.exit", "255"),
        ("id: a, action: {exit: 1, drop-connection: true}", 1, "action.exit", "contradicts"),
        ("id: a, action: {socket-away: soon}", 1, "action.socket-away", "duration"),
        ("id: a, action: {set-state: ''}", 1, "action.set-state", "empty"),
        ("id: a, action: {edit: {ready: false}}", 1, "action.edit", "phase: after"),
        ("id: a, phase: after, action: {edit: {ready: false}}", 1, "action.edit", "match.method"),
        ("id: a, match: {method: ControllerPublishVolume}, phase: after, action: {edit: {device: x}}", 1, "action.edit.device", "publish_context"),
        ("id: a, match: {method: ControllerPublishVolume}, phase: after, action: {edit: {publish_context.a: b}, hang: client-cancel}", 1, "action.edit", "has cancelled the call"),
        ("id: a, match: {method: ControllerPublishVolume}, phase: after, action: {edit: {}}", 1, "action.edit", "name a field"),
        ("id: a, match: {method: ControllerPublishVolume}, phase: after, action: {edit: {publish_context.a: b}, code: INTERNAL}", 1, "action.edit", "contradicts action.code"),
        ("id: a, match: {method: GetMetadataDelta}, phase: after, action: {edit: {block_metadata: []}}", 1, "action.edit", "stream"),
        ("id: a, action: {effect: false, delay: 2s}", 1, "action.effect", "the array acts"),
        ("id: a, action: {effect: false, hang: release}", 1, "action.effect", "the array acts"),
        ("id: a, action: {effect: false, set-state: odd}", 1, "action.effect", "the array acts"),
        ("id: a, phase: background, action: {code: ABORTED}", 1, "action", "delay or a hang"),
        ("id: a, phase: background, action: {hang: client-cancel}", 1, "action.hang", "release"),
        ("id: a, phase: background, action: {delay: 1s, exit: 1}", 1, "action.exit", "phase: before or after"),
    ];
    assert_mistakes(&table);
}

#[test]
fn errors_in_device_faults_name_the_field() {
    // As above.
    #[rustfmt::skip]
    let table = [
        ("id: a, match: {io: reed}, action: {errno: EIO}", 1, "match.io", "read, write, fsync"),
        ("id: a, match: {io: []}, action: {errno: EIO}", 1, "match.io", "must name"),
        ("id: a, match: {io: read, method: Probe}, action: {errno: EIO}", 1, "match.method", "match.io"),
        ("id: a, match: {io: read, not: {name: x}}, action: {errno: EIO}", 1, "match.not.name", "match.io"),
        ("id: a, match: {method: Probe, not: {io: read}}, action: {code: ABORTED}", 1, "match.not.io", "match.io"),
        ("id: a, match: {io: read, while: {volume: attached}}, action: {errno: EIO}", 1, "match.while.volume", "match.io"),
        ("id: a, match: {path: x}, action: {delay: 1s}", 1, "match.path", "add match.io"),
        ("id: a, match: {io: read, offset: {from: 4Ki, to: 4096}}, action: {errno: EIO}", 1, "match.offset", "above from"),
        ("id: a, match: {io: read, offset: {from: 4 KB}}, action: {errno: EIO}", 1, "match.offset.from", "Ki or Mi"),
        ("id: a, match: {io: read}, action: {errno: EEEK}", 1, "action.errno", "EIO, ENOSPC"),
        ("id: a, match: {io: read}, action: {code: INTERNAL}", 1, "action.code", "no effect on I/O"),
        ("id: a, match: {method: Probe}, action: {errno: EIO}", 1, "action.errno", "match: {io: write}"),
        ("id: a, match: {io: read}, action: {}", 1, "action", "errno, torn, lose-unsynced, delay, hang, bandwidth"),
        ("id: a, match: {io: read}, action: {torn: 4}", 1, "action.torn", "io: write"),
        ("id: a, match: {io: write}, action: {torn: 4, errno: EIO}", 1, "action.torn", "contradicts action.errno"),
        ("id: a, match: {io: write}, action: {bandwidth: 0}", 1, "action.bandwidth", "above 0"),
        ("id: a, match: {io: [write, create]}, action: {bandwidth: 1Mi}", 1, "action.bandwidth", "[read, write]"),
        ("id: a, match: {io: '*', offset: {from: 1}}, action: {errno: EIO}", 1, "match.offset", "[read, write]"),
        ("id: a, match: {io: stat, bytes-above: 1}, action: {errno: EIO}", 1, "match.bytes-above", "[read, write]"),
        ("id: a, match: {io: read, not: {io: fsync, offset: {from: 1}}}, action: {errno: EIO}", 1, "match.not.offset", "[read, write]"),
        ("id: a, match: {io: write}, action: {hang: client-cancel}", 1, "action.hang", "release"),
        ("id: a, match: {io: write}, action: {effect: later, errno: EIO}", 1, "action.effect", "phase: before or after"),
        ("id: a, match: {io: write}, action: {effect: true, delay: 1s, errno: EIO}", 1, "action.delay", "phase: before"),
        ("id: a, match: {io: detach}, action: {errno: EIO}", 1, "match.io", "lose-unsynced only"),
    ];
    assert_mistakes(&table);
    Rule::read_list(
        "- {id: a, match: {io: [write, detach], not: {path: '*.log'}}, action: {lose-unsynced: true}}",
    )
    .unwrap();
}

#[test]
fn rule_without_match_is_refused() {
    for matches in ["", "match: null, ", "match: {}, "] {
        let rule = format!("id: a, {matches}action: {{code: ABORTED}}");
        assert_mistakes(&[(&rule, 1, "match", "'*'")]);
    }
    Rule::read_list("- {id: a, match: {method: '*'}, action: {code: ABORTED}}").unwrap();
}

#[test]
fn effect_is_a_phase_and_pretend_a_code_without_effect() {
    // (action, phase, code)
    for (action, phase, code) in [
        ("{effect: false, code: NOT_FOUND}", Phase::Before, Code::NotFound),
        ("{effect: true, code: INTERNAL}", Phase::After, Code::Internal),
        (
            "{effect: later, delay: 1s, code: OK}",
            Phase::Background,
            Code::Ok,
        ),
        ("{pretend: OK}", Phase::Before, Code::Ok),
        ("{pretend: NOT_FOUND}", Phase::Before, Code::NotFound),
        ("{code: OK}", Phase::Before, Code::Ok),
    ] {
        let yaml = format!("- {{id: x, match: {{method: Controller*}}, action: {action}}}");
        let rule = Rule::read_list(&yaml).unwrap().remove(0);
        assert_eq!(
            (rule.phase, rule.status().map(|(code, _)| code)),
            (phase, Some(code)),
            "{action}"
        );
    }
}

#[test]
fn cookbook_has_a_row_for_each_field_of_an_action() {
    let documented: Vec<String> = include_str!("../../../docs/faults.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `action."))
        .flat_map(|row| {
            let (cell, _) = row.split_once(" | ").unwrap();
            let names = cell.replace(['`', '.', ' '], "");
            names.split(',').map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    let names: Vec<&str> = FIELDS.iter().map(|field| field.name).collect();
    assert_eq!(documented, names);
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
fn error_shows_no_secret() {
    for secrets in [
        "{password: 20260131}",
        "20260131",
        "[20260131]",
        "{password: {nested: 20260131}}",
        "{password: 20260131",
        "{password: 20260131, password: 20260131}",
    ] {
        let yaml = format!("- {{id: a, match: {{secrets: {secrets}}}, action: {{delay: 1s}}}}");
        let error = Rule::read_list(&yaml).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(!text.contains("20260131"), "{secrets}: {text}");
    }
    let error =
        Rule::read_list("- {id: a, match: {secrets: {password: 1}}, action: {delay: 1s}}").unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("match.secrets.password") && text.contains("quotes"),
        "{text}"
    );
}

#[test]
fn malformed_list_of_rules_is_refused_whole() {
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
        Rule::read_list("[{id: a, match: {method: '*'}, action: {code: ABORTED}}]").unwrap()[0]
            .status()
            .unwrap()
            .0
    );
}

/// The kernel splits larger operations.
#[test]
fn io_of_more_bytes_than_the_kernel_sends_is_refused() {
    let rule = |bytes: &str| {
        let rule = serde_json::json!({"id": "x", "match": {"io": "write", "bytes-above": bytes}, "action": {"errno": "EIO"}});
        Rule::from_value(rule)
            .map(drop)
            .map_err(|error| error.to_string())
    };
    rule("1023Ki").unwrap();
    assert!(
        rule("1Mi")
            .unwrap_err()
            .contains("match.bytes-above: must be below 1Mi")
    );
}
