//! Compares csi-attacher's flags with those in the Go sidecar's `--help`: names, defaults and accepted
//! values.

mod help;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Error, Result, ensure};
use csi_e2e::toolchain::{Peer, without_run};
use libtest_mimic::Arguments;
use verdict::Requirement::RealComponents;

/// Flags of the Go sidecar with another default, and the reason.
const OTHER_DEFAULTS: &[(&str, &str)] = &[
    (
        "kube-api-qps",
        "5 a second is two attaches a second; ours has no limit by default",
    ),
    ("kube-api-burst", "belongs to --kube-api-qps"),
];

/// Flags that only csi-attacher has.
const ONLY_OURS: &[&str] = &[
    "adaptive-concurrency",
    "assume-unpublished-after",
    "attach-concurrency",
    "detach-concurrency",
    "health-endpoint",
    "help",
    "http-auth",
    "http-tls-cert-file",
    "http-tls-key-file",
    "max-driver-calls",
    "otlp-endpoint",
    "shutdown-grace",
    "statusz",
];

/// Result of a command line that ends with `--version`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Yes,
    No,
}

use Taken::{No, Yes};

/// Command lines, and their results with the Go sidecar and with csi-attacher.
#[rustfmt::skip]
const LINES: &[(&str, Taken, Taken)] = &[
    ("-timeout=1m30s", Yes, Yes),
    ("--timeout 1m30s", Yes, Yes),
    ("--timeout=1s --timeout=2s", Yes, Yes),
    ("--timeout=15", No, No),
    // Of the all-in-one sidecar; the Go attacher's own binary does not accept them.
    ("--attacher-timeout=1m", No, Yes),
    ("--statusz=false", No, Yes),
    ("--http-endpoint=:8080 --http-auth --health-endpoint=:8082", No, Yes),
    ("--leader-election", Yes, Yes),
    ("--leader-election=T", Yes, Yes),
    ("--leader-election=perhaps", No, No),
    ("--leader-election-labels=a:b,c:d", Yes, Yes),
    ("--leader-election-labels=bad", No, No),
    ("--feature-gates=ReleaseLeaderElectionOnExit=true,AllAlpha=false", Yes, Yes),
    ("--feature-gates=AllBeta=true --feature-gates=AllAlpha=true", Yes, Yes),
    ("--feature-gates=MutableCSINodeAllocatableCount=false", Yes, Yes),
    ("--feature-gates=NoSuchGate=true", No, No),
    ("--feature-gates=AllAlpha", No, No),
    ("--kube-api-qps=-1", Yes, Yes),
    ("--kube-api-qps 12.5 --kube-api-burst 20", Yes, Yes),
    ("--kube-api-qps=x", No, No),
    ("--max-grpc-log-length -5", Yes, Yes),
    ("--logging-format=json", Yes, Yes),
    ("--logging-format=xml", No, No),
    ("--vmodule=a=1,b=2", Yes, Yes),
    ("--vmodule=x", No, No),
    ("-v 5", Yes, Yes),
    ("-v=x", No, No),
    ("--v=1000", Yes, Yes),
    ("--automaxprocs", Yes, Yes),
    ("--log-flush-frequency=1s", Yes, Yes),
    ("--default-fstype=", Yes, Yes),
    ("--metrics-path=/m --http-endpoint=:8080", Yes, Yes),
    ("--alsologtostderr", No, No),
    ("--no-such-flag", No, No),
    // In the Go sidecar these need a gate that cannot be set; csi-attacher needs none.
    ("--log-json-split-stream", No, Yes),
    ("--logging-format=json --vmodule=a=1", No, Yes),
    ("--log-text-info-buffer-size=4Ki", No, Yes),
    // The Go sidecar accepts these and fails later, or misbehaves.
    ("--timeout=-1s", Yes, No),
    ("--timeout=0", Yes, No),
    ("--retry-interval-max=0", Yes, No),
    ("--reconcile-sync=0", Yes, No),
    ("--kube-api-burst=-1", Yes, No),
    ("--max-entries=99999999999", Yes, No),
    ("--http-endpoint=:http", Yes, No),
    ("--metrics-path=/readyz", Yes, No),
    ("--leader-election-namespace=Not_A_Name", Yes, No),
    ("--leader-election-labels=a_b!:c", Yes, No),
    ("--max-entries=-1", Yes, No),
    ("--metrics-path=m", Yes, No),
    ("--leader-election --leader-election-lease-duration=1s", Yes, No),
];

fn main() -> ExitCode {
    let binaries = without_run(async |toolchain| {
        Ok(Binaries {
            go: toolchain.peer(Peer::ExternalAttacher).await?,
            ours: toolchain.csi_attacher().await?,
        })
    });
    let trial = |name: &str, test: fn(&Binaries) -> Result<()>| {
        let binaries = binaries.as_ref().map(Binaries::clone);
        let binaries = binaries.map_err(|error| format!("{error:#}"));
        verdict::trial(name, &[RealComponents], move || {
            test(&binaries.map_err(Error::msg)?)
        })
    };
    let trials = vec![
        trial(
            "every flag of the Go sidecar is there with its default",
            flags_match,
        ),
        trial("every feature gate of the Go sidecar is taken", gates_match),
        trial("values are taken and refused as in the Go sidecar", values_match),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

#[derive(Clone)]
struct Binaries {
    go: PathBuf,
    ours: PathBuf,
}

fn flags_match(binaries: &Binaries) -> Result<()> {
    let go = help::of_go(&text(&binaries.go, &["-help"])?);
    let ours = help::of_ours(&text(&binaries.ours, &["--help"])?);
    ensure!(
        go.len() >= 30,
        "only {} flags were found in the Go sidecar's help",
        go.len()
    );
    let mut differences = Vec::new();
    for (flag, default) in &go {
        let other = OTHER_DEFAULTS.iter().find(|(name, _)| name == flag);
        match (ours.get(flag), other) {
            (None, _) => differences.push(format!("--{flag} is missing")),
            (Some(ours), None) if ours != default => {
                differences.push(format!(
                    "--{flag}: default {ours:?}, in the Go sidecar {default:?}"
                ));
            }
            (Some(ours), Some((_, why))) if ours == default => {
                differences.push(format!("--{flag} has the Go sidecar's default, though: {why}"));
            }
            (Some(_), _) => {}
        }
    }
    let only_ours: Vec<&str> = ours
        .keys()
        .filter(|flag| !go.contains_key(*flag))
        .map(String::as_str)
        .collect();
    if only_ours != ONLY_OURS {
        differences.push(format!(
            "flags that only ours has: {only_ours:?}, expected {ONLY_OURS:?}"
        ));
    }
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    Ok(())
}

fn gates_match(binaries: &Binaries) -> Result<()> {
    let gates = help::gates(&text(&binaries.go, &["-help"])?);
    ensure!(
        gates.len() >= 30,
        "only {} gates were found in the Go sidecar's help",
        gates.len()
    );
    for gate in gates {
        let line = format!("--feature-gates={gate}=true");
        ensure!(taken(&binaries.ours, &line)? == Yes, "{line} is refused");
    }
    Ok(())
}

fn values_match(binaries: &Binaries) -> Result<()> {
    let mut differences = BTreeMap::new();
    for (line, go, ours) in LINES {
        let found = (taken(&binaries.go, line)?, taken(&binaries.ours, line)?);
        if found != (*go, *ours) {
            differences.insert(line, found);
        }
    }
    ensure!(
        differences.is_empty(),
        "otherwise than in the table (Go, ours): {differences:#?}"
    );
    Ok(())
}

fn taken(program: &Path, line: &str) -> Result<Taken> {
    let status = Command::new(program)
        .args(line.split(' '))
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("run {}", program.display()))?;
    Ok(if status.success() { Yes } else { No })
}

fn text(program: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(args)
        .output()
        .with_context(|| format!("run {}", program.display()))?;
    // Go's flag package prints its help to standard error.
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8(text).with_context(|| format!("read the help of {}", program.display()))
}
