//! Pods of a test environment, and their status.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Event, Pod, Toleration};
use kube::Api;
use kube::api::DeleteParams;
use kube::runtime::watcher;

use super::{STEP_TIMEOUT, TestEnv, TestVolume};
use crate::fixture::{Access, mk_pod};
use crate::objects;
use crate::wait::{self, Progress};

// === impl TestEnv ===

impl TestEnv<'_> {
    /// Creates a pod with these volumes that the scheduler must bind to the node.
    pub async fn pod(&self, name: &str, node: usize, volumes: &[&TestVolume]) -> Result<()> {
        self.pod_for(name, self.node(node).name(), volumes).await
    }

    /// Creates a single-node volume and a pod with it, and waits until the pod runs.
    pub async fn running_pod(&mut self, name: &str, node: usize, volume: &str) -> Result<TestVolume> {
        let volume = self.volume(volume, Access::OneNode).await?;
        self.pod(name, node, &[&volume]).await?;
        self.wait_until_running(name, STEP_TIMEOUT).await?;
        Ok(volume)
    }

    /// Creates a pod with these volumes that fits on no node.
    pub async fn unschedulable_pod(&self, name: &str, volumes: &[&TestVolume]) -> Result<()> {
        self.pod_for(name, &format!("{}-nowhere", self.prefix), volumes)
            .await
    }

    /// Creates a pod with this claim, which may have no volume yet, that the scheduler must bind to the node.
    pub async fn claim_pod(&self, name: &str, node: usize, claim: &str) -> Result<()> {
        let pod = mk_pod(&self.prefix, name, self.node(node).name(), &[claim.to_owned()]);
        self.create_pod(&pod).await
    }

    /// Creates a pod.
    pub async fn create_pod(&self, pod: &Pod) -> Result<()> {
        objects::create(&self.pods(), pod).await.map(drop)
    }

    async fn pod_for(&self, name: &str, node: &str, volumes: &[&TestVolume]) -> Result<()> {
        let claims: Vec<_> = volumes.iter().map(|volume| volume.claim.clone()).collect();
        self.create_pod(&mk_pod(&self.prefix, name, node, &claims)).await
    }

    /// Force-deletes a pod, without waiting for its kubelet.
    pub async fn remove_pod(&self, name: &str) -> Result<()> {
        self.pods()
            .delete(name, &DeleteParams::default().grace_period(0))
            .await
            .with_context(|| format!("remove pod {name} for good"))?;
        Ok(())
    }

    /// Deletes a pod, without waiting.
    pub async fn delete_pod(&self, name: &str) -> Result<()> {
        objects::delete(&self.pods(), name).await
    }

    /// Makes the containers of a running pod exit with this code, and waits for the phase.
    pub async fn complete_pod(&self, name: &str, node: usize, code: i32) -> Result<()> {
        let pod = self.pods().get(name).await?;
        let uid = pod.metadata.uid.context("a pod has a UID")?;
        self.node(node).exit_containers(&uid, code)?;
        let completed = if code == 0 { "Succeeded" } else { "Failed" };
        self.wait_for_phase(name, completed, STEP_TIMEOUT).await
    }

    /// Waits until the pod runs.
    pub async fn wait_until_running(&self, name: &str, within: Duration) -> Result<()> {
        self.wait_for_phase(name, "Running", within).await
    }

    async fn wait_for_phase(&self, name: &str, wanted: &str, within: Duration) -> Result<()> {
        let what = format!("pod {name} to be {wanted}");
        wait::for_object(&self.pods(), name, within, &what, |pod| match phase(pod) {
            Some(phase) => Progress::of(phase == wanted, || format!("its phase is {phase}")),
            None => Progress::Pending("there is no such pod".to_owned()),
        })
        .await
    }

    /// Waits until all of the test environment's pods run and there are `count` of them.
    pub async fn wait_until_all_running(&self, count: usize, within: Duration) -> Result<()> {
        wait::for_objects(
            &self.pods(),
            watcher::Config::default(),
            within,
            "all pods to run",
            |seen| {
                let running = seen
                    .values()
                    .filter(|pod| phase(Some(pod)) == Some("Running"))
                    .count();
                Progress::of(running == count, || format!("{running} of {count} run"))
            },
        )
        .await
    }

    /// Waits until the pod is gone.
    pub async fn wait_until_pod_gone(&self, name: &str, within: Duration) -> Result<()> {
        wait::for_absence(&self.pods(), name, within, &format!("pod {name} to go")).await
    }

    /// Creates a pod without volumes that the scheduler must bind to the node and that tolerates a NoExecute taint, for these
    /// seconds or forever.
    pub async fn tolerating_pod(
        &self,
        name: &str,
        node: usize,
        taint: &str,
        seconds: Option<i64>,
    ) -> Result<()> {
        let mut pod = mk_pod(&self.prefix, name, self.node(node).name(), &[]);
        let toleration = Toleration {
            key: Some(taint.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some("NoExecute".to_owned()),
            toleration_seconds: seconds,
            ..Toleration::default()
        };
        pod.spec.get_or_insert_default().tolerations = Some(vec![toleration]);
        self.create_pod(&pod).await
    }

    /// Fails unless the pod runs and is not being deleted.
    pub async fn ensure_running(&self, name: &str) -> Result<()> {
        let pod = self.pods().get(name).await?;
        if phase(Some(&pod)) != Some("Running") || pod.metadata.deletion_timestamp.is_some() {
            bail!("pod {name} does not run any more");
        }
        Ok(())
    }

    /// Fails if the pod runs already.
    pub async fn ensure_not_running(&self, name: &str) -> Result<()> {
        let pod = self.pods().get(name).await?;
        if phase(Some(&pod)) == Some("Running") {
            bail!("pod {name} runs although it must not");
        }
        Ok(())
    }

    /// Waits until the scheduler finds no node for the pod, for a reason that contains `text`; returns its message.
    ///
    /// The scheduler rewrites the condition on each attempt. An Event counts up, and keeps the message of the first
    /// attempt, for which the scheduler may not have known the pod's claims.
    pub async fn wait_until_unschedulable(&self, name: &str, text: &str) -> Result<String> {
        let what = format!("pod {name} to be unschedulable with \"{text}\"");
        wait::for_object(&self.pods(), name, STEP_TIMEOUT, &what, |pod| {
            let status = pod.and_then(|pod| pod.status.as_ref());
            let mut conditions = status
                .into_iter()
                .flat_map(|status| status.conditions.iter().flatten());
            let scheduled = conditions.find(|condition| condition.type_ == "PodScheduled");
            let message = scheduled
                .filter(|scheduled| scheduled.status == "False")
                .and_then(|scheduled| scheduled.message.as_ref());
            match message.filter(|message| message.contains(text)) {
                Some(message) => Progress::Reached(message.clone()),
                None => Progress::Pending(format!("its condition is {scheduled:?}")),
            }
        })
        .await
    }

    /// Waits for an event about the pod with this reason whose message contains `text`; returns its message.
    pub async fn wait_for_event(
        &self,
        pod: &str,
        reason: &str,
        text: &str,
        within: Duration,
    ) -> Result<String> {
        let events = Api::<Event>::namespaced(self.client(), &self.prefix);
        let config = watcher::Config::default().fields(&format!(
            "involvedObject.kind=Pod,involvedObject.name={pod},reason={reason}"
        ));
        let what = format!("event {reason} about pod {pod} with \"{text}\"");
        wait::for_objects(&events, config, within, &what, |seen| {
            let messages: Vec<_> = seen.values().filter_map(|event| event.message.clone()).collect();
            match messages.iter().find(|message| message.contains(text)) {
                Some(message) => Progress::Reached(message.clone()),
                None => Progress::Pending(format!("the messages so far: {messages:?}")),
            }
        })
        .await
    }

    pub(super) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client(), &self.prefix)
    }
}

fn phase(pod: Option<&Pod>) -> Option<&str> {
    pod?.status.as_ref()?.phase.as_deref()
}
