//! The admin API's resources as tables.

use std::collections::BTreeMap;

use serde::Serialize;

use super::output::{Done, Failure, Output};
use super::table::{shown, size, table};
use crate::admin_api::resource::{
    Attachment, BackendFault, Call, Capability, FaultRule, Faults, GroupSnapshot, Info, Node, Page, Pool,
    Scenario, Snapshot, Storage, Volume,
};

pub(super) trait Print: Serialize {
    fn table(&self) -> String;
}

/// A resource that is one row of a table.
pub(super) trait Row: Serialize {
    const HEAD: &[&str];

    fn row(&self) -> Vec<String>;
}

pub(super) fn print(thing: &impl Print, output: Output) -> Result<Done, Failure> {
    let text = match output {
        Output::Table => thing.table(),
        Output::Json => json(thing),
    };
    Ok(Done::Text(text, true))
}

/// Prints the fault rules; as JSON with seed and state.
pub(super) fn print_faults(faults: &Faults, output: Output) -> Result<Done, Failure> {
    match output {
        Output::Table => print(&faults.rules, output),
        Output::Json => Ok(Done::Text(json(faults), true)),
    }
}

pub(super) fn json(thing: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(thing);
    let mut text = text.expect("what the API speaks of must be representable as JSON");
    text.push('\n');
    text
}

/// Prints the message of a completed command; as JSON the object that it has changed.
pub(super) fn changed(text: String, thing: &impl Serialize, output: Output) -> Result<Done, Failure> {
    match output {
        Output::Table => done(text, output),
        Output::Json => Ok(Done::Text(json(thing), true)),
    }
}

pub(super) fn done(text: String, output: Output) -> Result<Done, Failure> {
    let text = match output {
        Output::Table => format!("{}\n", shown(&text)),
        Output::Json => String::new(),
    };
    Ok(Done::Text(text, true))
}

impl<R: Row> Print for R {
    fn table(&self) -> String {
        table(R::HEAD, [self.row()], None)
    }
}

impl<R: Row> Print for Vec<R> {
    fn table(&self) -> String {
        table(R::HEAD, self.iter().map(R::row), None)
    }
}

impl<R: Row> Print for Page<R> {
    fn table(&self) -> String {
        table(R::HEAD, self.items.iter().map(R::row), Some(self.matched))
    }
}

impl Print for Info {
    fn table(&self) -> String {
        let counts = &self.counts;
        let rows = [
            ("driver", self.driver.clone()),
            ("version", self.version.clone()),
            ("node", self.node.clone().unwrap_or_default()),
            ("started", self.started.clone()),
            ("latency", format!("{} s", self.latency_seconds)),
            ("volumes", counts.volumes.to_string()),
            ("snapshots", counts.snapshots.to_string()),
            ("group snapshots", counts.groups.to_string()),
            ("nodes", counts.nodes.to_string()),
            ("attachments", counts.attachments.to_string()),
            (
                "calls",
                format!("{}, {} of them failed", counts.calls, counts.failed),
            ),
            ("in flight", counts.running.to_string()),
            ("fault rules", counts.faults.to_string()),
        ];
        table(
            &["WHAT", ""],
            rows.map(|(name, value)| vec![name.to_owned(), value]),
            None,
        )
    }
}

impl Print for Storage {
    fn table(&self) -> String {
        let head = ["NODE", "STATUS", "REASON", "FOR", "MESSAGE"];
        let own = self.nodes.iter();
        let own = own.flat_map(|own| own.health.iter().map(|issue| (own.node.as_str(), issue)));
        let all = self.health.iter().map(|issue| ("all nodes", issue));
        let mut rows: Vec<Vec<String>> = all
            .chain(own)
            .map(|(node, issue)| {
                vec![
                    node.to_owned(),
                    issue.status.to_string(),
                    issue.reason.clone(),
                    issue
                        .capability
                        .as_ref()
                        .map_or_else(|| "every use".to_owned(), ToString::to_string),
                    issue.message.clone(),
                ]
            })
            .collect();
        if rows.is_empty() {
            rows.push(["all nodes", "healthy", "", "", ""].map(str::to_owned).to_vec());
        }
        table(&head, rows, None)
    }
}

macro_rules! rows {
    ($($resource:ident($row:ident) { $($head:literal: $cell:expr,)+ })+) => {$(
        impl Row for $resource {
            const HEAD: &[&str] = &[$($head),+];

            fn row(&self) -> Vec<String> {
                let $row = self;
                vec![$($cell.to_string()),+]
            }
        }
    )+};
}

rows! {
    Volume(volume) {
        "VOLUME": volume.id,
        "NAME": volume.name,
        "SIZE": size(volume.capacity_bytes),
        "POOL": volume.pool,
        "ATTACHED TO": joined(volume.attachments.iter().map(|held| held.node.as_str()), ","),
        "HEALTH": health(volume.health.iter().map(|issue| issue.status.to_string())),
    }
    Node(node) {
        "NODE": node.id,
        "STATE": if node.registered { "registered" } else { "deregistered" },
        "TOPOLOGY": topology(&node.topology),
        "STORAGE": health(node.health.iter().map(|issue| issue.status.to_string())),
        "ATTACHED": node.attached,
        "LIMIT": limit(node.limit),
        "ADVERTISED": limit(node.advertised_limit),
        "VOLUMES": node.volumes.join(",") + if node.volumes.len() < node.attached { ",..." } else { "" },
    }
    Attachment(attachment) {
        "VOLUME": attachment.volume,
        "NODE": attachment.node,
        "NUMBER": attachment.number,
        "AS": attachment.capability,
        "READ-ONLY": attachment.readonly,
    }
    Capability(capability) {
        "CAPABILITY": capability.name,
        "STATE": on(capability.enabled),
        "BY DEFAULT": on(capability.default),
    }
    FaultRule(rule) {
        "RULE": rule.id,
        "STATE": on(rule.enabled),
        "ORIGIN": rule.origin.name(),
        "SEEN": rule.seen,
        "FIRED": format!("{}{}", rule.fired, rule.times.map(|times| format!("/{times}")).unwrap_or_default()),
        "BLOCKED": rule.blocked_calls,
        "DEFINITION": rule.rule,
    }
    BackendFault(fault) {
        "BACKEND FAULT": fault.id,
        "STATE": on(fault.enabled),
        "ORIGIN": fault.origin.name(),
        "FIRED": fault.fired,
        "DEFINITION": fault.fault,
    }
    Scenario(scenario) {
        "SCENARIO": scenario.name,
        "STATE": on(scenario.enabled),
        "WHAT IT IS": scenario.about,
    }
    Call(call) {
        "SEQUENCE": call.sequence.map(|sequence| sequence.to_string()).unwrap_or_default(),
        "START": call.start,
        "METHOD": call.method,
        "VOLUME": call.volume,
        "NODE": call.node,
        "CODE": call.answer.as_ref().map_or("runs", |answer| answer.code.as_str()),
        "SECONDS": call.answer.as_ref().map(|answer| format!("{:.3}", answer.seconds)).unwrap_or_default(),
        "FAULT": call.fault.as_deref().unwrap_or_default(),
        "MESSAGE": call.answer.as_ref().map_or("", |answer| answer.message.as_str()),
    }
    Snapshot(snapshot) {
        "SNAPSHOT": snapshot.id,
        "NAME": snapshot.name,
        "OF VOLUME": snapshot.source,
        "SIZE": size(snapshot.size_bytes),
        "POOL": snapshot.pool,
        "READY": yes(snapshot.ready),
        "TAKEN": snapshot.created,
        "GROUP": snapshot.group.as_deref().unwrap_or_default(),
    }
    GroupSnapshot(group) {
        "GROUP": group.id,
        "NAME": group.name,
        "READY": yes(group.ready),
        "TAKEN": group.created,
        "SNAPSHOTS": joined(group.snapshots.iter().map(|member| format!("{} of {}", member.id, member.source)), ", "),
    }
    Pool(pool) {
        "POOL": pool.name,
        "CAPACITY": size(pool.capacity_bytes),
        "USED": size(pool.used_bytes),
        "AVAILABLE": size(pool.available_bytes),
        "WHERE": topology(&pool.topology),
    }
}

fn joined<T: AsRef<str>>(texts: impl Iterator<Item = T>, separator: &str) -> String {
    let texts: Vec<T> = texts.collect();
    texts
        .iter()
        .map(AsRef::as_ref)
        .collect::<Vec<_>>()
        .join(separator)
}

fn topology(segments: &BTreeMap<String, String>) -> String {
    joined(segments.iter().map(|(key, value)| format!("{key}={value}")), ",")
}

/// Health issues as the text of a cell.
fn health(issues: impl Iterator<Item = String>) -> String {
    let issues = joined(issues, ",");
    if issues.is_empty() {
        "healthy".to_owned()
    } else {
        issues
    }
}

fn limit(limit: Option<usize>) -> String {
    limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string())
}

fn on(enabled: bool) -> &'static str {
    if enabled { "on" } else { "off" }
}

fn yes(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}
