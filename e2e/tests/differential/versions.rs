//! Compares the responses to reads of compacted, future and malformed resource versions.

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use csi_e2e::control_plane::ControlPlane;
use embedded_cluster::apiserver::{ApiServer, Options};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use http::Method;
use kube::Client;
use serde_json::{Value, json};

use super::explained;
use super::generator::{JSON, METADATA, TABLE, request, set_label, unique_name};
use super::kinds::{self, Kind, LAST_NAME};
use super::report::Difference;
use super::request::{Body, Request};
use super::server::Server;
use super::session::prepare;

const NAMESPACE: &str = "sequence-of-versions";
/// Comparisons at a time, each of which needs a connection to kube-apiserver.
const CONCURRENCY: usize = 64;
/// A future version.
const FUTURE_VERSION: &str = "1000000000";
/// Timeout of the other watches: longer than kube-apiserver waits for a future version.
const WATCH_SECONDS: &str = "30";
/// Timeout of a watch from a future version.
const FUTURE_WATCH_SECONDS: &str = "1";

const EXACT: (&str, &str) = ("resourceVersionMatch", "Exact");
const NOT_OLDER: (&str, &str) = ("resourceVersionMatch", "NotOlderThan");
const INITIAL_EVENTS: (&str, &str) = ("sendInitialEvents", "true");

/// Both servers, with the values that their responses contained.
struct Pair {
    ours: Server,
    real: Server,
}

/// Symbols for the versions and continue tokens of a kind.
struct Symbols {
    /// The version of an object before the compaction.
    old: String,
    /// The version of that object after it.
    new: String,
    /// The version of the empty list.
    empty: String,
    token: String,
    inconsistent: String,
    /// Field selector of the object.
    single: String,
}

/// Compacts both stores and compares the responses for each kind. Returns the differences as texts.
pub(crate) async fn differences(plane: &ControlPlane) -> Result<Vec<String>> {
    let embedded = ApiServer::new(&Options {
        default_service_accounts: false,
        ..Options::default()
    });
    let real = csi_e2e::kubeconfig::client(plane.kubeconfig()).await?;
    let pair = || Pair::new(embedded.client(), real.clone());
    pair().prepare().await?;
    let mut pairs = Vec::new();
    // Both APIs of events have the same objects.
    for kind in kinds::ALL.iter().filter(|kind| kind.group != "events.k8s.io") {
        let mut pair = pair();
        pair.write(&before_compaction(kind)).await?;
        pairs.push((kind, pair));
    }
    plane.compact().await?;
    embedded.compact();
    for (kind, pair) in &mut pairs {
        pair.write(&after_compaction(kind)).await?;
    }
    let mut comparisons = Vec::new();
    for (kind, of_kind) in pairs {
        comparisons.push((of_kind, compacted(kind)));
        // The servers wait for these versions.
        comparisons.extend(
            future_or_malformed(kind)
                .into_iter()
                .map(|request| (pair(), vec![request])),
        );
    }
    let comparisons = comparisons
        .into_iter()
        .map(|(pair, requests)| pair.compare(requests));
    let comparisons = stream::iter(comparisons).buffer_unordered(CONCURRENCY);
    Ok(comparisons.try_collect::<Vec<_>>().await?.concat())
}

// === impl Pair ===

impl Pair {
    fn new(ours: Client, real: Client) -> Self {
        Self {
            ours: Server::new(ours, NAMESPACE),
            real: Server::new(real, NAMESPACE),
        }
    }

    async fn prepare(&mut self) -> Result<()> {
        prepare(&mut self.ours).await?;
        prepare(&mut self.real).await
    }

    /// Sends requests that both servers must accept or reject.
    async fn write(&mut self, requests: &[Request]) -> Result<()> {
        for request in requests {
            let (ours, real) = tokio::try_join!(self.ours.send(request), self.real.send(request))?;
            ensure!(
                ours.code == real.code,
                "{request}\n  embedded: {ours}\n  real:     {real}"
            );
        }
        Ok(())
    }

    /// The differences of the responses, as texts.
    async fn compare(mut self, requests: Vec<Request>) -> Result<Vec<String>> {
        let mut differences = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            let responses = tokio::try_join!(self.ours.send(request), self.real.send(request));
            let (ours, real) = responses.with_context(|| request.to_string())?;
            if ours != real && explained::find(request, &ours, &real).is_none() {
                let difference = Difference { index, ours, real };
                differences.push(difference.shown("after a compaction", request, &[]));
            }
        }
        Ok(differences)
    }
}

/// Creates objects, and lists a page of them before it changes them.
fn before_compaction(kind: &Kind) -> Vec<Request> {
    vec![
        list(kind, &[]),
        create(kind, "a"),
        create(kind, "c"),
        list(kind, &[("limit", "1")]),
        create(kind, "b"),
        set_label(kind, json!("before")),
    ]
}

fn after_compaction(kind: &Kind) -> Vec<Request> {
    vec![set_label(kind, json!("after")), create(kind, LAST_NAME)]
}

/// Reads of compacted versions, and of later ones.
fn compacted(kind: &Kind) -> Vec<Request> {
    let path = kind.collection("$ns");
    let name = unique_name(kind, "a");
    let symbols = Symbols {
        old: format!("$old:{path}/{name}$$"),
        new: format!("$rv:{path}/{name}$$"),
        empty: format!("$list:{path}$$"),
        token: format!("$continue:{path}$$"),
        inconsistent: format!("$inconsistent:{path}$$"),
        single: format!("metadata.name={name}"),
    };
    let (old, token) = (symbols.old.as_str(), symbols.token.as_str());
    let mut requests = vec![get(kind, old)];
    requests.extend(compacted_lists(kind, &symbols));
    requests.extend(compacted_watches(kind, &symbols));
    for accept in [TABLE, METADATA] {
        let mut watch = watch(kind, &[("resourceVersion", old)]);
        watch.accept = accept;
        let mut list = list(kind, &[("resourceVersion", old), EXACT]);
        list.accept = accept;
        requests.extend([watch, list]);
    }
    requests.extend([
        delete_collection(kind, &[("resourceVersion", old), EXACT]),
        delete_collection(kind, &[("continue", token), ("limit", "1")]),
    ]);
    requests
}

fn compacted_lists(kind: &Kind, symbols: &Symbols) -> Vec<Request> {
    let Symbols {
        old,
        new,
        empty,
        token,
        inconsistent,
        single,
    } = symbols;
    vec![
        list(kind, &[("resourceVersion", old)]),
        list(kind, &[("resourceVersion", old), NOT_OLDER]),
        list(kind, &[("resourceVersion", old), EXACT]),
        list(kind, &[("resourceVersion", empty), EXACT]),
        list(kind, &[("resourceVersion", "1"), EXACT]),
        list(kind, &[("resourceVersion", old), EXACT, ("limit", "1")]),
        list(
            kind,
            &[("resourceVersion", old), EXACT, ("labelSelector", "app=x")],
        ),
        list(
            kind,
            &[("resourceVersion", old), EXACT, ("fieldSelector", single)],
        ),
        list(kind, &[("resourceVersion", old), ("limit", "1")]),
        list(
            kind,
            &[
                ("resourceVersion", old),
                ("limit", "1"),
                ("fieldSelector", single),
            ],
        ),
        list(kind, &[("resourceVersion", new), EXACT]),
        list(kind, &[("resourceVersion", "0"), ("limit", "1")]),
        list(kind, &[("continue", token)]),
        list(kind, &[("continue", token), ("resourceVersion", "0")]),
        list(kind, &[("continue", token), ("resourceVersion", old)]),
        list(
            kind,
            &[("continue", token), ("limit", "1"), ("labelSelector", "app=x")],
        ),
        list(kind, &[("continue", token), ("fieldSelector", single)]),
        list(kind, &[("continue", token), ("limit", "1")]),
        list(kind, &[("continue", inconsistent), ("limit", "1")]),
        list(kind, &[("continue", token), ("limit", "1")]),
        list(kind, &[("continue", inconsistent)]),
        list(
            kind,
            &[
                ("continue", inconsistent),
                ("resourceVersion", "0"),
                ("limit", "1"),
            ],
        ),
    ]
}

fn compacted_watches(kind: &Kind, symbols: &Symbols) -> Vec<Request> {
    let Symbols {
        old,
        new,
        empty,
        single,
        ..
    } = symbols;
    vec![
        watch(kind, &[("resourceVersion", old)]),
        watch(kind, &[("resourceVersion", empty)]),
        watch(kind, &[("resourceVersion", "1")]),
        watch(kind, &[("resourceVersion", old), ("labelSelector", "app=x")]),
        watch(kind, &[("resourceVersion", old), ("fieldSelector", single)]),
        watch(kind, &[("resourceVersion", old), ("allowWatchBookmarks", "true")]),
        watch(
            kind,
            &[
                ("resourceVersion", old),
                NOT_OLDER,
                ("sendInitialEvents", "false"),
            ],
        ),
        watch(kind, &[("resourceVersion", old), NOT_OLDER, INITIAL_EVENTS]),
        watch(kind, &[("resourceVersion", new)]),
    ]
}

/// Reads of future and malformed versions; earlier responses do not affect them.
fn future_or_malformed(kind: &Kind) -> Vec<Request> {
    let single = format!("metadata.name={}", unique_name(kind, "a"));
    let single = ("fieldSelector", single.as_str());
    let future = ("resourceVersion", FUTURE_VERSION);
    let mut requests = vec![
        get(kind, FUTURE_VERSION),
        list(kind, &[future]),
        list(kind, &[future, NOT_OLDER]),
        list(kind, &[future, EXACT]),
        list(kind, &[future, ("limit", "1")]),
        list(kind, &[future, single]),
        list(kind, &[future, EXACT, single]),
        list(kind, &[future, ("limit", "1"), single]),
        delete_collection(kind, &[future]),
        delete_collection(kind, &[future, EXACT]),
        watch(kind, &[future, NOT_OLDER, INITIAL_EVENTS]),
    ];
    for query in [
        &[future][..],
        &[future, NOT_OLDER, ("sendInitialEvents", "false")],
    ] {
        let mut watch = watch(kind, query);
        FUTURE_WATCH_SECONDS.clone_into(&mut watch.query[1].1);
        requests.push(watch);
    }
    for version in ["x", "-1", "+1", "18446744073709551616"] {
        let version = ("resourceVersion", version);
        requests.extend([
            get(kind, version.1),
            list(kind, &[version]),
            list(kind, &[version, EXACT]),
            list(kind, &[version, ("limit", "1")]),
            list(kind, &[version, single]),
            watch(kind, &[version]),
            watch(kind, &[version, NOT_OLDER, INITIAL_EVENTS]),
            delete_collection(kind, &[version]),
        ]);
    }
    let start = format!("{}\0", unique_name(kind, "a"));
    for token in [
        json!({ "v": "meta.k8s.io/v1", "rv": 1_000_000_000, "start": start }),
        json!({ "v": "meta.k8s.io/v1", "rv": -1, "start": start }),
        json!({ "v": "meta.k8s.io/v1", "rv": -7, "start": start }),
        json!({ "v": "meta.k8s.io/v1", "rv": 0, "start": start }),
        json!({ "v": "meta.k8s.io/v1", "rv": 1, "start": "../a" }),
        json!({ "v": "meta.k8s.io/v1", "rv": 1, "start": "" }),
        json!({ "v": "meta.k8s.io/v2", "rv": 1, "start": start }),
        json!({ "rv": 1 }),
    ] {
        let token = URL_SAFE_NO_PAD.encode(token.to_string());
        let token = ("continue", token.as_str());
        requests.extend([list(kind, &[token, ("limit", "1")]), list(kind, &[token, single])]);
    }
    requests
}

fn create(kind: &Kind, name: &str) -> Request {
    let mut object = kind.base.clone();
    object["metadata"]["name"] = Value::String(unique_name(kind, name));
    let mut request = request(kind, "POST", Method::POST, kind.collection("$ns"));
    request.content_type = JSON;
    request.body = Body::Json(object);
    request
}

fn get(kind: &Kind, version: &str) -> Request {
    let path = format!("{}/{}", kind.collection("$ns"), unique_name(kind, "a"));
    let mut request = request(kind, "GET", Method::GET, path);
    request.query = vec![("resourceVersion", version.to_owned())];
    request
}

fn list(kind: &Kind, query: &[(&'static str, &str)]) -> Request {
    with_query(request(kind, "LIST", Method::GET, kind.collection("$ns")), query)
}

fn watch(kind: &Kind, query: &[(&'static str, &str)]) -> Request {
    let mut request = request(kind, "WATCH", Method::GET, kind.collection("$ns"));
    request.query = vec![
        ("watch", "true".to_owned()),
        ("timeoutSeconds", WATCH_SECONDS.to_owned()),
    ];
    with_query(request, query)
}

fn delete_collection(kind: &Kind, query: &[(&'static str, &str)]) -> Request {
    with_query(
        request(kind, "DELETE collection", Method::DELETE, kind.collection("$ns")),
        query,
    )
}

fn with_query(mut request: Request, query: &[(&'static str, &str)]) -> Request {
    let query = query.iter().map(|(name, value)| (*name, (*value).to_owned()));
    request.query.extend(query);
    request
}
