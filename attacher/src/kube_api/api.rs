//! [`Cluster`] over HTTP.

use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;
use kube::api::{GetParams, Patch, PatchParams};
use kube::core::Request;
use serde_json::Value;

use super::client::ApiService;
use super::request_limiter::Priority::{High, Low};
use super::request_limiter::RequestKind::{Read, Write};
use super::request_limiter::RequestLimiter;
use super::{AttachmentRequest, Clients, Cluster, Error, NOT_TEXT, VolumeRequest, patch, retry};
use crate::leader_election::Leadership;
use crate::migration;
use crate::model::wire::{AttachmentObject, CsiNodeObject, VolumeObject};
use crate::model::{Attachment, Driver, SecretRef, Secrets, Volume};
use crate::plan::Operation;

/// The API server, as one driver uses it.
pub(crate) struct ApiServer {
    service: ApiService,
    limiter: RequestLimiter,
    driver: Arc<Driver>,
    attachments: Request,
    volumes: Request,
}

// === impl ApiServer ===

impl ApiServer {
    /// Requests for `driver`; writes only while `leadership` lasts.
    pub(crate) fn new(clients: &Clients, leadership: Leadership, driver: Arc<Driver>) -> Self {
        Self {
            service: clients.requests.clone(),
            limiter: RequestLimiter::new(clients.rate.clone(), leadership, clients.counts.clone()),
            driver,
            attachments: Request::new(AttachmentObject::url_path(&(), None)),
            volumes: Request::new(VolumeObject::url_path(&(), None)),
        }
    }
}

impl Cluster for ApiServer {
    async fn attachment(
        &self,
        attachment: &Attachment,
        request: AttachmentRequest<'_>,
    ) -> Result<Attachment, Error> {
        let (name, finalizer) = (&attachment.name, &self.driver.finalizer);
        let params = PatchParams::default();
        let patch = |body: Value| self.attachments.patch(name, &params, &Patch::Strategic(body));
        let patch_status = |body: Value| {
            let patch = Patch::Merge(body);
            self.attachments
                .patch_subresource("status", name, &params, &patch)
        };
        let is_of_one_version = request.is_of_one_version();
        let (kind, request) = match request {
            AttachmentRequest::Get => (Read, self.attachments.get(name, &GetParams::default())),
            AttachmentRequest::Record(record) => {
                (Write(High), patch(patch::record(attachment, record, finalizer)))
            }
            AttachmentRequest::RemoveFinalizer(proof) => {
                (Write(Low), patch(patch::remove_finalizer(proof.uid(), finalizer)))
            }
            AttachmentRequest::MarkAttached(context) => {
                (Write(High), patch_status(patch::attached(attachment, context)))
            }
            AttachmentRequest::MarkDetached => (Write(Low), patch_status(patch::detached(attachment))),
            AttachmentRequest::SaveError(failed, problem) => {
                let priority = match failed {
                    Operation::Attach => High,
                    Operation::Detach => Low,
                };
                let body = patch::problem(attachment, failed, problem);
                (Write(priority), patch_status(body))
            }
        };
        let mut request = request?;
        if is_of_one_version {
            request.extensions_mut().insert(retry::OfOneVersion);
        }
        let object: AttachmentObject = retry::send(&self.service, &self.limiter, kind, request).await?;
        check_name(&object.metadata, name)?;
        Attachment::from_wire(object, &self.driver)
            .filter(|newest| newest.uid == attachment.uid)
            .ok_or_else(|| Error::Replaced("another VolumeAttachment has taken its name".into()))
    }

    async fn volume(&self, name: &str, request: VolumeRequest<'_>) -> Result<Volume, Error> {
        let patch = |body: Value| {
            let params = PatchParams::default();
            self.volumes.patch(name, &params, &Patch::Strategic(body))
        };
        let finalizer = &self.driver.finalizer;
        let (kind, request) = match request {
            VolumeRequest::Get => (Read, self.volumes.get(name, &GetParams::default())),
            VolumeRequest::AddFinalizer(uid) => (Write(High), patch(patch::add_finalizer(uid, finalizer))),
            VolumeRequest::RemoveFinalizer(volume) => {
                let request = patch(patch::remove_pv_finalizer(volume, finalizer)).map(|mut request| {
                    request.extensions_mut().insert(retry::OfOneVersion);
                    request
                });
                (Write(Low), request)
            }
        };
        let object: VolumeObject = retry::send(&self.service, &self.limiter, kind, request?).await?;
        check_name(&object.metadata, name)?;
        Ok(migration::decode(object, &self.driver))
    }

    async fn has_node(&self, name: &str) -> Result<bool, Error> {
        let request = Request::new(CsiNodeObject::url_path(&(), None)).get(name, &GetParams::default())?;
        match retry::send::<CsiNodeObject>(&self.service, &self.limiter, Read, request).await {
            Ok(node) => check_name(&node.metadata, name).map(|()| true),
            Err(Error::NotFound(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn secret(&self, reference: &SecretRef) -> Result<Secrets, Error> {
        let secrets = Request::new(Secret::url_path(&(), Some(&reference.namespace)));
        let request = secrets.get(&reference.name, &GetParams::default())?;
        let secret: Secret = retry::send(&self.service, &self.limiter, Read, request).await?;
        check_name(&secret.metadata, &reference.name)?;
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

/// A 200 with another body, such as a proxy's `{}`, is no response of the API server.
fn check_name(metadata: &ObjectMeta, name: &str) -> Result<(), Error> {
    if metadata.name.as_deref() == Some(name) && metadata.uid.is_some() {
        return Ok(());
    }
    Err(Error::Unanswered(
        "the response does not hold the requested object".into(),
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;
    use std::sync::Mutex;

    use http::Response;
    use http_body_util::BodyExt;
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::kube_api::Access;
    use crate::leader_election::Fenced;
    use crate::plan::tests::{mk_attachment, mk_driver, mk_proof};

    /// A VolumeAttachment, PersistentVolume, CSINode or Secret would otherwise count as gone, existing or empty.
    #[tokio::test(start_paused = true)]
    async fn a_response_without_the_object_is_no_response() {
        for body in [
            "{}",
            r#"{"metadata":{"name":"other","uid":"u"}}"#,
            r#"{"metadata":{"name":"va"}}"#,
        ] {
            let server = tower::service_fn(move |_: http::Request<Fenced<Body>>| async move {
                Ok::<_, Infallible>(Response::new(Body::from(body.as_bytes().to_vec())))
            });
            let clients = Clients::new(&Access::in_process(server).unwrap(), None);
            let cluster = ApiServer::new(&clients, Leadership::unopposed(), Arc::new(mk_driver()));
            let va = mk_attachment("va");
            let secret = SecretRef::parse("ns/va").unwrap();
            let errors = [
                cluster.attachment(&va, AttachmentRequest::Get).await.err(),
                cluster.volume("va", VolumeRequest::Get).await.err(),
                cluster.has_node("va").await.err(),
                cluster.secret(&secret).await.err(),
            ];
            for error in errors {
                assert!(matches!(error, Some(Error::Unanswered(_))), "{body}: {error:?}");
            }
        }
    }

    /// In a strategic merge patch, `$patch: replace` would remove the rest of the status.
    #[tokio::test]
    async fn publish_context_keys_are_not_patch_directives() {
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
        let va = mk_attachment("va");
        for request in [
            AttachmentRequest::MarkAttached(&context),
            AttachmentRequest::RemoveFinalizer(&mk_proof(&va.uid)),
        ] {
            cluster.attachment(&va, request).await.unwrap();
        }
        let seen = seen.lock().unwrap();
        let (kind, body) = &seen[0];
        assert_eq!(kind, "application/merge-patch+json");
        let expected = json!({ "$patch": "replace", "$retainKeys": "path" });
        assert_eq!(body["status"]["attachmentMetadata"], expected);
        assert_eq!(seen[1].0, "application/strategic-merge-patch+json");
    }
}
