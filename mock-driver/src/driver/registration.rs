//! Plugin registration (pluginregistration.Registration) without node-driver-registrar: GetInfo and
//! NotifyRegistrationStatus on a socket in kubelet's registry directory.
//!
//! The socket has mode 0600 from its creation. The driver removes it on exit, whereupon kubelet deregisters the driver.

use std::path::{Path, PathBuf};

use csi_proto::registration::registration_server::Registration;
use csi_proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

/// The versions of CSI that are reported to kubelet, which compares only the major version.
const VERSIONS: [&str; 1] = ["1.0.0"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub directory: PathBuf,
    /// The driver's own socket, as kubelet sees it.
    pub endpoint: PathBuf,
}

#[derive(Debug)]
pub(crate) struct Registrar {
    driver: String,
    settings: Settings,
    status: watch::Sender<RegistrationState>,
}

/// The last NotifyRegistrationStatus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum RegistrationState {
    #[default]
    Pending,
    Registered,
    Failed(String),
}

// === impl Registrar ===

impl Registrar {
    pub(crate) fn new(driver: String, settings: Settings) -> Self {
        Self {
            driver,
            settings,
            status: watch::Sender::default(),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.settings.directory.join(format!("{}-reg.sock", self.driver))
    }

    pub(crate) fn state(&self) -> RegistrationState {
        self.status.borrow().clone()
    }

    /// Waits until kubelet rejects the registration, and returns its reason. Never returns otherwise.
    pub(crate) async fn failed(&self) -> String {
        let mut status = self.status.subscribe();
        loop {
            if let RegistrationState::Failed(reason) = &*status.borrow_and_update() {
                return reason.clone();
            }
            if status.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.driver.clone(),
            endpoint: self.settings.endpoint.display().to_string(),
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
        self.status.send_replace(if plugin_registered {
            tracing::info!("registered with kubelet");
            RegistrationState::Registered
        } else {
            RegistrationState::Failed(error)
        });
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

pub(crate) async fn dial(socket: &Path) -> std::io::Result<()> {
    UnixStream::connect(socket).await.map(drop)
}
