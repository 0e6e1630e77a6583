//! Requests to a real TLS server on loopback, with each kind of credentials that a kubeconfig can hold.

use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::service::service_fn as hyper_service_fn;
use hyper_util::rt::TokioIo;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::run::config::of_kubeconfig;

/// An API server that writes down who asked. It knows nobody whose token is [`REVOKED`].
struct ApiServer {
    address: SocketAddr,
    authority: Authority,
    seen: Arc<Mutex<Vec<Seen>>>,
}

type Authority = CertifiedIssuer<'static, KeyPair>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    authorization: Option<String>,
    impersonated: Option<String>,
    /// The common name that the certificate was made for.
    certificate: Option<Vec<u8>>,
    connection: usize,
}

/// A certificate with its key, both in PEM.
struct Pair {
    certificate: String,
    key: String,
}

const REVOKED: &str = "Bearer revoked";

// === impl Pair ===

impl Pair {
    fn der(&self) -> Vec<u8> {
        let der = CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap();
        der.to_vec()
    }
}

fn mk_authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn mk_pair(authority: &Authority, name: &str, usage: ExtendedKeyUsagePurpose) -> Pair {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![usage];
    Pair {
        certificate: params.signed_by(&key, authority).unwrap().pem(),
        key: key.serialize_pem(),
    }
}

fn mk_client_pair(authority: &Authority) -> Pair {
    mk_pair(authority, "someone", ExtendedKeyUsagePurpose::ClientAuth)
}

// === impl ApiServer ===

impl ApiServer {
    /// Serves as `name`.
    async fn called(name: &str) -> Self {
        let authority = mk_authority();
        let pair = mk_pair(&authority, name, ExtendedKeyUsagePurpose::ServerAuth);
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
            .allow_unauthenticated()
            .build()
            .unwrap();
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(
                vec![pair.der().into()],
                PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap(),
            )
            .unwrap();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        #[expect(clippy::disallowed_methods, reason = "the test is the supervisor")]
        tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(tls)), seen.clone()));
        Self {
            address,
            authority,
            seen,
        }
    }

    async fn localhost() -> Self {
        Self::called("127.0.0.1").await
    }

    fn cluster(&self) -> Value {
        json!({
            "server": format!("https://{}", self.address),
            "certificate-authority-data": STANDARD.encode(self.authority.pem()),
        })
    }

    /// Who asked since this was last asked.
    fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    /// What one request by `user` shows.
    async fn asked_by(&self, user: Value) -> Seen {
        let access = mk_access(self.cluster(), user).await.unwrap();
        ask(&access.connect(None, Requests::default())).await.unwrap();
        self.seen().pop().unwrap()
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, seen: Arc<Mutex<Vec<Seen>>>) {
    for connection in 0.. {
        let (stream, _) = listener.accept().await.unwrap();
        let (acceptor, seen) = (acceptor.clone(), seen.clone());
        let one = async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let chain = stream.get_ref().1.peer_certificates();
            let certificate = chain.map(|chain| chain[0].to_vec());
            let service = hyper_service_fn(move |request: Request<Incoming>| {
                let header = |name: &str| {
                    let value = request.headers().get(name)?;
                    Some(value.to_str().unwrap().to_owned())
                };
                let one = Seen {
                    authorization: header("authorization"),
                    impersonated: header("impersonate-user"),
                    certificate: certificate.clone(),
                    connection,
                };
                let status = if one.authorization.as_deref() == Some(REVOKED) {
                    401
                } else {
                    200
                };
                seen.lock().unwrap().push(one);
                let answer = Response::builder().status(status);
                let answer = answer.body(Full::new(Bytes::from_static(b"{}"))).unwrap();
                std::future::ready(Ok::<_, Infallible>(answer))
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // How it ends is the client's affair.
            drop(builder.serve_connection(TokioIo::new(stream), service).await);
        };
        #[expect(clippy::disallowed_methods, reason = "the test is the supervisor")]
        tokio::spawn(one);
    }
}

async fn mk_config(cluster: Value, user: Value) -> Config {
    let kubeconfig: Kubeconfig = serde_json::from_value(json!({
        "clusters": [{ "name": "c", "cluster": cluster }],
        "users": [{ "name": "u", "user": user }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
        "current-context": "x",
    }))
    .unwrap();
    of_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap()
}

async fn mk_access(cluster: Value, user: Value) -> Result<Access, ConnectError> {
    Access::new(&mk_config(cluster, user).await)
}

async fn ask(client: &Client) -> Result<String, kube::Error> {
    client
        .request_text(Request::get("/version").body(Vec::new()).unwrap())
        .await
}

fn bearer(token: &str) -> Seen {
    Seen {
        authorization: Some(format!("Bearer {token}")),
        ..Seen::default()
    }
}

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
async fn only_the_server_that_is_meant_is_talked_to() {
    let server = ApiServer::called("api.example").await;
    let with = |more: Value| {
        let mut cluster = server.cluster();
        for (field, value) in more.as_object().unwrap() {
            cluster[field] = value.clone();
        }
        cluster
    };
    let foreign = STANDARD.encode(mk_authority().pem());
    for (case, cluster, reached) in [
        ("certificate for another address", with(json!({})), false),
        (
            "by its name",
            with(json!({ "tls-server-name": "api.example" })),
            true,
        ),
        (
            "by another name",
            with(json!({ "tls-server-name": "other.example" })),
            false,
        ),
        (
            "of another authority",
            with(json!({ "tls-server-name": "api.example", "certificate-authority-data": foreign })),
            false,
        ),
        (
            "unchecked",
            with(json!({ "insecure-skip-tls-verify": true })),
            true,
        ),
    ] {
        let access = mk_access(cluster, json!({ "token": "t" })).await.unwrap();
        let answer = ask(&access.connect(None, Requests::default())).await;
        assert_eq!(answer.is_ok(), reached, "{case}: {answer:?}");
        assert_eq!(server.seen().len(), usize::from(reached), "{case}");
    }
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
