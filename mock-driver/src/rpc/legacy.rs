//! `proto/legacy.proto`: fields that CSI 1.13 removed and older callers still read.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    reason = "written by the build script"
)]

include!(concat!(env!("OUT_DIR"), "/csi.legacy.rs"));

/// The messages as a serialised `google.protobuf.FileDescriptorSet`, without what they import.
pub(crate) const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/legacy.binpb"));
