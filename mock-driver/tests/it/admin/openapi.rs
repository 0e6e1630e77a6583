//! The OpenAPI document compared with the routes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::administered;
use super::wire::send;
use crate::server::Server;

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

#[tokio::test]
async fn openapi_document_and_routes_match() {
    let (_server, client) = administered().await;
    let document: Value = serde_json::from_str(&client.text("/openapi.json").await.unwrap()).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let mut described = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(METHODS.contains(&method.as_str()), "{method} {path}");
            assert!(
                operation["summary"].as_str().is_some_and(|text| !text.is_empty()),
                "{method} {path}"
            );
            assert!(
                operation["responses"]["default"].is_object(),
                "{method} {path}: the schema of a refusal"
            );
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let in_path: BTreeSet<&str> = parameters
                .iter()
                .filter(|parameter| parameter["in"] == "path")
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            let written: BTreeSet<&str> = path
                .split('/')
                .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
                .collect();
            assert_eq!(in_path, written, "{method} {path}");
            for parameter in &parameters {
                assert!(
                    parameter["description"].is_string(),
                    "{method} {path}: {parameter}"
                );
            }
            described += 1;
        }
    }
    assert!(described > 30, "{described}");
    references(&document, &document);
}

#[tokio::test]
async fn undocumented_methods_are_not_served() {
    let (server, client) = Server::start_on_tcp(|_, _| ()).await;
    let document: Value = serde_json::from_str(&client.text("/openapi.json").await.unwrap()).unwrap();
    for (path, item) in document["paths"].as_object().unwrap() {
        let real = path
            .split('/')
            .map(|part| {
                if part.starts_with('{') {
                    "nothing-of-that-name"
                } else {
                    part
                }
            })
            .collect::<Vec<_>>()
            .join("/");
        for method in METHODS {
            let has = item.get(method).is_some();
            if has && (real.ends_with("/events") || real.ends_with("/changes")) {
                continue; // Endless streams.
            }
            let real = real.replace("/wait", "/wait?timeout=1ms");
            let status = status(&server, method, &real).await;
            assert_eq!(status != 405, has, "{method} {real}: {status}");
        }
    }
}

async fn status(server: &Server, method: &str, path: &str) -> u16 {
    let method = method.to_uppercase();
    let request = format!(
        "{method} {path} HTTP/1.1\nHost: HOST\nContent-Type: application/json\nContent-Length: 2\nConnection: close\n\n{{}}"
    );
    send(server, &request).await.0
}

/// Every reference resolves.
fn references(document: &Value, part: &Value) {
    match part {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get("$ref") {
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(
                    document.pointer(pointer).is_some(),
                    "{reference} does not resolve"
                );
            }
            fields.values().for_each(|field| references(document, field));
        }
        Value::Array(items) => items.iter().for_each(|item| references(document, item)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
