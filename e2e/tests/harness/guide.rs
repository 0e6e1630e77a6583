//! The Go test in the driver's README, extracted and run.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use csi_e2e::process::stdout_of;
use csi_e2e::toolchain::workspace_root;
use tokio::process::Command;

use crate::Harness;

/// The code under test, which the README does not contain.
const SUBJECT: &str = include_str!("guide_subject.go");
/// Includes the compilation of Go's standard library if it is not cached.
const DEADLINE: Duration = Duration::from_secs(300);

trials! { "guide":
    the_go_test_of_the_readme_passes_with_the_driver,
}

async fn the_go_test_of_the_readme_passes_with_the_driver(harness: Arc<Harness>) -> Result<()> {
    let go = harness.toolchain.settings().go()?;
    let readme = std::fs::read_to_string(workspace_root().join("mock-driver/README.md"))?;
    let blocks: Vec<_> = readme.split("\n```go\n").skip(1).collect();
    let [block] = blocks.as_slice() else {
        anyhow::bail!(
            "mock-driver/README.md must have one example in Go, and has {}",
            blocks.len()
        );
    };
    let (example, _) = block.split_once("\n```\n").context("the example must end")?;
    let dir = harness.run.subdir("guide")?;
    std::fs::write(dir.join("go.mod"), "module sidecar\n\ngo 1.26\n")?;
    std::fs::write(dir.join("driver_test.go"), format!("{example}\n"))?;
    std::fs::write(dir.join("subject.go"), SUBJECT)?;
    let test = Command::new(&go)
        .args(["test", "-count=1", "-v", "."])
        .current_dir(&dir)
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .env("GOFLAGS", "-trimpath")
        .env("CSI_MOCK_DRIVER", harness.toolchain.csi_mock_driver().await?)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(DEADLINE, test)
        .await
        .context("go test does not end")?;
    let output = output.context("run go test")?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && stdout.contains("--- PASS: TestDriverThatIsNotThereYet"),
        "the example of mock-driver/README.md ended with {}: {stdout}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let unformatted = stdout_of(Command::new(go.with_file_name("gofmt")).arg("-l").arg(&dir)).await?;
    ensure!(unformatted.is_empty(), "gofmt would change {unformatted}");
    Ok(())
}
