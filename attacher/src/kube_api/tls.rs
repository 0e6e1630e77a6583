//! How connections to the API server are secured: whom we trust, and the certificate that we show.

mod identity;

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper_rustls::ConfigBuilderExt;
use kube::Config;
use kube::config::AuthInfo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use secrecy::ExposeSecret;
use tokio::time::Instant;

pub(super) use identity::{Identity, IdentityFiles};

/// How long what was read from the cluster's CA file, or the files of our certificate, is taken for new.
const REREAD: Duration = Duration::from_secs(60);

/// The TLS settings of a client configuration cannot be used. The texts name the fields of a kubeconfig.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file of ours cannot be read.
    #[error("cannot read {field} {path:?}")]
    Read {
        /// The field that names it.
        field: &'static str,
        /// Where it should be.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is not base64.
    #[error("{field} is not base64")]
    Base64 {
        /// Which.
        field: &'static str,
        /// Why.
        #[source]
        source: base64::DecodeError,
    },
    /// One without the other.
    #[error("the user has a {there} but no {missing}")]
    Half {
        /// The one.
        there: &'static str,
        /// The other.
        missing: &'static str,
    },
    /// It is not PEM, or of another kind.
    #[error("the {what} is not a PEM file of that kind")]
    Pem {
        /// Which.
        what: &'static str,
        /// Why.
        #[source]
        source: pem::Error,
    },
    /// There is none in it.
    #[error("there is no certificate in the {0}")]
    Empty(&'static str),
    /// rustls does not take it.
    #[error("the {what} is not usable")]
    Unusable {
        /// Which.
        what: &'static str,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// The authority of the configuration cannot be trusted for this.
    #[error("the certificate authority is not usable")]
    Authority(#[source] rustls::client::VerifierBuilderError),
    /// The configuration names no authority, and this system knows none.
    #[error("the cluster has no certificate-authority, and the system's cannot be read")]
    System(#[source] io::Error),
    /// The name by which the API server is to be known is none.
    #[error("tls-server-name {name:?} is not a name")]
    ServerName {
        /// The name.
        name: String,
        /// Why.
        #[source]
        source: InvalidDnsNameError,
    },
}

/// Trusts what a file says that others may replace: the cluster's authority.
struct FollowsFile {
    path: PathBuf,
    latest: Mutex<(Arc<WebPkiServerVerifier>, Instant)>,
}

/// Trusts everybody (`insecure-skip-tls-verify`).
#[derive(Debug)]
struct TrustsAll(Vec<SignatureScheme>);

/// What connections are made with.
///
/// # Errors
///
/// The configuration does not allow any.
pub(super) fn settings(config: &Config) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring must have the default versions of TLS");
    let is_tls = config.cluster_url.scheme() == Some(&http::uri::Scheme::HTTPS);
    let builder = if config.accept_invalid_certs {
        let schemes = provider().signature_verification_algorithms.supported_schemes();
        let verifier = Arc::new(TrustsAll(schemes));
        builder.dangerous().with_custom_certificate_verifier(verifier)
    } else if let Some(path) = &config.root_cert_file {
        let verifier = Arc::new(FollowsFile::new(path.clone())?);
        builder.dangerous().with_custom_certificate_verifier(verifier)
    } else if let Some(certificates) = &config.root_cert {
        let certificates = certificates.iter().cloned().map(CertificateDer::from);
        builder.with_root_certificates(roots(certificates)?)
    } else if is_tls {
        builder.with_native_roots().map_err(TlsError::System)?
    } else {
        builder.with_root_certificates(RootCertStore::empty())
    };
    let settings = builder.with_no_client_auth();
    Ok(match identity(&config.auth_info)? {
        Some(identity) => showing(settings, &Arc::new(identity)),
        None => settings,
    })
}

/// The same, but with a certificate of ours.
pub(super) fn showing(mut settings: ClientConfig, identity: &Arc<Identity>) -> ClientConfig {
    settings.client_auth_cert_resolver = identity.clone();
    // A session that is resumed is that of the certificate it began with.
    settings.resumption = Resumption::default();
    settings
}

/// By what name the API server is to be known, if not by its address.
///
/// # Errors
///
/// It is no name.
pub(super) fn server_name(config: &Config) -> Result<Option<ServerName<'static>>, TlsError> {
    let name = config.tls_server_name.clone().filter(|name| !name.is_empty());
    name.map(|name| {
        ServerName::try_from(name.clone()).map_err(|source| TlsError::ServerName { name, source })
    })
    .transpose()
}

/// Whether this user has a client certificate of their own.
pub(super) fn has_certificate(user: &AuthInfo) -> bool {
    [&user.client_certificate, &user.client_certificate_data]
        .into_iter()
        .flatten()
        .any(|value| !value.is_empty())
}

fn identity(user: &AuthInfo) -> Result<Option<Identity>, TlsError> {
    let certificate = load(
        "client-certificate",
        user.client_certificate_data.as_deref(),
        user.client_certificate.as_deref(),
    )?;
    let key_data = user.client_key_data.as_ref().map(ExposeSecret::expose_secret);
    let key = load("client-key", key_data, user.client_key.as_deref())?;
    match (certificate, key) {
        (Some(certificate), Some(key)) => Identity::from_pem(&certificate, &key).map(Some),
        (None, None) => Ok(None),
        (Some(_), None) => Err(TlsError::Half {
            there: "client-certificate",
            missing: "client-key",
        }),
        (None, Some(_)) => Err(TlsError::Half {
            there: "client-key",
            missing: "client-certificate",
        }),
    }
}

/// What the configuration holds itself, or else what the file that it names holds.
fn load(field: &'static str, data: Option<&str>, path: Option<&str>) -> Result<Option<Vec<u8>>, TlsError> {
    if let Some(data) = data.filter(|data| !data.is_empty()) {
        let data: Vec<u8> = data.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let decoded = STANDARD.decode(data);
        return decoded
            .map(Some)
            .map_err(|source| TlsError::Base64 { field, source });
    }
    let Some(path) = path.filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let read = fs::read(path).map_err(|source| TlsError::Read {
        field,
        path: path.into(),
        source,
    });
    read.map(Some)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn roots<'a>(certificates: impl Iterator<Item = CertificateDer<'a>>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let mut trouble = None;
    for certificate in certificates {
        if let Err(source) = roots.add(certificate.into_owned()) {
            tracing::warn!(error = %source, "a certificate authority is not usable and is left out");
            trouble = Some(source);
        }
    }
    // One that nobody can read does not spoil the bundle that it stands in.
    match trouble.filter(|_| roots.is_empty()) {
        Some(source) => Err(TlsError::Unusable {
            what: "certificate authority",
            source,
        }),
        None => Ok(roots),
    }
}

// === impl FollowsFile ===

impl FollowsFile {
    fn new(path: PathBuf) -> Result<Self, TlsError> {
        let latest = (Self::read(&path)?, Instant::now());
        Ok(Self {
            path,
            latest: Mutex::new(latest),
        })
    }

    fn read(path: &PathBuf) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
        let what = "certificate authority";
        let pem = fs::read(path).map_err(|source| TlsError::Read {
            field: what,
            path: path.clone(),
            source,
        })?;
        let mut trouble = None;
        let certificates = CertificateDer::pem_slice_iter(&pem).filter_map(|certificate| match certificate {
            Ok(certificate) => Some(certificate),
            Err(source) => {
                tracing::warn!(error = %source, "a part of the certificate authority's file is left out");
                trouble = Some(source);
                None
            }
        });
        let roots = roots(certificates)?;
        if roots.is_empty() {
            return Err(match trouble {
                Some(source) => TlsError::Pem { what, source },
                None => TlsError::Empty(what),
            });
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        verifier.build().map_err(TlsError::Authority)
    }

    fn current(&self) -> Arc<WebPkiServerVerifier> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.1.elapsed() >= REREAD {
            latest.1 = Instant::now();
            match Self::read(&self.path) {
                Ok(verifier) => latest.0 = verifier,
                Err(error) => tracing::warn!(
                    error = crate::report::chain(&error),
                    "still trusting the certificate authority that was read before"
                ),
            }
        }
        latest.0.clone()
    }
}

impl fmt::Debug for FollowsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FollowsFile").field(&self.path).finish()
    }
}

impl ServerCertVerifier for FollowsFile {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.current()
            .verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current()
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current()
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current().supported_verify_schemes()
    }
}

// === impl TrustsAll ===

impl ServerCertVerifier for TrustsAll {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests;
