//! Clauses about the status of VolumeAttachments.

use super::detach::was_released;
use super::{Deferred, Findings, Now};
use crate::observation::{Answer, Attachment, Observation, Target};
use crate::world::{AttachmentState, TargetState};

/// The version that first says `attached: true`, with the previous one. One that says so from its creation on was not written by the
/// attacher.
fn becomes_attached<'a>(
    now: Now<'a>,
    seen: &'a Observation,
) -> Option<(&'a Attachment, &'a AttachmentState)> {
    let (version, before) = written(now, seen)?;
    (version.attached && !before.version.attached).then_some((version, before))
}

/// A later version of an attachment, with the previous one.
fn written<'a>(now: Now<'a>, seen: &'a Observation) -> Option<(&'a Attachment, &'a AttachmentState)> {
    let Observation::Attachment(version) = seen else {
        return None;
    };
    let before = now.world.attachments.get(&version.name)?;
    (before.version.uid == version.uid && now.world.publishes).then_some((version, before))
}

/// kubelet mounts the volume as soon as the status says so. An effect at the array is no answer: the call may still fail.
pub(super) fn attached_while_published(
    now: Now<'_>,
    seen: &Observation,
    _: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    if let Observation::Attachment(attachment) = seen
        && now.is_honest()
        && now.world.publishes
        && attachment.attached
        && attachment.deleting.is_none()
    {
        let mut published = now.world.published.keys();
        if !published.any(|target| now.world.is_target_of(attachment, target)) {
            let text = "it says attached, and the array has not published its volume";
            findings.add(&attachment.name, text, []);
        }
    }
    let Some((attachment, before)) = becomes_attached(now, seen) else {
        return;
    };
    if now.world.handle(attachment).is_none() {
        return;
    }
    let targets = now.world.targets_of(attachment);
    let is_confirmed = |target: &Target| {
        let state = now.world.targets.get(target);
        // A watch may show the attachment, and that the former one is gone, after the publish.
        let may_be_its = !now.is_exact() && now.world.published.contains_key(target);
        state.is_some_and(|state| {
            state.confirmed(before, now.settings.order).is_some() || may_be_its && state.publish_ok.is_some()
        })
    };
    // After an outage of the API server a watch shows even a status that ended meanwhile.
    let is_late = |target: &Target| was_released(now, attachment, target);
    if !targets
        .iter()
        .any(|target| is_confirmed(target) || is_late(target))
    {
        let began = targets
            .iter()
            .filter_map(|target| now.world.targets.get(target)?.publish_began);
        let text = "it says attached, and the driver has not confirmed a publish";
        findings.add(&attachment.name, text, began.collect::<Vec<_>>());
    }
}

/// kubelet passes it to NodeStageVolume and NodePublishVolume. A later publish may have another one, which is stored in the end.
pub(super) fn context_reported(
    now: Now<'_>,
    seen: &Observation,
    _: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    let mut judge = |attachment: &Attachment, state: &AttachmentState, shared: bool| {
        let targets = now.world.targets_of(attachment);
        let known = targets.iter().filter_map(|target| now.world.targets.get(target));
        let known = known.filter(|known| shared || !known.shared);
        let answers = known.filter_map(|known| known.confirmed(state, now.settings.order));
        let answers: Vec<_> = answers.collect();
        let is_reported = answers
            .iter()
            .any(|(_, answer)| answer.context == attachment.metadata);
        if !answers.is_empty() && !is_reported {
            let text = format!("its attachmentMetadata is {:?}", attachment.metadata);
            findings.add(&attachment.name, text, answers.iter().map(|(number, _)| *number));
        }
    };
    if let Some((version, before)) = written(now, seen)
        && version.attached
        && (!before.version.attached || version.metadata != before.version.metadata)
    {
        judge(version, before, true);
    }
    if let (Observation::Settled, true) = (seen, now.world.publishes) {
        let states = now.world.attachments.values();
        let attached = states.filter(|state| state.version.attached && state.version.deleting.is_none());
        for state in attached.filter(|state| !now.has_excuse(&state.version)) {
            judge(&state.version, state, false);
        }
    }
}

/// The message of an error may be cut, and quoted.
fn contains_message(error: Option<&String>, answer: &Answer) -> bool {
    const BEGINNING: usize = 40;
    // The client did not get the message.
    if &*answer.code == "CANCELLED" {
        return true;
    }
    let beginning: String = answer.message.chars().take(BEGINNING).collect();
    error.is_some_and(|error| error.contains(&beginning))
}

/// Users find the cause in the pod's Events, which the attach/detach controller fills from here.
pub(super) fn error_reported(
    now: Now<'_>,
    seen: &Observation,
    _: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    let Observation::Settled = seen else { return };
    for state in now.world.attachments.values() {
        let attachment = &state.version;
        let is_deleting = attachment.deleting.is_some();
        let (error, field) = match is_deleting {
            true => (&attachment.detach_error, "detachError"),
            false => (&attachment.attach_error, "attachError"),
        };
        // A repeated publish may fail under an attachment that stays attached.
        let is_open = is_deleting || !attachment.attached;
        // Another error may have followed, which no call precedes.
        let is_excused = !now.is_honest() && now.world.healed.is_some() && now.world.has_obstacle(attachment);
        if !is_open || is_excused || error.is_none() {
            continue;
        }
        let targets = now.world.targets_of(attachment);
        let known = || targets.iter().filter_map(|target| now.world.targets.get(target));
        let failure = |known: &'_ TargetState| {
            let (publish, unpublish) = known.failures.clone();
            if is_deleting { unpublish } else { publish }
        };
        // Of several targets, one may be left to the attacher's own retries, or be another attachment's, too.
        let is_reported = known()
            .filter_map(failure)
            .any(|answer| contains_message(error.as_ref(), &answer));
        let mut own = known().filter(|known| known.published_for.as_ref() == Some(&attachment.uid));
        if let Some(answer) = own.find_map(failure).filter(|_| !is_reported) {
            let text = format!(
                "the driver answered {} {:?}, and its {field} does not say so",
                answer.code, answer.message
            );
            findings.add(&attachment.name, text, [state.seen.1]);
        }
    }
}

/// An error of the past sends users the wrong way.
pub(super) fn error_cleared(now: Now<'_>, seen: &Observation, _: &mut Deferred, findings: &mut Findings<'_>) {
    let Observation::Settled = seen else { return };
    for state in now.world.attachments.values() {
        let attachment = &state.version;
        // A publish that ListVolumes lost may fail again.
        let lasts = now.has_excuse(attachment);
        let is_attached = attachment.attached && attachment.deleting.is_none();
        if is_attached && attachment.attach_error.is_some() && !lasts {
            let text = "it is attached and still has an attachError";
            findings.add(&attachment.name, text, [state.seen.1]);
        }
    }
}
