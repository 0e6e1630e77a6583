//! Holders of the attachers' Lease.

use attacher_contract::observation::Name;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;

use super::observations::WatchEvent;

/// Holders of the Lease with the start of each term; `None` if it is not held. Watches show writes late, so the times are those in the Lease: a replica acts
/// only after the write in which it acquires the Lease, and no more from the one on in which it releases it, or once it has expired.
/// The attachers run on the machine of the observer, with its clock.
pub(super) fn holders(events: &[WatchEvent<Lease>]) -> Vec<(Timestamp, Option<Name>)> {
    let mut holders = Vec::new();
    let mut held: Option<(Name, Timestamp)> = None;
    for event in events {
        let spec = event.object.spec.as_ref().filter(|_| !event.gone);
        let renewed = spec.and_then(|spec| spec.renew_time.as_ref());
        let renewed = renewed.map_or(event.at, |time| time.0);
        let duration = spec
            .and_then(|spec| spec.lease_duration_seconds)
            .unwrap_or_default();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
        let holder = holder.filter(|holder| !holder.is_empty()).map(Name::from);
        if let Some((_, expiry)) = held.take_if(|(_, expiry)| *expiry < renewed) {
            holders.push((expiry, None));
        }
        if holder.as_ref() != held.as_ref().map(|(name, _)| name) {
            holders.push((renewed, holder.clone()));
        }
        let expiry = renewed + SignedDuration::from_secs(duration.into());
        held = holder.map(|holder| (holder, expiry));
    }
    if let Some((_, expiry)) = held {
        holders.push((expiry, None));
    }
    holders
}
