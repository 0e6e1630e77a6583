//! Reads from the API server, one page at a time, that note what they may not see.
//!
//! Nothing here writes. Every request has a deadline; an answer that is no object is a gap in the
//! explanation and no end of it.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kube::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::snapshot::Look;
use crate::report::chain;

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(10);
/// Objects in a page of a list.
const PAGE: usize = 500;
/// Pages of one list that are read at most: 100,000 objects.
const PAGES: usize = 200;

/// A reader of one cluster.
pub(super) struct Reader {
    client: Client,
    gaps: Mutex<BTreeSet<String>>,
}

/// Why an object was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Trouble {
    /// The API server knows no such object.
    #[error("there is no such object")]
    Absent,
    /// The API server let us in, but not that far.
    #[error("forbidden ({0})")]
    Forbidden(String),
    /// It did not let us in.
    #[error("the credentials were not accepted ({0})")]
    Unauthenticated(String),
    /// It could not be asked, or its answer makes no sense.
    #[error("{0}")]
    Failed(String),
}

/// A page of a list.
#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: PageMeta,
    // A list in Go may be null.
    items: Option<Vec<T>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PageMeta {
    r#continue: String,
}

// === impl Reader ===

impl Reader {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            gaps: Mutex::default(),
        }
    }

    /// What could not be read so far.
    pub(super) fn into_gaps(self) -> Vec<String> {
        let gaps = self.gaps.into_inner().unwrap_or_else(PoisonError::into_inner);
        gaps.into_iter().collect()
    }

    /// One object that must be there.
    pub(super) async fn subject<T: DeserializeOwned>(&self, path: &str) -> Result<T, Trouble> {
        parsed(&self.text(path).await?)
    }

    /// Two pictures of the same object.
    pub(super) async fn subject_twice<A, B>(&self, path: &str) -> Result<(A, B), Trouble>
    where
        A: DeserializeOwned,
        B: DeserializeOwned,
    {
        let text = self.text(path).await?;
        Ok((parsed(&text)?, parsed(&text)?))
    }

    /// An object; `kind` says in the plural what is missing if it cannot be read.
    pub(super) async fn get<T: DeserializeOwned>(&self, kind: &str, path: &str) -> Look<T> {
        self.look(kind, self.subject(path).await)
    }

    /// Notes a gap for what was not read.
    pub(super) fn look<T>(&self, kind: &str, result: Result<T, Trouble>) -> Look<T> {
        match result {
            Ok(object) => Look::Found(object),
            Err(Trouble::Absent) => Look::Absent,
            Err(trouble) => {
                self.note(kind, &trouble);
                Look::Unknown
            }
        }
    }

    /// All objects of a list for which `keep` holds, or `Unknown` if not all pages came.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        kind: &str,
        path: &str,
        selector: &str,
        keep: impl Fn(&T) -> bool,
    ) -> (Vec<T>, bool) {
        let mut kept = Vec::new();
        let mut token = String::new();
        for _ in 0..PAGES {
            let query = format!("{path}?limit={PAGE}{selector}{token}");
            let page: Page<T> = match self.subject(&query).await {
                Ok(page) => page,
                // The kind itself is not known to the API server: there are none.
                Err(Trouble::Absent) => return (kept, true),
                Err(trouble) => {
                    self.note(kind, &trouble);
                    return (kept, false);
                }
            };
            kept.extend(page.items.unwrap_or_default().into_iter().filter(&keep));
            if page.metadata.r#continue.is_empty() {
                return (kept, true);
            }
            token = format!("&continue={}", segment(&page.metadata.r#continue));
        }
        let limit = PAGE * PAGES;
        self.note(
            kind,
            &Trouble::Failed(format!("only the first {limit} were read")),
        );
        (kept, false)
    }

    fn note(&self, kind: &str, trouble: &Trouble) {
        let gap = format!("cannot look at {kind}: {trouble}");
        let mut gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        gaps.insert(gap);
    }

    async fn text(&self, path: &str) -> Result<String, Trouble> {
        let request = http::Request::get(path)
            .body(Vec::new())
            .map_err(|error| Trouble::Failed(error.to_string()))?;
        match tokio::time::timeout(REQUEST, self.client.request_text(request)).await {
            Ok(Ok(text)) => Ok(text),
            Ok(Err(kube::Error::Api(status))) => Err(match status.code {
                // A proxy in between says 404 too.
                404 if status.reason == "NotFound"
                    || status.message.contains("could not find the requested resource") =>
                {
                    Trouble::Absent
                }
                403 => Trouble::Forbidden(status.message),
                401 => Trouble::Unauthenticated(status.message),
                code => Trouble::Failed(format!("{} (HTTP status {code})", status.message)),
            }),
            Ok(Err(error)) => Err(Trouble::Failed(chain(&error))),
            Err(_) => Err(Trouble::Failed(format!(
                "no answer from the API server in {} s",
                REQUEST.as_secs()
            ))),
        }
    }
}

/// A name as it may stand in a path or a query: names in other objects' fields may be anything.
pub(super) fn segment(name: &str) -> String {
    use std::fmt::Write;
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(byte.into());
        } else {
            write!(encoded, "%{byte:02X}").expect("a string must take more text");
        }
    }
    encoded
}

fn parsed<T: DeserializeOwned>(text: &str) -> Result<T, Trouble> {
    // The text itself is not shown: it may be anything.
    serde_json::from_str(text)
        .map_err(|error| Trouble::Failed(format!("the answer is not understood: {error}")))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::explain::objects::Node;

    /// A reader of an API server that answers a path and query with a status and a body.
    fn reader(answer: fn(&str) -> (StatusCode, Value)) -> Reader {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let asked = request.uri().path_and_query().unwrap().as_str();
            let (status, body) = answer(asked);
            let body = Body::from(body.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
        });
        Reader::new(Client::new(service, "default"))
    }

    fn failure(code: u16, reason: &str, message: &str) -> (StatusCode, Value) {
        let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code});
        (StatusCode::from_u16(code).unwrap(), body)
    }

    #[tokio::test]
    async fn lists_are_read_to_their_end_page_by_page() {
        let reader = reader(|asked| match asked {
            "/nodes?limit=500" => (
                StatusCode::OK,
                json!({"metadata": {"continue": "a="}, "items": [{"metadata": {"name": "n1"}}, {"metadata": {"name": "x"}}]}),
            ),
            "/nodes?limit=500&continue=a%3D" => (
                StatusCode::OK,
                json!({"metadata": {}, "items": [{"metadata": {"name": "n2"}}]}),
            ),
            other => failure(500, "", other),
        });
        let ours = |node: &Node| node.metadata.name.starts_with('n');
        let (nodes, complete) = reader.list("nodes", "/nodes", "", ours).await;
        let names: Vec<_> = nodes.iter().map(|node| &*node.metadata.name).collect();
        assert_eq!((names, complete), (vec!["n1", "n2"], true));
        assert_eq!(reader.into_gaps(), [""; 0]);
    }

    #[tokio::test]
    async fn what_is_forbidden_or_fails_is_told_and_what_is_absent_is_not() {
        let reader = reader(|asked| match asked {
            "/absent" => failure(404, "NotFound", "nodes \"absent\" not found"),
            "/forbidden?limit=500" => failure(403, "Forbidden", "leases is forbidden"),
            "/garbled" => (StatusCode::OK, json!([1])),
            // What a load balancer says is not the API server's word.
            _ => (StatusCode::NOT_FOUND, json!("not here")),
        });
        assert!(reader.get::<Node>("nodes", "/absent").await.is_absent());
        assert!(!reader.get::<Node>("nodes", "/elsewhere").await.is_absent());
        assert!(reader.get::<Node>("nodes", "/garbled").await.found().is_none());
        let (leases, complete) = reader.list("leases", "/forbidden", "", |_: &Node| true).await;
        assert!(leases.is_empty() && !complete);
        let gaps = reader.into_gaps();
        assert_eq!(gaps.len(), 3, "{gaps:?}");
        assert!(gaps.contains(&"cannot look at leases: forbidden (leases is forbidden)".to_owned()));
    }

    #[test]
    fn a_name_cannot_lead_elsewhere() {
        assert_eq!(segment("pv-1.a_b"), "pv-1.a_b");
        assert_eq!(segment("../x?y=z%"), "..%2Fx%3Fy%3Dz%25");
    }
}
