//! CSI 1.13 and kubelet plugin registration: generated types, clients and servers.
//!
//! Everything comes from `csi/csi.proto` and `pluginregistration/api.proto`, compiled when the crate is built. The messages that had
//! a `volume_condition` before CSI 1.13 have it again, under its number, for clients and drivers of that time.
//! A message with fields marked `csi_secret` has a [`Debug`](core::fmt::Debug) that shows the keys of those
//! maps and never a value; [`Secrets`] does the same for whoever stores a message.

pub mod secret;

pub use secret::Secrets;

/// Package `csi.v1`, specification version 1.13.0: Identity, Controller, GroupController, SnapshotMetadata, Node.
#[allow(missing_docs, clippy::too_many_lines, reason = "written by the build script")]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/csi.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/csi.v1.secret.rs"));
}

/// Package `pluginregistration`, version v1: how kubelet takes a driver into service.
#[allow(missing_docs, clippy::too_many_lines, reason = "written by the build script")]
pub mod registration {
    include!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"));
    include!(concat!(env!("OUT_DIR"), "/pluginregistration.secret.rs"));
}

/// A serialised `google.protobuf.FileDescriptorSet` of both packages and what they import, options such as
/// `csi_secret` included, comments left out.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.binpb"));
