//! Clauses about the end of an operation or of a history.

use super::{Deferred, Findings, Now};
use crate::observation::Observation;
use crate::world::AttachmentState;

/// Whether no fault concerned the attachment's operation that began with this observation.
fn had_no_fault(now: Now<'_>, since: usize) -> bool {
    now.world.last_fault.is_none_or(|fault| fault < since)
}

/// Cost at the API server and the array counts as the attacher's.
pub(super) fn uneventful(now: Now<'_>, seen: &Observation, _: &mut Deferred, findings: &mut Findings<'_>) {
    let (name, attached) = match seen {
        Observation::Attachment(version) if version.attached => (&version.name, Some(version)),
        Observation::AttachmentGone(name) => (name, None),
        _ => return,
    };
    let Some(state) = now.world.attachments.get(name) else {
        return;
    };
    let bounds = now.settings.bounds;
    let attachment = &state.version;
    let (mut publishes, mut unpublishes) = (0, 0);
    for target in now.world.targets_of(attachment) {
        let known = now.world.targets.get(&target);
        let known = known.filter(|known| known.published_for.as_ref() == Some(&attachment.uid));
        let calls = known.map_or((0, 0), |known| known.calls);
        publishes += calls.0;
        unpublishes += calls.1;
    }
    let begins = |state: &AttachmentState| state.deleting.unwrap_or(state.seen.0);
    if !had_no_fault(now, state.seen.0) || !had_no_fault(now, begins(state)) {
        return;
    }
    let counts = match attached {
        Some(version)
            if version.uid == attachment.uid && !attachment.attached && version.deleting.is_none() =>
        {
            [
                ("publishes", publishes, bounds.publishes),
                ("writes", state.attach_writes + 1, bounds.attach_writes),
            ]
        }
        None if attachment.finalizer => [
            ("unpublishes", unpublishes, bounds.unpublishes),
            ("writes", state.writes - state.attach_writes, bounds.detach_writes),
        ],
        Some(_) | None => return,
    };
    for (what, count, bound) in counts {
        if count > bound {
            let operation = if attached.is_some() { "attach" } else { "detach" };
            let text = format!("an uneventful {operation} took {count} {what}, at most {bound} are in order");
            findings.add(name, text, [state.seen.0]);
        }
    }
}

/// A controller that waits for the status waits for ever.
pub(super) fn settles(now: Now<'_>, seen: &Observation, _: &mut Deferred, findings: &mut Findings<'_>) {
    let Observation::Settled = seen else { return };
    for state in now.world.attachments.values() {
        if let Some(text) = state.version.unsettled() {
            findings.add(&state.version.name, text, [state.seen.1]);
        }
    }
}

/// An error that the attacher does not retry lasts as long as the fault did, and longer.
pub(super) fn recovers(now: Now<'_>, seen: &Observation, _: &mut Deferred, findings: &mut Findings<'_>) {
    let (Observation::Settled, Some(healed)) = (seen, now.world.healed) else {
        return;
    };
    for state in now.world.attachments.values() {
        let attachment = &state.version;
        let says_attached = attachment.attached || attachment.detach_error.is_some();
        let text = match (attachment.deleting.is_some(), attachment.finalizer) {
            (true, true) => "it is not detached",
            // Another controller's finalizer keeps it.
            (true, false) if says_attached => "it is detached, and its status does not say so",
            (false, _) if !attachment.attached => "it is not attached",
            (false, false) if now.world.publishes => "it is attached, and nothing guards its publish",
            (true | false, _) => continue,
        };
        if !now.has_excuse(attachment) {
            let error = match attachment.deleting {
                Some(_) => &attachment.detach_error,
                None => &attachment.attach_error,
            };
            let error = error.as_deref().unwrap_or("none");
            let text = format!("{text}, and nothing prevents it any more; its error: {error}");
            findings.add(&attachment.name, text, [healed, state.seen.1]);
        }
    }
}

/// Both directions: an attachment without its volume, and a volume without an attachment.
pub(super) fn array_agrees(now: Now<'_>, seen: &Observation, _: &mut Deferred, findings: &mut Findings<'_>) {
    let Observation::Settled = seen else { return };
    if !now.world.publishes {
        return;
    }
    for state in now.world.attachments.values() {
        let attachment = &state.version;
        let is_published = match now.is_honest() {
            true => now
                .world
                .present_target_of(attachment)
                .is_some_and(|target| now.world.published.contains_key(&target)),
            false => now
                .world
                .targets_of(attachment)
                .iter()
                .any(|target| now.world.published.contains_key(target)),
        };
        let is_known = now.world.handle(attachment).is_some();
        let is_excused = !now.is_honest() && now.world.has_obstacle(attachment) || now.has_excuse(attachment);
        if is_known && attachment.attached && attachment.deleting.is_none() && !is_published && !is_excused {
            let text = "it says attached, and the array has not published its volume";
            findings.add(&attachment.name, text, [state.seen.1]);
        }
    }
    for (target, since) in &now.world.published {
        let is_wanted = match now.is_honest() {
            true => {
                let mut attachments = now.world.attachments.values();
                attachments.any(|state| now.world.present_target_of(&state.version).as_ref() == Some(target))
            }
            false => now.world.attachments_of(target).next().is_some(),
        };
        let is_excused = !now.is_honest()
            && (now.world.volume_of(&target.volume).is_none() || now.world.is_denied(target));
        if !is_wanted && !is_excused {
            findings.add(target, "it is published without a VolumeAttachment", [*since]);
        }
    }
}

/// What is left now stays for ever.
pub(super) fn nothing_left(now: Now<'_>, seen: &Observation, _: &mut Deferred, findings: &mut Findings<'_>) {
    let Observation::CleanedUp = seen else { return };
    for state in now.world.attachments.values() {
        findings.add(&state.version.name, "it is left", [state.seen.1]);
    }
    for (target, since) in &now.world.published {
        if now.is_honest() || !now.world.is_denied(target) {
            findings.add(target, "it is still published", [*since]);
        }
    }
    for (target, since) in &now.world.mounted {
        // The node is gone or cannot unmount.
        if now.world.forced(target).is_none() || now.world.is_healthy(target) {
            findings.add(format!("mount of {target}"), "it is left", [*since]);
        }
    }
    for volume in now.world.volumes.values().filter(|volume| volume.finalizers > 0) {
        findings.add(
            format!("PersistentVolume {}", volume.name),
            "it still has the finalizer",
            [],
        );
    }
}

/// An unobserved answer is no proof.
pub(super) fn record_complete(
    now: Now<'_>,
    seen: &Observation,
    _: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    if !matches!(seen, Observation::Settled | Observation::CleanedUp) {
        return;
    }
    if let (true, None, Some(fault)) = (now.is_honest(), now.world.healed, now.world.relapsed) {
        findings.add("all faults", "a fault followed their end", [fault]);
    }
    for (what, since) in &now.world.gaps {
        findings.add(what, "states are missing, and no list followed", [*since]);
    }
}
