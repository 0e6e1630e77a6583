//! Built-in scenarios: their effects on calls, and their descriptions in the cookbook.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

use csi_mock_driver::fault::scenario::{self, Scenario};
use csi_mock_driver::fault::{DiskFault, Faults, RuleKind, Seed};
use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use tokio::time::{self, Instant};
use tonic::Code;
use tonic::transport::Channel;

use super::{nodes_of, publish, unpublish};
use crate::program::{Program, command, output};
use crate::server::{
    DEADLINE, Server, cancel_after, connect, line_in, mk_create, mk_publish, mk_unpublish, published,
};

const COOKBOOK: &str = include_str!("../../../docs/faults.md");

async fn play(name: &str) -> (Server, ControllerClient<Channel>) {
    let scenario = Scenario::named(name).unwrap();
    let server = Server::start_with(|directory, settings| {
        settings.initial_volumes = 12;
        settings.scenarios = vec![scenario];
        settings.seed = Some(1);
        settings.journal = Some(directory.join("journal"));
    })
    .await;
    let client = server.controller().await;
    (server, client)
}

async fn publishes(client: &mut ControllerClient<Channel>, calls: usize) -> Vec<Code> {
    let mut codes = Vec::new();
    for number in 0..calls {
        codes.push(publish(client, &format!("vol-{number}"), "node-0").await);
    }
    codes
}

#[tokio::test]
async fn attach_scenarios_fail_attaches() {
    let (full, busy, ok) = (Code::ResourceExhausted, Code::Aborted, Code::Ok);
    // (scenario, codes of successive attaches)
    let table = [
        ("array-busy", vec![ok, busy, ok, busy]),
        ("attach-full", vec![full, full, ok]),
        ("limit-lie", vec![ok, ok, ok, full]),
        ("node-lost", vec![Code::NotFound, Code::NotFound]),
        (
            "attach-late",
            vec![Code::DeadlineExceeded, ok, ok, Code::DeadlineExceeded],
        ),
    ];
    for (name, expected) in table {
        let (_server, mut client) = play(name).await;
        assert_eq!(publishes(&mut client, expected.len()).await, expected, "{name}");
    }
    // Even on a slow machine, some calls are less than 200 ms apart.
    let (_server, mut client) = play("rate-limit").await;
    let mut responses = Vec::new();
    while !responses.contains(&full) {
        responses.extend(publishes(&mut client, 12).await);
        assert!(responses.len() < 1200, "never refused");
    }
    assert_eq!(responses[..5], [ok; 5]);
    let (_server, mut client) = play("attach-full").await;
    publishes(&mut client, 1).await;
    assert_eq!(
        nodes_of(&mut client, "vol-0").await,
        ["node-0"],
        "the call took effect"
    );
    let (server, mut client) = play("attach-late").await;
    publishes(&mut client, 1).await;
    assert!(nodes_of(&mut client, "vol-0").await.is_empty());
    line_in(&server.path("journal"), |line| line["event"] == "late").await;
    assert_eq!(nodes_of(&mut client, "vol-0").await, ["node-0"]);
}

#[tokio::test]
async fn cloud_lock_refuses_a_second_call_of_the_node() {
    let (_server, client) = play("cloud-lock").await;
    let mut clients = [client.clone(), client.clone(), client];
    let [first, second, other] = &mut clients;
    let codes = tokio::join!(
        publish(first, "vol-0", "node-0"),
        publish(second, "vol-1", "node-0"),
        publish(other, "vol-2", "node-1"),
    );
    let mut of_node = [codes.0, codes.1];
    of_node.sort_unstable_by_key(|code| *code as i32);
    assert_eq!(of_node, [Code::Ok, Code::Aborted]);
    assert_eq!(codes.2, Code::Ok, "another node");
    // The lock is shorter than the call.
    assert_eq!(publish(first, "vol-3", "node-0").await, Code::Ok);
}

#[tokio::test]
async fn attach_uncertain_attaches_without_a_response() {
    let (server, mut client) = play("attach-uncertain").await;
    let mut other = client.clone();
    let attached = async { while nodes_of(&mut other, "vol-0").await.is_empty() {} };
    cancel_after(
        attached,
        client.controller_publish_volume(mk_publish("vol-0", "node-0")),
    )
    .await;
    line_in(&server.path("journal"), |line| {
        line["fault"] == "attach-uncertain" && line["code"] == "CANCELLED"
    })
    .await;
    assert_eq!(
        publish(&mut client, "vol-0", "node-0").await,
        Code::Ok,
        "the retry finds it attached"
    );
}

#[tokio::test]
async fn detach_scenarios_fail_detaches() {
    let (_server, mut client) = play("detach-fails").await;
    publishes(&mut client, 1).await;
    for expected in [Code::Internal, Code::Internal, Code::Internal, Code::Ok] {
        assert!(!nodes_of(&mut client, "vol-0").await.is_empty());
        assert_eq!(unpublish(&mut client, "vol-0", "node-0").await, expected);
    }

    let (server, mut client) = play("detach-hangs").await;
    publishes(&mut client, 1).await;
    let faults = &server.driver().faults;
    let (detached, ()) = tokio::join!(unpublish(&mut client, "vol-0", "node-0"), async {
        while faults.reports(RuleKind::Rule)[0].blocked_calls == 0 {
            tokio::task::yield_now().await;
        }
        faults.release(Some("detach-hangs"));
    });
    assert_eq!(detached, Code::Ok);

    let (_server, mut client) = play("detach-lost").await;
    publishes(&mut client, 2).await;
    client
        .controller_unpublish_volume(mk_unpublish("vol-0", "node-0"))
        .await
        .unwrap_err();
    assert!(
        nodes_of(&mut client, "vol-0").await.is_empty(),
        "it was detached nevertheless"
    );
    assert_eq!(unpublish(&mut client, "vol-1", "node-0").await, Code::Ok);
}

#[tokio::test]
async fn crash_mid_attach_kills_the_driver_and_keeps_the_attachment() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    let state = format!("--state-dir={}", directory.path().join("state").display());
    let flags = ["--scenario=crash-mid-attach", &state, "--volumes=3"];
    let mut program = Program::start(&socket, flags).await;
    let mut client = program.controller().await;
    for volume in ["vol-0", "vol-1"] {
        assert_eq!(publish(&mut client, volume, "node-0").await, Code::Ok);
    }
    client
        .controller_publish_volume(mk_publish("vol-2", "node-0"))
        .await
        .unwrap_err();
    assert_eq!(program.ended().await.code(), None);
    let program = Program::start(&socket, flags).await;
    assert_eq!(
        nodes_of(&mut program.controller().await, "vol-2").await,
        ["node-0"]
    );
}

#[tokio::test]
async fn create_exhausted_fails_each_odd_call() {
    let (_server, mut client) = play("create-exhausted").await;
    let mut codes = Vec::new();
    for name in ["a", "a", "b", "b"] {
        let made = client.create_volume(mk_create(name)).await;
        codes.push(made.map_or_else(|status| status.code(), |_| Code::Ok));
    }
    assert_eq!(
        codes,
        [
            Code::ResourceExhausted,
            Code::Ok,
            Code::ResourceExhausted,
            Code::Ok
        ]
    );
}

#[tokio::test]
async fn list_scenarios_return_wrong_and_old_lists() {
    let (_server, mut client) = play("stale-list").await;
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);
    assert!(
        nodes_of(&mut client, "vol-0").await.is_empty(),
        "thirty seconds behind"
    );
    let (_server, mut client) = play("list-lies").await;
    let listed = published(&mut client).await;
    assert!(listed.iter().all(|(id, _)| id != "vol-0"));
    assert_eq!(nodes_of(&mut client, "vol-1").await, ["foreign-node"]);
}

#[tokio::test]
async fn probes_are_not_ready_or_hang() {
    let (server, _) = play("slow-start").await;
    let mut identity = server.identity().await;
    assert_eq!(
        identity
            .probe(v1::ProbeRequest {})
            .await
            .unwrap()
            .into_inner()
            .ready,
        Some(false)
    );
    let (server, _) = play("probe-hangs").await;
    let mut identity = server.identity().await;
    let faults = &server.driver().faults;
    for number in 1..=3 {
        let held = async {
            while faults.reports(RuleKind::Rule)[0].fired < number {
                tokio::task::yield_now().await;
            }
        };
        cancel_after(held, identity.probe(v1::ProbeRequest {})).await;
    }
    assert_eq!(
        identity
            .probe(v1::ProbeRequest {})
            .await
            .unwrap()
            .into_inner()
            .ready,
        Some(true)
    );
}

#[tokio::test]
async fn socket_reopens_after_the_tenth_attach() {
    let (server, mut client) = play("socket-flaps").await;
    assert_eq!(publishes(&mut client, 9).await, [Code::Ok; 9]);
    client
        .controller_publish_volume(mk_publish("vol-9", "node-0"))
        .await
        .unwrap_err();
    let start = Instant::now();
    let back = async {
        while tokio::net::UnixStream::connect(server.path("csi.sock"))
            .await
            .is_err()
        {
            tokio::task::yield_now().await;
        }
    };
    time::timeout(DEADLINE, back).await.expect("must reopen");
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    let mut client = ControllerClient::new(connect(&server.path("csi.sock")).await);
    assert_eq!(nodes_of(&mut client, "vol-9").await, ["node-0"]);
}

#[tokio::test]
async fn flaky_calls_fail_at_their_rate_and_retries_succeed() {
    let (server, mut client) = play("flaky-10pct").await;
    let mut failed = 0;
    const ROUNDS: usize = 50;
    for _ in 0..ROUNDS {
        for volume in 0..12 {
            let volume = format!("vol-{volume}");
            while publish(&mut client, &volume, "node-0").await != Code::Ok {
                failed += 1;
            }
            while unpublish(&mut client, &volume, "node-0").await != Code::Ok {
                failed += 1;
            }
        }
    }
    assert!(
        published(&mut client)
            .await
            .iter()
            .all(|(_, nodes)| nodes.is_empty()),
        "nothing is left"
    );
    let reports = server.driver().faults.reports(RuleKind::Rule);
    let (fired, seen) = (
        reports.iter().map(|report| report.fired).sum::<u64>(),
        reports[0].seen,
    );
    assert!(
        fired * 100 >= seen * 7 && fired * 100 <= seen * 13,
        "{fired} of {seen}"
    );
    assert!(reports.iter().all(|report| report.fired > 0), "{reports:?}");
    assert!(failed > 0);
}

#[test]
fn disk_scenarios_damage_disks_or_make_them_foreign() {
    for (name, expected) in [
        ("disk-damaged", Some(DiskFault::Damaged)),
        (
            "disk-foreign",
            Some(DiskFault::Foreign("an encrypted disk (LUKS)")),
        ),
    ] {
        let faults = Faults::new(Seed(1));
        scenario::play(&[Scenario::named(name).unwrap()], &[], &faults).unwrap();
        assert_eq!(faults.disk("vol-0", "node-0"), expected, "{name}");
    }
}

#[test]
fn scenarios_are_listed_and_unknown_names_refused() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    let help = output(&socket, &["--scenario=help"]);
    assert_eq!(help.status.code(), Some(0));
    let text = String::from_utf8(help.stdout).unwrap();
    for scenario in Scenario::ALL {
        assert!(
            text.contains(scenario.name) && text.contains(scenario.about()),
            "{text}"
        );
    }
    let wrong = output(&socket, &["--scenario=attach-unsure"]);
    assert_eq!(wrong.status.code(), Some(2));
    let text = String::from_utf8(wrong.stderr).unwrap();
    assert!(
        text.contains("--scenario") && text.contains("attach-uncertain"),
        "{text}"
    );
}

#[test]
fn seed_is_printed_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    for (flag, seed) in [(Some("--seed=77"), Some("seed=77")), (None, None)] {
        let log = directory.path().join("log");
        let mut child = command(&directory.path().join("csi.sock"))
            .args(flag)
            .stderr(Stdio::from(fs::File::create(&log).unwrap()))
            .spawn()
            .unwrap();
        let pause = Duration::from_millis(5);
        let mut tries = 0;
        let text = loop {
            let text = fs::read_to_string(&log).unwrap();
            tries += 1;
            if text.contains("serving") || tries > 2000 {
                break text;
            }
            std::thread::sleep(pause);
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(text.contains(seed.unwrap_or("seed=")), "{text}");
    }
}

/// The command lines of the cookbook, each with the heading above it.
fn recipes() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut recipes: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut is_code = false;
    for line in COOKBOOK.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            recipes.push((heading, Vec::new()));
        } else if line.starts_with("```") {
            is_code = line == "```sh";
        } else if let (true, Some((_, lines))) = (is_code, recipes.last_mut()) {
            lines.push(line);
        }
    }
    recipes
}

#[test]
fn cookbook_has_a_recipe_with_the_description_of_each_scenario() {
    let headings: BTreeSet<&str> = recipes().iter().map(|(heading, _)| *heading).collect();
    for scenario in Scenario::ALL {
        assert!(
            headings.contains(scenario.name),
            "no recipe for {}",
            scenario.name
        );
        assert!(
            COOKBOOK.contains(scenario.about()),
            "the recipe for {} has another description",
            scenario.name
        );
    }
}

/// Each command line is run literally, with its paths in a temporary directory: the driver must start and become ready,
/// with the recipe's rules active.
#[tokio::test]
async fn every_command_line_of_the_cookbook_works() {
    let mut ran = 0;
    for (heading, lines) in recipes() {
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            let ["csi-mock-driver", flags @ ..] = &words[..] else {
                panic!("{heading}: {line} is no command line of the driver");
            };
            let directory = tempfile::tempdir().unwrap();
            let path = |file: &str| directory.path().join(file);
            let own = |flag: &&str| flag.replace("/tmp/", &format!("{}/", directory.path().display()));
            let mut flags: Vec<String> = flags.iter().map(own).collect();
            flags.retain(|flag| !flag.starts_with("--endpoint="));
            if flags.iter().any(|flag| flag == "--scenario=help") {
                let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
                assert_eq!(output(&path("x.sock"), &flags).status.code(), Some(0), "{line}");
                continue;
            }
            for file in ["faults.yaml", "fixture.yaml"] {
                fs::write(path(file), file_of(heading)).unwrap();
            }
            flags.push(format!("--journal={}", path("own.journal").display()));
            let program = Program::start(&path("csi-own.sock"), &flags).await;
            if flags.iter().any(|flag| flag.starts_with("--faults=")) {
                line_in(&path("own.journal"), |line| {
                    line["event"] == "faults" && line["rules"] != 0
                })
                .await;
            }
            drop(program);
            ran += 1;
        }
    }
    assert!(ran >= Scenario::ALL.len(), "{ran}");
}

/// The fault file of a recipe.
fn file_of(heading: &str) -> String {
    let recipe = COOKBOOK
        .split("\n## ")
        .find(|recipe| recipe.starts_with(heading))
        .unwrap_or_default();
    let mut parts = recipe.split("```yaml\n").skip(1);
    parts
        .next()
        .and_then(|part| part.split("```").next())
        .unwrap_or("[]")
        .to_owned()
}
