//! The CSI driver.

use std::fmt;
use std::sync::Arc;

/// The driver's name, finalizer and capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// The name from GetPluginInfo, which is `spec.attacher` of its VolumeAttachments.
    pub name: Arc<str>,
    /// The finalizer that we put on VolumeAttachments and PersistentVolumes.
    pub finalizer: Arc<str>,
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// `fs_type` of volumes without one (`--default-fstype`).
    pub default_fs_type: Arc<str>,
}

/// The driver's capabilities, as far as the attacher uses them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// CONTROLLER_SERVICE and PUBLISH_UNPUBLISH_VOLUME. Without it, an attach needs no call.
    pub publish: bool,
    /// PUBLISH_READONLY: `readonly` may be true.
    pub publish_readonly: bool,
    /// SINGLE_NODE_MULTI_WRITER: the driver accepts SINGLE_NODE_SINGLE_WRITER and SINGLE_NODE_MULTI_WRITER.
    pub single_node_multi_writer: bool,
    /// LIST_VOLUMES and LIST_VOLUMES_PUBLISHED_NODES.
    pub list_published: bool,
}

// === impl Driver ===

impl Driver {
    /// A driver of this name, with the Go sidecar's finalizer.
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
    /// The names of its capabilities.
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

/// A driver's name in a finalizer or a Lease's name, as in the Go sidecar: every character outside `[a-zA-Z0-9-]` becomes `-`,
/// and a trailing `-` gets an `X`.
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
