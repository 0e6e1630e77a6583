//! An API server behind a load balancer, which answers writes itself while it has no backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use http::Method;
use http_body_util::BodyExt as _;

use super::TestEnv;
use crate::api_proxy::{ApiProxy, answer, forwarded, returned};
use crate::attacher::{AttacherProcess, AttacherSpec};
use crate::kubeconfig;

/// Dropping it closes its port.
#[derive(Debug)]
pub struct LoadBalancer {
    loses_next: Arc<AtomicBool>,
    _proxy: ApiProxy,
}

// === impl LoadBalancer ===

impl LoadBalancer {
    /// Responds with a 404 that is not the API server's to the next write of a VolumeAttachment, its status apart.
    pub fn lose_next_write(&self) {
        self.loses_next.store(true, Ordering::Relaxed);
    }

    /// Fails if no write was lost since [`Self::lose_next_write`].
    pub fn ensure_lost(&self) -> Result<()> {
        let is_due = self.loses_next.load(Ordering::Relaxed);
        ensure!(!is_due, "the attacher did not write the VolumeAttachment");
        Ok(())
    }
}

// === impl TestEnv ===

impl TestEnv<'_> {
    /// Replaces the attacher by one whose requests go through a load balancer.
    pub async fn put_behind_load_balancer(&mut self) -> Result<LoadBalancer> {
        let api_server = kubeconfig::client(&self.spec.kubeconfig).await?;
        let path = self.dir.join("load-balancer.kubeconfig");
        let loses_next = Arc::new(AtomicBool::new(false));
        let is_due = loses_next.clone();
        let proxy = ApiProxy::start(&path, move |request| {
            let (api_server, is_due) = (api_server.clone(), is_due.clone());
            async move {
                let (parts, body) = request.into_parts();
                let path = parts.uri.path();
                let is_write = parts.method == Method::PATCH
                    && path.contains("/volumeattachments/")
                    && !path.ends_with("/status");
                if is_write && is_due.swap(false, Ordering::Relaxed) {
                    return Ok(answer(404, false));
                }
                let request = forwarded(parts, &body.collect().await?.to_bytes());
                Ok(returned(api_server.send(request).await?))
            }
        });
        let proxy = proxy.await?;
        let spec = AttacherSpec {
            kubeconfig: path,
            ..self.spec.clone()
        };
        self.replace_attacher(spec).await?;
        Ok(LoadBalancer {
            loses_next,
            _proxy: proxy,
        })
    }

    /// Replaces the attacher by one without the load balancer.
    pub async fn remove_load_balancer(&mut self, load_balancer: LoadBalancer) -> Result<()> {
        self.replace_attacher(self.spec.clone()).await?;
        drop(load_balancer);
        Ok(())
    }

    async fn replace_attacher(&mut self, spec: AttacherSpec) -> Result<()> {
        self.attacher.stop().await?;
        self.attacher = AttacherProcess::start(self.ctx.run().clone(), spec).await?;
        Ok(())
    }
}
