//! A report as text for people, or as JSON for programs.

use std::fmt::Write;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::report::{Actor, Finding, Path, Report};
use crate::report;

/// Width at which prose is wrapped; commands never are, so that they can be copied.
const WIDTH: usize = 100;

/// The report as people read it.
pub(super) fn text(report: &Report, now: Timestamp) -> String {
    let mut out = String::new();
    line(&mut out, &format!("{}: {}", report.subject, report.state.words()));
    for path in &report.paths {
        out.push('\n');
        describe(&mut out, path, now);
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
pub(super) fn json(report: &Report) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    Ok(text)
}

/// How long ago, in words: the two greatest units that count.
pub(super) fn ago(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0 => "just now".to_owned(),
        1..60 => format!("{seconds} s ago"),
        60..3600 => format!("{minutes} min {} s ago", seconds % 60),
        3600..86_400 => format!("{hours} h {} min ago", minutes % 60),
        86_400.. => format!("{days} d {} h ago", hours % 24),
    }
}

fn describe(out: &mut String, path: &Path, now: Timestamp) {
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
    if finding.actor != Actor::Nobody {
        let since = finding
            .since
            .map(|time| format!(", waited for since {}", since(time, now)));
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
    let age: SignedDuration = now.duration_since(time);
    let age = Duration::try_from(age).unwrap_or_default();
    format!("{} ({})", report::time(time), ago(age))
}

fn line(out: &mut String, text: &str) {
    writeln!(out, "{}", harmless(text).trim_end()).expect("a string must take more text");
}

/// Prose, broken at spaces.
fn wrapped(out: &mut String, first: &str, next: &str, text: &str) {
    let text = harmless(text);
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

/// Drivers' messages and names may hold anything, terminal control sequences too.
fn harmless(text: &str) -> String {
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
    use crate::explain::report::{Cause, Names, State, Step};

    #[test]
    fn ages_are_told_in_two_units() {
        for (seconds, text) in [
            (0, "just now"),
            (59, "59 s ago"),
            (61, "1 min 1 s ago"),
            (7_322, "2 h 2 min ago"),
            (200_000, "2 d 7 h ago"),
        ] {
            assert_eq!(ago(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_report_reads_well_and_cannot_steer_a_terminal() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let finding = Finding::new(
            Cause::DetachFails,
            State::Stuck,
            Actor::Driver,
            "The detach fails.",
        )
        .of("d.example")
        .since(Some(at("2026-01-01T00:00:00Z")))
        .because("bad \u{1b}[31mthing")
        .advise_to_run("Look.", "kubectl get va")
        .danger("It may be lost.");
        let steps = ["made", "taken up", "attached"];
        let report = Report {
            subject: "volumeattachment/va".to_owned(),
            state: State::Stuck,
            paths: vec![Path {
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
            notes: Vec::new(),
            gaps: vec!["cannot look at leases: forbidden".to_owned()],
        };
        let text = text(&report, at("2026-01-01T00:01:10Z"));
        assert_eq!(
            text,
            "\
volumeattachment/va: STUCK

volume, from node n
  [x] made, 2026-01-01T00:00:10Z (1 min 0 s ago)
  [>] taken up
  [ ] attached
  => The detach fails.
  next:  the CSI driver d.example, waited for since 2026-01-01T00:00:00Z (1 min 10 s ago)
  why:   bad \u{fffd}[31mthing
  do:    Look.
           $ kubectl get va
         DANGER: It may be lost.

note: cannot look at leases: forbidden
"
        );
    }
}
