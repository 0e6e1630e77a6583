//! Clauses about the end of an attachment.

use std::time::Duration;

use super::{Deferred, Findings, Now};
use crate::observation::{Attachment, Method, Observation, Target};
use crate::world::{AttachmentState, Proof, World};

/// The last version before the attachment lost its finalizer, or before it was deleted without one. `bool`: it had the finalizer.
fn unguarded<'a>(now: Now<'a>, seen: &Observation) -> Option<(&'a AttachmentState, bool)> {
    let (name, keeps) = match seen {
        Observation::Attachment(version) => (&version.name, version.finalizer),
        Observation::AttachmentGone(name) => (name, false),
        _ => return None,
    };
    let state = now.world.attachments.get(name)?;
    let before = &state.version;
    let is_gone = match seen {
        Observation::Attachment(version) => version.uid != before.uid,
        _ => true,
    };
    if now.world.taken.contains(&before.uid) {
        return None;
    }
    let loses = before.finalizer && (is_gone || !keeps);
    (loses || is_gone).then_some((state, before.finalizer))
}

/// Whether a watch shows the attachment's end late: its volume was unpublished after its deletion was requested, and may be
/// published for the next one.
pub(super) fn was_released(now: Now<'_>, attachment: &Attachment, target: &Target) -> bool {
    let known = now.world.targets.get(target);
    let released = known.and_then(|known| known.released_for.get(&attachment.uid));
    let is_of_this_end = |at: &Duration| attachment.deleting.is_none_or(|since| since <= *at);
    !now.is_exact() && released.is_some_and(is_of_this_end)
}

/// The finalizer is the only thing that keeps a published volume from being forgotten. NOT_FOUND, a restarted driver and an empty
/// list of capabilities prove nothing.
pub(super) fn finalizer_with_proof(
    now: Now<'_>,
    seen: &Observation,
    _: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    let Some((state, true)) = unguarded(now, seen) else {
        return;
    };
    let attachment = &state.version;
    for target in now.world.targets_of(attachment) {
        let known = now.world.targets.get(&target);
        if now.world.is_others(&target, &attachment.uid)
            || was_released(now, attachment, &target)
            || now.world.proof(attachment, &target, now.at).is_some()
        {
            continue;
        }
        let published = known.and_then(|known| known.publish_began);
        let refused = known.and_then(|known| known.failures.1.as_ref());
        let last = refused.map_or_else(String::new, |answer| {
            format!("; the last unpublish answered {}", answer.code)
        });
        let text = format!("it lost the finalizer without a proof that {target} is released{last}");
        findings.add(
            &attachment.name,
            text,
            published.into_iter().chain([state.seen.1]),
        );
    }
}

/// Only the array's truth counts: it does not matter who published the volume, and when.
pub(super) fn nothing_forgotten(
    now: Now<'_>,
    seen: &Observation,
    deferred: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    let text = |target: &Target| format!("the array has published {target}, and nothing remembers it");
    match seen {
        // The publish was for this attachment, which the watch shows late.
        Observation::Attachment(next) => deferred.forgotten.retain(|target, (name, uid, _)| {
            let is_next = *name == next.name && *uid != next.uid;
            !(is_next || *uid != next.uid && now.world.is_target_of(next, target))
        }),
        Observation::Settled | Observation::CleanedUp => {
            for (target, (name, _, numbers)) in std::mem::take(&mut deferred.forgotten) {
                findings.add(name, text(&target), numbers);
            }
        }
        _ => {}
    }
    let Some((state, _)) = unguarded(now, seen) else {
        return;
    };
    let attachment = &state.version;
    for target in now.world.targets_of(attachment) {
        let Some(&published) = now.world.published.get(&target) else {
            continue;
        };
        let known = now.world.targets.get(&target);
        let proof = now.world.proof(attachment, &target, now.at);
        // The driver denied it, another client took the finalizer, or the volume is published for a later attachment.
        let is_denied =
            known.is_some_and(|known| known.taken || known.publish_began.is_some() && proof.is_some());
        let has_twin = now
            .world
            .attachments_of(&target)
            .any(|state| state.version.uid != attachment.uid && state.version.finalizer);
        let is_others = now.world.is_others(&target, &attachment.uid)
            || proof == Some(Proof::OtherAttachment)
            || has_twin;
        if is_denied || is_others {
            continue;
        }
        let evidence = [published, state.seen.1];
        if was_released(now, attachment, &target) {
            let forgotten = (attachment.name.clone(), attachment.uid.clone(), evidence);
            deferred.forgotten.insert(target, forgotten);
        } else {
            findings.add(&attachment.name, text(&target), evidence);
        }
    }
}

/// The attachments that are attached and not deleting, and whose target an unpublish names.
pub(super) fn attached_under<'a>(
    world: &'a World,
    target: &'a Target,
) -> impl Iterator<Item = &'a AttachmentState> {
    let is_under = |attachment: &Attachment| {
        let handle = world.handle(attachment);
        let all = target.node.is_empty() && handle.as_ref() == Some(&target.volume);
        // Without finalizer and record it was attached by a driver without publish calls, and has nothing to be detached.
        let is_published = attachment.finalizer || attachment.node_id.is_some();
        attachment.attached
            && is_published
            && attachment.deleting.is_none()
            && (all || world.is_target_of(attachment, target))
    };
    let attachments = world.attachments.values();
    attachments.filter(move |state| is_under(&state.version))
}

/// A pod uses the volume: only a request for the VolumeAttachment's deletion allows the detach.
pub(super) fn no_detach_under_attachment(
    now: Now<'_>,
    seen: &Observation,
    deferred: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    let text = "it is attached and not being deleted, and its volume was unpublished";
    match seen {
        Observation::CallBegan(call) if call.method == Method::Unpublish && now.is_exact() => {
            for state in attached_under(now.world, &call.target) {
                findings.add(&state.version.name, text, [state.seen.1]);
            }
        }
        // The watch shows when the deletion was requested.
        Observation::Attachment(version) if version.deleting.is_some() => {
            deferred.unpublishes.retain(|(_, uid), (number, at)| {
                let is_it = *uid == version.uid;
                if is_it && version.deleting.is_some_and(|since| since > *at) {
                    findings.add(&version.name, text, [*number]);
                }
                !is_it
            });
        }
        Observation::Settled | Observation::CleanedUp => {
            for ((target, uid), (number, _)) in std::mem::take(&mut deferred.unpublishes) {
                let mut attachments = now.world.attachments.values();
                let state = attachments.find(|state| state.version.uid == uid);
                if let Some(state) = state.filter(|state| state.deleting.is_none()) {
                    findings.add(&state.version.name, text, [number]);
                } else if state.is_none() {
                    // Its deletion was never seen: the record has a gap, or the object had no finalizer.
                    drop(target);
                }
            }
        }
        _ => {}
    }
}
