//! `csi-mock-driver ctl`, interactively and in scripts.

use std::process::{Command, Output, Stdio};

use csi_mock_driver::array::Severity;
use serde_json::Value;

use super::administered;
use crate::server::{Server, mk_publish};

/// Runs ctl as a process; the driver runs in this process.
async fn ctl(server: &Server, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_csi-mock-driver"));
    command
        .arg("ctl")
        .arg(format!(
            "--admin-endpoint=unix://{}",
            server.path("admin.sock").display()
        ))
        .args(words)
        .stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

async fn stdout_of(server: &Server, words: &[&str]) -> String {
    let output = ctl(server, words).await;
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{words:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

async fn failed(server: &Server, words: &[&str]) -> (i32, String) {
    let output = ctl(server, words).await;
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_a_table_or_json() {
    let (server, _client) = administered().await;
    let mut csi = server.controller().await;
    csi.controller_publish_volume(mk_publish("vol-1", "node-2"))
        .await
        .unwrap();
    let table = stdout_of(&server, &["volumes"]).await;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("VOLUME  NAME  SIZE   POOL"), "{table}");
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("vol-1") && line.contains("node-2")),
        "{table}"
    );
    let json: Value = serde_json::from_str(&stdout_of(&server, &["volumes", "-o", "json"]).await).unwrap();
    assert_eq!(json["matched"], 5);
    let nodes = stdout_of(&server, &["nodes"]).await;
    assert!(
        nodes
            .lines()
            .any(|line| line.starts_with("node-2") && line.ends_with("vol-1")),
        "{nodes}"
    );
    for words in [
        &["info"][..],
        &["snapshots"],
        &["group-snapshots"],
        &["pools"],
        &["storage"],
        &["attachments"],
        &["capabilities"],
        &["faults"],
        &["backend-faults"],
        &["scenarios"],
        &["journal"],
        &["calls"],
    ] {
        let table = stdout_of(&server, words).await;
        assert!(
            table
                .lines()
                .next()
                .is_some_and(|head| head.contains(char::is_uppercase)),
            "{words:?}: {table}"
        );
        let json = stdout_of(&server, &[words, &["-o", "json"]].concat()).await;
        serde_json::from_str::<Value>(&json).unwrap_or_else(|error| panic!("{words:?}: {error}: {json}"));
    }
    let limited = stdout_of(&server, &["volumes", "--limit=2"]).await;
    assert!(
        limited.ends_with("(2 of 5; --limit and --after show others)\n"),
        "{limited}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ctl_adds_and_removes_faults() {
    let (server, client) = administered().await;
    let line = stdout_of(&server, &["attach", "vol-0", "node-0"]).await;
    assert_eq!(line, "attached vol-0 to node-0\n");
    assert_eq!(client.node("node-0").await.unwrap().attached, 1);
    stdout_of(&server, &["detach", "vol-0", "node-0"]).await;
    assert_eq!(client.node("node-0").await.unwrap().attached, 0);
    stdout_of(&server, &["nodes", "deregister", "node-1"]).await;
    let table = stdout_of(&server, &["nodes", "get", "node-1"]).await;
    assert!(table.contains("deregistered"), "{table}");
    let line = stdout_of(&server, &["nodes", "register", "node-1"]).await;
    assert_eq!(line, "registered node node-1\n");
    let line = stdout_of(&server, &["storage", "set-health", "--node=node-1"]).await;
    assert_eq!(line, "set the storage health of node node-1\n");
    let json = stdout_of(&server, &["volumes", "create", "new", "-o", "json"]).await;
    let created: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(created["name"], "new");
    stdout_of(
        &server,
        &["nodes", "set-limit", "node-1", "2", "--advertised-limit=9"],
    )
    .await;
    let node = client.node("node-1").await.unwrap();
    assert_eq!(
        (node.registered, node.limit, node.advertised_limit),
        (true, Some(2), Some(9))
    );
    stdout_of(&server, &["volumes", "set-health", "vol-2"]).await;
    let health = client.volume("vol-2").await.unwrap().health;
    assert_eq!(health[0].status, Severity::Degraded);
    stdout_of(&server, &["volumes", "clear-health", "vol-2"]).await;
    assert!(client.volume("vol-2").await.unwrap().health.is_empty());
    stdout_of(&server, &["capabilities", "-LIST_VOLUMES", "+GET_VOLUME"]).await;
    let known = client.capabilities().await.unwrap();
    assert!(
        known
            .iter()
            .any(|known| known.name == "LIST_VOLUMES" && !known.enabled)
    );
    stdout_of(&server, &["scenarios", "start", "detach-slow"]).await;
    assert!(!client.faults().await.unwrap().rules.is_empty());
    stdout_of(&server, &["scenarios", "stop", "detach-slow"]).await;
    assert!(client.faults().await.unwrap().rules.is_empty());
    let file = server.path("rules.yaml");
    std::fs::write(
        &file,
        "- {id: a, match: {method: '*'}, action: {delay: 1ms}}\n- {id: b, match: {method: '*'}, action: {delay: 1ms}}\n",
    )
    .unwrap();
    let table = stdout_of(&server, &["faults", "add", file.to_str().unwrap()]).await;
    assert_eq!(table, "added a, b\n");
    stdout_of(&server, &["faults", "disable", "a"]).await;
    assert!(!client.faults().await.unwrap().rules[0].enabled);
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "two tables")]
async fn fault_file_is_loaded_atomically() {
    let (server, client) = administered().await;
    let in_force = async || {
        let rules = client
            .faults()
            .await
            .unwrap()
            .rules
            .into_iter()
            .map(|rule| rule.id);
        let backend_faults = client
            .backend_faults()
            .await
            .unwrap()
            .into_iter()
            .map(|fault| fault.id);
        rules.chain(backend_faults).collect::<Vec<String>>().join(" ")
    };
    let file = server.path("faults.yaml");
    let name = file.to_str().unwrap();
    // (command, file, active ids afterwards)
    let table = [
        (
            "faults",
            "- {id: a, match: {method: '*'}, action: {delay: 1ms}}\n- {id: b, match: {method: '*'}, action: {delay: 1ms}}",
            "a b",
        ),
        (
            "faults",
            "{id: c, match: {method: '*'}, action: {delay: 1ms}}",
            "a b c",
        ),
        (
            "faults",
            "rules:\n- {id: b, match: {method: '*'}, action: {delay: 2ms}}\nbackend-faults:\n- {id: t, type: read-only}\n- {id: u, type: busy}",
            "a b c t u",
        ),
        ("backend-faults", "- {id: v, type: not-ready}", "a b c v t u"),
        (
            "backend-faults",
            "backend-faults: [{id: w, type: not-ready}]",
            "a b c w v t u",
        ),
    ];
    for (command, text, expected) in table {
        std::fs::write(&file, text).unwrap();
        stdout_of(&server, &[command, "add", name]).await;
        assert_eq!(in_force().await, expected, "{text}");
    }
    assert_eq!(
        client.faults().await.unwrap().rules[1].rule["action"]["delay"],
        "2ms"
    );

    let before = in_force().await;
    // (command, file, exit code, in the text)
    let table = [
        (
            "faults",
            "- {id: x, match: {method: '*'}, action: {delay: 1ms}}\n- {id: e, match: {method: '*'}, action: {delay: 1ms}}\n- {id: z, match: {method: '*'}, action: {delay: soon}}",
            1,
            "action.delay",
        ),
        (
            "faults",
            "rules: [{id: x, match: {method: '*'}, action: {delay: 1ms}}]\nbackend-faults: [{id: e, type: rain}]",
            1,
            "rain",
        ),
        ("faults", "rules: []\nfaults: []", 1, "faults: unknown field"),
        (
            "backend-faults",
            "- {id: x, type: read-only}\n- {id: e}",
            1,
            "type",
        ),
        ("faults", "", 2, "must be a YAML list"),
    ];
    for (command, text, code, words) in table {
        std::fs::write(&file, text).unwrap();
        let (status, output) = failed(&server, &[command, "add", name]).await;
        assert_eq!(status, code, "{text}: {output}");
        assert!(output.contains(words), "{text}: {output}");
        assert_eq!(in_force().await, before, "{text}: nothing of it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_answer_with_one_line() {
    let (server, _client) = administered().await;
    // (words, answer)
    let table: [(&[&str], &str); 5] = [
        (&["capabilities", "-LIST_VOLUMES"], "LIST_VOLUMES off\n"),
        (
            &["scenarios", "start", "list-lies"],
            "started list-lies: ListVolumes omits vol-0",
        ),
        (
            &["backend-faults", "disable", "list-lies-missing"],
            "disabled list-lies-missing\n",
        ),
        (&["scenarios", "stop", "list-lies"], "stopped list-lies\n"),
        (&["faults", "reset"], "reset the counters"),
    ];
    for (words, expected) in table {
        let answer = stdout_of(&server, words).await;
        assert!(
            answer.starts_with(expected) && answer.lines().count() == 1,
            "{words:?}: {answer}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ctl_takes_list_units_and_names() {
    let (server, client) = administered().await;
    for resource in [
        "volumes",
        "nodes",
        "scenarios",
        "capabilities",
        "storage",
        "journal",
    ] {
        let listed = stdout_of(&server, &[resource, "list"]).await;
        assert_eq!(listed, stdout_of(&server, &[resource]).await, "{resource}");
    }
    let (status, text) = failed(&server, &["ready", "list"]).await;
    assert!(status == 2 && text.contains("list"), "{text}");
    for words in [&["volumes", "--limit=2"][..], &["volumes", "list", "--limit=2"]] {
        let limited = stdout_of(&server, words).await;
        assert!(limited.contains("(2 of 5"), "{limited}");
    }
    stdout_of(&server, &["volumes", "create", "pvc-1", "--bytes=1Gi"]).await;
    stdout_of(&server, &["volumes", "expand", "pvc-1", "2Gi"]).await;
    let table = stdout_of(&server, &["volumes", "get", "pvc-1"]).await;
    assert!(table.contains("2 GiB"), "{table}");
    stdout_of(&server, &["attach", "pvc-1", "node-1"]).await;
    let attached = stdout_of(&server, &["attachments", "--volume=pvc-1"]).await;
    assert!(attached.contains("node-1"), "{attached}");
    stdout_of(&server, &["detach", "pvc-1", "node-1"]).await;
    stdout_of(&server, &["snapshots", "create", "s", "pvc-1"]).await;
    stdout_of(&server, &["snapshots", "delete", "s"]).await;
    stdout_of(&server, &["volumes", "delete", "pvc-1"]).await;
    assert_eq!(client.volumes(&Default::default()).await.unwrap().matched, 5);
    let (status, text) = failed(&server, &["volumes", "create", "a", "--bytes=1Xi"]).await;
    assert!(status == 2 && text.contains("unit"), "{text}");
    let nodes = stdout_of(&server, &["nodes"]).await;
    assert!(nodes.lines().next().unwrap().contains("TOPOLOGY"), "{nodes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ctl_refuses_ignored_arguments() {
    let (server, client) = administered().await;
    // (words, in the text)
    let table: [(&[&str], &str); 6] = [
        (&["volumes", "--node=node-0", "set-health", "vol-1"], "--node"),
        (&["nodes", "--search=node-2", "deregister", "node-1"], "--search"),
        (
            &["snapshots", "--source=vol-1", "create", "s", "vol-0"],
            "--source",
        ),
        (&["volumes", "--limit=5000"], "1000"),
        (&["volumes", "--limit=0"], "1000"),
        (&["capabilities", "-LIST_VOLUMES", "-GET_VOLUMES"], "GET_VOLUMES"),
    ];
    for (words, text) in table {
        let (status, output) = failed(&server, words).await;
        assert_eq!(status, 2, "{words:?}: {output}");
        assert!(output.contains(text), "{words:?}: {output}");
    }
    assert!(client.volume("vol-1").await.unwrap().health.is_empty());
    assert!(client.node("node-1").await.unwrap().registered);
    assert_eq!(client.snapshots(&Default::default()).await.unwrap().matched, 0);
    let mut known = client.capabilities().await.unwrap().into_iter();
    assert!(known.any(|known| known.name == "LIST_VOLUMES" && known.enabled));
}

#[tokio::test(flavor = "multi_thread")]
async fn attachments_are_listed_in_pages() {
    let (server, client) = administered().await;
    for volume in ["vol-0", "vol-1", "vol-2"] {
        client
            .attach(volume, "node-0", &Default::default())
            .await
            .unwrap();
    }
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let words = [
            "attachments",
            "-o",
            "json",
            "--limit=1",
            &format!("--after={after}"),
        ];
        let page: Value = serde_json::from_str(&stdout_of(&server, &words).await).unwrap();
        assert_eq!(page["matched"], 3);
        let Some(item) = page["items"].get(0) else {
            break;
        };
        after = item["volume"].as_str().unwrap().to_owned();
        seen.push(after.clone());
    }
    assert_eq!(seen, ["vol-0", "vol-1", "vol-2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ctl_changes_snapshots_pools_and_storage_health() {
    let (server, client) = administered().await;
    let json: Value =
        serde_json::from_str(&stdout_of(&server, &["snapshots", "create", "s", "vol-0", "-o", "json"]).await)
            .unwrap();
    let snapshot = json["id"].as_str().unwrap().to_owned();
    let table = stdout_of(&server, &["snapshots", "--source=vol-0"]).await;
    assert!(table.contains(&snapshot) && table.contains("pool-0"), "{table}");
    stdout_of(&server, &["snapshots", "get", &snapshot]).await;
    stdout_of(&server, &["snapshots", "delete", &snapshot]).await;
    stdout_of(&server, &["group-snapshots", "create", "g", "vol-1", "vol-2"]).await;
    let group = client
        .group_snapshots(&Default::default())
        .await
        .unwrap()
        .items
        .remove(0);
    let table = stdout_of(&server, &["group-snapshots", "--source=vol-1"]).await;
    assert!(table.contains("of vol-2"), "{table}");
    let of_group = stdout_of(&server, &["snapshots", &format!("--group={}", group.id)]).await;
    assert_eq!(of_group.lines().count(), 3, "{of_group}");
    stdout_of(&server, &["group-snapshots", "get", &group.id]).await;
    stdout_of(&server, &["group-snapshots", "delete", &group.id]).await;
    assert_eq!(client.snapshots(&Default::default()).await.unwrap().matched, 0);

    let table = stdout_of(&server, &["pools", "resize", "pool-0", "1099511627776"]).await;
    assert!(table.contains("1 TiB"), "{table}");
    let (status, text) = failed(&server, &["pools", "resize", "pool-0", "1"]).await;
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("cannot be made smaller"), "{text}");

    stdout_of(&server, &["storage", "set-health", "--node=node-1"]).await;
    stdout_of(
        &server,
        &["storage", "set-health", "UNREACHABLE", "--reason=Cable"],
    )
    .await;
    let table = stdout_of(&server, &["storage"]).await;
    assert!(
        table.contains("all nodes") && table.contains("Cable") && table.contains("node-1"),
        "{table}"
    );
    stdout_of(&server, &["storage", "clear-health"]).await;
    stdout_of(&server, &["storage", "clear-health", "--node=node-1"]).await;
    let table = stdout_of(&server, &["storage"]).await;
    assert!(table.contains("healthy"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_distinguish_refusal_usage_error_and_absent_driver() {
    let (server, _client) = administered().await;
    let mut csi = server.controller().await;
    csi.controller_publish_volume(mk_publish("vol-1", "node-2"))
        .await
        .unwrap();
    // (words, exit code, in the text)
    let table: [(&[&str], i32, &str); 10] = [
        (&["volumes", "get", "vol-77"], 1, "vol-77"),
        (&["detach", "vol-0", "node-0"], 1, "vol-0 on node-0"),
        (
            &["journal", "assert", "ControllerPublishVolume"],
            0,
            "all expected",
        ),
        (
            &[
                "journal",
                "assert",
                "ControllerPublishVolume=OK,volume=vol-1,node=node-0",
            ],
            1,
            "expected was ControllerPublishVolume OK volume=vol-1 node=node-0",
        ),
        (
            &["journal", "assert", "ControllerPublishVolume=ABORTED"],
            1,
            "expected was",
        ),
        (
            &["journal", "wait", "--method=DeleteVolume", "--timeout=10ms"],
            1,
            "within 10ms",
        ),
        (
            &["journal", "wait", "--method=ControllerPublishVolume"],
            0,
            "vol-1",
        ),
        (&["capabilities", "LIST_VOLUMES"], 2, "+NAME"),
        (&["fly"], 2, "fly"),
        (
            &["--admin-endpoint=/nowhere/admin.sock", "info"],
            3,
            "--admin-endpoint",
        ),
    ];
    for (words, code, text) in table {
        let (status, output) = failed(&server, words).await;
        assert_eq!(status, code, "{words:?}: {output}");
        assert!(output.contains(text), "{words:?}: {output}");
    }
}
