//! Effects of backend faults on the array's stored state.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Driver;
use crate::error_chain;
use crate::store;

// === impl Driver ===

impl Driver {
    /// Persists the state loss that the active backend faults cause on restart, so that it also happens after SIGKILL.
    ///
    /// # Errors
    /// It cannot be written; the previous record remains.
    pub(crate) async fn settle_loss(self: &Arc<Self>) -> Result<(), store::OpenError> {
        let driver = self.clone();
        let settled = tokio::task::spawn_blocking(move || {
            let wanted = driver.faults.loss();
            driver.store.lose(|| *wanted.borrow())
        });
        match settled.await {
            Ok(settled) => settled,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => Ok(()),
            },
        }
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
