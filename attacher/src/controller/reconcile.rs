//! The loop that asks the driver where its volumes are and hands the answer to the [`ControllerState`].
//!
//! A round is bound to one session: a driver that went away and came back may read another's token as it
//! pleases. Every page has a deadline of its own, so an array of any size can be listed; but a list without
//! an end is given up (docs/adr/0014-reconcile.md). Whatever goes wrong skips the round; the next one starts afresh.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::controller::state::{ControllerState, Event, Fault, Finding, Round, lock};
use crate::csi::{CallError, ConnectionState, ControllerClient, ListRequest};
use crate::model::Driver;
use crate::plan::reconcile::ListVolumesResult;
use crate::report::chain;

/// See the module.
pub struct Reconciler<D> {
    /// The core.
    pub state: Arc<Mutex<ControllerState>>,
    /// Whom to ask.
    pub csi: D,
    /// Whose volumes.
    pub driver: Driver,
    /// The state of the driver's connection.
    pub link: watch::Receiver<ConnectionState>,
    /// Where results go: the state takes them in turn with everything else that happens.
    pub events_tx: mpsc::Sender<Event>,
    /// The time from the end of one round to the next (`--reconcile-sync`).
    pub interval: Duration,
    /// How many entries a page may have; 0 leaves it to the driver (`--max-entries`).
    pub max_entries: i32,
}

/// Why a round came to nothing.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("ListVolumes failed")]
    Call(#[source] CallError),
    #[error("the driver gave out the ListVolumes token {0:?} again, so its list has no end")]
    RepeatedToken(String),
    #[error(
        "the driver gave out {EMPTY_PAGES} pages of ListVolumes in a row without a volume, so its list has no end"
    )]
    OnlyTokens,
    #[error("the driver's list (ListVolumes) had not come to an end after {0:?}")]
    TooLong(Duration),
    #[error("the driver's connection changed during ListVolumes")]
    OtherSession,
}

/// Tokens, as far as they are needed to notice that they go round in a circle: one is kept, and
/// replaced after 1, 2, 4, 8, ... others. However long the list, that is one token.
#[derive(Debug, Default)]
struct Circle {
    kept: String,
    seen: u64,
    next: u64,
}

/// A driver may filter its pages after it has cut them, so some may be empty. It does not make up tokens for
/// so many.
const EMPTY_PAGES: u32 = 1000;
/// The least that a list may take in all.
const PATIENCE: Duration = Duration::from_secs(10 * 60);
/// A list may also take so many times the interval between two of them: whoever lists seldom has a reason.
const INTERVALS: u32 = 10;

/// How soon to look again whether there is anything to survey: before the first lists are complete, for
/// one.
const IDLE: Duration = Duration::from_millis(100);

// === impl Reconciler ===

impl<D: ControllerClient> Reconciler<D> {
    /// Reconciles until `shutdown`, then waits to be dropped.
    ///
    /// The first round begins when work does, the next one `interval` after its end, or as soon as the
    /// driver is connected again: whatever made it go away may have cost attachments.
    ///
    /// # Cancellation
    ///
    /// Nothing is left behind but, in the state, the beginning of a round that the next one replaces.
    pub async fn run(mut self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.rounds()).await;
        std::future::pending::<()>().await;
    }

    async fn rounds(&mut self) {
        loop {
            let lists = |link: &ConnectionState| {
                link.session().is_some_and(|session| {
                    session.capabilities.publish && session.capabilities.list_published
                })
            };
            // An error means that nobody keeps the connection any more: we are about to be dropped.
            if self.link.wait_for(lists).await.is_err() {
                return;
            }
            let pause = if self.round().await {
                self.interval.max(IDLE)
            } else {
                IDLE
            };
            tokio::select! {
                biased;
                changed = self.link.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One round. Says whether there was one.
    pub async fn round(&mut self) -> bool {
        let survey = lock(&self.state).begin_reconcile(&self.driver);
        let Some(mut survey) = survey else { return false };
        let began = Instant::now();
        let mut listed = 0;
        let result = if survey.is_empty() {
            // Nobody needs the answer.
            Ok(())
        } else {
            self.list_all(&mut survey, &mut listed).await
        };
        let round = Round {
            ended: Instant::now().into_std(),
            took: began.elapsed(),
            listed,
        };
        match result {
            Ok(()) => self.send(Event::VolumesListed(survey, round)).await,
            Err(error) => {
                let why = chain(&error);
                tracing::warn!(error = why, "not reconciled this time");
                self.send(Event::ListVolumesFailed(round, why.into())).await;
            }
        }
        true
    }

    /// Feeds `survey` with all that the driver lists, and counts it.
    async fn list_all(&mut self, survey: &mut ListVolumesResult, listed: &mut u64) -> Result<(), Error> {
        let longest = self.interval.saturating_mul(INTERVALS).max(PATIENCE);
        let mut link = self.link.clone();
        tokio::select! {
            biased;
            _ = link.changed() => Err(Error::OtherSession),
            result = tokio::time::timeout(longest, self.list(survey, listed)) => {
                result.unwrap_or(Err(Error::TooLong(longest)))
            }
        }
    }

    async fn list(&self, survey: &mut ListVolumesResult, listed: &mut u64) -> Result<(), Error> {
        let mut starting_token = String::new();
        let mut circle = Circle::default();
        let mut empty = 0;
        loop {
            let request = ListRequest {
                max_entries: self.max_entries,
                starting_token,
            };
            let page = self.csi.list(request).await.map_err(Error::Call)?;
            for volume in &page.volumes {
                survey.see(&volume.handle, volume.published.as_deref());
                *listed += 1;
            }
            if page.next_token.is_empty() {
                return Ok(());
            }
            if circle.closes_with(&page.next_token) {
                return Err(Error::RepeatedToken(page.next_token));
            }
            empty = if page.volumes.is_empty() { empty + 1 } else { 0 };
            if empty == EMPTY_PAGES {
                return Err(Error::OnlyTokens);
            }
            starting_token = page.next_token;
        }
    }

    async fn send(&self, event: Event) {
        // Without a receiver there is no more work; the supervisor is about to drop us.
        self.events_tx.send(event).await.ok();
    }
}

// === impl Circle ===

impl Circle {
    fn closes_with(&mut self, token: &str) -> bool {
        if self.kept == token {
            return true;
        }
        self.seen += 1;
        if self.seen > self.next {
            self.next = self.seen * 2;
            token.clone_into(&mut self.kept);
        }
        false
    }
}

/// Tells people what a survey found. Whoever wants to know of it elsewhere begins here.
pub fn tell(finding: &Finding) {
    let Finding {
        attachment,
        target,
        fault,
        times,
    } = finding;
    let (va, node) = (&attachment.name, &attachment.node);
    match fault {
        Fault::Lost => tracing::warn!(
            %va, %node, volume = %target.volume_id, node_id = %target.node_id, times,
            "the driver does not list an attached volume on its node; publishing it again"
        ),
        Fault::Leftover => tracing::warn!(
            %va, %node, volume = %target.volume_id, node_id = %target.node_id, times,
            "the driver lists a detached volume on its node; unpublishing it again"
        ),
    }
}

#[cfg(test)]
mod tests;
