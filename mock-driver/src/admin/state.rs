use std::sync::Arc;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::problem::Refusal;
use super::request::Reply;
use crate::array::{self, Array, Done, Named};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::journal::Journal;
use crate::service::call::Rpc;

#[derive(Clone, Debug)]
pub(super) struct Admin {
    pub(super) driver: Arc<Driver>,
    pub(super) stop: CancellationToken,
    pub(super) started: Timestamp,
}

// === impl Admin ===

impl Admin {
    pub(super) fn journal(&self) -> Result<&Arc<Journal>, Refusal> {
        self.driver.journal.as_ref().ok_or_else(|| {
            let message = "no calls are kept in memory: start the driver with --admin-endpoint";
            Refusal::new(tonic::Code::FailedPrecondition, message)
        })
    }

    pub(super) async fn read<T>(&self, look: impl FnOnce(&Array) -> Result<T, array::Error>) -> Reply<T> {
        Ok(self.driver.store.read(look).await?)
    }

    /// The id of an object that a request names by its id or its name.
    pub(super) async fn id_of(&self, kind: Named, text: &str) -> Reply<String> {
        self.read(|array| Ok(array.id_of(kind, text))).await
    }

    pub(super) async fn change(
        &self,
        act: impl FnOnce(&mut Array) -> Result<Done<()>, array::Error>,
    ) -> Result<(), Refusal> {
        self.driver.store.change(act).await?;
        self.touch();
        Ok(())
    }

    /// Executes a CSI request without fault rules, journal, capabilities and the call's lock of the volume: it waits for
    /// an operation in progress, but not for a call that a rule delays. It runs to its end although the client disconnects.
    pub(super) async fn perform<Q: Rpc>(&self, request: Q) -> Result<Q::Reply, Refusal> {
        let params = request.validate()?;
        let keys = request.keys();
        let driver = self.driver.clone();
        let work = self
            .driver
            .spawn_work(async move { driver.execute::<Q>(params, keys).await });
        let ended = work.await.map_err(|_| Error::Broken)?;
        let reply = ended.unwrap_or(Err(Error::Interrupted));
        self.touch();
        Ok(reply?)
    }

    /// Notifies watchers of a change outside calls.
    pub(super) fn touch(&self) {
        if let Some(journal) = &self.driver.journal {
            journal.touch();
        }
    }
}
