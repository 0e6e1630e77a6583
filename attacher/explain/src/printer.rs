//! Prints a report as text or as JSON.

use std::fmt::Write;

use jiff::Timestamp;

use crate::report::{Actor, Finding, PathReport, Report};
use crate::time::{age, ago, rfc3339};

/// Width at which prose is wrapped; commands never are, so that they can be copied.
const WIDTH: usize = 100;

/// The report for a terminal.
pub(crate) fn text(report: &Report, now: Timestamp) -> String {
    let mut out = String::new();
    line(&mut out, &format!("{}: {}", report.subject, report.state.label()));
    for path in &report.paths {
        out.push('\n');
        if report.is_summary {
            summarize(&mut out, path, now);
        } else {
            describe(&mut out, path, now);
        }
    }
    if !report.notes.is_empty() || !report.gaps.is_empty() {
        out.push('\n');
    }
    for note in report.notes.iter().chain(&report.gaps) {
        wrapped(&mut out, "note: ", "      ", note);
    }
    out
}

/// The report as a JSON object.
pub(crate) fn json(report: &Report) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    Ok(text)
}

/// Without steps and advice: the explanation of the named object has them.
fn summarize(out: &mut String, path: &PathReport, now: Timestamp) {
    let state = path.finding.state.label();
    wrapped(out, "", "    ", &format!("{state}: {}", path.title));
    let brief = Finding {
        why: path.finding.why.iter().take(1).cloned().collect(),
        advice: Vec::new(),
        ..path.finding.clone()
    };
    advise(out, &brief, now);
    if let Some(arguments) = path.names.arguments() {
        line(out, &format!("         $ kubectl csi-attach explain {arguments}"));
    }
}

fn describe(out: &mut String, path: &PathReport, now: Timestamp) {
    wrapped(out, "", "    ", &path.title);
    let here = path.steps.iter().position(|step| !step.done);
    for (index, step) in path.steps.iter().enumerate() {
        let mark = match (step.done, here == Some(index)) {
            (true, _) => "[x]",
            (false, true) => "[>]",
            (false, false) => "[ ]",
        };
        let since = step
            .since
            .map(|time| format!(", {}", since(time, now)))
            .unwrap_or_default();
        line(out, &format!("  {mark} {}{since}", step.text));
    }
    advise(out, &path.finding, now);
}

fn advise(out: &mut String, finding: &Finding, now: Timestamp) {
    wrapped(out, "  => ", "     ", &finding.summary);
    if finding.actor != Actor::Nothing {
        let since = finding
            .since
            .map(|time| format!(", due since {}", since(time, now)));
        let since = since.unwrap_or_default();
        wrapped(out, "  next:  ", "         ", &format!("{}{since}", finding.who));
    }
    for why in &finding.why {
        wrapped(out, "  why:   ", "         ", why);
    }
    for advice in &finding.advice {
        if !advice.text.is_empty() {
            wrapped(out, "  do:    ", "         ", &advice.text);
        }
        if let Some(command) = &advice.command {
            line(out, &format!("           $ {command}"));
        }
        if let Some(danger) = advice.danger {
            wrapped(out, "         DANGER: ", "         ", danger);
        }
    }
}

fn since(time: Timestamp, now: Timestamp) -> String {
    format!("{} ({})", rfc3339(time), ago(age(time, now)))
}

fn line(out: &mut String, text: &str) {
    writeln!(out, "{}", without_control_characters(text).trim_end()).expect("a string must take more text");
}

/// Prose, broken at spaces.
fn wrapped(out: &mut String, first: &str, next: &str, text: &str) {
    let text = without_control_characters(text);
    let mut current = first.to_owned();
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && current.chars().count() + 1 + word.chars().count() > WIDTH {
            line(out, &current);
            next.clone_into(&mut current);
            empty = true;
        }
        if !empty {
            current.push(' ');
        }
        current.push_str(word);
        empty = false;
    }
    line(out, &current);
}

/// Drivers' messages and names may hold terminal control sequences.
fn without_control_characters(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_control() && c != '\n' {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Cause, Names, State, Step};

    #[test]
    fn prints_steps_and_finding_without_control_characters() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let finding = Finding::stuck(Cause::DetachFails, Actor::Driver, "The detach fails.")
            .of("d.example")
            .since(Some(at("2026-01-01T00:00:00Z")))
            .because("bad \u{1b}[31mthing")
            .advise_to_run("Look.", "kubectl get va")
            .danger("It may be lost.");
        let steps = ["created", "recorded", "attached"];
        let report = Report {
            subject: "volumeattachment/va".to_owned(),
            state: State::Stuck,
            paths: vec![PathReport {
                title: "volume, from node n".to_owned(),
                names: Names::default(),
                steps: steps
                    .into_iter()
                    .enumerate()
                    .map(|(index, text)| Step {
                        done: index == 0,
                        text: text.to_owned(),
                        since: (index == 0).then(|| at("2026-01-01T00:00:10Z")),
                    })
                    .collect(),
                finding,
            }],
            is_summary: false,
            notes: Vec::new(),
            gaps: vec!["cannot read leases: forbidden".to_owned()],
        };
        let text = text(&report, at("2026-01-01T00:01:10Z"));
        assert_eq!(
            text,
            "\
volumeattachment/va: STUCK

volume, from node n
  [x] created, 2026-01-01T00:00:10Z (1 min 0 s ago)
  [>] recorded
  [ ] attached
  => The detach fails.
  next:  the CSI driver d.example, due since 2026-01-01T00:00:00Z (1 min 10 s ago)
  why:   bad \u{fffd}[31mthing
  do:    Look.
           $ kubectl get va
         DANGER: It may be lost.

note: cannot read leases: forbidden
"
        );
    }
}
