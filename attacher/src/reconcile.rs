//! The loop that asks the driver where its volumes are and hands the answer to the [`Engine`].
//!
//! A round is bound to one session: a driver that went away and came back may read another's token as it
//! pleases. Every page has a deadline of its own, so an array of any size can be listed
//! (docs/adr/0014-reconcile.md). Whatever goes wrong skips the round; the next one starts afresh.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::csi::{CallError, Controller, Link, ListRequest};
use crate::decide::reconcile::Survey;
use crate::engine::{Engine, Event, Fault, Finding, lock};
use crate::model::Driver;
use crate::report::chain;

/// See the module.
pub struct Reconciler<D> {
    /// The core.
    pub engine: Arc<Mutex<Engine>>,
    /// Whom to ask.
    pub csi: D,
    /// Whose volumes.
    pub driver: Driver,
    /// The state of the driver's connection.
    pub link: watch::Receiver<Link>,
    /// Where results go: the engine takes them in turn with everything else that happens.
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

/// How soon to look again whether there is anything to survey: before the first lists are complete, for
/// one.
const IDLE: Duration = Duration::from_millis(100);

// === impl Reconciler ===

impl<D: Controller> Reconciler<D> {
    /// Reconciles until `shutdown`, then waits to be dropped.
    ///
    /// The first round begins when work does, the next one `interval` after its end, or as soon as the
    /// driver is connected again: whatever made it go away may have cost attachments.
    ///
    /// # Cancellation
    ///
    /// Nothing is left behind but, in the engine, the beginning of a round that the next one replaces.
    pub async fn run(mut self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.rounds()).await;
        std::future::pending::<()>().await;
    }

    async fn rounds(&mut self) {
        loop {
            let lists = |link: &Link| {
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
        let survey = lock(&self.engine).begin_survey(&self.driver);
        let Some(mut survey) = survey else { return false };
        if survey.is_empty() {
            // Nobody needs the answer.
            self.send(Event::Surveyed(survey)).await;
            return true;
        }
        let mut link = self.link.clone();
        let result = tokio::select! {
            biased;
            _ = link.changed() => Err(Error::OtherSession),
            result = self.list(&mut survey) => result,
        };
        match result {
            Ok(()) => self.send(Event::Surveyed(survey)).await,
            Err(error) => {
                tracing::warn!(error = chain(&error), "not reconciled this time");
                self.send(Event::SurveyFailed).await;
            }
        }
        true
    }

    async fn list(&self, survey: &mut Survey) -> Result<(), Error> {
        let mut starting_token = String::new();
        let mut circle = Circle::default();
        loop {
            let request = ListRequest {
                max_entries: self.max_entries,
                starting_token,
            };
            let page = self.csi.list(request).await.map_err(Error::Call)?;
            for volume in &page.volumes {
                survey.see(&volume.handle, volume.published.as_deref());
            }
            if page.next_token.is_empty() {
                return Ok(());
            }
            if circle.closes_with(&page.next_token) {
                return Err(Error::RepeatedToken(page.next_token));
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
            %va, %node, volume = %target.handle, node_id = %target.node_id, times,
            "the driver does not list an attached volume on its node; publishing it again"
        ),
        Fault::Leftover => tracing::warn!(
            %va, %node, volume = %target.handle, node_id = %target.node_id, times,
            "the driver lists a detached volume on its node; unpublishing it again"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_go_round_are_noticed_whatever_the_circle() {
        for (before, circle) in [(0usize, 1usize), (0, 2), (5, 1), (3, 7), (100, 13)] {
            let tokens = (0..before)
                .map(|n| format!("before-{n}"))
                .chain((0..).map(|n| format!("circle-{}", n % circle)));
            let mut noticed = Circle::default();
            let steps = tokens
                .take_while(|token| !noticed.closes_with(token))
                .take(10_000)
                .count();
            assert!(steps <= 4 * (before + circle) + 4, "{before} {circle}: {steps}");
        }
        let mut straight = Circle::default();
        assert!((0..10_000).all(|n| !straight.closes_with(&n.to_string())));
    }
}
