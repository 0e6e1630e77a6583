//! An explanation as data, to be printed as text or as JSON.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

/// The explanation of one object.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    /// The object that was explained.
    pub(crate) subject: String,
    /// The worst state of all paths.
    pub(crate) state: State,
    /// Whether the text has only the finding of each path. The JSON is whole.
    #[serde(skip)]
    pub(crate) is_summary: bool,
    /// One for each volume and node.
    pub(crate) paths: Vec<PathReport>,
    /// Facts beside the paths.
    pub(crate) notes: Vec<String>,
    /// Objects that could not be read.
    pub(crate) gaps: Vec<String>,
}

/// One volume on its way to or from one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PathReport {
    pub(crate) title: String,
    pub(crate) names: Names,
    /// In Kubernetes' order.
    pub(crate) steps: Vec<Step>,
    pub(crate) finding: Finding,
}

/// The objects on a path.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Names {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) persistent_volume_claim: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) persistent_volume: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) volume_attachment: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) driver: Option<String>,
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Step {
    pub(crate) done: bool,
    pub(crate) text: String,
    /// When it completed.
    #[serde(serialize_with = "time", skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Timestamp>,
}

/// The condition that blocks a path, the actor, and the remedy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Finding {
    pub(crate) cause: Cause,
    pub(crate) state: State,
    pub(crate) actor: Actor,
    /// The actor as printed, with its name.
    pub(crate) who: String,
    /// Since when the actor's step is due.
    #[serde(serialize_with = "time", skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Timestamp>,
    /// One sentence.
    pub(crate) summary: String,
    /// The reasons.
    pub(crate) why: Vec<String>,
    pub(crate) advice: Vec<Advice>,
}

/// A remedy, or a way to find out more.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Advice {
    pub(crate) text: String,
    /// The command line that does it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
    /// The possible damage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) danger: Option<&'static str>,
}

/// The state of a path. The order is that of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// Nothing is pending.
    Fine,
    /// The next step is pending.
    Progressing,
    /// The next step is overdue, fails, or will not happen by itself.
    Stuck,
}

/// The component or person that must act next. The names are stable, for programs that read the JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Actor {
    #[serde(rename = "none")]
    Nothing,
    Scheduler,
    VolumeController,
    Provisioner,
    AttachDetachController,
    Attacher,
    Driver,
    Kubelet,
    Administrator,
}

/// The cause of a finding. The names are stable, for programs that read the JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Cause {
    /// The volume is mounted, or needs no attachment.
    Fine,
    /// No pod needs the volume.
    Unused,
    /// Too little could be read to draw a conclusion.
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
    /// No CSI driver attaches the volume.
    NotCsi,
    /// A VolumeAttachment of a driver with `attachRequired: false`.
    AttachmentNotRequired,
    NoAttachmentYet,
    NodeNotManaged,
    NodeGone,
    NodeNotReady,
    MultiAttach,
    DriverNotOnNode,
    DriverUnknown,
    /// The attacher refuses the VolumeAttachment as it is.
    AttachmentRefused,
    AttacherLeaseExpired,
    /// The lease was released, and no replica has acquired it.
    NoLeader,
    /// The attacher has not written the VolumeAttachment, and no lease shows whether it runs.
    AttacherSilent,
    /// An attacher leads, but has not written the VolumeAttachment.
    AttacherBehind,
    SecretUnreadable,
    AttachLimit,
    AttachFails,
    /// The driver refuses calls while others for the node run.
    WaitsForTurn,
    /// The driver fails all calls.
    DriverDown,
    /// ControllerPublishVolume is pending, or its response was lost.
    Attaching,
    /// `node.status.volumesAttached` lacks the volume.
    NotInVolumesAttached,
    Mounting,
    MountFails,
    DetachFails,
    Detaching,
    /// Deleting, and kept by a finalizer that is not the attacher's.
    ForeignFinalizer,
    /// Deleting without any finalizer.
    Terminating,
    /// A pod still uses the volume on a node that is not ready.
    NodeLost,
    /// kubelet has not unmounted the volume.
    StillMounted,
    DetachNotRequested,
    /// The volume is detached while kubelet reports it in use.
    DetachWhileInUse,
}

// === impl Report ===

impl Report {
    /// Whether a reader of `other` would learn something new.
    pub(crate) fn differs(&self, other: &Self) -> bool {
        let facts = |report: &Self| {
            let paths = report.paths.iter().map(|path| {
                let done = path.steps.iter().filter(|step| step.done).count();
                let Finding {
                    cause,
                    state,
                    actor,
                    who,
                    summary,
                    ..
                } = path.finding.clone();
                (path.names.clone(), done, cause, state, actor, who, summary)
            });
            paths.collect::<Vec<_>>()
        };
        facts(self) != facts(other) || self.notes != other.notes || self.gaps != other.gaps
    }
}

// === impl Names ===

impl Names {
    /// The arguments of `explain` for the object that shows this path.
    fn object(&self) -> Option<(&'static str, &str)> {
        let attachment = self.volume_attachment.as_deref();
        let volume = self.persistent_volume.as_deref();
        (self.pod.as_deref().map(|name| ("pod", name)))
            .or_else(|| attachment.map(|name| ("volumeattachment", name)))
            .or_else(|| volume.map(|name| ("persistentvolume", name)))
    }

    pub(crate) fn arguments(&self) -> Option<String> {
        let (kind, name) = self.object()?;
        Some(match name.split_once('/') {
            Some((namespace, name)) => format!("{kind}/{name} -n {namespace}"),
            None => format!("{kind}/{name}"),
        })
    }
}

// === impl Finding ===

impl Finding {
    pub(crate) fn new(cause: Cause, state: State, actor: Actor, summary: impl Into<String>) -> Self {
        Self {
            cause,
            state,
            actor,
            who: actor.label().to_owned(),
            since: None,
            summary: summary.into(),
            why: Vec::new(),
            advice: Vec::new(),
        }
    }

    pub(crate) fn stuck(cause: Cause, actor: Actor, summary: impl Into<String>) -> Self {
        Self::new(cause, State::Stuck, actor, summary)
    }

    pub(crate) fn fine(cause: Cause, summary: impl Into<String>) -> Self {
        Self::new(cause, State::Fine, Actor::Nothing, summary)
    }

    /// Names the actor, such as the node of a kubelet.
    pub(crate) fn of(mut self, name: impl std::fmt::Display) -> Self {
        self.who = match self.actor {
            Actor::Kubelet => format!("{} on node {name}", self.actor.label()),
            Actor::Attacher | Actor::Driver | Actor::Provisioner => {
                format!("{} {name}", self.actor.label())
            }
            Actor::Nothing
            | Actor::Scheduler
            | Actor::VolumeController
            | Actor::AttachDetachController
            | Actor::Administrator => self.actor.label().to_owned(),
        };
        self
    }

    pub(crate) fn since(mut self, since: Option<Timestamp>) -> Self {
        self.since = since;
        self
    }

    pub(crate) fn because(mut self, why: impl Into<String>) -> Self {
        self.why.push(why.into());
        self
    }

    pub(crate) fn because_of(mut self, why: impl IntoIterator<Item = String>) -> Self {
        self.why.extend(why);
        self
    }

    pub(crate) fn advise(mut self, text: impl Into<String>) -> Self {
        self.advice.push(Advice {
            text: text.into(),
            command: None,
            danger: None,
        });
        self
    }

    pub(crate) fn advise_to_run(mut self, text: impl Into<String>, command: impl Into<String>) -> Self {
        self.advice.push(Advice {
            text: text.into(),
            command: Some(command.into()),
            danger: None,
        });
        self
    }

    /// Sets the possible damage of the last advice.
    pub(crate) fn danger(mut self, danger: &'static str) -> Self {
        if let Some(last) = self.advice.last_mut() {
            last.danger = Some(danger);
        }
        self
    }
}

// === impl State ===

impl State {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Progressing => "in progress",
            Self::Stuck => "STUCK",
        }
    }
}

// === impl Actor ===

impl Actor {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Scheduler => "the scheduler",
            Self::VolumeController => "the PersistentVolume controller (kube-controller-manager)",
            Self::Provisioner => "the provisioner",
            Self::AttachDetachController => "the attach/detach controller (kube-controller-manager)",
            Self::Attacher => "the attacher of driver",
            Self::Driver => "the CSI driver",
            Self::Kubelet => "kubelet",
            Self::Administrator => "an administrator",
        }
    }
}

fn time<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serializer.collect_str(time),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_report() -> Report {
        let step = Step {
            done: false,
            text: "attached by the driver".to_owned(),
            since: None,
        };
        let path = PathReport {
            title: "volume".to_owned(),
            names: Names::default(),
            steps: vec![step],
            finding: Finding::stuck(Cause::AttachFails, Actor::Driver, "The attach fails."),
        };
        Report {
            subject: "pod/db-0".to_owned(),
            state: State::Stuck,
            is_summary: false,
            paths: vec![path],
            notes: Vec::new(),
            gaps: Vec::new(),
        }
    }

    #[test]
    fn reports_differ_by_progress_finding_notes_and_gaps() {
        let time = Some(Timestamp::UNIX_EPOCH);
        let advice = Advice {
            text: "Wait.".to_owned(),
            command: None,
            danger: None,
        };
        type Change<'a> = &'a dyn Fn(&mut Report);
        let table: [(&str, Change<'_>, bool); 17] = [
            ("nothing", &|_| (), false),
            ("title", &|r| r.paths[0].title.push('x'), false),
            ("time of a step", &|r| r.paths[0].steps[0].since = time, false),
            ("text of a step", &|r| r.paths[0].steps[0].text.push('x'), false),
            ("since", &|r| r.paths[0].finding.since = time, false),
            // The time of the last failure is part of a reason.
            ("why", &|r| r.paths[0].finding.why.push("x".to_owned()), false),
            (
                "advice",
                &|r| r.paths[0].finding.advice.push(advice.clone()),
                false,
            ),
            ("step done", &|r| r.paths[0].steps[0].done = true, true),
            ("name", &|r| r.paths[0].names.node = Some("n".to_owned()), true),
            ("cause", &|r| r.paths[0].finding.cause = Cause::Attaching, true),
            ("state", &|r| r.paths[0].finding.state = State::Progressing, true),
            ("actor", &|r| r.paths[0].finding.actor = Actor::Attacher, true),
            ("who", &|r| r.paths[0].finding.who.push('x'), true),
            ("summary", &|r| r.paths[0].finding.summary.push('x'), true),
            ("path", &|r| r.paths.clear(), true),
            ("note", &|r| r.notes.push("x".to_owned()), true),
            ("gap", &|r| r.gaps.push("x".to_owned()), true),
        ];
        for (change, apply, expected) in table {
            let mut changed = mk_report();
            apply(&mut changed);
            assert_eq!(changed.differs(&mk_report()), expected, "{change}");
            assert_eq!(mk_report().differs(&changed), expected, "{change}");
        }
    }
}
