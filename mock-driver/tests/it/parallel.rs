//! Concurrent calls: different volumes do not block each other, and one volume is never in two calls.

use std::fs;
use std::time::Duration;

use csi_mock_driver::driver::locks::BusyRule;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::{self, ControllerPublishVolumeRequest};
use futures::future::{join_all, try_join_all};
use tokio::time::{self, Instant};
use tonic::Code;

use crate::server::{
    DEADLINE, Server, begun, cancel_after, mk_create, mk_delete, mk_mount, mk_publish, mk_unpublish,
    published,
};

const LATENCY: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_attaches_run_in_parallel() {
    let server = Server::start_with(|_, settings| {
        settings.initial_volumes = 1000;
        settings.latency = LATENCY;
    })
    .await;
    let client = server.controller().await;
    let start = Instant::now();
    let attach = |number: usize| {
        let mut client = client.clone();
        async move {
            let request = mk_publish(&format!("vol-{number}"), &format!("node-{}", number % 3));
            client.controller_publish_volume(request).await
        }
    };
    try_join_all((0..1000).map(attach)).await.unwrap();
    let took = start.elapsed();
    // Serialized they would take 1,000 s, serialized by node 333 s. On an idle machine they take 1.1 s; the bound has slack
    // for busy machines.
    assert!(took >= LATENCY && took < LATENCY * 15, "{took:?}");
    let attached = published(&mut client.clone())
        .await
        .into_iter()
        .filter(|(_, nodes)| nodes.len() == 1);
    assert_eq!(attached.count(), 1000);
}

#[tokio::test]
async fn second_call_for_a_busy_volume_is_aborted() {
    let server = Server::start_with(|directory, settings| {
        settings.initial_volumes = 2;
        settings.latency = Duration::from_secs(3600);
        settings.journal = Some(directory.join("journal"));
    })
    .await;
    let mut first = server.controller().await;
    let mut client = first.clone();
    let others = async {
        begun(&server.path("journal")).await;
        // The same call again, one for another node, one that detaches, one that deletes.
        let busy = [
            client
                .controller_publish_volume(mk_publish("vol-0", "node-0"))
                .await
                .map(drop),
            client
                .controller_publish_volume(mk_publish("vol-0", "node-1"))
                .await
                .map(drop),
            client
                .controller_unpublish_volume(mk_unpublish("vol-0", "node-0"))
                .await
                .map(drop),
            client.delete_volume(mk_delete("vol-0")).await.map(drop),
        ];
        for outcome in busy {
            let status = outcome.unwrap_err();
            assert_eq!(status.code(), Code::Aborted);
            assert!(status.message().contains("vol-0"), "{status}");
        }
        client
            .delete_volume(mk_delete("vol-1"))
            .await
            .expect("another volume is not busy");
        client
            .list_volumes(v1::ListVolumesRequest::default())
            .await
            .expect("reads never wait");
    };
    cancel_after(
        others,
        first.controller_publish_volume(mk_publish("vol-0", "node-0")),
    )
    .await;
}

#[tokio::test]
async fn calls_for_a_busy_volume_wait_if_configured() {
    let server = Server::start_with(|_, settings| {
        settings.initial_volumes = 1;
        settings.latency = Duration::from_millis(20);
        settings.busy = BusyRule::Wait;
    })
    .await;
    let client = server.controller().await;
    let start = Instant::now();
    let publish = |number: usize| {
        let mut client = client.clone();
        let request = ControllerPublishVolumeRequest {
            volume_capability: Some(mk_mount("", Mode::SingleNodeWriter)),
            ..mk_publish("vol-0", &format!("node-{}", number % 3))
        };
        async move {
            client
                .controller_publish_volume(request)
                .await
                .map_err(|status| status.code())
        }
    };
    let outcomes = time::timeout(DEADLINE, join_all((0..9).map(publish)))
        .await
        .unwrap();
    assert!(
        start.elapsed() >= Duration::from_millis(9 * 20),
        "one after the other"
    );
    // The volume is attached to one node; the three calls for that node succeed, all others are refused.
    let won = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    let lost = outcomes
        .iter()
        .filter(|outcome| outcome.as_ref().err() == Some(&Code::FailedPrecondition));
    assert_eq!((won, lost.count()), (3, 6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_creates_of_one_name_create_one_volume() {
    let server = Server::start_with(|_, _| {}).await;
    let client = server.controller().await;
    let create = |_| {
        let mut client = client.clone();
        async move { client.create_volume(mk_create("a")).await }
    };
    let mut ids: Vec<_> = Vec::new();
    for outcome in join_all((0..64).map(create)).await {
        match outcome {
            Ok(reply) => ids.push(reply.into_inner().volume.unwrap().volume_id),
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
        }
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
    assert_eq!(published(&mut client.clone()).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_attaches_never_attach_a_volume_twice() {
    let server = Server::start_with(|_, settings| settings.initial_volumes = 3).await;
    let client = server.controller().await;
    let storm = |number: usize| {
        let mut client = client.clone();
        async move {
            let (volume, node) = (format!("vol-{}", number % 3), format!("node-{}", number % 7 % 3));
            for _ in 0..30 {
                let attached = client.controller_publish_volume(mk_publish(&volume, &node)).await;
                if let Err(status) = attached {
                    assert!(
                        matches!(status.code(), Code::Aborted | Code::FailedPrecondition),
                        "{status}"
                    );
                }
                for (_, nodes) in published(&mut client).await {
                    assert!(nodes.len() <= 1, "{nodes:?}");
                }
                drop(
                    client
                        .controller_unpublish_volume(mk_unpublish(&volume, &node))
                        .await,
                );
            }
        }
    };
    join_all((0..12).map(storm)).await;
}

/// The waves together exceed the number of resets that an HTTP/2 server allows by default. A call that hangs all the time
/// shows that the connection stays open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mass_cancellation_does_not_close_the_connection() {
    const CALLS: usize = 500;
    const RULES: &str = "- {id: stuck, match: {method: '*'}, action: {hang: client-cancel}}";
    let server = Server::start_with(|directory, settings| {
        fs::write(directory.join("faults.yaml"), RULES).unwrap();
        settings.faults = Some(directory.join("faults.yaml"));
        settings.journal = Some(directory.join("journal"));
    })
    .await;
    let client = server.controller().await;
    let attach = |number: usize| {
        let mut client = client.clone();
        let request = mk_publish(&format!("vol-{number}"), "node-0");
        async move { client.controller_publish_volume(request).await }
    };
    let waves = async {
        until_journal_has(&server, "\"begin\"", 1).await;
        for wave in 1..=3 {
            tokio::select! {
                _ = join_all((0..CALLS).map(attach)) => panic!("every call must hang"),
                () = until_journal_has(&server, "\"begin\"", 1 + wave * CALLS) => {}
            }
            until_journal_has(&server, "\"CANCELLED\"", wave * CALLS).await;
        }
    };
    tokio::select! {
        ended = attach(CALLS) => panic!("the connection was lost: {ended:?}"),
        () = waves => {}
    }
}

/// Waits until the journal contains `what` so many times.
async fn until_journal_has(server: &Server, what: &str, times: usize) {
    let journal = server.path("journal");
    let enough = async {
        while fs::read_to_string(&journal).unwrap().matches(what).count() < times {
            time::sleep(Duration::from_millis(20)).await;
        }
    };
    time::timeout(DEADLINE, enough)
        .await
        .unwrap_or_else(|_| panic!("{what} is not there {times} times"));
}
