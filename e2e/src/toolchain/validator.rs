//! The Go programs of `e2e/validators`, which validate `deploy/`: kustomize, Prometheus' parser, and readers of the
//! definitions and flags that Kubernetes' storage tests and the other sidecars accept; and kubectl and Helm for the commands
//! of the documents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tokio::io::AsyncWriteExt;

use super::go::GoProgram;
use super::{Toolchain, workspace_root};

const KUSTOMIZE: GoProgram = GoProgram {
    module: "e2e/validators",
    package: "./kustomize",
    name: "kustomize",
    stamps: &[],
    what: "kustomize",
    expectation: "half a minute on two cores from cold caches",
};

const PROMQL: GoProgram = GoProgram {
    package: "./promql",
    name: "promql",
    what: "Prometheus' parser",
    ..KUSTOMIZE
};

const TESTDRIVER: GoProgram = GoProgram {
    package: "./testdriver",
    name: "testdriver",
    what: "the reader of Kubernetes' storage tests",
    expectation: "a few seconds",
    ..KUSTOMIZE
};

const SIDECAR: GoProgram = GoProgram {
    package: "./sidecar",
    name: "sidecar",
    what: "the reader of sidecars' flags",
    ..TESTDRIVER
};

const KUBECTL: GoProgram = GoProgram {
    package: "./kubectl",
    name: "kubectl",
    what: "kubectl",
    expectation: "2 minutes on two cores from cold caches",
    ..KUSTOMIZE
};

const HELM: GoProgram = GoProgram {
    package: "helm.sh/helm/v4/cmd/helm",
    name: "helm",
    what: "Helm",
    ..KUBECTL
};

/// The flags of a sidecar.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct SidecarFlags {
    /// Names of the flags.
    pub flags: BTreeSet<String>,
    /// Names of the feature gates.
    pub gates: BTreeSet<String>,
}

/// The fields of a test driver definition of Kubernetes' external storage suite.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct StorageSuite {
    /// The fields of the description.
    pub fields: Fields,
    /// The names of capabilities.
    pub capabilities: Vec<String>,
}

/// Fields by name, with their subfields.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Fields(pub BTreeMap<String, Option<Self>>);

/// The selectors and groupings of a PromQL expression.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Query {
    /// The series it selects.
    pub selectors: Vec<Selector>,
    /// The labels by which it groups or matches.
    pub grouping: Vec<String>,
}

/// A series selector.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Selector {
    /// Name of the metric.
    pub metric: String,
    /// Names of the labels in its matchers.
    pub labels: Vec<String>,
}

impl Toolchain {
    /// The objects of the kustomization in `dir`, as a YAML stream.
    ///
    /// # Errors
    /// kustomize's error.
    pub async fn kustomize(&self, dir: &Path) -> Result<String> {
        let dir = dir.to_str().context("the folder must have a UTF-8 name")?;
        self.run_validator(&KUSTOMIZE, &[dir], "").await
    }

    /// kubectl.
    pub async fn kubectl(&self) -> Result<PathBuf> {
        self.go_program(&KUBECTL).await
    }

    /// Helm.
    pub async fn helm(&self) -> Result<PathBuf> {
        self.go_program(&HELM).await
    }

    /// The query of each expression, in order.
    ///
    /// # Errors
    /// An expression is not PromQL.
    pub async fn promql(&self, expressions: &[String]) -> Result<Vec<Query>> {
        let asked = serde_json::to_string(expressions).context("serialise expressions")?;
        let output = self.run_validator(&PROMQL, &[], &asked).await?;
        serde_json::from_str(&output).context("parse the output of the PromQL parser")
    }

    /// The test driver definition's fields in the control plane's version of Kubernetes.
    ///
    /// # Errors
    /// The sources cannot be fetched, or their checksum differs.
    pub async fn storage_suite(&self) -> Result<StorageSuite> {
        let output = self
            .run_validator(&TESTDRIVER, &["e2e/control-plane"], "")
            .await?;
        serde_json::from_str(&output).context("parse the fields of the storage tests")
    }

    /// The flags of a sidecar in a released Go module, read from the sources in these folders.
    ///
    /// # Errors
    /// The release does not exist, its sources cannot be fetched, or their checksum differs.
    pub async fn sidecar_flags(&self, release: &str, folders: &[&str]) -> Result<SidecarFlags> {
        let output = self
            .run_validator(&SIDECAR, &[&[release], folders].concat(), "")
            .await?;
        serde_json::from_str(&output).context("parse the flags of the sidecar")
    }

    async fn run_validator(&self, program: &GoProgram, args: &[&str], stdin: &str) -> Result<String> {
        let executable = self.go_program(program).await?;
        let mut child = self
            .command(&executable, workspace_root())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("run {}", program.what))?;
        let mut input = child.stdin.take().expect("stdin must be piped");
        // The programs read their whole input before they write.
        input
            .write_all(stdin.as_bytes())
            .await
            .with_context(|| format!("write to {}", program.what))?;
        drop(input);
        let output = child
            .wait_with_output()
            .await
            .with_context(|| format!("read the output of {}", program.what))?;
        ensure!(
            output.status.success(),
            "{} {args:?} ended with {}: {}",
            program.what,
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        String::from_utf8(output.stdout).with_context(|| format!("{} must write UTF-8", program.what))
    }
}
