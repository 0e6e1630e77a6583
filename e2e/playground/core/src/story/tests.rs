//! What can be read, and what errors say.

use super::command::COMMANDS;
use super::*;

fn error(text: &str) -> String {
    Story::parse("test", text).unwrap_err().to_string()
}

#[test]
fn every_story_can_be_read() {
    for (name, text) in FILES.iter().chain([&TOUR]) {
        let story = Story::parse(name, text).unwrap_or_else(|error| panic!("{name}:{error}"));
        assert!(text.starts_with(&format!("# {}\n", story.about)), "{name}");
        assert!(
            story.steps.iter().any(|step| matches!(step, Step::Prose(_))),
            "{name}"
        );
    }
}

#[test]
fn action_is_narrated_to_the_volumes_that_it_names() {
    let text = "  set nodes 2
  volume logs, cache
  pod db on a with data, logs
  pods web 2 on a, b
  driver: ControllerPublishVolume fails with INTERNAL for data
  driver: ListVolumes hangs
  array unpublishes data from a
  delete pod web-1
  delete pods web
  delete pod db by force
  delete pod other
  lose node a";
    let expected: [&[&str]; 12] = [
        &[],
        &["logs", "cache"],
        &["data", "logs"],
        &["web-0", "web-1"],
        &["data"],
        &[],
        &["data"],
        &["web-1"],
        &["web-0", "web-1"],
        &["data", "logs"],
        &[],
        &[],
    ];
    let story = Story::parse("test", text).unwrap();
    let mut volumes = PodVolumes::default();
    assert_eq!(story.steps.len(), expected.len());
    for (step, expected) in story.steps.iter().zip(expected) {
        let Step::Command { command, text, .. } = step else {
            panic!("{step:?}")
        };
        assert_eq!(volumes.affected_by(command), expected, "{text}");
    }
}

#[test]
fn unknown_name_lists_every_story() {
    let list = open("no-such-story").unwrap_err();
    for name in names() {
        assert!(list.contains(name) && open(name).is_ok(), "{list}");
    }
    let missing = open("./no-such.story").unwrap_err();
    assert!(missing.starts_with("read ./no-such.story: "), "{missing}");
}

#[test]
fn paragraphs_and_commands_are_told_apart() {
    let story = Story::parse(
        "test",
        "# About.\n  set nodes 3\nOne\ntwo.\n\n  pod db on c\n\tpause 1s\nThree.",
    )
    .unwrap();
    let steps: Vec<_> = story
        .steps
        .iter()
        .map(|step| match step {
            Step::Prose(text) | Step::Command { text, .. } => text.as_str(),
        })
        .collect();
    assert_eq!(
        steps,
        ["set nodes 3", "One two.", "pod db on c", "pause 1s", "Three."]
    );
    assert_eq!((story.about.as_str(), story.config.nodes), ("About.", 3));
}

#[test]
fn errors_name_line_and_column_and_what_is_possible() {
    let all = error("  poud db on a");
    assert!(
        all.starts_with("1:3: there is no command `poud`. The commands are:\n"),
        "{all}"
    );
    for syntax in COMMANDS {
        assert!(syntax.forms.iter().all(|form| all.contains(form)), "{all}");
    }
    for (text, expected) in [
        ("\n  pod db on c", "2:13: expected a node: a to b (`set nodes`"),
        (
            "  pod db on a with",
            "1:19: expected the name of a volume: lowercase letters, digits and hyphens; the line ends here",
        ),
        ("  pod DB on a", "1:7: expected the name of a pod: lowercase"),
        ("  pod db on a data", "1:15: `data` is too much"),
        ("  wait db runs", "1:11: expected a state: running, event, "),
        (
            "  expect db running within soon",
            "1:28: expected a time: such as 30s",
        ),
        (
            "  driver: Publish hangs",
            "1:11: expected `works again` or a method: ControllerPublishVolume, ",
        ),
        (
            "  driver: Probe fails with FAILED",
            "1:28: expected a status code: CANCELLED, ",
        ),
        (
            "  driver: Probe fails with OK",
            "1:28: expected a status code: CANCELLED, ",
        ),
        (
            "  driver: Probe fails with INTERNAL \"no",
            "1:37: the quoted text has no end",
        ),
        (
            "  driver: Probe hangs 0 times",
            "1:23: expected a number: 1 to 10000; found `0`",
        ),
        ("  kill controllers", "1:8: expected a process: attacher, driver"),
        (
            "A pod.\n  set nodes 3",
            "2:7: `set` belongs before the first paragraph",
        ),
        ("  set nodes 9", "1:13: expected a number: 1 to 5"),
        ("  set latency 1h", "1:17: a latency of more than 10s"),
        ("One.\n# Two", "2:1: only the first line"),
    ] {
        let error = error(text);
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}

#[test]
fn every_form_of_every_command_can_be_read() {
    let values = [
        ("VOLUME", "data"),
        ("PODNAME", "db"),
        ("POD", "db"),
        ("NODE", "a"),
        ("NAME", "web"),
        ("METHOD", "ListVolumes"),
        ("CODE", "NOT_FOUND"),
        ("DURATION", "5s"),
        ("REASON", "Failed"),
        ("CONDITION", "db running"),
        ("TEXT", "text"),
        (", ...", ", c"),
    ];
    for form in COMMANDS.iter().flat_map(|syntax| syntax.forms) {
        let number = |word| match word {
            "N" => "2",
            "[N" => "[2",
            word => word,
        };
        let words: Vec<_> = form.split(' ').map(number).collect();
        let mut line = format!("  {} ", words.join(" "));
        for (place, value) in values {
            line = line.replace(place, value);
        }
        let with_all = line.replace(['[', ']'], "");
        let mut without = String::new();
        let mut depth = 0;
        for character in line.chars() {
            match character {
                '[' => depth += 1,
                ']' => depth -= 1,
                _ if depth == 0 => without.push(character),
                _ => {}
            }
        }
        for line in [with_all, without] {
            // Only `set` may stand first.
            let text = match form.starts_with("set ") {
                true => line.clone(),
                false => format!("  set nodes 3\n{line}"),
            };
            Story::parse("test", &text).unwrap_or_else(|error| panic!("{form}: `{line}`: {error}"));
        }
    }
}

fn documentation() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/stories.md");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn example_of_the_documentation_can_be_read() {
    let text = documentation();
    let (_, example) = text.split_once("\n```text\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let story = Story::parse("example", example).unwrap_or_else(|error| panic!("{error}"));
    let commands = story
        .steps
        .iter()
        .filter(|step| matches!(step, Step::Command { .. }));
    assert_eq!(
        (commands.count(), story.about.as_str()),
        (
            9,
            "The array refuses to detach a volume that a pod on another node needs."
        )
    );
}

#[test]
fn incidents_of_the_documentation_have_an_issue_and_a_story() {
    let text = documentation();
    let (_, incidents) = text.split_once("\n## Three incidents\n").unwrap();
    let incidents: Vec<_> = incidents.split("\n- [`").skip(1).collect();
    assert_eq!(incidents.len(), 3);
    for incident in incidents {
        let (name, text) = incident.split_once('`').unwrap();
        assert!(names().any(|known| known == name), "{name}");
        let numbers = text.split('#').skip(1);
        let mut numbers = numbers.filter(|after| after.starts_with(|c: char| c.is_ascii_digit()));
        assert!(numbers.next().is_some(), "{name} has no issue");
    }
}

#[test]
fn documentation_has_every_command() {
    let text = documentation();
    for syntax in COMMANDS {
        let forms: Vec<_> = syntax.forms.iter().map(|form| format!("`{form}`")).collect();
        let row = format!("| {} | {} |", forms.join("<br>"), syntax.about);
        assert!(text.contains(&row), "docs/stories.md needs the row\n{row}");
    }
}
