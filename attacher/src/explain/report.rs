//! An explanation as data: what is printed as text or as JSON.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

/// The answer to one question.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Report {
    /// What was asked about.
    pub(super) subject: String,
    /// The worst of all paths.
    pub(super) state: State,
    /// One for each volume on its way to or from a node.
    pub(super) paths: Vec<Path>,
    /// What is worth knowing beside.
    pub(super) notes: Vec<String>,
    /// What could not be looked at.
    pub(super) gaps: Vec<String>,
}

/// One volume's way to or from one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Path {
    /// What it is about, in words.
    pub(super) title: String,
    pub(super) names: Names,
    /// The way, in its order.
    pub(super) steps: Vec<Step>,
    pub(super) finding: Finding,
}

/// The objects on a path, for programs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Names {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) persistent_volume_claim: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) persistent_volume: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) volume_attachment: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) driver: Option<String>,
}

/// A step of the way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Step {
    pub(super) done: bool,
    pub(super) text: String,
    /// Since when it is done.
    #[serde(serialize_with = "time", skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<Timestamp>,
}

/// What holds, who must act, and what helps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Finding {
    pub(super) cause: Cause,
    pub(super) state: State,
    pub(super) actor: Actor,
    /// The actor in words, with its name.
    pub(super) who: String,
    /// Since when they are waited for.
    #[serde(serialize_with = "time", skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<Timestamp>,
    /// What holds, in a sentence.
    pub(super) summary: String,
    /// What is known of the reason.
    pub(super) why: Vec<String>,
    /// What helps.
    pub(super) advice: Vec<Advice>,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Advice {
    pub(super) text: String,
    /// A command line that does it, or shows more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<String>,
    /// What can go wrong by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) danger: Option<&'static str>,
}

/// How things stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    /// There is nothing to wait for.
    Fine,
    /// Somebody is at it.
    Progressing,
    /// It takes too long, fails, or cannot go on by itself.
    Stuck,
}

/// Who must act next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Actor {
    Nobody,
    Scheduler,
    VolumeController,
    Provisioner,
    AttachDetachController,
    Attacher,
    Driver,
    Kubelet,
    Person,
}

/// What holds a path; the names are stable, for programs that read JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Cause {
    /// Mounted, or nothing is to be attached.
    Fine,
    /// Nobody wants the volume anywhere.
    Unused,
    /// Too little could be read to say anything.
    Unreadable,
    PodUnscheduled,
    ClaimMissing,
    ClaimPending,
    ClaimWaitsForConsumer,
    ClaimLost,
    VolumeMissing,
    VolumeBoundElsewhere,
    VolumeReleased,
    VolumeFailed,
    VolumeTerminating,
    VolumeHeldByAttachment,
    /// The volume is not attached by any CSI driver.
    NotCsi,
    /// An attachment of a driver that has `attachRequired: false`.
    AttachmentNotRequired,
    NoAttachmentYet,
    NodeNotManaged,
    NodeGone,
    NodeNotReady,
    MultiAttach,
    DriverNotOnNode,
    DriverUnknown,
    /// The attachment as it is will never be worked on.
    AttachmentRefused,
    AttacherLeaseStale,
    NobodyLeads,
    /// Not touched, and there is no lease to tell whether an attacher runs.
    AttacherSilent,
    /// An attacher leads, but has not touched the attachment.
    AttacherBehind,
    SecretUnreadable,
    AttachLimit,
    AttachFails,
    /// The publish call is on its way, or its end was lost.
    Attaching,
    NodeNotTold,
    Mounting,
    MountFails,
    DetachFails,
    Detaching,
    /// Deleted, and held by a finalizer that is not the attacher's.
    ForeignFinalizer,
    /// Deleted without any finalizer: gone in a moment.
    Vanishing,
    /// A pod still holds it to a node that is not ready.
    NodeLost,
    /// kubelet has not unmounted it.
    StillMounted,
    DetachNotRequested,
    /// Detached while kubelet reports it in use.
    DetachWhileInUse,
}

// === impl Finding ===

impl Finding {
    pub(super) fn new(cause: Cause, state: State, actor: Actor, summary: impl Into<String>) -> Self {
        Self {
            cause,
            state,
            actor,
            who: actor.words().to_owned(),
            since: None,
            summary: summary.into(),
            why: Vec::new(),
            advice: Vec::new(),
        }
    }

    /// Names the actor, such as the node of a kubelet.
    pub(super) fn of(mut self, name: impl std::fmt::Display) -> Self {
        self.who = match self.actor {
            Actor::Kubelet => format!("{} on node {name}", self.actor.words()),
            Actor::Attacher | Actor::Driver | Actor::Provisioner => {
                format!("{} {name}", self.actor.words())
            }
            Actor::Nobody
            | Actor::Scheduler
            | Actor::VolumeController
            | Actor::AttachDetachController
            | Actor::Person => self.actor.words().to_owned(),
        };
        self
    }

    pub(super) fn since(mut self, since: Option<Timestamp>) -> Self {
        self.since = since;
        self
    }

    pub(super) fn because(mut self, why: impl Into<String>) -> Self {
        self.why.push(why.into());
        self
    }

    pub(super) fn because_of(mut self, why: impl IntoIterator<Item = String>) -> Self {
        self.why.extend(why);
        self
    }

    pub(super) fn advise(mut self, text: impl Into<String>) -> Self {
        self.advice.push(Advice {
            text: text.into(),
            command: None,
            danger: None,
        });
        self
    }

    pub(super) fn advise_to_run(mut self, text: impl Into<String>, command: impl Into<String>) -> Self {
        self.advice.push(Advice {
            text: text.into(),
            command: Some(command.into()),
            danger: None,
        });
        self
    }

    /// The last advice can do harm.
    pub(super) fn danger(mut self, danger: &'static str) -> Self {
        if let Some(last) = self.advice.last_mut() {
            last.danger = Some(danger);
        }
        self
    }
}

// === impl State ===

impl State {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Progressing => "on its way",
            Self::Stuck => "STUCK",
        }
    }
}

// === impl Actor ===

impl Actor {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::Scheduler => "the scheduler",
            Self::VolumeController => "the PersistentVolume controller (kube-controller-manager)",
            Self::Provisioner => "the provisioner",
            Self::AttachDetachController => "the attach/detach controller (kube-controller-manager)",
            Self::Attacher => "the attacher of driver",
            Self::Driver => "the CSI driver",
            Self::Kubelet => "kubelet",
            Self::Person => "a person",
        }
    }
}

fn time<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serializer.collect_str(time),
        None => serializer.serialize_none(),
    }
}
