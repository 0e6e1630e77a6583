//! A snapshot of the playground's cluster, for the terminal view and the web page: all names are short
//! ([`Names`](crate::narrate::Names)), and lists are sorted.

use serde::Serialize;

use crate::action::Action;
use crate::narrate::TimelineRow;

/// The state of all components.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Seconds since the playground started.
    pub elapsed: f64,
    /// Current heading of the story; empty without a story.
    pub chapter: String,
    /// Whether the next step waits for the user.
    pub is_paused: bool,
    /// Kubeconfig for kubectl.
    pub kubeconfig: String,
    /// The command that explains a pod, in another terminal: one that waits, if there is one.
    pub explain_command: String,
    /// How kubectl and the driver name what has a short name here.
    pub names: String,
    /// Labels of the active faults.
    pub broken: Vec<String>,
    /// Result of the last action.
    pub notice: String,
    /// PersistentVolumes.
    pub volumes: Vec<String>,
    /// Pods.
    pub pods: Vec<PodRow>,
    /// Nodes.
    pub nodes: Vec<NodeRow>,
    /// VolumeAttachments.
    pub attachments: Vec<AttachmentRow>,
    /// Desired and actual state of world of the attach/detach controller; `None` if it runs in another
    /// process.
    pub worlds: Option<Vec<WorldRow>>,
    /// The attacher's lanes; `None` if it does not respond, or if there are replicas of it.
    pub lanes: Option<Vec<LaneRow>>,
    /// Whether several attachers run, whose lanes are not read.
    pub has_replicas: bool,
    /// The array's published volumes; `None` if the driver does not respond.
    pub array: Option<Vec<ArrayRow>>,
    /// Actions of the components, oldest first.
    pub timeline: Vec<TimelineRow>,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRow {
    /// Name of the pod.
    pub name: String,
    /// Name of its node; empty before it is scheduled.
    pub node: String,
    /// Its phase, or `Terminating`.
    pub phase: String,
    /// Names of its volumes.
    pub volumes: Vec<String>,
    /// Why it is pending; empty if it is not, or nothing has said why.
    pub reason: String,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// Name of the node.
    pub name: String,
    /// Condition Ready.
    pub ready: bool,
    /// Has the out-of-service taint.
    pub out_of_service: bool,
    /// `status.volumesInUse`.
    pub in_use: Vec<String>,
    /// `status.volumesAttached`.
    pub attached: Vec<String>,
}

/// A VolumeAttachment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentRow {
    /// Name of the VolumeAttachment.
    pub name: String,
    /// Name of its volume.
    pub volume: String,
    /// Name of its node.
    pub node: String,
    /// `status.attached`.
    pub attached: bool,
    /// Has a deletion timestamp.
    pub deleting: bool,
    /// `status.attachError` or `status.detachError`; empty if there is none.
    pub error: String,
}

/// A volume on a node, in the desired and in the actual state of world.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorldRow {
    /// Name of the volume.
    pub volume: String,
    /// Name of the node.
    pub node: String,
    /// Desired state: the pods that need the volume on the node.
    pub desired_by: Vec<String>,
    /// Actual state: `attached`, `uncertain` or nothing.
    pub actual: Option<&'static str>,
    /// Actual state: the node reports the volume in use.
    pub in_use: bool,
    /// An attach or detach runs.
    pub pending: bool,
}

/// A lane of the attacher's workqueue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaneRow {
    /// Name of the lane.
    pub lane: String,
    /// Maximum number of concurrent work items.
    pub limit: usize,
    /// Running work items.
    pub running: usize,
    /// Queued work items that are due.
    pub ready: usize,
    /// Work items in backoff.
    pub waiting: usize,
}

/// A node of the array.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ArrayRow {
    /// Name of the node.
    pub node: String,
    /// The volumes that are published to it.
    pub volumes: Vec<String>,
}

// === impl Snapshot ===

impl Snapshot {
    /// The component without which no attach or detach progresses, if it does not respond.
    pub(crate) fn absent(&self) -> Option<&'static str> {
        match (&self.lanes, &self.array) {
            (None, _) if !self.has_replicas => Some("attacher"),
            (_, None) => Some("driver"),
            (_, Some(_)) => None,
        }
    }

    /// For what an attachment waits, besides a call that runs.
    pub(crate) fn wait_of(&self, item: &AttachmentRow) -> Option<String> {
        if item.attached && !item.deleting {
            let node = self.nodes.iter().find(|node| node.name == item.node)?;
            let is_wanted = self.pods.iter().any(|pod| {
                pod.phase == "Pending" && pod.node != item.node && pod.volumes.contains(&item.volume)
            });
            return (!node.ready && !node.out_of_service && is_wanted).then(|| {
                format!(
                    "node {} is lost: waits for its kubelet or the out-of-service taint",
                    node.name
                )
            });
        }
        if let Some(component) = self.absent() {
            return Some(format!("waits for the {component}"));
        }
        let lane = if item.deleting { "detach" } else { "attach" };
        let lane = self.lanes.iter().flatten().find(|row| row.lane == lane)?;
        // Only without a call that runs it is certain that none is for this attachment.
        match (lane.running, lane.ready, lane.waiting) {
            (0, 0, 1..) => Some("in backoff at the attacher".to_owned()),
            (0, 1.., 0) => Some("queued at the attacher".to_owned()),
            (0, 1.., 1..) => Some("queued or in backoff at the attacher".to_owned()),
            _ => None,
        }
    }

    /// Whether the fault of an action is active.
    pub(crate) fn has_fault(&self, action: Action) -> bool {
        self.broken.iter().any(|label| label == action.label())
    }

    /// The actions that affected this volume, including those that affected all volumes.
    pub fn timeline_of(&self, volume: &str) -> impl DoubleEndedIterator<Item = &TimelineRow> {
        self.timeline
            .iter()
            .filter(move |row| row.volumes.is_empty() || row.volumes.iter().any(|name| name == volume))
    }
}

// === functions ===

/// The kubectl command that explains the first pod that waits; without pods, the one that explains the cluster.
pub(crate) fn explain_command(pods: &[PodRow], namespace: &str) -> String {
    let waits = |pod: &&PodRow| pod.phase == "Pending";
    match pods.iter().find(waits).or(pods.first()) {
        Some(pod) => format!("kubectl csi-attach explain pod/{} -n {namespace}", pod.name),
        None => "kubectl csi-attach explain -A".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_explains_a_pod_that_waits() {
        let pod = |name: &str, phase: &str| PodRow {
            name: name.to_owned(),
            phase: phase.to_owned(),
            ..PodRow::default()
        };
        let running = pod("db-1", "Running");
        for (pods, expected) in [
            (vec![], "kubectl csi-attach explain -A"),
            (
                vec![running.clone()],
                "kubectl csi-attach explain pod/db-1 -n playground",
            ),
            (
                vec![pod("web-1", "Terminating"), running, pod("web-2", "Pending")],
                "kubectl csi-attach explain pod/web-2 -n playground",
            ),
        ] {
            assert_eq!(explain_command(&pods, "playground"), expected);
        }
    }

    #[test]
    fn attachment_waits_for_components_queues_and_lost_nodes() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let with = |deleting: bool, attached: bool, counts: Option<[usize; 3]>| {
            let item = AttachmentRow {
                volume: "data".to_owned(),
                node: "b".to_owned(),
                attached,
                deleting,
                ..AttachmentRow::default()
            };
            let lane = |[running, ready, waiting]: [usize; 3]| LaneRow {
                lane: if deleting { "detach" } else { "attach" }.to_owned(),
                running,
                ready,
                waiting,
                ..LaneRow::default()
            };
            let snapshot = Snapshot {
                lanes: counts.map(|counts| vec![lane(counts)]),
                array: Some(Vec::new()),
                nodes: vec![NodeRow {
                    name: "b".to_owned(),
                    ..NodeRow::default()
                }],
                pods: vec![PodRow {
                    phase: "Pending".to_owned(),
                    node: "c".to_owned(),
                    volumes: names(&["data"]),
                    ..PodRow::default()
                }],
                ..Snapshot::default()
            };
            (item, snapshot)
        };
        for (deleting, attached, counts, expected) in [
            (false, false, Some([1, 0, 0]), None),
            (false, false, Some([1, 1, 1]), None),
            (false, false, Some([0, 0, 0]), None),
            (false, false, Some([0, 1, 0]), Some("queued at the attacher")),
            (true, true, Some([0, 0, 2]), Some("in backoff at the attacher")),
            (
                true,
                true,
                Some([0, 1, 1]),
                Some("queued or in backoff at the attacher"),
            ),
            (true, true, None, Some("waits for the attacher")),
        ] {
            let (item, snapshot) = with(deleting, attached, counts);
            let wait = snapshot.wait_of(&item);
            assert_eq!(wait.as_deref(), expected, "{deleting} {counts:?}");
        }
        let (item, lost) = with(false, true, Some([0, 0, 1]));
        let wait = lost.wait_of(&item).unwrap_or_default();
        assert_eq!(
            wait,
            "node b is lost: waits for its kubelet or the out-of-service taint"
        );
        type Change = fn(&mut Snapshot);
        let changes: [(&str, Change); 4] = [
            ("the node is ready", |s| s.nodes[0].ready = true),
            ("it is out of service", |s| s.nodes[0].out_of_service = true),
            ("the pod is for this node", |s| {
                "b".clone_into(&mut s.pods[0].node)
            }),
            ("no pod needs the volume", |s| s.pods.clear()),
        ];
        for (change, apply) in changes {
            let mut snapshot = lost.clone();
            apply(&mut snapshot);
            assert_eq!(snapshot.wait_of(&item), None, "{change}");
        }
    }

    #[test]
    fn attacher_with_replicas_is_not_called_absent() {
        let with = |lanes: bool, array: bool, has_replicas: bool| Snapshot {
            lanes: lanes.then(Vec::new),
            array: array.then(Vec::new),
            has_replicas,
            ..Snapshot::default()
        };
        for (lanes, array, has_replicas, expected) in [
            (true, true, false, None),
            (false, true, false, Some("attacher")),
            (false, false, false, Some("attacher")),
            (true, false, false, Some("driver")),
            (false, true, true, None),
            (false, false, true, Some("driver")),
        ] {
            assert_eq!(with(lanes, array, has_replicas).absent(), expected);
        }
    }
}
