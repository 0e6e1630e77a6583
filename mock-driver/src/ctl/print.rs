//! The admin API's resources as tables.

use std::collections::BTreeMap;

use serde::Serialize;

use super::output::{Done, Failure, Output};
use super::table::{shown, size, table};
use crate::admin_api::resource::{
    Attachment, BackendFault, Call, Capability, FaultRule, GroupSnapshot, Info, Node, Page, Pool, Scenario,
    Snapshot, Storage, Volume,
};

/// A printable resource.
pub(super) trait Print: Serialize {
    fn table(&self) -> String;
}

/// A resource that is one row of a table.
pub(super) trait Row: Serialize {
    const HEAD: &[&str];

    fn row(&self) -> Vec<String>;
}

/// Prints a resource in the output format.
pub(super) fn print(thing: &impl Print, output: Output) -> Result<Done, Failure> {
    let text = match output {
        Output::Table => thing.table(),
        Output::Json => json(thing),
    };
    Ok(Done::Text(text, true))
}

/// The JSON of the admin API, indented.
pub(super) fn json(thing: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(thing);
    let mut text = text.expect("what the API speaks of must be representable as JSON");
    text.push('\n');
    text
}

/// Prints the message of a completed command.
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
                    issue.status.clone(),
                    issue.reason.clone(),
                    issue.capability.clone().unwrap_or_else(|| "every use".to_owned()),
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

impl Row for Volume {
    const HEAD: &[&str] = &["VOLUME", "NAME", "SIZE", "POOL", "ATTACHED TO", "HEALTH"];

    fn row(&self) -> Vec<String> {
        let nodes: Vec<&str> = self.attachments.iter().map(|held| held.node.as_str()).collect();
        vec![
            self.id.clone(),
            self.name.clone(),
            size(self.capacity_bytes),
            self.pool.clone(),
            nodes.join(","),
            health(self.health.iter().map(|issue| issue.status.as_str())),
        ]
    }
}

impl Row for Node {
    const HEAD: &[&str] = &[
        "NODE",
        "STATE",
        "TOPOLOGY",
        "STORAGE",
        "ATTACHED",
        "LIMIT",
        "ADVERTISED",
        "VOLUMES",
    ];

    fn row(&self) -> Vec<String> {
        let limit = |limit: Option<usize>| limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
        let has_more = self.volumes.len() < self.attached;
        vec![
            self.id.clone(),
            either(self.registered, "registered", "deregistered"),
            topology(&self.topology),
            health(self.health.iter().map(|issue| issue.status.as_str())),
            self.attached.to_string(),
            limit(self.limit),
            limit(self.advertised_limit),
            self.volumes.join(",") + if has_more { ",..." } else { "" },
        ]
    }
}

impl Row for Attachment {
    const HEAD: &[&str] = &["VOLUME", "NODE", "NUMBER", "AS", "READ-ONLY"];

    fn row(&self) -> Vec<String> {
        vec![
            self.volume.clone(),
            self.node.clone(),
            self.number.to_string(),
            self.capability.clone(),
            self.readonly.to_string(),
        ]
    }
}

impl Row for Capability {
    const HEAD: &[&str] = &["CAPABILITY", "STATE", "BY DEFAULT"];

    fn row(&self) -> Vec<String> {
        vec![self.name.clone(), on(self.enabled), on(self.default)]
    }
}

impl Row for FaultRule {
    const HEAD: &[&str] = &[
        "RULE",
        "STATE",
        "ORIGIN",
        "SEEN",
        "FIRED",
        "BLOCKED",
        "DEFINITION",
    ];

    fn row(&self) -> Vec<String> {
        let times = self.times.map(|times| format!("/{times}")).unwrap_or_default();
        vec![
            self.id.clone(),
            on(self.enabled),
            self.origin.name().to_owned(),
            self.seen.to_string(),
            format!("{}{times}", self.fired),
            self.blocked_calls.to_string(),
            self.rule.to_string(),
        ]
    }
}

impl Row for BackendFault {
    const HEAD: &[&str] = &["BACKEND FAULT", "STATE", "ORIGIN", "FIRED", "DEFINITION"];

    fn row(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            on(self.enabled),
            self.origin.name().to_owned(),
            self.fired.to_string(),
            self.fault.to_string(),
        ]
    }
}

impl Row for Scenario {
    const HEAD: &[&str] = &["SCENARIO", "STATE", "WHAT IT IS"];

    fn row(&self) -> Vec<String> {
        vec![self.name.clone(), on(self.enabled), self.about.clone()]
    }
}

impl Row for Call {
    const HEAD: &[&str] = &[
        "SEQUENCE", "START", "METHOD", "VOLUME", "NODE", "CODE", "SECONDS", "FAULT", "MESSAGE",
    ];

    fn row(&self) -> Vec<String> {
        let (code, seconds, message) = match &self.answer {
            Some(answer) => (
                answer.code.clone(),
                format!("{:.3}", answer.seconds),
                answer.message.clone(),
            ),
            None => ("runs".to_owned(), String::new(), String::new()),
        };
        vec![
            self.sequence
                .map(|sequence| sequence.to_string())
                .unwrap_or_default(),
            self.start.clone(),
            self.method.clone(),
            self.volume.clone(),
            self.node.clone(),
            code,
            seconds,
            self.fault.clone().unwrap_or_default(),
            message,
        ]
    }
}

impl Row for Snapshot {
    const HEAD: &[&str] = &[
        "SNAPSHOT",
        "NAME",
        "OF VOLUME",
        "SIZE",
        "POOL",
        "READY",
        "TAKEN",
        "GROUP",
    ];

    fn row(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.name.clone(),
            self.source.clone(),
            size(self.size_bytes),
            self.pool.clone(),
            either(self.ready, "yes", "no"),
            self.created.clone(),
            self.group.clone().unwrap_or_default(),
        ]
    }
}

impl Row for GroupSnapshot {
    const HEAD: &[&str] = &["GROUP", "NAME", "READY", "TAKEN", "SNAPSHOTS"];

    fn row(&self) -> Vec<String> {
        let members = self.snapshots.iter();
        let members = members.map(|snapshot| format!("{} of {}", snapshot.id, snapshot.source));
        vec![
            self.id.clone(),
            self.name.clone(),
            either(self.ready, "yes", "no"),
            self.created.clone(),
            members.collect::<Vec<_>>().join(", "),
        ]
    }
}

impl Row for Pool {
    const HEAD: &[&str] = &["POOL", "CAPACITY", "USED", "AVAILABLE", "WHERE"];

    fn row(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            size(self.capacity_bytes),
            size(self.used_bytes),
            size(self.available_bytes),
            topology(&self.topology),
        ]
    }
}

fn topology(segments: &BTreeMap<String, String>) -> String {
    let segments = segments.iter().map(|(key, value)| format!("{key}={value}"));
    segments.collect::<Vec<_>>().join(",")
}

/// Health issues as the text of a cell.
fn health<'a>(issues: impl Iterator<Item = &'a str>) -> String {
    let issues: Vec<&str> = issues.collect();
    if issues.is_empty() {
        return "healthy".to_owned();
    }
    issues.join(",")
}

fn on(enabled: bool) -> String {
    either(enabled, "on", "off")
}

fn either(is_so: bool, yes: &str, no: &str) -> String {
    if is_so { yes } else { no }.to_owned()
}
