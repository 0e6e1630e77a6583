//! What the routes work on.

use std::sync::Arc;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::problem::Refusal;
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::error_chain;
use crate::journal::Journal;
use crate::service::call::{self, Rpc};

/// The driver and its server.
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

    /// Does what a CSI request asks for, past fault rules, journal, capabilities and the queue for the
    /// volume: a call that a rule holds up stops nobody here, only one whose work is being done is waited
    /// for. Goes on to its end although the client has left, as a call does.
    pub(super) async fn perform<Q: Rpc>(&self, request: Q) -> Result<Q::Reply, Refusal> {
        let params = request.validate()?;
        let keys = call::keys(&request);
        let driver = self.driver.clone();
        let work = self
            .driver
            .spawn_work(async move { driver.execute::<Q>(params, keys).await });
        let reply = work.await.ok().flatten().unwrap_or(Err(Error::Broken));
        self.touch();
        Ok(reply?)
    }

    /// Sees to it that troubles that were begun or ended are in force before anybody hears of it.
    pub(super) async fn settle_troubles(&self) -> Result<(), Refusal> {
        self.touch();
        let failed = |error| Refusal::new(tonic::Code::Internal, error_chain(&error));
        self.driver.settle_loss().await.map_err(failed)
    }

    /// Tells those who follow that something was changed beside the calls.
    pub(super) fn touch(&self) {
        if let Some(journal) = &self.driver.journal {
            journal.touch();
        }
    }
}
