use std::cell::OnceCell;
use std::sync::Arc;

use prost::Message;
use tokio::task::JoinHandle;
use tokio::time;
use tonic::Request;

use super::{Call, Execute, Rpc, status_of};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::driver::locks::Guard;
use crate::fault::{ActiveFault, Decision};
use crate::journal::CallRecord;
use crate::rpc::method::Kind;
use crate::socket::ConnectionInfo;

pub(super) struct DriverCall<'a, Q: Rpc> {
    pub(super) driver: &'a Arc<Driver>,
    pub(super) request: &'a Request<Q>,
    /// Taken by the operation.
    pub(super) params: Option<Q::Params>,
    /// Held until the response is ready.
    pub(super) locked: Vec<Guard>,
    pub(super) call: &'a mut Call,
    /// The node of the process, for a request without a node id; looked up when a rule needs it.
    pub(super) here: OnceCell<String>,
}

// === impl DriverCall ===

impl<Q: Rpc> DriverCall<'_, Q> {
    /// The durable operation of the array, and the node's devices and mounts. The decision's reservation lives until the array has
    /// the capacity.
    fn operation(
        &mut self,
        mut decision: Decision,
    ) -> impl Future<Output = Result<Q::Reply, Error>> + Send + 'static + use<Q> {
        let (driver, params, keys) = (
            self.driver.clone(),
            self.params.take(),
            self.request.get_ref().keys(),
        );
        async move {
            if let Err(refusal) = decision.pause().await {
                // Volumes that count towards a limit may not be durable yet.
                driver.store.read(|_| Ok(())).await?;
                return Err(refusal);
            }
            if Q::KIND == Kind::Publish && !driver.settings.latency.is_zero() {
                time::sleep(driver.settings.latency).await;
            }
            driver.execute::<Q>(params.ok_or(Error::Broken)?, keys).await
        }
    }

    /// Executes the operation in a task of its own, so that it completes although the client disconnects.
    #[allow(clippy::type_complexity, reason = "a result with the locks that it keeps")]
    fn spawn(&mut self, decision: Decision) -> JoinHandle<Option<(Result<Q::Reply, Error>, Vec<Guard>)>> {
        let operation = self.operation(decision);
        let record = self.call.record.as_ref().map(|record| record.operation.clone());
        // Without a receiver this drops the locks.
        let locked = std::mem::take(&mut self.locked);
        self.driver.spawn_work(async move {
            let result = operation.await;
            if let Some(record) = record {
                record.done(status_of(&result));
            }
            (result, locked)
        })
    }
}

impl<Q: Rpc> Execute for DriverCall<'_, Q> {
    type Reply = Q::Reply;
    type Error = Error;

    fn decide(&self) -> Decision {
        self.driver.faults.decide(self)
    }

    fn record(&mut self) -> Option<&mut CallRecord> {
        self.call.record.as_mut()
    }

    fn connection(&self) -> Option<&ConnectionInfo> {
        self.call.connection.as_ref()
    }

    /// A call that only reads ends with its client.
    async fn execute(&mut self, decision: Decision, _: Option<&ActiveFault>) -> Result<Q::Reply, Error> {
        if Q::KIND == Kind::Read {
            return self.operation(decision).await;
        }
        let ended = self.spawn(decision).await.map_err(|_| Error::Broken)?;
        let (result, locked) = ended.ok_or(Error::Interrupted)?;
        self.locked = locked;
        result
    }

    fn start(&mut self, decision: Decision) {
        if let Some(record) = &mut self.call.record {
            record.is_background = true;
        }
        drop(self.spawn(decision));
    }

    /// The reply of a copy of the array, empty if the operation would fail.
    async fn pretended(&mut self) -> Q::Reply {
        let Ok(params) = self.request.get_ref().validate() else {
            return Q::Reply::default();
        };
        let replied = match Q::KIND {
            Kind::Read => Q::execute(params, self.driver).await,
            Kind::OnNode => Ok(Q::Reply::default()),
            Kind::Change | Kind::Publish => {
                self.driver.store.promise(|array| Q::promise(&params, array));
                Q::execute(params, &self.driver.with_copied_array()).await
            }
        };
        replied.unwrap_or_default()
    }

    fn reply_of(&mut self, messages: &[Vec<u8>]) -> Result<Q::Reply, Error> {
        let first = messages.first().map(Vec::as_slice).unwrap_or_default();
        let first = Q::Reply::decode(first).expect("a reply of a rule must decode: it was checked");
        self.call.stub = Some(messages.to_vec());
        Ok(first)
    }

    fn edit(&self, active: &ActiveFault, reply: Q::Reply) -> Q::Reply {
        active.edited(Q::PATH, reply)
    }

    fn interrupt(&mut self, active: ActiveFault, reply: Q::Reply) -> Q::Reply {
        self.call.pending = Some(active);
        reply
    }
}
