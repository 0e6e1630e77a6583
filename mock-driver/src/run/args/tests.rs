use std::ffi::OsString;

use clap::CommandFactory;

use super::parse::{IGNORED_BY_PROXY, ids};
use super::*;
use crate::array::{Array, CreateVolumeParams, NodeSettings, Requirement};

fn read(flags: &[&str]) -> Result<Args, clap::Error> {
    let args = ["csi-mock-driver", "--endpoint=/run/csi.sock"]
        .iter()
        .chain(flags);
    Args::read(args.map(OsString::from))
}

#[test]
fn clap_definition_is_valid() {
    Args::command().debug_assert();
}

#[test]
fn documentation_lists_every_flag() {
    let cell = |text: &str| text.trim().trim_matches('`').replace('\0', "|");
    let mut listed = Vec::new();
    for row in include_str!("../../../docs/flags.md").lines() {
        // A stroke that is escaped is within a cell.
        let row = row.replace("\\|", "\0");
        if let [_, flag, default, about, _] = row.split('|').collect::<Vec<_>>()[..]
            && let Some(name) = cell(flag).strip_prefix("--")
            && !name.starts_with('-')
        {
            assert!(!about.trim().is_empty(), "{name}");
            listed.push((name.to_owned(), cell(default)));
        }
    }
    listed.sort();
    let command = Args::command();
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let mut known: Vec<_> = shown
        .filter_map(|arg| {
            let values = arg.get_default_values().iter();
            let default: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
            Some((arg.get_long()?.to_owned(), default.join(",")))
        })
        .collect();
    known.sort();
    assert_eq!(listed, known);
}

#[test]
fn help_has_the_headings_of_the_documentation() {
    let (mut heading, mut documented) = ("", Vec::new());
    for line in include_str!("../../../docs/flags.md").lines() {
        heading = line.strip_prefix("## ").unwrap_or(heading);
        if let Some((name, _)) = line.strip_prefix("| `--").and_then(|row| row.split_once('`')) {
            documented.push((name.to_owned(), heading.to_owned()));
        }
    }
    documented.sort();
    let command = Args::command();
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let mut found: Vec<_> = shown
        .filter_map(|arg| {
            Some((
                arg.get_long()?.to_owned(),
                arg.get_help_heading().unwrap_or("none").to_owned(),
            ))
        })
        .collect();
    found.sort();
    assert_eq!(found, documented);
    let help = read(&["--help"]).unwrap_err().to_string();
    assert!(help.contains("csi-mock-driver ctl"), "{help}");
}

#[test]
fn contradicting_flags_are_refused_with_the_cure() {
    // (flags, words)
    let table: [(&[&str], &[&str]); 6] = [
        (
            &["--mode=controller", "--node-id=node-0"],
            &["--node-id", "--mode=node"],
        ),
        (
            &["--array-endpoint=/run/array.sock"],
            &["--array-endpoint", "add --mode=node"],
        ),
        (&["--node-name=a"], &["--node-name", "--node-id={name}"]),
        (
            &["--node-name=a", "--node-id=b"],
            &["--node-name", "--node-id={name}"],
        ),
        (&["--node-id=i-{name}"], &["add --node-name"]),
        (
            &["--node-topology=a@zone=x", "--node-topology=a@zone=y"],
            &["--node-topology", "twice"],
        ),
    ];
    for (flags, words) in table {
        let error = read(flags).unwrap_err().to_string();
        assert!(
            words.iter().all(|word| error.contains(word)),
            "{flags:?}: {error}"
        );
    }
    let named = read(&["--node-id=i-{name}", "--node-name=a"]).unwrap();
    assert_eq!(named.node.id().as_deref(), Some("i-a"));
}

#[test]
fn flags_without_effect_are_warned_about() {
    let admin = "--admin-endpoint=127.0.0.1:0";
    // (flags, the one without effect)
    let table: [(&[&str], Option<&str>); 12] = [
        (&["--devices=emulated"], Some("--devices")),
        (&["--topology=zone=a"], Some("--topology")),
        (&["--devices=emulated", "--node-id=a"], None),
        (
            &["--node-id=a", "--registration-endpoint=/x"],
            Some("--registration-endpoint"),
        ),
        (&["--journal-size=5"], Some("--journal-size")),
        (&["--journal-size=5", admin], None),
        (&["--journal-max-size=1Gi"], Some("--journal-max-size")),
        (&["--log-secrets"], Some("--log-secrets")),
        (&["--zones=2", "--pool=a=1Gi"], Some("--zones")),
        (
            &["--attach-limit=-1", "--advertised-attach-limit=3"],
            Some("--advertised-attach-limit"),
        ),
        (
            &["--node-topology=node-7@zone=a"],
            Some("--node-topology: the array has no node \"node-7\""),
        ),
        (&["--node-topology=node-2@zone=a"], None),
    ];
    for (flags, expected) in table {
        let notes = read(flags).unwrap().notes;
        match expected {
            None => assert_eq!(notes, Vec::<String>::new(), "{flags:?}"),
            Some(flag) => assert!(
                notes.len() == 1 && notes[0].starts_with(flag),
                "{flags:?}: {notes:?}"
            ),
        }
    }
}

#[test]
fn node_with_a_numbered_id_keeps_the_zone_of_its_number() {
    let settings = read(&["--nodes=3", "--zones=2", "--node-id=node-0"])
        .unwrap()
        .settings();
    let array = Array::new(settings.array, 1);
    let zone = |node: &str| array.node(node).unwrap().segments.to_string();
    assert_eq!(
        ["node-0", "node-1", "node-2"].map(zone),
        [0, 1, 0].map(|zone| format!("{{mock.csi.local/zone=zone-{zone}}}"))
    );
}

#[test]
fn accepts_flag_syntax_of_go() {
    for flags in [
        &["-nodes=7"][..],
        &["--nodes=7"],
        &["-nodes", "7"],
        &["--nodes", "7"],
    ] {
        assert_eq!(read(flags).unwrap().array.nodes, 7, "{flags:?}");
    }
    assert_eq!(
        read(&["-nodes=1", "-nodes=2"]).unwrap().array.nodes,
        2,
        "the last one wins"
    );
    assert_eq!(
        read(&["-node-id", "-x"]).unwrap().node.node_id,
        "-x",
        "a value may begin with a dash"
    );
    assert_eq!(
        read(&["-latency=1m30s"]).unwrap().array.latency,
        Duration::from_secs(90)
    );
    assert_eq!(read(&["-v=5"]).unwrap().level(), Level::DEBUG);
}

#[test]
fn allowed_host_is_any_name_of_a_host_header() {
    // (value, name in the header)
    for (value, name) in [
        ("csi-mock-driver.storage.svc", "csi-mock-driver.storage.svc"),
        ("csi-mock-driver.storage.svc.", "csi-mock-driver.storage.svc"),
        ("my_host", "my_host"),
        ("driver.1", "driver.1"),
        ("42", "42"),
        ("-a-", "-a-"),
    ] {
        let args = read(&[&format!("--admin-allowed-host={value}")]).unwrap();
        assert_eq!(args.admin.admin_allowed_host, [name], "{value}");
    }
}

#[test]
fn invalid_value_error_names_the_flag() {
    let table: [(&[&str], &str); 26] = [
        (&["--admin-allowed-host="], "--admin-allowed-host"),
        (&["--admin-allowed-host=*"], "--admin-allowed-host"),
        (&["--admin-allowed-host=name:9810"], "--admin-allowed-host"),
        (&["--admin-allowed-host=http://name"], "--admin-allowed-host"),
        (&["--admin-allowed-host=name:"], "--admin-allowed-host"),
        (&["--admin-allowed-host=name/path"], "--admin-allowed-host"),
        (&["--admin-allowed-host=a name"], "--admin-allowed-host"),
        (&["--admin-allowed-host=a..b"], "--admin-allowed-host"),
        (&["--admin-allowed-host=."], "--admin-allowed-host"),
        (&["--topology=zone=a b!"], "--topology"),
        (&["--topology=zone=a,Zone=b"], "--topology"),
        (&["--pool=a=1Gi@zone=a b!"], "--pool"),
        (&["--node-topology=node-0@zone=a,Zone=b"], "--node-topology"),
        (&["--pool=fast"], "--pool"),
        (&["--pool=a=1Gi", "--pool=a=2Gi"], "--pool"),
        (&["--node-topology=node-0"], "--node-topology"),
        (&["--mutable-parameters=iops=5..1"], "--mutable-parameters"),
        (&["--require-secret=CreateVolume"], "--require-secret"),
        (
            &["--min-volume-size=2Gi", "--max-volume-size=1Gi"],
            "--max-volume-size",
        ),
        (&["--latency=5"], "--latency"),
        (&["--busy=maybe"], "--busy"),
        (&["--driver-name=-x-"], "--driver-name"),
        (&["--nodes=-1"], "--nodes"),
        (&["--endpoint=tcp://x"], "--endpoint"),
        (&["--capabilities=-FLY"], "--capabilities"),
        (&["--no-such-flag"], "--no-such-flag"),
    ];
    for (flags, name) in table {
        let error = read(flags).unwrap_err().to_string();
        assert!(error.contains(name), "{flags:?}: {error}");
    }
}

#[test]
fn proxy_notes_that_array_flags_have_no_effect() {
    let flags = ["--volumes=3", "-nodes", "7", "--pool=a=1Gi", "--seed=4"];
    assert_eq!(read(&flags).unwrap().notes, Vec::<String>::new());
    let notes = read(&[&flags[..], &["--proxy-to=/run/other.sock"]].concat())
        .unwrap()
        .notes;
    let mut named: Vec<_> = notes.iter().filter_map(|note| note.split(' ').next()).collect();
    named.sort_unstable();
    assert_eq!(named, ["--nodes", "--pool", "--volumes"], "{notes:?}");
    let node = ["--node-id=here", "--registration-dir=/registry", "--proxy-to=/x"];
    assert_eq!(read(&node).unwrap().notes.len(), 2);
    let command = Args::command();
    let ids: Vec<_> = command
        .get_arguments()
        .map(|flag| flag.get_id().as_str())
        .collect();
    assert!(IGNORED_BY_PROXY.iter().all(|id| ids.contains(id)));
}

#[test]
fn node_process_refuses_flags_of_the_array() {
    let node = [
        "--mode=node",
        "--node-id=here",
        "--array-endpoint=/run/array.sock",
    ];
    let command = Args::command();
    for id in ids::<ArrayArgs>().into_iter().chain(["attach_limit".to_owned()]) {
        let mut flags = command.get_arguments();
        let flag = flags.find(|flag| flag.get_id().as_str() == id).unwrap();
        let values = flag.get_default_values().first();
        let value = values.map(|value| value.to_string_lossy().into_owned());
        let value = value.unwrap_or_else(|| match id.as_str() {
            "pools" => "a=1Gi".to_owned(),
            _ => "here@zone=a".to_owned(),
        });
        let given = format!("--{}={value}", flag.get_long().unwrap());
        let refused = read(&[&node[..], &[given.as_str()]].concat())
            .unwrap_err()
            .to_string();
        let name = format!("--{} has no effect with --mode=node", flag.get_long().unwrap());
        assert!(
            refused.contains(&name) && refused.contains("--array-endpoint"),
            "{refused}"
        );
        read(&[&given]).unwrap();
    }
    for flags in [
        &["--attach-limit=-1"][..],
        &[
            "--busy=wait",
            "--state-dir=/s",
            "--media-dir=/m",
            "--ready-after=1s",
        ],
        &[
            "--require-secret=NodeStageVolume:a=b",
            "--capabilities=-NODE_STAGE_UNSTAGE_VOLUME",
        ],
        // As in host-path's manifests.
        &["--drivername=x", "--max-volume-size=1Gi"],
    ] {
        read(&[&node[..], flags].concat()).unwrap();
    }
}

#[test]
fn zero_and_empty_mean_none() {
    let settings = read(&[
        "--attach-limit=0",
        "--state-dir=",
        "--journal",
        "",
        "--list-page=0",
    ])
    .unwrap()
    .settings();
    assert_eq!(settings.array.attach_limit, None);
    assert_eq!(settings.array.page_limit, None);
    assert_eq!(
        (settings.state_dir, settings.journal, settings.faults),
        (None, None, None)
    );
}

#[test]
fn own_node_is_one_of_the_array() {
    let settings = read(&["--nodes=1", "--node-id=here"]).unwrap().settings();
    assert_eq!(
        settings.array.nodes,
        [NodeId::from("node-0"), NodeId::from("here")]
    );
}

#[test]
fn topology_example_in_help_is_accessible() {
    let command = Args::command();
    let mut flags = command.get_arguments();
    let flag = flags.find(|flag| flag.get_long() == Some("topology")).unwrap();
    let help = flag.get_help().unwrap().to_string();
    let (_, example) = help.split_once("such as ").unwrap();
    let (example, _) = example.split_once(", reported").unwrap();
    let flag = format!("--topology={example}");
    let settings = read(&["--node-id=here", &flag]).unwrap().settings();
    let segments: crate::array::Segments = settings.node.topology.into_iter().collect();
    assert_eq!(segments.as_map().len(), 2, "{example}");
    let mut array = Array::new(settings.array, 1);
    let here = NodeSettings {
        segments: Some(segments.clone()),
        ..NodeSettings::default()
    };
    array.set_node("here", here);
    assert!(!array.has_no_accessible_pool("here"));
    let wanted = CreateVolumeParams {
        name: "a".to_owned(),
        requirement: Some(Requirement {
            requisite: vec![segments],
            preferred: Vec::new(),
        }),
        ..CreateVolumeParams::default()
    };
    array.create_volume(&wanted).unwrap();
}

#[test]
fn relay_names_the_flags_that_only_a_driver_has() {
    let words = [
        "csi-mock-driver",
        "--endpoint=/csi.sock",
        "--proxy-endpoint=tcp://:9000",
        "--stop-on-stdin-eof",
        "--admin-endpoint=127.0.0.1:9810",
        "--faults=/faults.yaml",
        "--volumes=3",
        "--v=4",
    ];
    let args = Args::read(words.map(Into::into)).unwrap();
    for flag in ["admin-endpoint", "faults", "volumes"] {
        let expected = format!("--{flag} has no effect beside --proxy-endpoint");
        assert!(
            args.notes.iter().any(|note| note.starts_with(&expected)),
            "{:?}",
            args.notes
        );
    }
    assert_eq!(args.notes.len(), 3, "{:?}", args.notes);
}
