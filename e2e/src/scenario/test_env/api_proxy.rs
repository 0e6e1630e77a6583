//! A proxy between an attacher and the API server that responds to writes itself, as a load balancer without a backend does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use http::header::{AUTHORIZATION, HOST};
use http::{Method, StatusCode};
use kube::Client;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::TestEnv;
use crate::attacher::{AttacherProcess, AttacherSpec};
use crate::kubeconfig;

/// Dropping it closes its port.
#[derive(Debug)]
pub struct ApiProxy {
    stray: Arc<AtomicUsize>,
    _server: JoinSet<()>,
}

// === impl ApiProxy ===

impl ApiProxy {
    /// Responds with a 404 that is not the API server's to the next write of a VolumeAttachment, its status apart.
    pub fn lose_next_write(&self) {
        self.stray.store(1, Ordering::Relaxed);
    }

    /// Fails if no write was lost since [`Self::lose_next_write`].
    pub fn ensure_lost(&self) -> Result<()> {
        let left = self.stray.load(Ordering::Relaxed);
        ensure!(left == 0, "the attacher did not write the VolumeAttachment");
        Ok(())
    }
}

// === impl TestEnv ===

impl TestEnv<'_> {
    /// Replaces the attacher by one whose requests go through a proxy.
    pub async fn put_behind_proxy(&mut self) -> Result<ApiProxy> {
        let api_server = kubeconfig::client(&self.spec.kubeconfig).await?;
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .context("listen for the attacher")?;
        let server = format!("http://{}", listener.local_addr()?);
        let path = self.dir.join("proxy.kubeconfig");
        kubeconfig::write(&path, json!({"server": server}), "the proxy has another one")?;
        let stray = Arc::new(AtomicUsize::new(0));
        let router = axum::Router::new()
            .fallback(forward)
            .with_state((api_server, stray.clone()));
        let mut server = JoinSet::new();
        server.spawn(async move {
            axum::serve(listener, router).await.ok();
        });
        let spec = AttacherSpec {
            kubeconfig: path,
            ..self.spec.clone()
        };
        self.replace_attacher(spec).await?;
        Ok(ApiProxy {
            stray,
            _server: server,
        })
    }

    /// Replaces the attacher by one without the proxy.
    pub async fn remove_proxy(&mut self, proxy: ApiProxy) -> Result<()> {
        self.replace_attacher(self.spec.clone()).await?;
        drop(proxy);
        Ok(())
    }

    async fn replace_attacher(&mut self, spec: AttacherSpec) -> Result<()> {
        self.attacher.stop().await?;
        self.attacher = AttacherProcess::start(self.ctx.run().clone(), spec).await?;
        Ok(())
    }
}

type Proxied = (Client, Arc<AtomicUsize>);

async fn forward(State((api_server, stray)): State<Proxied>, request: Request) -> Response {
    let path = request.uri().path();
    let is_write = request.method() == Method::PATCH
        && path.contains("/volumeattachments/")
        && !path.ends_with("/status");
    let take = |left: usize| left.checked_sub(1);
    if is_write
        && stray
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    {
        return (StatusCode::NOT_FOUND, "404 page not found\n").into_response();
    }
    let (mut parts, body) = request.into_parts();
    // The client has those of the API server.
    parts.headers.remove(AUTHORIZATION);
    parts.headers.remove(HOST);
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let request = http::Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
    match api_server.send(request).await {
        Ok(response) => response.map(Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}
