use super::*;

fn read(line: &[&str]) -> Result<Args, clap::Error> {
    Args::read(std::iter::once(&"csi-attacher").chain(line).map(OsString::from))
}

#[test]
fn defaults_equal_the_go_sidecars() {
    let args = read(&[]).unwrap();
    assert_eq!(args.csi_address, "/run/csi/socket".parse().unwrap());
    assert_eq!(args.kubeconfig, None);
    assert_eq!(args.timeout, Duration::from_secs(15));
    assert_eq!(args.retry_interval_start, Duration::from_secs(1));
    assert_eq!(args.retry_interval_max, Duration::from_secs(300));
    assert_eq!(args.worker_threads.get(), 10);
    assert_eq!(args.default_fs_type, "");
    assert_eq!(args.log.verbosity, 0);
}

#[test]
fn accepts_the_longest_go_duration() {
    const LONGEST: &str = "2562047h47m16.854775807s";
    let line = [
        "retry-interval-start",
        "retry-interval-max",
        "timeout",
        "resync",
        "reconcile-sync",
        "shutdown-grace",
        "leader-election-lease-duration",
    ]
    .map(|flag| format!("--{flag}={LONGEST}"));
    let mut line: Vec<&str> = line.iter().map(String::as_str).collect();
    line.extend([
        "--leader-election",
        "--leader-election-renew-deadline=2500000h",
        "--leader-election-retry-period=2000000h",
    ]);
    let args = read(&line).unwrap();
    assert_eq!(args.timeout, args.election.lease_duration);
    assert_eq!(args.timeout.as_secs(), i64::MAX as u64 / 1_000_000_000);
}

#[test]
fn help_states_the_number_of_driver_calls() {
    let help = read(&["--help"]).unwrap_err().to_string();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        help.contains("N means up to 2.5 N driver calls at once"),
        "{help}"
    );
}

#[test]
fn accepts_go_flag_syntax() {
    let expected = read(&["--timeout=1m30s", "--v=5", "--kubeconfig=/k"]).unwrap();
    for line in [
        &["-timeout=1m30s", "-v=5", "-kubeconfig=/k"][..],
        &["-timeout", "1m30s", "-v", "5", "-kubeconfig", "/k"],
        &[
            "--timeout",
            "1s",
            "--timeout",
            "90s",
            "--v",
            "5",
            "--kubeconfig",
            "/k",
        ],
    ] {
        assert_eq!(read(line).unwrap(), expected, "{line:?}");
    }
    assert!(read(&["-version"]).unwrap().version);
    assert!(read(&["--version=T"]).unwrap().version);
    assert!(!read(&["--version=false"]).unwrap().version);
}

#[test]
fn flags_of_the_all_in_one_sidecar_take_precedence() {
    let expected = read(&[
        "--max-entries=5",
        "--reconcile-sync=13s",
        "--max-grpc-log-length=99",
        "--worker-threads=2",
        "--default-fstype=ext4",
        "--timeout=17s",
        "--retry-interval-start=3s",
        "--retry-interval-max=2m",
    ])
    .unwrap();
    let prefixed = [
        "--attacher-max-entries=5",
        "--attacher-reconcile-sync",
        "13s",
        "-attacher-max-grpc-log-length=99",
        "--attacher-worker-threads=2",
        "--attacher-default-fstype=ext4",
        "--attacher-timeout=17s",
        "-attacher-retry-interval-start",
        "3s",
        "--attacher-retry-interval-max=2m",
    ];
    // In the all-in-one sidecar these belong to the provisioner and the resizer.
    let shared = ["--timeout=1m", "--retry-interval-start=7s", "--worker-threads=50"];
    for line in [
        prefixed.to_vec(),
        [&prefixed[..], &shared].concat(),
        [&shared[..], &prefixed].concat(),
    ] {
        assert_eq!(read(&line).unwrap(), expected, "{line:?}");
    }
}

#[test]
fn ignores_election_timings_without_leader_election() {
    assert!(read(&["--leader-election-lease-duration=1s"]).is_ok());
}

#[test]
fn merges_repeated_feature_gates_and_overrides_other_flags() {
    let args = read(&[
        "--feature-gates=MutableCSINodeAllocatableCount=false",
        "--feature-gates=AllAlpha=true",
        "--kube-api-qps=1",
        "-kube-api-qps",
        "-1",
    ])
    .unwrap();
    assert!(!args.error_codes());
    assert_eq!(args.kube_api.rate(), None);
}

#[test]
fn warns_of_flags_without_effect() {
    assert_eq!(read(&[]).unwrap().warnings(), [] as [String; 0]);
    let args = read(&["--metrics-address=:1", "--kube-api-burst=5", "--automaxprocs"]).unwrap();
    assert_eq!(args.warnings().len(), 3);
    let warnings = read(&["--timeout=21s"]).unwrap().warnings();
    assert!(
        matches!(&warnings[..], [one] if one.contains("--shutdown-grace")),
        "{warnings:?}"
    );
    assert!(
        read(&["--timeout=21s", "--shutdown-grace=21s"])
            .unwrap()
            .warnings()
            .is_empty()
    );
    let limited = |qps: &str| !read(&["--kube-api-qps", qps]).unwrap().warnings().is_empty();
    assert!(limited("5") && limited("0") && !limited("-1"));
}

#[test]
fn merges_repeated_label_flags() {
    let labels = |line: &[&str]| read(line).unwrap().election.labels();
    assert_eq!(labels(&[]), [].into());
    assert_eq!(
        labels(&[
            "--leader-election-labels=a:1,b:1",
            "--leader-election-labels=b:2,c:2"
        ]),
        [("a", "1"), ("b", "2"), ("c", "2")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    );
}

#[test]
fn errors_hide_a_password_in_an_address() {
    let error = read(&["--otlp-endpoint=https://user:hunter2@c:4317"]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("***@c:4317") && !text.contains("hunter2"), "{text}");
}

#[test]
fn bad_values_name_the_flag_and_exit_with_code_2() {
    for (line, part) in [
        (&["--no-such-flag"][..], "--no-such-flag"),
        (&["--attacher-csi-address=/a"], "--attacher-csi-address"),
        (&["--attacher-timeout=0s"], "--timeout"),
        (&["--timeout=fast"], "--timeout"),
        (&["--timeout=0s"], "--timeout"),
        (&["--worker-threads=0"], "--worker-threads"),
        (&["--csi-address=tcp://127.0.0.1:1"], "--csi-address"),
        (
            &["--retry-interval-start=10s", "--retry-interval-max=1s"],
            "--retry-interval-max",
        ),
        (&["--version=perhaps"], "--version"),
        (&["--max-entries=-1"], "--max-entries"),
        (&["--feature-gates=Foo=true"], "--feature-gates"),
        (&["--kube-api-qps=fast"], "--kube-api-qps"),
        (&["--logging-format=xml"], "--logging-format"),
        (&["--vmodule=x"], "--vmodule"),
        (&["--otlp-endpoint=unix:///run/c.sock"], "--otlp-endpoint"),
        (&["--http-endpoint=8080"], "--http-endpoint"),
        (&["--health-endpoint=8080"], "--health-endpoint"),
        (&["--http-auth"], "--http-endpoint"),
        (
            &["--http-endpoint=:1", "--http-tls-cert-file=/c"],
            "--http-tls-key-file",
        ),
        (
            &["--http-endpoint=:1", "--metrics-address=:2"],
            "--metrics-address",
        ),
        (
            &["--leader-election", "--leader-election-lease-duration=10s"],
            "--leader-election-lease-duration",
        ),
        (
            &["--leader-election", "--leader-election-retry-period=9s"],
            "--leader-election-retry-period",
        ),
        (&["--leader-election-labels=a"], "--leader-election-labels"),
        // Go stops parsing at such a word and ignores the flags that follow.
        (&["--leader-election", "true"], "true"),
    ] {
        let error = read(line).unwrap_err();
        assert!(error.to_string().contains(part), "{line:?}: {error}");
        assert_eq!(error.exit_code(), 2, "{line:?}");
    }
    for line in [&["--help"][..], &["-help"], &["-h"]] {
        assert_eq!(read(line).unwrap_err().exit_code(), 0, "{line:?}");
    }
}
