//! The namespace of a publish secret is deleted, and with it what let the attacher read secrets there.
//!
//! The API server then answers that reading the secret is forbidden, not that there is none.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::Api;
use kube::api::{DeleteParams, PostParams};

use super::stage::{A, ACCOUNT, PATIENCE, SECRET, SECRET_KEY, Setting, Stage};
use super::{Oddity, Scenario, Verdict};
use crate::fixture::SCENARIO_LABEL;
use crate::rights::SECRET_NAMESPACE_GONE;
use crate::wait;

pub(super) const SCENARIO: Scenario = Scenario {
    name: SECRET_NAMESPACE_GONE,
    about: "A volume is detached without its publish secret when the namespace of the secret was deleted.",
    setting: Setting {
        nodes: 1,
        ..Setting::DEFAULT
    },
    go: Verdict::Fails {
        oddity: Oddity::Listed(10),
        sign: "is forbidden",
        always: true,
    },
    play: |stage| Box::pin(play(stage)),
};

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let vault = format!("{}-vault", stage.prefix());
    open_vault(stage, &vault).await?;
    let (pv, handle) = stage.loose_secret_volume(&vault).await?;
    stage.ask_to_attach(&pv, A).await?;
    stage.wait_until_attached(&pv).await?;

    let namespaces = Api::<Namespace>::all(stage.client());
    namespaces.delete(&vault, &DeleteParams::default()).await?;
    wait::for_absence(&namespaces, &vault, PATIENCE, "the secret's namespace to go").await?;
    let cluster = stage.site().cluster();
    cluster
        .wait_until_secrets_are(false, stage.prefix(), ACCOUNT, &vault)
        .await?;

    stage.ask_to_detach(&pv).await?;
    stage.wait_until_let_go(&pv).await?;
    let published = stage.driver.published().await?;
    ensure!(published.is_empty(), "still published: {published:?}");
    let calls = stage.driver.calls()?;
    let secrets_of = |method: &str| {
        let mut calls = calls.iter();
        let call = calls.find(|call| call.method == method && call.volume == handle && call.succeeded());
        call.map(|call| &call.secrets)
            .with_context(|| format!("no successful {method}"))
    };
    let attached = secrets_of("ControllerPublishVolume")?;
    ensure!(
        attached.iter().eq([SECRET_KEY]),
        "the attach came with the secrets {attached:?}"
    );
    let detached = secrets_of("ControllerUnpublishVolume")?;
    ensure!(
        detached.is_empty(),
        "the detach came with secrets that are gone: {detached:?}"
    );
    Ok(())
}

/// Makes a namespace with the stage's secret in it, and lets the attacher read secrets there as `deploy/` says
/// that it be done.
async fn open_vault(stage: &Stage<'_>, vault: &str) -> Result<()> {
    let prefix = stage.prefix();
    let cluster = stage.site().cluster();
    let manifest = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {vault}, labels: {{{SCENARIO_LABEL}: {prefix}}}}}\n\
         ---\napiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\n\
         metadata: {{name: csi-attacher-publish-secrets, namespace: {vault}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: csi-attacher-publish-secrets}}\n\
         subjects: [{{kind: ServiceAccount, name: {ACCOUNT}, namespace: {prefix}}}]\n"
    );
    cluster.apply(&manifest).await.context("open the vault")?;
    // The very secret whose value nobody may write anywhere.
    let own = Api::<Secret>::namespaced(stage.client(), prefix)
        .get(SECRET)
        .await?;
    let mut secret = Secret {
        data: own.data,
        ..Secret::default()
    };
    secret.metadata.name = Some(SECRET.to_owned());
    Api::<Secret>::namespaced(stage.client(), vault)
        .create(&PostParams::default(), &secret)
        .await
        .context("put the secret into the vault")?;
    cluster.wait_until_secrets_are(true, prefix, ACCOUNT, vault).await
}
