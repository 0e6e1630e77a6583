//! Shutdown before and during a call.

use tokio::sync::{mpsc, watch};

use super::*;
use crate::leader_election::Leadership;

#[tokio::test(start_paused = true)]
async fn draining_aborts_an_attach_before_its_call() {
    for silent in ["ready", "get secret"] {
        let mut fixture = Fixture::new(mk_attachment("va"));
        fixture.world.state().silent.push(silent);
        let item = fixture.item().expect("an attach");
        let drain = async {
            tokio::task::yield_now().await;
            fixture.controller.draining.cancel();
        };
        let both = async { futures::join!(fixture.controller.sync(&item), drain).0 };
        let result = timeout(FOREVER, both).await.expect("it must not wait");
        assert!(result.is_err());
        let seen = fixture.seen();
        assert!(seen.contains(&silent), "{seen:?}");
        assert!(
            !seen.contains(&"publish") && !seen.contains(&"problem"),
            "{seen:?}"
        );
    }
}

/// The lease is released when no sync runs, so a dropped write could be executed when another replica leads.
#[tokio::test(start_paused = true)]
async fn draining_awaits_a_write_that_was_sent() {
    for silent in ["record", "add PV finalizer"] {
        let mut fixture = Fixture::new(mk_attachment("va"));
        fixture.world.state().silent.push(silent);
        let item = fixture.item().expect("an attach");
        let mut run = std::pin::pin!(fixture.controller.sync(&item));
        assert!(timeout(FOREVER, run.as_mut()).await.is_err());
        assert!(fixture.seen().contains(&silent));
        fixture.controller.draining.cancel();
        assert!(timeout(FOREVER, run.as_mut()).await.is_err(), "{silent}");
        fixture.world.respond.notify_one();
        assert!(run.await.is_err(), "{silent}");
        let seen = fixture.seen();
        assert!(
            !seen.contains(&"publish") && !seen.contains(&"problem"),
            "{seen:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn draining_aborts_a_detach_before_its_call() {
    for silent in ["ready", "get secret"] {
        let mut fixture = Fixture::new(Attachment {
            deleting: true,
            finalizer: true,
            ..mk_attachment("va")
        });
        fixture.world.state().silent.push(silent);
        let item = fixture.item().expect("a detach");
        let drain = async {
            tokio::task::yield_now().await;
            fixture.controller.draining.cancel();
        };
        let both = async { futures::join!(fixture.controller.sync(&item), drain).0 };
        let result = timeout(FOREVER, both).await.expect("it must not wait");
        assert!(result.is_err());
        let seen = fixture.seen();
        assert_eq!(seen.last(), Some(&silent), "{seen:?}");
        assert!(fixture.attachment().finalizer);
    }
}

/// The next process repeats both calls.
#[tokio::test(start_paused = true)]
async fn draining_aborts_a_detach_between_its_calls() {
    let mut fixture = Fixture::new(Attachment {
        recorded: Recorded {
            node_id: Some("old-id".into()),
            ..mk_deleting().recorded
        },
        ..mk_deleting()
    });
    fixture.world.state().silent.push("unpublish");
    let item = fixture.item().expect("a detach");
    let mut run = std::pin::pin!(fixture.controller.sync(&item));
    assert!(
        timeout(FOREVER, run.as_mut()).await.is_err(),
        "the first call runs"
    );
    fixture.controller.draining.cancel();
    fixture.world.respond.notify_one();
    let aborted = timeout(FOREVER, run).await;
    assert!(matches!(aborted, Ok(Err(_))), "{aborted:?}");
    assert_eq!(fixture.world.state().unpublished.len(), 1);
    assert!(fixture.attachment().finalizer);
}

#[tokio::test(start_paused = true)]
async fn draining_completes_a_call_and_its_status_write() {
    let mut fixture = Fixture::new(mk_attachment("va"));
    fixture.world.state().silent.push("publish");
    let item = fixture.item().expect("an attach");
    let run = fixture.controller.sync(&item);
    let mut run = std::pin::pin!(run);
    assert!(
        timeout(FOREVER, run.as_mut()).await.is_err(),
        "the call is running"
    );
    fixture.controller.draining.cancel();
    assert!(
        timeout(FOREVER, run.as_mut()).await.is_err(),
        "the call is still running"
    );
    fixture.world.respond.notify_one();
    assert_eq!(run.await, Ok(()));
    assert!(fixture.attachment().attached);
}

#[tokio::test(start_paused = true)]
async fn drain_needs_no_heartbeat() {
    let fixture = Fixture::new(mk_attachment("va"));
    fixture.world.state().silent.push("publish");
    for replaced in [
        Event::Attachments(Change::Replaced),
        Event::Volumes(Change::Replaced),
        Event::Nodes(Change::Replaced),
    ] {
        fixture.state().handle(replaced);
    }
    let heartbeat = Heartbeat::default();
    let (_events_tx, events) = mpsc::channel(1);
    let (_connection_tx, connection) = watch::channel(None);
    let options = RunOptions {
        events,
        connection,
        leadership: Leadership::unopposed(),
        resync: Duration::ZERO,
        heartbeat: heartbeat.clone(),
        shutdown_grace: FOREVER,
    };
    let shutdown = CancellationToken::new();
    let mut run = std::pin::pin!(fixture.controller.run(options, shutdown.clone()));
    let minute = Duration::from_secs(60);
    assert!(timeout(minute, run.as_mut()).await.is_err());
    assert_eq!(fixture.seen().last(), Some(&"publish"));
    shutdown.cancel();
    assert!(
        timeout(minute, run.as_mut()).await.is_err(),
        "the call is running"
    );
    assert_eq!(heartbeat.stalled(tokio::time::Instant::now()), None);
    fixture.world.respond.notify_one();
    run.await;
}
