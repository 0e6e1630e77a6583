//! A client of the admin API, for tests in Rust and for `ctl`.
//!
//! ```no_run
//! # async fn example() -> Result<(), csi_mock_driver::admin_api::client::Error> {
//! use csi_mock_driver::admin_api::client::{Calls, Client};
//!
//! let client = Client::new("unix:///run/admin.sock".parse().expect("an endpoint"));
//! client.detach("vol-0", "node-1").await?;
//! let unpublished = Calls::of("ControllerUnpublishVolume").volume("vol-0");
//! client.wait(&unpublished, 1, "10s").await?;
//! # Ok(())
//! # }
//! ```
//!
//! Each request has its own connection, so a client can be used concurrently and dropped at any
//! time; a dropped request may still take effect.

use std::ops::ControlFlow;
use std::time::Duration;

use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time;

use super::endpoint::Endpoint;
use super::resource::Call;

pub use self::error::Error;

mod error;
mod exchange;
mod requests;

/// Characters that are not escaped in a part of a path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// A client of one driver's admin API.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Endpoint,
    timeout: Option<Duration>,
}

/// Filter for calls; unset fields match every call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Calls(Vec<(&'static str, String)>);

/// An event of the call stream.
#[derive(Clone, Debug, PartialEq)]
pub enum CallEvent {
    /// A call began.
    Begin(Box<Call>),
    /// A call finished.
    End(Box<Call>),
    /// The operation of a call completed after its client disconnected.
    Late(Box<Call>),
    /// This number of events was lost.
    Lost(u64),
}

// === impl Calls ===

impl Calls {
    /// Every call.
    pub fn all() -> Self {
        Self::default()
    }

    /// Calls of one method.
    pub fn of(method: &str) -> Self {
        Self::all().with("method", method)
    }

    /// Calls with a code, such as `NOT_FOUND`; `!OK` for all errors.
    #[must_use]
    pub fn code(self, code: &str) -> Self {
        self.with("code", code)
    }

    /// Calls whose volume id, snapshot id or name matches this pattern.
    #[must_use]
    pub fn volume(self, pattern: &str) -> Self {
        self.with("volume", pattern)
    }

    /// Calls whose node id matches this pattern.
    #[must_use]
    pub fn node(self, pattern: &str) -> Self {
        self.with("node", pattern)
    }

    /// Calls that a fault rule whose id matches this pattern affected.
    #[must_use]
    pub fn fault(self, pattern: &str) -> Self {
        self.with("fault", pattern)
    }

    /// Calls with a sequence number above this.
    #[must_use]
    pub fn after(self, sequence: u64) -> Self {
        self.with("after", &sequence.to_string())
    }

    /// In-flight calls; only for waiting.
    #[must_use]
    pub fn running(self) -> Self {
        self.with("running", "true")
    }

    /// Any other parameter that the API describes.
    #[must_use]
    pub fn with(mut self, parameter: &'static str, value: &str) -> Self {
        self.0.push((parameter, value.to_owned()));
        self
    }
}

// === impl Client ===

impl Client {
    /// Creates a client of the admin API at this endpoint.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            timeout: None,
        }
    }

    /// Sets the request timeout, except for [`Client::follow`]. A request that timed out may
    /// still take effect.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        Self {
            timeout: Some(timeout),
            ..self
        }
    }

    /// Waits until there are `count` calls, at most for a time such as `10s`.
    ///
    /// # Errors
    /// [`Error::Refused`] with code `DEADLINE_EXCEEDED` on timeout.
    pub async fn wait(&self, calls: &Calls, count: usize, timeout: &str) -> Result<Vec<Call>, Error> {
        let calls = calls
            .clone()
            .with("timeout", timeout)
            .with("count", &count.to_string());
        self.wait_for(&calls).await
    }

    /// Streams call events to `on_event` until it breaks or the driver exits.
    pub async fn follow(
        &self,
        calls: &Calls,
        mut on_event: impl FnMut(CallEvent) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let path = path("/events", &[], calls);
        exchange::follow(&self.endpoint, &path, |event, data| match happened(event, data) {
            Some(happened) => on_event(happened),
            None => ControlFlow::Continue(()),
        })
        .await
    }

    /// A page of text, such as `/metrics`.
    pub async fn text(&self, path: &str) -> Result<String, Error> {
        let body = self.exchange(Method::GET, path, None).await?;
        String::from_utf8(body).map_err(|_| self.foreign("no UTF-8"))
    }

    /// Whether the driver is healthy and, where it registers itself, registered with kubelet.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is not, and as for every request.
    pub async fn ready(&self) -> Result<(), Error> {
        self.text("/readyz").await.map(drop)
    }

    async fn request<T: DeserializeOwned>(
        &self,
        method: &str,
        template: &str,
        parts: &[&str],
        query: &impl Serialize,
        body: &impl Serialize,
    ) -> Result<T, Error> {
        let method = Method::from_bytes(method.to_uppercase().as_bytes());
        let method = method.expect("the table must have HTTP's methods");
        let body = match method {
            Method::GET | Method::DELETE => None,
            _ => {
                Some(serde_json::to_vec(body).expect("what the API speaks of must be representable as JSON"))
            }
        };
        let body = self.exchange(method, &path(template, parts, query), body).await?;
        // A reply without content.
        self.read(if body.is_empty() { b"null" } else { &body })
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Vec<u8>, Error> {
        let exchange = exchange::exchange(&self.endpoint, method, path, body);
        let (status, body) = match self.timeout {
            None => exchange.await?,
            Some(timeout) => time::timeout(timeout, exchange).await.map_err(|_| Error::Late {
                endpoint: self.endpoint.clone(),
                waited: timeout,
            })??,
        };
        if status.is_success() {
            return Ok(body);
        }
        let problem = self.read(&body)?;
        Err(Error::Refused { status, problem })
    }

    fn read<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, Error> {
        serde_json::from_slice(body).map_err(|error| self.foreign(&error.to_string()))
    }

    fn foreign(&self, reason: &str) -> Error {
        Error::Foreign {
            endpoint: self.endpoint.clone(),
            reason: reason.to_owned(),
        }
    }
}

fn happened(event: &str, data: &str) -> Option<CallEvent> {
    let call = || serde_json::from_str(data).ok();
    match event {
        "begin" => call().map(CallEvent::Begin),
        "end" => call().map(CallEvent::End),
        "late" => call().map(CallEvent::Late),
        "lost" => data.parse().ok().map(CallEvent::Lost),
        _ => None,
    }
}

/// A path below the API's root, with the parts that its template names, and its query.
fn path(template: &str, parts: &[&str], query: &impl Serialize) -> String {
    let mut path = format!("/api/v1{template}");
    for part in parts {
        if let (Some(start), Some(end)) = (path.find('{'), path.find('}')) {
            path.replace_range(start..=end, &utf8_percent_encode(part, PLAIN).to_string());
        }
    }
    let query = serde_urlencoded::to_string(query).expect("a query must consist of names and values");
    let mark = if query.is_empty() { "" } else { "?" };
    format!("{path}{mark}{query}")
}
