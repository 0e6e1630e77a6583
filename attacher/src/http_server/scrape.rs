//! `--metrics-path`: the metrics of all modules. Names that the Go sidecar has too are the Go sidecar's, with its help,
//! labels and buckets, so that dashboards and alerts keep working.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use http::header::CONTENT_TYPE;
use jiff::Timestamp;
use tokio::time::Instant;

use super::{VERSION, View};
use crate::controller::state::{ControllerState, QueueStats, Rounds, lock};
use crate::leader_election::Leadership;
use crate::logging::dropped_lines;
use crate::metrics::{self, Scrape, process};
use crate::workqueue::{ATTACHMENT_QUEUE, FlowControl, Lane, VOLUME_QUEUE};

pub(super) async fn metrics(State(view): State<Arc<View>>) -> impl IntoResponse {
    let scrape = Scrape::default();
    view.calls.collect(&scrape);
    view.requests.collect(&scrape);
    if let Some(state) = view.state() {
        let state = lock(&state);
        let stats = state.lanes(Instant::now().into_std());
        work_queues(&scrape, &state, &stats);
        lanes(&scrape, view.now(), &stats, state.unproven());
        flow_control(&scrape, state.queue.flow());
        caches(&scrape, &state);
        reconcile(&scrape, &state.rounds);
        warnings(&scrape, &state);
    }
    if let Some(election) = view.election() {
        leadership(&scrape, &election);
    }
    scrape.gauges(
        "csi_attacher_build_info",
        "Always 1; the version is in the label",
        ["version"],
        [([VERSION], 1.0)],
    );
    scrape.counter(
        "csi_attacher_log_dropped_lines_total",
        "Log lines dropped because standard error or output was blocked",
        dropped_lines() as f64,
    );
    process::collect(&scrape);
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], scrape.text())
}

fn leadership(scrape: &Scrape, election: &Leadership) {
    let Some(status) = election.status() else { return };
    let leads = f64::from(u8::from(election.check().is_ok()));
    scrape.gauges(
        "leader_election_master_status",
        "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. 'name' is the string used to identify the lease. Please make sure to group by name",
        ["name"],
        [([&*status.lease], leads)],
    );
    scrape.counters(
        "leader_election_slowpath_total",
        "Total number of slow path exercised in renewing leader leases. 'name' is the string used to identify the lease. Please make sure to group by name",
        ["name"],
        [([&*status.lease], status.slow_renewals as f64)],
    );
}

fn work_queues(scrape: &Scrape, state: &ControllerState, stats: &BTreeMap<Lane, QueueStats>) {
    state.queue.metrics(Lane::Attach).collect(scrape);
    state.queue.metrics(Lane::PersistentVolume).collect(scrape);
    scrape.add(state.latency.attached.clone());
    scrape.add(state.latency.detached.clone());
    let queues = [
        (ATTACHMENT_QUEUE, &[Lane::Attach, Lane::Detach, Lane::Repair][..]),
        (VOLUME_QUEUE, &[Lane::PersistentVolume]),
    ];
    let gauges = |name, help, value: fn(&QueueStats) -> f64, fold: fn(f64, f64) -> f64| {
        let samples = queues.map(|(queue, lanes)| {
            let lanes = lanes.iter().filter_map(|lane| stats.get(lane));
            ([queue], lanes.map(value).fold(0.0, fold))
        });
        scrape.gauges(name, help, ["name"], samples);
    };
    gauges(
        "workqueue_depth",
        "Current depth of workqueue",
        |lane| lane.ready as f64,
        |a, b| a + b,
    );
    gauges(
        "workqueue_unfinished_work_seconds",
        "How many seconds of work has been done that is in progress and hasn't been observed by work_duration. Large values indicate stuck items",
        |lane| lane.unfinished.as_secs_f64(),
        |a, b| a + b,
    );
    gauges(
        "workqueue_longest_running_processor_seconds",
        "How many seconds has the longest running processor for workqueue been running",
        |lane| lane.longest_running.as_secs_f64(),
        f64::max,
    );
}

fn lanes(scrape: &Scrape, now: Timestamp, stats: &BTreeMap<Lane, QueueStats>, unproven: usize) {
    let lanes = || stats.iter().map(|(lane, stats)| (lane.name(), stats));
    scrape.gauges(
        "csi_attacher_backlog",
        "Unfinished work items by lane (attach, detach, repair: requested by a reconcile or after a reconnect, release: PersistentVolume finalizers) and state (running, ready: queued for a worker, waiting: in backoff)",
        ["lane", "state"],
        lanes().flat_map(|(lane, stats)| {
            [
                ([lane, "running"], stats.running as f64),
                ([lane, "ready"], stats.ready as f64),
                ([lane, "waiting"], stats.waiting as f64),
            ]
        }),
    );
    scrape.gauge(
        "csi_attacher_unproven_detaches",
        "Number of detaches that wait for a proof that the volume is unpublished: the driver answers NOT_FOUND or INVALID_ARGUMENT, or reports no publish calls",
        unproven as f64,
    );
    scrape.gauges(
        "csi_attacher_lane_limit",
        "Maximum number of work items of the lane that run concurrently",
        ["lane"],
        lanes().map(|(lane, stats)| ([lane], stats.limit as f64)),
    );
    scrape.gauges(
        "csi_attacher_oldest_seconds",
        "Age of the oldest unfinished work item of the lane since the creation or deletion of its VolumeAttachment (of a repair: since its request); 0 if there is none",
        ["lane"],
        lanes().map(|(lane, stats)| ([lane], stats.age(now).as_secs_f64())),
    );
}

fn flow_control(scrape: &Scrape, flow: &FlowControl) {
    let metrics = flow.metrics;
    scrape.gauges(
        "csi_attacher_node_concurrency_limit",
        "Learned maximum number of calls in flight for the node; only nodes with a limit",
        ["node"],
        flow.node_limits().map(|(node, limit)| ([node], limit as f64)),
    );
    scrape.gauge(
        "csi_attacher_driver_concurrency_limit",
        "Learned maximum number of calls in flight; 0 if there is none",
        flow.driver_limit().unwrap_or(0) as f64,
    );
    scrape.gauge(
        "csi_attacher_driver_down",
        "Whether calls to the connected driver keep failing with codes of an outage, so that one call at a time probes it",
        f64::from(u8::from(flow.down_since().is_some())),
    );
    scrape.counters(
        "csi_attacher_refused_calls_total",
        "Total number of calls that failed with a code that other calls may cause, by reason (node: other calls for the node, driver: calls for other nodes, alone: none)",
        ["reason"],
        [
            (["node"], metrics.refused_by_node as f64),
            (["driver"], metrics.refused_by_driver as f64),
            (["alone"], metrics.failed_alone as f64),
        ],
    );
    scrape.counter(
        "csi_attacher_outage_probes_total",
        "Total number of calls sent while the driver was down",
        metrics.outage_probes as f64,
    );
}

fn caches(scrape: &Scrape, state: &ControllerState) {
    scrape.gauges(
        "csi_attacher_objects",
        "Number of objects in the caches",
        ["resource"],
        state
            .caches()
            .map(|(resource, _, objects)| ([resource], objects as f64)),
    );
    scrape.gauge(
        "csi_attacher_lists_complete",
        "Whether all caches are synced; the workers start after that",
        f64::from(u8::from(state.caches_synced.all())),
    );
}

fn reconcile(scrape: &Scrape, rounds: &Rounds) {
    let reconcile = &rounds.metrics;
    scrape.counters(
        "csi_attacher_reconcile_rounds_total",
        "Total number of reconciles of the VolumeAttachments with ListVolumes by result (completed, failed)",
        ["result"],
        [
            (["completed"], reconcile.rounds as f64),
            (["failed"], reconcile.failed_rounds as f64),
        ],
    );
    let last = rounds.last.as_ref();
    scrape.gauge(
        "csi_attacher_reconcile_last_duration_seconds",
        "Duration of the last reconcile, completed or failed; 0 before the first",
        last.map_or(0.0, |last| last.round.took.as_secs_f64()),
    );
    scrape.counter(
        "csi_attacher_lost_attachments_total",
        "Total number of attachments found lost: ListVolumes did not show the volume on its node",
        reconcile.lost as f64,
    );
    scrape.counter(
        "csi_attacher_dangling_attachments_total",
        "Total number of volumes found published on a node after the attacher had removed its finalizer",
        reconcile.dangling as f64,
    );
    scrape.counter(
        "csi_attacher_repaired_attachments_total",
        "Total number of lost attachments that were published again and of dangling ones that were unpublished",
        reconcile.repaired as f64,
    );
    scrape.counter(
        "csi_attacher_refused_repairs_total",
        "Total number of repairs that the attacher refused, for example because the volume is being deleted; each is suspended until one of its objects changes",
        reconcile.refused as f64,
    );
}

fn warnings(scrape: &Scrape, state: &ControllerState) {
    scrape.gauge(
        "csi_attacher_shared_node_ids",
        "Number of node ids of the driver that more than one CSINode has; Events on the VolumeAttachments name the nodes",
        state.index.by_node_id.shared() as f64,
    );
    scrape.gauge(
        "csi_attacher_volumes_attached_twice",
        "Number of single-node volumes for which VolumeAttachments of two nodes, without a recorded node id, have attached=true; Events on the VolumeAttachments name the nodes",
        state.attached_twice() as f64,
    );
    scrape.gauge(
        "csi_attacher_published_without_attachment",
        "Number of volumes that two complete ListVolumes show on a node without any VolumeAttachment; Events on the PersistentVolumes name the nodes",
        state.unattached() as f64,
    );
}
