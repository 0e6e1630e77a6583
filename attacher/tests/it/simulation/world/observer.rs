//! What the contract observes of the world.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use attacher_contract::Observation;
use attacher_contract::observation::{
    Answer, Attachment as Seen, Call, List, Method, Registration, Target, Volume as SeenVolume, Write,
};
use csi_attacher::model::{Attachment, Problem, PublishTarget, Uid, Volume};
use tokio::time::Instant;
use tonic::Status;

use super::client::Client;
use super::{State, World};

/// Of a condition of the contract.
const POLL: Duration = Duration::from_millis(20);

// === impl World ===

impl World {
    /// Waits until the observation is in order, and makes it.
    async fn until_in_order(&self, seen: Observation) {
        loop {
            {
                let mut state = self.state();
                if state.contract.preview(state.began.elapsed(), &seen).is_empty() {
                    return state.observe(seen);
                }
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until every VolumeAttachment that can be attached is attached and published, and no other one is.
    pub(in super::super) async fn reattached(&self) {
        self.until_in_order(Observation::Settled).await;
    }

    /// Waits until all attachments and all deleting volumes are gone, and nothing is left of them.
    pub(in super::super) async fn settled(&self) {
        let is_done = |state: &State| {
            state.attachments.is_empty() && state.volumes.values().all(|volume| !volume.deleting)
        };
        self.until(is_done).await;
        // A PersistentVolume that is not deleted keeps the finalizer.
        let is_all = self.state().volumes.is_empty();
        let seen = if is_all {
            Observation::CleanedUp
        } else {
            Observation::Settled
        };
        self.until_in_order(seen).await;
    }

    /// Which object waits for what.
    pub(in super::super) fn describe(&self, seen: &Observation) -> String {
        let state = self.state();
        let waits = state.contract.preview(state.began.elapsed(), seen);
        let waits = waits.iter().map(|violation| format!("waits: {violation}"));
        waits.collect::<Vec<_>>().join("\n")
    }

    /// All observations.
    pub(in super::super) fn timeline(&self) -> String {
        let state = self.state();
        let line = |(at, seen): &(Duration, Observation)| format!("{:>9.3} {seen}", at.as_secs_f64());
        state
            .contract
            .history()
            .iter()
            .map(line)
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Returns the first violation of the contract.
    pub(in super::super) fn verify(&self) -> Result<(), String> {
        let state = self.state();
        // Otherwise the clauses about the end of all faults would be off.
        if state.contract.world().relapsed.is_some() {
            return Err("a fault followed the end of all faults".to_owned());
        }
        let violations = state.contract.violations();
        violations
            .first()
            .map_or(Ok(()), |violation| Err(violation.to_string()))
    }
}

// === impl State ===

impl State {
    pub(super) fn observe(&mut self, seen: Observation) {
        let at = self.began.elapsed();
        if self
            .array
            .publishes_from
            .is_some_and(|from| Instant::now() >= from)
        {
            self.array.publishes_from = None;
            self.contract.observe(at, Observation::PublishCapability(true));
        }
        self.contract.observe(at, seen);
    }

    /// A fault, or another event of which the contract knows nothing.
    pub(super) fn note(&mut self, text: std::fmt::Arguments<'_>) {
        self.observe(Observation::Fault(text.to_string()));
    }

    pub(super) fn observe_attachment(&mut self, attachment: &Attachment) {
        let message = |problem: &Option<Box<Problem>>| Some(problem.as_ref()?.message.clone());
        let metadata = self.contexts.get(&attachment.uid).cloned().unwrap_or_default();
        let seen = Seen {
            name: attachment.name.clone(),
            uid: name_of(&attachment.uid),
            node: attachment.node.clone(),
            volume: attachment.volume_name().cloned().unwrap_or_default(),
            deleting: attachment.deleting.then_some(Duration::ZERO),
            finalizer: attachment.finalizer,
            node_id: attachment.recorded.node_id.clone(),
            handle: attachment.recorded.handle.clone(),
            attached: attachment.attached,
            metadata,
            attach_error: message(&attachment.attach_error),
            detach_error: message(&attachment.detach_error),
        };
        self.observe(Observation::Attachment(Arc::new(seen)));
    }

    pub(super) fn observe_volume(&mut self, volume: &Volume, finalizers: usize) {
        let csi = volume.spec.csi();
        let seen = SeenVolume {
            name: volume.name.clone(),
            handle: csi.map(|csi| csi.handle.clone()).unwrap_or_default(),
            deleting: volume.deleting,
            secret: csi.is_some_and(|csi| csi.publish_secret.is_some()),
            finalizers,
            ..SeenVolume::default()
        };
        self.observe(Observation::Volume(Arc::new(seen)));
    }

    pub(super) fn observe_node(&mut self, name: &str) {
        let registration = match self.nodes.get(name) {
            Some(node) => node.id.clone().map_or(Registration::NoDriver, Registration::Id),
            None => Registration::NoCsiNode,
        };
        self.observe(Observation::CsiNode(name.into(), registration));
    }

    /// Observes what the array has published since the last time.
    pub(super) fn observe_array(&mut self) {
        let known = &self.contract.world().published;
        let lost = known
            .keys()
            .filter(|target| !self.published.contains(&publish_target(target)));
        let mut changed: Vec<_> = lost.map(|target| (target.clone(), false)).collect();
        let new = self
            .published
            .iter()
            .map(target_of)
            .filter(|target| !known.contains_key(target));
        changed.extend(new.map(|target| (target, true)));
        changed.sort();
        for (target, published) in changed {
            self.observe(Observation::Array(target, published));
        }
    }

    /// Returns the number of the call.
    pub(super) fn observe_call(
        &mut self,
        by: &Client,
        method: Method,
        target: &PublishTarget,
        secret: bool,
    ) -> u64 {
        self.observe_lease();
        self.calls.begun += 1;
        let call = Call {
            number: self.calls.begun,
            by: Some(by.name()),
            method,
            target: target_of(target),
            secret: Some(secret),
            request: None,
        };
        self.observe(Observation::CallBegan(Arc::new(call)));
        self.calls.begun
    }

    pub(super) fn observe_answer(&mut self, number: u64, answer: &Result<BTreeMap<String, String>, Status>) {
        let answer = match answer {
            Ok(context) => Answer {
                code: "OK".into(),
                message: String::new(),
                context: context.clone(),
            },
            Err(status) => Answer {
                code: code(status).into(),
                message: status.message().to_owned(),
                context: BTreeMap::new(),
            },
        };
        self.observe(Observation::CallEnded(number, answer));
    }

    /// A write arrived at the API server.
    pub(super) fn observe_write(&mut self, by: &Client, object: &str, changed: bool) {
        if self.executes_late {
            return;
        }
        self.observe_lease();
        // The attacher repeats a write whose response was lost.
        let changed = changed || self.faults.api > 0 || self.faults.lies != 0 || self.had_chosen_fault;
        self.observe(Observation::Write(Write {
            by: Some(by.name()),
            object: object.to_owned(),
            empty: false,
            changed,
        }));
    }

    fn observe_lease(&mut self) {
        let Some(lease) = &self.lease else { return };
        let holder = lease.holder().map(|holder| holder.as_str().into());
        let known = self.contract.world().leader.as_ref().map(|(_, holder)| holder);
        if known != Some(&holder) {
            self.observe(Observation::Lease(holder));
        }
    }

    pub(super) fn observe_list(&mut self, round: u64) {
        let entries = self.array.list.iter().filter_map(|entry| {
            let nodes = entry.status.as_ref().map(|status| {
                let ids = status.published_node_ids.iter();
                ids.map(|id| id.as_str().into()).collect()
            });
            Some((entry.volume.as_ref()?.volume_id.as_str().into(), nodes))
        });
        let list: List = entries.collect();
        self.observe(Observation::ListEnded(round, list));
    }
}

// === functions ===

pub(super) fn name_of(uid: &Uid) -> Arc<str> {
    uid.to_string().as_str().into()
}

pub(super) fn target_of(target: &PublishTarget) -> Target {
    Target {
        volume: target.volume_id.clone(),
        node: target.node_id.clone(),
    }
}

fn publish_target(target: &Target) -> PublishTarget {
    PublishTarget {
        volume_id: target.volume.clone(),
        node_id: target.node.clone(),
    }
}

/// The code's name in the CSI specification.
fn code(status: &Status) -> String {
    let name = format!("{:?}", status.code());
    let mut code = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !code.is_empty() {
            code.push('_');
        }
        code.push(letter.to_ascii_uppercase());
    }
    code
}
