//! The command line of `kubectl csi-attach`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use jiff::SignedDuration;

use crate::resource::{self, Resource, ResourceKind};

/// Explains where a CSI volume is stuck between pod and node.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "kubectl-csi_attach",
    bin_name = "kubectl csi-attach",
    version,
    propagate_version = true
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    Explain(ExplainArgs),
    /// Print a shell completion script for kubectl-csi_attach.
    Completion {
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print candidates for kubectl's own completion (cobra's protocol).
    #[command(
        name = "__complete",
        hide = true,
        disable_help_flag = true,
        disable_version_flag = true
    )]
    Complete {
        #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
        words: Vec<String>,
    },
}

/// Explain how far a volume is on its way to or from a node, who must act next, since when, why, and what to do.
///
/// Reads pod, claim, volume, VolumeAttachment, CSINode, node status and the attacher's lease. Writes nothing. Objects
/// that may not be read are listed, and the explanation continues without them.
#[derive(Clone, Debug, Parser)]
#[command(
    after_help = EXAMPLES,
    override_usage = "kubectl csi-attach explain <KIND>/<NAME> [-n NAMESPACE] [FLAGS]\n       \
                      kubectl csi-attach explain <KIND> <NAME> [-n NAMESPACE] [FLAGS]\n       \
                      kubectl csi-attach explain -A [FLAGS]"
)]
pub(crate) struct ExplainArgs {
    /// Object to explain: pod (po), persistentvolumeclaim (pvc), persistentvolume (pv), volumeattachment (va) or
    /// node (no), followed by its name.
    #[arg(num_args = 1..=2, value_name = "KIND/NAME")]
    object: Vec<String>,

    /// Explain every volume of the cluster that waits for something, the worst first: pods that are pending or
    /// terminating, VolumeAttachments that are not attached or being deleted, PersistentVolumes that are being deleted.
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,

    /// Namespace of the pod or claim. Default: the namespace of the kubeconfig's context.
    #[arg(long, short = 'n', value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// Kubeconfig file. Default: $KUBECONFIG, then ~/.kube/config, then the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig to use. Default: the current context.
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// Explain only volumes of this CSI driver.
    #[arg(long, value_name = "DRIVER")]
    pub(crate) driver: Option<String>,

    /// Output format.
    #[arg(long, short = 'o', value_enum, default_value_t = Output::Text, value_name = "FORMAT")]
    pub(crate) output: Output,

    /// Duration after which a step that has not completed counts as stuck.
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "DURATION")]
    pub(crate) stuck_after: Duration,

    /// Explain again whenever something changes, until interrupted.
    #[arg(long, short = 'w')]
    pub(crate) watch: bool,
}

const EXAMPLES: &str = "\
Examples:
  kubectl csi-attach explain pod/db-0 -n shop
  kubectl csi-attach explain pvc data-db-0 -n shop
  kubectl csi-attach explain node worker-3 --output json
  kubectl csi-attach explain -A --watch
  kubectl get volumeattachments -o name | head -1
  kubectl csi-attach explain volumeattachment/csi-0c1...

Exit code:
  0  no volume is stuck
  1  a volume is stuck
  2  wrong usage, or the object or the cluster cannot be read";

/// Output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

// === impl Args ===

impl Args {
    /// Parses the command line, the program's name first.
    ///
    /// # Errors
    ///
    /// clap's, `--help` included.
    pub(crate) fn read(line: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let matches = command.try_get_matches_from_mut(line)?;
        let args = Self::from_arg_matches(&matches)?;
        match &args.command {
            Command::Explain(explain) => match explain.check() {
                Ok(()) => Ok(args),
                Err(text) => Err(command.error(ErrorKind::ValueValidation, text)),
            },
            Command::Completion { .. } | Command::Complete { .. } => Ok(args),
        }
    }
}

// === impl ExplainArgs ===

impl ExplainArgs {
    fn check(&self) -> Result<(), String> {
        match (self.all_namespaces, self.object.as_slice()) {
            (true, []) => Ok(()),
            (true, objects) => Err(format!(
                "-A explains the whole cluster: leave out {:?}, or leave out -A and write KIND/NAME",
                objects.join(" ")
            )),
            (false, []) => Err("write KIND/NAME, such as pod/web-0, or -A for the whole cluster".to_owned()),
            (false, object) => resource::parse(object).map(drop),
        }
    }

    /// What to explain; `default_namespace` applies without `--namespace`.
    pub(crate) fn resource(&self, default_namespace: &str) -> Resource {
        if self.all_namespaces {
            return Resource {
                kind: ResourceKind::Cluster,
                ..Resource::default()
            };
        }
        let (kind, name) = resource::parse(&self.object).unwrap_or_default();
        let namespace = if kind.is_namespaced() {
            self.namespace.as_deref().unwrap_or(default_namespace)
        } else {
            ""
        };
        Resource {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

fn duration(value: &str) -> Result<Duration, String> {
    let parsed = value.parse::<SignedDuration>().ok();
    parsed
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or_else(|| format!("{value:?} is not a duration such as 300ms, 15s or 1m30s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &[&str]) -> Result<ExplainArgs, clap::Error> {
        let line = ["kubectl-csi_attach", "explain"].iter().chain(line);
        let command = Args::read(line.map(OsString::from))?.command;
        let Command::Explain(args) = command else {
            panic!("{command:?}");
        };
        Ok(args)
    }

    #[test]
    fn accepts_kinds_and_names_like_kubectl() {
        use ResourceKind::*;
        for (line, kind, namespace, name) in [
            (&["pod/db-0", "-n", "shop"][..], Pod, "shop", "db-0"),
            (&["po", "db-0"], Pod, "default", "db-0"),
            (
                &["-n", "shop", "PVC", "data"],
                PersistentVolumeClaim,
                "shop",
                "data",
            ),
            (&["pv/pv-1", "-n", "shop"], PersistentVolume, "", "pv-1"),
            (
                &["volumeattachment.storage.k8s.io/csi-1"],
                VolumeAttachment,
                "",
                "csi-1",
            ),
            (&["va", "csi-1"], VolumeAttachment, "", "csi-1"),
            (&["nodes", "node-a.example"], Node, "", "node-a.example"),
            (&["-A"], Cluster, "", ""),
        ] {
            let resource = Resource {
                kind,
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            };
            assert_eq!(read(line).unwrap().resource("default"), resource, "{line:?}");
        }
    }

    #[test]
    fn usage_errors_name_the_remedy_and_exit_with_2() {
        for (line, part) in [
            (&[][..], "KIND/NAME"),
            (&["db-0"], "pod/db-0"),
            (&["secret/s"], "volumeattachment (va)"),
            (&["pod"], "write pod/NAME"),
            (&["pod/a", "pod/b"], "one object at a time"),
            (&["pod/"], "is not a valid object name"),
            (&["pod", "../nodes"], "is not a valid object name"),
            (&["pod/a", "--output", "xml"], "json"),
            (&["pod/a", "--stuck-after", "soon"], "--stuck-after"),
            (&["pod/a", "--stuck-after=-1s"], "--stuck-after"),
            (&["pod", "a", "b"], "b"),
            (&["pods", "-A"], "leave out \"pods\""),
            (&["-A", "-n", "shop"], "--namespace"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.to_string().contains(part), "{line:?}: {error}");
            assert_eq!(error.exit_code(), 2, "{line:?}");
        }
        assert_eq!(read(&["--help"]).unwrap_err().exit_code(), 0);
    }

    #[test]
    fn parses_durations_like_go() {
        for (value, milliseconds) in [("0s", 0), ("300ms", 300), ("30s", 30_000), ("1m30s", 90_000)] {
            assert_eq!(
                duration(value),
                Ok(Duration::from_millis(milliseconds)),
                "{value}"
            );
        }
    }
}
