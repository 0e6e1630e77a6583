//! A driver whose errors contain its credentials.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use csi_e2e::mutex::lock;
use csi_proto::v1::controller_server::{Controller, ControllerServer};
use csi_proto::v1::identity_server::{Identity, IdentityServer};
use csi_proto::v1::{self, controller_service_capability, plugin_capability};
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};
use tower::{Service as _, service_fn};

/// A password with characters that need escaping, and a key of several lines. Each has 32 random characters.
#[derive(Clone)]
pub(super) struct Credentials {
    password_core: String,
    key_core: String,
}

/// A running driver; ends when dropped.
pub(super) struct LeakyDriver {
    socket: PathBuf,
    knows: Arc<AtomicBool>,
    discreet: Arc<AtomicBool>,
    contexts: Arc<Mutex<Vec<String>>>,
    _server: JoinSet<()>,
}

#[derive(Clone)]
struct Service {
    name: String,
    credentials: Credentials,
    calls: Arc<AtomicUsize>,
    knows: Arc<AtomicBool>,
    discreet: Arc<AtomicBool>,
    contexts: Arc<Mutex<Vec<String>>>,
}

// === impl Credentials ===

impl Credentials {
    /// Values that cannot occur by chance.
    pub(super) fn random() -> Self {
        let random = std::hash::RandomState::new();
        let part = |salt: u8| std::hash::BuildHasher::hash_one(&random, salt);
        let core = |salt: u8| format!("{:016x}{:016x}", part(salt), part(salt + 1));
        Self {
            password_core: core(0),
            key_core: core(2),
        }
    }

    fn password(&self) -> String {
        format!("P\"\\ä {}&=+/?", self.password_core)
    }

    fn key(&self) -> String {
        format!("-----BEGIN KEY-----\n{}\n-----END KEY-----\n", self.key_core)
    }

    pub(super) fn data(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("password".to_owned(), self.password()),
            ("key".to_owned(), self.key()),
        ])
    }

    /// Texts that must not occur: half of the random part identifies a credential, plain or encoded.
    pub(super) fn parts(&self) -> Vec<(String, Vec<u8>)> {
        let mut parts = Vec::new();
        for (name, value, core) in [
            ("password", self.password(), &self.password_core),
            ("key", self.key(), &self.key_core),
        ] {
            let mut part = |how: &str, text: &str| {
                // The first and last characters of the encoding depend on the surrounding text.
                let inner = &text[4..text.len() - 4];
                let (first, second) = inner.split_at(inner.len() / 2);
                for half in [first, second] {
                    parts.push((format!("a part of the {name}, {how}"), half.as_bytes().to_vec()));
                }
            };
            part("as it is", core);
            part("in hex", &hex(core));
            for before in ["", "x", "xx"] {
                part("in base64", &base64(format!("{before}{core}").as_bytes()));
                part("in base64", &base64(format!("{before}{value}").as_bytes()));
            }
        }
        parts
    }

    /// The driver's error messages, one per call: whole values, plain, quoted and in base64.
    fn sayings(&self) -> Vec<String> {
        let (password, key) = (self.password(), self.key());
        vec![
            format!("login with {password} failed"),
            format!("bad credentials: {password:?} and {key:?}"),
            format!("secret data: {}", base64(key.as_bytes())),
            serde_json::json!({ "request": { "password": password, "key": key } }).to_string(),
        ]
    }
}

// === impl LeakyDriver ===

impl LeakyDriver {
    /// Serves on a socket in `dir`, without leaking until [`leak`](Self::leak).
    pub(super) fn serve(dir: &Path, name: &str, credentials: Credentials) -> Result<Self> {
        let socket = dir.join("leaky.sock");
        let listener = UnixListener::bind(&socket).context("listen on the driver's socket")?;
        let knows = Arc::new(AtomicBool::new(false));
        let discreet = Arc::new(AtomicBool::new(true));
        let contexts = Arc::<Mutex<Vec<String>>>::default();
        let service = Service {
            name: name.to_owned(),
            credentials,
            calls: Arc::default(),
            knows: knows.clone(),
            discreet: discreet.clone(),
            contexts: contexts.clone(),
        };
        let identity = IdentityServer::new(service.clone());
        let controller = ControllerServer::new(service);
        let services = service_fn(move |request: http::Request<Body>| {
            let (mut identity, mut controller) = (identity.clone(), controller.clone());
            async move {
                if request.uri().path().starts_with("/csi.v1.Identity/") {
                    identity.call(request).await
                } else {
                    controller.call(request).await
                }
            }
        });
        let mut server = JoinSet::new();
        server.spawn(async move {
            let served = Server::builder()
                .serve_with_incoming(services, UnixListenerStream::new(listener))
                .await;
            if let Err(error) = served {
                tracing::warn!(%error, "the leaky driver ended");
            }
        });
        Ok(Self {
            socket,
            knows,
            discreet,
            contexts,
            _server: server,
        })
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// From now on its errors contain the credentials.
    pub(super) fn leak(&self) {
        self.discreet.store(false, Ordering::Relaxed);
    }

    /// The `traceparent` header of each ControllerPublishVolume so far.
    pub(super) fn contexts(&self) -> Vec<String> {
        lock(&self.contexts).clone()
    }

    /// Whether every call contained the credentials.
    pub(super) fn knows(&self) -> bool {
        self.knows.load(Ordering::Relaxed)
    }
}

// === impl Service ===

impl Service {
    /// While leaking, returns each error message once, then lets one call succeed.
    fn say(&self, given: &HashMap<String, String>) -> Result<(), Status> {
        let knows = self
            .credentials
            .data()
            .iter()
            .all(|(key, value)| given.get(key) == Some(value));
        self.knows.store(knows, Ordering::Relaxed);
        if self.discreet.load(Ordering::Relaxed) {
            return Ok(());
        }
        let sayings = self.credentials.sayings();
        let call = self.calls.fetch_add(1, Ordering::Relaxed) % (sayings.len() + 1);
        let Some(saying) = sayings.get(call) else {
            return Ok(());
        };
        let codes = [
            Code::Internal,
            Code::Unauthenticated,
            Code::Unavailable,
            Code::InvalidArgument,
        ];
        let details = saying.clone().into_bytes().into();
        let mut status = Status::with_details(codes[call % codes.len()], saying, details);
        let header = hex(saying).parse().map_err(|_| Status::internal("no header"))?;
        status.metadata_mut().insert("x-password", header);
        Err(status)
    }
}

#[tonic::async_trait]
impl Identity for Service {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        Ok(Response::new(v1::GetPluginInfoResponse {
            name: self.name.clone(),
            ..Default::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        let service = plugin_capability::Service {
            r#type: plugin_capability::service::Type::ControllerService.into(),
        };
        let capability = v1::PluginCapability {
            r#type: Some(plugin_capability::Type::Service(service)),
        };
        Ok(Response::new(v1::GetPluginCapabilitiesResponse {
            capabilities: vec![capability],
        }))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        Ok(Response::new(v1::ProbeResponse::default()))
    }
}

#[tonic::async_trait]
impl Controller for Service {
    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<v1::ControllerGetCapabilitiesResponse>, Status> {
        use controller_service_capability::{Rpc, Type, rpc};
        let publish = v1::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc {
                r#type: rpc::Type::PublishUnpublishVolume.into(),
            })),
        };
        Ok(Response::new(v1::ControllerGetCapabilitiesResponse {
            capabilities: vec![publish],
        }))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerPublishVolumeResponse>, Status> {
        if let Some(context) = request.metadata().get("traceparent") {
            let context = context.to_str().unwrap_or("not even text").to_owned();
            let mut contexts = lock(&self.contexts);
            contexts.push(context);
        }
        self.say(&request.into_inner().secrets)?;
        Ok(Response::new(v1::ControllerPublishVolumeResponse::default()))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerUnpublishVolumeResponse>, Status> {
        self.say(&request.into_inner().secrets)?;
        Ok(Response::new(v1::ControllerUnpublishVolumeResponse::default()))
    }
}

// === functions ===

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}
fn base64(bytes: &[u8]) -> String {
    serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec()))
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}
