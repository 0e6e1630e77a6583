//! A request for a stored resource: dispatches it by its verb, and executes reads.

mod body;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use http::{HeaderMap, Method, StatusCode};
use tokio::time::{Instant, timeout_at};

use super::fault::FaultDecision;
use super::list::{Page, Read};
use super::list_options::ListOptions;
use super::reply::Reply;
use super::request::{self, Location, Query, View};
use super::show::ResponseEncoder;
use super::status::Status;
use super::strategy::Part;
use super::{ResponseBody, Server, list, subresource, watch};

/// Timeout of a read that waits for a resource version newer than the store's.
const FRESHNESS_TIMEOUT: Duration = Duration::from_secs(3);

/// A request for a stored resource.
pub(crate) struct Call<'a> {
    pub(crate) server: &'a Arc<Server>,
    pub(crate) location: &'a Location,
    pub(crate) query: &'a Query,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: Bytes,
    /// Warnings for the client.
    pub(crate) warnings: Vec<String>,
}

// === impl Call ===

impl Call<'_> {
    /// Executes the request.
    pub(crate) async fn execute(
        &mut self,
        method: &Method,
        decision: &FaultDecision,
    ) -> Result<Reply, Status> {
        if let Some(status) = &decision.error {
            return Err(status.clone());
        }
        let location = self.location;
        if decision.conflict {
            return Err(Status::modified(location.resource, &location.name));
        }
        let verb = location.verb(method, self.query);
        let of_subresource = !location.subresource.is_empty();
        let everywhere = location.resource.namespaced && location.namespace.is_empty();
        if everywhere && !of_subresource && !matches!(verb, "list" | "watch") {
            return Err(Status::method_not_allowed());
        }
        let reply = match (verb, location.name.is_empty()) {
            _ if of_subresource => subresource::handle(self, method),
            ("watch", _) => self.watch(decision).await,
            ("list", _) => self.list().await,
            ("get", _) => self.get().await,
            ("create", true) => self.create(),
            ("update", false) => self.update(Part::Main),
            ("patch", false) => self.patch(Part::Main),
            ("delete", _) => self.delete(),
            ("deletecollection", _) => self.delete_collection().await,
            _ => Err(Status::method_not_allowed()),
        }?;
        if verb != "watch"
            && let View::Table(_) = request::view(self.headers, self.query)?
        {
            request::include_object(self.query)?;
        }
        Ok(reply)
    }

    pub(crate) fn encoder(&self) -> Result<ResponseEncoder, Status> {
        let view = request::view(self.headers, self.query)?;
        Ok(ResponseEncoder::new(
            self.location.resource,
            view,
            self.server.clock().clone(),
        ))
    }

    /// Waits until the store has the version that a read asks for, as kube-apiserver's watch cache does, and etcd does not.
    pub(crate) async fn wait_for(&self, version: u64, is_cached: bool) -> Result<(), Status> {
        let timeout = if is_cached {
            FRESHNESS_TIMEOUT
        } else {
            Duration::ZERO
        };
        let deadline = Instant::now() + timeout;
        let mut changed = {
            let mut store = self.server.store();
            if version <= store.revision() {
                return Ok(());
            }
            store.subscribe(self.location.resource.table(), None)
        };
        loop {
            let current = self.server.store().revision();
            if version <= current {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let retry_seconds = is_cached.then_some(1);
                return Err(Status::version_too_large(version, current, retry_seconds));
            }
            // Changes of other kinds are seen at the deadline.
            timeout_at(deadline, changed.recv()).await.ok();
        }
    }

    pub(crate) async fn get(&mut self) -> Result<Reply, Status> {
        let encoder = self.encoder()?;
        let version = self.version_of_read()?;
        self.wait_for(version, self.location.resource.is_cached()).await?;
        self.read(&encoder)
    }

    pub(crate) fn version_of_read(&self) -> Result<u64, Status> {
        let text = self.query.get("resourceVersion");
        // etcd's error differs from that of the watch cache.
        if self.location.resource.is_cached() {
            list::version_of_read(text)
        } else {
            list::parse_version(text)
        }
    }

    /// Responds with the stored object.
    pub(crate) fn read(&self, encoder: &ResponseEncoder) -> Result<Reply, Status> {
        let location = self.location;
        let (namespace, name) = (&location.namespace, &location.name);
        let stored = self.server.store().existing(location.resource, namespace, name)?;
        Ok(Reply::json(StatusCode::OK, encoder.object(&stored)))
    }

    async fn list(&mut self) -> Result<Reply, Status> {
        let encoder = self.encoder()?;
        let options = ListOptions::of(self.query, self.location)?;
        let read = Read::of(self.location.resource, &self.location.namespace, &options)?;
        let page = self.page(&read).await?;
        Ok(Reply::json(StatusCode::OK, encoder.list(&page)))
    }

    async fn page(&self, read: &Read<'_>) -> Result<Page, Status> {
        self.wait_for(read.version, read.is_cached).await?;
        read.page(&self.server.store())
    }

    async fn watch(&mut self, decision: &FaultDecision) -> Result<Reply, Status> {
        let encoder = self.encoder()?;
        let options = ListOptions::of(self.query, self.location)?;
        if options.send_initial_events == Some(true) {
            let version = list::version_of_read(&options.resource_version)?;
            let is_cached = self.location.resource.is_cached();
            if let Err(status) = self.wait_for(version, is_cached).await {
                let event = stream::once(std::future::ready(watch::error(&status)));
                return Ok(Reply {
                    code: StatusCode::OK,
                    body: ResponseBody::stream(event.boxed()),
                });
            }
        }
        let fault = self.server.faults.of_watch(decision);
        let stream = watch::watch(self.server, self.location, options, encoder, fault)?;
        Ok(Reply {
            code: StatusCode::OK,
            body: ResponseBody::stream(stream.boxed()),
        })
    }
}
