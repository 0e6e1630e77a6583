//! JSON patches.

use http::Method;
use serde_json::{Value, json};

use super::{ATTACHMENTS, assert_fails, call, mk_attachment, mk_server, patch};

#[tokio::test(start_paused = true)]
async fn json_patches_accept_negative_indices() {
    let server = mk_server(1);
    let mut attachment = mk_attachment("a");
    attachment["metadata"]["finalizers"] = json!(["example.com/a", "example.com/b"]);
    call(&server, Method::POST, ATTACHMENTS, &attachment).await;
    let path = format!("{ATTACHMENTS}/a");
    let operations = json!([
        { "op": "test", "path": "/metadata/finalizers/-1", "value": "example.com/b" },
        { "op": "remove", "path": "/metadata/finalizers/-2" },
        { "op": "add", "path": "/metadata/finalizers/-1", "value": "example.com/c" },
    ]);
    let (code, patched) = patch(&server, &path, "json", &operations).await;
    assert_eq!(code, 200, "{patched}");
    assert_eq!(
        patched["metadata"]["finalizers"],
        json!(["example.com/b", "example.com/c"])
    );
}

#[tokio::test(start_paused = true)]
async fn json_patches_do_not_replace_the_whole_document() {
    let server = mk_server(1);
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    let path = format!("{ATTACHMENTS}/a");
    for operation in [
        json!({ "op": "add", "path": "", "value": mk_attachment("a") }),
        json!({ "op": "remove", "path": "" }),
        json!({ "op": "copy", "from": "/metadata", "path": "" }),
        json!({ "op": "move", "from": "", "path": "/metadata/labels" }),
        json!(null),
    ] {
        let (code, response) = patch(&server, &path, "json", &json!([operation])).await;
        assert_eq!(
            (code, &response["reason"]),
            (422, &Value::from("Invalid")),
            "{operation}"
        );
    }
    assert_fails(
        patch(&server, &path, "json", &json!([{ "op": "remove", "path": 7 }])).await,
        400,
        "BadRequest",
        "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.path of type string",
    );
    let ignoring = format!("{path}?fieldValidation=Ignore");
    let (code, _) = patch(
        &server,
        &ignoring,
        "json",
        &json!([{ "op": "remove", "path": 7 }]),
    )
    .await;
    assert_eq!(code, 422);
}
