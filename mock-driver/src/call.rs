//! The way of every call: journal, check, turn, fault, work, fault, journal.
//!
//! - A malformed request is refused before anything else looks at it.
//! - A call that changes a volume has the volume for itself until its answer is out, injected
//!   delays included.
//! - Work on the array, once begun, goes on to its end although the client has left, as it would in
//!   a real array: that is how an attach that timed out turns out to have happened.

use std::sync::Arc;

use csi_proto::Secrets;
use prost::Message;
use tokio::sync::oneshot;
use tokio::time;
use tonic::{Code, Request, Response, Status};

use crate::busy::{Held, Share, Subject};
use crate::driver::Driver;
use crate::error::Error;
use crate::fault::{Fired, Met, Obstacle, Phase};
use crate::journal::{CallRecord, Journal, Outcome, Peer, WorkRecord};
use crate::method::{Kind, Method};
use crate::request::Invalid;
use crate::socket::ConnectionInfo;

use self::arrival::Arrival;
pub(crate) use self::arrival::{continues, map_entry, requested_size};

mod arrival;
mod stream;
mod suffer;

/// A request this driver can answer.
pub(crate) trait Rpc: Message + Secrets + Clone + 'static {
    /// The method it belongs to.
    const METHOD: Method;

    /// What it is about to do.
    const KIND: Kind = Self::METHOD.kind();

    /// Its answer.
    type Reply: Message + Secrets + Clone + Default + 'static;

    /// The request in the array's terms.
    type Plan: Send + 'static;

    /// The volume it names, if any.
    fn volume(&self) -> &str {
        ""
    }

    /// The node it names, if any.
    fn node(&self) -> &str {
        ""
    }

    /// The name of the volume it wants created, if any.
    fn name(&self) -> &str {
        ""
    }

    /// What it must have for itself while it runs, if it changes anything: the volume, or the name under
    /// which something is made.
    fn wants(&self) -> Vec<(Subject, Share)> {
        match (self.volume(), self.name()) {
            ("", "") => Vec::new(),
            ("", name) => vec![(Subject::Name(name.to_owned()), Share::Whole)],
            (volume, _) if Self::KIND == Kind::OnNode => {
                vec![(Subject::OnNode(volume.to_owned()), Share::Whole)]
            }
            (volume, _) => vec![(Subject::Volume(volume.to_owned()), Share::Whole)],
        }
    }

    /// Checks the request's form.
    fn check(&self) -> Result<Self::Plan, Invalid>;

    /// Does what was asked.
    fn act(plan: Self::Plan, driver: &Driver) -> impl Future<Output = Result<Self::Reply, Error>> + Send;
}

/// What a call came to, before anybody has heard of it.
struct Answer<R> {
    result: Result<R, Error>,
    record: Option<CallRecord>,
    connection: Option<ConnectionInfo>,
    /// A rule that acts on the way of the answer.
    pending: Option<Fired>,
}

// === impl Driver ===

impl Driver {
    /// Answers a call.
    ///
    /// # Cancellation
    /// Dropped when the client leaves; the journal then says so, and work that has begun goes on.
    pub(crate) async fn answer<Q: Rpc>(
        self: &Arc<Self>,
        request: Request<Q>,
    ) -> Result<Response<Q::Reply>, Status> {
        let Answer { result, record, .. } = self.take_in(request).await;
        conclude(record, result)
    }

    /// Answers a call with another message than today's, made of the reply. If that cannot be had the call has
    /// failed; the journal has what is sent either way.
    ///
    /// # Cancellation
    /// As for [`Driver::answer`].
    pub(crate) async fn answer_as<Q: Rpc, O: Message, F>(
        self: &Arc<Self>,
        request: Request<Q>,
        remake: impl FnOnce(Q::Reply) -> F,
    ) -> Result<Response<O>, Status>
    where
        F: Future<Output = Result<O, Error>>,
    {
        let Answer { result, record, .. } = self.take_in(request).await;
        let result = match result {
            Ok(reply) => remake(reply).await,
            Err(error) => Err(error),
        };
        let outcome = outcome(&result);
        if let Some(record) = record {
            let wire = result.as_ref().ok().map(Message::encode_to_vec);
            record.end_wire(&outcome, wire.as_deref());
        }
        told(result, outcome)
    }

    /// Does what a call asks for.
    async fn take_in<Q: Rpc>(self: &Arc<Self>, request: Request<Q>) -> Answer<Q::Reply> {
        let peer = peer(&request);
        let connection = request.extensions().get::<ConnectionInfo>().cloned();
        let request = request.into_inner();
        let begin = |journal: &Arc<_>| Journal::begin(journal, Q::METHOD.path(), peer, &request);
        let mut record = self.journal.as_ref().map(begin);
        let mut pending = None;
        let result = if self.offer.serves(Q::METHOD) {
            self.run(&request, connection.as_ref(), &mut record, &mut pending)
                .await
        } else {
            let path = Q::METHOD.path();
            Err(Error::NotOffered { path })
        };
        Answer {
            result,
            record,
            connection,
            pending,
        }
    }

    async fn run<Q: Rpc>(
        self: &Arc<Self>,
        request: &Q,
        connection: Option<&ConnectionInfo>,
        record: &mut Option<CallRecord>,
        pending: &mut Option<Fired>,
    ) -> Result<Q::Reply, Error> {
        let plan = request.check()?;
        self.conduct.secrets.check(Q::METHOD, request)?;
        let wants = wants(request);
        let held = self.turn(wants.clone()).await?;
        let fired = self.faults.fire(&Arrival::new(request, self));
        // A rule that waits for the effect has done nothing yet.
        let acting = fired.as_ref().filter(|fired| fired.rule().phase != Phase::After);
        set_fault(record, acting);
        let met = self.meet_troubles(request, acting.is_none(), record);

        let (before, after) = match fired {
            Some(mut fired) if fired.rule().replaces_effect() => {
                drop(met);
                return Err(self.suffer(&mut fired, connection).await.unwrap_or(Error::Broken));
            }
            Some(fired) => match fired.rule().phase {
                Phase::Before => (Some(fired), None),
                Phase::After => (None, Some(fired)),
                Phase::Background => {
                    let answer = fired.background_answer();
                    let work = self.clone().work_off::<Q>(plan, wants, Some(fired), met);
                    self.in_background(work, held, record.as_mut().map(CallRecord::part));
                    return Err(answer);
                }
            },
            None => (None, None),
        };
        let work = self.clone().work_off::<Q>(plan, wants, before, met);
        // `_held` lives until the answer is out.
        let (result, _held) = match Q::KIND {
            Kind::Look => (work.await, held),
            Kind::Change | Kind::Move | Kind::OnNode => {
                self.to_its_end(work, held, record.as_ref().map(CallRecord::work))
                    .await
            }
        };
        // If the effect did not happen, nothing can go wrong after it.
        let reply = result?;
        let Some(fired) = after else {
            return Ok(reply);
        };
        if fired.rule().action.after_messages.is_some() {
            *pending = Some(fired);
            return Ok(reply);
        }
        let Some(mut fired) = self.faults.act(fired) else {
            return Ok(reply);
        };
        set_fault(record, Some(&fired));
        match self.suffer(&mut fired, connection).await {
            Some(error) => Err(error),
            None => Ok(fired.edited(Q::METHOD.path(), reply)),
        }
    }

    /// The array's part, put off by what a rule says.
    async fn work_off<Q: Rpc>(
        self: Arc<Self>,
        plan: Q::Plan,
        wants: Vec<(Subject, Share)>,
        fired: Option<Fired>,
        met: Met,
    ) -> Result<Q::Reply, Error> {
        // The claim lives until the array has what the call takes of it.
        let Met {
            obstacle,
            claim: _claim,
        } = met;
        if let Some(mut fired) = fired {
            fired.pause().await;
        }
        match obstacle {
            Some((_, Obstacle::Refuse { code, message })) => return Err(Error::Injected { code, message }),
            Some((_, Obstacle::Wait(time))) => time::sleep(time).await,
            None => {}
        }
        if Q::KIND == Kind::Move && !self.latency.is_zero() {
            time::sleep(self.latency).await;
        }
        self.carry_out::<Q>(plan, wants).await
    }

    /// The work itself, which no other work on the same things comes between: not even that of somebody at
    /// the array's own console, who passes the queue of calls.
    pub(crate) async fn carry_out<Q: Rpc>(
        &self,
        plan: Q::Plan,
        wants: Vec<(Subject, Share)>,
    ) -> Result<Q::Reply, Error> {
        let _hands = self.hands.hold_all(wants).await;
        Q::act(plan, self).await
    }

    /// The call's turn at what it changes.
    async fn turn(&self, wants: Vec<(Subject, Share)>) -> Result<Vec<Held>, Error> {
        let held = self.busy.hold_all(wants).await;
        held.map_err(|subject| Error::Busy {
            subject: subject.to_string(),
        })
    }

    /// Runs work whose caller is answered without waiting for it.
    fn in_background<R: Send + 'static>(
        &self,
        work: impl Future<Output = Result<R, Error>> + Send + 'static,
        held: Vec<Held>,
        record: Option<WorkRecord>,
    ) {
        self.spawn_work(async move {
            let result = work.await;
            if let Some(record) = record {
                record.done(outcome(&result));
            }
            drop(held);
        });
    }

    /// Runs work that nobody can interrupt. If the client leaves, the volume is held until the
    /// work is done, and the journal tells how it ended.
    async fn to_its_end<R: Send + 'static>(
        &self,
        work: impl Future<Output = Result<R, Error>> + Send + 'static,
        held: Vec<Held>,
        record: Option<WorkRecord>,
    ) -> (Result<R, Error>, Vec<Held>) {
        let (result_tx, result) = oneshot::channel();
        self.spawn_work(async move {
            let result = work.await;
            if let Some(record) = record {
                record.done(outcome(&result));
            }
            // Nobody listens when the client has left; the volume is given back all the same.
            drop(result_tx.send((result, held)));
        });
        result.await.unwrap_or((Err(Error::Broken), Vec::new()))
    }
}

/// What a call must have for itself; nothing if it only looks.
pub(crate) fn wants<Q: Rpc>(request: &Q) -> Vec<(Subject, Share)> {
    match Q::KIND {
        Kind::Look => Vec::new(),
        Kind::Change | Kind::Move | Kind::OnNode => request.wants(),
    }
}

fn set_fault(record: &mut Option<CallRecord>, fired: Option<&Fired>) {
    if let (Some(record), Some(fired)) = (record, fired) {
        record.set_fault(&fired.rule().id);
    }
}

fn conclude<R: Message + Secrets + Clone>(
    record: Option<CallRecord>,
    result: Result<R, Error>,
) -> Result<Response<R>, Status> {
    let outcome = outcome(&result);
    if let Some(record) = record {
        record.end(&outcome, result.as_ref().ok());
    }
    told(result, outcome)
}

fn told<R>(result: Result<R, Error>, outcome: Outcome) -> Result<Response<R>, Status> {
    result
        .map(Response::new)
        .map_err(|_| Status::new(outcome.code, outcome.message))
}

fn outcome<R>(result: &Result<R, Error>) -> Outcome {
    match result {
        Ok(_) => Outcome {
            code: Code::Ok,
            message: String::new(),
        },
        Err(error) => Outcome {
            code: error.code(),
            message: error.message(),
        },
    }
}

fn peer<Q>(request: &Request<Q>) -> Option<Peer> {
    let credentials = request.extensions().get::<ConnectionInfo>()?.peer?;
    Some(Peer {
        pid: credentials.pid(),
        uid: credentials.uid(),
    })
}

#[cfg(test)]
mod tests {
    use csi_proto::v1::{
        ControllerGetVolumeRequest, ControllerGetVolumeResponse, ControllerUnpublishVolumeRequest,
    };

    use super::*;
    use crate::driver::Settings;
    use crate::journal::Readers;

    fn mk_driver() -> Arc<Driver> {
        let settings = Settings {
            premade: 1,
            readers: Readers {
                kept: 10,
                ..Readers::default()
            },
            ..Settings::default()
        };
        Driver::open(settings).unwrap().0
    }

    #[tokio::test]
    async fn journal_has_what_is_sent_in_place_of_the_reply_or_that_it_could_not_be_had() {
        let driver = mk_driver();
        let request = || {
            Request::new(ControllerGetVolumeRequest {
                volume_id: "vol-0".to_owned(),
            })
        };
        let fail = |_| std::future::ready(Err::<ControllerGetVolumeResponse, _>(Error::Broken));
        let refused = driver.answer_as(request(), fail).await.unwrap_err();
        assert_eq!(refused.code(), Code::Internal);
        let rename = |mut reply: ControllerGetVolumeResponse| async move {
            reply.volume.as_mut().unwrap().volume_id = "other".to_owned();
            Ok(reply)
        };
        let sent = driver.answer_as(request(), rename).await.unwrap().into_inner();
        assert_eq!(sent.volume.unwrap().volume_id, "other");
        let journal = driver.journal.as_ref().unwrap();
        let calls: Vec<_> = journal.look(|look| look.after(0).map(|(_, call)| call.clone()).collect());
        let codes: Vec<Code> = calls
            .iter()
            .map(|call| call.end().unwrap().outcome.code)
            .collect();
        assert_eq!(codes, [Code::Internal, Code::Ok]);
        assert_eq!(journal.response(&calls[0]), None);
        assert_eq!(
            journal.response(&calls[1]).unwrap()["volume"]["volume_id"],
            "other"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn work_waits_for_other_work_on_the_same_volume_whoever_does_it() {
        let driver = mk_driver();
        let request = ControllerUnpublishVolumeRequest {
            volume_id: "vol-0".to_owned(),
            ..Default::default()
        };
        let held = driver.hands.hold_all(wants(&request)).await.unwrap();
        let work =
            driver.carry_out::<ControllerUnpublishVolumeRequest>(request.check().unwrap(), wants(&request));
        let mut work = std::pin::pin!(work);
        let call = driver.answer(Request::new(request.clone()));
        let mut call = std::pin::pin!(call);
        let while_held = time::Duration::from_secs(5);
        assert!(time::timeout(while_held, &mut work).await.is_err());
        assert!(time::timeout(while_held, &mut call).await.is_err());
        drop(held);
        work.await.unwrap();
        call.await.unwrap();
    }
}
