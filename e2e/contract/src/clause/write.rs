//! Clauses about writes and other output.

use super::{Deferred, Findings, Now};
use crate::observation::{Attachment, Method, Observation};

/// Without the PersistentVolume, an attacher does not know the handle and the Secret that it needs for the detach.
pub(super) fn volume_guarded(
    now: Now<'_>,
    seen: &Observation,
    _: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    let (name, kept) = match seen {
        Observation::CallBegan(call) if call.method == Method::Publish && now.is_exact() => {
            let volume = now.world.volume_of(&call.target.volume);
            if let Some(volume) = volume.filter(|volume| volume.finalizers == 0 && !volume.foreign) {
                let text = "its volume was published before it had the finalizer";
                findings.add(format!("PersistentVolume {}", volume.name), text, []);
            }
            return;
        }
        Observation::Volume(volume) => (&volume.name, volume.finalizers > 0),
        Observation::VolumeGone(name) => (name, false),
        _ => return,
    };
    // After a gap, versions of different kinds are in no order.
    if !now.is_exact() && now.world.last_gap.is_some() {
        return;
    }
    let had = now
        .world
        .volumes
        .get(name)
        .is_some_and(|volume| volume.finalizers > 0);
    let attachments = now.world.attachments.values();
    // Before its first publish, the attacher adds the finalizer again.
    let needs = |attachment: &Attachment| {
        let targets = now.world.targets_of(attachment);
        let mut known = targets.iter().filter_map(|target| now.world.targets.get(target));
        let is_published = known.any(|known| known.proof().is_none());
        attachment.volume == *name && attachment.finalizer && (attachment.attached || is_published)
    };
    let mut needing = attachments.filter(|state| needs(&state.version));
    if let Some(state) = needing.next().filter(|_| had && !kept) {
        let text = format!("it lost the finalizer, and {} needs it", state.version.name);
        findings.add(format!("PersistentVolume {name}"), text, [state.seen.1]);
    }
}

/// Each removal takes one away, so that the second one blocks the deletion.
pub(super) fn finalizer_once(_: Now<'_>, seen: &Observation, _: &mut Deferred, findings: &mut Findings<'_>) {
    if let Observation::Volume(volume) = seen
        && volume.finalizers > 1
    {
        let text = format!("it has the finalizer {} times", volume.finalizers);
        findings.add(format!("PersistentVolume {}", volume.name), text, []);
    }
}

/// Every write is a load on etcd, and every change wakes all watchers.
pub(super) fn no_idle_write(_: Now<'_>, seen: &Observation, _: &mut Deferred, findings: &mut Findings<'_>) {
    if let Observation::Write(write) = seen
        && (write.empty || !write.changed)
    {
        let text = if write.empty {
            "an empty patch was sent"
        } else {
            "a write changed nothing"
        };
        findings.add(&write.object, text, []);
    }
}

/// In plain text or in base64.
pub(super) fn no_secret_shown(
    now: Now<'_>,
    seen: &Observation,
    _: &mut Deferred,
    findings: &mut Findings<'_>,
) {
    let Observation::Text(source, text) = seen else {
        return;
    };
    for secret in now.settings.secrets.iter().filter(|secret| !secret.is_empty()) {
        let forms = [secret.clone(), base64(secret.as_bytes())];
        if forms
            .iter()
            .any(|form| !form.is_empty() && text.contains(form.as_str()))
        {
            // The value is omitted, because this text is shown.
            findings.add(source, "it contains a secret value", []);
        }
    }
}

/// Base64 of the complete groups: the last, partial one depends on what follows.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let groups = bytes.chunks_exact(3).map(|group| {
        let bits = group
            .iter()
            .fold(0_usize, |bits, &byte| bits << 8 | usize::from(byte));
        [18, 12, 6, 0].map(|shift| char::from(ALPHABET[bits >> shift & 63]))
    });
    groups.flatten().collect()
}
