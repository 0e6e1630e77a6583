//! For each clause a history that breaks it and no other clause, and one like it that is in order.

mod call;
mod detach;
mod outcome;
mod path;
mod status;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::observation::*;
use super::*;

/// A history: volume `vol` (PersistentVolume `pv`, one node) and the nodes `a` and `b` with the IDs `id-a` and `id-b`.
#[derive(Clone)]
struct History {
    contract_settings: Settings,
    seen: Vec<(Duration, Observation)>,
    now: Duration,
    calls: u64,
}

/// A clause, a history that breaks it and no other one, and one that is in order.
type Row = (Clause, History, History);

const OK: &str = "OK";

fn history() -> History {
    let history = History {
        contract_settings: Settings::exact(),
        seen: Vec::new(),
        now: Duration::ZERO,
        calls: 0,
    };
    history
        .add(volume(1))
        .add(Observation::CsiNode("a".into(), Registration::Id("id-a".into())))
        .add(Observation::CsiNode("b".into(), Registration::Id("id-b".into())))
}

fn volume(finalizers: usize) -> Observation {
    volume_with(finalizers, |_| {})
}

fn volume_with(finalizers: usize, change: impl FnOnce(&mut Volume)) -> Observation {
    let mut volume = Volume {
        name: "pv".into(),
        handle: "vol".into(),
        single_node: true,
        finalizers,
        ..Volume::default()
    };
    change(&mut volume);
    Observation::Volume(Arc::new(volume))
}

fn va(node: &str) -> Attachment {
    Attachment {
        name: format!("va-{node}").as_str().into(),
        uid: format!("uid-{node}").as_str().into(),
        node: node.into(),
        volume: "pv".into(),
        ..Attachment::default()
    }
}

fn guarded(node: &str) -> Attachment {
    Attachment {
        finalizer: true,
        node_id: Some(format!("id-{node}").as_str().into()),
        handle: Some("vol".into()),
        ..va(node)
    }
}

fn attached(node: &str) -> Attachment {
    Attachment {
        attached: true,
        ..guarded(node)
    }
}

fn deleting(attachment: Attachment, second: u64) -> Attachment {
    Attachment {
        deleting: Some(Duration::from_secs(second)),
        ..attachment
    }
}

fn target(node: &str) -> Target {
    Target::new("vol", &format!("id-{node}"))
}

impl History {
    fn add(mut self, seen: Observation) -> Self {
        self.now += Duration::from_secs(1);
        self.seen.push((self.now, seen));
        self
    }

    fn va(self, attachment: Attachment) -> Self {
        self.add(Observation::Attachment(Arc::new(attachment)))
    }

    fn gone(self, node: &str) -> Self {
        self.add(Observation::AttachmentGone(format!("va-{node}").as_str().into()))
    }

    fn array(self, node: &str, published: bool) -> Self {
        self.add(Observation::Array(target(node), published))
    }

    fn begin(mut self, method: Method, node: &str, change: impl FnOnce(&mut Call)) -> Self {
        self.calls += 1;
        let mut call = Call {
            number: self.calls,
            by: None,
            method,
            target: target(node),
            secret: None,
            request: None,
        };
        change(&mut call);
        self.add(Observation::CallBegan(Arc::new(call)))
    }

    fn end(self, code: &str) -> Self {
        let number = self.calls;
        self.end_of(number, code)
    }

    fn end_of(self, number: u64, code: &str) -> Self {
        let answer = Answer {
            code: code.into(),
            message: if code == OK {
                String::new()
            } else {
                "the port is locked".to_owned()
            },
            context: BTreeMap::new(),
        };
        self.add(Observation::CallEnded(number, answer))
    }

    fn publish(self, node: &str, code: &str) -> Self {
        let history = self.begin(Method::Publish, node, |_| {});
        let history = if code == OK {
            history.array(node, true)
        } else {
            history
        };
        history.end(code)
    }

    fn unpublish(self, node: &str, code: &str) -> Self {
        let history = self.begin(Method::Unpublish, node, |_| {});
        let history = if code == OK {
            history.array(node, false)
        } else {
            history
        };
        history.end(code)
    }

    /// Attached to node `a`, without anything odd.
    fn attach(self, node: &str) -> Self {
        self.va(va(node))
            .va(guarded(node))
            .publish(node, OK)
            .va(attached(node))
    }

    /// The request for the deletion of the attached VolumeAttachment.
    fn delete(self, node: &str) -> Self {
        let second = self.now.as_secs() + 1;
        self.va(deleting(attached(node), second))
    }

    fn detach(self, node: &str) -> Self {
        self.delete(node).unpublish(node, OK).gone(node)
    }

    fn pass(mut self, seconds: u64) -> Self {
        self.now += Duration::from_secs(seconds);
        self
    }

    fn lists(self, rounds: std::ops::Range<u64>, list: &[(&str, Option<&[&str]>)]) -> Self {
        let list: List = list
            .iter()
            .map(|(volume, nodes)| {
                let nodes = nodes.map(|nodes| nodes.iter().map(|&node| node.into()).collect());
                ((*volume).into(), nodes)
            })
            .collect();
        rounds.fold(self, |history, round| {
            history
                .add(Observation::ListBegan(round))
                .add(Observation::ListEnded(round, list.clone()))
        })
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.contract_settings);
        self
    }

    fn watched(self) -> Self {
        self.with(|settings| settings.order = Order::Watched)
    }

    fn judge(self) -> Contract {
        let mut contract = Contract::new(self.contract_settings);
        for (at, seen) in self.seen {
            contract.observe(at, seen);
        }
        contract
    }

    fn broken(self) -> BTreeSet<Clause> {
        let contract = self.judge();
        contract
            .violations()
            .iter()
            .map(|violation| violation.clause)
            .collect()
    }
}

/// Changes the settings to those of an honest environment.
fn honest(settings: &mut Settings) {
    settings.environment = Environment::Honest;
}

fn write(by: Option<&str>, empty: bool, changed: bool) -> Observation {
    Observation::Write(Write {
        by: by.map(Name::from),
        object: "VolumeAttachment va-a".to_owned(),
        empty,
        changed,
    })
}

fn by(process: &str) -> impl FnOnce(&mut Call) {
    let process = process.into();
    |call| call.by = Some(process)
}

fn mounted(node: &str, is: bool) -> Observation {
    Observation::Mounted(target(node), is)
}

fn unhealthy(node: &str) -> Observation {
    Observation::Node {
        node: node.into(),
        healthy: false,
    }
}

fn text(text: &str) -> Observation {
    Observation::Text("the log".to_owned(), text.into())
}

fn failed(node: &str, message: &str) -> Attachment {
    Attachment {
        attach_error: Some(message.to_owned()),
        ..guarded(node)
    }
}

/// The histories of each clause: broken, and in order.
fn table() -> Vec<Row> {
    let tables = [
        call::rows,
        detach::rows,
        status::rows,
        write::rows,
        outcome::rows,
        path::rows,
    ];
    tables.iter().flat_map(|rows| rows()).collect()
}

#[test]
fn each_clause_alone_finds_its_history() {
    for (clause, broken, fine) in table() {
        let name = clause.rule().name;
        assert_eq!(
            broken.broken(),
            BTreeSet::from([clause]),
            "{name}: the broken history"
        );
        assert_eq!(fine.broken(), BTreeSet::new(), "{name}: the history in order");
    }
}

/// A watch shows states after calls that were sent later.
#[test]
fn late_watch_is_no_violation() {
    let late = history()
        .watched()
        .begin(Method::Publish, "a", |_| {})
        .array("a", true)
        .va(va("a"))
        .va(guarded("a"))
        .end(OK)
        .va(attached("a"))
        .unpublish("a", OK)
        .va(deleting(attached("a"), 9))
        .gone("a")
        .add(Observation::Settled);
    assert_eq!(late.broken(), BTreeSet::new());
    let outage = || {
        let called = history().watched().va(guarded("a")).publish("a", OK);
        called.unpublish("a", OK)
    };
    let late = outage()
        .va(attached("a"))
        .va(deleting(attached("a"), 9))
        .gone("a");
    assert_eq!(late.broken(), BTreeSet::new());
    let other = outage().va(guarded("b")).va(attached("b"));
    assert_eq!(other.broken(), BTreeSet::from([Clause::AttachedWhilePublished]));
    let live = history()
        .watched()
        .attach("a")
        .unpublish("a", OK)
        .publish("a", OK)
        .pass(20);
    let requested = live.now.as_secs();
    let deleted = live.va(deleting(attached("a"), requested));
    assert_eq!(
        deleted.broken(),
        BTreeSet::from([Clause::NoDetachUnderAttachment])
    );
    let chain = history().watched().va(va("a")).publish("a", OK).va(Attachment {
        attached: true,
        ..va("a")
    });
    assert_eq!(chain.broken(), BTreeSet::from([Clause::FinalizerBeforePublish]));
    // A relist shows the latest version only.
    let gap = history()
        .watched()
        .va(va("a"))
        .publish("a", OK)
        .add(Observation::GapBegan("watch".to_owned()))
        .va(attached("a"));
    assert_eq!(gap.broken(), BTreeSet::new());
    let chain = history()
        .watched()
        .va(Attachment {
            node_id: None,
            ..guarded("a")
        })
        .publish("a", OK)
        .va(attached("a"));
    assert_eq!(chain.broken(), BTreeSet::from([Clause::RecordBeforePublish]));
}

#[test]
fn process_that_ends_takes_its_calls_along() {
    let ended = history()
        .va(guarded("a"))
        .begin(Method::Publish, "a", by("one"))
        .add(Observation::ProcessEnded("one".into()));
    let next = ended.begin(Method::Publish, "a", by("two")).end("ABORTED");
    assert_eq!(next.broken(), BTreeSet::new());
}

#[test]
fn checks_ahead_without_a_trace() {
    let mut contract = history().va(va("a")).judge();
    let now = Duration::from_secs(60);
    assert_eq!(contract.preview(now, &Observation::Settled).len(), 1);
    assert_eq!(contract.violations(), []);
    contract.observe(now, Observation::Settled);
    assert_eq!(contract.violations().len(), 1);
}

#[test]
fn violation_shows_its_evidence_and_source() {
    let contract = history()
        .attach("a")
        .delete("a")
        .unpublish("a", "NOT_FOUND")
        .gone("a")
        .judge();
    let found = contract
        .violations()
        .iter()
        .find(|violation| violation.clause == Clause::FinalizerWithProof);
    let text = found.expect("the clause is broken").to_string();
    for part in [
        "finalizer-with-proof: va-a",
        "NOT_FOUND",
        "CSI spec",
        "ControllerPublishVolume of volume vol on node id-a",
        "is deleted",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
}

#[test]
fn rules_are_in_the_order_of_the_enum() {
    for (number, rule) in CLAUSES.iter().enumerate() {
        assert_eq!(rule.clause as usize, number, "{}", rule.name);
        assert_eq!(rule.clause.rule().name, rule.name);
    }
    let tested: BTreeSet<_> = table().into_iter().map(|(clause, ..)| clause).collect();
    assert_eq!(tested.len(), CLAUSES.len(), "each clause has a row in the table");
}
