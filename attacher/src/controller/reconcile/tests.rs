//! Reconcile rounds with drivers whose lists do not end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use csi_proto::v1::list_volumes_response::Entry;
use csi_proto::v1::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, ListVolumesResponse, Volume,
};
use tokio::time::sleep;

use super::*;
use crate::controller::state::LastRound;
use crate::controller::state::tests::mk_listing;
use crate::csi::Session;
use crate::informer::Change;
use crate::model::{Attachment, Capabilities};
use crate::plan::tests::mk_attachment;

const MINUTE: Duration = Duration::from_secs(60);

/// A driver that returns `page(n)` as the n-th page, one page per second.
struct Lister<F> {
    page: F,
    pages: AtomicU32,
}

impl<F: Fn(u32) -> ListVolumesResponse + Send + Sync + 'static> ControllerClient for Lister<F> {
    async fn publish(
        &self,
        _: ControllerPublishVolumeRequest,
        _: bool,
    ) -> Result<BTreeMap<String, String>, CallError> {
        Err(CallError::not_connected("not in this test"))
    }

    async fn unpublish(&self, _: ControllerUnpublishVolumeRequest, _: bool) -> Result<(), CallError> {
        Err(CallError::not_connected("not in this test"))
    }

    fn session(&self) -> Option<std::time::Instant> {
        None
    }

    async fn session_ended(&self, _: Option<std::time::Instant>) {
        std::future::pending().await
    }

    async fn list(&self, _: ListVolumesRequest) -> Result<ListVolumesResponse, CallError> {
        sleep(Duration::from_secs(1)).await;
        let number = self.pages.fetch_add(1, Ordering::Relaxed);
        Ok((self.page)(number))
    }

    async fn ready(&self) -> Result<Capabilities, CallError> {
        Err(CallError::not_connected("not in this test"))
    }
}

/// A reconciler of one attached volume with such a driver, and its events.
fn mk_reconciler<F>(
    interval: Duration,
    connection: watch::Receiver<ConnectionState>,
    page: F,
) -> (Reconciler<Lister<F>>, mpsc::Receiver<Event>) {
    let (mut state, driver) = mk_listing(1);
    state.handle(Event::Attachments(Change::Applied(Attachment {
        attached: true,
        finalizer: true,
        ..mk_attachment("va")
    })));
    assert!(state.start(Instant::now().into_std()).is_none());
    let (events_tx, events) = mpsc::channel(1);
    let reconciler = Reconciler {
        state: Arc::new(Mutex::new(state)),
        csi: Lister {
            page,
            pages: AtomicU32::new(0),
        },
        driver,
        connection,
        events_tx,
        interval,
        max_entries: 0,
    };
    (reconciler, events)
}

/// Runs one round with such a driver; returns the number of ListVolumes calls and the result of the round.
async fn round(
    interval: Duration,
    page: impl Fn(u32) -> ListVolumesResponse + Send + Sync + 'static,
) -> (u32, LastRound) {
    let (_connection_tx, connection) = watch::channel(None);
    let (mut reconciler, mut events) = mk_reconciler(interval, connection, page);
    assert!(reconciler.round().await);
    let mut state = lock(&reconciler.state);
    state.handle(events.try_recv().expect("a round ends with an event"));
    let last = state.rounds.last.clone().expect("there was a round");
    let failed = state.rounds.metrics.failed_rounds;
    assert_eq!(failed, u64::from(last.error.is_some()));
    (reconciler.csi.pages.load(Ordering::Relaxed), last)
}

#[tokio::test(start_paused = true)]
async fn lists_only_while_the_driver_publishes_and_lists_published_nodes() {
    for (publish, list_published) in [(true, true), (true, false), (false, true)] {
        let mut session = Session::disconnected("d.example");
        session.capabilities.publish = publish;
        session.capabilities.list_published = list_published;
        let (_connection_tx, connection) = watch::channel(Some(Arc::new(session)));
        let (mut reconciler, _events) = mk_reconciler(MINUTE, connection, |_| page(1, String::new()));
        assert!(
            tokio::time::timeout(10 * MINUTE, reconciler.rounds())
                .await
                .is_err()
        );
        let has_listed = reconciler.csi.pages.load(Ordering::Relaxed) > 0;
        assert_eq!(
            has_listed,
            publish && list_published,
            "{publish} {list_published}"
        );
    }
}

fn page(volumes: u32, next_token: String) -> ListVolumesResponse {
    let entry = |number: u32| Entry {
        volume: Some(Volume {
            volume_id: format!("other-{number}"),
            ..Volume::default()
        }),
        status: None,
    };
    ListVolumesResponse {
        // Entries without a volume are skipped.
        entries: (0..volumes).map(entry).chain([Entry::default()]).collect(),
        next_token,
    }
}

#[tokio::test(start_paused = true)]
async fn aborts_a_list_of_empty_pages() {
    let (pages, last) = round(1000 * MINUTE, |number| page(0, number.to_string())).await;
    assert_eq!((pages, last.round.listed), (EMPTY_PAGES, 0));
    let error = last.error.expect("the list has no end");
    assert!(error.contains("without a volume"), "{error}");
    // Empty pages do not abort a list that ends.
    let sparse = |number| match number {
        1998 => page(1, String::new()),
        999 => page(1, "999".to_owned()),
        number => page(0, number.to_string()),
    };
    let (pages, last) = round(1000 * MINUTE, sparse).await;
    assert_eq!((pages, last.round.listed, last.error), (1999, 2, None));
    assert_eq!(last.round.took.as_secs(), 1999);
}

#[tokio::test(start_paused = true)]
async fn aborts_a_list_after_the_timeout() {
    for (interval, minutes) in [(MINUTE / 60, 10), (MINUTE, 10), (2 * MINUTE, 20)] {
        let (pages, last) = round(interval, |number| page(3, number.to_string())).await;
        assert_eq!(last.round.took.as_secs(), minutes * 60);
        assert_eq!(last.round.listed, u64::from(pages) * 3);
        let error = last.error.expect("the list has no end");
        assert!(error.contains("had not come to an end after"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn aborts_a_list_with_a_repeated_token() {
    let (_, last) = round(MINUTE, |number| page(1, (number % 5).to_string())).await;
    let error = last.error.expect("the list has no end");
    assert!(error.contains("again, so its list has no end"), "{error}");
}

#[test]
fn detects_token_cycles_of_any_length() {
    for (before, cycle) in [(0usize, 1usize), (0, 2), (5, 1), (3, 7), (100, 13)] {
        let tokens = (0..before)
            .map(|n| format!("before-{n}"))
            .chain((0..).map(|n| format!("cycle-{}", n % cycle)));
        let mut detector = CycleDetector::default();
        let steps = tokens
            .take_while(|token| !detector.closes_with(token))
            .take(10_000)
            .count();
        assert!(steps <= 4 * (before + cycle) + 4, "{before} {cycle}: {steps}");
    }
    let mut without_cycle = CycleDetector::default();
    assert!((0..10_000).all(|n| !without_cycle.closes_with(&n.to_string())));
}
