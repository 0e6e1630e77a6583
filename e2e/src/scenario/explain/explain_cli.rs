//! Runs `kubectl-csi_attach explain`.

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use super::super::test_env::{STEP_TIMEOUT, TestEnv};
use crate::toolchain::workspace_root;
use crate::wait::{self, Progress};

/// Namespace and name of the ServiceAccount in `deploy/components/explain`.
const ACCOUNT: (&str, &str) = ("csi-attacher", "csi-attacher-explain");
/// An account with an attacher's permissions that attaches nothing.
const UNPRIVILEGED: &str = "unprivileged";
/// Explains all volumes of the environment's driver.
pub(super) const CLUSTER: &str = "-A";
/// Timeout of one run.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs the plugin with the permissions of `deploy/`.
pub(super) struct ExplainCli {
    program: PathBuf,
    kubeconfig: PathBuf,
    unprivileged: PathBuf,
}

/// Credentials of the request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Account {
    /// The account for explanations.
    Explain,
    /// An account with an attacher's permissions, which may not read pods, claims and nodes.
    Unprivileged,
}

/// Output of the plugin.
#[derive(Debug)]
pub(super) struct CliOutput {
    pub(super) code: i32,
    /// The JSON, or null if there is none.
    pub(super) json: Value,
    pub(super) stderr: String,
}

/// Expected output.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    code: i32,
    cause: &'static str,
    actor: &'static str,
    says: Option<&'static str>,
}

// === impl Expected ===

impl Expected {
    pub(super) fn fine() -> Self {
        Self {
            code: 0,
            cause: "fine",
            actor: "none",
            says: None,
        }
    }

    pub(super) fn stuck(cause: &'static str, actor: &'static str) -> Self {
        Self {
            code: 1,
            cause,
            actor,
            says: None,
        }
    }

    /// Expects these words in the finding.
    pub(super) fn saying(mut self, words: &'static str) -> Self {
        self.says = Some(words);
        self
    }

    /// The worst path comes first.
    fn is_met_by(&self, output: &CliOutput) -> bool {
        let finding = &output.json["paths"][0]["finding"];
        let says = |words: &str| finding.to_string().contains(words);
        output.code == self.code
            && finding["cause"] == self.cause
            && finding["actor"] == self.actor
            && self.says.is_none_or(says)
    }
}

// === impl ExplainCli ===

impl ExplainCli {
    /// Creates the ServiceAccount of `deploy/components/explain`, and its credentials.
    pub(super) async fn new(env: &TestEnv<'_>) -> Result<Self> {
        let file = workspace_root().join("deploy/components/explain/rbac.yaml");
        let manifest = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let cluster = env.ctx().cluster();
        cluster.apply(&manifest).await?;
        let (namespace, account) = ACCOUNT;
        let kubeconfig = cluster
            .service_account_kubeconfig(namespace, account, env.dir())
            .await?;
        let prefix = env.prefix();
        cluster
            .create_attacher_account(prefix, UNPRIVILEGED, false)
            .await?;
        Ok(Self {
            program: env.ctx().explain_plugin().await?,
            kubeconfig,
            unprivileged: cluster
                .service_account_kubeconfig(prefix, UNPRIVILEGED, env.dir())
                .await?,
        })
    }

    /// Deletes the objects that the teardown of the test environment does not delete.
    pub(super) async fn teardown(self, env: &TestEnv<'_>) -> Result<()> {
        let cluster = env.ctx().cluster();
        cluster.delete_account(env.prefix(), UNPRIVILEGED).await
    }

    /// Runs explain until its output matches.
    pub(super) async fn wait(&self, env: &TestEnv<'_>, object: &str, expected: Expected) -> Result<()> {
        // A test environment's volumes are named after it; scenarios use the names of their claims.
        let object = match object.strip_prefix("pv/") {
            Some(name) => format!("pv/{}-{name}", env.prefix()),
            None => object.to_owned(),
        };
        let what = format!("{object} to be explained as {expected:?}");
        wait::poll(STEP_TIMEOUT, &what, || async {
            let output = self.run_json(Account::Explain, env, &object).await?;
            if !expected.is_met_by(&output) {
                return Ok(Progress::Pending(format!("{output:#?}")));
            }
            let gaps = &output.json["gaps"];
            if gaps.as_array().is_none_or(|gaps| !gaps.is_empty()) {
                bail!("deploy/components/explain lacks a permission: {gaps}");
            }
            Ok(Progress::Reached(()))
        })
        .await
    }

    /// Runs explain once, with JSON output.
    pub(super) async fn run_json(
        &self,
        account: Account,
        env: &TestEnv<'_>,
        object: &str,
    ) -> Result<CliOutput> {
        let output = self.run(account, env, object, "json").await?;
        let code = output
            .status
            .code()
            .context("an explanation must not be killed")?;
        Ok(CliOutput {
            code,
            json: serde_json::from_slice(&output.stdout).unwrap_or_default(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Runs explain once, with text output.
    pub(super) async fn read(&self, env: &TestEnv<'_>, object: &str) -> Result<String> {
        let output = self.run(Account::Explain, env, object, "text").await?;
        String::from_utf8(output.stdout).context("an explanation must be text")
    }

    async fn run(&self, account: Account, env: &TestEnv<'_>, object: &str, form: &str) -> Result<Output> {
        let kubeconfig = match account {
            Account::Explain => &self.kubeconfig,
            Account::Unprivileged => &self.unprivileged,
        };
        let mut command = Command::new(&self.program);
        let (marker, value) = env.ctx().run().marker();
        command
            .args(["explain", "--stuck-after=0s"])
            // Other scenarios may share the cluster.
            .args(match object {
                CLUSTER => [CLUSTER, "--driver", env.driver.name()],
                _ => [object, "--namespace", env.prefix()],
            })
            .arg(format!("--output={form}"))
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .env(marker, value)
            .kill_on_drop(true);
        timeout(RESPONSE_TIMEOUT, command.output())
            .await
            .with_context(|| format!("no explanation of {object} in {RESPONSE_TIMEOUT:?}"))?
            .context("run kubectl-csi_attach explain")
    }
}
