//! Effects of backend faults on ListVolumes and on the array's stored state.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Driver;
use crate::array::{Array, NodeId, Page};
use crate::error_chain;
use crate::store;

// === impl Driver ===

impl Driver {
    /// A page of volumes, changed by the active backend faults.
    pub(crate) async fn page(&self, max_entries: usize, token: Option<&str>) -> Result<Page, store::Error> {
        let view = self.faults.listing();
        let list = |array: &Array| array.list(max_entries, token);
        let mut page = if view.is_frozen {
            self.store.read_past(list).await?
        } else {
            self.store.read(list).await?
        };
        page.entries.retain(|entry| {
            let id = entry.spec.id.as_str();
            !view.lacks.iter().any(|pattern| pattern.matches(id, ""))
        });
        for entry in &mut page.entries {
            for (_, node) in view
                .adds
                .iter()
                .filter(|(pattern, _)| pattern.matches(entry.spec.id.as_str(), ""))
            {
                let node = NodeId::from(node.as_str());
                if !entry.nodes.contains(&node) {
                    entry.nodes.push(node);
                }
            }
        }
        Ok(page)
    }

    /// Persists the state loss that the active backend faults cause on restart, so that it also happens after SIGKILL.
    ///
    /// # Errors
    /// It cannot be written; the previous record remains.
    pub(crate) async fn settle_loss(self: &Arc<Self>) -> Result<(), store::OpenError> {
        let driver = self.clone();
        let settle = move || {
            let wanted = driver.faults.loss();
            driver.store.lose(|| *wanted.borrow())
        };
        // None if the runtime is shutting down.
        crate::blocking(&self.work, settle).await.unwrap_or(Ok(()))
    }

    /// Persists changes of the active state loss until `stop`.
    pub(crate) async fn follow_losses(self: &Arc<Self>, stop: CancellationToken) {
        let mut loss = self.faults.loss();
        let follow = async {
            loop {
                if let Err(error) = self.settle_loss().await {
                    tracing::error!(
                        error = error_chain(&error),
                        "failed to record the backend fault state-loss; it has no effect"
                    );
                }
                if loss.changed().await.is_err() {
                    return;
                }
            }
        };
        stop.run_until_cancelled(follow).await;
    }
}
