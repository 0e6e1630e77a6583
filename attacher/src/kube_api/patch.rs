//! Bodies of the writes: patches with the object's UID; strategic merge patches of objects, JSON merge patches of statuses.
//!
//! The API server answers another UID with 422 and an absent object with 404, so a re-created object of the same name is never
//! changed. A strategic merge patch merges `metadata.finalizers`: it adds missing ones, and `$deleteFromPrimitiveList` removes the
//! named ones, so concurrent changes of other finalizers are kept.
//!
//! A status has no lists, but a publish context with arbitrary keys: `$patch` would be a directive in a strategic merge patch.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::model::{Attachment, Problem, Uid, Version, Volume};
use crate::plan::{Operation, Record};

/// Adds our finalizer and the record of the coming publish call, to one version: another target may be recorded when the API server
/// executes it late.
pub fn record(attachment: &Attachment, record: &Record, finalizer: &str) -> Value {
    let (before, after) = (
        attachment.recorded.annotations(),
        record.annotations.annotations(),
    );
    let changed = after.into_iter().zip(before);
    let annotations: Map<_, _> = changed
        .filter(|(after, before)| record.is_unconditional || before != after)
        .map(|((key, value), _)| (key.to_owned(), value.into()))
        .collect();
    let mut metadata = of_one_version(&attachment.uid, attachment.version);
    if record.is_unconditional || !attachment.finalizer {
        metadata["finalizers"] = json!([finalizer]);
    }
    if !annotations.is_empty() {
        metadata["annotations"] = annotations.into();
    }
    json!({ "metadata": metadata })
}

pub(super) fn add_finalizer(uid: &Uid, finalizer: &str) -> Value {
    json!({ "metadata": { "uid": uid.0, "finalizers": [finalizer] } })
}

pub(super) fn remove_finalizer(uid: &Uid, finalizer: &str) -> Value {
    json!({ "metadata": { "uid": uid.0, "$deleteFromPrimitiveList/finalizers": [finalizer] } })
}

/// Removes our finalizer from this version of the volume: a removal that the API server executes late, after its repetition, must not
/// remove the finalizer that a later attach has added to the same volume.
pub(super) fn remove_pv_finalizer(volume: &Volume, finalizer: &str) -> Value {
    let mut metadata = of_one_version(&volume.uid, volume.version);
    metadata["$deleteFromPrimitiveList/finalizers"] = json!([finalizer]);
    json!({ "metadata": metadata })
}

/// A write that the API server executes late changes nothing if another one came between. A version that is no number cannot be named.
fn of_one_version(uid: &Uid, version: Version) -> Value {
    let mut metadata = json!({ "uid": uid.0 });
    if version != Version::UNKNOWN {
        metadata["resourceVersion"] = version.0.to_string().into();
    }
    metadata
}

/// `status` of an attached volume, for one version: the volume may be detached when the API server executes it late. A patch merges
/// maps, so keys of an earlier publish are set to null.
pub(super) fn attached(attachment: &Attachment, context: &BTreeMap<String, String>) -> Value {
    let mut metadata: Map<String, Value> = attachment
        .metadata
        .keys
        .iter()
        .map(|key| (key.to_string(), Value::Null))
        .collect();
    metadata.extend(
        context
            .iter()
            .map(|(key, value)| (key.clone(), value.as_str().into())),
    );
    let mut status = json!({ "attached": true, "attachError": null });
    if !metadata.is_empty() {
        status["attachmentMetadata"] = metadata.into();
    }
    json!({ "metadata": of_one_version(&attachment.uid, attachment.version), "status": status })
}

pub(super) fn detached(attachment: &Attachment) -> Value {
    json!({
        "metadata": { "uid": attachment.uid.0 },
        "status": { "attached": false, "attachmentMetadata": null, "detachError": null },
    })
}

/// `status` with an error, which replaces an earlier one: without a code, `errorCode` is set to null. For one version: the operation may
/// have succeeded when the API server executes it late.
pub fn problem(attachment: &Attachment, failed: Operation, problem: &Problem) -> Value {
    let field = match failed {
        Operation::Attach => "attachError",
        Operation::Detach => "detachError",
    };
    let error = json!({ "message": problem.message, "time": problem.time, "errorCode": problem.code });
    json!({ "metadata": of_one_version(&attachment.uid, attachment.version), "status": { field: error } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Metadata, Recorded, SecretRef};
    use crate::plan::tests::{mk_attachment, mk_volume};

    #[test]
    fn record_patch_has_only_changes_unless_unconditional() {
        let wanted = Recorded {
            node_id: Some("id".into()),
            handle: Some("h".into()),
            secret: SecretRef::parse("ns/s"),
        };
        let first = Record {
            annotations: wanted.clone(),
            is_unconditional: false,
        };
        let attachment = mk_attachment("va");
        assert_eq!(
            record(&attachment, &first, "f"),
            json!({ "metadata": {
                "uid": "uid-va",
                "resourceVersion": "1",
                "finalizers": ["f"],
                "annotations": {
                    "csi.alpha.kubernetes.io/node-id": "id",
                    "external-attacher/volume-handle": "h",
                    "external-attacher/publish-secret": "ns/s",
                },
            } })
        );
        let attachment = Attachment {
            finalizer: true,
            recorded: wanted.clone(),
            ..attachment
        };
        let changed = Record {
            annotations: Recorded {
                node_id: Some("other".into()),
                secret: None,
                ..wanted
            },
            is_unconditional: false,
        };
        assert_eq!(
            record(&attachment, &changed, "f"),
            json!({ "metadata": {
                "uid": "uid-va",
                "resourceVersion": "1",
                "annotations": {
                    "csi.alpha.kubernetes.io/node-id": "other",
                    "external-attacher/publish-secret": null,
                },
            } })
        );
        // The cache may be outdated.
        let repeated = Record {
            is_unconditional: true,
            ..changed
        };
        assert_eq!(
            record(&attachment, &repeated, "f"),
            json!({ "metadata": {
                "uid": "uid-va",
                "resourceVersion": "1",
                "finalizers": ["f"],
                "annotations": {
                    "csi.alpha.kubernetes.io/node-id": "other",
                    "external-attacher/volume-handle": "h",
                    "external-attacher/publish-secret": null,
                },
            } })
        );
    }

    #[test]
    fn new_publish_context_removes_old_keys() {
        let attachment = Attachment {
            metadata: Metadata::of(&["old", "kept"].map(|key| (key.to_owned(), "v".to_owned())).into()),
            ..mk_attachment("va")
        };
        let context = BTreeMap::from([("kept".to_owned(), "v".to_owned())]);
        assert_eq!(
            attached(&attachment, &context),
            json!({
                "metadata": { "uid": "uid-va", "resourceVersion": "1" },
                "status": {
                    "attached": true, "attachError": null,
                    "attachmentMetadata": { "old": null, "kept": "v" },
                },
            })
        );
        assert_eq!(
            attached(&mk_attachment("va"), &BTreeMap::new())["status"],
            json!({ "attached": true, "attachError": null })
        );
    }

    /// The API server rejects a patch whose UID differs, so a recreated object of the same name is not changed.
    #[test]
    fn each_patch_carries_the_uid() {
        let (va, uid) = (mk_attachment("va"), Uid::from("uid-va"));
        let repeated = Record {
            annotations: Recorded::default(),
            is_unconditional: true,
        };
        for patch in [
            record(&va, &repeated, "f"),
            add_finalizer(&uid, "f"),
            remove_finalizer(&uid, "f"),
            attached(&va, &BTreeMap::new()),
            detached(&va),
            problem(&va, Operation::Attach, &Problem::default()),
        ] {
            assert_eq!(patch["metadata"]["uid"], "uid-va", "{patch}");
        }
    }

    #[test]
    fn removal_from_a_volume_is_for_one_version() {
        let mut volume = mk_volume("pv");
        volume.version = Version(7);
        let patch = remove_pv_finalizer(&volume, "f");
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["metadata"]["uid"], *volume.uid.0);
        volume.version = Version::UNKNOWN;
        assert_eq!(
            remove_pv_finalizer(&volume, "f"),
            remove_finalizer(&volume.uid, "f")
        );
    }

    #[test]
    fn error_without_code_removes_the_old_code() {
        let error = Problem {
            time: "t".into(),
            message: "m".into(),
            code: None,
        };
        assert_eq!(
            problem(&mk_attachment("va"), Operation::Detach, &error)["status"],
            json!({ "detachError": { "message": "m", "time": "t", "errorCode": null } })
        );
    }
}
