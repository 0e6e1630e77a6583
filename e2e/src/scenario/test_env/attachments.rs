//! Attachments of a test environment without a pod: the scenario creates and deletes them, as the attach/detach controller does.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentStatus, VolumeError};
use kube::Api;

use super::{A, B, STEP_TIMEOUT, TestEnv, TestVolume};
use crate::attacher::Kind;
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::{PUBLISH, UNPUBLISH};
use crate::fixture::mk_attachment;
use crate::objects;
use crate::wait::{self, Progress};

// === impl TestEnv ===

impl TestEnv<'_> {
    /// Creates an attachment of the PersistentVolume to the node, named as the volume is.
    pub async fn create_attachment(&self, pv: &str, node: usize) -> Result<()> {
        let attachment = mk_attachment(&self.prefix, pv, self.driver.name(), pv, self.node(node).name());
        objects::create(&Api::<VolumeAttachment>::all(self.client()), &attachment)
            .await
            .map(drop)
    }

    /// Deletes an attachment, without waiting.
    pub async fn delete_attachment(&self, attachment: &str) -> Result<()> {
        let attachments = Api::<VolumeAttachment>::all(self.client());
        objects::delete(&attachments, attachment).await
    }

    /// Waits until the attachment is attached or has an attachError. Takes longer if the attacher's cache does not have the
    /// new volume yet.
    pub async fn wait_until_attached_or_failed(&self, attachment: &str) -> Result<VolumeAttachment> {
        let what = format!("{attachment} to be attached or refused");
        self.wait_for_status(attachment, &what, |status| {
            let error = status.attach_error.as_ref().map(text);
            let is_transient = |error: &str| {
                error.to_lowercase().contains("persistentvolume") && error.contains("not found")
            };
            status.attached || error.is_some_and(|error| !is_transient(&error))
        })
        .await
    }

    /// Fails unless the driver was called `expected` times with this method for the volume.
    pub fn ensure_calls(&self, method: &str, volume: &TestVolume, expected: usize) -> Result<()> {
        let times = self.driver.calls_to(method, &volume.handle)?;
        ensure!(
            times == expected,
            "{method} was called {times} times for {}, expected {expected}",
            volume.pv
        );
        Ok(())
    }

    /// Fails unless the driver's successful publishes and unpublishes of the volume were `expected`, in this order.
    ///
    /// From a cache that does not show its own success yet, the Go attacher repeats a call (docs/go-sidecar.md, issue 2), so
    /// its repetitions do not count.
    pub fn ensure_succeeded(&self, volume: &TestVolume, expected: &[&str]) -> Result<()> {
        let calls = self.driver.calls()?;
        let mut methods: Vec<_> = calls
            .iter()
            .filter(|call| call.volume == volume.handle && call.succeeded())
            .map(|call| call.method.as_str())
            .filter(|method| [PUBLISH, UNPUBLISH].contains(method))
            .collect();
        if self.attacher.kind() == Kind::Go {
            methods.dedup();
        }
        ensure!(
            methods == expected,
            "the successful calls for {} were {methods:?}, expected {expected:?}",
            volume.pv
        );
        Ok(())
    }

    /// Detaches `leaving` from node A and attaches `coming` to node B, and waits until the array has done both; `rule`
    /// keeps the responses from the attacher. The volumes' pods have the names of their claims.
    pub async fn detach_and_attach(
        &mut self,
        leaving: &TestVolume,
        coming: &TestVolume,
        rule: fn(&str, Method) -> FaultRule,
    ) -> Result<()> {
        let attach = rule("attach", Method::ControllerPublishVolume).for_volume(&coming.handle);
        let detach = rule("detach", Method::ControllerUnpublishVolume).for_volume(&leaving.handle);
        self.driver.set_faults(&[attach, detach]).await?;
        self.delete_pod(&leaving.claim).await?;
        self.pod(&coming.claim, B, &[coming]).await?;
        for (volume, node, published) in [(coming, B, true), (leaving, A, false)] {
            self.wait_until_published(volume, node, published).await?;
        }
        Ok(())
    }

    /// Fails if the latest call about one of the volumes has ended.
    pub fn ensure_calls_in_flight(&self, volumes: &[&TestVolume]) -> Result<()> {
        let calls = self.driver.calls()?;
        for volume in volumes {
            let latest = calls.iter().rfind(|call| call.volume == volume.handle);
            ensure!(
                latest.is_some_and(|call| call.end.is_none()),
                "the call about {} is not in flight any more: {latest:?}",
                volume.pv
            );
        }
        Ok(())
    }

    /// Waits until the latest call about the volume has ended.
    pub async fn wait_until_call_ended(&self, volume: &TestVolume, within: Duration) -> Result<()> {
        let what = format!("the call about {} to end", volume.pv);
        self.driver
            .wait_for_calls(within, &what, |calls| {
                let latest = calls.iter().rfind(|call| call.volume == volume.handle);
                Progress::of(latest.is_some_and(|call| call.end.is_some()), || {
                    format!("it is {latest:?}")
                })
            })
            .await
    }

    /// Waits until the attachment is attached.
    pub async fn wait_until_attached(&self, attachment: &str) -> Result<VolumeAttachment> {
        let what = format!("{attachment} to be attached");
        self.wait_for_status(attachment, &what, |status| status.attached)
            .await
    }

    async fn wait_for_status(
        &self,
        attachment: &str,
        what: &str,
        wanted: impl Fn(&VolumeAttachmentStatus) -> bool,
    ) -> Result<VolumeAttachment> {
        let attachments = Api::<VolumeAttachment>::all(self.client());
        wait::for_object(&attachments, attachment, STEP_TIMEOUT, what, |found| {
            let status = found.and_then(|found| found.status.as_ref());
            match (found, status) {
                (Some(found), Some(status)) if wanted(status) => Progress::Reached(found.clone()),
                _ => Progress::Pending(format!("its status is {status:?}")),
            }
        })
        .await
    }

    /// Waits until the attachment is gone.
    ///
    /// # Errors
    /// The detach failed at least once.
    pub async fn wait_until_attachment_gone(&self, attachment: &str) -> Result<()> {
        let attachments = Api::<VolumeAttachment>::all(self.client());
        let what = format!("{attachment} to go");
        let error = wait::for_object(&attachments, attachment, STEP_TIMEOUT, &what, |found| {
            let Some(found) = found else {
                return Progress::Reached(None);
            };
            let status = found.status.as_ref();
            match status.and_then(|status| status.detach_error.as_ref()) {
                Some(error) => Progress::Reached(Some(text(error))),
                None => Progress::Pending(format!("its finalizers are {:?}", found.metadata.finalizers)),
            }
        })
        .await?;
        match error {
            Some(error) => bail!("the detach of {attachment} failed: {error}"),
            None => Ok(()),
        }
    }
}

fn text(error: &VolumeError) -> String {
    error.message.clone().unwrap_or_default()
}
