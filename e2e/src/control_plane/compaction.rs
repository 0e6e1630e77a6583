//! Compaction of etcd, which kube-apiserver does every five minutes.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Component, ControlPlane};

// === impl ControlPlane ===

impl ControlPlane {
    /// Compacts etcd at its newest revision and restarts kube-apiserver, whose watch cache otherwise keeps the compacted
    /// versions.
    pub async fn compact(&self) -> Result<()> {
        // The header of the response for any key has the newest revision.
        let newest = self.call_etcd("range", &json!({ "key": "AA==" })).await?;
        let revision = &newest["header"]["revision"];
        self.call_etcd("compaction", &json!({ "revision": revision }))
            .await?;
        self.restart(Component::ApiServer).await
    }

    /// Sends a request to the JSON gateway of etcd's KV service.
    async fn call_etcd(&self, method: &str, body: &Value) -> Result<Value> {
        let request = http::Request::post(format!("/v3/kv/{method}"))
            .body(body.to_string().into_bytes())
            .context("build a request")?;
        let client = self.probe_client(Component::Etcd).await?;
        let response = client.request(request).await;
        response.with_context(|| format!("send {method} to etcd"))
    }
}
