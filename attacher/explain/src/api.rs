//! Reads from the API server. Every request has a deadline; an object that is forbidden or unreadable becomes a gap in
//! the explanation and does not abort it.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use csi_attacher::report::chain;
use kube::api::{ListParams, ObjectList};
use kube::{Api, Client};
use serde::de::DeserializeOwned;

use crate::resource::is_object_name;
use crate::snapshot::Lookup;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const PAGE_SIZE: u32 = 500;
/// Bounds a list to 100,000 objects.
const MAX_PAGES: u32 = 200;

/// A client that records unreadable objects as gaps.
pub(crate) struct ApiReader {
    client: Client,
    gaps: Mutex<BTreeSet<String>>,
}

/// Why an object was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("there is no such object")]
    NotFound,
    #[error("forbidden ({0})")]
    Forbidden(String),
    #[error("the credentials were not accepted ({0})")]
    Unauthorized(String),
    #[error("{0}")]
    Failed(String),
}

// === impl ApiReader ===

impl ApiReader {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            gaps: Mutex::default(),
        }
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// The gaps so far.
    pub(crate) fn into_gaps(self) -> Vec<String> {
        let gaps = self.gaps.into_inner().unwrap_or_else(PoisonError::into_inner);
        gaps.into_iter().collect()
    }

    /// Reads one object.
    pub(crate) async fn get<T>(&self, api: &Api<T>, name: &str) -> Result<T, ReadError>
    where
        T: Clone + DeserializeOwned + Debug,
    {
        if !is_object_name(name) {
            return Err(ReadError::NotFound);
        }
        within_timeout(api.get(name)).await
    }

    /// Reads one object, or records a gap; `resources` is the plural name of its kind.
    pub(crate) async fn lookup<T>(&self, resources: &str, api: &Api<T>, name: &str) -> Lookup<T>
    where
        T: Clone + DeserializeOwned + Debug,
    {
        match self.get(api, name).await {
            Ok(object) => Lookup::Found(object),
            Err(ReadError::NotFound) => Lookup::NotFound,
            Err(error) => {
                self.note_unread(resources, &error);
                Lookup::Unknown
            }
        }
    }

    /// The objects that match the field selector and satisfy `keep`, and whether the list is complete.
    pub(crate) async fn list<T>(
        &self,
        resources: &str,
        api: &Api<T>,
        field_selector: &str,
        keep: impl Fn(&T) -> bool,
    ) -> (Vec<T>, bool)
    where
        T: Clone + DeserializeOwned + Debug,
    {
        let mut kept = Vec::new();
        let mut params = ListParams::default().limit(PAGE_SIZE);
        if !field_selector.is_empty() {
            params = params.fields(field_selector);
        }
        for _ in 0..MAX_PAGES {
            let page: ObjectList<T> = match within_timeout(api.list(&params)).await {
                Ok(page) => page,
                // The API server does not serve this kind: there are no objects.
                Err(ReadError::NotFound) => return (kept, true),
                Err(error) => {
                    self.note_unread(resources, &error);
                    return (kept, false);
                }
            };
            kept.extend(page.items.into_iter().filter(&keep));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                None => return (kept, true),
                Some(token) => params.continue_token = Some(token),
            }
        }
        let limit = PAGE_SIZE * MAX_PAGES;
        self.note_unread(
            resources,
            &ReadError::Failed(format!("only the first {limit} were read")),
        );
        (kept, false)
    }

    /// One of the gaps; empty if there is none.
    pub(crate) fn first_gap(&self) -> String {
        let gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        gaps.first().cloned().unwrap_or_default()
    }

    fn note_unread(&self, resources: &str, error: &ReadError) {
        self.note_gap(format!("cannot read {resources}: {error}"));
    }

    pub(crate) fn note_gap(&self, gap: String) {
        let mut gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        gaps.insert(gap);
    }
}

async fn within_timeout<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, ReadError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(kube::Error::Api(status))) => Err(match status.code {
            // A proxy in between may respond 404, too, but without the API server's Status.
            404 if status.reason == "NotFound"
                || status.message.contains("could not find the requested resource") =>
            {
                ReadError::NotFound
            }
            403 => ReadError::Forbidden(status.message.clone()),
            401 => ReadError::Unauthorized(status.message.clone()),
            code => ReadError::Failed(format!("{} (HTTP status {code})", status.message)),
        }),
        Ok(Err(error)) => Err(ReadError::Failed(chain(&error))),
        Err(_) => Err(ReadError::Failed(format!(
            "no response from the API server within {} s",
            REQUEST_TIMEOUT.as_secs()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response, StatusCode};
    use k8s_openapi::api::core::v1::Node;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::ObjectExt;

    /// A reader of an API server that responds to a path and query with the result of `response`.
    fn mk_reader(response: fn(&str) -> (StatusCode, Value)) -> (ApiReader, Api<Node>) {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let path = request.uri().path_and_query().unwrap().as_str();
            let (status, body) = response(path);
            let body = Body::from(body.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
        });
        let client = Client::new(service, "default");
        (ApiReader::new(client.clone()), Api::all(client))
    }

    fn failure(code: u16, reason: &str, message: &str) -> (StatusCode, Value) {
        let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code});
        (StatusCode::from_u16(code).unwrap(), body)
    }

    #[tokio::test]
    async fn lists_all_pages() {
        let (reader, nodes) = mk_reader(|path| match path {
            "/api/v1/nodes?&limit=500" => (
                StatusCode::OK,
                json!({"metadata": {"continue": "a="}, "items": [{"metadata": {"name": "n1"}}, {"metadata": {"name": "x"}}]}),
            ),
            "/api/v1/nodes?&limit=500&continue=a%3D" => (
                StatusCode::OK,
                json!({"metadata": {}, "items": [{"metadata": {"name": "n2"}}]}),
            ),
            other => failure(500, "", other),
        });
        let keep = |node: &Node| node.name().starts_with('n');
        let (listed, complete) = reader.list("nodes", &nodes, "", keep).await;
        let names: Vec<_> = listed.iter().map(ObjectExt::name).collect();
        assert_eq!((names, complete), (vec!["n1", "n2"], true));
        assert_eq!(reader.into_gaps(), [""; 0]);
    }

    #[tokio::test]
    async fn reports_a_gap_when_forbidden_or_failed_but_not_when_absent() {
        let (reader, nodes) = mk_reader(|path| match path {
            "/api/v1/nodes/absent" => failure(404, "NotFound", "nodes \"absent\" not found"),
            "/api/v1/nodes?&limit=500" => failure(403, "Forbidden", "nodes is forbidden"),
            "/api/v1/nodes/garbled" => (StatusCode::OK, json!(1)),
            // A load balancer's 404 does not prove that the object is absent.
            _ => (StatusCode::NOT_FOUND, json!("not here")),
        });
        assert!(reader.lookup("nodes", &nodes, "absent").await.is_not_found());
        assert!(!reader.lookup("nodes", &nodes, "elsewhere").await.is_not_found());
        assert!(reader.lookup("nodes", &nodes, "garbled").await.found().is_none());
        let (listed, complete) = reader.list("node lists", &nodes, "", |_: &Node| true).await;
        assert!(listed.is_empty() && !complete);
        let gaps = reader.into_gaps();
        assert_eq!(gaps.len(), 3, "{gaps:?}");
        assert!(gaps.contains(&"cannot read node lists: forbidden (nodes is forbidden)".to_owned()));
    }

    #[tokio::test]
    async fn does_not_request_an_invalid_object_name() {
        let (reader, nodes) = mk_reader(|path| failure(500, "", path));
        assert!(reader.lookup("nodes", &nodes, "../pods/x").await.is_not_found());
        assert_eq!(reader.into_gaps(), [""; 0]);
    }
}
