//! The cases: each acts and waits; the contract judges.

mod api_fault;
mod attach;
mod detach;
mod process;
mod volume;

use std::time::Duration;

use anyhow::Result;
use attacher_contract::Clause;
use futures::future::BoxFuture;

use super::VolumeShape;
use super::env::CaseEnv;

/// A case.
#[derive(Debug)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What happens.
    pub about: &'static str,
    pub(super) clauses: &'static [Clause],
    /// Changes of the driver's capabilities, in the format of the mock driver's flag.
    pub(super) capabilities: &'static str,
    /// Interval of the attacher's ListVolumes calls.
    pub(super) reconcile_sync: Duration,
    pub(super) shape: fn(&mut VolumeShape),
    /// Whether the attacher runs from the start; otherwise the case starts it.
    pub(super) runs: bool,
    pub(super) run: for<'a> fn(&'a mut CaseEnv) -> BoxFuture<'a, Result<()>>,
}

/// Clauses that each case tests.
const ALWAYS: &[Clause] = &[
    Clause::FinalizerBeforePublish,
    Clause::RecordBeforePublish,
    Clause::OneCallAtATime,
    Clause::SecretSent,
    Clause::RequestMatchesVolume,
    Clause::FinalizerWithProof,
    Clause::NothingForgotten,
    Clause::NoDetachUnderAttachment,
    Clause::AttachedWhilePublished,
    Clause::ContextReported,
    Clause::VolumeGuarded,
    Clause::FinalizerOnce,
    Clause::NoIdleWrite,
    Clause::NoSecretShown,
    Clause::Settles,
    Clause::Recovers,
    Clause::ArrayAgrees,
    Clause::OneNode,
    Clause::NothingLeft,
];

impl Case {
    /// Whether the case tests the clause.
    pub fn is_about(&self, clause: Clause) -> bool {
        ALWAYS.contains(&clause) || self.clauses.contains(&clause)
    }
}

/// A case with default settings; further fields follow.
macro_rules! cases {
    ($($name:literal, $about:literal, [$($clause:ident),*], $run:expr $(, $field:ident: $value:expr)*;)+) => {
        &[$(Case {
            $($field: $value,)*
            ..Case {
                name: $name,
                about: $about,
                clauses: &[$(Clause::$clause),*],
                capabilities: "",
                reconcile_sync: Duration::from_secs(60),
                shape: |_| {},
                runs: true,
                run: |env| Box::pin($run(env)),
            }
        },)+]
    };
}

/// All cases. Those that take longest come first.
pub const CASES: &[Case] = cases! {
    "leader-killed", "Of two replicas, the leader is killed; the other one attaches.", [OnlyTheLeader], process::leader_killed, runs: false;
    "leader-suspended", "Of two replicas, the leader sleeps until the other one leads.", [OnlyTheLeader], process::leader_suspended, runs: false;
    "detach-not-found", "Unpublish answers NOT_FOUND, and the array has the volume.", [ErrorReported], detach::not_found;
    "detach-not-found-no-driver", "NOT_FOUND, and the CSINode has no entry of the driver (A1 i).", [ErrorReported], detach::not_found_no_driver;
    "detach-not-found-other-id", "NOT_FOUND for the recorded and the present node ID (A1 ii).", [ErrorReported], detach::not_found_other_id;
    "detach-not-found-no-secret", "NOT_FOUND, and the Secret may not be read (A1 iii).", [ErrorReported], detach::not_found_no_secret, shape: |shape| shape.secret = true;
    "detach-not-found-once", "NOT_FOUND once for the recorded node ID, OK for the present one (A1 iv).", [], detach::not_found_once_other_id;
    "detach-not-found-no-node", "NOT_FOUND, and the CSINode is deleted (A1 v).", [ErrorReported], detach::not_found_no_node;
    "detach-other-id", "The node registers another ID while the volume is attached.", [], detach::other_id;
    "driver-loses-publish", "The driver restarts without PUBLISH_UNPUBLISH_VOLUME, and again with it (A2).", [], process::driver_loses_publish;
    "driver-loses-publish-detach", "A detach while the driver lacks PUBLISH_UNPUBLISH_VOLUME (A2).", [], process::driver_loses_publish_detach;
    "attached-error-other-id", "An attached VolumeAttachment has an attachError, and its node another ID (A8).", [ErrorCleared], detach::attached_error_other_id;

    "attach-detach", "Attach and detach.", [Uneventful], attach::attach_detach;
    "attach-two-nodes", "A multi-node volume is attached to two nodes at once.", [Uneventful], attach::two_nodes, shape: |shape| shape.access_modes = &["ReadWriteMany"];
    "move", "The volume moves to the other node.", [Uneventful], attach::moves;
    "move-early", "The attach to the other node begins before the detach.", [], attach::moves_early;
    "attach-again", "The VolumeAttachment is created again, with the same name, as soon as it is gone.", [], attach::again;
    "attach-delete-at-once", "The VolumeAttachment is deleted right after its creation.", [], attach::delete_at_once;
    "attach-delete-during-call", "The VolumeAttachment is deleted during the publish.", [], attach::delete_during_call;
    "attach-aborted", "Publish answers ABORTED, then OK.", [ErrorReported, ErrorCleared], attach::fails::<10>;
    "attach-exhausted", "Publish answers RESOURCE_EXHAUSTED, then OK.", [ErrorReported, ErrorCleared], attach::fails::<8>;
    "attach-not-found", "Publish answers NOT_FOUND, then OK.", [ErrorReported, ErrorCleared], attach::fails::<5>;
    "attach-invalid", "Publish answers INVALID_ARGUMENT, then OK.", [ErrorReported, ErrorCleared], attach::fails::<3>;
    "attach-precondition", "Publish answers FAILED_PRECONDITION, then OK.", [ErrorReported, ErrorCleared], attach::fails::<9>;
    "attach-internal", "Publish answers INTERNAL, then OK.", [ErrorReported, ErrorCleared], attach::fails::<13>;
    "attach-unavailable", "Publish answers UNAVAILABLE, then OK.", [ErrorReported, ErrorCleared], attach::fails::<14>;
    "attach-hangs", "Publish has no effect and no answer, then OK.", [ErrorCleared], attach::hangs::<false>;
    "attach-hangs-after-effect", "Publish has its effect and no answer, then OK.", [ErrorCleared], attach::hangs::<true>;
    "attach-fails-after-effect", "Publish answers INTERNAL after its effect; the VolumeAttachment is deleted.", [], attach::fails_after_effect::<13>;
    "attach-invalid-after-effect", "Publish answers INVALID_ARGUMENT after its effect; the VolumeAttachment is deleted.", [], attach::fails_after_effect::<3>;
    "attach-hangs-and-deleted", "Publish has its effect and no answer; the VolumeAttachment is deleted.", [], attach::hangs_and_deleted;
    "attach-no-csinode-entry", "The CSINode has no entry of the driver, then it has.", [], attach::no_entry, runs: false;
    "attach-twice-only-once", "Others change the attached VolumeAttachment.", [], attach::changed_by_others;
    "detach-internal", "Unpublish answers INTERNAL, then OK.", [ErrorReported], detach::fails::<13>;
    "detach-aborted", "Unpublish answers ABORTED, then OK.", [ErrorReported], detach::fails::<10>;
    "detach-unavailable", "Unpublish answers UNAVAILABLE, then OK.", [ErrorReported], detach::fails::<14>;
    "detach-invalid", "Unpublish answers INVALID_ARGUMENT, and the array has the volume.", [ErrorReported], detach::fails::<3>;
    "detach-hangs", "Unpublish has no effect and no answer, then OK.", [], detach::hangs::<false>;
    "detach-hangs-after-effect", "Unpublish has its effect and no answer, then OK.", [], detach::hangs::<true>;
    "detach-no-node", "The CSINode is deleted before the detach.", [], detach::no_node;
    "detach-no-driver", "The CSINode loses the driver's entry before the detach.", [], detach::no_driver;
    "detach-other-finalizer", "Another controller's finalizer keeps the VolumeAttachment.", [], detach::other_finalizer;
    "volume-deleted-early", "The PersistentVolume is deleted while it is attached.", [], volume::deleted_early;
    "volume-block", "A block volume.", [], attach::attach_detach, shape: |shape| shape.block = true;
    "volume-readonly", "A read-only volume.", [], attach::attach_detach, shape: |shape| shape.read_only = true;
    "volume-readonly-unsupported", "A read-only volume, and the driver lacks PUBLISH_READONLY.", [], attach::attach_detach, shape: |shape| shape.read_only = true, capabilities: "-PUBLISH_READONLY";
    "volume-mount-options", "A volume with filesystem and mount options.", [], attach::attach_detach, shape: |shape| {
        shape.fs_type = "xfs";
        shape.mount_options = &["noatime", "nodiratime"];
    };
    "volume-attributes", "A volume with attributes.", [], attach::attach_detach, shape: |shape| shape.has_attributes = true;
    "volume-one-pod", "A ReadWriteOncePod volume.", [], attach::attach_detach, shape: |shape| shape.access_modes = &["ReadWriteOncePod"];
    "volume-readers", "A ReadOnlyMany volume.", [], attach::attach_detach, shape: |shape| shape.access_modes = &["ReadOnlyMany"];
    "volume-old-modes", "A driver without SINGLE_NODE_MULTI_WRITER.", [], attach::attach_detach, capabilities: "-SINGLE_NODE_MULTI_WRITER";
    "volume-secret", "A volume with a publish Secret.", [], attach::attach_detach, shape: |shape| shape.secret = true;
    "volume-secret-late", "The Secret is created after the VolumeAttachment.", [ErrorCleared], volume::secret_late, shape: |shape| shape.secret = true, runs: false;
    "volume-foreign", "The PersistentVolume is another driver's.", [OwnVolumesOnly], volume::foreign, shape: |shape| shape.foreign = true;
    "driver-without-publish", "The driver has no publish calls at all.", [], process::driver_without_publish, capabilities: "-PUBLISH_UNPUBLISH_VOLUME";
    "driver-restarts", "The driver restarts between attach and detach.", [], process::driver_restarts;
    "driver-down-at-attach", "The driver is down when the VolumeAttachment is created.", [], process::driver_down_at_attach;
    "driver-down-at-detach", "The driver is down when the VolumeAttachment is deleted.", [], process::driver_down_at_detach;
    "array-loses-volume", "The array loses a publish that ListVolumes then lacks.", [], process::array_loses_volume, reconcile_sync: Duration::from_secs(1);
    "attacher-restarts", "The attacher is killed while a volume is attached.", [], process::attacher_restarts;
    "attacher-killed-in-publish", "The attacher is killed during a publish.", [], process::killed_in_publish;
    "attacher-killed-in-unpublish", "The attacher is killed during an unpublish.", [], process::killed_in_unpublish;
    "attacher-down-at-delete", "The VolumeAttachment is deleted while the attacher is down.", [], process::down_at_delete;
    "attacher-down-at-publish-delete", "The VolumeAttachment is deleted after the attacher was killed during the publish.", [], process::killed_then_deleted;
    "message-too-long", "The driver's error message is longer than the API server accepts.", [], attach::message_too_long;
    "api-finalizer-500", "The finalizer's write answers 500 once.", [], api_fault::at_finalizer::<500, true>;
    "api-finalizer-429", "The finalizer's write answers 429 once.", [], api_fault::at_finalizer::<429, true>;
    "api-finalizer-stray-404", "A proxy answers 404 to the finalizer's write once (A4).", [], api_fault::at_finalizer::<404, false>;
    "api-finalizer-404", "The finalizer's write answers 404 once, and the VolumeAttachment exists (A4).", [], api_fault::at_finalizer::<404, true>;
    "api-finalizer-lost", "The answer to the finalizer's write is lost.", [], api_fault::finalizer_answer_lost;
    "api-finalizer-not-sent", "The connection breaks before the finalizer's write is executed.", [], api_fault::finalizer_not_sent;
    "api-status-409", "The status write answers 409 once.", [], api_fault::at_status::<409, true>;
    "api-status-408", "The status write answers 408 once (A5).", [], api_fault::at_status::<408, true>;
    "api-status-stray-404", "A proxy answers 404 to the status write once (A4).", [], api_fault::at_status::<404, false>;
    "api-status-404", "The status write answers 404 once, and the VolumeAttachment exists (A4).", [], api_fault::at_status::<404, true>;
    "api-status-lost", "The answer to the status write is lost.", [], api_fault::status_answer_lost;
    "api-removal-500", "The removal of the finalizer answers 500 once.", [], api_fault::at_removal::<500, true>;
    "api-removal-stray-404", "A proxy answers 404 to the removal of the finalizer once (A4).", [], api_fault::at_removal::<404, false>;
    "api-removal-404", "The removal of the finalizer answers 404 once, and the VolumeAttachment exists (A4).", [], api_fault::at_removal::<404, true>;
    "api-watch-list-refused", "The API server refuses watches with initial events (WatchList).", [], api_fault::watch_list_refused, runs: false;
    "api-watch-list-unended", "Watches with initial events (WatchList) send no bookmark, not even after these.", [], api_fault::watch_list_unended, runs: false;
    "api-removal-lost", "The answer to the removal of the finalizer is lost.", [], api_fault::removal_answer_lost;
};
