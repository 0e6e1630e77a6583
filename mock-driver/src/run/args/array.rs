//! Flags of the array and its services, which a process without the array rejects.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};

use super::value::{path_or_empty, switch};
use crate::array::{
    self, CopyMode, NodeId, Pool, PoolName, QosRule, Segments, SizeRule, SpecDeviations, quantity,
};
use crate::driver::service_config::ServiceConfig;
use crate::fault::duration;
use crate::rpc::validate;

/// Default minimum size of a volume.
const DEFAULT_MIN: &str = "1Mi";
/// Default maximum size of a volume.
const DEFAULT_MAX: &str = "1Ti";
/// Default page size. A response with a hundred nodes per volume stays below 4 MiB, the default limit of gRPC
/// clients.
const DEFAULT_LIST_PAGE: usize = 1000;

/// Heading of these flags in `--help`.
pub(super) const HEADING: &str = "The array";

/// Flags that only the process with the array reads.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = HEADING)]
pub(crate) struct ArrayArgs {
    /// Number of nodes of the array: node-0, node-1 and so on.
    #[arg(long, default_value_t = 3)]
    pub(crate) nodes: usize,

    /// Number of initial volumes: vol-0, vol-1 and so on.
    #[arg(long, default_value_t = 0)]
    pub(crate) volumes: u64,

    /// File with the array's state, as `ctl export` writes it: the array starts with it, whatever --state-dir has, and
    /// a reset returns to it.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub(crate) fixture: PathBuf,

    /// Number of zones, to which the nodes are assigned round-robin. Each zone has its own pool unless --pool
    /// is given. 0 means a storage system without topology.
    #[arg(long, default_value_t = 1)]
    pub(crate) zones: usize,

    /// Storage pool: NAME=BYTES, or NAME=BYTES@KEY=VALUE,KEY=VALUE with its topology. Repeatable.
    #[arg(long = "pool", value_name = "POOL", value_parser = pool)]
    pub(crate) pools: Vec<Pool>,

    /// Topology of a node: NODE@KEY=VALUE,KEY=VALUE. Repeatable.
    #[arg(long = "node-topology", value_name = "NODE@KEY=VALUE", value_parser = node_topology)]
    pub(crate) node_topology: Vec<(NodeId, Segments)>,

    /// Attach limit that NodeGetInfo reports, if it differs from the real one. 0 reports the real one.
    #[arg(long, default_value_t = 0)]
    pub(crate) advertised_attach_limit: usize,

    /// Minimum size of a volume, in bytes or with a unit (1Mi, 1Gi).
    #[arg(long, default_value = DEFAULT_MIN, value_parser = quantity)]
    pub(crate) min_volume_size: u64,

    /// Maximum size of a volume.
    #[arg(long, default_value = DEFAULT_MAX, value_parser = quantity)]
    pub(crate) max_volume_size: u64,

    /// Parameters that ControllerModifyVolume accepts: KEY with any value, KEY=LOW..HIGH an integer,
    /// KEY=ONE|OTHER an enumeration, * any other key. latency (milliseconds) delays attaches and detaches;
    /// the others have no effect.
    #[arg(
        long,
        default_value = "iops=1..1000000,latency=0..600000,throughput=1..1000000,tier=bronze|silver|gold"
    )]
    pub(crate) mutable_parameters: QosRule,

    /// Time after its creation until a snapshot is ready to use.
    #[arg(long, default_value = "0s", value_parser = duration::parse)]
    pub(crate) snapshot_delay: Duration,

    /// Let snapshots and clones share blocks with their source, so that the source cannot be deleted before
    /// them.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch, value_name = "BOOL")]
    pub(crate) linked_copies: bool,

    /// Delete volumes although they are attached to nodes.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch, value_name = "BOOL")]
    pub(crate) delete_in_use: bool,

    /// Answer ControllerUnpublishVolume for an unknown volume or node with NOT_FOUND, as some drivers do,
    /// instead of OK.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch, value_name = "BOOL")]
    pub(crate) unpublish_not_found: bool,

    /// Duration of ControllerPublishVolume and ControllerUnpublishVolume.
    #[arg(long, default_value = "0s", value_parser = duration::parse)]
    pub(crate) latency: Duration,

    /// Maximum number of entries per page of ListVolumes, ListSnapshots and ControllerListVolumeHealth, whatever
    /// max_entries is. 0 = unlimited.
    #[arg(long, default_value_t = DEFAULT_LIST_PAGE)]
    pub(crate) list_page: usize,

    /// The class parameter that names a pool.
    #[arg(skip = Pool::PARAMETER)]
    pub(crate) pool_parameter: &'static str,

    /// The largest size a node grows a volume to; none for that of all volumes.
    #[arg(skip)]
    pub(crate) node_growth_limit: Option<u64>,

    /// Minimum size of the disk of a volume with a filesystem, whatever the volume's capacity.
    #[arg(skip)]
    pub(crate) min_filesystem_bytes: u64,

    /// Answer ControllerModifyVolume without mutable_parameters with INVALID_ARGUMENT, as in the
    /// specification's text, instead of OK.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch, value_name = "BOOL")]
    pub(crate) modify_volume_strict: bool,

    /// A node takes volumes that are not attached to it.
    #[arg(skip)]
    pub(crate) attach_optional: bool,
}

// === impl ArrayArgs ===

impl ArrayArgs {
    /// The settings of the array; keys of zones have the driver's name as prefix.
    pub(super) fn settings(
        &self,
        driver_name: &str,
        nodes: Vec<NodeId>,
        attach_limit: usize,
    ) -> array::Settings {
        let base = SizeRule::default();
        array::Settings {
            nodes,
            node_topology: self.node_topology.iter().cloned().collect(),
            attach_limit: Some(attach_limit).filter(|limit| *limit > 0),
            advertised_limit: Some(self.advertised_attach_limit).filter(|limit| *limit > 0),
            pools: self.pools(driver_name),
            pool_parameter: self.pool_parameter,
            sizes: SizeRule {
                min: self.min_volume_size,
                default: base.default.clamp(self.min_volume_size, self.max_volume_size),
                max: self.max_volume_size,
            },
            qos: self.mutable_parameters.clone(),
            copy_mode: if self.linked_copies {
                CopyMode::Linked
            } else {
                CopyMode::Independent
            },
            deviations: SpecDeviations {
                delete_in_use: self.delete_in_use,
                unpublish_not_found: self.unpublish_not_found,
            },
            page_limit: Some(self.list_page).filter(|limit| *limit > 0),
        }
    }

    /// The error of flags that exclude each other.
    pub(super) fn objection(&self) -> Option<String> {
        if self.max_volume_size < self.min_volume_size {
            return Some("--max-volume-size must not be less than --min-volume-size".to_owned());
        }
        let mut nodes = BTreeSet::new();
        let twice = self.node_topology.iter().find(|flag| !nodes.insert(&flag.0));
        if let Some((node, _)) = twice {
            return Some(format!("--node-topology: node \"{node}\" is there twice"));
        }
        let mut names = BTreeSet::new();
        let twice = self.pools.iter().find(|pool| !names.insert(pool.name.as_str()));
        twice.map(|pool| format!("--pool: \"{}\" is there twice", pool.name))
    }

    /// The nodes that have a topology but are not among these.
    pub(super) fn unknown_nodes<'a>(&'a self, nodes: &'a [NodeId]) -> impl Iterator<Item = &'a NodeId> {
        let named = self.node_topology.iter().map(|(node, _)| node);
        named.filter(|node| !nodes.contains(node))
    }

    pub(super) fn config(&self) -> ServiceConfig {
        ServiceConfig {
            snapshot_delay: self.snapshot_delay,
            node_growth_limit: self.node_growth_limit,
            min_filesystem_bytes: self.min_filesystem_bytes,
            attach_optional: self.attach_optional,
            strict_modify: self.modify_volume_strict,
            ..ServiceConfig::default()
        }
    }

    fn pools(&self, driver_name: &str) -> Vec<Pool> {
        if !self.pools.is_empty() {
            return self.pools.clone();
        }
        let key = format!("{driver_name}/zone");
        let pool = |number: usize| Pool {
            name: PoolName::from(format!("pool-{number}")),
            segments: match self.zones {
                0 => Segments::default(),
                _ => [(key.as_str(), format!("zone-{number}"))].into_iter().collect(),
            },
            capacity: Pool::DEFAULT_CAPACITY,
        };
        (0..self.zones.max(1)).map(pool).collect()
    }
}

pub(super) fn pool(text: &str) -> Result<Pool, String> {
    let (pool, segments) = match text.split_once('@') {
        Some((pool, topology)) => (pool, parse_segments(topology)?),
        None => (text, Segments::default()),
    };
    let (name, capacity) = pool
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or("must be NAME=BYTES or NAME=BYTES@KEY=VALUE")?;
    Ok(Pool {
        name: PoolName::from(name),
        segments,
        capacity: quantity(capacity)?,
    })
}

fn node_topology(text: &str) -> Result<(NodeId, Segments), String> {
    let (node, topology) = text
        .split_once('@')
        .filter(|(node, _)| !node.is_empty())
        .ok_or("must be NODE@KEY=VALUE")?;
    Ok((NodeId::from(node), parse_segments(topology)?))
}

/// Parses KEY=VALUE,KEY=VALUE as topology segments.
pub(super) fn parse_segments(text: &str) -> Result<Segments, String> {
    let mut pairs = Vec::new();
    for item in text.split(',') {
        let pair = item.split_once('=');
        pairs.push(pair.ok_or_else(|| format!("\"{item}\" must be KEY=VALUE"))?);
    }
    validate::segments("topology", pairs).map_err(|invalid| invalid.reason)
}

fn quantity(text: &str) -> Result<u64, String> {
    match quantity::bytes(text) {
        Some(number) if number > 0 => Ok(number),
        _ => Err("must be a number of bytes, at least 1, with or without a unit such as Mi or Gi".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn pools_and_node_topologies_are_parsed() {
        let pool = super::pool("fast=10Gi@example.com/zone=a,host=b").unwrap();
        assert_eq!((pool.name.as_str(), pool.capacity), ("fast", 10 << 30));
        assert_eq!(pool.segments.to_string(), "{example.com/zone=a, host=b}");
        let (node, segments) = super::node_topology("node-1@Zone=a").unwrap();
        assert_eq!(
            (node.as_str(), segments.to_string().as_str()),
            ("node-1", "{zone=a}")
        );
        for text in [
            "",
            "fast",
            "=1Gi",
            "fast=",
            "fast=0",
            "fast=1Xi",
            "fast=1Gi@zone",
            "fast=1Gi@a b!=c",
            "fast=1Gi@zone=a,ZONE=b",
            "fast=99Ei",
        ] {
            assert!(super::pool(text).is_err(), "{text}");
        }
        for text in [
            "",
            "node-1",
            "@zone=a",
            "node-1@",
            "node-1@zone=",
            "node-1@zone=a b!",
            "node-1@zone=a,Zone=b",
        ] {
            assert!(super::node_topology(text).is_err(), "{text}");
        }
    }
}
