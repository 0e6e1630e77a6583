//! `proto/legacy.proto`: fields that CSI 1.13 removed and older callers still read.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    reason = "written by the build script"
)]

use std::collections::HashMap;

use csi_proto::Secrets;

include!(concat!(env!("OUT_DIR"), "/csi.legacy.rs"));

/// The messages as a serialised `google.protobuf.FileDescriptorSet`, without what they import.
pub(crate) const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/legacy.binpb"));

/// Implements [`Secrets`] for messages without secret fields.
macro_rules! without_secrets {
    ($($message:ident)+) => {
        $(impl Secrets for $message {
            const MESSAGE: &'static str = concat!("csi.legacy.", stringify!($message));
            const SECRET_FIELDS: &'static [&'static str] = &[];

            fn secrets(&self) -> impl Iterator<Item = &HashMap<String, String>> {
                std::iter::empty()
            }

            fn secrets_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut HashMap<String, String>)> {
                std::iter::empty()
            }
        })+
    };
}

without_secrets!(ListVolumesResponse ControllerGetVolumeResponse NodeGetVolumeStatsResponse);
