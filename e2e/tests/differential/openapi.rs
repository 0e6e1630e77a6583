//! Compares the OpenAPI schemas of both API servers: the fields of all structs, and the merge keys of their lists.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use http::Method;
use kube::Client;
use serde_json::Value;

use super::session::call;

/// By struct and field: the strategy of strategic merge patches and the merge key.
type Merges = BTreeMap<String, BTreeMap<String, [Option<String>; 2]>>;

/// The differences between the schemas of the embedded server and of kube-apiserver.
pub(crate) async fn differences(ours: &Client, real: &Client) -> Result<Vec<String>> {
    let index = call(ours, Method::GET, "/openapi/v3", None).await?;
    let paths = index["paths"].as_object().context("the index must have paths")?;
    let mut found = Vec::new();
    for path in paths.keys() {
        let path = format!("/openapi/v3/{path}");
        let real = merges(real, &path).await?;
        for (name, fields) in merges(ours, &path).await? {
            let Some(expected) = real.get(&name) else {
                found.push(format!("{path}: {name} is unknown to kube-apiserver"));
                continue;
            };
            let names = fields.keys().chain(expected.keys());
            let different = names.filter(|field| fields.get(*field) != expected.get(*field));
            found.extend(different.map(|field| {
                let (ours, real) = (fields.get(field), expected.get(field));
                format!("{path}: {name}.{field}: {ours:?} != {real:?}")
            }));
        }
    }
    found.dedup();
    Ok(found)
}

/// The structs of a document, without the packages that kube-apiserver puts before their names.
async fn merges(client: &Client, path: &str) -> Result<Merges> {
    let document = call(client, Method::GET, path, None).await?;
    let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
    let schemas = schemas.with_context(|| format!("{path} must have schemas"))?;
    let with_properties = schemas.iter().filter_map(|(name, schema)| {
        let name = name.rsplit('.').next().unwrap_or_default().to_owned();
        Some((name, schema["properties"].as_object()?))
    });
    Ok(with_properties
        .map(|(name, properties)| {
            let fields = properties.iter().map(|(field, property)| {
                let extension = |name: &str| property[name].as_str().map(str::to_owned);
                let merge = [
                    extension("x-kubernetes-patch-strategy"),
                    extension("x-kubernetes-patch-merge-key"),
                ];
                (field.clone(), merge)
            });
            (name, fields.collect())
        })
        .collect())
}
