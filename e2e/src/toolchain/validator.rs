//! The Go programs of `e2e/validators`, which validate `deploy/`: kustomize, Prometheus' parser, and validators of the
//! definitions and flags that Kubernetes' storage tests and the other sidecars accept; and kubectl and Helm for the commands
//! of the documents.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
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
    what: "the validator of Kubernetes' storage tests",
    expectation: "a few seconds",
    ..KUSTOMIZE
};

const SIDECAR: GoProgram = GoProgram {
    package: "./sidecar",
    name: "sidecar",
    what: "the validator of sidecars' flags",
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

/// A program that writes what it read as JSON.
#[derive(Clone, Copy, Debug)]
pub enum Validator {
    /// The queries of PromQL expressions, a JSON list.
    Promql,
    /// The fields of a test driver definition for Kubernetes' storage suite, of the version of a Go module.
    StorageSuite,
    /// The flags of a sidecar: its release, a Go module, and folders of its sources.
    SidecarFlags,
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

    /// What a validator finds.
    ///
    /// # Errors
    /// The validator's error.
    pub async fn read<T: DeserializeOwned>(
        &self,
        validator: Validator,
        args: &[&str],
        stdin: &str,
    ) -> Result<T> {
        let program = match validator {
            Validator::Promql => &PROMQL,
            Validator::StorageSuite => &TESTDRIVER,
            Validator::SidecarFlags => &SIDECAR,
        };
        let output = self.run_validator(program, args, stdin).await?;
        serde_json::from_str(&output).with_context(|| format!("parse the output of {}", program.what))
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
