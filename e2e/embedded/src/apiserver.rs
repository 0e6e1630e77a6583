//! A kernel of kube-apiserver in memory, for the kinds of the attach/detach path.
//!
//! [`ApiServer`] is a tower service, so `kube::Client` uses it without a socket; [`ApiServer::serve`] serves it on
//! loopback for kubectl. It equals kube-apiserver 1.37 where controllers, attachers and kubectl depend on it: resource
//! versions and optimistic locking, preconditions, finalizers and graceful deletion, subresources, the three patch
//! types, selectors, paginated lists, watches with bookmarks and streaming lists, `Table` responses, discovery, status codes and
//! reasons. Unknown fields and wrong types are refused. Clock and random seed are injected.
//!
//! Not implemented: validation of fields that no component of the path reads, authentication and authorization,
//! `managedFields`, admission webhooks, quotas, and the admission plugins ServiceAccount, Priority, RuntimeClass and
//! PodSecurity. The server responds with 501 to server-side apply, YAML, requests for protobuf responses, and kinds that
//! attaching and detaching do not need. See ADR 0049.

mod admission;
mod call;
mod clock;
mod defaults;
mod delete;
mod discovery;
mod event_view;
mod fault;
mod field;
mod handler;
mod list;
mod list_options;
mod names;
mod object;
mod patch;
mod protobuf;
mod reply;
mod request;
mod resource;
mod schema;
mod selector;
mod serve;
mod show;
mod status;
mod storage;
mod stored;
mod strategic;
mod strategy;
mod subresource;
mod table;
mod type_meta;
mod validate;
mod watch;
mod watch_cache;
mod write;
mod write_options;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use fastrand::Rng;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};
use http::{HeaderValue, Request, Response, header};
use http_body::{Body, Frame};
use serde::de::DeserializeOwned;
use serde_json::json;
use tower::{BoxError, Service, ServiceExt};

pub use clock::Clock;
pub(crate) use discovery::KUBERNETES_VERSION;
pub use fault::{Fault, Rule};
pub use resource::Resource;
pub use serve::{Kubeconfig, Listener};
pub use status::Status;

use fault::Faults;
use resource::Kind;
use storage::{ChangeObserver, Store};
use stored::Change;
use write::Writer;

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server's clock.
    pub clock: Clock,
    /// Seed of UIDs, generated names and faults.
    pub seed: u64,
    /// Number of changes per kind that watches can resume from; an older resource version gets 410.
    pub window: usize,
    /// Whether each namespace gets the ServiceAccount `default`, as kube-controller-manager gives it.
    pub default_service_accounts: bool,
}

/// The server; clones share it.
#[derive(Clone, Debug)]
pub struct ApiServer {
    server: Arc<Server>,
}

/// State of a server.
#[derive(Debug)]
struct Server {
    clock: Clock,
    store: Mutex<Store>,
    rng: Mutex<Rng>,
    faults: Faults,
    default_service_accounts: bool,
}

/// Body of a response.
pub struct ResponseBody(Inner);

enum Inner {
    Full(Option<Bytes>),
    Stream(BoxStream<'static, Bytes>),
}

/// The connection broke: the client does not know whether the server executed the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("connection reset by the API server")]
pub struct ConnectionReset;

/// Namespaces that every cluster has.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];
/// Name of the ServiceAccount that every namespace has.
const DEFAULT_SERVICE_ACCOUNT: &str = "default";

// === impl Options ===

impl Default for Options {
    /// A server on the machine's clock.
    fn default() -> Self {
        Self {
            clock: Clock::system(),
            seed: 0,
            window: 10_000,
            default_service_accounts: true,
        }
    }
}

// === impl ApiServer ===

impl ApiServer {
    /// A server with the namespaces that every cluster has.
    pub fn new(options: &Options) -> Self {
        let server = Server {
            clock: options.clock.clone(),
            store: Mutex::new(Store::new(resource::indexed_fields(), options.window)),
            rng: Mutex::new(Rng::with_seed(options.seed)),
            faults: Faults::new(options.seed ^ 0x5eed),
            default_service_accounts: options.default_service_accounts,
        };
        for name in NAMESPACES {
            let namespace = json!({ "metadata": { "name": name } });
            server.bootstrap(Kind::Namespace, "", namespace);
        }
        Self {
            server: Arc::new(server),
        }
    }

    /// Replaces the fault rules.
    pub fn set_faults(&self, rules: Vec<Rule>) {
        self.server.faults.set_rules(rules);
    }

    /// Stops or restarts the server: while it is down, requests and watches break.
    pub fn set_down(&self, is_down: bool) {
        self.server.faults.set_down(is_down);
    }

    /// Breaks the connections of all watches.
    pub fn disconnect_watches(&self) {
        self.server.faults.disconnect();
    }

    /// Compacts old revisions, as a compaction of etcd and a restart of kube-apiserver do: watches and lists from them
    /// get 410 Gone.
    pub fn compact(&self) {
        self.server.store().compact();
    }

    /// Calls `observe` with each object of a kind that is created, changed or deleted (`true`) from now on, while it is stored: in
    /// the order of the resource versions and before the response. `observe` must not call the server.
    pub fn on_change<K>(&self, observe: impl Fn(&K, bool) + Send + 'static)
    where
        K: kube::Resource<DynamicType = ()> + DeserializeOwned,
    {
        let resource = resource::find(&K::group(&()), &K::plural(&())).expect("the kind must be served");
        let observe = move |change: &Change| {
            let object =
                serde_json::from_slice(change.after.json()).expect("a stored object must be of its kind");
            observe(&object, change.is_deletion);
        };
        let observer = ChangeObserver(Box::new(observe));
        self.server.store().observe(resource.table(), observer);
    }

    /// The newest resource version.
    pub fn revision(&self) -> u64 {
        self.server.store().revision()
    }

    /// Number of objects of a resource.
    pub fn count(&self, group: &str, plural: &str) -> Option<usize> {
        let resource = resource::find(group, plural)?;
        Some(self.server.store().table(resource.table()).len())
    }

    /// The server's clock.
    pub fn clock(&self) -> &Clock {
        self.server.clock()
    }

    /// A client of the server in this process.
    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.clone(), "default")
    }

    /// A client in this process with a `User-Agent`, which fault rules can match.
    pub fn client_of(&self, user_agent: &'static str) -> kube::Client {
        let name = HeaderValue::from_static(user_agent);
        let service = self
            .clone()
            .map_request(move |mut request: Request<kube::client::Body>| {
                request.headers_mut().insert(header::USER_AGENT, name.clone());
                request
            });
        kube::Client::new(service, "default")
    }
}

impl<B> Service<Request<B>> for ApiServer
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Box::pin(handler::handle(Arc::clone(&self.server), request))
    }
}

// === impl Server ===

impl Server {
    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rng(&self) -> MutexGuard<'_, Rng> {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A random number from 0 to 1.
    fn random(&self) -> f64 {
        self.rng().f64()
    }

    /// Runs a write.
    fn write<T>(
        &self,
        resource: &'static Resource,
        namespace: &str,
        dry_run: bool,
        write: impl FnOnce(&mut Writer<'_>) -> T,
    ) -> T {
        let mut store = self.store();
        let mut rng = self.rng();
        let mut writer = Writer {
            store: &mut store,
            rng: &mut rng,
            now: self.clock.now_text(),
            resource,
            namespace,
            dry_run,
        };
        write(&mut writer)
    }

    /// Creates an object that kube-apiserver or a controller creates in every cluster.
    fn bootstrap(&self, kind: Kind, namespace: &str, object: serde_json::Value) {
        let resource = resource::of_kind(kind);
        let serde_json::Value::Object(document) = object else {
            return;
        };
        let Ok((object, _)) = write::decode_object(resource, document) else {
            return;
        };
        let created = self.write(resource, namespace, false, |writer| writer.create(object));
        if let Ok(created) = created
            && kind == Kind::Namespace
        {
            self.create_default_service_account(object::name(&created.object()));
        }
    }

    /// Creates the default ServiceAccount of a namespace unless it exists, in place of kube-controller-manager's
    /// ServiceAccount controller.
    fn create_default_service_account(&self, namespace: &str) {
        if self.default_service_accounts {
            let account = json!({ "metadata": { "name": DEFAULT_SERVICE_ACCOUNT } });
            self.bootstrap(Kind::ServiceAccount, namespace, account);
        }
    }
}

// === impl ResponseBody ===

impl ResponseBody {
    fn full(bytes: impl Into<Bytes>) -> Self {
        Self(Inner::Full(Some(bytes.into())))
    }

    fn stream(stream: BoxStream<'static, Bytes>) -> Self {
        Self(Inner::Stream(stream))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.0 {
            Inner::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Inner::Stream(stream) => stream
                .poll_next_unpin(context)
                .map(|next| next.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.0, Inner::Full(None))
    }
}

impl std::fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResponseBody")
    }
}
