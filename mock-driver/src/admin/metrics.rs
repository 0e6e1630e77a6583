//! Prometheus metrics and health endpoints.
//!
//! Values are read at scrape time. Names of rules, nodes and methods are labels; secrets are not.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use csi_proto::v1::ProbeRequest;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};
use tonic::Code;

use super::problem::Refusal;
use super::route::info::counts;
use super::state::Admin;
use crate::admin_api::resource::Counts;
use crate::fault::RuleKind;
use crate::log;
use crate::rpc::{code, method};

const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics of one scrape. A family without samples is left out.
#[derive(Default)]
struct Scrape(Registry);

pub(super) async fn metrics(State(admin): State<Admin>) -> Result<Response, Refusal> {
    let scrape = Scrape::default();
    collect(&admin, &scrape).await?;
    let text = TextEncoder::new().encode_to_string(&scrape.0.gather());
    let text = text.map_err(failed)?;
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

async fn collect(admin: &Admin, scrape: &Scrape) -> Result<(), Refusal> {
    let counts = counts(admin).await?;
    let build = [env!("CARGO_PKG_VERSION"), admin.driver.settings.name.as_str()];
    scrape.gauges(
        "csi_mock_build_info",
        "The program's version, as a label of a constant 1.",
        ["version", "driver"],
        [(build, 1)],
    )?;
    if admin.driver.has_array() {
        array(&counts, scrape)?;
        nodes(admin, scrape).await?;
    }
    calls(admin, scrape)?;
    faults(admin, scrape)
}

fn array(counts: &Counts, scrape: &Scrape) -> Result<(), Refusal> {
    let gauges = [
        ("csi_mock_volumes", "Volumes of the array.", counts.volumes),
        ("csi_mock_nodes", "Registered nodes.", counts.nodes),
        ("csi_mock_attachments", "Volumes on nodes.", counts.attachments),
        ("csi_mock_snapshots", "Snapshots of the array.", counts.snapshots),
    ];
    let mut gauges = gauges.into_iter();
    gauges.try_for_each(|(name, help, value)| scrape.gauges(name, help, [], [([], value)]))
}

async fn nodes(admin: &Admin, scrape: &Scrape) -> Result<(), Refusal> {
    let nodes = admin.read(|array| {
        let shown = |node: &crate::array::Node| (node.id.to_string(), node.attached.len(), node.limit);
        Ok(array.nodes().map(shown).collect::<Vec<_>>())
    });
    let nodes = nodes.await?;
    scrape.gauges(
        "csi_mock_node_attachments",
        "Volumes on a node.",
        ["node"],
        nodes
            .iter()
            .map(|(node, attached, _)| ([node.as_str()], *attached)),
    )?;
    scrape.gauges(
        "csi_mock_node_attach_limit",
        "Maximum number of volumes attached to a node; absent if unlimited.",
        ["node"],
        nodes
            .iter()
            .filter_map(|(node, _, limit)| Some(([node.as_str()], (*limit)?))),
    )
}

fn calls(admin: &Admin, scrape: &Scrape) -> Result<(), Refusal> {
    let Some(journal) = &admin.driver.journal else {
        return Ok(());
    };
    let (durations, running) = journal.read(|memory| {
        let running: Vec<_> = memory.running().cloned().collect();
        (memory.durations.clone(), running)
    });
    let in_flight = IntGaugeVec::new(
        Opts::new("csi_mock_calls_in_flight", "Number of in-flight calls."),
        &["method"],
    )
    .map_err(failed)?;
    for call in &running {
        in_flight.with_label_values(&[method::short(&call.method)]).inc();
    }
    scrape.0.register(Box::new(in_flight)).map_err(failed)?;
    scrape.counters(
        "csi_mock_lost_lines_total",
        "Lines that the journal's file or the log lacks because it was stalled or full.",
        ["output"],
        [(["journal"], journal.lost_lines()), (["log"], log::lost_lines())],
    )?;
    scrape.counters(
        "csi_mock_calls_total",
        "Total number of finished calls, by method and code.",
        ["method", "code"],
        durations
            .iter()
            .map(|((method, code), times)| ([method.as_str(), *code], times.get_sample_count())),
    )?;
    let mut durations = durations.into_values();
    durations.try_for_each(|times| scrape.0.register(Box::new(times)).map_err(failed))
}

fn faults(admin: &Admin, scrape: &Scrape) -> Result<(), Refusal> {
    let faults = &admin.driver.faults;
    let totals = faults.injected();
    let of_rules = totals.iter().filter(|(key, _)| key.kind == RuleKind::Rule);
    scrape.counters(
        "csi_mock_faults_injected_total",
        "Total number of calls affected by a fault rule, by method and by the code that the rule returns, if any.",
        ["rule", "method", "code"],
        of_rules.map(|(key, total)| {
            let code = key.code.map_or("", |code| code::name(Code::from(code)));
            ([key.rule.as_str(), key.method.as_str(), code], *total)
        }),
    )?;
    let rules = faults.reports(RuleKind::Rule);
    scrape.gauges(
        "csi_mock_faults_blocked_calls",
        "Number of calls that a fault rule blocks now.",
        ["rule"],
        rules.iter().map(|report| {
            (
                [report.id.as_str()],
                usize::try_from(report.blocked_calls).unwrap_or_default(),
            )
        }),
    )?;
    let backend_faults = faults.reports(RuleKind::BackendFault);
    let there = backend_faults.iter().map(|report| ([report.id.as_str()], 0));
    let of_backend_faults = totals
        .iter()
        .filter(|(key, _)| key.kind == RuleKind::BackendFault);
    scrape.counters(
        "csi_mock_backend_faults_total",
        "Total number of calls affected by a backend fault.",
        ["fault"],
        there.chain(of_backend_faults.map(|(key, total)| ([key.rule.as_str()], *total))),
    )
}

// === impl Scrape ===

impl Scrape {
    fn gauges<'a, const N: usize>(
        &self,
        name: &str,
        help: &str,
        labels: [&str; N],
        samples: impl IntoIterator<Item = ([&'a str; N], usize)>,
    ) -> Result<(), Refusal> {
        let family = IntGaugeVec::new(Opts::new(name, help), &labels).map_err(failed)?;
        for (values, sample) in samples {
            let sample = i64::try_from(sample).unwrap_or(i64::MAX);
            family.with_label_values(&values).set(sample);
        }
        self.0.register(Box::new(family)).map_err(failed)
    }

    /// Adds up the samples with the same labels.
    fn counters<'a, const N: usize>(
        &self,
        name: &str,
        help: &str,
        labels: [&str; N],
        samples: impl IntoIterator<Item = ([&'a str; N], u64)>,
    ) -> Result<(), Refusal> {
        let family = IntCounterVec::new(Opts::new(name, help), &labels).map_err(failed)?;
        for (values, sample) in samples {
            family.with_label_values(&values).inc_by(sample);
        }
        self.0.register(Box::new(family)).map_err(failed)
    }
}

fn failed(error: prometheus::Error) -> Refusal {
    Refusal::new(Code::Internal, error.to_string())
}
