//! Convergence checks after the last fault.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use tokio::time::{Instant, sleep};

use crate::observer;
use crate::world::{VOLUMES, World};

/// Poll interval.
const POLL: Duration = Duration::from_millis(500);
/// Timeout of conditions in simulated time: longer than any timeout and backoff.
const TIMEOUT: Duration = Duration::from_secs(20 * 60);

/// A volume, and the problem.
type Problem = (Option<String>, String);

// === impl World ===

impl World {
    /// Waits until every pod runs, VolumeAttachments, array and pods agree, and each provisioned volume has a bound
    /// PersistentVolume.
    pub(crate) async fn until_all_run(&self) -> Result<(), String> {
        let what = "every pod runs, VolumeAttachments, array and pods agree, and each provisioned volume has a bound \
                    PersistentVolume";
        self.until(what, async || self.unsettled().await).await
    }

    /// Deletes everything, and waits until nothing is left.
    pub(crate) async fn tear_down(&self) -> Result<(), String> {
        self.timeline.note("users", None, "leave");
        let (pods, templates) = (self.users.wanted(), self.users.templates());
        self.users.leave();
        for pod in pods {
            self.users.delete(&pod, false).await;
        }
        self.until("nothing is attached or mounted", async || self.left_over().await)
            .await?;
        for number in 0..VOLUMES.len() {
            let params = DeleteParams::default();
            self.users
                .claims()
                .delete(&format!("claim-{number}"), &params)
                .await
                .ok();
            self.all::<PersistentVolume>()
                .delete(&format!("pv-{number}"), &params)
                .await
                .ok();
        }
        for (claim, _) in templates {
            self.users
                .claims()
                .delete(&claim, &DeleteParams::default())
                .await
                .ok();
        }
        self.until(
            "no PersistentVolume and no provisioned volume is left",
            async || {
                let Ok(volumes) = self.all::<PersistentVolume>().list(&ListParams::default()).await else {
                    return no_response();
                };
                let Some(volume) = volumes.items.first() else {
                    return self.not_provisioned_as(&BTreeSet::new());
                };
                let text = format!("{} is left with {:?}", volume.name_any(), volume.finalizers());
                Some((Some(observer::volume_of(&volume.name_any())), text))
            },
        )
        .await
    }

    /// Advances simulated time until the condition holds or an invariant is violated.
    async fn until(
        &self,
        what: &str,
        mut problem: impl AsyncFnMut() -> Option<Problem>,
    ) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            self.invariants.check();
            self.ensure_no_violation()?;
            let Some((volume, found)) = problem().await else {
                return Ok(());
            };
            if begun.elapsed() > TIMEOUT {
                self.timeline
                    .violated(volume.as_deref(), format!("not so in time: {what}: {found}"));
            }
            sleep(POLL).await;
        }
    }

    /// Fails with the violated invariant and the timeline of its volume.
    pub(crate) fn ensure_no_violation(&self) -> Result<(), String> {
        if *self.cluster.panicked().borrow() {
            self.timeline.violated(None, "a controller panicked");
        }
        match self.timeline.violation() {
            Some(violation) => Err(format!(
                "{}{}\n{}",
                violation
                    .volume
                    .as_deref()
                    .map(|v| format!("{v}: "))
                    .unwrap_or_default(),
                violation.text,
                self.timeline.of(violation.volume.as_deref())
            )),
            None => Ok(()),
        }
    }

    /// The first deviation from the state in which every wanted pod runs.
    async fn unsettled(&self) -> Option<Problem> {
        let Ok(pods) = self.users.pods().list(&ListParams::default()).await else {
            return no_response();
        };
        let Ok(claims) = self.users.claims().list(&ListParams::default()).await else {
            return no_response();
        };
        let claims: BTreeMap<_, _> = claims
            .into_iter()
            .filter_map(|claim| Some((claim.name_any(), observer::volume_of(&claim.spec?.volume_name?))))
            .collect();
        let mut running = BTreeSet::new();
        let mut needed = BTreeSet::new();
        for pod in pods {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            if phase == Some("Running") && pod.metadata.deletion_timestamp.is_none() {
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                let machine = self.machines.get(node.unwrap_or_default());
                let volume = observer::claim_of(&pod).and_then(|claim| claims.get(claim).cloned());
                needed.extend(volume.zip(machine.map(|machine| machine.id.clone())));
                running.insert(pod.name_any());
            }
        }
        if let Some(waiting) = self.users.wanted().into_iter().find(|pod| !running.contains(pod)) {
            return Some((None, format!("pod {waiting} does not run")));
        }
        if let Some(problem) = self.not_attached_as(&needed).await {
            return Some(problem);
        }
        let Ok(volumes) = self.all::<PersistentVolume>().list(&ListParams::default()).await else {
            return no_response();
        };
        let is_bound = |volume: &PersistentVolume| {
            let status = volume.status.as_ref();
            status.is_some_and(|status| status.phase.as_deref() == Some("Bound"))
        };
        let mut provisioned = BTreeSet::new();
        for volume in volumes {
            let name = observer::volume_of(&volume.name_any());
            if !is_bound(&volume) {
                return Some((Some(name), "its PersistentVolume is not bound".to_owned()));
            }
            if name == volume.name_any() {
                provisioned.insert(name);
            }
        }
        self.not_provisioned_as(&provisioned)
    }

    /// The first difference between the array's provisioned volumes and `needed`.
    fn not_provisioned_as(&self, needed: &BTreeSet<String>) -> Option<Problem> {
        let provisioned = self.invariants.provisioned();
        let volume = provisioned.symmetric_difference(needed).next()?;
        let text = "PersistentVolumes and array differ".to_owned();
        Some((Some(volume.clone()), text))
    }

    /// The first difference of VolumeAttachments or the array from `needed`, pairs of a volume and a node id.
    async fn not_attached_as(&self, needed: &BTreeSet<(String, String)>) -> Option<Problem> {
        let Ok(attachments) = self.all::<VolumeAttachment>().list(&ListParams::default()).await else {
            return no_response();
        };
        let mut attached = BTreeSet::new();
        for attachment in attachments {
            let volume = attachment.spec.source.persistent_volume_name.unwrap_or_default();
            let volume = observer::volume_of(&volume);
            let id = self.machines[attachment.spec.node_name.as_str()].id.clone();
            if attachment.metadata.deletion_timestamp.is_some() {
                return Some((
                    Some(volume),
                    format!("its VolumeAttachment for {id} is not deleted"),
                ));
            }
            if !attachment.status.is_some_and(|status| status.attached) {
                return Some((
                    Some(volume),
                    format!("its VolumeAttachment for {id} is not attached"),
                ));
            }
            attached.insert((volume, id));
        }
        for (what, found) in [
            ("VolumeAttachments", attached),
            ("array", self.invariants.published()),
        ] {
            if let Some((volume, id)) = found.symmetric_difference(needed).next() {
                let text = format!("pods and {what} differ about {id}");
                return Some((Some(volume.clone()), text));
            }
        }
        None
    }

    /// An object that is left after the last pod.
    async fn left_over(&self) -> Option<Problem> {
        let Ok(pods) = self.users.pods().list(&ListParams::default()).await else {
            return no_response();
        };
        if let Some(pod) = pods.items.first() {
            return Some((None, format!("pod {} is left", pod.name_any())));
        }
        if let Some(problem) = self.not_attached_as(&BTreeSet::new()).await {
            return Some(problem);
        }
        let (id, mounts) = self.invariants.mounted().into_iter().next()?;
        let volume = mounts.staged.first().cloned();
        Some((volume, format!("{id} has mounted {mounts:?}")))
    }
}

// === functions ===

fn no_response() -> Option<Problem> {
    Some((None, "the API server does not respond".to_owned()))
}
