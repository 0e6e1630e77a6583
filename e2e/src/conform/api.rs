//! The API server as one attacher process sees it: a proxy that observes each write in the order of execution and may inject
//! faults.

mod watch_events;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use attacher_contract::Observation;
use attacher_contract::observation::{Name, Write};
use http::uri::PathAndQuery;
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Frame, Incoming};
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::watch;

use super::observer::Observer;
pub(super) use crate::api_proxy::Object;
use crate::api_proxy::{Answer, ApiProxy, answer, forwarded, is_empty_patch, returned, written};
use crate::mutex::lock;
use crate::observe;
use watch_events::without_bookmarks;

/// Maximum bytes of watch events that are kept.
const KEPT: usize = 1 << 20;

/// A fault of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApiFault {
    /// The request is not executed; the answer has this code and a Status.
    Status(u16),
    /// The request is not executed; the answer has this code and a text, as from a proxy.
    Foreign(u16),
    /// The request is executed, and the connection breaks before the answer.
    LostAnswer,
    /// The connection breaks before the request is executed.
    LostRequest,
    /// The watch sends no bookmark, so that its initial events have no end.
    NoBookmarks,
}

/// The requests to which a fault applies.
#[derive(Clone, Debug)]
pub(super) struct ApiScript {
    /// Part of path and query.
    pub path: &'static str,
    /// Part of the body; empty: every body.
    pub body: &'static str,
    /// The verb.
    pub method: Method,
    pub fault: ApiFault,
    pub times: usize,
}

/// What all proxies of a case share.
pub(super) struct Cluster {
    pub client: Client,
    pub observer: Observer,
    pub driver: String,
    pub finalizer: String,
    /// Held while a write is executed and observed.
    pub write: Arc<tokio::sync::Mutex<()>>,
    scripts: Mutex<Vec<ApiScript>>,
    /// The watch events that the attachers got, newest last.
    delivered: watch::Sender<Vec<u8>>,
}

// === impl Cluster ===

impl Cluster {
    pub(super) fn new(client: Client, observer: Observer, driver: &str, finalizer: String) -> Self {
        Self {
            client,
            observer,
            driver: driver.to_owned(),
            finalizer,
            write: Arc::default(),
            scripts: Mutex::default(),
            delivered: watch::Sender::new(Vec::new()),
        }
    }

    /// Adds a fault.
    pub(super) fn script(&self, script: ApiScript) {
        let text = format!(
            "the API server answers {} {} with {:?}",
            script.method, script.path, script.fault
        );
        self.observer.observe(Observation::Fault(text));
        lock(&self.scripts).push(script);
    }

    /// Ends all faults.
    pub(super) fn behave(&self) {
        lock(&self.scripts).clear();
    }

    /// Waits until an attacher got a watch event with this text.
    pub(super) async fn wait_until_delivered(&self, text: &str, within: Duration) -> bool {
        let mut delivered = self.delivered.subscribe();
        let has = |events: &Vec<u8>| events.windows(text.len()).any(|window| window == text.as_bytes());
        let seen = delivered.wait_for(has);
        tokio::time::timeout(within, seen)
            .await
            .is_ok_and(|seen| seen.is_ok())
    }

    fn fault(&self, method: &Method, path: &str, body: &[u8]) -> Option<ApiFault> {
        let body = String::from_utf8_lossy(body);
        let mut scripts = lock(&self.scripts);
        let script = scripts.iter_mut().find(|script| {
            script.times > 0
                && script.method == *method
                && path.contains(script.path)
                && body.contains(script.body)
        })?;
        script.times -= 1;
        // With the lock, so that the fault precedes the end of all faults.
        self.observer
            .observe(Observation::Fault(format!("{:?} for {path}", script.fault)));
        Some(script.fault)
    }

    /// The present state of an object, with its resource version; `None` if it does not exist.
    async fn state(&self, object: &Object) -> kube::Result<Option<(String, Observation)>> {
        let version = |version: Option<String>| version.unwrap_or_default();
        Ok(match object {
            Object::Attachment(name) => {
                let found = Api::<VolumeAttachment>::all(self.client.clone())
                    .get_opt(name)
                    .await?;
                found.map(|found| {
                    let seen = observe::attachment(&found, &self.finalizer, self.observer.start);
                    (version(found.resource_version()), Observation::Attachment(seen))
                })
            }
            Object::Volume(name) => {
                let found = Api::<PersistentVolume>::all(self.client.clone())
                    .get_opt(name)
                    .await?;
                found.and_then(|found| {
                    let seen = observe::volume(&found, &self.driver, &self.finalizer)?;
                    let known = self.observer.contract();
                    let known = known.world().volumes.get(&seen.name);
                    let request = known.and_then(|known| known.request.clone());
                    let seen = attacher_contract::observation::Volume { request, ..seen };
                    Some((
                        version(found.resource_version()),
                        Observation::Volume(Arc::new(seen)),
                    ))
                })
            }
            Object::Lease { namespace, name } => {
                let api = Api::<Lease>::namespaced(self.client.clone(), namespace);
                let found = api.get_opt(name).await?;
                found.map(|found| {
                    let holder = found
                        .spec
                        .as_ref()
                        .and_then(|spec| spec.holder_identity.as_deref());
                    let holder = holder.filter(|holder| !holder.is_empty()).map(Name::from);
                    (version(found.resource_version()), Observation::Lease(holder))
                })
            }
            Object::Other(_) => None,
        })
    }

    /// Observes the present state of an object. Called with the lock for writes.
    async fn observe(&self, object: &Object) -> kube::Result<()> {
        let seen = match (self.state(object).await?, object) {
            (Some((_, seen)), _) => Some(seen),
            (None, Object::Attachment(name)) => {
                let contract = self.observer.contract();
                let is_known = contract.world().attachments.contains_key(name.as_str());
                is_known.then(|| Observation::AttachmentGone(name.as_str().into()))
            }
            (None, Object::Volume(name)) => Some(Observation::VolumeGone(name.as_str().into())),
            (None, Object::Lease { .. } | Object::Other(_)) => None,
        };
        if let Some(seen) = seen {
            self.observer.observe(seen);
        }
        Ok(())
    }

    /// Executes a write of the harness to an object, and observes the result.
    pub(super) async fn change<K, T, E>(
        &self,
        object: Object,
        change: impl AsyncFnOnce(Api<K>) -> Result<T, E>,
    ) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope>,
        E: Into<anyhow::Error>,
    {
        let _write = self.write.lock().await;
        let changed = change(Api::all(self.client.clone())).await;
        let changed = changed.map_err(Into::<anyhow::Error>::into);
        changed.with_context(|| format!("change {object}"))?;
        self.observe(&object).await.context("read what was changed")
    }

    async fn respond(self: Arc<Self>, by: Name, request: Request<Incoming>) -> Answer {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let is_watch = parts.uri.query().is_some_and(|query| query.contains("watch="));
        let target = parts.uri.path_and_query().map_or("", PathAndQuery::as_str);
        let fault = self.fault(&parts.method, target, &body);
        match fault {
            Some(ApiFault::LostRequest) => return Err("the connection breaks".into()),
            Some(ApiFault::Status(code)) => return Ok(answer(code, true)),
            Some(ApiFault::Foreign(code)) => return Ok(answer(code, false)),
            Some(ApiFault::LostAnswer | ApiFault::NoBookmarks) | None => {}
        }
        let object = written(&parts, &body);
        let request = forwarded(parts, &body);
        let response = match object {
            None => self.client.send(request).await?,
            Some(object) => self.write(by, object, request, &body).await?,
        };
        if fault == Some(ApiFault::LostAnswer) {
            return Err("the connection breaks".into());
        }
        let response = returned(response);
        if !is_watch {
            return Ok(response);
        }
        if fault == Some(ApiFault::NoBookmarks) {
            return Ok(response.map(|body| without_bookmarks(body).boxed_unsync()));
        }
        let deliver = move |frame: Frame<Bytes>| {
            if let Some(data) = frame.data_ref() {
                self.delivered.send_modify(|events| {
                    events.extend_from_slice(data);
                    if events.len() > KEPT {
                        events.drain(..events.len() / 2);
                    }
                });
            }
            frame
        };
        Ok(response.map(|body| body.map_frame(deliver).boxed_unsync()))
    }

    /// Executes a write, and observes it and its result.
    async fn write(
        &self,
        by: Name,
        object: Object,
        request: Request<kube::client::Body>,
        body: &[u8],
    ) -> kube::Result<Response<kube::client::Body>> {
        let _write = self.write.lock().await;
        let is_lease = matches!(object, Object::Lease { .. });
        let empty = is_empty_patch(request.method(), body);
        let before = self.state(&object).await?.map(|(version, _)| version);
        let response = self.client.send(request).await?;
        if !response.status().is_success() {
            return Ok(response);
        }
        let text = object.to_string();
        let is_other = matches!(object, Object::Other(_));
        if !is_lease && !is_other {
            // Before the state: a violation of it is the writer's.
            let after = self.state(&object).await?.map(|(version, _)| version);
            self.observer.observe(Observation::Write(Write {
                by: Some(by),
                object: text,
                empty,
                changed: before != after,
            }));
        }
        self.observe(&object).await?;
        Ok(response)
    }
}

// === functions ===

/// Listens for the process `by`, and writes its kubeconfig into `dir`.
pub(super) async fn proxy(cluster: &Arc<Cluster>, by: &str, dir: &Path) -> Result<(ApiProxy, PathBuf)> {
    let path = dir.join(format!("{by}.kubeconfig"));
    let (cluster, by) = (cluster.clone(), Name::from(by));
    let respond = move |request| cluster.clone().respond(by.clone(), request);
    Ok((ApiProxy::start(&path, respond).await?, path))
}
