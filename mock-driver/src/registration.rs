//! Kubelet's plugin registration, so that no registrar sidecar is needed: kubelet finds the socket in its
//! registry directory, asks who is there, and says whether it takes the driver into service.
//!
//! The socket is private from its first moment and goes with the driver; then kubelet forgets the driver.

use std::path::{Path, PathBuf};

use csi_proto::registration::registration_server::{Registration, RegistrationServer};
use csi_proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

/// The versions of CSI that kubelet is told; it knows only the first figure.
const VERSIONS: [&str; 1] = ["1.0.0"];

/// What a driver registers with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Kubelet's registry directory.
    pub directory: PathBuf,
    /// The driver's own socket, as kubelet sees it.
    pub endpoint: PathBuf,
}

/// The driver's side of the registration.
#[derive(Debug)]
pub(crate) struct Registrar {
    driver: String,
    settings: Settings,
    /// Why kubelet did not take the driver.
    refused: watch::Sender<Option<String>>,
}

/// The service, as it is handed to the server.
#[derive(Clone, Debug)]
pub(crate) struct Answers(std::sync::Arc<Registrar>);

// === impl Registrar ===

impl Registrar {
    pub(crate) fn new(driver: String, settings: Settings) -> Self {
        Self {
            driver,
            settings,
            refused: watch::Sender::new(None),
        }
    }

    /// Where kubelet looks for the driver.
    pub(crate) fn socket(&self) -> PathBuf {
        self.settings.directory.join(format!("{}-reg.sock", self.driver))
    }

    /// The service.
    pub(crate) fn service(self: &std::sync::Arc<Self>) -> RegistrationServer<Answers> {
        RegistrationServer::new(Answers(self.clone()))
    }

    /// Waits until kubelet refuses the driver, and says why. Never returns if it does not.
    pub(crate) async fn refused(&self) -> String {
        let mut refused = self.refused.subscribe();
        let reason = refused.wait_for(Option::is_some).await;
        // The guard must be gone before anything else is waited for.
        let reason = reason.ok().and_then(|reason| reason.clone());
        match reason {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }
}

#[tonic::async_trait]
impl Registration for Answers {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.0.driver.clone(),
            endpoint: self.0.settings.endpoint.display().to_string(),
            supported_versions: VERSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus {
            plugin_registered,
            error,
        } = request.into_inner();
        if plugin_registered {
            tracing::info!("kubelet has taken the driver into service");
        } else {
            self.0.refused.send_replace(Some(error));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Whether somebody answers on a registration socket.
///
/// # Errors
/// If nobody does.
pub(crate) async fn dial(socket: &Path) -> std::io::Result<()> {
    UnixStream::connect(socket).await.map(drop)
}
