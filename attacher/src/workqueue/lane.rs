//! The ready keys of a lane: by age for each node, and the node with the fewest calls in flight first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::{Key, QueueMetrics};

/// The node that a key's calls are for. A PersistentVolume's finalizer has none.
pub(super) type Node = Option<Arc<str>>;

#[derive(Debug)]
pub(super) struct LaneQueue {
    pub(super) limit: usize,
    pub(super) running: usize,
    pub(super) metrics: QueueMetrics,
    ready: HashMap<Node, ReadyKeys>,
    /// The nodes that are not blocked, by calls in flight and the first sequence of their keys.
    order: BTreeSet<(usize, i64, Node)>,
}

#[derive(Debug, Default)]
struct ReadyKeys {
    keys: BTreeMap<i64, Key>,
    /// Its place in the order, unless it is blocked.
    place: Option<(usize, i64)>,
}

// === impl LaneQueue ===

impl LaneQueue {
    pub(super) fn new(limit: usize, metrics: QueueMetrics) -> Self {
        Self {
            limit,
            running: 0,
            metrics,
            ready: HashMap::new(),
            order: BTreeSet::new(),
        }
    }

    pub(super) fn insert(&mut self, node: &Node, sequence: i64, key: Key, in_flight: usize) {
        let ready = self.ready.entry(node.clone()).or_default();
        ready.keys.insert(sequence, key);
        self.place(node, in_flight);
    }

    pub(super) fn remove(&mut self, node: &Node, sequence: i64, in_flight: usize) -> Option<Key> {
        let key = self.ready.get_mut(node)?.keys.remove(&sequence);
        self.place(node, in_flight);
        key
    }

    /// Updates the place of a node, which is not blocked any more.
    pub(super) fn place(&mut self, node: &Node, in_flight: usize) {
        let Some(ready) = self.ready.get_mut(node) else {
            return;
        };
        let first = ready.keys.first_key_value().map(|(sequence, _)| *sequence);
        let place = first.map(|first| (in_flight, first));
        if place.is_some() && place == ready.place {
            return;
        }
        if let Some((in_flight, first)) = std::mem::replace(&mut ready.place, place) {
            self.order.remove(&(in_flight, first, node.clone()));
        }
        match place {
            Some((in_flight, first)) => {
                self.order.insert((in_flight, first, node.clone()));
            }
            None => {
                self.ready.remove(node);
            }
        }
    }

    pub(super) fn first(&self) -> Option<(i64, Node)> {
        let (_, sequence, node) = self.order.first()?;
        Some((*sequence, node.clone()))
    }

    /// Skips a node until its next [`Self::place`].
    pub(super) fn block(&mut self, node: &Node) {
        if let Some(ready) = self.ready.get_mut(node)
            && let Some((in_flight, first)) = ready.place.take()
        {
            self.order.remove(&(in_flight, first, node.clone()));
        }
    }
}
