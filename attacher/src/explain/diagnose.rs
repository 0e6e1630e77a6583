//! From a snapshot to an explanation: pure, so that every situation is a row in a table test.
//!
//! Each volume on its way to or from a node is judged by itself, in the order in which Kubernetes goes:
//! claim and volume, scheduling, attachment, node status, mount; and back. The first thing that does
//! not hold decides who must act. What the attacher would do is asked of [`decide`](crate::decide), so
//! that an explanation cannot differ from what is done.

mod attach;
mod attacher;
mod claim;
mod code;
mod detach;
mod mount;
mod node;
mod timeline;
mod unattached;

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::objects::Pod;
use super::report::{Actor, Cause, Finding, Names, Path, Report, State};
use super::scene::{Scene, Way, claim_of};
use super::snapshot::{Place, Snapshot};
use super::subject::Kind;

/// What is to be told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'q> {
    /// Only volumes of this driver.
    pub(super) driver: Option<&'q str>,
    /// How long a step may take before it counts as stuck.
    pub(super) patience: Duration,
}

/// Explains what was read.
pub(super) fn diagnose(snapshot: &Snapshot, question: Question<'_>, now: Timestamp) -> Report {
    let scene = Scene {
        snapshot,
        now,
        patience: question.patience,
    };
    let asked_for = |way: &Way<'_>| match (question.driver, way.driver()) {
        (Some(wanted), Some(driver)) => wanted == driver,
        // A volume that does not exist yet may become one of any driver.
        (Some(_), None) | (None, _) => true,
    };
    let ways = ways(scene).into_iter().filter(asked_for);
    let mut paths: Vec<Path> = ways.map(|way| path(&way)).collect();
    // What is stuck first, then in the order of the pod or by name.
    paths.sort_by_key(|path| std::cmp::Reverse(path.finding.state));
    let notes = notes(scene, paths.is_empty());
    let worst = paths.iter().map(|path| path.finding.state).max();
    Report {
        subject: snapshot.subject.to_string(),
        state: worst.unwrap_or(State::Fine),
        paths,
        notes,
        gaps: snapshot.gaps.clone(),
    }
}

/// All ways that the subject is about.
fn ways(scene: Scene<'_>) -> Vec<Way<'_>> {
    let snapshot = scene.snapshot;
    let subject = &snapshot.subject;
    match subject.kind {
        Kind::Pod => match snapshot.pods.first() {
            Some(pod) => of_pod(scene, pod),
            None => Vec::new(),
        },
        Kind::Attachment => {
            let first = snapshot.attachments.first();
            first
                .map(|va| Way::of_attachment(scene, va))
                .into_iter()
                .collect()
        }
        Kind::Volume => of_volume(scene, claim_of(scene, &subject.name), Some(subject.name.clone())),
        Kind::Claim => {
            let place = (subject.namespace.clone(), subject.name.clone());
            let bound = scene
                .claim(&place)
                .found()
                .map(|claim| claim.spec.volume_name.clone());
            of_volume(scene, Some(place), bound.filter(|name| !name.is_empty()))
        }
        Kind::Node => of_node(scene, &subject.name),
    }
}

/// The ways of all claims of a pod, and of what is still attached for one that has ended.
fn of_pod<'s>(scene: Scene<'s>, pod: &'s Pod) -> Vec<Way<'s>> {
    pod.claims()
        .map(|(volume, claim)| Way::of_pod(scene, pod, volume, claim))
        .collect()
}

/// All ways of one volume: its attachments, pods that have none yet, and the volume itself when it is
/// being deleted or nobody uses it.
fn of_volume(scene: Scene<'_>, claim: Option<Place>, volume: Option<String>) -> Vec<Way<'_>> {
    let attachments = scene.snapshot.attachments.iter();
    let attached = attachments.filter(|va| volume.is_some() && va.volume_name() == volume);
    let mut ways: Vec<_> = attached.map(|va| Way::of_attachment(scene, va)).collect();
    if let Some(claim) = &claim {
        let pods = scene.pods_using(claim);
        let waiting = pods.map(|(pod, name)| Way::of_pod(scene, pod, name, claim.1.clone()));
        ways.extend(waiting.filter(|way| way.attachment.is_none()));
    }
    let alone = Way::unused(scene, claim, volume);
    let is_leaving = alone
        .volume()
        .is_some_and(|volume| volume.more.metadata.deletion_timestamp.is_some());
    if ways.is_empty() || is_leaving {
        ways.push(alone);
    }
    ways
}

/// All ways to and from one node.
fn of_node<'s>(scene: Scene<'s>, name: &'s str) -> Vec<Way<'s>> {
    let attachments = scene.snapshot.attachments.iter();
    let here = attachments.filter(|va| va.spec.node_name == name);
    let mut ways: Vec<_> = here.map(|va| Way::of_attachment(scene, va)).collect();
    let attached: BTreeSet<_> = ways.iter().filter_map(|way| way.volume.clone()).collect();
    let pods = scene
        .snapshot
        .pods
        .iter()
        .filter(|pod| pod.spec.node_name == name && !pod.is_over());
    let waiting = pods.flat_map(|pod| of_pod(scene, pod));
    ways.extend(waiting.filter(|way| {
        way.volume
            .as_ref()
            .is_none_or(|volume| !attached.contains(volume))
    }));
    ways
}

fn path(way: &Way<'_>) -> Path {
    Path {
        title: timeline::title(way),
        names: Names {
            pod: way
                .pod
                .map(|pod| place(&pod.metadata.namespace, &pod.metadata.name)),
            persistent_volume_claim: way.claim.as_ref().map(|(namespace, name)| place(namespace, name)),
            persistent_volume: way.volume.clone(),
            volume_attachment: way.attachment.map(|va| va.metadata.name.clone()),
            node: way.node.map(str::to_owned),
            driver: way.driver(),
        },
        steps: timeline::steps(way),
        finding: finding(way),
    }
}

/// What holds one way.
fn finding(way: &Way<'_>) -> Finding {
    let Some(va) = way.attachment else {
        return match way.pod {
            Some(pod) if pod.is_over() => unused("The pod has ended and needs the volume no more."),
            Some(pod) => claim::trouble(way)
                .or_else(|| node::unscheduled(way, pod))
                .unwrap_or_else(|| attach::no_attachment(way)),
            None => claim::trouble(way).unwrap_or_else(|| {
                unused("No pod that could be seen uses the volume, and it is attached nowhere.")
            }),
        };
    };
    if way.scene.needs_no_attachment(&va.spec.attacher) {
        return attach::not_required(way, va);
    }
    let cannot_see_pods = way.scene.snapshot.pods_hidden || (way.claim.is_none() && way.volume().is_none());
    if va.metadata.deletion_timestamp.is_some() {
        detach::deleting(way, va)
    } else if !va.status.attached {
        unattached::not_attached(way, va)
    } else if way.pods_on_node().is_empty() && !cannot_see_pods {
        detach::leftover(way, va)
    } else {
        mount::attached(way, va)
    }
}

fn unused(text: &str) -> Finding {
    Finding::new(Cause::Unused, State::Fine, Actor::Nobody, text)
}

fn notes(scene: Scene<'_>, nothing: bool) -> Vec<String> {
    let subject = &scene.snapshot.subject;
    let mut notes = match subject.kind {
        Kind::Node => node::notes(scene, &subject.name),
        Kind::Pod | Kind::Claim | Kind::Volume | Kind::Attachment => Vec::new(),
    };
    if nothing {
        notes.push("There is no volume here that a CSI driver would have to attach.".to_owned());
    }
    notes
}

fn place(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

#[cfg(test)]
mod tests;
