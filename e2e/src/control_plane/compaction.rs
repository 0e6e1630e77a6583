//! Compaction of etcd, which kube-apiserver does every five minutes.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Component, ControlPlane};

// === impl ControlPlane ===

impl ControlPlane {
    /// Compacts etcd at its newest revision and restarts kube-apiserver: its watch cache, which outlives a compaction, then
    /// begins with the newest versions.
    pub async fn compact(&self) -> Result<()> {
        // Any key will do: the answer's header has the newest revision.
        let newest = self.ask_etcd("range", &json!({ "key": "AA==" })).await?;
        let revision = &newest["header"]["revision"];
        self.ask_etcd("compaction", &json!({ "revision": revision }))
            .await?;
        self.restart(Component::ApiServer).await
    }

    /// Sends a request to the JSON gateway of etcd's KV service.
    async fn ask_etcd(&self, method: &str, body: &Value) -> Result<Value> {
        let request = http::Request::post(format!("/v3/kv/{method}"))
            .body(body.to_string().into_bytes())
            .context("build a request")?;
        let client = self.probe_client(Component::Etcd).await?;
        let answer = client.request(request).await;
        answer.with_context(|| format!("send {method} to etcd"))
    }
}
