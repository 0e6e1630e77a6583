//! Discovery: groups, versions and resources with their OpenAPI schemas, the server version, and health
//! endpoints.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::resource::{self, GROUPS, Resource};
use super::schema::{self, FieldType, Presence, Shape, Struct, Type};

/// Version of Kubernetes that API server and kubelet emulate.
pub(crate) const KUBERNETES_VERSION: &str = "v1.37.2";

/// The response for a path: content type and body.
pub(crate) fn respond(path: &str, accept: &str) -> Option<(&'static str, Bytes)> {
    let json = |value: Value| Some(("application/json", Bytes::from(value.to_string())));
    match path.trim_end_matches('/') {
        "/healthz" | "/livez" | "/readyz" => Some(("text/plain; charset=utf-8", Bytes::from_static(b"ok"))),
        "/version" => json(version()),
        "/api" => json(json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{ "clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1" }],
        })),
        "/apis" => {
            let groups: Vec<Value> = GROUPS.iter().map(|group| api_group(group)).collect();
            json(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups }))
        }
        "/api/v1" => json(resource_list("")),
        "/openapi/v2" if accept.contains(OPENAPI_V2_PROTOBUF) => {
            Some((OPENAPI_V2_CONTENT_TYPE, Bytes::from_static(EMPTY_OPENAPI_V2)))
        }
        "/openapi/v2" => json(json!({ "swagger": "2.0", "info": openapi_info(), "paths": {} })),
        "/openapi/v3" => json(openapi_index()),
        path => {
            if let Some(group_version) = path.strip_prefix("/openapi/v3/") {
                return json(openapi(group_version)?);
            }
            let rest = path.strip_prefix("/apis/")?;
            let (group, version) = rest.split_once('/').unwrap_or((rest, ""));
            if !GROUPS.contains(&group) {
                return None;
            }
            match version {
                "" => {
                    let mut group = api_group(group);
                    group["kind"] = "APIGroup".into();
                    group["apiVersion"] = "v1".into();
                    json(group)
                }
                "v1" => json(resource_list(group)),
                _ => None,
            }
        }
    }
}

/// The media type that kubectl requests.
const OPENAPI_V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// Its form in responses: `@` is invalid in a media type.
const OPENAPI_V2_CONTENT_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// A document with only the version of OpenAPI. kubectl falls back to OpenAPI v2 for kinds without a schema in OpenAPI v3, such as
/// List, and skips their validation if v2 has no schema either.
const EMPTY_OPENAPI_V2: &[u8] = b"\x0a\x032.0";

fn openapi_info() -> Value {
    json!({ "title": "Kubernetes", "version": KUBERNETES_VERSION })
}

fn version() -> Value {
    json!({
        "major": "1",
        "minor": KUBERNETES_VERSION.split('.').nth(1),
        "gitVersion": format!("{KUBERNETES_VERSION}+embedded"),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": "linux/amd64",
    })
}

fn api_group(group: &str) -> Value {
    let version = json!({ "groupVersion": resource::group_version(group), "version": "v1" });
    json!({ "name": group, "versions": [version], "preferredVersion": version })
}

fn of_group(group: &str) -> impl Iterator<Item = &'static Resource> {
    let group = group.to_owned();
    resource::all()
        .iter()
        .filter(move |resource| resource.group == group)
}

const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

fn verbs(resource: &Resource) -> Vec<&'static str> {
    let collection = resource.kind != resource::Kind::Namespace;
    VERBS
        .into_iter()
        .filter(|verb| collection || *verb != "deletecollection")
        .collect()
}

/// Kind, group and version of a subresource's body, and its verbs.
fn subresource(
    name: &str,
    resource: &Resource,
) -> (
    &'static str,
    Option<(&'static str, &'static str)>,
    Vec<&'static str>,
) {
    match name {
        "binding" => ("Binding", None, vec!["create"]),
        "eviction" => ("Eviction", Some(("policy", "v1")), vec!["create"]),
        "token" => (
            "TokenRequest",
            Some(("authentication.k8s.io", "v1")),
            vec!["create"],
        ),
        "finalize" => (resource.kind_name, None, vec!["update"]),
        _ => (resource.kind_name, None, vec!["get", "patch", "update"]),
    }
}

fn resource_list(group: &str) -> Value {
    let mut resources = Vec::new();
    for resource in of_group(group) {
        let mut entry = json!({
            "name": resource.plural,
            "singularName": resource.singular(),
            "namespaced": resource.namespaced,
            "kind": resource.kind_name,
            "verbs": verbs(resource),
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = json!(resource.short_names);
        }
        if !resource.categories.is_empty() {
            entry["categories"] = json!(resource.categories);
        }
        resources.push(entry);
        for name in resource.subresources {
            let (kind, gv, verbs) = subresource(name, resource);
            let mut entry = json!({
                "name": format!("{}/{name}", resource.plural),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": kind,
                "verbs": verbs,
            });
            if let Some((group, version)) = gv {
                entry["group"] = group.into();
                entry["version"] = version.into();
            }
            resources.push(entry);
        }
    }
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": resource::group_version(group),
        "resources": resources,
    })
}

fn openapi_index() -> Value {
    let mut paths = Map::new();
    for group in std::iter::once("").chain(GROUPS) {
        let path = if group.is_empty() {
            "api/v1".to_owned()
        } else {
            format!("apis/{group}/v1")
        };
        let url = format!("/openapi/v3/{path}");
        paths.insert(path, json!({ "serverRelativeURL": url }));
    }
    json!({ "paths": paths })
}

/// The OpenAPI document of a group: enough for kubectl to validate, explain and merge.
fn openapi(group_version: &str) -> Option<Value> {
    let group = match group_version {
        "api/v1" => "",
        other => other.strip_prefix("apis/")?.strip_suffix("/v1")?,
    };
    let mut schemas = Map::new();
    let mut paths = Map::new();
    for resource in of_group(group) {
        add_schemas(resource.schema, &mut schemas);
        let kind = json!({ "group": group, "version": "v1", "kind": resource.kind_name });
        schemas[&schema_name(resource.schema.name)]["x-kubernetes-group-version-kind"] = json!([kind]);
        let object = if resource.namespaced {
            format!(
                "/{group_version}/namespaces/{{namespace}}/{}/{{name}}",
                resource.plural
            )
        } else {
            format!("/{group_version}/{}/{{name}}", resource.plural)
        };
        let collection = object.trim_end_matches("/{name}").to_owned();
        paths.insert(collection, json!({ "post": operation(resource, "post") }));
        let methods = ["get", "put", "patch", "delete"];
        let operations: Map<String, Value> = methods
            .into_iter()
            .map(|method| (method.to_owned(), operation(resource, method)))
            .collect();
        paths.insert(object, Value::Object(operations));
    }
    if paths.is_empty() {
        return None;
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": openapi_info(),
        "paths": paths,
        "components": { "schemas": schemas },
    }))
}

/// Media types of patches. Server-side apply is not implemented.
const PATCH_TYPES: [&str; 3] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

fn operation(resource: &Resource, method: &str) -> Value {
    let query = |name: &str| json!({ "name": name, "in": "query", "schema": { "type": "string" } });
    let mut operation = json!({
        "parameters": [query("dryRun"), query("fieldManager"), query("fieldValidation")],
        "x-kubernetes-action": method,
        "x-kubernetes-group-version-kind": {
            "group": resource.group,
            "version": "v1",
            "kind": resource.kind_name,
        },
    });
    if method == "patch" {
        let schema = json!({ "schema": { "type": "object" } });
        let content: Map<String, Value> = PATCH_TYPES
            .iter()
            .map(|media| ((*media).to_owned(), schema.clone()))
            .collect();
        operation["requestBody"] = json!({ "content": content, "required": true });
    }
    operation
}

fn schema_name(name: &str) -> String {
    format!("io.k8s.api.{name}")
}

/// Adds the schema of a struct and those of the structs in it.
fn add_schemas(found: &Struct, schemas: &mut Map<String, Value>) {
    let name = schema_name(found.name);
    if schemas.contains_key(&name) {
        return;
    }
    // A kind embeds TypeMeta, the only embedded struct without a number. Its own strings may be optional.
    let is_kind = found
        .declared
        .iter()
        .any(|field| field.name == schema::INLINE && field.number.is_none());
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (name, field) in &found.fields {
        let mut property = type_schema(field.ty);
        if let Some(key) = field.merge_key {
            let strategy = if field.retains_keys {
                "merge,retainKeys"
            } else {
                "merge"
            };
            property["x-kubernetes-patch-strategy"] = strategy.into();
            if !key.is_empty() {
                property["x-kubernetes-patch-merge-key"] = key.into();
            }
        }
        properties.insert((*name).to_owned(), property);
        let is_text = field.ty.shape == Shape::One && field.ty.base == Type::String;
        if field.presence == Presence::Always && is_text && !is_kind {
            required.push(*name);
        }
    }
    let mut schema = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schemas.insert(name, schema);
    for field in found.fields.values() {
        if let Some(structure) = field.ty.structure() {
            add_schemas(structure, schemas);
        }
    }
}

fn type_schema(ty: FieldType) -> Value {
    let schema = match ty.base {
        Type::Bool => json!({ "type": "boolean" }),
        Type::Int32 => json!({ "type": "integer", "format": "int32" }),
        Type::Int64 => json!({ "type": "integer", "format": "int64" }),
        Type::String => json!({ "type": "string" }),
        Type::Time | Type::MicroTime => json!({ "type": "string", "format": "date-time" }),
        Type::Bytes => json!({ "type": "string", "format": "byte" }),
        Type::Quantity => json!({ "oneOf": [{ "type": "string" }, { "type": "number" }] }),
        Type::IntOrString => json!({ "oneOf": [{ "type": "integer" }, { "type": "string" }] }),
        Type::Struct(number) => {
            let name = schema_name(schema::get(number).name);
            json!({ "allOf": [{ "$ref": format!("#/components/schemas/{name}") }] })
        }
        Type::Any => json!({ "type": "object" }),
    };
    match ty.shape {
        Shape::One => schema,
        Shape::List => json!({ "type": "array", "items": schema }),
        Shape::Map => json!({ "type": "object", "additionalProperties": schema }),
    }
}
