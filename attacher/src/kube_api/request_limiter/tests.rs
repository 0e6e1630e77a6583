use futures::FutureExt;
use futures::future::join_all;

use super::*;
use crate::metrics::Scrape;

const WRITE_HIGH: RequestKind = RequestKind::Write(Priority::High);
const WRITE_LOW: RequestKind = RequestKind::Write(Priority::Low);

fn mk_limit(qps: f64, burst: u32) -> RateLimit {
    RateLimit::new(Rate { qps, burst })
}

fn mk_limiter(rate: Option<RateLimit>) -> RequestLimiter {
    RequestLimiter::new(rate, Leadership::unopposed(), Requests::default())
}

#[tokio::test(start_paused = true)]
async fn burst_passes_and_the_rest_follows_at_the_rate() {
    let limit = mk_limit(5.0, 10);
    let begin = Instant::now();
    let acquired = (0..35).map(|_| async {
        limit.acquire(Priority::Low).await;
        begin.elapsed().as_millis()
    });
    let times = join_all(acquired).await;
    assert_eq!(times[..10], [0; 10]);
    for (n, after) in times[10..].iter().enumerate() {
        let due = (n as u128 + 1) * 200;
        assert!(
            after.abs_diff(due) <= 2,
            "token {n} came at {after} and not at {due}"
        );
    }
    // A pause fills the bucket to the burst at most.
    sleep(Duration::from_secs(3600)).await;
    let begin = Instant::now();
    join_all((0..15).map(|_| limit.acquire(Priority::Low))).await;
    assert!(begin.elapsed().abs_diff(Duration::from_secs(1)) <= Duration::from_millis(2));
}

#[tokio::test(start_paused = true)]
async fn list_waits_for_at_most_one_request_of_low_priority() {
    let limit = mk_limit(0.5, 1);
    limit.acquire(Priority::Low).await;
    let begin = Instant::now();
    // One request per permit.
    let queued = join_all((0..WRITES + READS).map(|_| limit.acquire(Priority::Low)));
    let list = async {
        limit.acquire(Priority::High).await;
        begin.elapsed().as_secs()
    };
    let (_, waited) = tokio::join!(queued, list);
    assert_eq!(waited, 4);
}

#[tokio::test(start_paused = true)]
async fn cancelled_request_takes_no_token() {
    let limit = mk_limit(1.0, 1);
    limit.acquire(Priority::Low).await;
    let begin = Instant::now();
    for priority in [Priority::High, Priority::Low] {
        for _ in 0..10 {
            assert!(limit.acquire(priority).now_or_never().is_none());
        }
    }
    limit.acquire(Priority::Low).await;
    assert_eq!(begin.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn accepts_extreme_rates() {
    for (qps, burst) in [(1e300, 1), (1e-300, 3)] {
        let limit = mk_limit(qps, burst);
        for _ in 0..burst {
            assert!(
                limit.acquire(Priority::Low).now_or_never().is_some(),
                "{qps} {burst}"
            );
        }
        let next = limit.acquire(Priority::Low).now_or_never();
        assert_eq!(next.is_some(), qps > 1e9, "{qps} {burst}");
    }
}

#[tokio::test(start_paused = true)]
async fn clients_share_one_bucket() {
    let limit = mk_limit(1.0, 2);
    let (one, other) = (mk_limiter(Some(limit.clone())), limit);
    one.acquire(WRITE_HIGH).await.unwrap();
    other.acquire(Priority::Low).await;
    let begin = Instant::now();
    one.acquire(RequestKind::Read).await.unwrap();
    assert_eq!(begin.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn waits_for_the_rate_are_counted() {
    let counts = Requests::default();
    let limiter = |rate| RequestLimiter::new(rate, Leadership::unopposed(), counts.clone());
    limiter(None).acquire(WRITE_HIGH).await.unwrap();
    let limited = limiter(Some(mk_limit(0.5, 1)));
    for kind in [RequestKind::Read, WRITE_HIGH, WRITE_LOW] {
        limited.acquire(kind).await.unwrap();
    }
    let scrape = Scrape::default();
    counts.collect(&scrape);
    let text = scrape.text();
    for line in ["_bucket{le=\"0.005\"} 1\n", "_sum 4", "_count 3\n"] {
        let line = format!("csi_attacher_api_rate_limiter_duration_seconds{line}");
        assert!(text.contains(&line), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn write_is_refused_if_leadership_ends_while_it_is_queued() {
    let leadership = Leadership::until(Instant::now() + Duration::from_millis(1500));
    let limiter = RequestLimiter::new(Some(mk_limit(1.0, 1)), leadership, Requests::default());
    assert!(limiter.acquire(WRITE_HIGH).await.is_ok());
    assert!(limiter.acquire(WRITE_LOW).await.is_ok(), "a second later");
    for kind in [WRITE_HIGH, WRITE_LOW] {
        assert_eq!(limiter.acquire(kind).await.err(), Some(NotLeading));
    }
    assert!(limiter.acquire(RequestKind::Read).await.is_ok());
}

#[test]
fn low_priority_writes_leave_permits_for_high_priority() {
    let limiter = mk_limiter(None);
    let detaches: Vec<_> = (0..1000)
        .map_while(|_| limiter.acquire(WRITE_LOW).now_or_never())
        .collect();
    assert_eq!(detaches.len(), LOW_PRIORITY_WRITES);
    // A detach that is queued before the attaches takes no permit from them.
    let mut waiting = std::pin::pin!(limiter.acquire(WRITE_LOW));
    assert!(waiting.as_mut().now_or_never().is_none());
    let attaches: Vec<_> = (0..1000)
        .map_while(|_| limiter.acquire(WRITE_HIGH).now_or_never())
        .collect();
    assert_eq!(attaches.len(), WRITES - LOW_PRIORITY_WRITES);
    assert!(limiter.acquire(RequestKind::Read).now_or_never().is_some());
    drop(detaches);
    assert!(waiting.now_or_never().is_some());
}

#[test]
fn reads_are_bounded_and_do_not_delay_writes() {
    let limiter = mk_limiter(None);
    let reads: Vec<_> = (0..1000)
        .map_while(|_| limiter.acquire(RequestKind::Read).now_or_never())
        .collect();
    assert_eq!(reads.len(), READS);
    let mut waiting = std::pin::pin!(limiter.acquire(RequestKind::Read));
    assert!(waiting.as_mut().now_or_never().is_none());
    for kind in [WRITE_HIGH, WRITE_LOW] {
        assert!(limiter.acquire(kind).now_or_never().is_some());
    }
    drop(reads);
    assert!(waiting.now_or_never().is_some());
}
