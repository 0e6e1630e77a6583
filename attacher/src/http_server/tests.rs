//! The pages for given states.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use futures::FutureExt;
use http::Request;
use http_body_util::BodyExt;
use tokio::sync::watch;
use tower::ServiceExt;

use super::*;
use crate::controller::state::{self, Event};
use crate::controller::{Clock, SyncError};
use crate::informer::Change;
use crate::leader_election::{ElectionStatus, LeaseMeta, Settings, Timings};
use crate::model::Attachment;
use crate::plan::tests::{mk_attachment, mk_node, mk_volume};
use crate::report::OngoingFailure;
use crate::workqueue::{Class, Key, Outcome};

/// A leadership that was renewed `renewed` ago, and is valid for ten seconds if `leads`.
pub(super) fn mk_leadership(leads: bool, renewed: Option<Duration>) -> Leadership {
    let now = Instant::now();
    let mut status = ElectionStatus::new(&mk_settings());
    status.valid_until = leads.then(|| now + Duration::from_secs(10));
    status.renewed = renewed.map(|ago| now - ago);
    status.holder = Some("pod-1".to_owned());
    status.slow_renewals = 3;
    watch::channel(status).1.into()
}

/// The leadership of a standby that knows this holder of the lease, or whose requests fail.
pub(super) fn mk_standby(holder: Option<&str>, failure: Option<&str>) -> Leadership {
    let mut status = ElectionStatus::new(&mk_settings());
    status.holder = holder.map(str::to_owned);
    status.ongoing_failure = failure.map(OngoingFailure::new);
    watch::channel(status).1.into()
}

fn mk_settings() -> Settings {
    Settings {
        lease_meta: LeaseMeta {
            namespace: "kube-system".to_owned(),
            name: "external-attacher-leader-d-example".to_owned(),
        },
        identity: "pod-1".to_owned(),
        labels: BTreeMap::new(),
        timings: Timings {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(5),
        },
    }
}

/// A view of a process that has just started.
pub(super) fn mk_view() -> Arc<View> {
    Arc::new(view_with(false))
}

/// The same with `--leader-election`.
pub(super) fn mk_electing_view() -> Arc<View> {
    Arc::new(view_with(true))
}

fn view_with(elects: bool) -> View {
    let clock: Clock = || Timestamp::from_second(1_000).expect("a time of the seventies");
    View {
        calls: Calls::default(),
        requests: Requests::default(),
        heartbeat: Heartbeat::default(),
        elects,
        election: Mutex::default(),
        state: Mutex::default(),
        shutdown: CancellationToken::new(),
        started: Instant::now(),
        clock,
        metrics_path: "/metrics".to_owned(),
        serves_statusz: true,
    }
}

/// A state with a concurrency of one per lane, before the first event.
pub(super) fn mk_unlisted() -> ControllerState {
    state::tests::mk_state(1)
}

/// The same with all lists complete, and attachments of these names.
pub(super) fn mk_state(attachments: &[String]) -> ControllerState {
    let mut state = mk_unlisted();
    state.handle(Event::Volumes(Change::Applied(mk_volume("pv"))));
    state.handle(Event::Nodes(Change::Applied(mk_node("node", Some("id")))));
    for name in attachments {
        let mut attachment = mk_attachment(name);
        attachment.uid = name.as_str().into();
        attachment.requested_at = Timestamp::from_second(940).ok();
        state.handle(Event::Attachments(Change::Applied(attachment)));
    }
    state.handle(Event::Attachments(Change::Replaced));
    state.handle(Event::Volumes(Change::Replaced));
    state.handle(Event::Nodes(Change::Replaced));
    state
}

/// Starts one sync and lets it fail.
pub(super) fn fail_one(state: &mut ControllerState, class: Class, message: &str) {
    let now = Instant::now().into_std();
    let item = state.start(now).expect("there is work");
    let error = SyncError {
        message: message.to_owned(),
        code: None,
        class,
        retry_after: None,
        reported: true,
    };
    state.finish(&item, Err(error), now);
}

/// Starts the attach of `attaching` and a detach of its node, whose call is refused meanwhile.
pub(super) fn refuse_detach_beside(state: &mut ControllerState, attaching: &str) {
    let deleting = Attachment {
        uid: "detaching".into(),
        deleting: true,
        finalizer: true,
        ..mk_attachment("detaching")
    };
    state.handle(Event::Attachments(Change::Applied(deleting)));
    let now = Instant::now().into_std();
    let items: Vec<_> = std::iter::from_fn(|| state.start(now)).collect();
    assert_eq!(items.len(), 2);
    let [attach, detach] = [attaching, "detaching"].map(|name| Key::Attachment(name.into()));
    assert_eq!(state.queue.call_begins(&attach), None);
    assert_eq!(state.queue.call_begins(&detach), None);
    state
        .queue
        .call_ended(&detach, Outcome::Failed(tonic::Code::Aborted.into()));
}

pub(super) fn get(view: &Arc<View>, path: &str) -> (u16, String) {
    let request = Request::get(path).body(Body::empty()).expect("the path is valid");
    let response = router(view.clone(), None).oneshot(request).now_or_never();
    let response = response
        .expect("no page waits")
        .unwrap_or_else(|never| match never {});
    let status = response.status().as_u16();
    let body = response.into_body().collect().now_or_never();
    let body = body.expect("no page is streamed").expect("a body in memory");
    let text = String::from_utf8(body.to_bytes().into()).expect("pages are UTF-8");
    (status, text)
}

/// A view in which every family has a sample.
fn mk_busy_view() -> Arc<View> {
    let view = mk_electing_view();
    view.election_begins(mk_leadership(true, None));
    let mut state = mk_state(&["va".to_owned()]);
    refuse_detach_beside(&mut state, "va");
    view.work_begins(Arc::new(Mutex::new(state)));
    view.calls.serve(&"ebs.csi.aws.com".into());
    view.calls.count_one("/csi.v1.Identity/Probe");
    view.requests.count_one("/api/v1/persistentvolumes/pv", 200);
    view
}

/// The row of a table of docs/metrics.md for each family of `text`.
fn rows(text: &str) -> Vec<String> {
    let mut rows = Vec::new();
    for family in text.split("# HELP ").skip(1) {
        let (head, samples) = family.split_once('\n').expect("TYPE follows HELP");
        let (name, help) = head.split_once(' ').expect("a name and a help");
        let (kind, samples) = samples.split_once('\n').expect("samples follow TYPE");
        let kind = kind.rsplit(' ').next().expect("a type");
        let sample = samples.lines().next().expect("a family has a sample");
        let labels = sample.split_once('{').map_or("", |(_, labels)| labels);
        // Between quotes are the values.
        let labels = labels
            .split('"')
            .step_by(2)
            .filter_map(|part| part.strip_suffix('='));
        let labels = labels.map(|label| label.trim_start_matches(','));
        let labels: Vec<_> = labels
            .filter(|label| *label != "le")
            .map(|label| format!("`{label}`"))
            .collect();
        rows.push(format!("| `{name}` | {kind} | {} | {help} |", labels.join(", ")));
    }
    rows
}

#[test]
fn documentation_has_name_type_labels_and_help_of_each_family() {
    let (status, text) = get(&mk_busy_view(), "/metrics");
    assert_eq!(status, 200);
    let documented = include_str!("../../../docs/metrics.md").lines();
    let documented = documented.filter(|line| {
        let kind = line.split(" | ").nth(1);
        matches!(kind, Some("counter" | "gauge" | "histogram"))
    });
    let mut documented: Vec<String> = documented.map(str::to_owned).collect();
    let mut rows = rows(&text);
    documented.sort();
    rows.sort();
    assert_eq!(rows, documented);
}

#[test]
fn each_metric_family_appears_once_with_its_samples() {
    let (_, text) = get(&mk_busy_view(), "/metrics");
    let mut seen = Vec::new();
    for line in text.lines() {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            let name = typed.split(' ').next().unwrap();
            assert!(!seen.contains(&name), "{name} appears twice");
            seen.push(name);
        } else if !line.starts_with('#') {
            let current = seen.last().expect("a sample must follow its TYPE");
            let name = line.split(['{', ' ']).next().unwrap();
            let suffixes = ["", "_bucket", "_sum", "_count"];
            assert!(
                suffixes
                    .iter()
                    .any(|suffix| name.strip_suffix(suffix) == Some(current)),
                "{line} under {current}"
            );
        }
    }
}

#[tokio::test]
async fn metrics_count_work_items_by_lane_and_stage() {
    let view = mk_view();
    let mut state = mk_state(&["a".to_owned(), "b".to_owned(), "c".to_owned()]);
    state.handle(Event::Volumes(Change::Applied(mk_volume("unused"))));
    fail_one(&mut state, Class::Final, "no");
    assert!(state.start(Instant::now().into_std()).is_some());
    view.work_begins(Arc::new(Mutex::new(state)));
    let (_, text) = get(&view, "/metrics");
    for line in [
        "csi_attacher_backlog{lane=\"attach\",state=\"running\"} 1",
        "csi_attacher_backlog{lane=\"attach\",state=\"ready\"} 1",
        "csi_attacher_backlog{lane=\"attach\",state=\"waiting\"} 1",
        "csi_attacher_backlog{lane=\"detach\",state=\"running\"} 0",
        "csi_attacher_oldest_seconds{lane=\"attach\"} 60",
        "csi_attacher_oldest_seconds{lane=\"detach\"} 0",
        "csi_attacher_objects{resource=\"volumeattachments\"} 3",
        "csi_attacher_objects{resource=\"persistentvolumes\"} 2",
        "csi_attacher_objects{resource=\"csinodes\"} 1",
        "csi_attacher_lists_complete 1",
        "workqueue_depth{name=\"csi-attacher-va\"} 1",
        "workqueue_depth{name=\"csi-attacher-pv\"} 0",
        "workqueue_adds_total{name=\"csi-attacher-va\"} 3",
        "workqueue_retries_total{name=\"csi-attacher-va\"} 1",
        "workqueue_queue_duration_seconds_count{name=\"csi-attacher-va\"} 2",
        "workqueue_work_duration_seconds_count{name=\"csi-attacher-va\"} 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("leader_election"));
}

#[tokio::test]
async fn readyz_names_missing_conditions() {
    let view = mk_view();
    let (status, text) = get(&view, "/readyz");
    assert_eq!(status, 503);
    assert!(
        text.contains("driver is not connected") && text.contains("controller has not started"),
        "{text}"
    );

    view.calls.connect_one();
    let mut state = mk_unlisted();
    state.handle(Event::Volumes(Change::Replaced));
    view.work_begins(Arc::new(Mutex::new(state)));
    let (status, text) = get(&view, "/readyz");
    assert_eq!(status, 503);
    assert!(
        text.contains("VolumeAttachments") && text.contains("CSINodes"),
        "{text}"
    );
    assert!(
        !text.contains("PersistentVolumes") && !text.contains("driver"),
        "{text}"
    );

    for change in [
        Event::Attachments(Change::Replaced),
        Event::Nodes(Change::Replaced),
    ] {
        let state = view.state.lock().unwrap().clone().unwrap();
        state.lock().unwrap().handle(change);
    }
    assert_eq!(get(&view, "/readyz"), (200, "ok\n".to_owned()));
    view.shutdown.cancel();
    assert_eq!(get(&view, "/readyz").0, 503);
}

#[tokio::test]
async fn standby_is_ready_if_it_could_take_over() {
    let mk_listed = |lists: &[Event]| {
        let mut state = mk_unlisted();
        lists.iter().cloned().for_each(|list| state.handle(list));
        Arc::new(Mutex::new(state))
    };
    let (volumes, nodes) = (Event::Volumes(Change::Replaced), Event::Nodes(Change::Replaced));
    let all = [volumes.clone(), nodes.clone()];

    let view = mk_electing_view();
    view.calls.connect_one();
    view.work_begins(mk_listed(&all));
    let (status, text) = get(&view, "/readyz");
    assert_eq!(
        (status, text.contains("election has not started")),
        (503, true),
        "{text}"
    );

    // The Lease cannot be read.
    let refused = "leases is forbidden (HTTP 403)";
    view.election_begins(mk_standby(None, Some(refused)));
    let (status, text) = get(&view, "/readyz");
    assert_eq!((status, text.contains(refused)), (503, true), "{text}");

    for (lists, missing) in [
        (&[][..], &["PersistentVolumes", "CSINodes"][..]),
        (&[volumes], &["CSINodes"]),
        (&[nodes], &["PersistentVolumes"]),
    ] {
        let view = mk_electing_view();
        view.calls.connect_one();
        view.election_begins(mk_standby(Some("pod-2"), None));
        view.work_begins(mk_listed(lists));
        view.requests
            .watch_failed("csinodes".into(), "cannot list: forbidden");
        let (status, text) = get(&view, "/readyz");
        assert_eq!(status, 503, "{text}");
        for kind in ["PersistentVolumes", "CSINodes", "VolumeAttachments"] {
            assert_eq!(text.contains(kind), missing.contains(&kind), "{kind} {text}");
        }
        let why = "the cache of CSINodes is not synced: cannot list: forbidden\n";
        assert_eq!(text.contains(why), missing.contains(&"CSINodes"), "{text}");
    }

    let view = mk_electing_view();
    view.election_begins(mk_standby(Some("pod-2"), None));
    view.work_begins(mk_listed(&all));
    assert_eq!(get(&view, "/readyz").0, 503, "without a driver");
    view.calls.connect_one();
    assert_eq!(get(&view, "/readyz"), (200, "ok\n".to_owned()));

    // The lease is free, but this replica may not acquire it.
    let view = mk_electing_view();
    view.election_begins(mk_standby(Some(""), Some(refused)));
    view.work_begins(mk_listed(&all));
    view.calls.connect_one();
    let (status, text) = get(&view, "/readyz");
    assert_eq!((status, text.contains(refused)), (503, true), "{text}");

    let leader = mk_electing_view();
    leader.election_begins(mk_leadership(true, None));
    leader.calls.connect_one();
    leader.work_begins(mk_listed(&all));
    let (status, text) = get(&leader, "/readyz");
    assert_eq!(
        (status, text.contains("VolumeAttachments")),
        (503, true),
        "a leader must list VolumeAttachments: {text}"
    );
}

#[tokio::test(start_paused = true)]
async fn healthz_fails_if_the_controller_loop_stalls() {
    let view = mk_view();
    assert_eq!(get(&view, "/healthz").0, 200, "nothing has started yet");
    view.heartbeat.beat(Instant::now());
    tokio::time::advance(Duration::from_secs(29)).await;
    assert_eq!(get(&view, "/healthz").0, 200);
    tokio::time::advance(Duration::from_secs(2)).await;
    let (status, text) = get(&view, "/healthz");
    assert_eq!(status, 500);
    assert!(text.contains("31 s"), "{text}");
    view.shutdown.cancel();
    assert_eq!(get(&view, "/healthz").0, 200, "it only finishes running syncs");
}

#[tokio::test(start_paused = true)]
async fn serves_election_health_only_with_leader_election() {
    assert_eq!(get(&mk_view(), "/healthz/leader-election").0, 404);
    let view = mk_electing_view();
    assert_eq!(get(&view, "/healthz/leader-election"), (200, "ok".to_owned()));
    view.election_begins(mk_leadership(true, Some(Duration::from_secs(36))));
    let (status, text) = get(&view, "/healthz/leader-election");
    assert_eq!(status, 500);
    assert_eq!(
        text,
        "internal server error: failed election to renew leadership on lease kube-system/external-attacher-leader-d-example\n"
    );
    let (_, text) = get(&view, "/metrics");
    let name = "name=\"kube-system/external-attacher-leader-d-example\"";
    assert!(
        text.contains(&format!("leader_election_master_status{{{name}}} 1\n")),
        "{text}"
    );
    assert!(
        text.contains(&format!("leader_election_slowpath_total{{{name}}} 3\n")),
        "{text}"
    );
}

#[test]
fn serves_metrics_at_the_path_of_the_flag() {
    for path in ["/elsewhere", "/", "/:a/*b", "/{a}/{*b}", "/healthz/", "/a%7Db"] {
        let view = Arc::new(View {
            metrics_path: path.to_owned(),
            ..view_with(false)
        });
        assert_eq!(get(&view, path).0, 200, "{path}");
        for other in ["/metrics", "/x/y", "/healthz/x"] {
            assert_eq!(get(&view, other).0, 404, "{path}");
        }
        assert_eq!(get(&view, "/healthz").0, 200, "{path}");
    }
}

#[test]
fn index_links_the_pages_that_are_served() {
    for view in [mk_view(), mk_electing_view()] {
        let (status, page) = get(&view, "/");
        assert_eq!(status, 200);
        let links: Vec<&str> = page
            .split("href=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        for link in &links {
            assert_ne!(get(&view, link).0, 404, "{link}");
        }
        assert_eq!(links.len(), 4 + usize::from(view.elects), "{page}");
    }
}

#[test]
fn serves_statusz_unless_disabled() {
    assert_eq!(get(&mk_view(), "/statusz").0, 200);
    let view = Arc::new(View {
        serves_statusz: false,
        ..view_with(false)
    });
    assert_eq!(get(&view, "/statusz?format=json").0, 404);
    assert_eq!(get(&view, "/healthz").0, 200);
}
