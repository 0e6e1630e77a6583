//! The README's commands, run literally except for paths and ports.

use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use csi_proto::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, VolumeCapability};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::time::{sleep, timeout};

use crate::program::Program;
use crate::server::{DEADLINE, connect};

const README: &str = include_str!("../../README.md");
const PAUSE: Duration = Duration::from_millis(5);

/// The code blocks of a language, with their files in `dir`.
fn blocks(language: &str, dir: &Path) -> Vec<String> {
    let fence = format!("\n```{language}\n");
    let blocks = README.split(&fence).skip(1);
    blocks
        .map(|block| {
            let (text, _) = block.split_once("```").unwrap();
            text.replace("/tmp/", &format!("{}/", dir.display()))
        })
        .collect()
}

/// A script and its child processes, which are killed when the handle is dropped.
struct Shell(Child);

impl Drop for Shell {
    fn drop(&mut self) {
        // Fails only if the process group has exited.
        kill_process_group(Pid::from_child(&self.0), Signal::KILL).ok();
        self.0.wait().ok();
    }
}

fn driver() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_csi-mock-driver"));
    command.env_remove("RUST_BACKTRACE").stdin(Stdio::null());
    command
}

#[tokio::test]
async fn readme_command_lines_work_in_order() {
    let dir = tempfile::tempdir().unwrap();
    // A port that was just free.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let mut running = None;
    let mut ran = 0;
    for line in blocks("console", dir.path()).join("").lines() {
        let (line, _) = line.split_once(" #").unwrap_or((line, ""));
        let line = line.replace("127.0.0.1:9810", &address);
        let words: Vec<&str> = line.split_whitespace().collect();
        match &words[..] {
            ["cargo", "run", "-p", "csi-mock-driver", "--", flags @ ..] => {
                let flags = flags.iter().filter(|flag| !flag.starts_with("--endpoint="));
                // It is killed at the end, and leaves files elsewhere.
                let media = format!("--media-dir={}", dir.path().join("media").display());
                let flags = flags.copied().chain([&*media]);
                running = Some(Program::start(&dir.path().join("csi.sock"), flags).await);
                let admin = format!("--admin-endpoint={address}");
                let ready = async {
                    while !driver()
                        .args(["ctl", &admin, "info"])
                        .output()
                        .unwrap()
                        .status
                        .success()
                    {
                        sleep(PAUSE).await;
                    }
                };
                timeout(DEADLINE, ready)
                    .await
                    .expect("the admin API must respond in time");
            }
            ["csi-mock-driver", flags @ ..] => {
                let output = driver().args(flags).output().unwrap();
                assert!(
                    output.status.success() && !output.stdout.is_empty(),
                    "{line}: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
                ran += 1;
            }
            _ => panic!("no rule runs {line}"),
        }
    }
    assert!(running.is_some() && ran >= 4, "{ran}");
}

/// Replaces the tests that the script runs: once with passing calls and once without calls.
#[tokio::test]
async fn ci_script_passes_and_fails() {
    for (detaches, code) in [(4, 0), (0, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let path = |file: &str| dir.path().join(file);
        let [script] = &blocks("sh", dir.path())[..] else {
            panic!("there must be one script");
        };
        // No calls will arrive, so do not wait for them.
        let script = if detaches == 0 {
            script.replace("--timeout=10s", "--timeout=1ms")
        } else {
            script.clone()
        };
        symlink(env!("CARGO_BIN_EXE_csi-mock-driver"), path("csi-mock-driver")).unwrap();
        let tests = format!("#!/bin/sh\n: >{}\n", path("begun").display());
        std::fs::write(path("draft"), tests).unwrap();
        std::fs::set_permissions(path("draft"), PermissionsExt::from_mode(0o755)).unwrap();
        // Copied by another process: a child that another test is starting would hold our descriptor open for writing, and exec
        // would fail with ETXTBSY.
        let copied = Command::new("cp")
            .args([path("draft"), path("my-tests")])
            .status();
        assert!(copied.unwrap().success());
        let shell = Command::new("sh")
            .arg("-ec")
            .arg(format!("PATH={}:$PATH\n{script}", dir.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let mut shell = Shell(shell.unwrap());
        let begun = async {
            while !path("begun").exists() {
                assert_eq!(shell.0.try_wait().unwrap(), None, "the script ended early");
                sleep(PAUSE).await;
            }
        };
        timeout(DEADLINE, begun).await.expect("the tests must be called");
        detach(&path("csi.sock"), detaches).await;
        let ended = async {
            loop {
                if let Some(status) = shell.0.try_wait().unwrap() {
                    return status;
                }
                sleep(PAUSE).await;
            }
        };
        let status = timeout(DEADLINE, ended).await.expect("the script must end");
        assert_eq!(status.code(), Some(code), "after {detaches} detaches");
        assert!(path("calls.jsonl").exists());
    }
}

/// Attaches a volume, and tries so many times to detach it.
async fn detach(socket: &Path, times: usize) {
    if times == 0 {
        return;
    }
    let channel = connect(socket).await;
    let mut controller = csi_proto::v1::controller_client::ControllerClient::new(channel);
    let attach = ControllerPublishVolumeRequest {
        volume_id: "vol-0".to_owned(),
        node_id: "node-0".to_owned(),
        volume_capability: Some(VolumeCapability {
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }),
        ..ControllerPublishVolumeRequest::default()
    };
    controller.controller_publish_volume(attach).await.unwrap();
    for number in 1..=times {
        let detach = ControllerUnpublishVolumeRequest {
            volume_id: "vol-0".to_owned(),
            node_id: "node-0".to_owned(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        let response = controller.controller_unpublish_volume(detach).await;
        assert_eq!(response.is_ok(), number == times, "{number}: {response:?}");
    }
}
