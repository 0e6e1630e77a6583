//! Credentials for the API server.
//!
//! kube reads a token file and runs an exec plugin again when the wall clock says so, and after a backward jump it does not. So they
//! are also read again when the API server refuses them, as by client-go; the refused request is repeated by its sender.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use kube::Config;
use kube::client::middleware::AuthLayer;
use kube::client::{AuthError, Body, ConfigExt};
use kube::config::AuthInfo;
use secrecy::ExposeSecret as _;
use tokio::time::Instant;
use tower::{BoxError, Layer as _, Service, ServiceExt as _};

use super::transport::ResponseBody;
use crate::report::chain;

/// Minimum interval of reading refused credentials again: an exec plugin is a process, and an account may be deleted.
const REREAD_INTERVAL: Duration = Duration::from_secs(5);

pub(super) struct Credentials {
    config: Config,
    current: Mutex<Current>,
}

struct Current {
    auth: Option<Arc<AuthLayer>>,
    /// When a refusal last had them read again.
    reread: Option<Instant>,
}

/// Unusable credentials. The text contains no output of an exec plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CredentialsError(String);

// === impl Credentials ===

impl Credentials {
    /// Reads a token file, or runs an exec plugin.
    pub(super) fn read(config: &Config) -> Result<Self, CredentialsError> {
        let auth = read(config)?;
        Ok(Self {
            config: config.clone(),
            current: Mutex::new(Current { auth, reread: None }),
        })
    }

    /// Sends a request with the credentials, and reads them again if they are refused.
    pub(super) async fn send<S>(
        &self,
        service: S,
        request: Request<Body>,
    ) -> Result<Response<ResponseBody>, BoxError>
    where
        S: Service<Request<Body>, Response = Response<ResponseBody>, Error = BoxError> + Clone,
    {
        let auth = self.lock().auth.clone();
        let response = match auth {
            Some(auth) => auth.layer(service).oneshot(request).await?,
            None => service.oneshot(request).await?,
        };
        if response.status() == StatusCode::UNAUTHORIZED && self.begin_reread() {
            let config = self.config.clone();
            // The plugin's process blocks.
            match tokio::task::spawn_blocking(move || read(&config)).await {
                Ok(Ok(auth)) => self.lock().auth = auth,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the API server refuses the credentials, and they cannot be read again");
                }
                // A panic, or the runtime ends.
                Err(_) => {}
            }
        }
        Ok(response)
    }

    /// Whether refused credentials are to be read again now.
    fn begin_reread(&self) -> bool {
        let mut current = self.lock();
        let is_due = current
            .reread
            .is_none_or(|reread| reread.elapsed() >= REREAD_INTERVAL);
        if is_due {
            current.reread = Some(Instant::now());
        }
        is_due
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(config: &Config) -> Result<Option<Arc<AuthLayer>>, CredentialsError> {
    let auth = config.auth_layer().map_err(|error| {
        if let kube::Error::Auth(error) = &error {
            CredentialsError::from(error)
        } else {
            CredentialsError(chain(&error))
        }
    })?;
    Ok(auth.map(Arc::new))
}

/// As client-go, ignores empty values in a kubeconfig, and a token if there is a readable token file.
pub(super) fn leave_out_empty(user: &mut AuthInfo) {
    let empty = |value: &Option<String>| value.as_ref().is_some_and(String::is_empty);
    for field in [
        &mut user.username,
        &mut user.token_file,
        &mut user.client_certificate,
        &mut user.client_certificate_data,
        &mut user.client_key,
    ] {
        if empty(field) {
            *field = None;
        }
    }
    for field in [&mut user.token, &mut user.password, &mut user.client_key_data] {
        if field
            .as_ref()
            .is_some_and(|value| value.expose_secret().is_empty())
        {
            *field = None;
        }
    }
    if user.token.is_some()
        && let Some(path) = &user.token_file
    {
        match std::fs::File::open(path) {
            Ok(_) => user.token = None,
            Err(_) => user.token_file = None,
        }
    }
}

/// kube's error contains the plugin's output, which may be a credential.
pub(super) fn without_plugin_output(error: BoxError) -> BoxError {
    match error.downcast::<AuthError>() {
        Ok(error) => CredentialsError::from(&*error).into(),
        Err(error) => error,
    }
}

// === impl CredentialsError ===

impl From<&AuthError> for CredentialsError {
    fn from(error: &AuthError) -> Self {
        Self(if let AuthError::AuthExecRun { out, .. } = error {
            // Its command line may contain secrets, too.
            format!("the exec plugin failed with {}", out.status)
        } else if let AuthError::AuthExecParse(_) = error {
            "the exec plugin did not print an ExecCredential".to_owned()
        } else if let AuthError::MalformedTokenExpirationDate(_) = error {
            "the exec plugin's expirationTimestamp is not an RFC 3339 time".to_owned()
        } else {
            chain(error)
        })
    }
}
