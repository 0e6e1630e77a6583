//! Authentication to the API server by exec plugin.

use super::*;

/// An exec plugin that counts its runs in `dir` and prints the file `output` of `dir`.
fn plugin(dir: &Path) -> Value {
    let script =
        "echo run >> \"$0/runs\"; printf %s \"$KUBERNETES_EXEC_INFO\" > \"$0/info\"; cat \"$0/output\"";
    json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/bin/sh",
        "args": ["-c", script, dir],
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": true,
    }})
}

fn set_output(dir: &Path, status: &Value) {
    let output = json!({
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "status": status,
    });
    fs::write(dir.join("output"), output.to_string()).unwrap();
}

fn runs(dir: &Path) -> usize {
    fs::read_to_string(dir.join("runs")).map_or(0, |text| text.lines().count())
}

#[tokio::test]
async fn clients_share_the_token_of_a_plugin() {
    let server = ApiServer::localhost().await;
    let dir = TempDir::new().unwrap();
    set_output(
        dir.path(),
        &json!({ "token": "one", "expirationTimestamp": "2999-01-01T00:00:00Z" }),
    );
    let access = mk_access(server.cluster(), plugin(dir.path())).await.unwrap();
    let before = runs(dir.path());
    let (watches, requests) = (
        access.connect(None, Requests::default()),
        access.connect(None, Requests::default()),
    );
    futures::future::try_join(send_request(&watches), send_request(&requests))
        .await
        .unwrap();
    send_request(&requests).await.unwrap();
    assert_eq!(runs(dir.path()), before);
    let tokens: Vec<_> = server.seen().into_iter().map(|seen| seen.authorization).collect();
    assert_eq!(tokens, vec![Some("Bearer one".to_owned()); 3]);
    let info: Value = serde_json::from_slice(&fs::read(dir.path().join("info")).unwrap()).unwrap();
    assert_eq!(info["apiVersion"], "client.authentication.k8s.io/v1");
    assert_eq!(
        info["spec"]["cluster"]["server"],
        format!("https://{}", server.address)
    );
}

#[tokio::test]
async fn plugin_runs_again_when_its_token_has_expired() {
    let server = ApiServer::localhost().await;
    let dir = TempDir::new().unwrap();
    set_output(
        dir.path(),
        &json!({ "token": "one", "expirationTimestamp": "2001-01-01T00:00:00Z" }),
    );
    let access = mk_access(server.cluster(), plugin(dir.path())).await.unwrap();
    let client = access.connect(None, Requests::default());
    set_output(
        dir.path(),
        &json!({ "token": "two", "expirationTimestamp": "2999-01-01T00:00:00Z" }),
    );
    send_request(&client).await.unwrap();
    let before = runs(dir.path());
    send_request(&client).await.unwrap();
    assert_eq!(runs(dir.path()), before);
    assert_eq!(server.seen(), ["two", "two"].map(bearer));
}

#[tokio::test]
async fn uses_the_client_certificate_of_a_plugin() {
    let server = ApiServer::localhost().await;
    let dir = TempDir::new().unwrap();
    let pair = mk_client_pair(&server.authority);
    set_output(
        dir.path(),
        &json!({ "clientCertificateData": pair.certificate, "clientKeyData": pair.key }),
    );
    let seen = server.credentials_of(plugin(dir.path())).await;
    assert_eq!(seen.certificate, Some(pair.der()));
}

#[tokio::test]
async fn plugin_does_not_run_if_the_user_has_a_token() {
    let server = ApiServer::localhost().await;
    let dir = TempDir::new().unwrap();
    let mut user = plugin(dir.path());
    user["token"] = json!("t");
    assert_eq!(server.credentials_of(user).await, bearer("t"));
    assert_eq!(runs(dir.path()), 0);
}

#[tokio::test]
async fn failing_plugin_is_named_and_its_output_is_not_quoted() {
    let server = ApiServer::localhost().await;
    let dir = TempDir::new().unwrap();
    let user = |script: &str| {
        let mut user = plugin(dir.path());
        user["exec"]["args"] = json!(["-c", script, dir.path()]);
        user
    };
    let expired = "echo '{\"status\":{\"token\":\"one\",\"expirationTimestamp\":\"2001-01-01T00:00:00Z\"}}'";
    for (script, named) in [
        ("echo hunter2; exit 3", "failed with exit status: 3"),
        ("echo '{status: hunter2'", "did not print an ExecCredential"),
        (
            "echo '{\"status\":{\"token\":\"hunter2\",\"expirationTimestamp\":\"soon\"}}'",
            "is not an RFC 3339 time",
        ),
    ] {
        // At the start, and after the first token has expired.
        let error = mk_access(server.cluster(), user(script)).await.err().unwrap();
        let later = format!("if test -e \"$0/again\"; then {script}; else {expired}; fi");
        let access = mk_access(server.cluster(), user(&later)).await.unwrap();
        fs::write(dir.path().join("again"), "").unwrap();
        let client = access.connect(None, Requests::default());
        let texts = [
            crate::report::chain(&error),
            crate::report::chain(&send_request(&client).await.unwrap_err()),
        ];
        fs::remove_file(dir.path().join("again")).unwrap();
        for text in texts {
            assert!(!text.contains("hunter2"), "{text:?} must not quote the plugin");
            assert!(text.contains(named), "{text:?} must contain {named:?}");
        }
    }
    assert_eq!(server.seen(), []);
}
