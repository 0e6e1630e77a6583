//! TLS of `--http-endpoint`: the certificate of files that are read again when they change, or a self-signed one.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::locked;
use crate::kube_api::{Priority, Rate, RateLimit};
use crate::report::chain;

/// Minimum interval of reads. kubelet takes a minute to update a Secret's volume.
const INTERVAL: Duration = Duration::from_secs(10);
/// Timeout of a handshake, its wait for the rate limit included.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum rate of handshakes. Each costs a signature, on the thread that also attaches volumes, before the client has shown a token.
const HANDSHAKES: Rate = Rate { qps: 20.0, burst: 64 };

/// The certificate for new connections.
pub struct Tls {
    /// Certificate chain and key, unless the certificate is self-signed.
    files: Option<[PathBuf; 2]>,
    pair: Mutex<Pair>,
    handshakes: RateLimit,
}

struct Pair {
    chain: Chain,
    config: Arc<ServerConfig>,
    read: Instant,
    /// Whether the last read failed.
    failing: bool,
}

/// There is no usable certificate.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each has its text")]
pub enum TlsError {
    #[error("cannot read {0:?}")]
    File(PathBuf, #[source] pem::Error),
    #[error("the key cannot be used with the certificate")]
    Pair(#[from] rustls::Error),
    #[error("cannot make a self-signed certificate")]
    SelfSigned(#[from] rcgen::Error),
}

type Chain = Vec<CertificateDer<'static>>;

// === impl Tls ===

impl Tls {
    /// Reads certificate and key, or without files makes a pair for this process.
    ///
    /// # Errors
    ///
    /// When the pair is not usable.
    pub fn new(files: Option<[PathBuf; 2]>) -> Result<Self, TlsError> {
        let pair = files.as_ref().map_or_else(self_signed, read)?;
        Ok(Self {
            files,
            pair: Mutex::new(pair),
            handshakes: RateLimit::new(HANDSHAKES),
        })
    }

    /// Accepts a connection. A client that sends no ClientHello takes nothing of the rate.
    pub(super) async fn accept<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let handshake = async {
            let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
            self.handshakes.acquire(Priority::Low).await;
            hello.into_stream(self.config()).await
        };
        timeout(HANDSHAKE_TIMEOUT, handshake).await?
    }

    /// The certificate of the next connection. Open connections keep theirs, and an unusable pair changes nothing.
    fn config(&self) -> Arc<ServerConfig> {
        let mut pair = locked(&self.pair);
        if let Some(files) = &self.files
            && pair.read.elapsed() >= INTERVAL
        {
            pair.read = Instant::now();
            match read(files) {
                // With the session tickets of the former connections.
                Ok(new) if new.chain == pair.chain => pair.failing = false,
                Ok(new) => {
                    *pair = new;
                    tracing::info!(file = ?files[0], "loaded the new certificate of --http-endpoint");
                }
                Err(error) => {
                    if !std::mem::replace(&mut pair.failing, true) {
                        tracing::warn!(
                            error = chain(&error),
                            "cannot load the certificate of --http-endpoint; the former one stays in use"
                        );
                    }
                }
            }
        }
        pair.config.clone()
    }
}

fn read([certificate, key]: &[PathBuf; 2]) -> Result<Pair, TlsError> {
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Chain, _>>);
    let chain = chain.map_err(|source| TlsError::File(certificate.clone(), source))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::File(key.clone(), source))?;
    pair(chain, key)
}

fn self_signed() -> Result<Pair, TlsError> {
    let made = rcgen::generate_simple_self_signed(["csi-attacher".to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    pair(vec![made.cert.into()], key.into())
}

fn pair(chain: Chain, key: PrivateKeyDer<'static>) -> Result<Pair, TlsError> {
    let builder = ServerConfig::builder().with_no_client_auth();
    let mut config = builder.with_single_cert(chain.clone(), key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Pair {
        chain,
        config: Arc::new(config),
        read: Instant::now(),
        failing: false,
    })
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::{DuplexStream, duplex};
    use tokio_rustls::TlsConnector;

    use super::*;

    /// A client that trusts the certificate.
    fn mk_client(tls: &Tls) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots
            .add(locked(&tls.pair).chain[0].clone())
            .expect("a certificate");
        let client = ClientConfig::builder().with_root_certificates(roots);
        TlsConnector::from(Arc::new(client.with_no_client_auth()))
    }

    fn mk_silent_clients() -> (Vec<DuplexStream>, Vec<DuplexStream>) {
        (0..=HANDSHAKES.burst).map(|_| duplex(1024)).unzip()
    }

    #[tokio::test(start_paused = true)]
    async fn handshakes_are_bounded_in_rate() {
        let tls = Tls::new(None).unwrap();
        let client = mk_client(&tls);
        let (_silent, accepted) = mk_silent_clients();
        let silent = join_all(accepted.into_iter().map(|stream| tls.accept(stream)));
        let begin = Instant::now();
        let handshake = || async {
            let (ours, theirs) = duplex(1 << 16);
            let name = "csi-attacher".try_into().unwrap();
            let (connected, accepted) = tokio::join!(client.connect(name, ours), tls.accept(theirs));
            connected.and(accepted.map(|_| ())).map(|()| begin.elapsed())
        };
        let (burst, later) = (HANDSHAKES.burst as usize, 20);
        let handshakes = join_all((0..burst + later).map(|_| handshake()));
        let times = tokio::select! {
            biased;
            _ = silent => panic!("a silent client was accepted or refused early"),
            times = handshakes => times,
        };
        let times: Vec<_> = times.into_iter().map(Result::unwrap).collect();
        assert!(times[..burst].iter().all(Duration::is_zero), "{times:?}");
        for (n, after) in times[burst..].iter().enumerate() {
            let due = Duration::from_secs_f64((n + 1) as f64 / HANDSHAKES.qps);
            assert!(after.abs_diff(due) <= Duration::from_millis(2), "{n}: {after:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn handshakes_end_in_time() {
        let tls = Tls::new(None).unwrap();
        let (_silent, mut accepted) = mk_silent_clients();
        let begin = Instant::now();
        let error = tls.accept(accepted.pop().unwrap()).await.err();
        assert_eq!(error.map(|error| error.kind()), Some(io::ErrorKind::TimedOut));
        assert_eq!(begin.elapsed().as_secs(), HANDSHAKE_TIMEOUT.as_secs());
    }
}
