//! Bodies of the subresources `binding`, `eviction` and `token`.

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{assert_fails, call, mk_pod, mk_server};

const BINDING: &str = "/api/v1/namespaces/default/pods/p/binding";
const EVICTION: &str = "/api/v1/namespaces/default/pods/p/eviction";
const TOKEN: &str = "/api/v1/namespaces/default/serviceaccounts/default/token";

async fn assert_bad_requests(cases: &[(&str, Value, &str)]) {
    let server = mk_server(1);
    for (path, body, message) in cases {
        assert_fails(
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
            "Pod in version \"v1\" cannot be handled as a Binding: converting (v1.Pod) to (core.Binding): unknown conversion",
        ),
        (
            EVICTION,
            json!({ "apiVersion": "v1", "kind": "Binding" }),
            "Binding in version \"v1\" cannot be handled as a Eviction: converting (v1.Binding) to (policy.Eviction): \
             unknown conversion",
        ),
        (
            TOKEN,
            json!({ "apiVersion": "policy/v1", "kind": "Eviction" }),
            "Eviction in version \"v1\" cannot be handled as a TokenRequest: converting (v1.Eviction) to \
             (authentication.TokenRequest): unknown conversion",
        ),
        (
            BINDING,
            json!({ "apiVersion": "v2", "kind": "Binding" }),
            "Binding in version \"v2\" cannot be handled as a Binding: no kind \"Binding\" is registered for version \
             \"v2\" in scheme \"pkg/runtime/scheme.go:111\"",
        ),
        (
            "/api/v1/namespaces/default/pods",
            json!({ "apiVersion": "v1", "kind": "Binding" }),
            "Binding in version \"v1\" cannot be handled as a Pod: converting (v1.Binding) to (core.Pod): unknown \
             conversion",
        ),
        (
            EVICTION,
            json!("text"),
            "the object provided is unrecognized (must be of type Eviction): couldn't get version/kind; json parse \
             error: json: cannot unmarshal string into Go value of type struct { APIVersion string \
             \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" } (227465787422)",
        ),
    ];
    assert_bad_requests(&cases).await;
}

#[tokio::test(start_paused = true)]
async fn fields_of_the_wrong_type_are_refused() {
    let cases = [
        (
            BINDING,
            json!({ "target": { "name": 7 } }),
            "Binding in version \"v1\" cannot be handled as a Binding: json: cannot unmarshal number into Go struct \
             field ObjectReference.target.name of type string",
        ),
        (
            EVICTION,
            json!({ "deleteOptions": { "gracePeriodSeconds": "x" } }),
            "Eviction in version \"v1\" cannot be handled as a Eviction: json: cannot unmarshal string into Go struct \
             field DeleteOptions.deleteOptions.gracePeriodSeconds of type int64",
        ),
        (
            TOKEN,
            json!({ "spec": { "audiences": "a" } }),
            "TokenRequest in version \"v1\" cannot be handled as a TokenRequest: json: cannot unmarshal string into \
             Go struct field TokenRequestSpec.spec.audiences of type []string",
        ),
    ];
    assert_bad_requests(&cases).await;
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_are_refused_or_reported() {
    let server = mk_server(1);
    let body = json!({ "spec": { "audiences": [], "unknown": 1 } });
    let strict = format!("{TOKEN}?fieldValidation=Strict");
    assert_fails(
        call(&server, Method::POST, &strict, &body).await,
        400,
        "BadRequest",
        "TokenRequest in version \"v1\" cannot be handled as a TokenRequest: strict decoding error: unknown field \
         \"spec.unknown\"",
    );
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
    let body = json!({ "spec": { "audiences": [], "expirationSeconds": 0 } });
    let (code, _) = call(&server, Method::POST, &format!("{TOKEN}?dryRun=Some"), &body).await;
    assert_eq!(code, 422);
    let (code, response) = call(&server, Method::POST, TOKEN, &body).await;
    assert_eq!((code, &response["reason"]), (422, &Value::from("Invalid")));
    let body = json!({ "spec": { "audiences": [] } });
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
