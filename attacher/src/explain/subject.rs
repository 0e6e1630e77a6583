//! What is to be explained: the command line of `csi-attacher explain`.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, ValueEnum};

use crate::args::duration;

/// Says in plain words where a volume stands on its way to or from a node, who must act next, since
/// when, why, and what to do.
///
/// Walks pod, claim, volume, VolumeAttachment, CSINode, node status and the attacher's lease. Reads
/// only; what it may not read it names, and goes on without.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "csi-attacher explain",
    disable_version_flag = true,
    after_help = EXAMPLES,
    override_usage = "csi-attacher explain <KIND>/<NAME> [-n NAMESPACE] [FLAGS]\n       \
                      csi-attacher explain <KIND> <NAME> [-n NAMESPACE] [FLAGS]"
)]
pub(super) struct Request {
    /// What to explain: pod (po), persistentvolumeclaim (pvc), persistentvolume (pv),
    /// volumeattachment (va) or node (no), then its name.
    #[arg(required = true, num_args = 1..=2, value_name = "KIND/NAME")]
    object: Vec<String>,

    /// Namespace of the pod or claim. Default: that of the kubeconfig's context.
    #[arg(long, short = 'n', value_name = "NAMESPACE")]
    pub(super) namespace: Option<String>,

    /// Kubeconfig file. Default: $KUBECONFIG, then ~/.kube/config, then the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig to use, if not its current one.
    #[arg(long, value_name = "NAME")]
    pub(super) context: Option<String>,

    /// Only volumes of this CSI driver.
    #[arg(long, value_name = "DRIVER")]
    pub(super) driver: Option<String>,

    /// How to print the answer.
    #[arg(long, short = 'o', value_enum, default_value_t = Output::Text, value_name = "FORMAT")]
    pub(super) output: Output,

    /// How long a step may take before it counts as stuck.
    #[arg(long, default_value = "30s", value_parser = duration::not_negative, value_name = "DURATION")]
    pub(super) patience: Duration,
}

const EXAMPLES: &str = "\
Examples:
  csi-attacher explain pod/db-0 -n shop
  csi-attacher explain pvc data-db-0 -n shop
  csi-attacher explain node worker-3 --output json
  kubectl get volumeattachments -o name | head -1
  csi-attacher explain volumeattachment/csi-0c1...

Exit code:
  0  all is well, or on its way
  1  something is stuck
  2  wrong usage, or the object or the cluster cannot be read";

/// How the answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// A kind of object that can be asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Pod,
    Claim,
    Volume,
    Attachment,
    Node,
}

/// The object that is asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) kind: Kind,
    /// Empty for objects of the whole cluster.
    pub(super) namespace: String,
    pub(super) name: String,
}

// === impl Request ===

impl Request {
    /// Reads the command line behind `explain`.
    ///
    /// # Errors
    ///
    /// What clap has to say, `--help` included.
    pub(super) fn read(line: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let matches = command.try_get_matches_from_mut(line)?;
        let request = Self::from_arg_matches(&matches)?;
        match request.parsed() {
            Ok(_) => Ok(request),
            Err(text) => Err(command.error(ErrorKind::ValueValidation, text)),
        }
    }

    /// What is asked about; `namespace` is where a pod or claim is looked for if the line names none.
    pub(super) fn subject(&self, namespace: &str) -> Subject {
        let (kind, name) = self.parsed().unwrap_or_default();
        let namespace = match kind {
            Kind::Pod | Kind::Claim => self.namespace.as_deref().unwrap_or(namespace),
            Kind::Volume | Kind::Attachment | Kind::Node => "",
        };
        Subject {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    fn parsed(&self) -> Result<(Kind, &str), String> {
        let (kind, name) = match &*self.object {
            [both] => both.split_once('/').ok_or_else(|| match Kind::named(both) {
                Some(_) => format!("{both:?} names no object: write {both}/NAME"),
                None => format!("{both:?} names no object: write KIND/NAME, such as pod/{both}"),
            })?,
            [one, other] if one.contains('/') && other.contains('/') => {
                return Err(format!(
                    "one object at a time: ask for {one}, and then for {other}"
                ));
            }
            [kind, name] => (kind.as_str(), name.as_str()),
            _ => return Err("one object at a time".to_owned()),
        };
        let kind = Kind::named(kind).ok_or_else(|| {
            format!(
                "{kind:?} cannot be explained: only pod (po), persistentvolumeclaim (pvc), persistentvolume (pv), \
                 volumeattachment (va) and node (no)"
            )
        })?;
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
        if name.is_empty() || !name.chars().all(fits) {
            return Err(format!(
                "{name:?} is no name of a Kubernetes object: write KIND/NAME, such as pod/web-0"
            ));
        }
        Ok((kind, name))
    }
}

// === impl Kind ===

impl Kind {
    /// A kind as kubectl users spell it, with `kubectl get -o name`'s API group or without.
    fn named(text: &str) -> Option<Self> {
        let lower = text.to_ascii_lowercase();
        let name = lower.strip_suffix(".storage.k8s.io").unwrap_or(&lower);
        match name {
            "pod" | "pods" | "po" => Some(Self::Pod),
            "persistentvolumeclaim" | "persistentvolumeclaims" | "pvc" => Some(Self::Claim),
            "persistentvolume" | "persistentvolumes" | "pv" => Some(Self::Volume),
            "volumeattachment" | "volumeattachments" | "va" => Some(Self::Attachment),
            "node" | "nodes" | "no" => Some(Self::Node),
            _ => None,
        }
    }
}

// === impl Subject ===

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Pod => "pod",
            Kind::Claim => "persistentvolumeclaim",
            Kind::Volume => "persistentvolume",
            Kind::Attachment => "volumeattachment",
            Kind::Node => "node",
        };
        if self.namespace.is_empty() {
            write!(f, "{kind}/{}", self.name)
        } else {
            write!(f, "{kind}/{} in namespace {}", self.name, self.namespace)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &[&str]) -> Result<Request, clap::Error> {
        Request::read(std::iter::once(&"explain").chain(line).map(OsString::from))
    }

    #[test]
    fn objects_are_spelt_as_in_kubectl() {
        for (line, kind, namespace, name) in [
            (&["pod/db-0", "-n", "shop"][..], Kind::Pod, "shop", "db-0"),
            (&["po", "db-0"], Kind::Pod, "default", "db-0"),
            (&["-n", "shop", "PVC", "data"], Kind::Claim, "shop", "data"),
            (&["pv/pv-1", "-n", "shop"], Kind::Volume, "", "pv-1"),
            (
                &["volumeattachment.storage.k8s.io/csi-1"],
                Kind::Attachment,
                "",
                "csi-1",
            ),
            (&["va", "csi-1"], Kind::Attachment, "", "csi-1"),
            (&["nodes", "node-a.example"], Kind::Node, "", "node-a.example"),
        ] {
            let subject = Subject {
                kind,
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            };
            assert_eq!(read(line).unwrap().subject("default"), subject, "{line:?}");
        }
    }

    #[test]
    fn wrong_usage_says_what_is_right_and_ends_with_code_2() {
        for (line, part) in [
            (&[][..], "KIND/NAME"),
            (&["db-0"], "pod/db-0"),
            (&["secret/s"], "volumeattachment (va)"),
            (&["pod"], "write pod/NAME"),
            (&["pod/a", "pod/b"], "one object at a time"),
            (&["pod/"], "is no name"),
            (&["pod", "../nodes"], "is no name"),
            (&["pod/a", "--output", "xml"], "json"),
            (&["pod/a", "--patience", "soon"], "--patience"),
            (&["pod", "a", "b"], "b"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.to_string().contains(part), "{line:?}: {error}");
            assert_eq!(error.exit_code(), 2, "{line:?}");
        }
        assert_eq!(read(&["--help"]).unwrap_err().exit_code(), 0);
    }
}
