use std::collections::BTreeSet;
use std::path::Path;

use clap::CommandFactory;

use super::translate::state_dir;
use super::*;
use crate::driver::Settings;
use crate::run::args::Args as All;

fn read(words: &[&str]) -> Result<All, clap::Error> {
    let words = ["csi-mock-driver"].iter().chain(words);
    All::read(words.map(OsString::from))
}

fn settings(words: &[&str]) -> Settings {
    read(words).unwrap().settings()
}

/// What one flag changes, beside the three that every manifest has.
fn with(flags: &[&str]) -> Settings {
    let base = [
        "--drivername=hostpath.csi.k8s.io",
        "--nodeid=worker",
        "--endpoint=/csi/csi.sock",
    ];
    settings(&[&base[..], flags].concat())
}

#[test]
fn aliases_are_flags_and_their_defaults_are_those_of_fields() {
    let command = All::command();
    for name in ALIASES {
        let is_flag = command.get_arguments().any(|arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(name) || aliases.contains(&name)
        });
        assert!(is_flag, "{name}");
    }
    HostPathArgs::defaults(command).debug_assert();
}

#[test]
fn hostpath_defaults_apply_with_any_hostpath_flag() {
    let own = settings(&["--endpoint=/csi.sock", "--v=5", "--logtostderr"]);
    assert_eq!(own.name, "mock.csi.local");
    assert!(own.capabilities.has(Capability::PublishUnpublishVolume));
    assert_eq!(own.array.nodes.len(), 3);
    assert_eq!(own.array.pool_parameter, "pool");

    let args = read(&["-nodeid=worker"]).unwrap();
    assert_eq!(args.endpoint.path(), Path::new("/tmp/csi.sock"));
    let theirs = args.settings();
    assert_eq!(theirs.name, "hostpath.csi.k8s.io");
    assert_eq!(theirs.array.pool_parameter, "kind");
    let nodes: Vec<_> = theirs.array.nodes.iter().map(|node| node.as_str()).collect();
    assert_eq!(nodes, ["worker"]);
    assert!(!theirs.array.deviations.delete_in_use);
    assert!(!theirs.journal_config.grpc_call_lines);
    let [pool] = &theirs.array.pools[..] else {
        panic!("one pool: {:?}", theirs.array.pools)
    };
    assert_eq!(pool.segments.to_string(), "{topology.hostpath.csi/node=worker}");
    for (capability, has) in [
        (Capability::CreateDeleteVolume, true),
        (Capability::PublishUnpublishVolume, false),
        (Capability::PublishReadonly, false),
        (Capability::ListVolumesPublishedNodes, false),
        (Capability::ModifyVolume, false),
        (Capability::SnapshotMetadataService, false),
        (Capability::ListSnapshots, true),
        (Capability::ExpandVolume, true),
        (Capability::NodeExpandVolume, true),
        (Capability::VolumeAccessibilityConstraints, true),
        (Capability::GroupControllerService, true),
        (Capability::VolumeCondition, true),
        (Capability::NodeVolumeCondition, true),
        (Capability::NodeVolumeMountGroup, false),
    ] {
        assert_eq!(theirs.capabilities.has(capability), has, "{capability:?}");
    }
}

/// host-path limits no volume to its capacity, and Kubernetes' tests write more than they claim.
#[test]
fn small_volumes_have_room_for_a_filesystem() {
    let theirs = with(&[]);
    assert_eq!(theirs.config.min_filesystem_bytes, 320 << 20);
    assert_eq!(theirs.array.sizes.min, 1 << 20, "the capacity is as requested");
    assert_eq!(settings(&["--endpoint=/csi.sock"]).config.min_filesystem_bytes, 0);
}

#[test]
fn switches_take_capabilities_away_or_bring_them() {
    use Capability::{
        CreateDeleteVolume, ExpandVolume, ListSnapshots, ModifyVolume, NodeExpandVolume,
        PublishUnpublishVolume, SnapshotMetadataService, VolumeAccessibilityConstraints,
        VolumeExpansionOnline,
    };
    let table = [
        ("--enable-attach", PublishUnpublishVolume, true),
        ("--enable-attach=false", PublishUnpublishVolume, false),
        ("--enable-topology=false", VolumeAccessibilityConstraints, false),
        ("--enable-topology", VolumeAccessibilityConstraints, true),
        ("--node-expand-required=true", NodeExpandVolume, true),
        ("--node-expand-required=false", VolumeExpansionOnline, false),
        ("--enable-volume-expansion=false", ExpandVolume, false),
        ("--disable-controller-expansion", ExpandVolume, false),
        ("--disable-controller-expansion", NodeExpandVolume, true),
        ("--disable-node-expansion=true", NodeExpandVolume, false),
        ("--disable-node-expansion", ExpandVolume, true),
        ("--enable-controller-modify-volume=true", ModifyVolume, true),
        ("--enable-list-snapshots=false", ListSnapshots, false),
        ("--enable-snapshot-metadata", SnapshotMetadataService, true),
        ("--ephemeral=true", CreateDeleteVolume, false),
        ("--ephemeral=false", CreateDeleteVolume, true),
        (
            "--capabilities=+PUBLISH_UNPUBLISH_VOLUME",
            PublishUnpublishVolume,
            true,
        ),
    ];
    for (flag, capability, has) in table {
        assert_eq!(with(&[flag]).capabilities.has(capability), has, "{flag}");
    }
}

#[test]
fn drivers_that_share_a_state_directory_keep_apart() {
    let shared = tempfile::tempdir().unwrap();
    let own = |name: &str| state_dir(shared.path(), name);
    assert_eq!(own("a.csi"), Some(shared.path().join("a.csi")));
    assert_eq!(own("b.csi"), Some(shared.path().join("b.csi")));
    assert_eq!(state_dir(&shared.path().join("missing"), "a.csi"), None);

    let given = with(&["--state-dir=/given"]).state_dir;
    assert_eq!(given.as_deref(), Some(Path::new("/given")));
}

#[test]
fn limits_are_those_of_host_path() {
    // (flags, what holds, what is said)
    let table: [(&[&str], _, _); 5] = [
        (&[], None, None),
        (&["--maxvolumespernode=10"], None, Some(10)),
        (&["--attach-limit", "2"], Some(2), None),
        (&["--maxvolumespernode=10", "--attach-limit=2"], Some(2), None),
        (&["--attach-limit=-1"], None, None),
    ];
    for (flags, holds, said) in table {
        let settings = with(flags);
        let limits = (settings.array.attach_limit, settings.array.advertised_limit);
        assert_eq!(limits, (holds, said), "{flags:?}");
        let is_random = flags.contains(&"--attach-limit=-1");
        assert_eq!(settings.config.random_limit, is_random, "{flags:?}");
    }
    let sizes = with(&[
        "--max-volume-size=2147483648",
        "--max-volume-size-node=1073741824",
    ]);
    assert_eq!(sizes.array.sizes.max, 2 << 30);
    assert_eq!(sizes.config.node_growth_limit, Some(1 << 30));
    assert_eq!(with(&["--max-volume-size-node=0"]).config.node_growth_limit, None);
}

#[test]
fn hostpath_capacity_kinds_are_on_the_node_and_last_value_wins() {
    let pools = |flags: &[&str]| -> Vec<String> {
        let pools = with(flags).array.pools;
        let shown = |pool: &Pool| format!("{} {} {}", pool.name, pool.capacity >> 30, pool.segments);
        pools.iter().map(shown).collect()
    };
    let kinds = [
        "--capacity=slow=10Gi",
        "--capacity",
        "fast=1Gi",
        "-capacity=fast=100Gi",
    ];
    let segments = "{topology.hostpath.csi/node=worker}";
    assert_eq!(
        pools(&kinds),
        [format!("fast 100 {segments}"), format!("slow 10 {segments}")]
    );
    let nowhere = [&kinds[..1], &["--enable-topology=false"]].concat();
    assert_eq!(pools(&nowhere), ["slow 10 {}"]);
}

#[test]
fn mutable_parameters_are_those_named_or_all() {
    let keys = |flags: &[&str]| -> Vec<String> {
        with(flags)
            .array
            .qos
            .iter()
            .map(|(key, _)| key.to_owned())
            .collect()
    };
    assert_eq!(keys(&["--enable-controller-modify-volume"]), ["*"]);
    let named = [
        "--accepted-mutable-parameter-names=b, a",
        "--accepted-mutable-parameter-names=c",
    ];
    assert_eq!(keys(&named), ["a", "b", "c"]);
}

#[test]
fn calls_are_logged_from_the_level_at_which_host_path_does() {
    assert!(!with(&["-v=4"]).journal_config.grpc_call_lines);
    assert!(with(&["-v=5"]).journal_config.grpc_call_lines);
    assert!(
        !with(&["-v=5", "--log-grpc-calls=false"])
            .journal_config
            .grpc_call_lines
    );
}

#[test]
fn flags_without_effect_are_accepted_and_logged() {
    let silent = [
        "-logtostderr",
        "--alsologtostderr=true",
        "--log_dir=",
        "--vmodule=",
        "--automaxprocs",
        "--check-volume-lifecycle=true",
    ];
    assert_eq!(
        read(&[&silent[..], &["--endpoint=/c"]].concat()).unwrap().notes,
        Vec::<String>::new()
    );
    for flag in [
        "--logtostderr=false",
        "--log_dir=/var/log",
        "--log_file=/var/log/x",
        "--log_file_max_size=1",
        "--stderrthreshold=2",
        "--alsologtostderrthreshold=WARNING",
        "--legacy_stderr_threshold_behavior=false",
        "--one_output",
        "--add_dir_header",
        "--skip_headers",
        "--skip_log_headers=true",
        "--vmodule=server=9",
        "--log_backtrace_at=server.go:1",
        "--ephemeral",
        "--accepted-mutable-parameter-names=a",
    ] {
        let notes = read(&[flag, "--endpoint=/c"]).unwrap().notes;
        let name = flag.split('=').next().unwrap();
        assert!(
            matches!(&notes[..], [note] if note.starts_with(name)),
            "{flag}: {notes:?}"
        );
    }
}

#[test]
fn unknown_flags_and_invalid_values_are_refused() {
    for (flag, name) in [
        ("--enable-attaching", "--enable-attaching"),
        ("--enable-attach=maybe", "--enable-attach"),
        ("--capacity=fast", "--capacity"),
        ("--capacity=fast=lots", "--capacity"),
        ("--maxvolumespernode=-1", "--maxvolumespernode"),
        ("--attach-limit=-2", "--attach-limit"),
        ("--max-volume-size-node=large", "--max-volume-size-node"),
        ("--snapshot-metadata-block-type=ODD", "VARIABLE_LENGTH"),
        ("--snapshot-metadata-block-type=FIXED_LENGTH", "VARIABLE_LENGTH"),
        ("--endpoint=tcp://127.0.0.1:10000", "socat"),
        ("--logtostderr=2", "--logtostderr"),
        ("--log_file_max_size=big", "--log_file_max_size"),
    ] {
        let error = read(&["--nodeid=worker", flag]).unwrap_err().to_string();
        assert!(error.contains(name), "{flag}: {error}");
    }
    for (theirs, ours) in [
        ("--capacity=fast=1Gi", "--pool=fast=1Gi"),
        ("--maxvolumespernode=1", "--advertised-attach-limit=1"),
        ("--accepted-mutable-parameter-names=a", "--mutable-parameters=a"),
    ] {
        let error = read(&["--nodeid=worker", theirs, ours]).unwrap_err().to_string();
        assert!(error.contains("cannot be used with"), "{theirs} {ours}: {error}");
    }
}

#[test]
fn readme_lists_each_flag_and_help_none() {
    let readme = include_str!("../../../../README.md");
    let documented: BTreeSet<&str> = readme
        .split('`')
        .filter_map(|word| word.strip_prefix("--"))
        .map(|word| word.split(['=', ' ']).next().unwrap_or(word))
        .collect();
    let command = All::command();
    let hidden = command.get_arguments().filter(|arg| arg.is_hide_set());
    let hidden = hidden.filter_map(|arg| arg.get_long());
    for name in hidden.chain(ALIASES) {
        assert!(documented.contains(name), "--{name} is not in the README");
    }
    let help = All::command().render_long_help().to_string();
    assert!(
        !help.contains("--maxvolumespernode"),
        "ours are shown, not theirs"
    );
}
