use futures::FutureExt;
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};

use super::*;

fn mk_credentials(user: Value) -> Credentials {
    let user: AuthInfo = serde_json::from_value(user).unwrap();
    Credentials::new(&user).unwrap()
}

fn mk_file(token: &str) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), token).unwrap();
    file
}

async fn authorization_of(credentials: &Credentials) -> String {
    let pass = credentials.pass().await.unwrap();
    let value = pass.authorization.unwrap();
    assert!(value.is_sensitive());
    value.to_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_token_file_is_followed() {
    let file = mk_file("one\n");
    let credentials = mk_credentials(json!({ "tokenFile": file.path() }));
    fs::write(file.path(), "two").unwrap();
    tokio::time::advance(REREAD - Duration::from_millis(1)).await;
    assert_eq!(authorization_of(&credentials).await, "Bearer one");
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(authorization_of(&credentials).await, "Bearer two");
    for (content, why) in [("", "it is empty"), ("t\u{7f}", "it is no header")] {
        fs::write(file.path(), content).unwrap();
        tokio::time::advance(REREAD).await;
        assert_eq!(authorization_of(&credentials).await, "Bearer two", "{why}");
    }
    let path = file.path().to_owned();
    file.close().unwrap();
    tokio::time::advance(REREAD).await;
    assert_eq!(authorization_of(&credentials).await, "Bearer two", "it is gone");
    fs::write(&path, "three").unwrap();
    tokio::time::advance(REREAD).await;
    assert_eq!(authorization_of(&credentials).await, "Bearer three");
    fs::remove_file(path).unwrap();
}

#[tokio::test(start_paused = true)]
async fn only_the_newest_token_s_refusal_counts() {
    let file = mk_file("one");
    let credentials = mk_credentials(json!({ "tokenFile": file.path() }));
    let first = credentials.pass().await.unwrap();
    fs::write(file.path(), "two").unwrap();
    credentials.refused(&first).await;
    assert_eq!(authorization_of(&credentials).await, "Bearer two");
    fs::write(file.path(), "three").unwrap();
    credentials.refused(&first).await;
    assert_eq!(authorization_of(&credentials).await, "Bearer two");
}

#[test]
fn credentials_do_not_show() {
    let file = mk_file("hunter2");
    for user in [
        json!({ "token": "hunter2" }),
        json!({ "username": "hunter2", "password": "hunter2" }),
        json!({ "tokenFile": file.path() }),
        json!({ "exec": { "command": "c", "args": ["hunter2"], "env": [{ "name": "n", "value": "hunter2" }] } }),
    ] {
        let shown = format!("{:?}", mk_credentials(user));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

/// A plugin that takes as long as nobody has made the file `go`, and says how often it was run.
fn mk_slow_plugin(dir: &TempDir) -> Credentials {
    let script = "echo run >> \"$0/runs\"; until [ -e \"$0/go\" ]; do sleep 0.01; done; \
                  printf '{\"status\":{\"token\":\"%s\"}}' \"$(wc -l < \"$0/runs\" | tr -d ' ')\"";
    mk_credentials(json!({ "exec": { "command": "/bin/sh", "args": ["-c", script, dir.path()] } }))
}

#[tokio::test]
async fn a_plugin_s_run_outlives_who_asked_for_it() {
    let dir = TempDir::new().unwrap();
    let credentials = mk_slow_plugin(&dir);
    for _ in 0..3 {
        assert!(credentials.pass().now_or_never().is_none(), "it has not answered");
    }
    fs::write(dir.path().join("go"), "").unwrap();
    assert_eq!(authorization_of(&credentials).await, "Bearer 1");
}

#[tokio::test]
async fn a_plugin_whose_answer_is_refused_is_asked_again() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("go"), "").unwrap();
    let credentials = mk_slow_plugin(&dir);
    let first = credentials.pass().await.unwrap();
    credentials.refused(&first).await;
    assert_eq!(
        authorization_of(&credentials).await,
        "Bearer 1",
        "it has only just said so"
    );
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    credentials.refused(&Pass::default()).await;
    assert_eq!(
        authorization_of(&credentials).await,
        "Bearer 1",
        "another one was refused"
    );
    credentials.refused(&first).await;
    assert_eq!(authorization_of(&credentials).await, "Bearer 2");
}
