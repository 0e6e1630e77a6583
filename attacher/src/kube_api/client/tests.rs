//! Requests to a real TLS server on loopback, with each kind of credentials of a kubeconfig.

mod credentials;
mod plugin;

use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::body::Incoming;
use hyper::service::service_fn as hyper_service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
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
use socket2::SockRef;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::transport::{TCP_KEEPALIVE, tcp};
use super::*;
use crate::manager::config::of_kubeconfig;
use crate::report::chain;

/// An API server that records the credentials of requests.
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
    /// The client certificate in DER.
    certificate: Option<Vec<u8>>,
    connection: usize,
}

/// A certificate with its key, both in PEM.
struct Pair {
    certificate: String,
    key: String,
}

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
    /// Serves with a certificate for `name`.
    async fn named(name: &str) -> Self {
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
        Self::named("127.0.0.1").await
    }

    fn cluster(&self) -> Value {
        json!({
            "server": format!("https://{}", self.address),
            "certificate-authority-data": STANDARD.encode(self.authority.pem()),
        })
    }

    /// Returns and clears the recorded credentials.
    fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    /// Sends a request with the credentials of `user` and returns the recorded ones.
    async fn credentials_of(&self, user: Value) -> Seen {
        let access = mk_access(self.cluster(), user).await.unwrap();
        send_request(&access.connect(None, Requests::default()))
            .await
            .unwrap();
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
                seen.lock().unwrap().push(one);
                let response = Response::builder();
                let response = response.body(Full::new(Bytes::from_static(b"{}"))).unwrap();
                std::future::ready(Ok::<_, Infallible>(response))
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // The client may close the connection at any time.
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

async fn send_request(client: &Client) -> Result<String, kube::Error> {
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

#[tokio::test]
async fn verifies_the_server_by_authority_and_name() {
    let server = ApiServer::named("api.example").await;
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
        let response = send_request(&access.connect(None, Requests::default())).await;
        assert_eq!(response.is_ok(), reached, "{case}: {response:?}");
        assert_eq!(server.seen().len(), usize::from(reached), "{case}");
    }
}

#[test]
fn recognizes_requests_for_further_pages() {
    for (uri, is_next) in [
        ("/api/v1/persistentvolumes?&limit=500", false),
        ("/api/v1/persistentvolumes?&limit=500&continue=abc", true),
        ("/api/v1/persistentvolumes?&watch=true&resourceVersion=5", false),
        ("/api/v1/persistentvolumes/continue=", false),
    ] {
        assert_eq!(is_next_page(&uri.parse().unwrap()), is_next, "{uri}");
    }
}

#[test]
fn proxy_is_refused_without_quoting_its_password() {
    let mut config = Config::new("http://127.0.0.1:1".parse().unwrap());
    config.proxy_url = Some("http://user:hunter2@proxy:3128".parse().unwrap());
    let Err(error) = Access::new(&config) else {
        panic!("proxies are not supported")
    };
    let text = error.to_string();
    assert!(
        text.contains("***@proxy:3128") && !text.contains("hunter2"),
        "{text}"
    );
}

#[tokio::test]
async fn error_names_the_address_of_an_unreachable_api_server() {
    let access = Access::new(&Config::new("http://127.0.0.1:1/prefix".parse().unwrap())).unwrap();
    let error = send_request(&access.connect(None, Requests::default()))
        .await
        .unwrap_err();
    let text = chain(&error);
    assert!(text.contains("127.0.0.1:1") && text.contains("refused"), "{text}");
}

#[tokio::test]
async fn connections_have_tcp_keepalive() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let connection = tcp().oneshot(url.parse().unwrap()).await.unwrap();
    let socket = SockRef::from(connection.inner());
    assert!(socket.keepalive().unwrap());
    assert_eq!(socket.tcp_keepalive_time().unwrap(), TCP_KEEPALIVE);
    assert_eq!(socket.tcp_keepalive_interval().unwrap(), TCP_KEEPALIVE);
}
