//! TLS of `--http-endpoint`: the certificate of files that are read again when they change, or a self-signed one.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::time::Instant;

use super::locked;
use crate::report::chain;

/// Minimum interval of reads. kubelet takes a minute to update a Secret's volume.
const INTERVAL: Duration = Duration::from_secs(10);

/// The certificate for new connections.
pub struct Tls {
    /// Certificate chain and key, unless the certificate is self-signed.
    files: Option<[PathBuf; 2]>,
    pair: Mutex<Pair>,
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
    pub fn new(files: Option<[PathBuf; 2]>) -> Result<Self, TlsError> {
        let pair = files.as_ref().map_or_else(self_signed, read)?;
        let pair = Mutex::new(pair);
        Ok(Self { files, pair })
    }

    /// The certificate of the next connection. Open connections keep theirs, and an unusable pair changes nothing.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
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
