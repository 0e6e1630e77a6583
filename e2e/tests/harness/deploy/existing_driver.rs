//! The commands of `deploy/README.md` for the manifests of another driver, as kustomize renders them.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use csi_e2e::cluster::manifest;
use csi_e2e::document::{Shell, block};
use csi_e2e::toolchain::workspace_root;
use k8s_openapi::api::apps::v1::Deployment;
use verdict::Requirement::Program;

use super::{container_of_image, of_kind};
use crate::Harness;

const DOCUMENT: &str = "deploy/README.md";
const COMMANDS: &str = "cp -r deploy/overlays/existing-driver";
/// The attacher's container of the sample, before which the README's driver has another one.
const ATTACHER: &str = "        - name: csi-attacher\n";
const PROVISIONER: &str =
    "        - name: csi-provisioner\n          image: registry.k8s.io/sig-storage/csi-provisioner:v6.3.0\n";

trials! { "deploy":
    commands_for_an_existing_driver_bound_its_calls,
}

async fn commands_for_an_existing_driver_bound_its_calls(harness: Arc<Harness>) -> Result<()> {
    Program("bash").check()?;
    let kubectl = harness.toolchain.kubectl().await?;
    let sample = workspace_root().join("deploy/overlays/existing-driver/driver.yaml");
    let sample = std::fs::read_to_string(sample)?;
    let commands = block(DOCUMENT, COMMANDS)?;
    let (commands, _) = commands
        .split_once("kubectl apply")
        .context("the commands must apply the manifests")?;
    for (workload, is_bounded) in [("my-driver-controller", true), ("other-controller", false)] {
        let shell = Shell::new(&harness.run, &format!("existing-driver-{workload}"))?
            .program("kubectl", &kubectl)?
            .replacing("cp my-driver.yaml", "cp ~/my-driver.yaml");
        let driver = sample
            .replace("disk-csi-controller", workload)
            .replace(ATTACHER, &format!("{PROVISIONER}{ATTACHER}"));
        std::fs::write(shell.home().join("my-driver.yaml"), driver)?;
        let checked = shell.run(commands).await;
        ensure!(
            checked.is_ok() == is_bounded,
            "the commands for {workload}: {checked:?}"
        );
        shell.ensure_all_replaced()?;
        let built = shell.run("kubectl kustomize ~/existing-driver").await?;
        let deployments: Vec<Deployment> = of_kind(&manifest::parse(&built)?, "Deployment")?;
        let pod = deployments
            .first()
            .and_then(|driver| driver.spec.template.spec.as_ref());
        let containers = pod
            .context("the driver must have a Deployment")?
            .containers
            .iter();
        let attacher = container_of_image(containers, "csi-attacher");
        let attacher = attacher.context("the Deployment must have the attacher")?;
        let arguments = attacher.args.as_deref().unwrap_or_default();
        ensure!(
            arguments
                .iter()
                .any(|argument| argument == "--max-driver-calls=10")
                == is_bounded,
            "the attacher of {workload} has the arguments {arguments:?}"
        );
    }
    Ok(())
}
