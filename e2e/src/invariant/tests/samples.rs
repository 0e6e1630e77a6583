//! Small pieces of observations: volumes `vol` and `shared`, nodes `a` and `b`.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec};
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentStatus, VolumeError};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::ResourceExt;

use super::*;
use crate::driver::journal::{End, MountEvent};
use crate::fixture::{attacher_finalizer, mk_attachment, mk_meta};
use crate::invariant::observations::{VolumeSpec, WatchEvent};

/// The second `second` of the test's time.
pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).expect("a moment of the test")
}

pub(super) fn mk_observations() -> Observations {
    let facts = |handle: &str, access| VolumeSpec {
        handle: handle.to_owned(),
        access,
    };
    Observations {
        driver: "d".to_owned(),
        finalizer: attacher_finalizer("d"),
        makes_promises: true,
        volumes: BTreeMap::from([
            ("pv-vol".to_owned(), facts("vol", Access::OneNode)),
            ("pv-shared".to_owned(), facts("shared", Access::ManyNodes)),
        ]),
        node_ids: BTreeMap::from([
            ("a".to_owned(), "id-a".to_owned()),
            ("b".to_owned(), "id-b".to_owned()),
        ]),
        ..Observations::default()
    }
}

pub(super) fn publish(volume: &str, node: &str, second: i64) -> Call {
    call("ControllerPublishVolume", volume, node, second)
}

pub(super) fn unpublish(volume: &str, node: &str, second: i64) -> Call {
    call("ControllerUnpublishVolume", volume, node, second)
}

fn call(method: &str, volume: &str, node: &str, second: i64) -> Call {
    Call {
        by: None,
        method: method.to_owned(),
        volume: volume.to_owned(),
        node: node.to_owned(),
        path: String::new(),
        secrets: BTreeSet::new(),
        start: at(second),
        end: Some(End {
            at: at(second),
            code: "OK".to_owned(),
            message: String::new(),
            context: BTreeMap::new(),
        }),
        effect: Effect::Done,
        effect_by: Some(at(second)),
    }
}

pub(super) fn mounted(node: &str, volume: &str, second: i64) -> MountEvent {
    MountEvent {
        at: at(second),
        node: node.to_owned(),
        volume: volume.to_owned(),
        mounted: true,
    }
}

pub(super) fn unmounted(node: &str, volume: &str, second: i64) -> MountEvent {
    MountEvent {
        mounted: false,
        ..mounted(node, volume, second)
    }
}

/// The attachment of `vol` to `a`, without a status.
pub(super) fn attachment() -> VolumeAttachment {
    let mut attachment = mk_attachment("s", "va", "d", "pv-vol", "a");
    attachment.metadata.uid = Some("uid-1".to_owned());
    attachment.metadata.finalizers = Some(vec![attacher_finalizer("d")]);
    let annotations = [
        ("csi.alpha.kubernetes.io/node-id", "id-a"),
        ("external-attacher/volume-handle", "vol"),
    ];
    let own = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    attachment.metadata.annotations = Some(annotations.map(own).into());
    attachment
}

pub(super) fn attached(mut attachment: VolumeAttachment) -> VolumeAttachment {
    attachment.status = Some(VolumeAttachmentStatus {
        attached: true,
        ..Default::default()
    });
    attachment
}

pub(super) fn failed(mut attachment: VolumeAttachment, message: &str) -> VolumeAttachment {
    let error = VolumeError {
        message: Some(message.to_owned()),
        ..VolumeError::default()
    };
    attachment.status = Some(VolumeAttachmentStatus {
        attach_error: Some(error),
        ..Default::default()
    });
    attachment
}

pub(super) fn deleting(mut attachment: VolumeAttachment, second: i64) -> VolumeAttachment {
    attachment.metadata.deletion_timestamp = Some(Time(at(second)));
    attachment
}

/// An event of the version that was written in this second.
pub(super) fn seen<K: ResourceExt>(mut object: K, second: i64) -> WatchEvent<K> {
    object.meta_mut().resource_version = Some(second.to_string());
    WatchEvent {
        at: at(second),
        gone: false,
        object,
    }
}

/// A version of the Lease, for ten seconds.
pub(super) fn lease(holder: &str, second: i64) -> WatchEvent<Lease> {
    let spec = LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(10),
        renew_time: Some(MicroTime(at(second))),
        ..LeaseSpec::default()
    };
    let lease = Lease {
        metadata: mk_meta("s", "lease"),
        spec: Some(spec),
    };
    // Watches are late.
    WatchEvent {
        at: at(second + 2),
        ..seen(lease, second)
    }
}

pub(super) fn gone<K: ResourceExt>(object: K, second: i64) -> WatchEvent<K> {
    WatchEvent {
        gone: true,
        ..seen(object, second)
    }
}

pub(super) fn persistent_volume(finalizers: &[&str]) -> PersistentVolume {
    let mut metadata = mk_meta("s", "pv-vol");
    metadata.finalizers = Some(finalizers.iter().map(|&finalizer| finalizer.to_owned()).collect());
    let csi = CSIPersistentVolumeSource {
        driver: "d".to_owned(),
        volume_handle: "vol".to_owned(),
        ..CSIPersistentVolumeSource::default()
    };
    let spec = PersistentVolumeSpec {
        access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
        csi: Some(csi),
        ..PersistentVolumeSpec::default()
    };
    PersistentVolume {
        metadata,
        spec: Some(spec),
        ..PersistentVolume::default()
    }
}
