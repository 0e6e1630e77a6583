//! Throughput of the server. The limits are far below measured rates: they detect work that grows with the number of objects,
//! not a slow machine.

use std::time::Duration;

use http::Method;
use serde_json::json;
use tokio::time::Instant;

use super::watches::Watch;
use super::{ATTACHMENTS, call, mk_attachment, patch};
use embedded_cluster::apiserver::{ApiServer, Options};

const OBJECTS: u32 = 2000;

#[tokio::test]
async fn writes_and_watches_are_independent_of_the_number_of_objects() {
    let server = ApiServer::new(&Options {
        window: 100_000,
        ..Options::default()
    });
    let start = Instant::now();
    for index in 0..OBJECTS {
        let (code, _) = call(
            &server,
            Method::POST,
            ATTACHMENTS,
            &mk_attachment(&format!("a{index}")),
        )
        .await;
        assert_eq!(code, 201);
    }
    let created = start.elapsed();
    let mut watch = Watch::start(&server, &format!("resourceVersion={}", server.revision())).await;
    let start = Instant::now();
    let attached = json!({ "status": { "attached": true } });
    for index in 0..OBJECTS {
        let path = format!("{ATTACHMENTS}/a{index}/status");
        assert_eq!(patch(&server, &path, "merge", &attached).await.0, 200);
    }
    let patched = start.elapsed();
    let start = Instant::now();
    for index in 0..OBJECTS {
        watch.expect("MODIFIED", &format!("a{index}")).await;
    }
    let watched = start.elapsed();
    let rate = |elapsed: Duration| f64::from(OBJECTS) / elapsed.as_secs_f64();
    println!(
        "creations {:.0}/s, status patches {:.0}/s, watch events {:.0}/s (decoded by the test)",
        rate(created),
        rate(patched),
        rate(watched)
    );
    for elapsed in [created, patched, watched] {
        assert!(rate(elapsed) > 200.0, "{elapsed:?} for {OBJECTS}");
    }
}
