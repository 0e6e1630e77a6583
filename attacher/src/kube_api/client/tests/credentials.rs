//! Authentication to the API server by kubeconfig.

use super::*;
use crate::manager::config::of_service_account;

#[tokio::test]
async fn sends_each_kind_of_kubeconfig_credentials() {
    let server = ApiServer::localhost().await;
    let dir = TempDir::new().unwrap();
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let pair = mk_client_pair(&server.authority);
    let known = Seen {
        certificate: Some(pair.der()),
        ..Seen::default()
    };
    let basic = Seen {
        authorization: Some("Basic dTpw".to_owned()),
        ..Seen::default()
    };
    let impersonating = Seen {
        impersonated: Some("other".to_owned()),
        ..bearer("t")
    };
    let (certificate, key) = (file("crt", &pair.certificate), file("key", &pair.key));
    let token_file = file("token", "from-file");
    for (case, user, expected) in [
        ("anonymous", json!({}), Seen::default()),
        (
            "empty values",
            json!({ "token": "", "tokenFile": "", "username": "" }),
            Seen::default(),
        ),
        ("token", json!({ "token": "t" }), bearer("t")),
        (
            "tokenFile",
            json!({ "tokenFile": token_file }),
            bearer("from-file"),
        ),
        (
            "tokenFile with token",
            json!({ "token": "t", "tokenFile": token_file }),
            bearer("from-file"),
        ),
        (
            "token with a missing tokenFile",
            json!({ "token": "t", "tokenFile": "/nowhere/token" }),
            bearer("t"),
        ),
        ("basic", json!({ "username": "u", "password": "p" }), basic),
        (
            "certificate in files",
            json!({ "client-certificate": certificate, "client-key": key }),
            known.clone(),
        ),
        (
            "certificate as data",
            json!({
                "client-certificate-data": STANDARD.encode(&pair.certificate),
                "client-key-data": STANDARD.encode(&pair.key),
            }),
            known.clone(),
        ),
        (
            "id token of an old login",
            json!({ "auth-provider": { "name": "oidc", "config": { "id-token": "i" } } }),
            bearer("i"),
        ),
        (
            "impersonation",
            json!({ "token": "t", "as": "other" }),
            impersonating,
        ),
    ] {
        let seen = Seen {
            connection: 0,
            ..server.credentials_of(user).await
        };
        assert_eq!(seen, expected, "{case}");
    }
}

#[tokio::test]
async fn errors_name_the_field_and_quote_no_credential() {
    let cluster = || json!({ "server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true });
    let pair = mk_client_pair(&mk_authority());
    let other = mk_client_pair(&mk_authority());
    let encoded = |text: &str| STANDARD.encode(text);
    for (user, named) in [
        (json!({ "auth-provider": { "name": "azure" } }), "azure"),
        (json!({ "auth-provider": { "name": "oidc" } }), "oidc"),
        (json!({ "tokenFile": "/nowhere/token" }), "/nowhere/token"),
        (json!({ "exec": {} }), "command must be specified"),
        (json!({ "client-certificate": "/nowhere/crt" }), "/nowhere/crt"),
        (
            json!({
                "client-certificate-data": encoded(&pair.certificate),
                "client-key-data": encoded(&other.key),
            }),
            "TLS settings",
        ),
    ] {
        let error = mk_access(cluster(), user.clone()).await.err();
        let text = error.map_or_else(String::new, |error| crate::report::chain(&error));
        assert!(text.contains(named), "{user}: {text:?} must contain {named:?}");
    }
    let mut named = cluster();
    named["tls-server-name"] = json!("not a name");
    let error = mk_access(named, json!({})).await.err().unwrap();
    assert!(crate::report::chain(&error).contains("tls-server-name \"not a name\""));
}

/// In a pod, the kubelet replaces the file.
#[tokio::test]
async fn trusts_the_certificate_authority_of_a_file() {
    let server = ApiServer::localhost().await;
    let authority = tempfile::NamedTempFile::new().unwrap();
    fs::write(authority.path(), server.authority.pem()).unwrap();
    let cluster = json!({
        "server": format!("https://{}", server.address),
        "certificate-authority": authority.path(),
    });
    let access = mk_access(cluster, json!({ "token": "t" })).await.unwrap();
    send_request(&access.connect(None, Requests::default()))
        .await
        .unwrap();
    assert_eq!(server.seen(), [bearer("t")]);
}

#[tokio::test]
async fn service_account_needs_no_namespace_file() {
    let server = ApiServer::localhost().await;
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("ca.crt"), server.authority.pem()).unwrap();
    fs::write(folder.path().join("token"), "t").unwrap();
    let config = of_service_account(folder.path(), "127.0.0.1", server.address.port()).unwrap();
    let access = Access::new(&config).unwrap();
    send_request(&access.connect(None, Requests::default()))
        .await
        .unwrap();
    assert_eq!(server.seen(), [bearer("t")]);
}

#[test]
fn service_account_accepts_an_ipv6_address() {
    let config = of_service_account(Path::new("/nowhere"), "fd00::1", 443).unwrap();
    assert_eq!(config.cluster_url.to_string(), "https://[fd00::1]:443/");
}

/// kube decides by the wall clock when to read the file again, so after a backward jump it does not.
#[tokio::test]
async fn reads_the_token_again_when_the_api_server_refuses_it() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, "old").unwrap();
    let mut config = Config::new(http::Uri::from_static("http://localhost"));
    config.auth_info.token_file = Some(path.display().to_string());
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let server = {
        let seen = seen.clone();
        service_fn(move |request: Request<Fenced<Body>>| {
            let token = request.headers()["authorization"].to_str().unwrap().to_owned();
            let status = if token == "Bearer new" { 200 } else { 401 };
            seen.lock().unwrap().push(token);
            let response = Response::builder()
                .status(status)
                .body(Body::from(b"{}".to_vec()));
            std::future::ready(Ok::<_, Infallible>(response.unwrap()))
        })
    };
    let access = Access::over(&config, move || boxed(server.clone())).unwrap();
    let clients = [(); 2].map(|()| access.connect(None, Requests::default()));
    fs::write(&path, "new").unwrap();
    assert!(send_request(&clients[0]).await.is_err());
    for client in &clients {
        send_request(client).await.unwrap();
    }
    assert_eq!(*seen.lock().unwrap(), ["Bearer old", "Bearer new", "Bearer new"]);
}
