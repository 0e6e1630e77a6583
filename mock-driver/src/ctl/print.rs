//! The admin API's resources as tables.

use serde::Serialize;

use super::output::{Done, Failure, Output};
use super::table::{Table, shown, size};
use crate::admin_api::resource::{
    Attachment, BackendFault, Call, Capability, FaultRule, Info, Node, Page, Scenario, StorageHealthIssue,
    Volume,
};

mod storage;

/// A printable resource.
pub(super) trait Print: Serialize {
    /// The table.
    fn table(&self) -> String;
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

impl Print for Info {
    fn table(&self) -> String {
        let counts = &self.counts;
        let mut table = Table::new(["WHAT", ""]);
        let node = self.node.clone().unwrap_or_default();
        for (name, value) in [
            ("driver", self.driver.clone()),
            ("version", self.version.clone()),
            ("node", node),
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
        ] {
            table.row([name.to_owned(), value]);
        }
        table.text(None)
    }
}

impl Print for Page<Volume> {
    fn table(&self) -> String {
        volumes(&self.items).text(Some(self.matched))
    }
}

impl Print for Volume {
    fn table(&self) -> String {
        volumes(std::slice::from_ref(self)).text(None)
    }
}

fn volumes(volumes: &[Volume]) -> Table {
    let mut table = Table::new(["VOLUME", "NAME", "SIZE", "POOL", "ATTACHED TO", "HEALTH"]);
    for volume in volumes {
        let nodes: Vec<&str> = volume.attachments.iter().map(|held| held.node.as_str()).collect();
        let health: Vec<&str> = volume.health.iter().map(|issue| issue.status.as_str()).collect();
        table.row([
            volume.id.clone(),
            volume.name.clone(),
            size(volume.capacity_bytes),
            volume.pool.clone(),
            nodes.join(","),
            well_or(&health),
        ]);
    }
    table
}

impl Print for Page<Node> {
    fn table(&self) -> String {
        nodes(&self.items).text(Some(self.matched))
    }
}

impl Print for Node {
    fn table(&self) -> String {
        nodes(std::slice::from_ref(self)).text(None)
    }
}

fn nodes(nodes: &[Node]) -> Table {
    let limit = |limit: Option<usize>| limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
    let mut table = Table::new(["NODE", "STATE", "STORAGE", "ATTACHED", "LIMIT", "SAYS", "VOLUMES"]);
    for node in nodes {
        let more = if node.volumes.len() < node.attached {
            ",..."
        } else {
            ""
        };
        table.row([
            node.id.clone(),
            if node.registered {
                "registered"
            } else {
                "deregistered"
            }
            .to_owned(),
            issues(&node.health),
            node.attached.to_string(),
            limit(node.limit),
            limit(node.advertised_limit),
            format!("{}{more}", node.volumes.join(",")),
        ]);
    }
    table
}

impl Print for Page<Attachment> {
    fn table(&self) -> String {
        attachments(&self.items).text(Some(self.matched))
    }
}

impl Print for Attachment {
    fn table(&self) -> String {
        attachments(std::slice::from_ref(self)).text(None)
    }
}

fn attachments(attachments: &[Attachment]) -> Table {
    let mut table = Table::new(["VOLUME", "NODE", "NUMBER", "AS", "READ-ONLY"]);
    for held in attachments {
        table.row([
            held.volume.clone(),
            held.node.clone(),
            held.number.to_string(),
            held.capability.clone(),
            held.readonly.to_string(),
        ]);
    }
    table
}

impl Print for Vec<Capability> {
    fn table(&self) -> String {
        let mut table = Table::new(["CAPABILITY", "STATE", "BY DEFAULT"]);
        for capability in self {
            table.row([
                capability.name.clone(),
                on(capability.enabled),
                on(capability.default),
            ]);
        }
        table.text(None)
    }
}

impl Print for Vec<FaultRule> {
    fn table(&self) -> String {
        let mut table = Table::new([
            "RULE",
            "STATE",
            "ORIGIN",
            "SEEN",
            "FIRED",
            "BLOCKED",
            "DEFINITION",
        ]);
        for rule in self {
            let times = rule.times.map(|times| format!("/{times}")).unwrap_or_default();
            table.row([
                rule.id.clone(),
                on(rule.enabled),
                rule.origin.clone(),
                rule.seen.to_string(),
                format!("{}{times}", rule.fired),
                rule.blocked_calls.to_string(),
                rule.rule.to_string(),
            ]);
        }
        table.text(None)
    }
}

impl Print for Vec<BackendFault> {
    fn table(&self) -> String {
        let mut table = Table::new(["BACKEND FAULT", "STATE", "ORIGIN", "FIRED", "DEFINITION"]);
        for fault in self {
            table.row([
                fault.id.clone(),
                on(fault.enabled),
                fault.origin.clone(),
                fault.fired.to_string(),
                fault.fault.to_string(),
            ]);
        }
        table.text(None)
    }
}

impl Print for Vec<Scenario> {
    fn table(&self) -> String {
        let mut table = Table::new(["SCENARIO", "STATE", "WHAT IT IS"]);
        for scenario in self {
            table.row([
                scenario.name.clone(),
                on(scenario.enabled),
                scenario.about.clone(),
            ]);
        }
        table.text(None)
    }
}

impl Print for Page<Call> {
    fn table(&self) -> String {
        calls(&self.items).text(Some(self.matched))
    }
}

impl Print for Vec<Call> {
    fn table(&self) -> String {
        calls(self).text(None)
    }
}

fn calls(calls: &[Call]) -> Table {
    let mut table = Table::new([
        "PLACE", "START", "METHOD", "VOLUME", "NODE", "CODE", "SECONDS", "FAULT", "MESSAGE",
    ]);
    for call in calls {
        let answer = call.answer.as_ref();
        table.row([
            call.place.map(|place| place.to_string()).unwrap_or_default(),
            call.start.clone(),
            call.method.clone(),
            call.volume.clone(),
            call.node.clone(),
            answer.map_or_else(|| "runs".to_owned(), |answer| answer.code.clone()),
            answer
                .map(|answer| format!("{:.3}", answer.seconds))
                .unwrap_or_default(),
            call.fault.clone().unwrap_or_default(),
            answer.map(|answer| answer.message.clone()).unwrap_or_default(),
        ]);
    }
    table
}

/// Health issues of the storage as the text of a cell.
fn issues(health: &[StorageHealthIssue]) -> String {
    let all: Vec<&str> = health.iter().map(|issue| issue.status.as_str()).collect();
    well_or(&all)
}

fn well_or(issues: &[&str]) -> String {
    if issues.is_empty() {
        "healthy".to_owned()
    } else {
        issues.join(",")
    }
}

fn on(enabled: bool) -> String {
    if enabled { "on" } else { "off" }.to_owned()
}
