//! Requests to the pages while an API server in memory reviews them.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::{ServiceExt as _, service_fn};

use super::super::router;
use super::super::tests::mk_view;
use super::*;
use crate::leader_election::Fenced;

/// The token of the user `prometheus`, who may get /metrics.
const TOKEN: &str = "prometheus.token";

/// HTTP status and body for a kind and spec.
type Answers = fn(&str, &Value) -> (u16, Value);

/// An API server, and the reviews that it got.
struct ApiServer {
    answer: Mutex<Answers>,
    reviews: Mutex<Vec<(String, Value)>>,
}

fn review(kind: &str, spec: &Value) -> (u16, Value) {
    let status = match kind {
        "TokenReview" => json!({
            "authenticated": spec["token"] == TOKEN,
            "user": { "username": "prometheus", "uid": "1", "groups": ["g"], "extra": { "pod": ["p"] } },
        }),
        _ => json!({ "allowed": spec["nonResourceAttributes"]["path"] == "/metrics" }),
    };
    (201, json!({ "metadata": {}, "spec": spec, "status": status }))
}

impl ApiServer {
    fn new() -> (Arc<Self>, Auth) {
        let server = Arc::new(Self {
            answer: Mutex::new(review),
            reviews: Mutex::default(),
        });
        let handler = server.clone();
        let service = service_fn(move |request: Request<Fenced<kube::client::Body>>| {
            let server = handler.clone();
            async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let review: Value = serde_json::from_slice(&body).unwrap();
                let (kind, spec) = (review["kind"].as_str().unwrap(), &review["spec"]);
                let (status, body) = locked(&server.answer)(kind, spec);
                locked(&server.reviews).push((kind.to_owned(), spec.clone()));
                let response = http::Response::builder().status(status);
                Ok::<_, Infallible>(response.body(Body::from(body.to_string())).unwrap())
            }
        });
        let auth = Auth::new(&Access::in_process(service).unwrap(), Requests::default());
        (server, auth)
    }

    fn reviews(&self) -> usize {
        locked(&self.reviews).len()
    }
}

async fn get(pages: &Router, path: &str, authorization: Option<&str>) -> Response {
    let mut request = Request::get(path);
    if let Some(authorization) = authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    let request = request.body(Body::empty()).unwrap();
    pages.clone().oneshot(request).await.unwrap()
}

async fn status(pages: &Router, path: &str, token: &str) -> u16 {
    let response = get(pages, path, Some(&format!("Bearer {token}"))).await;
    response.status().as_u16()
}

async fn text(response: Response) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn serves_pages_to_permitted_users_and_health_to_all() {
    let (server, auth) = ApiServer::new();
    let pages = router(mk_view(), Some(auth));
    for authorization in [
        None,
        Some("Basic cHJvbWV0aGV1cw=="),
        Some("Bearer"),
        Some("Bearer "),
        Some("Bearer a b"),
        Some("Bearer \"quoted\""),
    ] {
        let response = get(&pages, "/metrics", authorization).await;
        assert_eq!(response.status(), 401, "{authorization:?}");
        assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer");
    }
    assert_eq!(get(&pages, "/healthz", None).await.status(), 200);
    assert_eq!(get(&pages, "/nowhere", Some("Bearer a")).await.status(), 404);
    assert_eq!(server.reviews(), 0, "there was nothing to review");

    assert_eq!(status(&pages, "/metrics", "unknown").await, 401);
    let served = get(&pages, "/metrics?x=y", Some(&format!("bearer {TOKEN}"))).await;
    assert_eq!(served.status(), 200);
    assert!(!text(served).await.contains(TOKEN));
    for path in ["/statusz", "/"] {
        let response = get(&pages, path, Some(&format!("Bearer {TOKEN}"))).await;
        assert_eq!(response.status(), 403, "{path}");
        assert_eq!(
            text(response).await,
            format!("403 \"prometheus\" cannot get {path:?}\n")
        );
    }
    let reviews = locked(&server.reviews);
    assert_eq!(reviews[1], ("TokenReview".to_owned(), json!({ "token": TOKEN })));
    let expected = json!({
        "user": "prometheus", "uid": "1", "groups": ["g"], "extra": { "pod": ["p"] },
        "nonResourceAttributes": { "path": "/metrics", "verb": "get" },
    });
    assert_eq!(reviews[2], ("SubjectAccessReview".to_owned(), expected));
}

#[tokio::test(start_paused = true)]
async fn asks_again_when_an_answer_is_too_old() {
    let (server, auth) = ApiServer::new();
    let pages = router(mk_view(), Some(auth));
    for (path, code, lifetime) in [("/metrics", 200, ALLOWED_FOR), ("/statusz", 403, REFUSED_FOR)] {
        let before = server.reviews();
        assert_eq!(status(&pages, path, TOKEN).await, code);
        tokio::time::advance(lifetime - Duration::from_secs(1)).await;
        assert_eq!(status(&pages, path, TOKEN).await, code);
        assert_eq!(server.reviews(), before + 2, "{path}");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(status(&pages, path, TOKEN).await, code);
        assert_eq!(server.reviews(), before + 4, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn serves_nothing_that_cannot_be_reviewed() {
    let (server, auth) = ApiServer::new();
    let pages = router(mk_view(), Some(auth));
    assert_eq!(status(&pages, "/metrics", TOKEN).await, 200);
    let failures: [Answers; 4] = [
        |_, _| (500, json!({ "kind": "Status", "message": "etcd is away" })),
        |_, _| {
            (
                403,
                json!({ "kind": "Status", "message": "cannot create tokenreviews" }),
            )
        },
        |_, _| (201, json!({})),
        |kind, spec| match kind {
            "TokenReview" => review(kind, spec),
            _ => (201, json!({ "metadata": {}, "spec": {} })),
        },
    ];
    for failure in failures {
        *locked(&server.answer) = failure;
        let response = get(&pages, "/statusz", Some(&format!("Bearer {TOKEN}"))).await;
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[RETRY_AFTER], "5");
        assert_eq!(get(&pages, "/healthz", None).await.status(), 200);
    }
    assert_eq!(
        status(&pages, "/metrics", TOKEN).await,
        200,
        "the answer is cached"
    );
    tokio::time::advance(ALLOWED_FOR).await;
    assert_eq!(status(&pages, "/metrics", TOKEN).await, 503);
    *locked(&server.answer) = review;
    assert_eq!(status(&pages, "/metrics", TOKEN).await, 200);
}

/// A proxy may quote the request in its error page.
#[tokio::test(start_paused = true)]
async fn errors_do_not_contain_the_token() {
    let (server, auth) = ApiServer::new();
    *locked(&server.answer) = |_, spec| (502, spec.clone());
    let error = auth.review(TOKEN, "/metrics").await.unwrap_err().to_string();
    assert!(error.contains("...") && !error.contains(TOKEN), "{error}");
}

#[tokio::test(start_paused = true)]
async fn clients_cannot_fill_memory_or_rush_the_api_server() {
    let (server, auth) = ApiServer::new();
    let (begin, tokens) = (Instant::now(), ANSWERS.get() + 10);
    for number in 0..tokens {
        assert!(auth.refusal(&number.to_string(), "/metrics").await.is_some());
    }
    assert_eq!(server.reviews(), tokens);
    assert_eq!(locked(&auth.answers).len(), ANSWERS.get());
    let took = begin.elapsed().as_secs();
    assert!((100..110).contains(&took), "{took} s for {tokens} tokens");
}
