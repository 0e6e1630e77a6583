//! [`Cluster`] over kube.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::retry::until_answered;
use super::{Cluster, Error, Released, Secrets, Side, patch};
use crate::decide::{Claim, Record};
use crate::model::wire::{AttachmentObject, VolumeObject};
use crate::model::{Attachment, Driver, Problem, SecretRef, Volume};

/// How many writes may be under way at once. The API server is no faster beyond this, and spends more
/// CPU on each (docs/adr/0002-own-http-stack.md).
const WRITES_IN_FLIGHT: usize = 64;

/// The API server of the cluster that we serve.
pub struct ApiServer {
    attachments: Api<AttachmentObject>,
    volumes: Api<VolumeObject>,
    client: Client,
    driver: Arc<Driver>,
    writes: Semaphore,
}

#[derive(Clone, Copy)]
enum Part {
    Object,
    Status,
}

// === impl ApiServer ===

impl ApiServer {
    /// Reads and writes what concerns `driver` through `client`.
    pub fn new(client: Client, driver: Arc<Driver>) -> Self {
        Self {
            attachments: Api::all(client.clone()),
            volumes: Api::all(client.clone()),
            client,
            driver,
            writes: Semaphore::new(WRITES_IN_FLIGHT),
        }
    }

    async fn patch<K>(&self, api: &Api<K>, name: &str, part: Part, body: &Value) -> Result<K, Error>
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let patch = Patch::Strategic(body);
        let params = PatchParams::default();
        until_answered(|| async {
            let _place = self
                .writes
                .acquire()
                .await
                .expect("the semaphore must never be closed");
            match part {
                Part::Object => api.patch(name, &params, &patch).await,
                Part::Status => api.patch_status(name, &params, &patch).await,
            }
        })
        .await
    }

    async fn patch_attachment(
        &self,
        attachment: &Attachment,
        part: Part,
        body: Value,
    ) -> Result<Attachment, Error> {
        let object = self
            .patch(&self.attachments, &attachment.name, part, &body)
            .await?;
        self.same(attachment, object)
    }

    /// The object, if it is the one that we knew by this name.
    fn same(&self, known: &Attachment, object: AttachmentObject) -> Result<Attachment, Error> {
        Attachment::from_wire(object, &self.driver)
            .filter(|attachment| attachment.uid == known.uid)
            .ok_or_else(|| Error::Replaced("another VolumeAttachment has taken its name".into()))
    }
}

impl Cluster for ApiServer {
    async fn record(&self, attachment: &Attachment, record: &Record) -> Result<Attachment, Error> {
        let body = patch::record(attachment, record, &self.driver.finalizer);
        self.patch_attachment(attachment, Part::Object, body).await
    }

    async fn claim(&self, claim: &Claim) -> Result<Volume, Error> {
        let body = patch::claim(claim, &self.driver.finalizer);
        let object = self
            .patch(&self.volumes, &claim.volume, Part::Object, &body)
            .await?;
        Ok(Volume::from_wire(object, &self.driver))
    }

    async fn mark_attached(
        &self,
        attachment: &Attachment,
        context: &BTreeMap<String, String>,
    ) -> Result<Attachment, Error> {
        self.patch_attachment(attachment, Part::Status, patch::attached(attachment, context))
            .await
    }

    async fn mark_detached(&self, attachment: &Attachment) -> Result<Attachment, Error> {
        self.patch_attachment(attachment, Part::Status, patch::detached(attachment))
            .await
    }

    async fn release(&self, attachment: &Attachment) -> Result<Released, Error> {
        let body = patch::release(&attachment.uid, &self.driver.finalizer);
        let left = self.patch_attachment(attachment, Part::Object, body).await?;
        // The API server answers the removal of a deleted object's last finalizer with that object.
        Ok(if left.deleting && !left.finalizer && !left.foreign_finalizers {
            Released::Gone
        } else {
            Released::Kept(Box::new(left))
        })
    }

    async fn release_volume(&self, volume: &Volume) -> Result<Volume, Error> {
        let body = patch::release(&volume.uid, &self.driver.finalizer);
        let object = self
            .patch(&self.volumes, &volume.name, Part::Object, &body)
            .await?;
        Ok(Volume::from_wire(object, &self.driver))
    }

    async fn save_problem(
        &self,
        attachment: &Attachment,
        side: Side,
        problem: &Problem,
    ) -> Result<Attachment, Error> {
        self.patch_attachment(
            attachment,
            Part::Status,
            patch::problem(attachment, side, problem),
        )
        .await
    }

    async fn attachment(&self, attachment: &Attachment) -> Result<Attachment, Error> {
        self.same(
            attachment,
            until_answered(|| self.attachments.get(&attachment.name)).await?,
        )
    }

    async fn volume(&self, name: &str) -> Result<Volume, Error> {
        let object = until_answered(|| self.volumes.get(name)).await?;
        Ok(Volume::from_wire(object, &self.driver))
    }

    async fn secret(&self, reference: &SecretRef) -> Result<Secrets, Error> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &reference.namespace);
        let secret = until_answered(|| secrets.get(&reference.name)).await?;
        let data = secret.data.unwrap_or_default();
        // CSI secrets are protobuf strings, which bytes that are no text cannot be.
        let text = |(key, value): (String, k8s_openapi::ByteString)| match String::from_utf8(value.0) {
            Ok(value) => Ok((key, value)),
            Err(_) => Err(Error::Unusable(
                format!("the value of key {key:?} is not valid UTF-8").into(),
            )),
        };
        Ok(Secrets(data.into_iter().map(text).collect::<Result<_, _>>()?))
    }
}
