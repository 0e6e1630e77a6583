//! Clauses about calls of the attacher.

use super::{Deferred, Findings, Now};
use crate::Record;
use crate::observation::{Attachment, Call, Method, Observation};
use crate::world::AttachmentState;

/// The publish that begins, with the attachments of its target.
fn publish(seen: &Observation) -> Option<&Call> {
    match seen {
        Observation::CallBegan(call) if call.method == Method::Publish => Some(call),
        _ => None,
    }
}

/// The attachment whose publish was confirmed, with its previous version. A watch shows versions late, but in order, and all of them
/// unless it broke in between.
fn confirmed<'a>(now: Now<'a>, seen: &Observation) -> Option<&'a AttachmentState> {
    let Observation::Attachment(version) = seen else {
        return None;
    };
    let before = now.world.attachments.get(&version.name)?;
    let is_previous = now.world.last_gap.is_none_or(|gap| gap < before.seen.1);
    let confirms = before.version.uid == version.uid && version.attached && !before.version.attached;
    let is_published = now.world.targets_of(version).iter().any(|target| {
        let state = now.world.targets.get(target);
        state.is_some_and(|state| state.publish_began.is_some())
    });
    let is_confirmed = confirms && is_published && now.world.publishes;
    (is_confirmed && is_previous && !now.is_exact()).then_some(before)
}

/// Without the finalizer, a VolumeAttachment that is deleted during the call is gone at once, and nothing unpublishes the volume.
pub(super) fn finalizer_before_publish(
    now: Now<'_>,
    seen: &Observation,
    _: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    if let Some(before) = confirmed(now, seen)
        && !before.version.finalizer
    {
        let text = "it was published before it had the finalizer";
        findings.add(&before.version.name, text, [before.seen.1]);
    }
    let Some(call) = publish(seen).filter(|_| now.is_exact()) else {
        return;
    };
    let mut of_target = now.world.attachments_of(&call.target);
    // The attacher cannot know yet that another client has taken the finalizer.
    if of_target.any(|state| state.version.finalizer) || now.world.taken_targets.contains(&call.target) {
        return;
    }
    let evidence = now.world.attachments_of(&call.target).map(|state| state.seen.1);
    let text = "a publish was sent without a VolumeAttachment that has the finalizer";
    findings.add(&call.target, text, evidence);
}

/// What a restarted attacher needs for the detach must be stored before the call can have an effect.
pub(super) fn record_before_publish(
    now: Now<'_>,
    seen: &Observation,
    _: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    let needs_handle = now.settings.record == Record::Target;
    let lacks =
        |attachment: &Attachment| attachment.node_id.is_none() || needs_handle && attachment.handle.is_none();
    if let Some(before) = confirmed(now, seen)
        && before.version.finalizer
        && lacks(&before.version)
    {
        let text = "it was published before its target was recorded";
        findings.add(&before.version.name, text, [before.seen.1]);
    }
    let Some(call) = publish(seen).filter(|_| now.is_exact()) else {
        return;
    };
    let guarded: Vec<_> = now
        .world
        .attachments_of(&call.target)
        .filter(|state| state.version.finalizer)
        .collect();
    let is_recorded = |state: &&AttachmentState| {
        let attachment = &state.version;
        attachment.node_id.as_ref() == Some(&call.target.node)
            && (!needs_handle || attachment.handle.as_ref() == Some(&call.target.volume))
    };
    if !guarded.is_empty() && !guarded.iter().any(is_recorded) {
        let text = "a publish was sent to a target that no VolumeAttachment records";
        findings.add(&call.target, text, guarded.iter().map(|state| state.seen.1));
    }
}

/// A driver may answer ABORTED to the second call, or execute both in any order.
pub(super) fn one_at_a_time(now: Now<'_>, seen: &Observation, _: &mut Deferred, findings: &mut Findings<'_>) {
    let Observation::CallBegan(call) = seen else {
        return;
    };
    let running = now.world.running.values();
    let mut same = running
        .filter(|(_, other)| other.target.includes(&call.target) || call.target.includes(&other.target));
    if let Some((began, other)) = same.next() {
        let text = format!("{} was sent during {}", call.method, other.method);
        findings.add(&call.target, text, [*began]);
    }
}

/// Two processes that act at once undo each other's work.
pub(super) fn only_the_leader(
    now: Now<'_>,
    seen: &Observation,
    _: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    let (by, what) = match seen {
        Observation::CallBegan(call) => (&call.by, call.method.to_string()),
        Observation::Write(write) => (&write.by, format!("a write to {}", write.object)),
        _ => return,
    };
    if let (Some(by), Some(since)) = (by, now.world.lacks_lease(by.as_ref())) {
        findings.add(by, format!("it sent {what} without the lease"), [since]);
    }
}

/// A handle means nothing to another driver, or, worse, another volume.
pub(super) fn own_volumes_only(
    now: Now<'_>,
    seen: &Observation,
    _: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    let Some(call) = publish(seen) else { return };
    let volume = now.world.volume_of(&call.target.volume);
    if let Some(volume) = volume.filter(|volume| volume.foreign) {
        let text = format!("PersistentVolume {} is another driver's", volume.name);
        findings.add(&call.target, text, []);
    }
}

/// Drivers with tenants cannot publish without it, or publish with the wrong credentials.
pub(super) fn secret_sent(now: Now<'_>, seen: &Observation, _: &mut Deferred, findings: &mut Findings<'_>) {
    let Some(call) = publish(seen) else { return };
    let volume = now.world.volume_of(&call.target.volume);
    if let (Some(volume), Some(sent)) = (volume, call.secret)
        && volume.secret != sent
    {
        let text = if sent {
            "a publish has a Secret that the PersistentVolume does not name"
        } else {
            "a publish lacks the Secret that the PersistentVolume names"
        };
        findings.add(&call.target, text, []);
    }
}

/// The driver publishes what the request says.
pub(super) fn request_matches_volume(
    now: Now<'_>,
    seen: &Observation,
    _: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    let Some(call) = publish(seen) else { return };
    let volume = now.world.volume_of(&call.target.volume);
    let wanted = volume.and_then(|volume| volume.request.as_deref());
    if let (Some(wanted), Some(sent)) = (wanted, &call.request)
        && wanted != sent
    {
        let text = format!("the publish is {sent:?}, and the PersistentVolume asks for {wanted:?}");
        findings.add(&call.target, text, []);
    }
}
