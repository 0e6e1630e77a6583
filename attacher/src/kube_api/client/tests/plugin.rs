//! Who we are to the API server, from an exec plugin.

use super::*;

/// An exec plugin that counts its runs in `dir` and prints what `dir` has for it.
fn plugin(dir: &Path) -> Value {
    let script =
        "echo run >> \"$0/runs\"; printf %s \"$KUBERNETES_EXEC_INFO\" > \"$0/info\"; cat \"$0/answer\"";
    json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/bin/sh",
        "args": ["-c", script, dir],
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": true,
    }})
}

fn answer(dir: &Path, status: &Value) {
    let answer = json!({
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "status": status,
    });
    fs::write(dir.join("answer"), answer.to_string()).unwrap();
}

fn runs(dir: &Path) -> usize {
    fs::read_to_string(dir.join("runs")).map_or(0, |text| text.lines().count())
}

#[tokio::test]
async fn a_plugin_is_asked_once_for_as_long_as_its_answer_holds() {
    let server = ApiServer::localhost().await;
    let dir = TempDir::new().unwrap();
    answer(
        dir.path(),
        &json!({ "token": "one", "expirationTimestamp": "2999-01-01T00:00:00Z" }),
    );
    let access = mk_access(server.cluster(), plugin(dir.path())).await.unwrap();
    assert_eq!(runs(dir.path()), 0, "it is not needed yet");
    let (watches, requests) = (
        access.connect(None, Requests::default()),
        access.connect(None, Requests::default()),
    );
    futures::future::try_join(ask(&watches), ask(&requests))
        .await
        .unwrap();
    ask(&requests).await.unwrap();
    assert_eq!(runs(dir.path()), 1);
    let tokens: Vec<_> = server.seen().into_iter().map(|seen| seen.authorization).collect();
    assert_eq!(tokens, vec![Some("Bearer one".to_owned()); 3]);
    let info: Value = serde_json::from_slice(&fs::read(dir.path().join("info")).unwrap()).unwrap();
    assert_eq!(info["apiVersion"], "client.authentication.k8s.io/v1");
    assert_eq!(
        info["spec"]["cluster"]["server"],
        format!("https://{}", server.address)
    );
    assert_eq!(
        info["spec"]["cluster"]["certificate-authority-data"],
        STANDARD.encode(server.authority.pem())
    );
}

#[tokio::test]
async fn who_has_logged_in_is_not_asked_again() {
    let server = ApiServer::localhost().await;
    let dir = TempDir::new().unwrap();
    let access = mk_access(server.cluster(), plugin(dir.path())).await.unwrap();
    let error = access.log_in().await.unwrap_err();
    let text = crate::report::chain(&error);
    assert!(
        text.contains("\"/bin/sh\" failed"),
        "there is no answer yet: {text:?}"
    );
    answer(dir.path(), &json!({ "token": "one" }));
    let access = mk_access(server.cluster(), plugin(dir.path())).await.unwrap();
    access.log_in().await.unwrap();
    ask(&access.connect(None, Requests::default())).await.unwrap();
    assert_eq!(server.seen(), [bearer("one")]);
    assert_eq!(runs(dir.path()), 2);
}

#[tokio::test]
async fn a_plugin_is_asked_again_when_its_answer_has_expired() {
    let server = ApiServer::localhost().await;
    let dir = TempDir::new().unwrap();
    answer(
        dir.path(),
        &json!({ "token": "one", "expirationTimestamp": "2001-01-01T00:00:00Z" }),
    );
    let access = mk_access(server.cluster(), plugin(dir.path())).await.unwrap();
    let client = access.connect(None, Requests::default());
    ask(&client).await.unwrap();
    answer(dir.path(), &json!({ "token": "two" }));
    ask(&client).await.unwrap();
    ask(&client).await.unwrap();
    assert_eq!(runs(dir.path()), 2, "what names no end has none");
    assert_eq!(server.seen(), ["one", "two", "two"].map(bearer));
}

#[tokio::test]
async fn a_new_certificate_goes_over_a_new_connection() {
    let server = ApiServer::localhost().await;
    let dir = TempDir::new().unwrap();
    let pairs = [(); 2].map(|()| mk_client_pair(&server.authority));
    let status = |pair: &Pair, until: &str| {
        json!({
            "clientCertificateData": pair.certificate,
            "clientKeyData": pair.key,
            "expirationTimestamp": until,
        })
    };
    answer(dir.path(), &status(&pairs[0], "2001-01-01T00:00:00Z"));
    let access = mk_access(server.cluster(), plugin(dir.path())).await.unwrap();
    let client = access.connect(None, Requests::default());
    ask(&client).await.unwrap();
    answer(dir.path(), &status(&pairs[1], "2999-01-01T00:00:00Z"));
    ask(&client).await.unwrap();
    ask(&client).await.unwrap();
    let seen = server.seen();
    let certificates: Vec<_> = seen.iter().map(|seen| seen.certificate.clone()).collect();
    let [one, two] = pairs.map(|pair| Some(pair.der()));
    assert_eq!(certificates, [one, two.clone(), two]);
    assert_ne!(seen[0].connection, seen[1].connection);
    assert_eq!(seen[1].connection, seen[2].connection);
}

#[tokio::test]
async fn a_plugin_is_not_asked_when_the_user_has_credentials() {
    let server = ApiServer::localhost().await;
    let dir = TempDir::new().unwrap();
    let pair = mk_client_pair(&server.authority);
    for more in [
        json!({ "token": "t" }),
        json!({ "username": "u" }),
        json!({
            "client-certificate-data": STANDARD.encode(&pair.certificate),
            "client-key-data": STANDARD.encode(&pair.key),
        }),
    ] {
        let mut user = plugin(dir.path());
        for (field, value) in more.as_object().unwrap() {
            user[field] = value.clone();
        }
        server.asked_by(user).await;
    }
    assert_eq!(runs(dir.path()), 0);
}

#[tokio::test]
async fn a_plugin_that_fails_is_named_and_left_alone_for_a_moment() {
    let server = ApiServer::localhost().await;
    let dir = TempDir::new().unwrap();
    let user = |script: &str| {
        let mut user = plugin(dir.path());
        user["exec"]["args"] = json!(["-c", format!("echo run >> \"$0/runs\"; {script}"), dir.path()]);
        user
    };
    for (user, named) in [
        (
            user("echo hunter2; exit 3"),
            "\"/bin/sh\" failed with exit status: 3",
        ),
        (
            user("echo hunter2"),
            "did not print an ExecCredential with a status",
        ),
        (
            user("echo '{status: {token: }}'"),
            "with a token or a client certificate",
        ),
        (
            user("echo '{\"status\":{\"token\":\"hunter2\",\"expirationTimestamp\":\"soon\"}}'"),
            "with an RFC 3339 time in expirationTimestamp",
        ),
        (
            user("echo '{\"status\":{\"clientKeyData\":\"hunter2\"}}'"),
            "with both clientCertificateData and clientKeyData",
        ),
        (
            user("echo '{\"status\":{\"clientCertificateData\":\"hunter2\",\"clientKeyData\":\"hunter2\"}}'"),
            "client certificate that is not usable",
        ),
        (
            json!({ "exec": { "command": "/nowhere/plugin", "installHint": "get it" } }),
            "\"/nowhere/plugin\" cannot be run: get it",
        ),
    ] {
        let before = runs(dir.path());
        let access = mk_access(server.cluster(), user).await.unwrap();
        let client = access.connect(None, Requests::default());
        for _ in 0..3 {
            let text = crate::report::chain(&ask(&client).await.unwrap_err());
            assert!(text.contains(named), "{text:?} must contain {named:?}");
            assert!(!text.contains("hunter2"), "{text:?} must not quote the plugin");
        }
        assert!(runs(dir.path()) - before <= 1);
    }
    assert_eq!(server.seen(), []);
}
