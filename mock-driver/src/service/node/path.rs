//! Paths in requests, and what every call to the Node service needs of the driver.

use std::sync::Arc;

use crate::array::{Access, Capability};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::node::{Map, Node, View};
use crate::rpc::capabilities::{self, LiveCapabilities};
use crate::rpc::validate::{self, Invalid};

/// The most bytes of a path, as the kernel has it.
const PATH_LIMIT: usize = 4095;

/// The field for the group that is to own files.
const MOUNT_GROUP: &str = "volume_capability.mount.volume_mount_group";

/// What begins the keys that kubelet adds to a volume's context; they may change between two calls.
const KUBELET: &str = "csi.storage.k8s.io/";

/// An absolute path that must be there, without slashes at its end.
pub(super) fn required(field: &str, text: &str) -> Result<String, Invalid> {
    optional(field, text)?.ok_or_else(|| Invalid::new(field, "must be set"))
}

/// A path at which a volume is looked for, and must be given: any text will do, for nothing is ever at a path
/// that is not absolute.
pub(super) fn looked_for(field: &str, text: &str) -> Result<String, Invalid> {
    if text.is_empty() {
        return Err(Invalid::new(field, "must be set"));
    }
    Ok(text.to_owned())
}

/// An absolute path that may be left out.
pub(super) fn optional(field: &str, text: &str) -> Result<Option<String>, Invalid> {
    if text.is_empty() {
        return Ok(None);
    }
    if !text.starts_with('/') {
        return Err(Invalid::new(field, "must be an absolute path"));
    }
    if text.len() > PATH_LIMIT || text.contains('\0') {
        let reason = format!("must be a path of at most {PATH_LIMIT} bytes without NUL");
        return Err(Invalid::new(field, reason));
    }
    let trimmed = text.trim_end_matches('/');
    if trimmed.is_empty() {
        return Err(Invalid::new(field, "must not be the root directory"));
    }
    Ok(Some(trimmed.to_owned()))
}

/// A group that is to own files: a number, as Kubernetes has it.
pub(super) fn group(capability: &Capability) -> Result<(), Invalid> {
    match &capability.access {
        Access::Mount { group, .. } if !group.is_empty() && group.parse::<u32>().is_err() => {
            Err(Invalid::new(
                MOUNT_GROUP,
                format!("must be the number of a group, is \"{group}\""),
            ))
        }
        Access::Mount { .. } | Access::Block => Ok(()),
    }
}

/// Refuses uses of a volume that the driver says it does not know.
pub(super) fn needs(offered: &LiveCapabilities, capability: &Capability) -> Result<(), Invalid> {
    let newer = capabilities::Capability::NodeSingleNodeMultiWriter;
    validate::needs_modes(
        offered,
        newer,
        "volume_capability",
        std::slice::from_ref(capability),
    )?;
    let has_group = match &capability.access {
        Access::Mount { group, .. } => !group.is_empty(),
        Access::Block => false,
    };
    let by_group = capabilities::Capability::NodeVolumeMountGroup;
    validate::needs(offered, by_group, MOUNT_GROUP, has_group)
}

/// A volume's context without what kubelet says of the pod.
pub(super) fn lasting(context: Map) -> Map {
    context
        .into_iter()
        .filter(|(key, _)| !key.starts_with(KUBELET))
        .collect()
}

/// What a map field holds, in order and within its limit.
pub(super) fn map(field: &str, map: &std::collections::HashMap<String, String>) -> Result<Map, Invalid> {
    validate::map(field, map)
}

// === impl Driver ===

impl Driver {
    /// The node; there is one wherever the Node service is served.
    pub(super) fn here(&self) -> Result<&Arc<Node>, Error> {
        self.node().ok_or(Error::Broken)
    }

    /// The volume as the array has it for this node, or none for one that only this node has.
    pub(crate) async fn view_or_inline(&self, volume: &str) -> Result<Option<View>, Error> {
        if self.here()?.is_inline(volume) {
            return Ok(None);
        }
        self.view(volume).await.map(Some)
    }

    /// Whether undoing something of the volume makes sense.
    ///
    /// # Errors
    /// If the volume is gone, nothing of it is on this node, and the driver is to be strict about it.
    pub(super) async fn check_strict(&self, volume: &str) -> Result<(), Error> {
        let node = self.here()?;
        if !node.is_strict() || node.knows(volume) {
            return Ok(());
        }
        self.view(volume).await.map(drop)
    }
}
