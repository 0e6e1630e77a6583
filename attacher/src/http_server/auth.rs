//! `--http-auth`: the API server decides who a client is (TokenReview), and whether it may get the path
//! (SubjectAccessReview), as with controller-runtime. See docs/adr/0051-metrics-authentication.md.

use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use lru::LruCache;
use tokio::time::Instant;

use super::locked;
use crate::kube_api::{Access, Error, Requests, Reviews};

/// How long a permission counts, although it may have been withdrawn meanwhile.
const ALLOWED_FOR: Duration = Duration::from_secs(60);
/// How long a refusal counts, although a role may have been bound meanwhile.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Longest token that is reviewed. Those of service accounts have about 1 KiB.
const LONGEST_TOKEN: usize = 16 * 1024;
/// Maximum number of cached answers, of about 200 bytes each.
const ANSWERS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// Authenticates and authorizes clients by TokenReview and SubjectAccessReview.
pub struct Auth {
    reviews: Reviews,
    /// By token and path, hashed with secret keys: no client can find a token with the hash of another's.
    answers: Mutex<LruCache<[u64; 2], Answer>>,
    keys: [RandomState; 2],
    /// Whether the last review failed.
    failing: AtomicBool,
}

/// No refusal if the user may get the path, and when the answer expires.
type Answer = (Option<Refusal>, Instant);
type Refusal = (StatusCode, [(HeaderName, &'static str); 1], String);

// === impl Auth ===

impl Auth {
    /// Sends reviews with these credentials.
    pub fn new(access: &Access, counts: Requests) -> Self {
        Self {
            reviews: Reviews::new(access, counts),
            answers: Mutex::new(LruCache::new(ANSWERS)),
            keys: [RandomState::new(), RandomState::new()],
            failing: AtomicBool::default(),
        }
    }

    /// The reason not to serve a request; `None` if there is none.
    async fn refusal(&self, token: &str, path: &str) -> Option<Refusal> {
        let hash = self.keys.each_ref().map(|key| key.hash_one((token, path)));
        let cached = locked(&self.answers).get(&hash).cloned();
        let was_allowed = matches!(cached, Some((None, _)));
        if let Some((refusal, _)) = cached.filter(|(_, until)| Instant::now() < *until) {
            return refusal;
        }
        let admitted = match was_allowed {
            true => None,
            false => {
                let Some(admitted) = self.reviews.admit_unknown().await else {
                    let text = "429 too many unknown tokens are under review\n";
                    let later = (RETRY_AFTER, "5");
                    return Some((StatusCode::TOO_MANY_REQUESTS, [later], text.to_owned()));
                };
                Some(admitted)
            }
        };
        let reviewed = self.review(token, path).await;
        drop(admitted);
        let failed = self.failing.swap(reviewed.is_err(), Ordering::Relaxed);
        match reviewed {
            Ok(refusal) => {
                if failed {
                    tracing::info!("the API server reviews tokens again");
                }
                let lifetime = refusal.as_ref().map_or(ALLOWED_FOR, |_| REFUSED_FOR);
                let answer = (refusal.clone(), Instant::now() + lifetime);
                locked(&self.answers).put(hash, answer);
                refusal
            }
            Err(error) => {
                if !failed {
                    tracing::warn!(%error, "cannot review tokens: --http-endpoint answers 503");
                }
                let text = "503 the API server cannot review the token\n";
                let later = (RETRY_AFTER, "5");
                Some((StatusCode::SERVICE_UNAVAILABLE, [later], text.to_owned()))
            }
        }
    }

    async fn review(&self, token: &str, path: &str) -> Result<Option<Refusal>, Error> {
        let Some(user) = self.reviews.user(token).await? else {
            return Ok(Some(unauthorized("the API server rejects the token")));
        };
        let text = format!(
            "403 {:?} cannot get {path:?}\n",
            user.username.as_deref().unwrap_or_default()
        );
        let scope = (WWW_AUTHENTICATE, "Bearer error=\"insufficient_scope\"");
        let forbidden = (StatusCode::FORBIDDEN, [scope], text);
        let allowed = self.reviews.may_get(user, path).await?;
        Ok((!allowed).then_some(forbidden))
    }
}

/// Serves a request whose user may get its path.
pub(super) async fn authorize(State(auth): State<Arc<Auth>>, request: Request, next: Next) -> Response {
    let refusal = match token(request.headers()).map(str::to_owned) {
        Some(token) => {
            let path = request.uri().path().to_owned();
            auth.refusal(&token, &path).await
        }
        None => Some(unauthorized("give a bearer token")),
    };
    match refusal {
        Some(refusal) => refusal.into_response(),
        None => next.run(request).await,
    }
}

fn unauthorized(why: &str) -> Refusal {
    let scheme = (WWW_AUTHENTICATE, "Bearer");
    (StatusCode::UNAUTHORIZED, [scheme], format!("401 {why}\n"))
}

/// The bearer token, if it has only the characters of RFC 6750 and at most [`LONGEST_TOKEN`] bytes.
fn token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let is_bearer = scheme.eq_ignore_ascii_case("bearer") && token.bytes().all(plain);
    let is_bearer = is_bearer && (1..=LONGEST_TOKEN).contains(&token.len());
    is_bearer.then_some(token)
}

#[cfg(test)]
mod tests;
