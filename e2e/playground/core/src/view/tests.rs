use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::*;
use crate::narrate::TimelineRow;
use crate::snapshot::{ArrayRow, AttachmentRow, LaneRow, NodeRow, PodRow, WorldRow};

fn mk_strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// A cluster in which volume `data` is stuck on the lost node b.
fn mk_snapshot() -> Snapshot {
    let pod = |name: &str, node: &str, phase: &str, volume: &str| PodRow {
        name: name.to_owned(),
        node: node.to_owned(),
        phase: phase.to_owned(),
        volumes: mk_strings(&[volume]),
        ..PodRow::default()
    };
    let line = |at: f64, actor: &str, volumes: &[&str], text: &str| TimelineRow {
        at,
        actor: actor.to_owned(),
        volumes: mk_strings(volumes),
        text: text.to_owned(),
    };
    Snapshot {
        elapsed: 12.3,
        kubeconfig: "/run/admin.kubeconfig".to_owned(),
        explain_command: "kubectl csi-attach explain pod/db-2 -n playground".to_owned(),
        names: "node a is playground-a".to_owned(),
        broken: mk_strings(&["node b lost"]),
        volumes: mk_strings(&["cache", "data"]),
        pods: vec![
            pod("db-1", "b", "Terminating", "data"),
            pod("db-2", "", "Pending", "data"),
            pod("web-1", "a", "Running", "cache"),
        ],
        nodes: vec![
            NodeRow {
                name: "a".to_owned(),
                ready: true,
                in_use: mk_strings(&["cache"]),
                attached: mk_strings(&["cache"]),
                ..NodeRow::default()
            },
            NodeRow {
                name: "b".to_owned(),
                in_use: mk_strings(&["data"]),
                ..NodeRow::default()
            },
        ],
        attachments: vec![AttachmentRow {
            name: "csi-1".to_owned(),
            volume: "data".to_owned(),
            node: "b".to_owned(),
            attached: true,
            deleting: true,
            error: "the port is locked".to_owned(),
        }],
        worlds: Some(vec![WorldRow {
            volume: "data".to_owned(),
            node: "b".to_owned(),
            desired_by: mk_strings(&["db-1"]),
            actual: Some("attached"),
            in_use: true,
            pending: false,
        }]),
        lanes: Some(vec![LaneRow {
            lane: "detach".to_owned(),
            limit: 10,
            running: 1,
            ready: 2,
            waiting: 3,
        }]),
        array: Some(vec![ArrayRow {
            node: "b".to_owned(),
            volumes: mk_strings(&["data"]),
        }]),
        timeline: vec![
            line(
                1.5,
                "attach/detach controller",
                &["data"],
                "deletes VolumeAttachment csi-1",
            ),
            line(2.5, "driver", &["cache"], "responds OK after 300 ms"),
            line(3.5, "you", &[], "stop node b"),
        ],
        ..Snapshot::default()
    }
}

fn mk_choice(volume: usize) -> Choice {
    Choice {
        volume,
        can_break: true,
        page: "http://127.0.0.1:1/".to_owned(),
        ..Choice::default()
    }
}

fn drawn(width: u16, height: u16, snapshot: &Snapshot, choice: &Choice) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, snapshot, choice)).unwrap();
    terminal
}

fn text_of(terminal: &Terminal<TestBackend>) -> String {
    let buffer = terminal.backend().buffer();
    let row = |y: u16| {
        (0..buffer.area.width)
            .map(|x| buffer[(x, y)].symbol())
            .collect::<String>()
    };
    (0..buffer.area.height)
        .map(|y| row(y).trim_end().to_owned() + "\n")
        .collect()
}

/// Checks that the words of each line occur in one line of the screen, in this order.
#[track_caller]
fn assert_shows(screen: &str, lines: &[&[&str]]) {
    for words in lines {
        let shown = screen.lines().any(|line| {
            let mut rest = line;
            words.iter().all(|word| match rest.split_once(word) {
                Some((_, after)) => {
                    rest = after;
                    true
                }
                None => false,
            })
        });
        assert!(shown, "no line has {words:?}:\n{screen}");
    }
}

#[test]
fn every_panel_has_its_content_at_both_sizes() {
    for (width, height) in [(80, 24), (160, 50)] {
        let screen = text_of(&drawn(width, height, &mk_snapshot(), &mk_choice(1)));
        assert_shows(
            &screen,
            &[
                &["playground", "12 s", "node b lost", "http://127.0.0.1:1/"],
                &["Pods", "Nodes"],
                &["db-1", "b", "Terminating", "data"],
                &["db-2", "-", "Pending", "data"],
                &["web-1", "a", "Running", "cache"],
                &["a", "Ready", "cache", "cache"],
                &["b", "NotReady", "data", "-"],
                &["VolumeAttachments", "State of world: desired | actual"],
                &[
                    "data",
                    "b",
                    "detaching: the",
                    "data",
                    "b",
                    "db-1",
                    "attached, in use",
                ],
                &["Attacher: lanes", "Array: published volumes"],
                &["detach", "1/10", "2", "3", "b", "data"],
                &["Timeline of", "cache", "data"],
                &["1.50", "attach/detach", "deletes VolumeAttachment csi-1"],
                &["3.50", "you", "stop node b"],
                &[
                    "s slow",
                    "f fail",
                    "n recover",
                    "o taint",
                    "k kill",
                    "a API",
                    "c controllers",
                    "e explain",
                    "?",
                ],
            ],
        );
        assert!(
            !screen.contains("responds OK"),
            "a line about another volume:\n{screen}"
        );
    }
}

#[test]
fn state_of_world_has_all_columns_at_each_width() {
    for (width, actual) in [
        (60, "uncertain"),
        (80, "uncertain, in use"),
        (160, "uncertain, in use"),
    ] {
        let mut snapshot = mk_snapshot();
        let world = &mut snapshot.worlds.as_mut().unwrap()[0];
        (world.actual, world.pending) = (Some("uncertain"), true);
        let screen = text_of(&drawn(width, 24, &snapshot, &mk_choice(1)));
        assert_shows(&screen, &[&["data", "b", "data", "b", "db-1", actual, "..."]]);
    }
}

#[test]
fn narrow_view_keeps_help_and_quit_keys() {
    let mut snapshot = mk_snapshot();
    let screen = text_of(&drawn(60, 24, &snapshot, &mk_choice(1)));
    assert_shows(&screen, &[&["s slow", "a API  ? q"]]);
    snapshot.notice = "pod db-1 does not run yet ".repeat(8);
    let screen = text_of(&drawn(60, 24, &snapshot, &mk_choice(1)));
    assert_shows(&screen, &[&["pod db-1 does not run yet"], &["s slow", "? q"]]);
}

#[test]
fn narrow_help_has_the_whole_kubeconfig_path() {
    let mut snapshot = mk_snapshot();
    snapshot.kubeconfig = format!("/tmp/{}/admin.kubeconfig", "x".repeat(60));
    let choice = Choice {
        overlay: Some(Overlay::Help),
        ..mk_choice(0)
    };
    let screen = text_of(&drawn(60, 24, &snapshot, &choice));
    let whole: String = screen.chars().filter(|c| !"│ \n".contains(*c)).collect();
    assert!(whole.contains(&snapshot.kubeconfig), "{screen}");
    assert_shows(&screen, &[&["key removes it."]]);
}

#[test]
fn timeline_follows_the_chosen_volume() {
    let screen = text_of(&drawn(80, 24, &mk_snapshot(), &mk_choice(0)));
    assert_shows(
        &screen,
        &[&["2.50", "driver", "responds OK after 300 ms"], &["stop node b"]],
    );
    assert!(!screen.contains("deletes VolumeAttachment"), "{screen}");
}

/// A line of the driver each second.
fn mk_timeline(texts: impl IntoIterator<Item = String>) -> Vec<TimelineRow> {
    let rows = (0u32..).zip(texts).map(|(at, text)| TimelineRow {
        at: f64::from(at),
        actor: "driver".to_owned(),
        volumes: Vec::new(),
        text,
    });
    rows.collect()
}

#[test]
fn repeated_lines_of_the_timeline_are_counted() {
    let mut snapshot = mk_snapshot();
    let texts = [
        "created", "call", "refused", "call", "refused", "call", "refused", "call", "done", "done",
    ];
    snapshot.timeline = mk_timeline(texts.map(str::to_owned));
    let screen = text_of(&drawn(80, 50, &snapshot, &mk_choice(0)));
    assert_shows(
        &screen,
        &[
            &["0.00", "created"],
            &["5.00", "call (3 times)"],
            &["6.00", "refused (3 times)"],
            &["7.00", "call"],
            &["9.00", "done (2 times)"],
        ],
    );
    assert_eq!(screen.matches("refused").count(), 1, "{screen}");
}

#[test]
fn repetitions_may_take_different_times() {
    let mut snapshot = mk_snapshot();
    let texts = [
        "calls ControllerPublishVolume: attach data to b",
        "responds INTERNAL after 3 ms: locked for 5 s",
        "calls ControllerPublishVolume: attach data to b",
        "responds INTERNAL after 12 ms: locked for 5 s",
        "calls ControllerPublishVolume: attach data to b",
        "responds INTERNAL after 7 ms: locked for 4 s",
    ];
    snapshot.timeline = mk_timeline(texts.map(str::to_owned));
    let screen = text_of(&drawn(160, 50, &snapshot, &mk_choice(0)));
    assert_shows(
        &screen,
        &[
            &["2.00", "attach data to b (2 times)"],
            &["3.00", "responds INTERNAL after 12 ms: locked for 5 s (2 times)"],
            &["5.00", "responds INTERNAL after 7 ms: locked for 4 s"],
        ],
    );
    assert!(!screen.contains("after 3 ms"), "{screen}");
}

#[test]
fn keys_open_and_close_overlays() {
    let mut choice = mk_choice(0);
    for (command, expected) in [
        (Command::Close, None),
        (Command::Help, Some(Overlay::Help)),
        (Command::Explain, Some(Overlay::Explanation)),
        (Command::Close, None),
        (Command::Explain, Some(Overlay::Explanation)),
        (Command::Explain, None),
    ] {
        choice.apply(command, 2);
        assert_eq!(choice.overlay, expected, "{command:?}");
    }
}

#[test]
fn explanation_is_scrolled_to_its_last_line() {
    let mut choice = mk_choice(0);
    choice.explanation = "all volumes: STUCK\n\nSTUCK: volume data\n  next:  the CSI driver\n".to_owned();
    choice.apply(Command::Explain, 2);
    let screen = text_of(&drawn(80, 24, &mk_snapshot(), &choice));
    assert_shows(
        &screen,
        &[
            &["playground", "node b lost"],
            &["kubectl csi-attach explain -A"],
            &["STUCK: volume data"],
            &["next:  the CSI driver"],
            &["export KUBECONFIG=/run/admin.kubeconfig"],
            &["kubectl csi-attach explain pod/db-2 -n playground"],
            &["node a is playground-a"],
            &["s slow", "e explain", "? q"],
        ],
    );
    for _ in 0..9 {
        choice.apply(Command::NextVolume, 2);
    }
    assert_eq!((choice.volume, choice.scrolled), (0, 3));
    let screen = text_of(&drawn(80, 24, &mk_snapshot(), &choice));
    assert!(!screen.contains("STUCK"), "{screen}");
    assert_shows(&screen, &[&["next:  the CSI driver"]]);
    choice.apply(Command::PreviousVolume, 2);
    assert_eq!(choice.scrolled, 2);
}

#[test]
fn replicas_are_not_said_to_be_silent() {
    let mut snapshot = mk_snapshot();
    (snapshot.lanes, snapshot.has_replicas) = (None, true);
    let screen = text_of(&drawn(160, 50, &snapshot, &mk_choice(0)));
    assert_shows(&screen, &[&["not shown with several attachers"]]);
    assert!(!screen.contains("does not respond"), "{screen}");
}

#[test]
fn detach_waits_for_a_component_that_does_not_respond() {
    let mut snapshot = mk_snapshot();
    snapshot.attachments[0].error.clear();
    snapshot.array = None;
    let screen = text_of(&drawn(160, 50, &snapshot, &mk_choice(0)));
    assert_shows(&screen, &[&["detaching: waits for the driver"]]);
    snapshot.lanes = None;
    let screen = text_of(&drawn(160, 50, &snapshot, &mk_choice(0)));
    assert_shows(&screen, &[&["detaching: waits for the attacher"]]);
}

#[test]
fn attachment_waits_for_the_attacher_or_its_lost_node() {
    let mut snapshot = mk_snapshot();
    snapshot.attachments[0].error.clear();
    snapshot.lanes.as_mut().unwrap()[0].running = 0;
    snapshot.lanes.as_mut().unwrap()[0].ready = 0;
    let screen = text_of(&drawn(160, 50, &snapshot, &mk_choice(0)));
    assert_shows(&screen, &[&["detaching: in backoff at the attacher"]]);
    snapshot.attachments[0].deleting = false;
    let screen = text_of(&drawn(160, 50, &snapshot, &mk_choice(0)));
    assert_shows(&screen, &[&["attached: node b is lost: waits for its"]]);
}

#[test]
fn reason_of_a_pod_is_whole_if_there_is_room() {
    let mut snapshot = mk_snapshot();
    let reason = "Multi-Attach error for volume \"playground-data\" Volume is already used by pod(s) db-1";
    snapshot.pods[1].reason = reason.to_owned();
    let screen = text_of(&drawn(132, 44, &snapshot, &mk_choice(0)));
    let column: Vec<_> = screen
        .lines()
        .map(|line| line.chars().skip(28).take(37).collect::<String>())
        .collect();
    let words = column.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("data: {reason}")), "{screen}");
    assert_shows(&screen, &[&["web-1", "a", "Running", "cache"]]);
    // Without room each pod keeps its line.
    let screen = text_of(&drawn(80, 24, &snapshot, &mk_choice(0)));
    assert_shows(
        &screen,
        &[
            &["db-1", "Terminating"],
            &["db-2", "data:"],
            &["web-1", "Running"],
        ],
    );
}

#[test]
fn pause_is_shown() {
    let mut snapshot = mk_snapshot();
    snapshot.is_paused = true;
    let screen = text_of(&drawn(160, 50, &snapshot, &mk_choice(0)));
    assert_shows(&screen, &[&["paused: space steps, Enter goes on"]]);
}

#[test]
fn newest_lines_of_a_long_timeline_are_shown() {
    let mut snapshot = mk_snapshot();
    let texts = (0..100).map(|index| format!("does step {index} {}", "slowly ".repeat(12)));
    snapshot.timeline = mk_timeline(texts);
    let screen = text_of(&drawn(80, 24, &snapshot, &mk_choice(0)));
    assert_shows(&screen, &[&["99.00", "driver", "does step 99"]]);
    assert!(!screen.contains("does step 50 "), "{screen}");
    // Wrapped, not truncated.
    assert_eq!(screen.matches("slowly").count() % 6, 0, "{screen}");
}

#[test]
fn rows_that_do_not_fit_are_counted() {
    let mut snapshot = mk_snapshot();
    let row = snapshot.attachments[0].clone();
    snapshot.attachments = vec![row; 20];
    let screen = text_of(&drawn(80, 24, &snapshot, &mk_choice(0)));
    assert_shows(&screen, &[&["VolumeAttachments (+16)"]]);
}

#[test]
fn parties_that_do_not_answer_are_named() {
    let snapshot = Snapshot {
        worlds: None,
        lanes: None,
        array: None,
        ..mk_snapshot()
    };
    let screen = text_of(&drawn(80, 24, &snapshot, &mk_choice(0)));
    assert_shows(
        &screen,
        &[
            &["only on the embedded cluster"],
            &["the attacher does not respond", "the driver does not respond"],
        ],
    );
}

#[test]
fn chapter_of_a_story_is_shown_whole() {
    let mut snapshot = mk_snapshot();
    snapshot.chapter =
        "2. Node a is lost. Its kubelet can no longer report that data is unmounted, so the attach/detach \
                        controller must assume that node a still writes to it."
            .to_owned();
    let choice = Choice::default();
    let screen = text_of(&drawn(80, 24, &snapshot, &choice));
    assert_shows(
        &screen,
        &[&["2. Node a is lost."], &["still writes to it."], &["? help"]],
    );
    assert!(!screen.contains("k kill"), "{screen}");
    assert_shows(&screen, &[&["web-1"], &["stop node b"]]);
}

#[test]
fn help_lists_every_key_at_both_sizes() {
    for (width, height) in [(80, 24), (160, 50)] {
        let choice = Choice {
            overlay: Some(Overlay::Help),
            ..mk_choice(0)
        };
        let screen = text_of(&drawn(width, height, &mk_snapshot(), &choice));
        for binding in BINDINGS {
            let is_active = binding.command.action() == Some(Action::LoseNode);
            let help = if is_active { "recover node b" } else { binding.help };
            assert_shows(&screen, &[&[&binding.key.to_string(), help]]);
        }
        assert_shows(&screen, &[&["/run/admin.kubeconfig"]]);
    }
}

#[test]
fn only_colours_that_suit_every_background_are_used() {
    let terminal = drawn(160, 50, &mk_snapshot(), &mk_choice(1));
    for cell in terminal.backend().buffer().content() {
        assert_eq!(cell.bg, Color::Reset);
        let readable = [
            Color::Reset,
            Color::Red,
            Color::Green,
            Color::Magenta,
            Color::Cyan,
        ];
        assert!(readable.contains(&cell.fg), "{:?}", cell.fg);
    }
}

#[test]
fn tiny_terminals_do_not_panic() {
    for (width, height) in [(1, 1), (10, 3), (40, 10)] {
        drawn(width, height, &mk_snapshot(), &mk_choice(1));
    }
}

#[test]
fn choice_of_a_volume_wraps_around() {
    let mut choice = mk_choice(1);
    choice.apply(Command::NextVolume, 2);
    assert_eq!(choice.volume, 0);
    choice.apply(Command::PreviousVolume, 2);
    assert_eq!(choice.volume, 1);
    choice.apply(Command::NextVolume, 0);
    assert_eq!(choice.volume, 0);
}
