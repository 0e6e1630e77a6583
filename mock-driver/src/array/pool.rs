//! Pools: placement of volumes and snapshots, and free capacity.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::error::listed;
use super::volume::SizeRule;
use super::{Array, Done, Error, PoolName, Requirement, Row, Segments};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Its name, which the class parameter `pool` selects.
    pub name: PoolName,
    /// Its topology. Nodes elsewhere cannot access it.
    #[serde(default)]
    pub segments: Segments,
    pub capacity: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage<'a> {
    pub pool: &'a Pool,
    /// Bytes allocated by volumes and snapshots. Exceeds the capacity if a later start lowered that.
    pub(crate) used: u64,
}

/// The response of GetCapacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityInfo {
    /// Free bytes in all pools of the request.
    pub available: u64,
    pub(crate) largest: u64,
    pub(crate) smallest: u64,
}

/// Constraints on the pool of a new object.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlacementRequest<'a> {
    pub(super) pool: Option<&'a str>,
    /// The pool of its source: copies share blocks with it.
    pub(super) beside: Option<&'a PoolName>,
    pub(super) requirement: Option<&'a Requirement>,
}

// === impl Pool ===

impl Pool {
    /// The class parameter that selects a pool, unless the array has another.
    pub(crate) const PARAMETER: &'static str = "pool";

    /// Capacity of a pool without a size: more than any request, and small enough to be added up.
    pub const DEFAULT_CAPACITY: u64 = 1 << 60;
}

// === impl PoolUsage ===

impl PoolUsage<'_> {
    pub fn left(&self) -> u64 {
        self.pool.capacity.saturating_sub(self.used)
    }
}

// === impl Array ===

impl Array {
    /// Free capacity of the pools that match.
    ///
    /// # Errors
    /// The named pool does not exist.
    pub fn capacity_for(
        &self,
        pool: Option<&str>,
        topology: Option<&Segments>,
    ) -> Result<CapacityInfo, Error> {
        self.known_pool(pool)?;
        let SizeRule { min, max, .. } = self.settings.sizes;
        let left = self
            .settings
            .pools
            .iter()
            .filter(|candidate| pool.is_none_or(|name| candidate.name.as_str() == name))
            .filter(|candidate| topology.is_none_or(|topology| candidate.segments.satisfies(topology)))
            .map(|candidate| self.left_in(candidate));
        let (available, largest) = left.fold((0_u64, 0_u64), |(sum, largest), left| {
            (sum.saturating_add(left), largest.max(left))
        });
        Ok(CapacityInfo {
            available,
            largest: if largest < min { 0 } else { largest.min(max) },
            smallest: min,
        })
    }

    pub(crate) fn pool_named<'a>(&self, parameters: &'a BTreeMap<String, String>) -> Option<&'a str> {
        let named = parameters.get(self.settings.pool_parameter)?;
        // An empty value selects none.
        Some(named.as_str()).filter(|name| !name.is_empty())
    }

    /// The topology of a pool; `None` (everywhere) if it does not exist any more.
    pub(crate) fn segments_of(&self, pool: &PoolName) -> Option<&Segments> {
        Some(&self.find_pool(pool.as_str())?.segments)
    }

    /// The pools in their configured order, with their usage.
    pub fn pools(&self) -> impl Iterator<Item = PoolUsage<'_>> {
        self.settings.pools.iter().map(|pool| self.filling(pool))
    }

    /// # Errors
    /// It does not exist.
    pub fn pool(&self, name: &str) -> Result<PoolUsage<'_>, Error> {
        let pool = self.find_pool(name).ok_or_else(|| Error::PoolNotFound {
            pool: name.to_owned(),
            known: self.pool_names(),
        })?;
        Ok(self.filling(pool))
    }

    fn find_pool(&self, name: &str) -> Option<&Pool> {
        let mut pools = self.settings.pools.iter();
        pools.find(|pool| pool.name.as_str() == name)
    }

    /// Changes the capacity of a pool, also for later starts.
    ///
    /// # Errors
    /// The pool does not exist, more is allocated in it, or the capacity exceeds the maximum.
    pub fn resize_pool(&mut self, name: &str, capacity: u64) -> Result<Done<()>, Error> {
        let PoolUsage { pool, used } = self.pool(name)?;
        if capacity > Pool::DEFAULT_CAPACITY {
            return Err(Error::PoolTooLarge {
                pool: pool.name.clone(),
                most: Pool::DEFAULT_CAPACITY,
            });
        }
        // Allocated capacity cannot be removed, even if the pool is overcommitted already.
        if capacity < used && capacity < pool.capacity {
            return Err(Error::PoolInUse {
                pool: pool.name.clone(),
                used,
            });
        }
        let pool = pool.name.clone();
        if self.resized.get(&pool) == Some(&capacity) {
            return Ok(Done::unchanged(()));
        }
        Ok(self.done((), [Row::Pool(pool, capacity)]))
    }

    /// The pool for an object of `bytes`: according to the first preference that can be satisfied, the pool with the most free
    /// bytes.
    pub(super) fn choose_pool(&self, bytes: u64, request: &PlacementRequest<'_>) -> Result<PoolName, Error> {
        self.known_pool(request.pool)?;
        let allowed: Vec<&Pool> = self
            .settings
            .pools
            .iter()
            .filter(|pool| request.pool.is_none_or(|name| pool.name.as_str() == name))
            .filter(|pool| request.beside.is_none_or(|source| pool.name == *source))
            .filter(|pool| {
                request
                    .requirement
                    .is_none_or(|wanted| wanted.is_satisfied_by(&pool.segments))
            })
            .collect();
        if allowed.is_empty() {
            return Err(Error::InsufficientCapacity {
                reason: "no pool that may be used lies where accessibility_requirements asks".to_owned(),
            });
        }
        let roomy: Vec<&Pool> = allowed
            .into_iter()
            .filter(|pool| self.left_in(pool) >= bytes)
            .collect();
        let roomiest = |segments: &Segments| {
            roomy
                .iter()
                .filter(|pool| pool.segments.satisfies(segments))
                // The first of equals, so that pools fill up in their configured order.
                .rev()
                .max_by_key(|pool| self.left_in(pool))
        };
        let preferred = request
            .requirement
            .into_iter()
            .flat_map(Requirement::preferences)
            .find_map(roomiest);
        match preferred.or_else(|| roomiest(&Segments::default())) {
            Some(pool) => Ok(pool.name.clone()),
            None => Err(Error::InsufficientCapacity {
                reason: format!("no pool that may be used has {bytes} bytes left"),
            }),
        }
    }

    /// Free bytes of a pool, for an object that grows in it.
    pub(super) fn available_bytes(&self, pool: &PoolName) -> u64 {
        let known = self.find_pool(pool.as_str());
        known.map_or(u64::MAX, |known| self.left_in(known))
    }

    pub(super) fn take_space(&mut self, pool: &PoolName, bytes: u64) {
        let used = self.used.entry(pool.clone()).or_default();
        *used = used.saturating_add(bytes);
    }

    pub(super) fn give_space(&mut self, pool: &PoolName, bytes: u64) {
        if let Some(used) = self.used.get_mut(pool) {
            *used = used.saturating_sub(bytes);
        }
    }

    pub(super) fn apply_pool(&mut self, name: PoolName, capacity: u64) {
        let mut pools = self.settings.pools.iter_mut();
        if let Some(pool) = pools.find(|pool| pool.name == name) {
            pool.capacity = capacity;
        }
        // Also for a pool that this start does not have.
        self.resized.insert(name, capacity);
    }

    fn filling<'a>(&self, pool: &'a Pool) -> PoolUsage<'a> {
        PoolUsage {
            pool,
            used: self.used.get(&pool.name).copied().unwrap_or(0),
        }
    }

    fn left_in(&self, pool: &Pool) -> u64 {
        self.filling(pool).left()
    }

    fn pool_names(&self) -> String {
        let pools = self.settings.pools.iter();
        listed(pools.map(|pool| pool.name.to_string()))
    }

    fn known_pool(&self, name: Option<&str>) -> Result<(), Error> {
        let Some(name) = name else { return Ok(()) };
        if self.find_pool(name).is_some() {
            return Ok(());
        }
        let reason = format!("unknown pool \"{name}\": use one of {}", self.pool_names());
        Err(Error::illegal("parameters", reason))
    }
}
