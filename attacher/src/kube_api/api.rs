//! [`Cluster`] over kube.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde_json::Value;
use tracing::{Instrument as _, Span};

use super::request_limiter::{Priority, RequestKind, RequestLimiter};
use super::retry::until_answered;
use super::{Clients, Cluster, Error, NOT_TEXT, Secrets, Side, patch};
use crate::leader_election::Leadership;
use crate::migration;
use crate::model::wire::{AttachmentObject, VolumeObject};
use crate::model::{Attachment, Driver, Problem, SecretRef, Volume};
use crate::plan::{PvFinalizer, Record};
use crate::trace;

/// The API server, as one driver uses it.
pub struct ApiServer {
    attachments: Api<AttachmentObject>,
    volumes: Api<VolumeObject>,
    client: Client,
    driver: Arc<Driver>,
    limiter: RequestLimiter,
}

#[derive(Clone, Copy)]
enum Part {
    Object,
    Status,
}

// === impl ApiServer ===

impl ApiServer {
    /// Requests for `driver`; writes only while `leadership` lasts.
    pub fn new(clients: &Clients, leadership: Leadership, driver: Arc<Driver>) -> Self {
        let client = clients.requests.clone();
        Self {
            attachments: Api::all(client.clone()),
            volumes: Api::all(client.clone()),
            client,
            driver,
            limiter: RequestLimiter::new(clients.rate.clone(), leadership, clients.counts.clone()),
        }
    }

    async fn patch<K>(
        &self,
        api: &Api<K>,
        name: &str,
        part: Part,
        priority: Priority,
        body: &Value,
    ) -> Result<K, Error>
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let (patch, status) = match part {
            Part::Object => (Patch::Strategic(body), ""),
            Part::Status => (Patch::Merge(body), "/status"),
        };
        let params = PatchParams::default();
        let request = until_answered(&self.limiter, RequestKind::Write(priority), || async {
            match part {
                Part::Object => api.patch(name, &params, &patch).await,
                Part::Status => api.patch_status(name, &params, &patch).await,
            }
        });
        let span = trace::request(format_args!("PATCH {}{status}", K::plural(&())));
        traced(span, request).await
    }

    async fn read<K, F>(&self, get: impl FnMut() -> F) -> Result<K, Error>
    where
        K: Resource<DynamicType = ()>,
        F: Future<Output = Result<K, kube::Error>>,
    {
        let request = until_answered(&self.limiter, RequestKind::Read, get);
        let span = trace::request(format_args!("GET {}", K::plural(&())));
        traced(span, request).await
    }

    async fn patch_volume(&self, name: &str, priority: Priority, body: &Value) -> Result<Volume, Error> {
        let object = self
            .patch(&self.volumes, name, Part::Object, priority, body)
            .await?;
        Ok(migration::decode(object, &self.driver))
    }

    async fn patch_attachment(
        &self,
        attachment: &Attachment,
        part: Part,
        priority: Priority,
        body: Value,
    ) -> Result<Attachment, Error> {
        let object = self
            .patch(&self.attachments, &attachment.name, part, priority, &body)
            .await?;
        self.same(attachment, object)
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
        self.patch_attachment(attachment, Part::Object, Priority::High, body)
            .await
    }

    async fn add_pv_finalizer(&self, wanted: &PvFinalizer) -> Result<Volume, Error> {
        let body = patch::add_pv_finalizer(wanted, &self.driver.finalizer);
        self.patch_volume(&wanted.volume, Priority::High, &body).await
    }

    async fn mark_attached(
        &self,
        attachment: &Attachment,
        context: &BTreeMap<String, String>,
    ) -> Result<Attachment, Error> {
        let body = patch::attached(attachment, context);
        self.patch_attachment(attachment, Part::Status, Priority::High, body)
            .await
    }

    async fn mark_detached(&self, attachment: &Attachment) -> Result<Attachment, Error> {
        let body = patch::detached(attachment);
        self.patch_attachment(attachment, Part::Status, Priority::Low, body)
            .await
    }

    async fn remove_finalizer(&self, attachment: &Attachment) -> Result<Option<Attachment>, Error> {
        let body = patch::remove_finalizer(&attachment.uid, &self.driver.finalizer);
        let left = self
            .patch_attachment(attachment, Part::Object, Priority::Low, body)
            .await?;
        // The response to the removal of the last finalizer is the deleted object.
        let deleted = left.deleting && !left.finalizer && !left.foreign_finalizers;
        Ok((!deleted).then_some(left))
    }

    async fn remove_pv_finalizer(&self, volume: &Volume) -> Result<Volume, Error> {
        let body = patch::remove_finalizer(&volume.uid, &self.driver.finalizer);
        self.patch_volume(&volume.name, Priority::Low, &body).await
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
        self.patch_attachment(attachment, Part::Status, priority, body)
            .await
    }

    async fn attachment(&self, attachment: &Attachment) -> Result<Attachment, Error> {
        let object = self.read(|| self.attachments.get(&attachment.name)).await?;
        self.same(attachment, object)
    }

    async fn volume(&self, name: &str) -> Result<Volume, Error> {
        let object = self.read(|| self.volumes.get(name)).await?;
        Ok(migration::decode(object, &self.driver))
    }

    async fn secret(&self, reference: &SecretRef) -> Result<Secrets, Error> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &reference.namespace);
        let secret = self
            .read(|| async { secrets.get(&reference.name).await.map_err(unquoted) })
            .await?;
        let data = secret.data.unwrap_or_default();
        // CSI secrets are protobuf strings, which are UTF-8.
        let text = |(key, value): (String, k8s_openapi::ByteString)| match String::from_utf8(value.0) {
            Ok(value) => Ok((key, value)),
            Err(_) => Err(Error::Unusable(
                format!("the value of key {key:?} {NOT_TEXT}").into(),
            )),
        };
        Ok(Secrets(data.into_iter().map(text).collect::<Result<_, _>>()?))
    }
}

/// Executes a request with its retries in a span. An `async fn` would contain the request's state twice.
fn traced<T>(
    span: Span,
    request: impl Future<Output = Result<T, Error>>,
) -> impl Future<Output = Result<T, Error>> {
    let answer = request.instrument(span.clone());
    answer.inspect(move |answer| trace::ended(&span, answer, Error::status))
}

/// A parse error quotes the response, which may be a Secret.
fn unquoted(error: kube::Error) -> kube::Error {
    if let kube::Error::SerdeError(_) = error {
        kube::Error::SerdeError(serde::de::Error::custom(
            "the API server's answer is not a Secret",
        ))
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use http::{Request, Response};
    use http_body_util::BodyExt;
    use kube::client::Body;
    use serde_json::json;

    use super::super::Requests;
    use super::*;
    use crate::plan::tests::{mk_attachment, mk_driver};

    /// In a strategic merge patch, `$patch: replace` would remove the rest of the status.
    #[tokio::test]
    async fn a_publish_context_may_have_any_keys() {
        let seen: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let server = {
            let seen = seen.clone();
            tower::service_fn(move |request: Request<Body>| {
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
        let client = Client::new(server, "default");
        let clients = Clients {
            watches: client.clone(),
            requests: client,
            rate: None,
            counts: Requests::default(),
        };
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
