//! Convergence after the last fault.

use std::collections::BTreeSet;
use std::time::Duration;

use attacher_contract::Observation;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use tokio::time::{Instant, sleep};

use crate::world::{VOLUMES, World};

/// Poll interval.
const POLL: Duration = Duration::from_millis(500);
/// Timeout of conditions in simulated time: longer than any timeout and backoff.
const TIMEOUT: Duration = Duration::from_secs(20 * 60);

// === impl World ===

impl World {
    /// Waits until the wanted pods exist, each provisioned volume has a bound PersistentVolume, and the contract accepts that
    /// everything has settled.
    pub(crate) async fn until_all_run(&self) -> Result<(), String> {
        self.observer.observe(Observation::Healed);
        self.until(&Observation::Settled, async || self.unsettled().await)
            .await
    }

    /// Deletes everything, and waits until nothing is left.
    pub(crate) async fn tear_down(&self) -> Result<(), String> {
        self.observer.note("users", None, "leave");
        let (pods, templates) = (self.users.wanted(), self.users.templates());
        self.users.leave();
        for pod in pods {
            self.users.delete(&pod, false).await;
        }
        self.until(&Observation::Settled, async || self.unsettled().await)
            .await?;
        let params = DeleteParams::default();
        let claims = (0..VOLUMES.len()).map(|number| format!("claim-{number}"));
        for claim in claims.chain(templates.into_iter().map(|(claim, _)| claim)) {
            self.users.claims().delete(&claim, &params).await.ok();
        }
        let volumes = self.all::<PersistentVolume>();
        for number in 0..VOLUMES.len() {
            volumes.delete(&format!("pv-{number}"), &params).await.ok();
        }
        self.until(&Observation::CleanedUp, async || {
            let Ok(left) = volumes.list(&ListParams::default()).await else {
                return no_response();
            };
            let names = left.iter().map(ResourceExt::name_any);
            compare("PersistentVolumes", names.collect(), BTreeSet::new())
                .or_else(|| self.not_provisioned_as(BTreeSet::new()))
        })
        .await
    }

    /// Advances simulated time until there is no problem and the contract allows the observation, or something is violated.
    async fn until(
        &self,
        seen: &Observation,
        mut problem: impl AsyncFnMut() -> Option<String>,
    ) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            self.verify()?;
            let found = problem().await;
            if found.is_none() && self.observer.observe_in_order(seen).is_ok() {
                return Ok(());
            }
            if begun.elapsed() > TIMEOUT {
                // Unsatisfied clauses become violations.
                self.observer.observe(seen.clone());
                self.verify()?;
                self.observer
                    .fail(format_args!("not so in time: {seen}: {found:?}"));
            }
            sleep(POLL).await;
        }
    }

    /// Fails with the first violation.
    pub(crate) fn verify(&self) -> Result<(), String> {
        if *self.cluster.panicked().borrow() {
            let component = "a controller or kubelet".to_owned();
            self.observer.observe(Observation::Panicked(component));
        }
        self.observer.verify()
    }

    /// The first deviation from the state in which the wanted pods and their volumes exist.
    async fn unsettled(&self) -> Option<String> {
        let wanted = self.users.wanted().into_iter().collect();
        if let Some(problem) = compare("pods", self.observer.pods(), wanted) {
            return Some(problem);
        }
        let Ok(volumes) = self.all::<PersistentVolume>().list(&ListParams::default()).await else {
            return no_response();
        };
        let is_bound = |volume: &&PersistentVolume| {
            let status = volume.status.as_ref();
            status.is_some_and(|status| status.phase.as_deref() == Some("Bound"))
        };
        if let Some(volume) = volumes.iter().find(|volume| !is_bound(volume)) {
            return Some(format!("{} is not bound", volume.name_any()));
        }
        let names = volumes.iter().map(ResourceExt::name_any);
        self.not_provisioned_as(names.filter(|name| !name.starts_with("pv-")).collect())
    }

    /// The first difference between the array's provisioned volumes and `wanted`.
    fn not_provisioned_as(&self, wanted: BTreeSet<String>) -> Option<String> {
        compare("provisioned volumes", self.observer.provisioned(), wanted)
    }
}

// === functions ===

fn compare(what: &str, found: BTreeSet<String>, wanted: BTreeSet<String>) -> Option<String> {
    (found != wanted).then(|| format!("the {what} are {found:?}, not {wanted:?}"))
}

fn no_response() -> Option<String> {
    Some("the API server does not respond".to_owned())
}
