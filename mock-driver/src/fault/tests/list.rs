//! The list of rules while it changes.

use super::*;

#[test]
fn rules_are_put_replaced_switched_and_removed_at_run_time() {
    let rule = |text: &str| Rule::from_value(serde_json::from_str(text).unwrap()).unwrap();
    let faults = mk_rules(
        "[{id: file, match: {method: '*'}, action: {code: INTERNAL}}, {id: idle, match: {method: '*'}, enabled: false, action: {code: ABORTED}}]",
    );
    let scenario = Rule::read_list("[{id: scene, match: {method: '*'}, action: {code: UNKNOWN}}]").unwrap();
    faults.replace(Origin::Scenario, scenario.clone()).unwrap();
    let first = || fired(&faults, [Publish::of("a")]).remove(0);
    assert_eq!(first(), "file");

    faults
        .put(rule(
            r#"{"id": "mine", "match": {"method": "*"}, "action": {"code": "ABORTED"}, "times": 2}"#,
        ))
        .unwrap();
    faults
        .put(rule(
            r#"{"id": "mine", "match": {"method": "*"}, "action": {"code": "ABORTED"}, "times": 1}"#,
        ))
        .unwrap();
    assert_eq!((first(), first()), ("mine".into(), "file".into()));
    for id in ["file", "scene"] {
        // It would be gone with the next edit of the file, or the end of the scenario.
        let foreign =
            format!(r#"{{"id": "{id}", "match": {{"method": "*"}}, "action": {{"code": "ABORTED"}}}}"#);
        let clash = faults.put(rule(&foreign)).unwrap_err();
        assert!(clash.to_string().contains("take another"), "{clash}");
        let all = format!("[{{id: new, match: {{method: '*'}}, action: {{code: ABORTED}}}}, {foreign}]");
        assert_eq!(faults.put_all(Rule::read_list(&all).unwrap()), Err(clash));
    }
    assert_eq!(faults.len(), 4, "nothing has changed");
    assert!(faults.set_enabled(RuleKind::Rule, "file", false));
    assert_eq!(first(), "scene");
    assert!(faults.set_enabled(RuleKind::Rule, "idle", true));
    assert_eq!(first(), "idle");
    assert!(
        faults.remove(RuleKind::Rule, "idle")
            && !faults.remove(RuleKind::Rule, "idle")
            && !faults.set_enabled(RuleKind::Rule, "idle", true)
    );
    assert!(faults.set_enabled(RuleKind::Rule, "scene", false));
    assert_eq!(first(), "");

    let reports = faults.reports(RuleKind::Rule);
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
        ("file", Origin::File, false, 2, 2),
        ("scene", Origin::Scenario, false, 1, 1),
    ];
    assert_eq!(list, expected);
    assert_eq!(reports[0].times, Some(1));
    assert_eq!(reports[0].rule["action"]["code"], "ABORTED");

    faults.set_state("odd");
    faults.reset();
    assert_eq!((first(), &*faults.state()), ("mine".into(), FIRST_STATE));
    assert!(faults.reports(RuleKind::Rule)[2].enabled, "as it was written");

    let clash = faults.replace(Origin::File, scenario).unwrap_err();
    assert!(clash.to_string().contains("\"scene\""), "{clash}");
    assert_eq!(faults.len(), 3, "nothing has changed");
}

#[tokio::test]
async fn release_or_removal_of_a_rule_ends_its_hanging_calls() {
    use tokio_test::{assert_pending, assert_ready, task};

    type End = (&'static str, fn(&Faults));
    let ends: [End; 5] = [
        ("release", |faults| assert_eq!(faults.release(Some("x")), Some(1))),
        ("release all", |faults| assert_eq!(faults.release(None), Some(1))),
        ("switch off", |faults| {
            assert!(faults.set_enabled(RuleKind::Rule, "x", false))
        }),
        ("remove", |faults| assert!(faults.remove(RuleKind::Rule, "x"))),
        ("reload", |faults| faults.replace(Origin::File, vec![]).unwrap()),
    ];
    for (case, end) in ends {
        let faults = mk_rules("- {id: x, match: {method: '*'}, action: {hang: release}}");
        let mut fired = faults.decide(&Publish::of("a")).rule.unwrap();
        assert_eq!(faults.reports(RuleKind::Rule)[0].blocked_calls, 1, "{case}");
        assert_eq!(faults.release(Some("y")), None, "{case}");
        let mut hanging = task::spawn(fired.released());
        assert_pending!(hanging.poll(), "{case}");
        end(&faults);
        assert_ready!(hanging.poll(), "{case}");
        drop(hanging);
        drop(fired);
        assert!(
            faults
                .reports(RuleKind::Rule)
                .iter()
                .all(|report| report.blocked_calls == 0),
            "{case}"
        );
    }
}

#[test]
fn rule_that_waits_for_a_state_that_no_rule_sets_is_refused() {
    let faults = Faults::default();
    let read = |yaml: &str| Rule::read_list(yaml).unwrap();
    let sick = "{id: sick, match: {method: Probe, while: {state: sick}}, action: {code: ABORTED}}";
    let falls = "{id: falls, match: {method: Probe, while: {state: start}}, action: {set-state: sick}}";
    let refused = faults
        .load(Origin::File, read(&format!("[{sick}]")))
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("\"sick\"") && refused.contains("set-state: sick"),
        "{refused}"
    );
    assert!(faults.is_empty(), "nothing has changed");
    faults
        .load(Origin::File, read(&format!("[{sick}, {falls}]")))
        .unwrap();
    let reload = faults.load(Origin::File, read(&format!("[{sick}]")));
    reload.expect_err("the reload removes the rule that sets the state");
    faults.load(Origin::File, Vec::new()).unwrap();
    faults.put_all(read(&format!("[{falls}]"))).unwrap();
    faults.put_all(read(&format!("[{sick}]"))).unwrap();
    let falls_no_more = falls.replace("set-state: sick", "set-state: odd");
    let sick_too = sick.replace("id: sick", "id: too");
    let replaced = faults.put_all(read(&format!("[{falls_no_more}, {sick_too}]")));
    replaced.expect_err("the rule that sets the state is replaced");
}

#[test]
fn rule_about_a_part_of_another_process_is_refused() {
    let all = [Needs::Calls, Needs::Services, Needs::Array, Needs::Node];
    // (backend fault or rule, what it needs)
    let table = [
        ("backend-faults: [{id: x, type: busy}]", Needs::Calls),
        (
            "backend-faults: [{id: x, type: node-limit, limit: 1}]",
            Needs::Calls,
        ),
        ("backend-faults: [{id: x, type: quota, volumes: 1}]", Needs::Array),
        ("backend-faults: [{id: x, type: frozen-list}]", Needs::Array),
        ("backend-faults: [{id: x, type: list-lacks}]", Needs::Array),
        (
            "backend-faults: [{id: x, type: list-adds, node: node-1}]",
            Needs::Array,
        ),
        ("backend-faults: [{id: x, type: device-absent}]", Needs::Node),
        ("backend-faults: [{id: x, type: damaged-filesystem}]", Needs::Node),
        ("backend-faults: [{id: x, type: foreign-data}]", Needs::Node),
        ("backend-faults: [{id: x, type: wrong-device}]", Needs::Services),
        ("backend-faults: [{id: x, type: not-ready}]", Needs::Services),
        (
            "rules: [{id: x, match: {method: Probe}, action: {effect: true, capabilities: {LIST_VOLUMES: false}}}]",
            Needs::Services,
        ),
        (
            "rules: [{id: x, match: {method: Probe}, action: {code: ABORTED}}]",
            Needs::Calls,
        ),
    ];
    for (yaml, needs) in table {
        let rules = Rule::read_list(yaml).unwrap();
        let without = |missing: Needs| all.into_iter().filter(|has| *has != missing).collect();
        for missing in all {
            let faults = Faults::default().within(without(missing));
            let loaded = faults.load(Origin::File, rules.clone());
            assert_eq!(loaded.is_err(), missing == needs, "{yaml} without {missing:?}");
            let put = Faults::default().within(without(missing)).put_all(rules.clone());
            assert_eq!(put.is_err(), missing == needs, "{yaml} without {missing:?}");
        }
    }
}
