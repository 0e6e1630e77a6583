//! The charts as Helm renders them, validated by the API server. `e2e/validators` compares them with the kustomizations.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use csi_e2e::process::stdout_of;
use csi_e2e::toolchain::workspace_root;
use tokio::process::Command;

use super::kinds;
use crate::Harness;

const NAMESPACE: &str = "charts";
/// Charts below `deploy/charts`, with options of Helm: the default values, and every optional part.
const RELEASES: [(&str, &[&str]); 4] = [
    ("csi-attacher", &[]),
    (
        "csi-attacher",
        &[
            "--values=deploy/charts/csi-attacher/ci/mock-driver-values.yaml",
            "--set=serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true",
            "--set=publishSecrets.enabled=true,finalizersOnly.enabled=true,csiDriver.create=true",
        ],
    ),
    ("csi-mock-driver", &[]),
    (
        "csi-mock-driver",
        &[
            "--set=snapshots.enabled=true,groupSnapshots.enabled=true",
            "--set=serviceMonitor.enabled=true",
        ],
    ),
];

trials! { "deploy":
    charts_are_accepted_by_the_api_server,
}

/// With strict field validation, without storing the objects.
async fn charts_are_accepted_by_the_api_server(harness: Arc<Harness>) -> Result<()> {
    let helm = harness.toolchain.helm().await?;
    let (cluster, _shared) = (harness.cluster().await?, harness.control_plane_lock.read().await);
    kinds::install(cluster).await?;
    let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n");
    cluster.apply(&namespace).await?;
    for (chart, options) in RELEASES {
        let what = format!("{chart} with {options:?}");
        let mut template = Command::new(&helm);
        template
            .args(["template", "release", &format!("deploy/charts/{chart}")])
            // The API server admits the pod of `helm test` only once its account exists.
            .args([
                &format!("--namespace={NAMESPACE}"),
                "--kube-version=1.37",
                "--skip-tests",
            ])
            .args(options)
            .current_dir(workspace_root());
        let objects = stdout_of(&mut template).await?;
        let checked = cluster.check(&objects).await.with_context(|| what.clone())?;
        ensure!(checked.len() >= 6, "{what} has {} objects", checked.len());
    }
    Ok(())
}
