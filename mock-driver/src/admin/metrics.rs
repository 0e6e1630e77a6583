//! Prometheus metrics and health endpoints.
//!
//! Values are read at scrape time. Names of rules, nodes and methods are labels; secrets are not.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use csi_proto::v1::ProbeRequest;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use tonic::Code;

use super::problem::Refusal;
use super::route::info::counts;
use super::state::Admin;
use crate::admin_api::resource::Counts;
use crate::fault::RuleKind;
use crate::journal::{BOUNDS, CallStats, StatsKey};
use crate::log;
use crate::rpc::{code, method};

const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

type Labels<'a> = &'a [(&'a str, &'a str)];

#[derive(Debug, Default)]
struct Families(Vec<MetricFamily>);

pub(super) async fn metrics(State(admin): State<Admin>) -> Result<Response, Refusal> {
    let counts = counts(&admin).await?;
    let mut families = Families::default();
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("driver", &admin.driver.name),
    ];
    families.gauges(
        "csi_mock_build_info",
        "The program's version, as a label of a constant 1.",
        [gauge(&labels, 1)],
    );
    if admin.driver.has_array() {
        array(&counts, &mut families);
        nodes(&admin, &mut families).await?;
    }
    calls(&admin, &mut families);
    faults(&admin, &mut families);
    let text = TextEncoder::new().encode_to_string(&families.0);
    let text = text.map_err(|error| Refusal::new(Code::Internal, error.to_string()))?;
    Ok(([(CONTENT_TYPE, FORMAT)], text).into_response())
}

/// Whether Probe would succeed without faults, and whether kubelet would
/// find the driver, if it registers itself.
pub(super) async fn healthz(State(admin): State<Admin>) -> Response {
    if let Err(error) = admin.driver.check_registration().await {
        let text = format!("registration socket in --registration-dir is not available: {error}");
        return Refusal::new(Code::Unavailable, text).into_response();
    }
    let probed = match admin.driver.probe_proxied().await {
        Some(probed) => probed.map_err(|status| {
            let text = format!("Probe of the driver behind --proxy-to: {}", status.message());
            Refusal::new(status.code(), text)
        }),
        None => admin.perform(ProbeRequest {}).await,
    };
    match probed {
        Ok(reply) if reply.ready != Some(false) => "ok\n".into_response(),
        Ok(_) => Refusal::new(Code::Unavailable, "not ready yet: see --ready-after").into_response(),
        Err(refusal) => refusal
            .with_status(StatusCode::SERVICE_UNAVAILABLE)
            .into_response(),
    }
}

/// Whether the driver is healthy and, where it registers itself, registered with kubelet: before that no pod on its
/// node gets a volume.
pub(super) async fn readyz(State(admin): State<Admin>) -> Response {
    if admin.driver.awaits_registration() {
        let text = "kubelet has not registered the driver: does it watch --registration-dir, and see \
                    --registration-endpoint?";
        return Refusal::new(Code::Unavailable, text).into_response();
    }
    healthz(State(admin)).await
}

fn array(counts: &Counts, families: &mut Families) {
    let gauges = [
        ("csi_mock_volumes", "Volumes of the array.", counts.volumes),
        ("csi_mock_nodes", "Registered nodes.", counts.nodes),
        ("csi_mock_attachments", "Volumes on nodes.", counts.attachments),
        ("csi_mock_snapshots", "Snapshots of the array.", counts.snapshots),
    ];
    for (name, help, value) in gauges {
        families.gauges(name, help, [gauge(&[], number(value))]);
    }
}

async fn nodes(admin: &Admin, families: &mut Families) -> Result<(), Refusal> {
    let store = &admin.driver.store;
    let nodes = store.read(|array| {
        let shown = |node: &crate::array::Node| (node.id.to_string(), node.attached.len(), node.limit);
        Ok(array.nodes().map(shown).collect::<Vec<_>>())
    });
    let nodes = nodes.await?;
    let attached = nodes
        .iter()
        .map(|(node, attached, _)| gauge(&[("node", node)], number(*attached)));
    families.gauges("csi_mock_node_attachments", "Volumes on a node.", attached);
    let limits = nodes
        .iter()
        .filter_map(|(node, _, limit)| Some(gauge(&[("node", node)], number((*limit)?))));
    families.gauges(
        "csi_mock_node_attach_limit",
        "Maximum number of volumes attached to a node; absent if unlimited.",
        limits,
    );
    Ok(())
}

fn calls(admin: &Admin, families: &mut Families) {
    let Some(journal) = &admin.driver.journal else {
        return;
    };
    let (stats, running) = journal.read(|memory| {
        let mut running: BTreeMap<String, usize> = BTreeMap::new();
        for call in memory.running() {
            *running.entry(method::short(&call.method).to_owned()).or_default() += 1;
        }
        (memory.stats.clone(), running)
    });
    let running = running
        .iter()
        .map(|(method, running)| gauge(&[("method", method)], number(*running)));
    families.gauges("csi_mock_calls_in_flight", "Number of in-flight calls.", running);
    fn labels(key: &StatsKey) -> [(&'static str, &str); 2] {
        let code = code::name(Code::from(key.code));
        [("method", method::short(&key.method)), ("code", code)]
    }
    let lost = [("journal", journal.lost_lines()), ("log", log::lost_lines())];
    families.counters(
        "csi_mock_lost_lines_total",
        "Lines that the journal's file or the log lacks because it was stalled or full.",
        lost.map(|(output, lines)| counter(&[("output", output)], lines)),
    );
    families.counters(
        "csi_mock_calls_total",
        "Total number of finished calls, by method and code.",
        stats
            .iter()
            .map(|(key, stats)| counter(&labels(key), stats.calls)),
    );
    families.add(
        "csi_mock_call_duration_seconds",
        MetricType::HISTOGRAM,
        "Duration of calls in seconds, from request to response.",
        stats.iter().map(|(key, stats)| durations(&labels(key), stats)),
    );
}

fn faults(admin: &Admin, families: &mut Families) {
    let reports = admin.driver.faults.reports(RuleKind::Rule);
    let backend_faults = admin.driver.faults.reports(RuleKind::BackendFault);
    let totals = admin.driver.faults.injected();
    let of_rules = totals.iter().filter(|(key, _)| key.kind == RuleKind::Rule);
    let injected = of_rules.map(|(key, total)| {
        let code = key.code.map_or("", |code| code::name(Code::from(code)));
        let labels = [
            ("rule", key.rule.as_str()),
            ("method", &key.method),
            ("code", code),
        ];
        counter(&labels, *total)
    });
    families.counters(
        "csi_mock_faults_injected_total",
        "Total number of calls affected by a fault rule, by method and by the code that the rule returns, if any.",
        injected,
    );
    families.gauges(
        "csi_mock_faults_blocked_calls",
        "Number of calls that a fault rule blocks now.",
        reports
            .iter()
            .map(|report| gauge(&[("rule", &report.id)], report.blocked_calls)),
    );
    let mut by_fault: BTreeMap<&str, u64> = BTreeMap::new();
    by_fault.extend(backend_faults.iter().map(|report| (report.id.as_str(), 0)));
    for (key, total) in &totals {
        if key.kind == RuleKind::BackendFault {
            *by_fault.entry(&key.rule).or_default() += total;
        }
    }
    families.counters(
        "csi_mock_backend_faults_total",
        "Total number of calls affected by a backend fault.",
        by_fault
            .iter()
            .map(|(fault, total)| counter(&[("fault", fault)], *total)),
    );
}

// === impl Families ===

impl Families {
    fn gauges(&mut self, name: &str, help: &str, metrics: impl IntoIterator<Item = Metric>) {
        self.add(name, MetricType::GAUGE, help, metrics);
    }

    fn counters(&mut self, name: &str, help: &str, metrics: impl IntoIterator<Item = Metric>) {
        self.add(name, MetricType::COUNTER, help, metrics);
    }

    /// Omits a family without samples, which the text format cannot represent.
    fn add(&mut self, name: &str, kind: MetricType, help: &str, metrics: impl IntoIterator<Item = Metric>) {
        let metrics: Vec<Metric> = metrics.into_iter().collect();
        if metrics.is_empty() {
            return;
        }
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(metrics);
        self.0.push(family);
    }
}

fn metric(labels: Labels<'_>) -> Metric {
    let pairs = labels.iter().map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    });
    Metric::from_label(pairs.collect())
}

fn gauge(labels: Labels<'_>, value: u64) -> Metric {
    let mut gauge = Gauge::default();
    gauge.set_value(precise(value));
    let mut metric = metric(labels);
    metric.set_gauge(gauge);
    metric
}

fn counter(labels: Labels<'_>, value: u64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(precise(value));
    let mut metric = metric(labels);
    metric.set_counter(counter);
    metric
}

fn durations(labels: Labels<'_>, stats: &CallStats) -> Metric {
    let buckets = BOUNDS.iter().zip(stats.within).map(|(bound, within)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(*bound);
        bucket.set_cumulative_count(within);
        bucket
    });
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(stats.calls);
    histogram.set_sample_sum(stats.time.as_secs_f64());
    let mut metric = metric(labels);
    metric.set_histogram(histogram);
    metric
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Beyond 2^53 the last digits are lost.
#[allow(clippy::cast_precision_loss, reason = "Prometheus knows no other numbers")]
fn precise(count: u64) -> f64 {
    count as f64
}
