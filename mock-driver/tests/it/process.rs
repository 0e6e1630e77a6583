//! Start, stop and usage errors of the program.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::program::{Program, command, output};
use crate::server::{line_in, lines, mk_publish};

#[tokio::test]
async fn sigterm_finishes_running_calls_removes_the_socket_and_exits_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("csi.sock");
        let journal = directory.path().join("journal");
        let journal_flag = format!("--journal={}", journal.display());
        let flags = ["--volumes=1", "--latency=300ms", &journal_flag];
        let mut program = Program::start(&socket, flags).await;
        let mut client = program.controller().await;
        let (attached, status) = tokio::join!(
            client.controller_publish_volume(mk_publish("vol-0", "node-0")),
            async {
                line_in(&journal, |line| line["event"] == "begin").await;
                program.signal(signal);
                program.ended().await
            }
        );
        attached.expect("the running call completes");
        assert_eq!(status.code(), Some(0), "{signal:?}");
        assert!(!socket.exists(), "{signal:?}");
        assert_eq!(lines(&journal).last().unwrap()["code"], "OK", "{signal:?}");
    }
}

#[tokio::test]
async fn second_signal_aborts_running_calls() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, journal) = (
        directory.path().join("csi.sock"),
        directory.path().join("journal"),
    );
    let journal_flag = format!("--journal={}", journal.display());
    let mut program = Program::start(&socket, ["--volumes=1", "--latency=1h", &journal_flag]).await;
    let mut client = program.controller().await;
    let (attached, status) = tokio::join!(
        client.controller_publish_volume(mk_publish("vol-0", "node-0")),
        async {
            line_in(&journal, |line| line["event"] == "begin").await;
            program.signal(Signal::TERM);
            // The socket is removed once the first signal is handled.
            while socket.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            program.signal(Signal::TERM);
            program.ended().await
        }
    );
    attached.unwrap_err();
    assert_eq!(status.code(), Some(1));
}

#[tokio::test]
async fn killed_driver_leaves_a_socket_that_its_successor_replaces() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    let mut program = Program::start(&socket, ["--volumes=1"]).await;
    program.signal(Signal::KILL);
    program.ended().await;
    assert!(socket.exists());
    let program = Program::start(&socket, ["--volumes=1"]).await;
    program
        .controller()
        .await
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap();
}

#[tokio::test]
async fn errors_name_the_flag_and_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let path = |file: &str| directory.path().join(file);
    let flag = |name: &str, file: &str| format!("--{name}={}", path(file).display());
    fs::write(
        path("faults.yaml"),
        "- {id: x, match: {method: '*'}, action: {code: NOPE}}",
    )
    .unwrap();
    let _living = UnixListener::bind(path("living.sock")).unwrap();
    let holder = Program::start(&path("holder.sock"), [flag("state-dir", "held")]).await;

    // (case, socket, flags, words of the message)
    let table: Vec<(&str, &str, Vec<String>, Vec<&str>)> = vec![
        (
            "socket in use",
            "living.sock",
            vec![],
            vec!["--endpoint", "living.sock", "another"],
        ),
        (
            "no directory",
            "none/csi.sock",
            vec![],
            vec!["--endpoint", "none", "does not exist"],
        ),
        (
            "no faults file",
            "csi.sock",
            vec![flag("faults", "none")],
            vec!["--faults", "none", "cannot read"],
        ),
        (
            "wrong faults",
            "csi.sock",
            vec![flag("faults", "faults.yaml")],
            vec!["--faults", "rule 1 (\"x\")", "action.code", "NOPE"],
        ),
        (
            "journal",
            "csi.sock",
            vec![flag("journal", "none/journal")],
            vec!["--journal", "none"],
        ),
        (
            "held state",
            "csi.sock",
            vec![flag("state-dir", "held")],
            vec!["--state-dir", "held", "in use"],
        ),
        (
            "state is a file",
            "csi.sock",
            vec![flag("state-dir", "faults.yaml")],
            vec!["--state-dir"],
        ),
    ];
    for (case, socket, flags, words) in table {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let output = output(&path(socket), &flags);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{case}: {text}");
        for word in words {
            assert!(text.contains(word), "{case}: {word:?} is not in {text}");
        }
    }
    drop(holder);
}

#[test]
fn version_help_and_unknown_flags_exit_like_go_programs() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    for flag in ["--version", "-version", "-V"] {
        let output = output(&socket, &[flag]);
        assert_eq!(output.status.code(), Some(0), "{flag}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(
            text.trim(),
            format!("csi-mock-driver {}", env!("CARGO_PKG_VERSION")),
            "{flag}"
        );
    }
    for flag in ["--help", "-h"] {
        let output = output(&socket, &[flag]);
        assert_eq!(output.status.code(), Some(0), "{flag}");
        assert!(
            String::from_utf8(output.stdout)
                .unwrap()
                .contains("--attach-limit"),
            "{flag}"
        );
    }
    assert_eq!(output(&socket, &["--nonsense"]).status.code(), Some(2));
}

#[test]
fn help_needs_no_other_flag_and_is_on_stdout() {
    for (words, begin) in [
        (&["--scenario=help"][..], "array-busy "),
        (&["-scenario", "attach-full,help"], "array-busy "),
        (&["replay", "--help"], "usage: csi-mock-driver replay"),
        (&["--help"], "A CSI driver"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_csi-mock-driver"));
        let output = command.args(words).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        assert!(
            text.starts_with(begin) && output.stderr.is_empty(),
            "{words:?}: {text}"
        );
        if words == ["--help"] {
            for subcommand in ["ctl", "replay", "clean"] {
                assert!(text.contains(&format!("csi-mock-driver {subcommand}")), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn each_call_is_one_line_of_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, log) = (directory.path().join("csi.sock"), directory.path().join("log"));
    for (verbosity, is_logged, has_messages) in [
        ("--v=1", false, false),
        ("--v=2", true, false),
        ("--v=6", true, true),
    ] {
        let mut command = command(&socket);
        command.args(["--volumes=1", "--scenario=attach-full", verbosity]);
        let mut program = Program::run_with_log(command, &socket, &log).await;
        let mut client = program.controller().await;
        client
            .controller_publish_volume(mk_publish("vol-0", "node-0"))
            .await
            .unwrap_err();
        program.signal(Signal::TERM);
        program.ended().await;
        let text = fs::read_to_string(&log).unwrap();
        let line = text
            .lines()
            .find(|line| line.contains("method=ControllerPublishVolume"));
        assert_eq!(line.is_some(), is_logged, "{verbosity}: {text}");
        for word in [
            "volume=\"vol-0\"",
            "node=\"node-0\"",
            "code=RESOURCE_EXHAUSTED",
            "duration=",
            "rule=\"attach-full",
        ] {
            assert!(line.is_none_or(|line| line.contains(word)), "{word}: {text}");
        }
        assert_eq!(
            text.contains("\"node_id\":\"node-0\""),
            has_messages,
            "{verbosity}: {text}"
        );
        assert!(!text.contains("Some("), "{text}");
    }
}

#[tokio::test]
async fn calls_pass_while_the_log_is_stalled() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = command(&socket);
    command.args(["--volumes=1", "--log-grpc-calls"]);
    let program = Program::run_with_stderr(command, &socket, writer.into()).await;
    let calls = async {
        let mut client = program.controller().await;
        for _ in 0..150 {
            client
                .controller_publish_volume(mk_publish("vol-0", "node-0"))
                .await
                .unwrap();
        }
    };
    tokio::time::timeout(crate::server::DEADLINE, calls)
        .await
        .expect("a reader of the log that stalls must not block calls");
    drop(reader);
}

/// Like `--help | head -1`.
#[test]
fn help_with_a_closed_stdout_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    for words in [&["--help"][..], &["--scenario=help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = command(&directory.path().join("csi.sock"));
        let output = command.args(words).stdout(writer).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.as_str()), (Some(0), ""), "{words:?}");
    }
}
