//! Serves the API server over HTTPS on loopback, for kubectl and other processes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::ApiServer;

/// Maximum number of streams per connection, as in kube-apiserver.
const STREAMS: u32 = 100;

/// A kubeconfig for the server.
#[derive(Clone, Debug)]
pub struct Kubeconfig {
    /// The file's content.
    pub yaml: String,
    /// PEM of the authority that signed the serving certificate.
    pub certificate_authority: String,
    /// Address on which the server listens.
    pub address: SocketAddr,
}

/// A listening server. It serves while [`Listener::run`] is polled; dropping that future simulates a crash.
pub struct Listener {
    server: ApiServer,
    listener: TcpListener,
    tls: TlsAcceptor,
    kubeconfig: Kubeconfig,
}

/// An error at start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The port cannot be bound.
    #[error("listen on loopback")]
    Listen(#[source] io::Error),
    /// The certificate cannot be generated.
    #[error("make the serving certificate")]
    Certificate(#[from] rcgen::Error),
    /// TLS rejects the certificate.
    #[error("configure TLS")]
    Tls(#[from] rustls::Error),
}

// === impl ApiServer ===

impl ApiServer {
    /// Listens on a port of loopback; 0 asks the kernel for a free one.
    ///
    /// # Errors
    /// If the port is taken.
    pub async fn serve(&self, port: u16) -> Result<Listener, Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .await
            .map_err(Error::Listen)?;
        let address = listener.local_addr().map_err(Error::Listen)?;
        let (tls, certificate_authority) = certificates()?;
        Ok(Listener {
            server: self.clone(),
            listener,
            tls,
            kubeconfig: Kubeconfig::new(address, certificate_authority),
        })
    }
}

// === impl Kubeconfig ===

impl Kubeconfig {
    fn new(address: SocketAddr, certificate_authority: String) -> Self {
        use base64::Engine as _;
        let authority = base64::engine::general_purpose::STANDARD.encode(&certificate_authority);
        // The server checks no credentials, but kubectl prompts for them if the kubeconfig has none.
        let yaml = format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: embedded\n  cluster:\n    server: https://{address}\n    \
             certificate-authority-data: {authority}\nusers:\n- name: admin\n  user:\n    token: embedded\ncontexts:\n\
             - name: embedded\n  context:\n    cluster: embedded\n    user: admin\ncurrent-context: embedded\n"
        );
        Self {
            yaml,
            certificate_authority,
            address,
        }
    }
}

// === impl Listener ===

impl Listener {
    /// A kubeconfig for the server.
    pub fn kubeconfig(&self) -> &Kubeconfig {
        &self.kubeconfig
    }

    /// Serves until the future is dropped; then all connections break.
    pub async fn run(self) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = self.listener.accept() => {
                    let Ok((stream, _)) = accepted else { continue };
                    let tls = self.tls.clone();
                    let server = self.server.clone();
                    connections.spawn(async move {
                        let Ok(stream) = tls.accept(stream).await else { return };
                        let mut builder = Builder::new(TokioExecutor::new());
                        builder.http2().timer(TokioTimer::new()).max_concurrent_streams(STREAMS);
                        let service = TowerToHyperService::new(server);
                        // A disconnected client or an injected lost response ends the connection; no action is
                        // needed.
                        let _ended = builder.serve_connection(TokioIo::new(stream), service).await;
                    });
                }
            }
        }
    }
}

fn certificates() -> Result<(TlsAcceptor, String), Error> {
    let mut authority = CertificateParams::default();
    authority
        .distinguished_name
        .push(DnType::CommonName, "embedded cluster");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let names = ["127.0.0.1", "localhost", "kubernetes.default.svc"].map(str::to_owned);
    let certificate = CertificateParams::new(names)?.signed_by(&key, &authority)?;
    let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((TlsAcceptor::from(Arc::new(config)), authority.pem()))
}
