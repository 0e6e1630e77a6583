use std::time::Duration;

use super::*;

fn what(method: &Method, uri: &str) -> (&'static str, &'static str) {
    verb_and_resource(method, &uri.parse().expect("a URI"))
}

#[test]
fn verb_and_resource_follow_from_method_path_and_query() {
    let storage = "https://10.0.0.1/apis/storage.k8s.io/v1";
    let core = "https://gateway/clusters/a/api/v1";
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    for (method, uri, expected) in [
        (
            Method::GET,
            format!("{storage}/volumeattachments?limit=500"),
            ("list", "volumeattachments"),
        ),
        (
            Method::GET,
            format!("{storage}/csinodes?&watch=true&timeoutSeconds=290"),
            ("watch", "csinodes"),
        ),
        (
            Method::GET,
            format!("{storage}/volumeattachments/va?"),
            ("get", "volumeattachments"),
        ),
        (
            Method::PATCH,
            format!("{storage}/volumeattachments/va?"),
            ("patch", "volumeattachments"),
        ),
        (
            Method::PATCH,
            format!("{storage}/volumeattachments/va/status?"),
            ("patch", "volumeattachments/status"),
        ),
        (
            Method::PATCH,
            format!("{core}/persistentvolumes/apis"),
            ("patch", "persistentvolumes"),
        ),
        (
            Method::GET,
            format!("{core}/namespaces/ns/secrets/s"),
            ("get", "secrets"),
        ),
        (
            Method::POST,
            format!("{core}/namespaces/ns/events"),
            ("create", "events"),
        ),
        (Method::PUT, format!("{leases}/l"), ("update", "leases")),
        (Method::POST, leases.to_owned(), ("create", "leases")),
        (Method::GET, format!("{core}/namespaces/ns"), ("list", "other")),
        (Method::GET, format!("{core}/configmaps/c"), ("get", "other")),
        (Method::GET, "/version".to_owned(), ("list", "other")),
        (Method::GET, "/apis".to_owned(), ("list", "other")),
        (Method::GET, "/api/v1".to_owned(), ("list", "other")),
    ] {
        assert_eq!(what(&method, &uri), expected, "{method} {uri}");
    }
}

#[test]
fn counts_requests_by_result() {
    let requests = Requests::default();
    let begin = || {
        let uri = Uri::from_static("/api/v1/persistentvolumes/pv");
        requests.begin(&Method::GET, &uri)
    };
    for status in [403, 200, 200, 404] {
        begin().outcome = Outcome::Answered(StatusCode::from_u16(status).expect("a status"));
    }
    begin().outcome = Outcome::Failed;
    let running = begin();
    assert_eq!(requests.lock().in_flight, 1);
    drop(running);
    requests.again();

    assert_eq!(requests.lock().in_flight, 0);
    let scrape = Scrape::default();
    requests.collect(&scrape);
    let text = scrape.text();
    for (code, count) in [("200", 2), ("403", 1), ("404", 1), ("error", 1), ("canceled", 1)] {
        let line = format!(
            "csi_attacher_api_requests_total{{code=\"{code}\",resource=\"persistentvolumes\",verb=\"get\"}} {count}\n"
        );
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
    assert!(text.contains("csi_attacher_api_retries_total 1\n"));
}

#[tokio::test(start_paused = true)]
async fn watch_fails_until_its_next_success() {
    let requests = Requests::default();
    let begin = Instant::now();
    for why in ["first", "second"] {
        requests.watch_failed("csinodes".into(), why);
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    let failure = |requests: &Requests| requests.watches().get("csinodes").cloned();
    let expected = OngoingFailure {
        times: 2,
        since: begin,
        last: begin + Duration::from_secs(5),
        why: "second".into(),
    };
    assert_eq!(failure(&requests), Some(expected.clone()));
    let storage = "/apis/storage.k8s.io/v1";
    for (uri, status) in [
        (format!("{storage}/csinodes"), 200),
        (format!("{storage}/volumeattachments?watch=true"), 200),
        (format!("{storage}/csinodes?watch=true"), 403),
    ] {
        let uri = uri.parse().expect("a URI");
        let status = StatusCode::from_u16(status).expect("a status");
        requests.begin(&Method::GET, &uri).outcome = Outcome::Answered(status);
    }
    assert_eq!(
        failure(&requests),
        Some(expected),
        "none of these is a successful watch of CSINodes"
    );
    requests.count_one("/apis/storage.k8s.io/v1/csinodes?watch=true", 200);
    assert_eq!(failure(&requests), None);
}
