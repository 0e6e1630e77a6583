//! The programs that `deploy/` runs, with the flags and probes that it gives them.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use csi_e2e::toolchain::{Peer, workspace_root};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Container;
use libtest_mimic::Trial;
use tokio::process::Command;

use super::shape::Shape;
use super::{container_of_image, image_name};
use crate::{Bench, trial};

/// Name of the attacher's image, ours and the Go one's.
const ATTACHER: &str = "csi-attacher";
/// Name of the driver's image.
const DRIVER: &str = "csi-mock-driver";

pub(crate) fn trials(bench: &Arc<Bench>) -> Vec<Trial> {
    vec![
        trial(
            bench,
            "deploy::programs_take_the_flags_they_are_given",
            programs_take_their_flags,
        ),
        trial(
            bench,
            "deploy::images_have_a_version_that_there_is",
            images_have_a_version,
        ),
    ]
}

/// Whatever is written for one attacher must do for the other, so that there is a way there and a way back.
async fn programs_take_their_flags(bench: Arc<Bench>) -> Result<()> {
    let attachers = [
        bench.toolchain.csi_attacher().await?,
        bench.toolchain.peer(Peer::ExternalAttacher).await?,
    ];
    let driver = bench.toolchain.csi_mock_driver().await?;
    let (mut attached, mut driven) = (0, 0);
    for (shape, deployment) in deployments(&bench).await? {
        if let Some(container) = container_of_image(&deployment, ATTACHER)? {
            for attacher in &attachers {
                takes_flags(attacher, &container)
                    .await
                    .with_context(|| shape.to_string())?;
            }
            attached += 1;
        }
        if let Some(container) = container_of_image(&deployment, DRIVER)? {
            takes_flags(&driver, &container)
                .await
                .with_context(|| shape.to_string())?;
            driven += 1;
        }
    }
    ensure!(
        attached >= 2 && driven >= 1,
        "{attached} attachers and {driven} drivers were tried"
    );
    Ok(())
}

/// With `--version` behind them, flags are read and nothing is done.
async fn takes_flags(program: &Path, container: &Container) -> Result<()> {
    let args = expanded(container)?;
    let output = Command::new(program)
        .args(&args)
        .arg("--version")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("run {}", program.display()))?;
    ensure!(
        output.status.success() && !output.stdout.is_empty(),
        "{} {args:?} ended with {}: {}",
        program.display(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// The arguments with variables in their places, as kubelet puts them.
fn expanded(container: &Container) -> Result<Vec<String>> {
    let mut args = container.args.clone().unwrap_or_default();
    for variable in container.env.iter().flatten() {
        let value = variable.value.as_ref();
        let value = value.with_context(|| format!("{} must have a value", variable.name))?;
        for arg in &mut args {
            *arg = arg.replace(&format!("$({})", variable.name), value);
        }
    }
    let open = args.iter().find(|arg| arg.contains("$("));
    ensure!(open.is_none(), "{open:?} names a variable that is not there");
    Ok(args)
}

async fn images_have_a_version(bench: Arc<Bench>) -> Result<()> {
    let manifest = std::fs::read_to_string(workspace_root().join("e2e/peers/go.mod"))?;
    let go = manifest
        .lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("github.com/kubernetes-csi/external-attacher/v4 ")
        })
        .find_map(|rest| rest.split_whitespace().next())
        .context("go.mod must require the Go attacher")?;
    for (shape, deployment) in deployments(&bench).await? {
        for image in [ATTACHER, DRIVER] {
            let Some(container) = container_of_image(&deployment, image)? else {
                continue;
            };
            let image = container.image.context("a container must have an image")?;
            // Only the Go attacher's image has a registry in its name.
            let expected = if image.contains('/') {
                go
            } else {
                env!("CARGO_PKG_VERSION")
            };
            ensure!(
                image_name(&image).1 == Some(expected),
                "{shape}: {image} should be version {expected}"
            );
        }
    }
    Ok(())
}

async fn deployments(bench: &Bench) -> Result<Vec<(Shape, Deployment)>> {
    let mut found = Vec::new();
    for shape in Shape::all()? {
        for deployment in shape.deployments(bench).await? {
            found.push((shape.clone(), deployment));
        }
    }
    Ok(found)
}
