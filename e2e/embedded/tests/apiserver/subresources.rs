//! Bodies of the subresources `binding`, `eviction` and `token`.

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{assert_refused, call, mk_pod, mk_server};

const BINDING: &str = "/api/v1/namespaces/default/pods/p/binding";
const EVICTION: &str = "/api/v1/namespaces/default/pods/p/eviction";
const TOKEN: &str = "/api/v1/namespaces/default/serviceaccounts/default/token";

async fn assert_bad_requests(cases: &[(&str, Value, &str)]) {
    let server = mk_server(1);
    for (path, body, message) in cases {
        assert_refused(
            call(&server, Method::POST, path, body).await,
            400,
            "BadRequest",
            message,
        );
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_of_another_type_are_refused() {
    let cases = [
        (
            BINDING,
            json!({ "apiVersion": "v1", "kind": "Pod" }),
            "Pod of v1 is not Binding of v1",
        ),
        (
            EVICTION,
            json!({ "apiVersion": "v1", "kind": "Binding" }),
            "is not Eviction of policy/v1",
        ),
        (
            TOKEN,
            json!({ "apiVersion": "policy/v1", "kind": "Eviction" }),
            "is not TokenRequest",
        ),
        (
            BINDING,
            json!({ "apiVersion": "v2", "kind": "Binding" }),
            "Binding of v2 is not Binding of v1",
        ),
        (
            "/api/v1/namespaces/default/pods",
            json!({ "apiVersion": "v1", "kind": "Binding" }),
            "Binding of v1 is not Pod of v1",
        ),
        (EVICTION, json!("text"), "it must be an object, but is a string"),
    ];
    assert_bad_requests(&cases).await;
}

#[tokio::test(start_paused = true)]
async fn fields_of_the_wrong_type_are_refused() {
    let cases = [
        (
            BINDING,
            json!({ "target": { "name": 7 } }),
            "target.name must be a string",
        ),
        (
            EVICTION,
            json!({ "deleteOptions": { "gracePeriodSeconds": "x" } }),
            "deleteOptions.gracePeriodSeconds must be a number",
        ),
        (
            TOKEN,
            json!({ "spec": { "audiences": "a" } }),
            "spec.audiences must be an array",
        ),
    ];
    assert_bad_requests(&cases).await;
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_are_refused_or_reported() {
    let server = mk_server(1);
    let body = json!({ "spec": { "audiences": [], "unknown": 1 } });
    let strict = format!("{TOKEN}?fieldValidation=Strict");
    let why = "strict decoding error: unknown field \"spec.unknown\"";
    let response = call(&server, Method::POST, &strict, &body).await;
    assert_refused(response, 400, "BadRequest", why);
    for (validation, expected) in [
        ("Warn", Some("299 - \"unknown field \\\"spec.unknown\\\"\"")),
        ("Ignore", None),
    ] {
        let request = Request::post(format!("{TOKEN}?fieldValidation={validation}"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .unwrap();
        let response = server.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 201);
        let warning = response.headers().get("warning");
        assert_eq!(
            warning.map(|warning| warning.to_str().unwrap()),
            expected,
            "{validation}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn options_of_token_requests_are_validated() {
    let server = mk_server(1);
    let body = json!({ "spec": { "audiences": [] } });
    let (code, _) = call(&server, Method::POST, &format!("{TOKEN}?dryRun=Some"), &body).await;
    assert_eq!(code, 422);
    let (code, _) = call(&server, Method::POST, &format!("{TOKEN}?dryRun=All"), &body).await;
    assert_eq!(code, 201);
}

#[tokio::test(start_paused = true)]
async fn evictions_of_both_versions_are_accepted() {
    let server = mk_server(1);
    for (version, code) in [("policy/v1", 201), ("policy/v1beta1", 201), ("v1", 400)] {
        let pod = mk_pod("p", json!({}));
        call(&server, Method::POST, "/api/v1/namespaces/default/pods", &pod).await;
        let body = json!({ "apiVersion": version, "kind": "Eviction", "metadata": { "name": "p" } });
        let response = call(&server, Method::POST, EVICTION, &body).await;
        assert_eq!(response.0, code, "{version}: {}", response.1);
    }
}
