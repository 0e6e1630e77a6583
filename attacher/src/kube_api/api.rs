//! [`Cluster`] over HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Resource as _;
use kube::api::{GetParams, Patch, PatchParams};
use kube::core::Request;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::client::ApiService;
use super::request_limiter::{Priority, RequestKind, RequestLimiter};
use super::{Clients, Cluster, Error, NOT_TEXT, Secrets, Side, patch, retry};
use crate::leader_election::Leadership;
use crate::migration;
use crate::model::wire::{AttachmentObject, VolumeObject};
use crate::model::{Attachment, Driver, Problem, SecretRef, Volume};
use crate::plan::{PvFinalizer, Record};

/// The API server, as one driver uses it.
pub struct ApiServer {
    service: ApiService,
    limiter: RequestLimiter,
    driver: Arc<Driver>,
    attachments: Request,
    volumes: Request,
}

// === impl ApiServer ===

impl ApiServer {
    /// Requests for `driver`; writes only while `leadership` lasts.
    pub fn new(clients: &Clients, leadership: Leadership, driver: Arc<Driver>) -> Self {
        Self {
            service: clients.requests.clone(),
            limiter: RequestLimiter::new(clients.rate.clone(), leadership, clients.counts.clone()),
            driver,
            attachments: Request::new(AttachmentObject::url_path(&(), None)),
            volumes: Request::new(VolumeObject::url_path(&(), None)),
        }
    }

    async fn send<T: DeserializeOwned>(
        &self,
        kind: RequestKind,
        request: http::Request<Vec<u8>>,
    ) -> Result<T, Error> {
        retry::send(&self.service, &self.limiter, kind, request).await
    }

    async fn patch_attachment(
        &self,
        attachment: &Attachment,
        priority: Priority,
        body: Value,
    ) -> Result<Attachment, Error> {
        let (name, params) = (&attachment.name, PatchParams::default());
        let request = self.attachments.patch(name, &params, &Patch::Strategic(body))?;
        let object = self.send(RequestKind::Write(priority), request).await?;
        self.same(attachment, object)
    }

    async fn patch_status(
        &self,
        attachment: &Attachment,
        priority: Priority,
        body: Value,
    ) -> Result<Attachment, Error> {
        let (name, params) = (&attachment.name, PatchParams::default());
        let request = self
            .attachments
            .patch_subresource("status", name, &params, &Patch::Merge(body))?;
        let object = self.send(RequestKind::Write(priority), request).await?;
        self.same(attachment, object)
    }

    async fn patch_volume(&self, name: &str, priority: Priority, body: Value) -> Result<Volume, Error> {
        let params = PatchParams::default();
        let request = self.volumes.patch(name, &params, &Patch::Strategic(body))?;
        let object = self.send(RequestKind::Write(priority), request).await?;
        Ok(migration::decode(object, &self.driver))
    }

    /// The object, unless it has another UID than `known`.
    fn same(&self, known: &Attachment, object: AttachmentObject) -> Result<Attachment, Error> {
        Attachment::from_wire(object, &self.driver)
            .filter(|attachment| attachment.uid == known.uid)
            .ok_or_else(|| Error::Replaced("another VolumeAttachment has taken its name".into()))
    }
}

impl Cluster for ApiServer {
    async fn record(&self, attachment: &Attachment, record: &Record) -> Result<Attachment, Error> {
        let body = patch::record(attachment, record, &self.driver.finalizer);
        self.patch_attachment(attachment, Priority::High, body).await
    }

    async fn add_pv_finalizer(&self, wanted: &PvFinalizer) -> Result<Volume, Error> {
        let body = patch::add_pv_finalizer(wanted, &self.driver.finalizer);
        self.patch_volume(&wanted.volume, Priority::High, body).await
    }

    async fn mark_attached(
        &self,
        attachment: &Attachment,
        context: &BTreeMap<String, String>,
    ) -> Result<Attachment, Error> {
        let body = patch::attached(attachment, context);
        self.patch_status(attachment, Priority::High, body).await
    }

    async fn mark_detached(&self, attachment: &Attachment) -> Result<Attachment, Error> {
        let body = patch::detached(attachment);
        self.patch_status(attachment, Priority::Low, body).await
    }

    async fn remove_finalizer(&self, attachment: &Attachment) -> Result<Option<Attachment>, Error> {
        let body = patch::remove_finalizer(&attachment.uid, &self.driver.finalizer);
        let left = self.patch_attachment(attachment, Priority::Low, body).await?;
        // The response to the removal of the last finalizer is the deleted object.
        let deleted = left.deleting && !left.finalizer && !left.foreign_finalizers;
        Ok((!deleted).then_some(left))
    }

    async fn remove_pv_finalizer(&self, volume: &Volume) -> Result<Volume, Error> {
        let body = patch::remove_finalizer(&volume.uid, &self.driver.finalizer);
        self.patch_volume(&volume.name, Priority::Low, body).await
    }

    async fn save_error(
        &self,
        attachment: &Attachment,
        side: Side,
        problem: &Problem,
    ) -> Result<Attachment, Error> {
        let priority = match side {
            Side::Attach => Priority::High,
            Side::Detach => Priority::Low,
        };
        let body = patch::problem(attachment, side, problem);
        self.patch_status(attachment, priority, body).await
    }

    async fn attachment(&self, attachment: &Attachment) -> Result<Attachment, Error> {
        let request = self.attachments.get(&attachment.name, &GetParams::default())?;
        let object = self.send(RequestKind::Read, request).await?;
        self.same(attachment, object)
    }

    async fn volume(&self, name: &str) -> Result<Volume, Error> {
        let request = self.volumes.get(name, &GetParams::default())?;
        let object = self.send(RequestKind::Read, request).await?;
        Ok(migration::decode(object, &self.driver))
    }

    async fn secret(&self, reference: &SecretRef) -> Result<Secrets, Error> {
        let secrets = Request::new(Secret::url_path(&(), Some(&reference.namespace)));
        let request = secrets.get(&reference.name, &GetParams::default())?;
        let secret: Secret = self.send(RequestKind::Read, request).await?;
        let data = secret.data.unwrap_or_default();
        // CSI secrets are protobuf strings, which are UTF-8.
        let text = |(key, value): (String, ByteString)| match String::from_utf8(value.0) {
            Ok(value) => Ok((key, value)),
            Err(_) => Err(Error::Unusable(
                format!("the value of key {key:?} {NOT_TEXT}").into(),
            )),
        };
        Ok(Secrets(data.into_iter().map(text).collect::<Result<_, _>>()?))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use http::Response;
    use http_body_util::BodyExt;
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::kube_api::Access;
    use crate::leader_election::Fenced;
    use crate::plan::tests::{mk_attachment, mk_driver};

    /// In a strategic merge patch, `$patch: replace` would remove the rest of the status.
    #[tokio::test]
    async fn a_publish_context_may_have_any_keys() {
        let seen: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let server = {
            let seen = seen.clone();
            tower::service_fn(move |request: http::Request<Fenced<Body>>| {
                let seen = seen.clone();
                async move {
                    let kind = request.headers()["content-type"].to_str().unwrap().to_owned();
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    seen.lock()
                        .unwrap()
                        .push((kind, serde_json::from_slice(&body).unwrap()));
                    let object = json!({
                        "metadata": { "name": "va", "uid": "uid-va" },
                        "spec": { "attacher": mk_driver().name, "nodeName": "node", "source": {} },
                    });
                    Ok::<_, Infallible>(Response::new(Body::from(object.to_string().into_bytes())))
                }
            })
        };
        let clients = Clients::new(&Access::in_process(server).unwrap(), None);
        let cluster = ApiServer::new(&clients, Leadership::unopposed(), Arc::new(mk_driver()));
        let context = BTreeMap::from([
            ("$patch".to_owned(), "replace".to_owned()),
            ("$retainKeys".to_owned(), "path".to_owned()),
        ]);
        cluster
            .mark_attached(&mk_attachment("va"), &context)
            .await
            .unwrap();
        cluster.remove_finalizer(&mk_attachment("va")).await.unwrap();
        let seen = seen.lock().unwrap();
        let (kind, body) = &seen[0];
        assert_eq!(kind, "application/merge-patch+json");
        let expected = json!({ "$patch": "replace", "$retainKeys": "path" });
        assert_eq!(body["status"]["attachmentMetadata"], expected);
        assert_eq!(seen[1].0, "application/strategic-merge-patch+json");
    }
}
