//! The results as a table of clauses, and as JUnit.

use std::fmt::Write as _;

use attacher_contract::{CLAUSES, Clause, Rule, Strength, Violation};

use super::{CASES, Outcome};

/// Characters of a violation's text in the table.
const SHOWN: usize = 160;

/// Whether the attacher must keep the clause, and a case tests it.
fn is_judged(rule: &Rule, promises: bool) -> bool {
    let is_promised = promises || rule.strength != Strength::Promise;
    is_promised && CASES.iter().any(|case| case.is_about(rule.clause))
}

fn violations(outcomes: &[Outcome], clause: Clause) -> Vec<(&str, &Violation)> {
    let all = outcomes.iter().flat_map(|outcome| {
        let violations = outcome.result.iter().flatten();
        violations.map(|violation| (outcome.case.name, violation))
    });
    all.filter(|(_, violation)| violation.clause == clause).collect()
}

/// A table: clause, verdict, evidence, source.
pub fn markdown(outcomes: &[Outcome], promises: bool) -> String {
    let mut table = String::from("| clause | verdict | evidence | source |\n|---|---|---|---|\n");
    for rule in CLAUSES.iter().filter(|rule| is_judged(rule, promises)) {
        let found = violations(outcomes, rule.clause);
        let tested = outcomes
            .iter()
            .filter(|outcome| outcome.case.is_about(rule.clause));
        let (verdict, evidence) = match &found[..] {
            [] => match tested.count() {
                0 => ("not tested", String::new()),
                1 => ("kept", "1 case".to_owned()),
                count => ("kept", format!("{count} cases")),
            },
            [(case, first), ..] => {
                let text: String = first.text.chars().take(SHOWN).collect();
                let text = text.replace('|', "\\|").replace('\n', " ");
                let names: std::collections::BTreeSet<_> = found.iter().map(|(case, _)| *case).collect();
                let others = names.into_iter().filter(|name| name != case);
                let others = others.fold(String::new(), |text, name| text + ", `" + name + "`");
                ("**violated**", format!("`{case}`: {text}{}", also(&others)))
            }
        };
        let promise = if rule.strength == Strength::Promise {
            " (promise)"
        } else {
            ""
        };
        writeln!(
            table,
            "| {}{promise}: {} | {verdict} | {evidence} | {} |",
            rule.name, rule.text, rule.source
        )
        .expect("writing to a String must succeed");
    }
    table
}

fn also(others: &str) -> String {
    match others.strip_prefix(", ") {
        Some(others) => format!("; also in {others}"),
        None => String::new(),
    }
}

/// JUnit: one test case for each case.
pub fn junit(outcomes: &[Outcome]) -> String {
    let failed = outcomes
        .iter()
        .filter(|outcome| outcome.result.as_ref().is_ok_and(|found| !found.is_empty()));
    let errors = outcomes.iter().filter(|outcome| outcome.result.is_err());
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"conform\" tests=\"{}\" failures=\"{}\" errors=\"{}\">\n",
        outcomes.len(),
        failed.count(),
        errors.count()
    );
    for outcome in outcomes {
        let seconds = outcome.took.as_secs_f64();
        write!(
            xml,
            "  <testcase classname=\"conform\" name=\"{}\" time=\"{seconds:.3}\"",
            outcome.case.name
        )
        .expect("writing to a String must succeed");
        let inside = match &outcome.result {
            Ok(found) if found.is_empty() => {
                xml.push_str("/>\n");
                continue;
            }
            Ok(found) => {
                let names: Vec<_> = found
                    .iter()
                    .map(|violation| violation.clause.rule().name)
                    .collect();
                let text: Vec<_> = found.iter().map(Violation::to_string).collect();
                format!(
                    "<failure message=\"{}\">{}</failure>",
                    names.join(", "),
                    escaped(&text.join("\n"))
                )
            }
            Err(error) => format!(
                "<error message=\"the case could not be run\">{}</error>",
                escaped(&format!("{error:#}"))
            ),
        };
        writeln!(xml, ">{inside}</testcase>").expect("writing to a String must succeed");
    }
    xml + "</testsuite>\n"
}

/// XML text without control characters, which XML 1.0 cannot express.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(character),
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}
