//! What Prometheus scrapes, in its text format, and whether the driver is well.
//!
//! Every number is looked at when it is asked for, so none can drift. Names of rules, nodes and
//! methods are labels; secrets are nowhere near.

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use csi_proto::v1::ProbeRequest;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use tonic::Code;

use super::problem::Refusal;
use super::route::counts;
use super::server::Admin;
use crate::admin_api::resource::Counts;
use crate::journal::BOUNDS;
use crate::rpc::code;

/// The text format that every Prometheus takes.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A text in the making.
#[derive(Debug, Default)]
struct Exposition(String);

/// Everything Prometheus may want.
pub(super) async fn metrics(State(admin): State<Admin>) -> Result<Response, Refusal> {
    let counts = counts(&admin).await?;
    let mut text = Exposition::default();
    text.family(
        "csi_mock_build_info",
        "gauge",
        "The program's version, as a label of a constant 1.",
    );
    text.sample(
        "csi_mock_build_info",
        &[
            ("version", env!("CARGO_PKG_VERSION")),
            ("driver", &admin.driver.name),
        ],
        1.0,
    );
    if admin.driver.has_array() {
        array(&counts, &mut text);
        nodes(&admin, &mut text).await?;
    }
    calls(&admin, &mut text);
    faults(&admin, &mut text);
    Ok(([(CONTENT_TYPE, FORMAT)], text.0).into_response())
}

/// Whether the driver would answer Probe, without the faults that Probe may have, and whether kubelet would
/// find it, if it registers itself.
pub(super) async fn healthz(State(admin): State<Admin>) -> Response {
    if let Err(error) = admin.driver.check_registration().await {
        let text = format!("kubelet does not find the driver in --registration-dir: {error}");
        return Refusal::new(Code::Unavailable, text).into_response();
    }
    match admin.perform(ProbeRequest {}).await {
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

fn array(counts: &Counts, text: &mut Exposition) {
    let gauges = [
        ("csi_mock_volumes", "Volumes of the array.", counts.volumes),
        ("csi_mock_nodes", "Registered nodes.", counts.nodes),
        ("csi_mock_attachments", "Volumes on nodes.", counts.attachments),
        ("csi_mock_snapshots", "Snapshots of the array.", counts.snapshots),
    ];
    for (name, help, value) in gauges {
        text.family(name, "gauge", help);
        text.sample(name, &[], number(value));
    }
}

async fn nodes(admin: &Admin, text: &mut Exposition) -> Result<(), Refusal> {
    let store = &admin.driver.store;
    let nodes = store.read(|array| {
        let shown = |node: crate::array::Node| (node.id.to_string(), node.attached.len(), node.limit);
        Ok(array.nodes().map(shown).collect::<Vec<_>>())
    });
    let nodes = nodes.await?;
    text.family("csi_mock_node_attachments", "gauge", "Volumes on a node.");
    for (node, attached, _) in &nodes {
        text.sample("csi_mock_node_attachments", &[("node", node)], number(*attached));
    }
    text.family(
        "csi_mock_node_attach_limit",
        "gauge",
        "How many volumes a node takes; absent for as many as come.",
    );
    for (node, _, limit) in &nodes {
        if let Some(limit) = limit {
            text.sample("csi_mock_node_attach_limit", &[("node", node)], number(*limit));
        }
    }
    Ok(())
}

fn calls(admin: &Admin, text: &mut Exposition) {
    let Some(journal) = &admin.driver.journal else {
        return;
    };
    let (tallies, running) = journal.look(|look| {
        let mut running: BTreeMap<String, usize> = BTreeMap::new();
        for call in look.running() {
            *running.entry(call.short_method().to_owned()).or_default() += 1;
        }
        (look.tallies().clone(), running)
    });
    text.family("csi_mock_calls_in_flight", "gauge", "Calls that run.");
    for (method, running) in &running {
        text.sample(
            "csi_mock_calls_in_flight",
            &[("method", method)],
            number(*running),
        );
    }
    const CALLS: &str = "csi_mock_call_duration_seconds";
    text.family(
        "csi_mock_calls_total",
        "counter",
        "Calls that have ended, by method and code.",
    );
    for (key, tally) in &tallies {
        let labels = [
            ("method", key.short_method()),
            ("code", code::name(Code::from(key.code))),
        ];
        text.sample("csi_mock_calls_total", &labels, precise(tally.calls));
    }
    text.family(
        CALLS,
        "histogram",
        "How long calls took, from their arrival to their answer.",
    );
    for (key, tally) in &tallies {
        let labels = [
            ("method", key.short_method()),
            ("code", code::name(Code::from(key.code))),
        ];
        for (bound, within) in BOUNDS.iter().zip(tally.within) {
            let bound = bound.to_string();
            let labels = [labels[0], labels[1], ("le", bound.as_str())];
            text.sample(&format!("{CALLS}_bucket"), &labels, precise(within));
        }
        let all = [labels[0], labels[1], ("le", "+Inf")];
        text.sample(&format!("{CALLS}_bucket"), &all, precise(tally.calls));
        text.sample(&format!("{CALLS}_sum"), &labels, tally.time.as_secs_f64());
        text.sample(&format!("{CALLS}_count"), &labels, precise(tally.calls));
    }
}

fn faults(admin: &Admin, text: &mut Exposition) {
    let reports = admin.driver.faults.reports();
    text.family(
        "csi_mock_faults_injected_total",
        "counter",
        "How often a fault rule fired since it came into force, by method and by the code it answers with, if any.",
    );
    for report in &reports {
        let code = report.code.map_or("", code::name);
        for (method, fired) in &report.methods {
            let method = method.rsplit('/').next().unwrap_or(method);
            text.sample(
                "csi_mock_faults_injected_total",
                &[("rule", &report.id), ("method", method), ("code", code)],
                precise(*fired),
            );
        }
    }
    text.family(
        "csi_mock_faults_holding",
        "gauge",
        "Calls that a fault rule has in its hands.",
    );
    for report in &reports {
        text.sample(
            "csi_mock_faults_holding",
            &[("rule", &report.id)],
            precise(report.holds),
        );
    }
    text.family(
        "csi_mock_troubles_met_total",
        "counter",
        "How often a trouble of the array stood in the way of a call since it began.",
    );
    for report in admin.driver.faults.backend_faults().reports() {
        text.sample(
            "csi_mock_troubles_met_total",
            &[("trouble", &report.id)],
            precise(report.met),
        );
    }
}

// === impl Exposition ===

impl Exposition {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let escaped = |text: &str| {
            text.replace('\\', r"\\")
                .replace('"', "\\\"")
                .replace('\n', r"\n")
        };
        let labels: Vec<String> = labels
            .iter()
            .map(|(label, text)| format!("{label}=\"{}\"", escaped(text)))
            .collect();
        if labels.is_empty() {
            self.line(format_args!("{name} {value}\n"));
        } else {
            self.line(format_args!("{name}{{{}}} {value}\n", labels.join(",")));
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        self.0.write_fmt(line).expect("a string must take any text");
    }
}

fn number(count: usize) -> f64 {
    precise(u64::try_from(count).unwrap_or(u64::MAX))
}

/// As Prometheus has it: beyond 2^53 the last digits are lost.
#[allow(clippy::cast_precision_loss, reason = "Prometheus knows no other numbers")]
fn precise(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut text = Exposition::default();
        text.sample("a", &[("rule", "x\"y\\z\n")], 1.0);
        text.sample("b", &[], 0.5);
        assert_eq!(text.0, "a{rule=\"x\\\"y\\\\z\\n\"} 1\nb 0.5\n");
    }
}
