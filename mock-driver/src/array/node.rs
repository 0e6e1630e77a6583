//! Nodes: registration, topology and attach limits. Settings of single nodes can be changed at run time, and such a change
//! is stored.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Array, Done, Error, NodeId, Row, Segments, VolumeId};

/// The present state of a node, derived from the settings and the attachments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub id: NodeId,
    /// Whether it is registered. A deregistered node exists while volumes are attached to it.
    pub registered: bool,
    /// Maximum number of attached volumes; `None` if unlimited.
    pub limit: Option<usize>,
    /// `max_volumes_per_node` of NodeGetInfo, which may differ from the limit.
    pub advertised: Option<usize>,
    pub segments: Segments,
    pub attached: BTreeSet<VolumeId>,
    pub renamed_to: Option<NodeId>,
    /// Its index among the nodes, for the round-robin assignment to pools.
    pub(crate) number: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeSettings {
    /// Whether it is registered, if that was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registered: Option<bool>,
    /// Maximum number of attached volumes. 0 means unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// max_volumes_per_node of NodeGetInfo. 0 means unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertised: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<Segments>,
    /// Its new id, until a node is registered under this one again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renamed_to: Option<NodeId>,
    /// The topology that it was assigned when it joined without one. Stored, because it depends on the nodes that had joined
    /// before. Any configured topology takes precedence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assigned_topology: Option<Segments>,
}

// === impl Node ===

impl Node {
    pub(super) fn unregistered(id: NodeId) -> Self {
        Self {
            id,
            registered: false,
            limit: None,
            advertised: None,
            segments: Segments::default(),
            attached: BTreeSet::new(),
            renamed_to: None,
            number: 0,
        }
    }
}

// === impl Array ===

impl Array {
    pub fn node(&self, id: &str) -> Result<&Node, Error> {
        let found = self.nodes.get(id);
        found.ok_or_else(|| Error::NodeNotFound { node: id.to_owned() })
    }

    /// The node with this id, also a deregistered one without volumes: its process must be able to distinguish that from a node
    /// that never joined.
    pub(crate) fn node_or_former(&self, id: &str) -> Result<Node, Error> {
        let former = || {
            let (id, changed) = self.changed.get_key_value(id)?;
            (changed.registered == Some(false)).then(|| Node {
                advertised: changed.advertised.filter(|limit| *limit > 0),
                segments: self.explicit_topology(id).cloned().unwrap_or_default(),
                ..self.derived(Node::unregistered(id.clone()))
            })
        };
        self.node(id).cloned().or_else(|error| former().ok_or(error))
    }

    /// All nodes, sorted by id, including deregistered ones with attached volumes.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// The present id of a node that may have been renamed.
    pub(crate) fn current_id<'a>(&'a self, id: &'a str) -> &'a str {
        let mut current = id;
        // Bounds the loop even if the stored state has a cycle.
        for _ in 0..self.changed.len() {
            match self
                .changed
                .get(current)
                .and_then(|changed| changed.renamed_to.as_ref())
            {
                Some(next) => current = next.as_str(),
                None => break,
            }
        }
        current
    }

    /// Whether no pool is accessible from a registered node, so that no volume can be attached to it.
    pub(crate) fn has_no_accessible_pool(&self, id: &str) -> bool {
        let mut pools = self.settings.pools.iter();
        let node = self.registered(id);
        node.is_ok_and(|node| !pools.any(|pool| node.segments.can_access(&pool.segments)))
    }

    /// Registers a node or changes its settings. Settings that are `None` do not change.
    pub fn set_node(&mut self, id: &str, settings: NodeSettings) -> Done<()> {
        let node = NodeId::from(id);
        let old = self.changed.get(id).cloned().unwrap_or_default();
        let registered = settings.registered.or(old.registered).or(Some(true));
        let settings = NodeSettings {
            registered,
            renamed_to: old.renamed_to.filter(|_| registered != Some(true)),
            limit: settings.limit.or(old.limit),
            advertised: settings.advertised.or(old.advertised),
            segments: settings.segments.or(old.segments),
            assigned_topology: old.assigned_topology.or_else(|| self.next_topology(&node)),
        };
        if self.changed.get(id) == Some(&settings) {
            return Done::unchanged(());
        }
        self.done((), [Row::Node(node, settings)])
    }

    /// Deregisters a node. Its volumes stay attached until they are detached.
    ///
    /// # Errors
    /// It is not registered.
    pub fn remove_node(&mut self, id: &str) -> Result<Done<()>, Error> {
        self.registered(id)?;
        Ok(self.set_node(
            id,
            NodeSettings {
                registered: Some(false),
                ..NodeSettings::default()
            },
        ))
    }

    /// Changes the id of a node: to the array it is another node. The old id is deregistered, and its volumes stay attached to
    /// it until they are detached.
    ///
    /// # Errors
    /// The old id is not registered, or the new one is.
    pub fn change_node_id(&mut self, from: &str, to: &str) -> Result<Done<()>, Error> {
        let node = self.registered(from)?;
        self.check_new_node_id(to)?;
        let (from, to) = (node.id.clone(), NodeId::from(to));
        let old = self.changed.get(&from).cloned().unwrap_or_default();
        let new = NodeSettings {
            registered: Some(true),
            renamed_to: None,
            segments: Some(node.segments.clone()),
            assigned_topology: old.assigned_topology.clone().or_else(|| self.next_topology(&to)),
            ..old.clone()
        };
        let old = NodeSettings {
            registered: Some(false),
            renamed_to: Some(to.clone()),
            ..old
        };
        let mut rows = vec![Row::Node(from.clone(), old), Row::Node(to.clone(), new)];
        // The machine and its connection to the storage do not change.
        if let Some(issues) = self.storage.get(&Some(from.clone())) {
            rows.push(Row::StorageHealth(Some(to), issues.clone()));
            rows.push(Row::StorageHealth(Some(from), Vec::new()));
        }
        Ok(self.done((), rows))
    }

    pub(crate) fn check_new_node_id(&self, id: &str) -> Result<(), Error> {
        match self.registered(id) {
            Err(_) => Ok(()),
            Ok(_) => Err(Error::Illegal {
                field: "id".to_owned(),
                reason: format!("node \"{id}\" is there already"),
            }),
        }
    }

    pub(super) fn registered(&self, id: &str) -> Result<&Node, Error> {
        let found = self.nodes.get(id).filter(|node| node.registered);
        found.ok_or_else(|| Error::NodeNotFound { node: id.to_owned() })
    }

    /// A node, which is added if the array does not know it.
    pub(super) fn node_entry(&mut self, id: NodeId) -> &mut Node {
        if !self.nodes.contains_key(&id) {
            let node = self.derived(Node::unregistered(id.clone()));
            self.nodes.insert(id.clone(), node);
        }
        self.nodes.get_mut(&id).expect("the node must be known now")
    }

    /// A node with the limits and the topology of its settings.
    pub(super) fn derived(&self, node: Node) -> Node {
        let changed = self.changed.get(&node.id);
        let limited = |limit: usize| Some(limit).filter(|limit| *limit > 0);
        let limit = changed.and_then(|changed| changed.limit);
        let limit = limit.map_or(self.settings.attach_limit, limited);
        let advertised = changed.and_then(|changed| changed.advertised);
        let assigned = || self.round_robin_topology(node.number);
        let segments = self.explicit_topology(&node.id).or_else(assigned);
        Node {
            limit,
            advertised: advertised.map_or(self.settings.advertised_limit.or(limit), limited),
            segments: segments.cloned().unwrap_or_default(),
            renamed_to: changed.and_then(|changed| changed.renamed_to.clone()),
            ..node
        }
    }

    pub(super) fn apply_node(&mut self, node: NodeId, mut settings: NodeSettings) {
        if settings.registered == Some(true) && settings.assigned_topology.is_none() {
            // A fixture may lack it. From now on it does not change.
            settings.assigned_topology = self.next_topology(&node);
        }
        let known = self.nodes.remove(&node);
        let mut entry = known.unwrap_or_else(|| Node {
            number: self.number(&node),
            ..Node::unregistered(node.clone())
        });
        entry.registered = settings.registered.unwrap_or(entry.registered);
        self.changed.insert(node.clone(), settings);
        if entry.registered || !entry.attached.is_empty() {
            self.nodes.insert(node, self.derived(entry));
        }
    }

    /// The topology of a node that joins: those of the pools round-robin. `None` for a node of the settings, and if all pools
    /// are accessible from everywhere.
    fn next_topology(&self, id: &NodeId) -> Option<Segments> {
        if self.settings.nodes.contains(id) {
            return None;
        }
        let segments = self.round_robin_topology(self.number(id))?;
        Some(segments.clone()).filter(|segments| !segments.is_empty())
    }

    /// The index of a node, also of one that does not exist yet or any more.
    pub(super) fn number(&self, id: &NodeId) -> usize {
        let known = self.nodes.get(id).map(|entry| entry.number);
        known
            .or_else(|| {
                self.settings
                    .nodes
                    .iter()
                    .position(|of_settings| of_settings == id)
            })
            .unwrap_or(self.nodes.len())
    }

    fn round_robin_topology(&self, number: usize) -> Option<&Segments> {
        let pools = &self.settings.pools;
        let pool = pools.get(number.checked_rem(pools.len())?)?;
        Some(&pool.segments)
    }

    /// The topology set at run time or by a flag, else the assigned one if a pool with it still exists.
    fn explicit_topology(&self, id: &NodeId) -> Option<&Segments> {
        let changed = self.changed.get(id);
        let pools = &self.settings.pools;
        let is_of_pool = |segments: &&Segments| pools.iter().any(|pool| pool.segments == **segments);
        changed
            .and_then(|changed| changed.segments.as_ref())
            .or_else(|| self.settings.node_topology.get(id))
            .or_else(|| changed?.assigned_topology.as_ref().filter(is_of_pool))
    }
}
