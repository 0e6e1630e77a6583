//! Validation of paths and capabilities in requests of the Node service.

use crate::array::{Access, Capability};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::node::{ArrayVolume, Map};
use crate::rpc::capabilities::{self, LiveCapabilities};
use crate::rpc::validate::{self, Invalid, KUBELET};

/// Maximum number of bytes of a path, the kernel's PATH_MAX.
const PATH_LIMIT: usize = 4095;

/// Field of the group of a volume's files.
const MOUNT_GROUP: &str = "volume_capability.mount.volume_mount_group";

/// A required absolute path, without trailing slashes.
pub(super) fn required(field: &str, text: &str) -> Result<String, Invalid> {
    optional(field, text)?.ok_or_else(|| Invalid::new(field, "must be set"))
}

/// A required path to look up: any text is accepted, because no volume is at a relative path.
pub(super) fn looked_for(field: &str, text: &str) -> Result<String, Invalid> {
    if text.is_empty() {
        return Err(Invalid::new(field, "must be set"));
    }
    Ok(text.to_owned())
}

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

/// Checks the group of a volume's files: a number, as in Kubernetes.
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

/// Refuses uses of a volume whose capability the driver does not have.
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

/// The volume context without kubelet's keys, whose values may change between two calls.
pub(super) fn lasting(context: Map) -> Map {
    context
        .into_iter()
        .filter(|(key, _)| !key.starts_with(KUBELET))
        .collect()
}

// === impl Driver ===

impl Driver {
    /// The node's view of a volume of the array; `None` for an inline volume.
    pub(crate) async fn array_volume_or_inline(&self, volume: &str) -> Result<Option<ArrayVolume>, Error> {
        if self.here()?.is_inline(volume) {
            return Ok(None);
        }
        self.view(volume).await.map(Some)
    }

    /// Checks whether the volume exists.
    ///
    /// # Errors
    /// The volume does not exist, nothing of it is on this node, and the driver is strict about that.
    pub(super) async fn check_strict(&self, volume: &str) -> Result<(), Error> {
        let node = self.here()?;
        if !node.strict_gone || node.knows(volume) {
            return Ok(());
        }
        self.view(volume).await.map(drop)
    }
}
