//! The certificate that we show.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use kube::config::AuthInfo;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use secrecy::ExposeSecret;
use tokio::time::Instant;

use super::{REREAD, TlsError, provider};

/// A client certificate with its key.
#[derive(Debug)]
pub(in crate::kube_api) struct Identity {
    pair: SingleCertAndKey,
    /// Tells certificates apart, with the key left out.
    chain: Vec<CertificateDer<'static>>,
}

/// A client certificate and its key in files that somebody keeps fresh.
#[derive(Debug)]
pub(in crate::kube_api) struct IdentityFiles {
    certificate: PathBuf,
    key: PathBuf,
    latest: Mutex<(Arc<Identity>, Instant)>,
}

// === impl Identity ===

impl Identity {
    /// Of a chain of certificates, our own first, and the key of that.
    ///
    /// # Errors
    ///
    /// They are no such thing, or not of one another.
    pub(in crate::kube_api) fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let what = "client certificate";
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
        let chain = chain.map_err(|source| TlsError::Pem { what, source })?;
        if chain.is_empty() {
            return Err(TlsError::Empty(what));
        }
        let key = PrivateKeyDer::from_pem_slice(key);
        let key = key.map_err(|source| TlsError::Pem {
            what: "client key",
            source,
        })?;
        let pair = CertifiedKey::from_der(chain.clone(), key, &provider());
        let pair = pair.map_err(|source| TlsError::Unusable {
            what: "client certificate with its key",
            source,
        })?;
        Ok(Self {
            pair: SingleCertAndKey::from(pair),
            chain,
        })
    }

    /// Whether it is the same certificate, so that connections made with one can be kept for the other.
    pub(in crate::kube_api) fn is_same(&self, other: &Self) -> bool {
        self.chain == other.chain
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, roots: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        ResolvesClientCert::resolve(&self.pair, roots, schemes)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

// === impl IdentityFiles ===

impl IdentityFiles {
    /// Those of a user who has both in files; none for one who has them elsewhere.
    ///
    /// # Errors
    ///
    /// They cannot be read, or are of no use.
    pub(in crate::kube_api) fn of(user: &AuthInfo) -> Result<Option<Self>, TlsError> {
        let nonempty = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        let in_itself = nonempty(&user.client_certificate_data).is_some()
            || user
                .client_key_data
                .as_ref()
                .is_some_and(|data| !data.expose_secret().is_empty());
        let files = nonempty(&user.client_certificate).zip(nonempty(&user.client_key));
        let (Some((certificate, key)), false) = (files, in_itself) else {
            return Ok(None);
        };
        let (certificate, key) = (PathBuf::from(certificate), PathBuf::from(key));
        let identity = Self::read(&certificate, &key)?;
        Ok(Some(Self {
            certificate,
            key,
            latest: Mutex::new((Arc::new(identity), Instant::now() + REREAD)),
        }))
    }

    /// What the files hold, as of a minute ago at most.
    pub(in crate::kube_api) fn identity(&self, now: Instant) -> Arc<Identity> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.1 <= now {
            latest.1 = now + REREAD;
            match Self::read(&self.certificate, &self.key) {
                Ok(identity) if identity.is_same(&latest.0) => {}
                Ok(identity) => latest.0 = Arc::new(identity),
                // They are replaced one after the other, so for a moment they may be not of one another.
                Err(error) => tracing::warn!(
                    error = crate::report::chain(&error),
                    "still showing the client certificate that was read before"
                ),
            }
        }
        latest.0.clone()
    }

    /// The API server did not know whose request this was, which came with that certificate.
    pub(in crate::kube_api) fn refused(&self, identity: &Arc<Identity>, now: Instant) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(identity, &latest.0) {
            latest.1 = now;
        }
    }

    fn read(certificate: &Path, key: &Path) -> Result<Identity, TlsError> {
        let load = |field, path: &Path| {
            fs::read(path).map_err(|source| TlsError::Read {
                field,
                path: path.to_owned(),
                source,
            })
        };
        Identity::from_pem(
            &load("client-certificate", certificate)?,
            &load("client-key", key)?,
        )
    }
}
