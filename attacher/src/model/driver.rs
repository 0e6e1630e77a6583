//! What we know of the CSI driver that we serve.

use std::fmt;
use std::sync::Arc;

/// The driver's identity and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// The name from GetPluginInfo, which VolumeAttachments carry in `spec.attacher`.
    pub name: Arc<str>,
    /// The finalizer that we put on VolumeAttachments and PersistentVolumes.
    pub finalizer: Arc<str>,
    /// What the driver can do.
    pub capabilities: Capabilities,
    /// `fs_type` for volumes that name none (`--default-fstype`).
    pub default_fs_type: Arc<str>,
}

/// The driver's capabilities, as far as attaching depends on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// CONTROLLER_SERVICE and PUBLISH_UNPUBLISH_VOLUME: there is something to call. Without it a volume
    /// is attached as soon as an attach is requested.
    pub publish: bool,
    /// PUBLISH_READONLY: `readonly` may be true.
    pub publish_readonly: bool,
    /// SINGLE_NODE_MULTI_WRITER: the driver tells SINGLE_NODE_SINGLE_WRITER and
    /// SINGLE_NODE_MULTI_WRITER apart.
    pub single_node_multi_writer: bool,
    /// LIST_VOLUMES and LIST_VOLUMES_PUBLISHED_NODES: the driver tells where its volumes are.
    pub list_published: bool,
}

// === impl Driver ===

impl Driver {
    /// A driver of this name, with the finalizer that external-attacher has always used for it.
    pub fn new(name: &str, capabilities: Capabilities, default_fs_type: &str) -> Self {
        Self {
            name: name.into(),
            finalizer: format!("external-attacher/{}", sanitized(name)).into(),
            capabilities,
            default_fs_type: default_fs_type.into(),
        }
    }
}

// === impl Capabilities ===

impl Capabilities {
    /// What the driver can do, by CSI's names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        [
            (self.publish, "PUBLISH_UNPUBLISH_VOLUME"),
            (self.publish_readonly, "PUBLISH_READONLY"),
            (self.single_node_multi_writer, "SINGLE_NODE_MULTI_WRITER"),
            (self.list_published, "LIST_VOLUMES_PUBLISHED_NODES"),
        ]
        .into_iter()
        .filter_map(|(has, name)| has.then_some(name))
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.names().collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}

/// A driver's name as it may stand in a finalizer or a Lease's name: every character outside
/// `[a-zA-Z0-9-]` becomes `-`, and a trailing `-` gets an `X`, as in the Go sidecar.
pub fn sanitized(name: &str) -> String {
    let mut sanitized: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '-'
            }
        })
        .collect();
    if sanitized.ends_with('-') {
        sanitized.push('X');
    }
    sanitized
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finalizers_are_those_of_the_go_sidecar() {
        for (name, finalizer) in [
            ("ebs.csi.aws.com", "external-attacher/ebs-csi-aws-com"),
            ("simple", "external-attacher/simple"),
            ("ends.with.dot.", "external-attacher/ends-with-dot-X"),
            ("Under_score", "external-attacher/Under-score"),
            ("naïve", "external-attacher/na-ve"),
        ] {
            assert_eq!(
                &*Driver::new(name, Capabilities::default(), "").finalizer,
                finalizer
            );
        }
    }
}
