//! The metrics of all modules, in Prometheus' text format.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use http::header::CONTENT_TYPE;

use super::{VERSION, View};
use crate::controller::state::{QueueStats, Stats};
use crate::leader_election::Leadership;
use crate::logging::dropped_lines;
use crate::metrics::{Exposition, Family, exposition, family, process};
use crate::workqueue::{Lane, QueueMetrics};

/// Names of the Go sidecar's work queues: the lanes attach and detach are its first.
const ATTACHMENTS: &str = "csi-attacher-va";
const VOLUMES: &str = "csi-attacher-pv";

pub(super) async fn metrics(State(view): State<Arc<View>>) -> impl IntoResponse {
    let mut text = Exposition::default();
    view.calls.expose(&mut text);
    if let Some(stats) = view.stats(0) {
        work_queues(&mut text, &stats);
        lanes(&mut text, &view, &stats);
    }
    let status = |election: Leadership| Some((election.check().is_ok(), election.status()?));
    if let Some((leads, status)) = view.election().and_then(status) {
        let name = &status.lease;
        let leads = f64::from(u8::from(leads));
        text.family(&family::LEADER).sample(&[name], leads);
        let slow = status.slow_renewals as f64;
        text.family(&family::LEADER_SLOW).sample(&[name], slow);
    }
    view.requests.expose(&mut text);
    text.family(&family::BUILD).sample(&[VERSION], 1.0);
    text.single(&family::LOG_DROPPED, dropped_lines() as f64);
    process::expose(&mut text);
    ([(CONTENT_TYPE, exposition::CONTENT_TYPE)], text.into_text())
}

fn work_queues(text: &mut Exposition, stats: &Stats) {
    let of = |lanes: &[Lane]| -> Vec<&QueueStats> {
        lanes.iter().filter_map(|lane| stats.lanes.get(lane)).collect()
    };
    let queues = [
        (
            ATTACHMENTS,
            of(&[Lane::Attach, Lane::Detach, Lane::Repair]),
            &stats.attachments,
        ),
        (VOLUMES, of(&[Lane::Volume]), &stats.volumes),
    ];
    let mut each = |family: &'static Family, value: fn(&[&QueueStats], &QueueMetrics) -> f64| {
        let mut samples = text.family(family);
        for (name, lanes, tally) in &queues {
            samples.sample(&[name], value(lanes, tally));
        }
    };
    each(&family::WORKQUEUE_ADDS, |_, tally| tally.adds as f64);
    each(&family::WORKQUEUE_RETRIES, |_, tally| tally.retries as f64);
    each(&family::WORKQUEUE_DEPTH, |lanes, _| {
        lanes.iter().map(|lane| lane.ready as f64).sum()
    });
    each(&family::WORKQUEUE_UNFINISHED, |lanes, _| {
        lanes.iter().map(|lane| lane.unfinished.as_secs_f64()).sum()
    });
    each(&family::WORKQUEUE_LONGEST, |lanes, _| {
        let longest = lanes.iter().map(|lane| lane.longest_running).max();
        longest.unwrap_or_default().as_secs_f64()
    });
    let mut samples = text.family(&family::WORKQUEUE_WAITED);
    for (name, _, tally) in &queues {
        samples.histogram(&[name], &tally.waited);
    }
    let mut samples = text.family(&family::WORKQUEUE_WORKED);
    for (name, _, tally) in &queues {
        samples.histogram(&[name], &tally.worked);
    }
}

fn lanes(text: &mut Exposition, view: &View, stats: &Stats) {
    let now = view.now();
    let mut samples = text.family(&family::BACKLOG);
    for (lane, stats) in &stats.lanes {
        for (state, count) in [
            ("running", stats.running),
            ("ready", stats.ready),
            ("waiting", stats.waiting),
        ] {
            samples.sample(&[lane.name(), state], count as f64);
        }
    }
    let mut samples = text.family(&family::LIMIT);
    for (lane, stats) in &stats.lanes {
        samples.sample(&[lane.name()], stats.limit as f64);
    }
    let mut samples = text.family(&family::OLDEST);
    for (lane, stats) in &stats.lanes {
        samples.sample(&[lane.name()], stats.age(now).as_secs_f64());
    }
    text.family(&family::ATTACH_SECONDS)
        .histogram(&[], &stats.latency.attached);
    text.family(&family::DETACH_SECONDS)
        .histogram(&[], &stats.latency.detached);
    let mut samples = text.family(&family::OBJECTS);
    for (resource, count) in [
        ("volumeattachments", stats.known.attachments),
        ("persistentvolumes", stats.known.volumes),
        ("csinodes", stats.known.nodes),
    ] {
        samples.sample(&[resource], count as f64);
    }
    let reconcile = stats.reconcile;
    let mut samples = text.family(&family::RECONCILE_ROUNDS);
    samples.sample(&["completed"], reconcile.rounds as f64);
    samples.sample(&["failed"], reconcile.failed_rounds as f64);
    let last = stats.last_round.as_ref();
    let took = last.map_or(0.0, |last| last.round.took.as_secs_f64());
    text.single(&family::RECONCILE_SECONDS, took);
    text.single(&family::LOST, reconcile.lost as f64);
    text.single(&family::LEFTOVER, reconcile.leftover as f64);
    text.single(&family::REPAIRED, reconcile.repaired as f64);
    text.single(&family::REFUSED, reconcile.refused as f64);
    text.single(&family::SYNCED, f64::from(u8::from(stats.listed.all())));
}
