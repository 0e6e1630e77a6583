//! Who we are to the API server, from the kubeconfig.

use super::*;

#[tokio::test]
async fn each_kind_of_credentials_reaches_the_server() {
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
    let token_file = file("token", " from-file\n");
    for (case, user, expected) in [
        ("nobody", json!({}), Seen::default()),
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
            "token with a tokenFile that is not there",
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
            ..server.asked_by(user).await
        };
        assert_eq!(seen, expected, "{case}");
    }
}

#[tokio::test]
async fn what_cannot_be_used_is_named() {
    let cluster = || json!({ "server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true });
    let pair = mk_client_pair(&mk_authority());
    let other = mk_client_pair(&mk_authority());
    let encoded = |text: &str| STANDARD.encode(text);
    for (user, named) in [
        (
            json!({ "auth-provider": { "name": "gcp" } }),
            "auth-provider \"gcp\"",
        ),
        (
            json!({ "auth-provider": { "name": "oidc" } }),
            "auth-provider \"oidc\"",
        ),
        (json!({ "tokenFile": "/nowhere/token" }), "/nowhere/token"),
        (json!({ "token": "two\nlines" }), "token holds characters"),
        (json!({ "exec": {} }), "exec has no command"),
        (
            json!({ "client-certificate": "/nowhere/crt" }),
            "client-certificate \"/nowhere/crt\"",
        ),
        (
            json!({ "client-certificate-data": encoded(&pair.certificate) }),
            "no client-key",
        ),
        (
            json!({ "client-key-data": encoded(&pair.key) }),
            "no client-certificate",
        ),
        (json!({ "client-key-data": "%" }), "client-key is not base64"),
        (
            json!({ "client-certificate-data": encoded("no"), "client-key-data": encoded(&pair.key) }),
            "no certificate in the client certificate",
        ),
        (
            json!({
                "client-certificate-data": encoded(&pair.certificate),
                "client-key-data": encoded(&other.key),
            }),
            "client certificate with its key is not usable",
        ),
    ] {
        let error = mk_access(cluster(), user).await.err().unwrap();
        let text = crate::report::chain(&error);
        assert!(text.contains(named), "{text:?} must contain {named:?}");
        assert!(!text.contains("two"), "{text:?} must not quote a token");
    }
    let mut named = cluster();
    named["tls-server-name"] = json!("not a name");
    let error = mk_access(named, json!({})).await.err().unwrap();
    assert!(crate::report::chain(&error).contains("tls-server-name \"not a name\""));
}

#[tokio::test]
async fn a_token_that_is_refused_is_read_again() {
    let server = ApiServer::localhost().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "revoked").unwrap();
    // As in a pod: the token and the authority lie in files that others replace.
    let authority = tempfile::NamedTempFile::new().unwrap();
    fs::write(authority.path(), server.authority.pem()).unwrap();
    let mut config = Config::new(format!("https://{}", server.address).parse().unwrap());
    config.root_cert_file = Some(authority.path().to_owned());
    config.auth_info.token_file = Some(file.path().to_str().unwrap().to_owned());
    let client = Access::new(&config).unwrap().connect(None, Requests::default());
    ask(&client).await.unwrap_err();
    fs::write(file.path(), "fresh").unwrap();
    ask(&client).await.unwrap();
    assert_eq!(server.seen(), [bearer("revoked"), bearer("fresh")]);
}
