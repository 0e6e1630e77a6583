//! Sends sequences of requests to both servers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use embedded_cluster::apiserver::{ApiServer, Options};
use http::Method;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::explained;
use super::generator::{JSON, Sequence, request};
use super::kinds::{self, Kind};
use super::report::Difference;
use super::request::{Body, Request};
use super::server::{Server, ServerResponse, encoded};

/// A StorageClass that sorts before all others.
const MARKER: &str = "0";
/// Timeout of waiting for kube-apiserver's informers.
const INFORMER_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Session {
    real: Client,
    /// Number of namespaces that were used.
    namespaces: AtomicU64,
}

/// The result of a sequence.
pub(crate) struct Compared {
    /// Codes of kube-apiserver's responses.
    pub(crate) codes: Vec<u16>,
    pub(crate) explained: Vec<&'static str>,
    pub(crate) differences: Vec<Difference>,
}

// === impl Session ===

impl Session {
    pub(crate) fn new(real: Client) -> Self {
        Self {
            real,
            namespaces: AtomicU64::new(0),
        }
    }

    /// Sends requests to both servers until they differ.
    pub(crate) async fn send(&self, kinds: &[&'static Kind], requests: &[Request]) -> Result<Compared> {
        let number = self.namespaces.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("sequence{number}x");
        let embedded = ApiServer::new(&Options {
            default_service_accounts: false,
            seed: number,
            ..Options::default()
        });
        let mut ours = Server::new(embedded.client(), &namespace);
        let mut real = Server::new(self.real.clone(), &namespace);
        for server in [&mut ours, &mut real] {
            prepare(server).await?;
        }
        let mut compared = Compared {
            codes: Vec::new(),
            explained: Vec::new(),
            differences: Vec::new(),
        };
        for (index, request) in requests.iter().enumerate() {
            let (our_answer, real_answer) = tokio::try_join!(ours.send(request), real.send(request))?;
            compared.codes.push(real_answer.code.as_u16());
            let writes = request.method != Method::GET && real_answer.code.is_success();
            if writes {
                await_watch_cache(&real, request).await?;
            }
            if request.kind == "StorageClass" && writes {
                for server in [&ours, &real] {
                    let followed = timeout(INFORMER_TIMEOUT, await_informer(server)).await;
                    followed.context("the informer of StorageClasses did not follow the store")??;
                }
            }
            if our_answer == real_answer {
                continue;
            }
            let is_success = our_answer.code.is_success() || real_answer.code.is_success();
            match explained::find(request, &our_answer, &real_answer) {
                Some(reason) => compared.explained.push(reason),
                None => compared.differences.push(Difference {
                    index,
                    ours: our_answer,
                    real: real_answer,
                }),
            }
            if is_success && (request.method != Method::GET || request.is_watch()) {
                // From now on the servers have different objects, or have returned different numbers of versions.
                break;
            }
        }
        clean_up(&mut real, kinds).await?;
        Ok(compared)
    }

    /// The preceding requests that are necessary to reproduce a difference.
    pub(crate) async fn shorten(&self, sequence: &Sequence, difference: &Difference) -> Result<Vec<Request>> {
        let last = &sequence.requests[difference.index];
        let mut needed = sequence.requests[..difference.index].to_vec();
        let mut size = needed.len();
        while size > 0 {
            let mut start = 0;
            while start < needed.len() {
                let mut fewer = needed.clone();
                fewer.drain(start..(start + size).min(fewer.len()));
                fewer.push(last.clone());
                if self.shows(&sequence.kinds, &fewer, difference).await? {
                    fewer.pop();
                    needed = fewer;
                } else {
                    start += size;
                }
            }
            size /= 2;
        }
        Ok(needed)
    }

    /// Whether the last of the requests shows a difference like this one.
    async fn shows(
        &self,
        kinds: &[&'static Kind],
        requests: &[Request],
        difference: &Difference,
    ) -> Result<bool> {
        let compared = self.send(kinds, requests).await?;
        Ok(compared.differences.iter().any(|found| {
            found.index == requests.len() - 1
                && found.ours.code == difference.ours.code
                && found.real.code == difference.real.code
                && message(&found.real) == message(&difference.real)
        }))
    }
}

fn message(response: &ServerResponse) -> &Value {
    &response.body["message"]
}

/// Creates the namespace of a sequence.
pub(crate) async fn prepare(server: &mut Server) -> Result<()> {
    let namespaces = kinds::find("", "namespaces");
    let mut create = request(namespaces, "POST", Method::POST, namespaces.collection("$ns"));
    create.content_type = JSON;
    create.body = Body::Json(json!({ "metadata": { "name": "$ns" } }));
    let response = server.send(&create).await?;
    ensure!(response.code.is_success(), "{create}: {response}");
    Ok(())
}

/// Waits until kube-apiserver's watch cache has caught up with etcd.
///
/// The cache serves reads with `resourceVersion=0`, and a deletion starts from the cached object: one that reads a pod
/// before its binding keeps the grace period 0. A list without `resourceVersion` waits for the cache.
async fn await_watch_cache(server: &Server, request: &Request) -> Result<()> {
    let kind = kinds::ALL.iter().find(|kind| kind.shown_name() == request.kind);
    let kind = kind.context("the kind must be in the table")?;
    let collection = server.path(&kind.collection("$ns"));
    call(server.client(), Method::GET, &collection, None).await?;
    Ok(())
}

/// Waits until the admission plugins' informers have the stored StorageClasses.
///
/// kube-apiserver's plugins use an informer, which receives changes in order: once it has received the creation and deletion
/// of a new default class, it has all earlier changes. The embedded server gets the same class, because watches return it.
async fn await_informer(server: &Server) -> Result<()> {
    let client = server.client();
    let classes = kinds::find("storage.k8s.io", "storageclasses").collection("");
    // The newest default class counts, and of equally old ones the first by name.
    let marker = json!({
        "metadata": {
            "name": MARKER,
            "annotations": { "storageclass.kubernetes.io/is-default-class": "true" },
        },
        "provisioner": "example.com/marker",
    });
    let created = call(client, Method::POST, &classes, Some(marker)).await?;
    ensure!(
        created["metadata"]["name"] == MARKER,
        "create a StorageClass: {created}"
    );
    while default_class(server).await? != MARKER {}
    call(client, Method::DELETE, &format!("{classes}/{MARKER}"), None).await?;
    while default_class(server).await? == MARKER {}
    Ok(())
}

/// The class that admission sets for a claim without one.
async fn default_class(server: &Server) -> Result<Value> {
    let claims = kinds::find("", "persistentvolumeclaims").collection("$ns");
    let path = format!("{}?dryRun=All", server.path(&claims));
    let claim = json!({
        "metadata": { "generateName": "claim-" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    let claim = call(server.client(), Method::POST, &path, Some(claim)).await?;
    ensure!(
        claim["kind"] == "PersistentVolumeClaim",
        "create a claim: {claim}"
    );
    Ok(claim["spec"]["storageClassName"].clone())
}

/// Deletes the remaining objects of a sequence.
async fn clean_up(server: &mut Server, kinds: &[&'static Kind]) -> Result<()> {
    let namespaces = kinds::find("", "namespaces");
    let accounts = kinds::find("", "serviceaccounts");
    for kind in kinds.iter().copied().chain([accounts, namespaces]) {
        let client = server.client().clone();
        let collection = server.path(&kind.collection("$ns"));
        let listed = call(&client, Method::GET, &collection, None).await?;
        for item in listed["items"].as_array().into_iter().flatten() {
            let name = item["metadata"]["name"].as_str().unwrap_or_default();
            let is_of_cluster = kind.plural == "namespaces" && !name.starts_with("sequence");
            if !is_of_cluster {
                remove(&client, &format!("{collection}/{}", encoded(name)), item).await?;
            }
        }
    }
    Ok(())
}

async fn remove(client: &Client, path: &str, item: &Value) -> Result<()> {
    let finalizers = &item["metadata"]["finalizers"];
    if finalizers.is_array() {
        let patch = json!({ "metadata": { "finalizers": null } });
        call(client, Method::PATCH, path, Some(patch)).await?;
    }
    let is_namespace = path.starts_with("/api/v1/namespaces/") && path.matches('/').count() == 4;
    let grace = if is_namespace { "" } else { "?gracePeriodSeconds=0" };
    call(client, Method::DELETE, &format!("{path}{grace}"), None).await?;
    if is_namespace {
        let body = json!({ "metadata": { "name": item["metadata"]["name"] } });
        call(client, Method::PUT, &format!("{path}/finalize"), Some(body)).await?;
    }
    let left = call(client, Method::GET, path, None).await?;
    ensure!(left["code"] == 404, "{path} is left: {left}");
    Ok(())
}

/// Sends a request without a comparison of the response.
pub(crate) async fn call(client: &Client, method: Method, path: &str, body: Option<Value>) -> Result<Value> {
    let content_type = if method == Method::PATCH {
        "application/merge-patch+json"
    } else {
        JSON
    };
    let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, content_type)
        .body(kube::client::Body::from(body))
        .context("build a request")?;
    let response = client.send(request).await.context("send a request")?;
    let body = http_body_util::BodyExt::collect(response.into_body())
        .await
        .context("read a response")?;
    serde_json::from_slice(&body.to_bytes()).context("a response must be JSON")
}
