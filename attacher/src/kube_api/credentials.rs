//! Who we are to the API server, and how each request says so.
//!
//! Credentials may change while we run: a service account's token is replaced every hour or so, and a
//! plugin's answer expires. Whoever sends a request asks here for what it is to carry ([`Credentials::pass`])
//! and says so when the API server did not accept it ([`Credentials::refused`]). What is here shows in no
//! log and no error.

mod plugin;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use kube::config::{AuthInfo, AuthProviderConfig};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::Instant;

use super::tls::{self, Identity, IdentityFiles, TlsError};
use plugin::Plugin;
pub use plugin::PluginError;

/// How long what was read from a token file is taken for new: client-go's minute less its ten seconds.
/// The kubelet replaces a token long before the old one ends.
const REREAD: Duration = Duration::from_secs(50);

/// See the module.
#[derive(Debug)]
pub(super) struct Credentials {
    said: Said,
    /// A client certificate in files, whatever else there is.
    shown: Option<IdentityFiles>,
}

/// What a request says.
#[derive(Debug)]
enum Said {
    /// Nothing that goes with a request: a client certificate, which is a connection's, or none at all.
    Nothing,
    /// What never changes.
    Fixed(HeaderValue),
    /// A token in a file that somebody keeps fresh.
    File(TokenFile),
    /// What another program gives.
    Plugin(Plugin),
}

/// What one request is to carry.
#[derive(Clone, Debug, Default)]
pub(super) struct Pass {
    /// The value of its `Authorization`.
    pub(super) authorization: Option<HeaderValue>,
    /// What its connection is to be made with, where that is not in the configuration.
    pub(super) identity: Option<Arc<Identity>>,
}

/// A token file and what it held last.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    latest: Mutex<Latest>,
}

#[derive(Debug)]
struct Latest {
    authorization: HeaderValue,
    read_again: Instant,
}

/// The credentials of a client configuration cannot be used. The texts name the field of a kubeconfig's
/// user.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The token file cannot be read.
    #[error("cannot read the token file {path:?}")]
    ReadToken {
        /// Where it should be.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is nothing in the token file.
    #[error("the token file {0:?} is empty")]
    NoToken(PathBuf),
    /// It does not fit into a header.
    #[error("{0} holds characters that cannot be sent in an HTTP header")]
    Characters(&'static str),
    /// An authentication that client-go had built in.
    #[error(
        "auth-provider {0:?} is not supported: give the user an exec plugin, a token or a client certificate instead"
    )]
    AuthProvider(String),
    /// The client certificate's files are of no use.
    #[error(transparent)]
    Certificate(#[from] TlsError),
    /// The plugin did not help.
    #[error(transparent)]
    Plugin(#[from] Arc<PluginError>),
}

// === impl Credentials ===

impl Credentials {
    /// Takes up the credentials of a user. Which one counts if there are several is as with client-go. A
    /// plugin is not run before its first answer is needed.
    ///
    /// # Errors
    ///
    /// They cannot be used, now or ever.
    pub(super) fn new(user: &AuthInfo) -> Result<Self, CredentialsError> {
        Ok(Self {
            said: Said::new(user)?,
            shown: IdentityFiles::of(user)?,
        })
    }

    /// What the next request is to carry.
    ///
    /// # Errors
    ///
    /// There is a plugin, and it did not say.
    ///
    /// # Cancellation
    ///
    /// A plugin that is running goes on, and the next caller gets its answer.
    pub(super) async fn pass(&self) -> Result<Pass, CredentialsError> {
        let now = Instant::now();
        let authorization = match &self.said {
            Said::Nothing => None,
            Said::Fixed(authorization) => Some(authorization.clone()),
            Said::File(file) => Some(file.authorization(now)),
            Said::Plugin(plugin) => return Ok(plugin.pass().await?),
        };
        Ok(Pass {
            authorization,
            identity: self.shown.as_ref().map(|files| files.identity(now)),
        })
    }

    /// The API server does not know whose request this was (401), which carried `pass`.
    pub(super) async fn refused(&self, pass: &Pass) {
        let now = Instant::now();
        match &self.said {
            Said::Nothing | Said::Fixed(_) => {}
            Said::File(file) => file.refused(pass, now),
            Said::Plugin(plugin) => plugin.refused(pass).await,
        }
        if let Some((files, identity)) = self.shown.as_ref().zip(pass.identity.as_ref()) {
            files.refused(identity, now);
        }
    }
}

// === impl Said ===

impl Said {
    fn new(user: &AuthInfo) -> Result<Self, CredentialsError> {
        if let Some(provider) = &user.auth_provider {
            return id_token(provider).map(Self::Fixed);
        }
        if let Some(name) = nonempty(user.username.as_deref()) {
            let password = secret(user.password.as_ref()).unwrap_or_default();
            let pair = STANDARD.encode(format!("{name}:{password}"));
            return authorization("Basic", &pair, "username").map(Self::Fixed);
        }
        let token = secret(user.token.as_ref())
            .map(|token| authorization("Bearer", token, "token"))
            .transpose()?;
        if let Some(path) = nonempty(user.token_file.as_deref()) {
            return TokenFile::new(path.into(), token).map(Self::File);
        }
        if let Some(token) = token {
            return Ok(Self::Fixed(token));
        }
        match &user.exec {
            Some(exec) if !tls::has_certificate(user) => {
                let plugin = Plugin::new(exec).map_err(Arc::new)?;
                Ok(Self::Plugin(plugin))
            }
            Some(_) | None => Ok(Self::Nothing),
        }
    }
}

// === impl TokenFile ===

impl TokenFile {
    /// A token file. Until it can be read, `otherwise` is used.
    fn new(path: PathBuf, otherwise: Option<HeaderValue>) -> Result<Self, CredentialsError> {
        let authorization = match (read(&path), otherwise) {
            (Ok(authorization), _) | (Err(_), Some(authorization)) => authorization,
            (Err(error), None) => return Err(error),
        };
        let read_again = Instant::now() + REREAD;
        Ok(Self {
            path,
            latest: Mutex::new(Latest {
                authorization,
                read_again,
            }),
        })
    }

    fn authorization(&self, now: Instant) -> HeaderValue {
        let mut latest = self.latest();
        if latest.read_again <= now {
            latest.read_again = now + REREAD;
            match read(&self.path) {
                Ok(authorization) => latest.authorization = authorization,
                // Some take the file away once it was read, and what it held may be good for long.
                Err(error) => tracing::warn!(
                    error = crate::report::chain(&error),
                    "still using the token that was read before"
                ),
            }
        }
        latest.authorization.clone()
    }

    fn refused(&self, pass: &Pass, now: Instant) {
        let mut latest = self.latest();
        if pass.authorization.as_ref() == Some(&latest.authorization) {
            latest.read_again = now;
        }
    }

    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(path: &Path) -> Result<HeaderValue, CredentialsError> {
    let text = fs::read_to_string(path).map_err(|source| CredentialsError::ReadToken {
        path: path.to_owned(),
        source,
    })?;
    let token = text.trim();
    if token.is_empty() {
        return Err(CredentialsError::NoToken(path.to_owned()));
    }
    authorization("Bearer", token, "tokenFile")
}

fn authorization(scheme: &str, secret: &str, field: &'static str) -> Result<HeaderValue, CredentialsError> {
    let value = HeaderValue::try_from(format!("{scheme} {secret}"));
    let mut value = value.map_err(|_| CredentialsError::Characters(field))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The token that somebody's login left in the kubeconfig, which is good until it expires. client-go, and
/// who logs in by it, knows no other provider any more.
fn id_token(provider: &AuthProviderConfig) -> Result<HeaderValue, CredentialsError> {
    match provider.config.get("id-token") {
        Some(token) if provider.name == "oidc" => authorization("Bearer", token, "auth-provider's id-token"),
        Some(_) | None => Err(CredentialsError::AuthProvider(provider.name.clone())),
    }
}

/// An empty value in a kubeconfig is none.
fn nonempty(value: Option<&str>) -> Option<&str> {
    value.filter(|value| !value.is_empty())
}

fn secret(value: Option<&SecretString>) -> Option<&str> {
    nonempty(value.map(ExposeSecret::expose_secret))
}

#[cfg(test)]
mod tests;
