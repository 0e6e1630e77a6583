//! The clauses of the contract: one function each.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a clause names the observations that concern it"
)]

mod call;
mod detach;
mod outcome;
mod path;
mod status;
mod write;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::observation::{Attachment, Method, Name, Observation, Target};
use crate::world::World;
use crate::{Environment, Order, Settings};

/// Who must keep a clause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    /// Every external-attacher.
    Contract,
    /// csi-attacher, which promises more.
    Promise,
    /// The whole path: controllers, kubelets, attacher and driver.
    Path,
    /// The harness.
    Harness,
}

/// A rule with its check.
pub struct Rule {
    /// The clause.
    pub clause: Clause,
    /// Its name in tables and reports.
    pub name: &'static str,
    /// What it demands.
    pub text: &'static str,
    /// Where the rule comes from.
    pub source: &'static str,
    /// Who must keep it.
    pub strength: Strength,
    pub(crate) check: Check,
}

type Check = fn(Now<'_>, &Observation, &mut Deferred, &mut Findings<'_>);

/// The state before the checked observation.
#[derive(Clone, Copy)]
pub(crate) struct Now<'a> {
    pub world: &'a World,
    pub settings: &'a Settings,
    pub at: Duration,
}

/// A violation without the text of its evidence.
#[derive(Debug)]
pub(crate) struct Finding {
    pub clause: Clause,
    pub subject: String,
    pub text: String,
    pub evidence: Vec<usize>,
}

/// The findings of one check.
pub(crate) struct Findings<'a> {
    clause: Clause,
    found: &'a mut Vec<Finding>,
}

/// Checks that later observations decide, because watches show states late.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deferred {
    /// Unpublishes of attachments that were not seen as deleting: number, time, and UID.
    pub unpublishes: BTreeMap<(Target, Name), (usize, Duration)>,
    /// Targets that may be forgotten, or published for the next attachment: name, UID and evidence.
    pub forgotten: BTreeMap<Target, (Name, Name, [usize; 2])>,
}

macro_rules! clauses {
    ($($clause:ident, $name:literal, $strength:ident, $check:path, $text:literal, $source:literal;)+) => {
        /// A clause of the contract.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Clause {
            $(#[doc = $text] $clause,)+
        }

        /// All clauses, in the order of the enum.
        pub const CLAUSES: &[Rule] = &[$(Rule {
            clause: Clause::$clause,
            name: $name,
            text: $text,
            source: $source,
            strength: Strength::$strength,
            check: $check,
        },)+];
    };
}

clauses! {
    FinalizerBeforePublish, "finalizer-before-publish", Contract, call::finalizer_before_publish,
        "A publish is sent only for a VolumeAttachment that has the attacher's finalizer.",
        "Kubernetes API, finalizers; external-attacher, csi_handler.go csiAttach";
    RecordBeforePublish, "record-before-publish", Contract, call::record_before_publish,
        "Before a publish, the VolumeAttachment records the node ID (csi-attacher: the volume ID, too).",
        "external-attacher, annotation csi.alpha.kubernetes.io/node-id; issue 12 of docs/go-sidecar.md";
    OneCallAtATime, "one-call-at-a-time", Contract, call::one_at_a_time,
        "At most one call for a volume and node is in flight.",
        "CSI spec, Concurrency";
    OnlyTheLeader, "only-the-leader", Contract, call::only_the_leader,
        "Only the holder of the lease sends calls and writes.",
        "client-go, leaderelection";
    OwnVolumesOnly, "own-volumes-only", Promise, call::own_volumes_only,
        "Volumes of other drivers are not published.",
        "issue 9 of docs/go-sidecar.md";
    SecretSent, "secret-sent", Contract, call::secret_sent,
        "A publish has the Secret that the PersistentVolume names.",
        "CSI spec, Secrets Requirements; Kubernetes API, controllerPublishSecretRef";
    RequestMatchesVolume, "request-matches-volume", Contract, call::request_matches_volume,
        "A publish has the access mode, filesystem, mount options and attributes of the PersistentVolume.",
        "CSI spec, ControllerPublishVolume; Kubernetes API, CSIPersistentVolumeSource";
    FinalizerWithProof, "finalizer-with-proof", Contract, detach::finalizer_with_proof,
        "The finalizer goes only with a proof that each published target is released.",
        "CSI spec, ControllerUnpublishVolume Errors (5 NOT_FOUND: not assumed unpublished); external-attacher#165";
    NothingForgotten, "nothing-forgotten", Contract, detach::nothing_forgotten,
        "No volume stays published in the array without a VolumeAttachment or finalizer, unless the driver denied it.",
        "kubernetes#77988, #124749; CSI spec, ControllerUnpublishVolume";
    NoDetachUnderAttachment, "no-detach-under-attachment", Contract, detach::no_detach_under_attachment,
        "No unpublish of the target of an attached VolumeAttachment that is not being deleted.",
        "Kubernetes API, VolumeAttachment; CSI spec, ControllerUnpublishVolume";
    AttachedWhilePublished, "attached-while-published", Contract, status::attached_while_published,
        "`attached: true` is stored only after the driver confirmed the publish; with an honest driver, only while the array has it published.",
        "Kubernetes API, VolumeAttachmentStatus.attached";
    ContextReported, "context-reported", Contract, status::context_reported,
        "`attachmentMetadata` is the `publish_context` of the publish.",
        "Kubernetes API, VolumeAttachmentStatus.attachmentMetadata; CSI spec, publish_context";
    ErrorReported, "error-reported", Contract, status::error_reported,
        "A failed attach or detach is reported with the driver's message.",
        "Kubernetes API, VolumeAttachmentStatus.attachError and detachError";
    ErrorCleared, "error-cleared", Contract, status::error_cleared,
        "An attached VolumeAttachment has no attachError.",
        "Kubernetes API, VolumeAttachmentStatus.attachError; issue 21 of docs/go-sidecar.md";
    VolumeGuarded, "volume-guarded", Contract, write::volume_guarded,
        "The PersistentVolume has the attacher's finalizer while an attachment needs it.",
        "Kubernetes API, finalizers; external-attacher, csi_handler.go addPVFinalizer";
    FinalizerOnce, "finalizer-once", Promise, write::finalizer_once,
        "A PersistentVolume has the finalizer at most once.",
        "issue 4 of docs/go-sidecar.md";
    NoIdleWrite, "no-idle-write", Promise, write::no_idle_write,
        "No write is empty or repeats what is stored.",
        "issues 20 and 23 of docs/go-sidecar.md";
    NoSecretShown, "no-secret-shown", Contract, write::no_secret_shown,
        "No value of a Secret is in a log, status, Event or metric.",
        "CSI spec, Secrets Requirements; CVE-2023-2878";
    Uneventful, "uneventful-cost", Contract, outcome::uneventful,
        "An uneventful attach or detach takes a bounded number of calls and writes.",
        "docs/go-sidecar.md; issues 2 and 20 there";
    Settles, "settles", Contract, outcome::settles,
        "Without faults, every VolumeAttachment is attached, gone, or has an error.",
        "Kubernetes API, VolumeAttachment; issue 22 of docs/go-sidecar.md";
    Recovers, "recovers", Contract, outcome::recovers,
        "Once the faults have ended, every VolumeAttachment is attached or gone, unless something that lasts prevents it.",
        "Kubernetes API, VolumeAttachment: the attach/detach controller waits for status.attached";
    ArrayAgrees, "array-agrees", Contract, outcome::array_agrees,
        "Without faults, the array has published what the VolumeAttachments say, and nothing else.",
        "Kubernetes API, VolumeAttachmentStatus.attached; external-attacher#184";
    NothingLeft, "nothing-left", Contract, outcome::nothing_left,
        "After all objects were deleted, no VolumeAttachment, finalizer, publish or mount is left.",
        "Kubernetes API, finalizers";
    OneNode, "one-node", Path, path::one_node,
        "A single-node volume is published to one node at a time.",
        "CSI spec, VolumeCapability.AccessMode; KEP-2485";
    OneMount, "one-mount", Path, path::one_mount,
        "A single-node volume is mounted on one node at a time, unless the controller force-detached the other one before.",
        "CSI spec, VolumeCapability.AccessMode; KEP-2268";
    MountedIsPublished, "no-detach-while-mounted", Path, path::no_detach_while_mounted,
        "A volume is not unpublished while it is mounted, unless the controller force-detached it before.",
        "CSI spec, Volume Lifecycle; kubernetes#106710, #101791";
    KeptWhilePublished, "no-delete-while-published", Path, path::kept_while_published,
        "A volume is not deleted while it is published.",
        "CSI spec, DeleteVolume Errors (9 FAILED_PRECONDITION); external-provisioner, canDeleteVolume";
    PodsRun, "pods-run", Path, path::pods_run,
        "Once the faults have ended, every pod runs.",
        "Kubernetes API, PodStatus; kubernetes#81078, #120571";
    AttachedForPods, "attached-for-pods", Path, path::attached_for_pods,
        "Once the faults have ended, every VolumeAttachment is for a pod of its node.",
        "kube-controller-manager, attach/detach controller: desired state of world";
    PodsAttached, "pods-attached", Path, path::pods_attached,
        "Once the faults have ended, each running pod's volume has a VolumeAttachment to the pod's node.",
        "kube-controller-manager, attach/detach controller: desired state of world";
    ListedWhileAttached, "listed-while-attached", Path, path::listed_while_attached,
        "A Node lists no volume in volumesAttached again whose VolumeAttachment is being deleted.",
        "kube-controller-manager, node status updater; kubernetes#120571";
    NoPanic, "no-panic", Path, path::no_panic,
        "No controller and no kubelet panics.",
        "the harness";
    RecordComplete, "record-complete", Harness, outcome::record_complete,
        "The observations have no gap without a list after it, and, in an honest environment, no fault after the end of all faults.",
        "the harness";
}

// === impl Clause ===

impl Clause {
    /// Its rule.
    pub fn rule(self) -> &'static Rule {
        &CLAUSES[self as usize]
    }
}

// === impl Now ===

impl Now<'_> {
    pub(crate) fn is_exact(&self) -> bool {
        self.settings.order == Order::Exact
    }

    pub(crate) fn is_honest(&self) -> bool {
        self.settings.environment == Environment::Honest
    }

    /// Whether something that may outlast the faults excuses that the attachment is not as it should be.
    pub(crate) fn has_excuse(&self, attachment: &Attachment) -> bool {
        !self.is_honest()
            && self.world.healed.is_some()
            && (self.world.has_obstacle(attachment) || self.world.is_refused(attachment))
    }
}

// === impl Findings ===

impl<'a> Findings<'a> {
    pub(crate) fn new(clause: Clause, found: &'a mut Vec<Finding>) -> Self {
        Self { clause, found }
    }

    /// Adds a violation. `evidence`: numbers of observations besides the checked one.
    pub(crate) fn add(
        &mut self,
        subject: impl ToString,
        text: impl ToString,
        evidence: impl IntoIterator<Item = usize>,
    ) {
        self.found.push(Finding {
            clause: self.clause,
            subject: subject.to_string(),
            text: text.to_string(),
            evidence: evidence.into_iter().collect(),
        });
    }
}

// === impl Deferred ===

impl Deferred {
    /// Remembers an unpublish under an attachment whose deletion the watch may show later.
    pub(crate) fn note(
        &mut self,
        number: usize,
        at: Duration,
        seen: &Observation,
        world: &World,
        order: Order,
    ) {
        let Observation::CallBegan(call) = seen else {
            return;
        };
        if order == Order::Exact || call.method != Method::Unpublish {
            return;
        }
        for state in detach::attached_under(world, &call.target) {
            let key = (call.target.clone(), state.version.uid.clone());
            self.unpublishes.entry(key).or_insert((number, at));
        }
    }
}
