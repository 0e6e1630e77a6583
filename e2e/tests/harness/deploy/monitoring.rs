//! Alerts and dashboard query existing metrics, and each alert has a runbook.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use csi_e2e::cluster::manifest;
use csi_e2e::toolchain::{Validator, workspace_root};
use k8s_openapi::api::core::v1::{ConfigMap, ServicePort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::DynamicObject;
use serde::Deserialize;
use serde_json::Value;

use super::shape::Shape;
use super::{of_kind, selects, template};
use crate::Harness;

/// The selectors and groupings of a PromQL expression.
#[derive(Deserialize)]
struct Query {
    selectors: Vec<Selector>,
    /// The labels by which it groups or matches.
    grouping: Vec<String>,
}

#[derive(Deserialize)]
struct Selector {
    metric: String,
    /// Labels of its matchers.
    labels: Vec<String>,
}

/// Suffixes of a histogram's series.
const HISTOGRAM_SUFFIXES: [&str; 3] = ["_bucket", "_count", "_sum"];
/// Labels that Prometheus adds to scraped series, and that of histograms.
const LABELS_OF_PROMETHEUS: [&str; 7] = [
    "cluster",
    "container",
    "instance",
    "job",
    "le",
    "namespace",
    "pod",
];
/// Metrics of kube-state-metrics that alerts use, with their labels.
const KUBE_STATE_METRICS: &[(&str, &[&str])] = &[
    ("kube_deployment_spec_replicas", &["deployment", "namespace"]),
    (
        "kube_deployment_status_replicas_available",
        &["deployment", "namespace"],
    ),
    ("kube_volumeattachment_created", &["volumeattachment"]),
    (
        "kube_volumeattachment_info",
        &["attacher", "node", "volumeattachment"],
    ),
    ("kube_volumeattachment_status_attached", &["volumeattachment"]),
];

trials! { "deploy":
    queries_use_existing_metrics_and_labels,
    every_alert_has_its_runbook,
    service_monitor_selects_the_attacher,
}

async fn queries_use_existing_metrics_and_labels(harness: Arc<Harness>) -> Result<()> {
    let documented = Documented::read()?;
    let objects = objects(&harness).await?;
    let mut expressions = alerts(&objects)?
        .into_iter()
        .map(|alert| (format!("alert {}", alert.name), alert.expr))
        .collect::<Vec<_>>();
    let alerts = expressions.len();
    expressions.extend(dashboard_expressions(&objects)?);
    ensure!(alerts >= 7, "there are {alerts} alerts");
    ensure!(
        expressions.len() >= alerts + 10,
        "the dashboard has fewer than ten expressions"
    );

    let (places, expressions): (Vec<_>, Vec<_>) = expressions.into_iter().unzip();
    let asked = serde_json::to_string(&expressions)?;
    let queries: Vec<Query> = harness.toolchain.read(Validator::Promql, &[], &asked).await?;
    for ((place, expression), query) in places.iter().zip(&expressions).zip(queries) {
        let mut labels: BTreeSet<&str> = LABELS_OF_PROMETHEUS.into();
        for selector in &query.selectors {
            let known = documented.labels(&selector.metric);
            labels.extend(known.with_context(|| {
                format!(
                    "{place}: there is no metric {} in docs/metrics.md\n{expression}",
                    selector.metric
                )
            })?);
        }
        let used = query
            .selectors
            .iter()
            .flat_map(|selector| &selector.labels)
            .chain(&query.grouping);
        for label in used {
            ensure!(
                labels.contains(label.as_str()),
                "{place}: none of its metrics has the label {label}\n{expression}"
            );
        }
    }
    Ok(())
}

async fn every_alert_has_its_runbook(harness: Arc<Harness>) -> Result<()> {
    let runbooks =
        std::fs::read_to_string(workspace_root().join("docs/alerts.md")).context("read docs/alerts.md")?;
    let mut headings: BTreeSet<_> = runbooks
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .filter(|heading| heading.starts_with("CSIAttacher"))
        .collect();
    for alert in alerts(&objects(&harness).await?)? {
        let name = &alert.name;
        ensure!(
            headings.remove(name.as_str()),
            "docs/alerts.md has no section {name}"
        );
        for wanted in ["summary", "description", "runbook_url"] {
            ensure!(
                alert.annotations.contains_key(wanted),
                "alert {name} has no {wanted}"
            );
        }
        let (anchor, url) = (
            format!("/docs/alerts.md#{}", name.to_lowercase()),
            &alert.annotations["runbook_url"],
        );
        ensure!(
            url.starts_with("https://") && url.ends_with(&anchor),
            "the runbook of alert {name} must be an address that ends with {anchor}, not {url}"
        );
        let severity = alert.labels.get("severity").map(String::as_str);
        ensure!(
            matches!(severity, Some("critical" | "warning" | "info")),
            "alert {name} has severity {severity:?}"
        );
    }
    ensure!(
        headings.is_empty(),
        "docs/alerts.md describes alerts that do not exist: {headings:?}"
    );
    Ok(())
}

async fn service_monitor_selects_the_attacher(harness: Arc<Harness>) -> Result<()> {
    let shape = Shape::base_with(&["monitoring"])?;
    let objects = manifest::parse(&shape.build(&harness).await?)?;
    let the = |wanted: &str| {
        let found = objects.iter().find(|object| kind(object) == wanted);
        found.with_context(|| format!("there must be a {wanted}"))
    };
    let (monitor, service) = (&the("ServiceMonitor")?.data["spec"], the("Service")?);
    let selector: LabelSelector = serde_json::from_value(monitor["selector"].clone())?;
    let labels = service.metadata.labels.clone().unwrap_or_default();
    ensure!(
        selector
            .match_labels
            .unwrap_or_default()
            .iter()
            .all(|label| labels.get(label.0) == Some(label.1)),
        "the ServiceMonitor does not select the Service"
    );
    let ports: Vec<ServicePort> = serde_json::from_value(service.data["spec"]["ports"].clone())?;
    let wanted = monitor["endpoints"][0]["port"].as_str();
    let served = ports.iter().find(|port| port.name.as_deref() == wanted);
    let port = match served.and_then(|port| port.target_port.as_ref()) {
        Some(IntOrString::String(name)) => name,
        other => anyhow::bail!("the Service's targetPort is {other:?}, not the name of a port"),
    };
    let selector = LabelSelector {
        match_labels: serde_json::from_value(service.data["spec"]["selector"].clone())?,
        match_expressions: None,
    };
    let deployments = shape.deployments(&harness).await?;
    let [deployment] = deployments.as_slice() else {
        anyhow::bail!("the base must hold one Deployment")
    };
    let template = template(deployment);
    ensure!(selects(&selector, &template), "the Service selects no pod");
    let spec = template.spec.context("a pod template must have a spec")?;
    let mut ports = spec
        .containers
        .iter()
        .flat_map(|container| container.ports.iter().flatten());
    ensure!(
        ports.any(|named| named.name.as_ref() == Some(port)),
        "no container has the port {port}"
    );
    Ok(())
}

// === queries ===

struct Alert {
    name: String,
    expr: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

async fn objects(harness: &Harness) -> Result<Vec<DynamicObject>> {
    manifest::parse(&Shape::base_with(&["monitoring"])?.build(harness).await?)
}

fn alerts(objects: &[DynamicObject]) -> Result<Vec<Alert>> {
    let mut alerts = Vec::new();
    for object in objects.iter().filter(|object| kind(object) == "PrometheusRule") {
        let groups = object.data["spec"]["groups"]
            .as_array()
            .context("a PrometheusRule must have groups")?;
        for rule in groups
            .iter()
            .filter_map(|group| group["rules"].as_array())
            .flatten()
        {
            let text = |key: &str| rule[key].as_str().map(str::to_owned);
            let map = |key: &str| serde_json::from_value(rule[key].clone()).context("labels must be strings");
            alerts.push(Alert {
                name: text("alert").context("every rule must be an alert")?,
                expr: text("expr").context("a rule must have an expression")?,
                labels: map("labels")?,
                annotations: map("annotations")?,
            });
        }
    }
    Ok(alerts)
}

/// The expressions of all panels, by the panel's title, with Grafana's variables filled in.
fn dashboard_expressions(objects: &[DynamicObject]) -> Result<Vec<(String, String)>> {
    let mut expressions = Vec::new();
    for map in of_kind::<ConfigMap>(objects, "ConfigMap")? {
        for (name, text) in map.data.into_iter().flatten() {
            let dashboard: Value =
                serde_json::from_str(&text).with_context(|| format!("{name} must be JSON"))?;
            let panels = dashboard["panels"]
                .as_array()
                .context("a dashboard must have panels")?;
            for panel in panels {
                let title = panel["title"].as_str().context("a panel must have a title")?;
                for target in panel["targets"].as_array().into_iter().flatten() {
                    let expr = target["expr"]
                        .as_str()
                        .context("a target must have an expression")?;
                    let expr = expr.replace("$__rate_interval", "5m").replace("$__range", "1h");
                    expressions.push((format!("panel {title}"), expr));
                }
            }
            let variables = dashboard["templating"]["list"].as_array();
            for variable in variables
                .into_iter()
                .flatten()
                .filter(|variable| variable["type"] == "query")
            {
                let query = variable["query"]
                    .as_str()
                    .context("a variable must have a query")?;
                let inner = query
                    .strip_prefix("label_values(")
                    .and_then(|rest| rest.strip_suffix(')'));
                let (series, label) = inner
                    .and_then(|inner| inner.rsplit_once(", "))
                    .with_context(|| format!("{query}: only label_values(series, label) is supported"))?;
                expressions.push((
                    format!("variable {label}"),
                    format!("count by ({label}) ({series})"),
                ));
            }
        }
    }
    Ok(expressions)
}

fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| types.kind.as_str())
}

// === inventory ===

/// Metrics and their labels, from the first and the third column of the tables in docs/metrics.md.
struct Documented(BTreeMap<String, BTreeSet<String>>);

impl Documented {
    fn read() -> Result<Self> {
        let text = std::fs::read_to_string(workspace_root().join("docs/metrics.md"))
            .context("read docs/metrics.md")?;
        let mut metrics = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with("| `")) {
            let mut columns = line.split('|').skip(1).map(quoted);
            let names = columns.next().unwrap_or_default();
            let labels: BTreeSet<_> = columns.nth(1).into_iter().flatten().collect();
            metrics.extend(names.into_iter().map(|name| (name, labels.clone())));
        }
        ensure!(
            metrics.len() >= 10,
            "docs/metrics.md has {} metrics",
            metrics.len()
        );
        metrics.extend(KUBE_STATE_METRICS.iter().map(|(name, labels)| {
            let labels = labels.iter().map(|label| (*label).to_owned());
            ((*name).to_owned(), labels.collect())
        }));
        Ok(Self(metrics))
    }

    /// The labels of a series' metric; `None` if there is no such metric.
    fn labels(&self, series: &str) -> Option<impl Iterator<Item = &str>> {
        let histogram = || {
            let base = HISTOGRAM_SUFFIXES
                .iter()
                .find_map(|suffix| series.strip_suffix(suffix));
            self.0.get(base?)
        };
        let labels = self.0.get(series).or_else(histogram)?;
        Some(labels.iter().map(String::as_str))
    }
}

/// The texts between backticks.
fn quoted(column: &str) -> Vec<String> {
    column.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}
