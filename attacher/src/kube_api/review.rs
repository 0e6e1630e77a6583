//! TokenReview and SubjectAccessReview: whose token a client of our HTTP server has, and what the user may get.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, UserInfo};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::Resource;
use kube::api::PostParams;
use kube::core::Request;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

use super::client::{Access, ApiService};
use super::request_limiter::{Priority, RequestKind, RequestLimiter};
use super::{Error, Rate, RateLimit, Requests, retry};
use crate::leader_election::Leadership;

/// Timeout of a review, and of the wait for the rate limit of unknown tokens. The two reviews of a known token are shorter than
/// Prometheus' scrape timeout (10 s).
const TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum rate of reviews of unknown tokens, as clients decide how many there are.
const RATE: Rate = Rate { qps: 10.0, burst: 20 };
/// Maximum number of unknown tokens under review.
const UNKNOWN: usize = 8;

/// Reviews over a connection and with a rate limit of their own, so that clients of the HTTP server delay no attach.
pub(crate) struct Reviews {
    service: ApiService,
    limiter: RequestLimiter,
    rate: RateLimit,
    unknown: Semaphore,
}

// === impl Reviews ===

impl Reviews {
    pub(crate) fn new(access: &Access, counts: Requests) -> Self {
        Self {
            service: access.service(None, counts.clone()),
            // Reviews are not stored, so they do not need leadership.
            limiter: RequestLimiter::new(None, Leadership::unopposed(), counts),
            rate: RateLimit::new(RATE),
            unknown: Semaphore::new(UNKNOWN),
        }
    }

    /// Admits the reviews of a token that was not accepted before; `None` if too many are under way. Known tokens need no admission, so
    /// that a flood of others does not delay them.
    pub(crate) async fn admit_unknown(&self) -> Option<SemaphorePermit<'_>> {
        let permit = self.unknown.try_acquire().ok()?;
        timeout(TIMEOUT, self.rate.acquire(Priority::Low)).await.ok()?;
        Some(permit)
    }

    /// The user of this token, if the API server accepts it. Errors do not contain the token.
    pub(crate) async fn user(&self, token: &str) -> Result<Option<UserInfo>, Error> {
        let review: Result<TokenReview, _> = self.create(json!({ "token": token })).await;
        // A proxy may have quoted the request.
        let review =
            review.map_err(|error| Error::Unanswered(error.to_string().replace(token, "...").into()))?;
        let status = review.status.ok_or_else(no_status)?;
        let accepted = status.authenticated == Some(true);
        Ok(status.user.filter(|_| accepted))
    }

    /// Whether the user may get this path (RBAC: `nonResourceURLs`).
    pub(crate) async fn may_get(&self, user: UserInfo, path: &str) -> Result<bool, Error> {
        let spec = json!({
            "user": user.username,
            "groups": user.groups,
            "uid": user.uid,
            "extra": user.extra,
            "nonResourceAttributes": { "path": path, "verb": "get" },
        });
        let review: SubjectAccessReview = self.create(spec).await?;
        let status = review.status.ok_or_else(no_status)?;
        Ok(status.allowed && status.denied != Some(true))
    }

    async fn create<T>(&self, spec: Value) -> Result<T, Error>
    where
        T: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let review = json!({ "apiVersion": T::api_version(&()), "kind": T::kind(&()), "spec": spec });
        let requests = Request::new(T::url_path(&(), None));
        let request = requests.create(&PostParams::default(), review.to_string().into())?;
        let until = Instant::now() + TIMEOUT;
        let permit = timeout_at(until, self.limiter.acquire(RequestKind::Read)).await;
        let _permit = permit.map_err(|_| Error::Unanswered("too many reviews are waiting".into()))??;
        let request = request.map(Into::into);
        let sent = retry::attempt(&self.service, &self.limiter, RequestKind::Read, request, until);
        sent.await.map_err(|failure| failure.error)
    }
}

fn no_status() -> Error {
    Error::Unanswered("the response holds no review".into())
}
