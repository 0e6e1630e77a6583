//! The namespace of a publish Secret is deleted, including its RoleBinding for the attacher.
//!
//! The API server then returns Forbidden for the Secret, not NotFound.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::Api;

use super::test_env::{A, ACCOUNT, SECRET, SECRET_KEY, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, KnownIssue, Scenario};
use crate::driver::journal::{PUBLISH, UNPUBLISH};
use crate::fixture::SCENARIO_LABEL;
use crate::objects;
use crate::permissions::SECRET_NAMESPACE_GONE;
use crate::wait;

pub(super) const SCENARIO: Scenario = Scenario::new(
    SECRET_NAMESPACE_GONE,
    "A volume is detached without its publish secret when the namespace of the secret was deleted.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    node_drivers: false,
    ..ScenarioConfig::ONE_NODE
})
.with_go(ExpectedOutcome::fails(KnownIssue(10), "is forbidden"));

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let vault = format!("{}-vault", env.prefix());
    open_vault(env, &vault).await?;
    let (pv, handle) = env.unbound_volume_with_secret(&vault).await?;
    env.create_attachment(&pv, A).await?;
    env.wait_until_attached(&pv).await?;

    let namespaces = Api::<Namespace>::all(env.client());
    objects::delete(&namespaces, &vault).await?;
    wait::for_absence(&namespaces, &vault, STEP_TIMEOUT, "the secret's namespace to go").await?;
    let cluster = env.ctx().cluster();
    cluster
        .wait_until_secrets_are(false, env.prefix(), ACCOUNT, &vault)
        .await?;

    env.delete_attachment(&pv).await?;
    env.wait_until_attachment_gone(&pv).await?;
    let calls = env.driver.calls()?;
    let secrets_of = |method: &str| {
        let mut calls = calls.iter();
        let call = calls.find(|call| call.method == method && call.volume == handle && call.succeeded());
        call.map(|call| &call.secrets)
            .with_context(|| format!("no successful {method}"))
    };
    let attached = secrets_of(PUBLISH)?;
    ensure!(
        attached.iter().eq([SECRET_KEY]),
        "the attach came with the secrets {attached:?}"
    );
    let detached = secrets_of(UNPUBLISH)?;
    ensure!(
        detached.is_empty(),
        "the detach came with secrets that are gone: {detached:?}"
    );
    Ok(())
}

/// Creates a namespace with the publish Secret, and grants the attacher access to its Secrets as in `deploy/`.
async fn open_vault(env: &TestEnv<'_>, vault: &str) -> Result<()> {
    let prefix = env.prefix();
    let cluster = env.ctx().cluster();
    let manifest = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {vault}, labels: {{{SCENARIO_LABEL}: {prefix}}}}}\n\
         ---\napiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\n\
         metadata: {{name: csi-attacher-publish-secrets, namespace: {vault}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: csi-attacher-publish-secrets}}\n\
         subjects: [{{kind: ServiceAccount, name: {ACCOUNT}, namespace: {prefix}}}]\n"
    );
    cluster.apply(&manifest).await.context("open the vault")?;
    // The secret whose value must not be written anywhere.
    let own = Api::<Secret>::namespaced(env.client(), prefix)
        .get(SECRET)
        .await?;
    let mut secret = Secret {
        data: own.data,
        ..Secret::default()
    };
    secret.metadata.name = Some(SECRET.to_owned());
    objects::create(&Api::<Secret>::namespaced(env.client(), vault), &secret).await?;
    cluster.wait_until_secrets_are(true, prefix, ACCOUNT, vault).await
}
