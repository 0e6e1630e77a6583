//! Errors of impossible builds name the missing program and how to install it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use csi_e2e::process::write_script;
use csi_e2e::toolchain::{Settings, Toolchain};

use crate::Harness;

trials! { "toolchain":
    missing_go_is_explained,
    old_go_is_explained,
    broken_go_is_explained,
    missing_named_binary_is_explained,
    build_is_reused,
}

async fn missing_go_is_explained(harness: Arc<Harness>) -> Result<()> {
    let settings = Settings {
        path: Some("".into()),
        ..Settings::default()
    };
    let text = build_error(&harness, settings).await?;
    for part in ["`go` is not on PATH", "Go 1.26.0 or newer", "https://go.dev/dl/"] {
        ensure!(text.contains(part), "no {part:?} in: {text}");
    }
    Ok(())
}

async fn old_go_is_explained(harness: Arc<Harness>) -> Result<()> {
    let text = build_error(
        &harness,
        with_go(&harness, "old", "echo go1.21.13; echo linux; echo amd64")?,
    )
    .await?;
    for part in ["Go 1.21.13", "too old", "Go 1.26.0 or newer"] {
        ensure!(text.contains(part), "no {part:?} in: {text}");
    }
    Ok(())
}

async fn broken_go_is_explained(harness: Arc<Harness>) -> Result<()> {
    let text = build_error(
        &harness,
        with_go(
            &harness,
            "broken",
            "echo GOTOOLCHAIN=local forbids it >&2; exit 1",
        )?,
    )
    .await?;
    for part in ["GOTOOLCHAIN=local forbids it", "Go 1.26.0 or newer"] {
        ensure!(text.contains(part), "no {part:?} in: {text}");
    }
    Ok(())
}

async fn missing_named_binary_is_explained(harness: Arc<Harness>) -> Result<()> {
    let settings = Settings {
        attacher: Some("/does/not/exist".into()),
        ..Settings::default()
    };
    let error = Toolchain::new(&harness.run, settings).csi_attacher().await;
    let text = format!("{:#}", error.err().context("a missing binary must be an error")?);
    for part in ["CSI_ATTACHER_BIN", "/does/not/exist", "unset"] {
        ensure!(text.contains(part), "no {part:?} in: {text}");
    }
    Ok(())
}

async fn build_is_reused(harness: Arc<Harness>) -> Result<()> {
    let first = harness.toolchain.control_plane().await?;
    let built = first.metadata()?.modified()?;
    let second = harness.toolchain.control_plane().await?;
    ensure!(
        first == second,
        "{} was built again as {}",
        first.display(),
        second.display()
    );
    ensure!(
        second.metadata()?.modified()? == built,
        "{} was replaced",
        second.display()
    );
    Ok(())
}

/// Error of a Go build with these toolchain settings.
async fn build_error(harness: &Arc<Harness>, settings: Settings) -> Result<String> {
    let built = Toolchain::new(&harness.run, settings).control_plane().await;
    Ok(format!("{:#}", built.err().context("the build must fail")?))
}

/// Settings with a `PATH` on which `go` is a script.
fn with_go(harness: &Harness, name: &str, script: &str) -> Result<Settings> {
    let dir: PathBuf = harness.run.subdir(&format!("go-{name}"))?;
    let go = dir.join("go");
    write_script(&go, &format!("#!/bin/sh\n{script}\n"))?;
    Ok(Settings {
        path: Some(dir.into()),
        ..Settings::default()
    })
}
