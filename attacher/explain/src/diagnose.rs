//! Derives the report from a snapshot. Pure, so that every situation is a row in a table test.
//!
//! Each pair of volume and node is diagnosed separately, in Kubernetes's order: claim and volume, scheduling,
//! attachment, node status, mount, and the reverse. The first incomplete step determines the actor.

mod attach;
mod attacher;
mod attachment;
mod claim;
mod detach;
mod grpc_code;
mod mount;
mod multi_attach;
mod no_attachment;
mod node;
mod pod;
mod refusal;
mod timeline;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use csi_attacher::kube_api::events;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::VolumeAttachment;

use self::multi_attach::Holder;
use crate::objects::{AttachmentExt, ClaimExt, EventExt, ObjectExt, PodExt};
use crate::path::{ClusterView, VolumePath, claim_of};
use crate::report::{Cause, Finding, Names, PathReport, Report, State};
use crate::resource::ResourceKind;
use crate::snapshot::{NamespacedName, Snapshot};

/// Explains the snapshot's resource; if `driver` is set, only the volumes of that driver.
pub(crate) fn diagnose(
    snapshot: &Snapshot,
    driver: Option<&str>,
    stuck_after: Duration,
    now: Timestamp,
) -> Report {
    let view = ClusterView {
        snapshot,
        now,
        stuck_after,
    };
    let is_selected = |path: &VolumePath<'_>| match (driver, path.driver()) {
        (Some(selected), Some(driver)) => selected == driver,
        // The driver of an unprovisioned volume is unknown.
        (Some(_), None) | (None, _) => true,
    };
    let paths = paths(view).into_iter().filter(is_selected);
    let mut paths: Vec<PathReport> = paths.map(|path| report(&path)).collect();
    if snapshot.resource.kind == ResourceKind::Cluster {
        paths.retain(|path| path.finding.state > State::Fine);
        paths.sort_by_key(|path| path.finding.since.unwrap_or(now));
    }
    // The worst first, otherwise in the order of the pod's volumes or by name; of a cluster, by age.
    paths.sort_by_key(|path| Reverse(path.finding.state));
    let notes = notes(view, paths.is_empty());
    let worst = paths.iter().map(|path| path.finding.state).max();
    Report {
        subject: snapshot.resource.to_string(),
        state: worst.unwrap_or(State::Fine),
        is_summary: snapshot.resource.kind == ResourceKind::Cluster,
        paths,
        notes,
        gaps: snapshot.gaps.clone(),
    }
}

/// The paths of the resource.
fn paths(view: ClusterView<'_>) -> Vec<VolumePath<'_>> {
    let snapshot = view.snapshot;
    let resource = &snapshot.resource;
    match resource.kind {
        ResourceKind::Pod => match snapshot.pods.first() {
            Some(pod) => of_pod(view, pod),
            None => Vec::new(),
        },
        ResourceKind::VolumeAttachment => {
            let first = snapshot.attachments.first();
            first
                .map(|va| VolumePath::of_attachment(view, va))
                .into_iter()
                .collect()
        }
        ResourceKind::PersistentVolume => {
            of_volume(view, claim_of(view, &resource.name), Some(resource.name.clone()))
        }
        ResourceKind::PersistentVolumeClaim => {
            let name = NamespacedName::new(&resource.namespace, &resource.name);
            let volume = view.claim(&name).found().and_then(ClaimExt::volume_name);
            of_volume(view, Some(name), volume.map(str::to_owned))
        }
        ResourceKind::Node => of_node(view, &resource.name),
        ResourceKind::Cluster => of_cluster(view),
    }
}

/// The unfinished attachments, the volumes of pods that have none of these, and the volumes that are being deleted.
fn of_cluster(view: ClusterView<'_>) -> Vec<VolumePath<'_>> {
    let attachments = view.snapshot.attachments.iter().filter(|va| va.is_unfinished());
    let mut paths: Vec<_> = attachments
        .map(|va| VolumePath::of_attachment(view, va))
        .collect();
    let pods = view.snapshot.pods.iter();
    let waiting = pods.filter(|pod| pod.is_waiting());
    let waiting = waiting.flat_map(|pod| of_pod(view, pod));
    let is_new = |path: &VolumePath<'_>| path.attachment.is_none_or(|va| !va.is_unfinished());
    paths.extend(waiting.filter(is_new));
    let deleting = view
        .snapshot
        .volumes
        .iter()
        .filter(|(_, volume)| volume.found().is_some_and(|volume| volume.deleted_at().is_some()));
    let deleting =
        deleting.map(|(name, _)| VolumePath::unused(view, claim_of(view, name), Some(name.clone())));
    paths.extend(deleting);
    paths
}

fn of_pod<'s>(view: ClusterView<'s>, pod: &'s Pod) -> Vec<VolumePath<'s>> {
    pod.claims()
        .map(|(volume, claim)| VolumePath::of_pod(view, pod, volume, claim))
        .collect()
}

/// A volume's attachments, the pods that have none yet, and the volume itself when it is being deleted or unused.
fn of_volume(
    view: ClusterView<'_>,
    claim: Option<NamespacedName>,
    volume: Option<String>,
) -> Vec<VolumePath<'_>> {
    let attachments = view.snapshot.attachments.iter();
    let attached = attachments.filter(|va| volume.is_some() && va.volume_name() == volume.as_deref());
    let mut paths: Vec<_> = attached.map(|va| VolumePath::of_attachment(view, va)).collect();
    if let Some(claim) = &claim {
        let pods = view.pods_using(claim);
        let pending = pods.map(|(pod, name)| VolumePath::of_pod(view, pod, name, claim.clone()));
        paths.extend(pending.filter(|path| path.attachment.is_none()));
    }
    let unused = VolumePath::unused(view, claim, volume);
    let is_deleting = unused
        .volume()
        .is_some_and(|volume| volume.deleted_at().is_some());
    if paths.is_empty() || is_deleting {
        paths.push(unused);
    }
    paths
}

/// The attachments to a node, and the volumes of its pods that have none yet.
fn of_node<'s>(view: ClusterView<'s>, name: &str) -> Vec<VolumePath<'s>> {
    let attachments = view.snapshot.attachments.iter();
    let here = attachments.filter(|va| va.spec.node_name == name);
    let mut paths: Vec<_> = here.map(|va| VolumePath::of_attachment(view, va)).collect();
    let attached: BTreeSet<_> = paths.iter().filter_map(|path| path.volume_name.clone()).collect();
    let pods = view.snapshot.pods.iter();
    let pods = pods.filter(|pod| pod.node_name() == name && !pod.is_terminated());
    let pending = pods.flat_map(|pod| of_pod(view, pod));
    paths.extend(pending.filter(|path| {
        path.volume_name
            .as_ref()
            .is_none_or(|volume| !attached.contains(volume))
    }));
    paths
}

fn report(path: &VolumePath<'_>) -> PathReport {
    PathReport {
        title: timeline::title(path),
        names: Names {
            pod: path
                .pod
                .map(|pod| NamespacedName::new(pod.namespace(), pod.name()).to_string()),
            persistent_volume_claim: path.claim.as_ref().map(NamespacedName::to_string),
            persistent_volume: path.volume_name.clone(),
            volume_attachment: path.attachment.map(|va| va.name().to_owned()),
            node: path.node_name.map(str::to_owned),
            driver: path.driver(),
        },
        steps: timeline::steps(path),
        finding: finding(path),
    }
}

/// The condition that blocks the path.
fn finding(path: &VolumePath<'_>) -> Finding {
    // If the volume waits for the detach from another node, that attachment is diagnosed without a holder: two
    // attachments may wait for each other.
    let holder = path.attachments_elsewhere().next().map(|va| {
        let path = VolumePath::of_attachment(path.view, va);
        let finding = of_attachment(&path, va, None);
        Holder { path, va, finding }
    });
    let holder = holder.as_ref();
    match (path.attachment, path.pod) {
        (Some(va), _) => of_attachment(path, va, holder),
        (None, Some(pod)) if pod.is_terminated() => {
            unused("The pod has terminated and does not need the volume any more.")
        }
        (None, Some(pod)) => claim::problem(path, holder)
            .or_else(|| node::unscheduled(path, pod))
            .unwrap_or_else(|| no_attachment::diagnose(path, holder)),
        (None, None) => claim::problem(path, holder)
            .unwrap_or_else(|| unused("No visible pod uses the volume, and it is not attached.")),
    }
}

fn of_attachment(path: &VolumePath<'_>, va: &VolumeAttachment, holder: Option<&Holder<'_>>) -> Finding {
    if path.view.needs_no_attachment(&va.spec.attacher) {
        return no_attachment::not_required(path, va);
    }
    let pods_hidden = path.view.snapshot.pods_incomplete || (path.claim.is_none() && path.volume().is_none());
    if va.deleted_at().is_some() {
        detach::deleting(path, va)
    } else if !va.is_attached() {
        attach::not_attached(path, va, holder)
    } else if path.pods_on_node().is_empty() && !pods_hidden {
        detach::not_requested(path, va)
    } else {
        mount::attached(path, va)
    }
}

fn unused(text: &str) -> Finding {
    Finding::fine(Cause::Unused, text)
}

fn notes(view: ClusterView<'_>, nothing: bool) -> Vec<String> {
    let resource = &view.snapshot.resource;
    let mut notes = match resource.kind {
        ResourceKind::Node => node::notes(view, &resource.name),
        ResourceKind::Pod
        | ResourceKind::PersistentVolumeClaim
        | ResourceKind::PersistentVolume
        | ResourceKind::VolumeAttachment
        | ResourceKind::Cluster => Vec::new(),
    };
    notes.extend(warnings(view.snapshot));
    if nothing {
        let note = match (resource.kind, view.snapshot.gaps.is_empty()) {
            (ResourceKind::Cluster, true) => "No volume waits for anything.",
            (ResourceKind::Cluster, false) => "No volume waits among the objects that could be read.",
            _ => "There is no volume here that a CSI driver would have to attach.",
        };
        notes.push(note.to_owned());
    }
    notes
}

/// What the attacher found and only people can end. An Event names the objects, and no object shows it.
fn warnings(snapshot: &Snapshot) -> BTreeSet<String> {
    let reasons = [
        events::Reason::NodeIdNotUnique,
        events::Reason::AttachedTwice,
        events::Reason::PublishedWithoutAttachment,
    ];
    let events = snapshot.events.iter();
    let warnings = events.filter(|event| reasons.iter().any(|reason| reason.name() == event.reason()));
    warnings
        .map(|event| format!("{}: {}", event.reason(), event.message()))
        .collect()
}

#[cfg(test)]
mod tests;
