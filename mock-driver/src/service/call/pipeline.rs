//! The faults of a call around its operation: the same for this driver's calls and for those that the proxy forwards.

use crate::driver::Driver;
use crate::driver::error::Error;
use crate::fault::{ActiveFault, Decision};
use crate::journal::CallRecord;
use crate::service::call::Injection;
use crate::socket::ConnectionInfo;

/// A call in the pipeline, which this driver or another one executes.
pub(crate) trait Execute {
    type Reply;

    type Error: From<Error>;

    /// Selects the faults of the call.
    fn decide(&self) -> Decision;

    fn record(&mut self) -> Option<&mut CallRecord>;

    fn connection(&self) -> Option<&ConnectionInfo>;

    /// Executes the operation, after the decision's delays. `after` is the rule that acts when it has succeeded.
    fn execute(
        &mut self,
        decision: Decision,
        after: Option<&ActiveFault>,
    ) -> impl Future<Output = Result<Self::Reply, Self::Error>> + Send;

    /// Starts the operation, which continues without its caller.
    fn start(&mut self, decision: Decision);

    /// The reply of a success whose operation does not happen now.
    fn pretended(&mut self) -> impl Future<Output = Self::Reply> + Send;

    /// A reply with these encoded messages: one, unless it is a stream.
    fn reply_of(&mut self, messages: &[Vec<u8>]) -> Result<Self::Reply, Error>;

    fn edit(&self, active: &ActiveFault, reply: Self::Reply) -> Self::Reply;

    /// Leaves a rule to the messages of a stream.
    fn interrupt(&mut self, active: ActiveFault, reply: Self::Reply) -> Self::Reply;
}

// === impl Driver ===

impl Driver {
    /// Executes a call with the faults of its rule and its backend fault.
    ///
    /// # Cancellation
    /// That of [`Execute::execute`].
    pub(crate) async fn execute_with_faults<E: Execute>(&self, call: &mut E) -> Result<E::Reply, E::Error> {
        let mut decision = call.decide();
        let after = decision.take_after();
        if let Some(active) = decision.rule.as_ref().or(decision.backend.as_ref()) {
            set_fault(call, active);
        }
        if let Some(mut active) = decision.rule.take_if(|active| active.rule().replaces_effect()) {
            if active.rule().action.end.is_some() {
                decision = Decision::default();
            }
            match self.apply_fault(&mut active, call.connection()).await {
                // The rule was released before the client cancelled the call.
                Injection::Continue => {}
                injection @ (Injection::Fail(_) | Injection::Succeed | Injection::Respond(_)) => {
                    return answer(call, injection).await;
                }
            }
        }
        if let Some(injection) = decision.background_answer() {
            let answer = answer(call, injection).await;
            call.start(decision);
            return answer;
        }
        let reply = call.execute(decision, after.as_ref()).await?;
        match after {
            None => Ok(reply),
            Some(active) if active.rule().action.after_messages.is_some() => {
                Ok(call.interrupt(active, reply))
            }
            Some(active) => self.apply_fault_after(call, active, reply).await,
        }
    }

    /// Applies a rule of phase `after` to a success, unless another call has ended the rule meanwhile.
    async fn apply_fault_after<E: Execute>(
        &self,
        call: &mut E,
        active: ActiveFault,
        reply: E::Reply,
    ) -> Result<E::Reply, E::Error> {
        let Some(mut active) = self.faults.apply(active) else {
            return Ok(reply);
        };
        set_fault(call, &active);
        match self.apply_fault(&mut active, call.connection()).await {
            Injection::Fail(error) => Err(error.into()),
            Injection::Respond(messages) => Ok(call.reply_of(&messages)?),
            Injection::Continue | Injection::Succeed => Ok(call.edit(&active, reply)),
        }
    }
}

/// Answers a call whose operation does not happen now.
async fn answer<E: Execute>(call: &mut E, injection: Injection) -> Result<E::Reply, E::Error> {
    match injection {
        Injection::Fail(error) => Err(error.into()),
        Injection::Continue => Err(Error::Broken.into()),
        Injection::Succeed => Ok(call.pretended().await),
        Injection::Respond(messages) => Ok(call.reply_of(&messages)?),
    }
}

fn set_fault<E: Execute>(call: &mut E, active: &ActiveFault) {
    if let Some(record) = call.record() {
        record.set_fault(&active.rule().id);
    }
}
