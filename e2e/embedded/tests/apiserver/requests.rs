//! Reads and writes.

use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};

use super::{
    ATTACHMENTS, assert_fails, assert_refused, call, execute, mk_attachment, mk_server, patch, send, table,
};

#[tokio::test(start_paused = true)]
async fn refuses_requests_with_the_errors_of_kube_apiserver() {
    let server = mk_server(1);
    let create = |body: Value| {
        let server = server.clone();
        async move { call(&server, Method::POST, ATTACHMENTS, &body).await }
    };
    assert_eq!(create(mk_attachment("a")).await.0, 201);
    assert_fails(
        create(mk_attachment("a")).await,
        409,
        "AlreadyExists",
        "volumeattachments.storage.k8s.io \"a\" already exists",
    );
    let mut empty = mk_attachment("b");
    empty["spec"]["source"] = json!({});
    assert_refused(create(empty).await, 422, "Invalid", "spec.source: Required value");
    let mut wrong = mk_attachment("b");
    wrong["spec"]["attacher"] = 5.into();
    let why = "spec.attacher must be a string, but is 5";
    assert_refused(create(wrong).await, 400, "BadRequest", why);
    let other = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n" } });
    let why = "Node of v1 is not VolumeAttachment of storage.k8s.io/v1";
    assert_refused(create(other).await, 400, "BadRequest", why);
    assert_refused(
        create(json!([])).await,
        400,
        "BadRequest",
        "it must be an object, but is an array",
    );
    let missing = call(&server, Method::GET, &format!("{ATTACHMENTS}/z"), &Value::Null).await;
    assert_fails(
        missing,
        404,
        "NotFound",
        "volumeattachments.storage.k8s.io \"z\" not found",
    );
    let unknown = call(&server, Method::GET, "/api/v1/widgets", &Value::Null).await;
    assert_fails(
        unknown,
        404,
        "NotFound",
        "the server could not find the requested resource",
    );
    let unserved = call(&server, Method::GET, "/apis/example.com/v1/widgets", &Value::Null).await;
    assert_eq!(unserved, (404, Value::String("404 page not found\n".into())));
    let claims = "/api/v1/namespaces/nope/persistentvolumeclaims";
    let in_missing = call(
        &server,
        Method::POST,
        claims,
        &json!({ "metadata": { "name": "c" } }),
    )
    .await;
    assert_fails(in_missing, 404, "NotFound", "namespaces \"nope\" not found");
}

#[tokio::test(start_paused = true)]
async fn refuses_json_patches_that_do_not_parse() {
    let server = mk_server(1);
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    for (name, body, why) in [
        ("missing", "{", "the patch is not JSON"),
        ("a", "{}", "is not a JSON patch"),
        ("a", "[1]", "is not a JSON patch"),
        ("a", r#"[{"op": 1}]"#, "is not a JSON patch"),
    ] {
        let json_patch = "application/json-patch+json";
        let path = format!("{ATTACHMENTS}/{name}");
        let response = send(&server, Method::PATCH, &path, json_patch, body.into()).await;
        assert_refused(response, 400, "BadRequest", why);
    }
    for (operation, expected) in [
        (json!({}), 422),
        (json!({ "op": "remove", "path": "/metadata/labels/a" }), 422),
        (
            json!({ "op": "replace", "path": "/metadata/labels/a", "value": "b" }),
            422,
        ),
        (
            json!({ "op": "replace", "path": "/metadata/labels", "value": { "a": "b" } }),
            200,
        ),
    ] {
        let path = format!("{ATTACHMENTS}/a");
        let (code, _) = patch(&server, &path, "json", &json!([operation])).await;
        assert_eq!(code, expected, "{operation}");
    }
}

#[tokio::test(start_paused = true)]
async fn refuses_a_patch_that_removes_the_version() {
    let server = mk_server(1);
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    let path = format!("{ATTACHMENTS}/a");
    let response = patch(&server, &path, "merge", &json!({"apiVersion": null})).await;
    assert_refused(
        response,
        422,
        "Invalid",
        "is not VolumeAttachment of storage.k8s.io/v1",
    );
}

/// kube-apiserver decodes the result of a strategic merge patch as the type of the object.
#[tokio::test(start_paused = true)]
async fn kind_in_a_strategic_merge_patch_is_ignored() {
    let server = mk_server(1);
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    let path = format!("{ATTACHMENTS}/a");
    let document = json!({ "kind": "Pod", "metadata": { "labels": { "a": "b" } } });
    for (kind, expected) in [("merge", 422), ("strategic-merge", 200)] {
        let (code, body) = patch(&server, &path, kind, &document).await;
        assert_eq!(code, expected, "{kind}: {body}");
    }
}

#[tokio::test(start_paused = true)]
async fn checks_in_the_order_of_kube_apiserver() {
    let server = mk_server(1);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({"metadata": {"name": "a", "resourceVersion": "x"}});
    let homeless = format!("{}/a", leases.replace("default", "nope"));
    let response = call(&server, Method::PUT, &homeless, &lease).await;
    assert_fails(response, 404, "NotFound", "namespaces \"nope\" not found");
    let (code, _) = call(&server, Method::POST, leases, &json!({"metadata": {"name": "a"}})).await;
    assert_eq!(code, 201);
    let wrong = json!({
        "metadata": {"deletionGracePeriodSeconds": "5", "resourceVersion": 7},
        "spec": {"renewTime": "now"},
    });
    let response = patch(&server, &format!("{leases}/a"), "strategic-merge", &wrong).await;
    assert_refused(
        response,
        422,
        "Invalid",
        "metadata.deletionGracePeriodSeconds must be a number",
    );
    let response = patch(&server, &format!("{leases}/a"), "merge", &json!("text")).await;
    assert_refused(response, 400, "BadRequest", "the patch must be an object");
}

#[tokio::test(start_paused = true)]
async fn returns_conflict_if_the_resource_version_is_stale() {
    let server = mk_server(1);
    let (_, first) = call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    let path = format!("{ATTACHMENTS}/a");
    let labeled = json!({ "metadata": { "labels": { "a": "b" } } });
    let (code, second) = patch(&server, &path, "merge", &labeled).await;
    assert_eq!(code, 200);
    assert_ne!(
        first["metadata"]["resourceVersion"],
        second["metadata"]["resourceVersion"]
    );
    assert_fails(
        call(&server, Method::PUT, &path, &first).await,
        409,
        "Conflict",
        "Operation cannot be fulfilled on volumeattachments.storage.k8s.io \"a\": the object has been modified; \
         please apply your changes to the latest version and try again",
    );
    assert_eq!(
        call(&server, Method::PUT, &path, &second).await,
        (200, second.clone())
    );
    let revision = second["metadata"]["resourceVersion"].as_str().unwrap();
    for version in [format!("+{revision}"), "99999999999999999999".to_owned()] {
        let mut third = second.clone();
        third["metadata"]["resourceVersion"] = version.as_str().into();
        let (code, _) = call(&server, Method::PUT, &path, &third).await;
        assert_eq!(code, 500, "{version}");
    }
    let other = json!({ "metadata": { "uid": "another" } });
    let (code, response) = patch(&server, &path, "merge", &other).await;
    assert_eq!(code, 422);
    let cause = &response["details"]["causes"][0];
    assert_eq!(cause["field"], "metadata.uid");
    assert_eq!(cause["message"], "Invalid value: \"another\": field is immutable");
}

#[tokio::test(start_paused = true)]
async fn keeps_an_object_until_its_last_finalizer_is_removed() {
    let server = mk_server(1);
    let path = format!("{ATTACHMENTS}/a");
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    let guarded = json!({ "metadata": { "finalizers": ["a.example.com/b"] } });
    patch(&server, &path, "strategic-merge", &guarded).await;
    let (code, deleting) = call(&server, Method::DELETE, &path, &Value::Null).await;
    assert_eq!(code, 200);
    assert_eq!(deleting["metadata"]["deletionTimestamp"], "2026-01-01T00:00:00Z");
    assert_eq!(deleting["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_fails(
        call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await,
        409,
        "AlreadyExists",
        "object is being deleted: volumeattachments.storage.k8s.io \"a\" already exists",
    );
    let more = json!({ "metadata": { "finalizers": ["a.example.com/c"] } });
    let (code, _) = patch(&server, &path, "strategic-merge", &more).await;
    assert_eq!(code, 422, "a deleting object accepts no new finalizers");
    let status = json!({ "status": { "attached": true } });
    assert_eq!(
        patch(&server, &format!("{path}/status"), "merge", &status)
            .await
            .0,
        200
    );
    let (_, before) = call(&server, Method::GET, &path, &Value::Null).await;
    let released = json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": ["a.example.com/b"] } });
    let (code, last) = patch(&server, &path, "strategic-merge", &released).await;
    assert_eq!(code, 200);
    assert_eq!(
        last["metadata"]["resourceVersion"],
        before["metadata"]["resourceVersion"]
    );
    assert_eq!(call(&server, Method::GET, &path, &Value::Null).await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn status_and_main_resource_are_updated_separately() {
    let server = mk_server(1);
    let path = format!("{ATTACHMENTS}/a");
    let (_, created) = call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    let both = json!({ "metadata": { "labels": { "a": "b" } }, "status": { "attached": true } });
    let (_, status) = patch(&server, &format!("{path}/status"), "merge", &both).await;
    assert_eq!(status["status"]["attached"], true);
    assert_eq!(status["metadata"]["labels"], Value::Null);
    let unattached = json!({ "status": { "attached": false } });
    let (code, main) = patch(&server, &path, "merge", &unattached).await;
    assert_eq!(
        (code, &main),
        (200, &status),
        "a patch without changes does not write"
    );
    assert_eq!(created["status"], json!({ "attached": false }));
}

#[tokio::test(start_paused = true)]
async fn lists_in_pages_of_one_version() {
    let server = mk_server(1);
    for name in ["a", "b", "c"] {
        call(&server, Method::POST, ATTACHMENTS, &mk_attachment(name)).await;
    }
    let (_, page) = call(
        &server,
        Method::GET,
        &format!("{ATTACHMENTS}?limit=2"),
        &Value::Null,
    )
    .await;
    assert_eq!(page["items"].as_array().unwrap().len(), 2);
    assert_eq!(page["metadata"]["remainingItemCount"], 1);
    let token = page["metadata"]["continue"].as_str().unwrap();
    call(&server, Method::DELETE, &format!("{ATTACHMENTS}/c"), &Value::Null).await;
    let path = format!("{ATTACHMENTS}?limit=2&continue={token}");
    let (_, rest) = call(&server, Method::GET, &path, &Value::Null).await;
    assert_eq!(
        rest["items"][0]["metadata"]["name"], "c",
        "a page shows the version of the first one"
    );
    assert_eq!(
        rest["metadata"]["resourceVersion"],
        page["metadata"]["resourceVersion"]
    );
    server.compact();
    let (code, expired) = call(&server, Method::GET, &path, &Value::Null).await;
    assert_eq!((code, &expired["reason"]), (410, &json!("Expired")));
    let token = expired["metadata"]["continue"].as_str().unwrap();
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("d")).await;
    let path = format!("{ATTACHMENTS}?limit=2&continue={token}");
    let (_, rest) = call(&server, Method::GET, &path, &Value::Null).await;
    let names = rest["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["metadata"]["name"]);
    assert_eq!(names.collect::<Vec<_>>(), ["d"], "the current rest");
    let path = format!("{ATTACHMENTS}?limit=99999999999999999999");
    let response = call(&server, Method::GET, &path, &Value::Null).await;
    assert_refused(response, 400, "BadRequest", "is not a number");
}

#[tokio::test(start_paused = true)]
async fn deletes_pods_gracefully() {
    let server = mk_server(1);
    let pods = "/api/v1/namespaces/default/pods";
    let container = json!({ "name": "c", "image": "busybox" });
    let pod = json!({ "metadata": { "name": "p" }, "spec": { "nodeName": "n", "containers": [container] } });
    let (code, created) = call(&server, Method::POST, pods, &pod).await;
    assert_eq!(code, 201, "{created}");
    let path = format!("{pods}/p");
    let (_, deleting) = call(&server, Method::DELETE, &path, &Value::Null).await;
    assert_eq!(deleting["metadata"]["deletionTimestamp"], "2026-01-01T00:00:30Z");
    let shorter = format!("{path}?gracePeriodSeconds=10");
    let (_, deleting) = call(&server, Method::DELETE, &shorter, &Value::Null).await;
    assert_eq!(deleting["metadata"]["deletionTimestamp"], "2026-01-01T00:00:10Z");
    let now = format!("{path}?gracePeriodSeconds=0");
    assert_eq!(call(&server, Method::DELETE, &now, &Value::Null).await.0, 200);
    assert_eq!(call(&server, Method::GET, &path, &Value::Null).await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn decodes_objects_and_options_in_protobuf() {
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    const NAMESPACES: &str = "/api/v1/namespaces";
    let server = mk_server(1);
    // The envelope: apiVersion and kind, then the object, of which metadata.name is given.
    let body = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12\x05\x0a\x03\x0a\x01a".to_vec();
    let (code, created) = send(&server, Method::POST, NAMESPACES, PROTOBUF, body).await;
    assert_eq!((code, &created["metadata"]["name"]), (201, &json!("a")));
    // A precondition: the UID `u`.
    let options = b"k8s\0\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x05\x12\x03\x0a\x01u".to_vec();
    let path = format!("{NAMESPACES}/a");
    let (code, _) = send(&server, Method::DELETE, &path, PROTOBUF, options).await;
    assert_eq!(code, 409);
    let (code, response) = send(&server, Method::POST, NAMESPACES, PROTOBUF, b"{}".to_vec()).await;
    assert_eq!(code, 400);
    let why = "does not appear to be a protobuf message";
    assert!(response["message"].as_str().unwrap().contains(why), "{response}");
}

#[tokio::test(start_paused = true)]
async fn returns_501_for_unimplemented_features() {
    let server = mk_server(1);
    let path = format!("{ATTACHMENTS}/a?fieldManager=m");
    let (code, response) = send(
        &server,
        Method::PATCH,
        &path,
        "application/apply-patch+yaml",
        b"{}".to_vec(),
    )
    .await;
    assert_eq!(code, 501);
    assert_eq!(
        response["message"],
        "server-side apply is not implemented by the embedded API server"
    );
    let (code, _) = send(&server, Method::POST, ATTACHMENTS, "application/yaml", Vec::new()).await;
    assert_eq!(code, 501);
    for path in [
        "/api/v1/namespaces/default/pods/p/log",
        "/api/v1/namespaces/default/pods/p/ephemeralcontainers",
        "/api/v1/namespaces/default/configmaps",
        "/apis/apps/v1/deployments",
        "/apis/storage.k8s.io/v1/volumeattributesclasses/gold",
        "/api/v1/namespaces/default/resourcequotas/q",
        "/api/v1/limitranges?watch=true",
        "/api/v1/namespaces/default/pods/p/proxy/metrics",
        "/api/v1/nodes/a/proxy",
        "/api/v1/nodes/a/proxy/logs/kubelet.log",
        "/livez/ping",
        "/readyz/etcd",
        "/openid/v1/jwks",
        "/.well-known/openid-configuration",
    ] {
        let (code, response) = call(&server, Method::GET, path, &Value::Null).await;
        assert_eq!(
            (code, &response["reason"]),
            (501, &json!("NotImplemented")),
            "{path}"
        );
    }
}

/// The garbage collector only deletes dependents in the background.
#[tokio::test(start_paused = true)]
async fn returns_501_for_deletions_that_need_the_garbage_collector() {
    let server = mk_server(1);
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    for policy in ["Foreground", "Orphan"] {
        let path = format!("{ATTACHMENTS}/a?propagationPolicy={policy}");
        let (code, _) = call(&server, Method::DELETE, &path, &Value::Null).await;
        assert_eq!(code, 501, "{policy}");
    }
    let path = format!("{ATTACHMENTS}/a?propagationPolicy=Background");
    assert_eq!(call(&server, Method::DELETE, &path, &Value::Null).await.0, 200);
}

/// `kubectl describe namespace` reads both lists.
#[tokio::test(start_paused = true)]
async fn lists_of_quotas_and_limit_ranges_are_empty() {
    let server = mk_server(1);
    for (plural, kind) in [
        ("resourcequotas", "ResourceQuotaList"),
        ("limitranges", "LimitRangeList"),
    ] {
        for path in [
            format!("/api/v1/namespaces/default/{plural}?limit=500"),
            format!("/api/v1/{plural}"),
        ] {
            let (code, list) = call(&server, Method::GET, &path, &Value::Null).await;
            assert_eq!(
                (code, &list["kind"], &list["items"]),
                (200, &json!(kind), &json!([]))
            );
            let created = call(&server, Method::POST, &path, &json!({})).await;
            let message = format!("{plural} is not implemented by the embedded API server");
            assert_fails(created, 501, "NotImplemented", &message);
        }
    }
}

/// kubectl reads the second version of OpenAPI for kinds without a schema in the third, such as List.
#[tokio::test(start_paused = true)]
async fn openapi_lists_patch_types_and_has_an_empty_second_version() {
    let server = mk_server(1);
    let (code, document) = call(&server, Method::GET, "/openapi/v2", &Value::Null).await;
    assert_eq!((code, &document["swagger"]), (200, &json!("2.0")));
    let media = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let request = Request::get("/openapi/v2").header("accept", media);
    let (code, document) = execute(&server, request.body(Full::default()).unwrap()).await;
    assert_eq!((code, document), (200, json!("\n\u{3}2.0")));

    let (_, document) = call(&server, Method::GET, "/openapi/v3/api/v1", &Value::Null).await;
    let content = document.pointer("/paths/~1api~1v1~1nodes~1{name}/patch/requestBody/content");
    let media: Vec<&String> = content.unwrap().as_object().unwrap().keys().collect();
    assert_eq!(
        media,
        [
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn same_seed_generates_the_same_names_and_uids() {
    let mut responses = Vec::new();
    for seed in [7, 7, 8] {
        let server = mk_server(seed);
        let mut generated = mk_attachment("");
        generated["metadata"] = json!({ "generateName": "csi-" });
        responses.push(call(&server, Method::POST, ATTACHMENTS, &generated).await.1);
    }
    assert_eq!(responses[0], responses[1]);
    assert_ne!(responses[0]["metadata"]["uid"], responses[2]["metadata"]["uid"]);
    assert_ne!(responses[0]["metadata"]["name"], responses[2]["metadata"]["name"]);
}

#[tokio::test(start_paused = true)]
async fn refuses_new_objects_with_a_numeric_resource_version() {
    let server = mk_server(1);
    for (name, version, code) in [("a", "0", 201), ("b", "x", 201), ("c", "7", 500)] {
        let mut attachment = mk_attachment(name);
        attachment["metadata"]["resourceVersion"] = version.into();
        let response = call(&server, Method::POST, ATTACHMENTS, &attachment).await;
        assert_eq!(response.0, code, "{version}: {}", response.1);
    }
}

#[tokio::test(start_paused = true)]
async fn empty_table_has_null_rows_if_kind_has_no_printer() {
    let server = mk_server(1);
    let capacities = "/apis/storage.k8s.io/v1/csistoragecapacities";
    assert_eq!(table(&server, capacities).await["rows"], Value::Null);
    assert_eq!(table(&server, ATTACHMENTS).await["rows"], json!([]));
}
