//! Pools of space: which one a new volume or snapshot goes to, and how much is left.

use serde::{Deserialize, Serialize};

use super::volume::SizeRule;
use super::{Array, Error, PoolName, Requirement, Segments};

/// A part of the array's space, in one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Its name; a volume is put into it by the class parameter `pool`.
    pub name: PoolName,
    /// Where it lies. Nodes that are not there do not reach it.
    #[serde(default)]
    pub segments: Segments,
    /// How many bytes it has.
    pub capacity: u64,
}

/// What GetCapacity tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes left, in all pools asked about.
    pub available: u64,
    /// The largest volume that could be made.
    pub largest: u64,
    /// The smallest volume that could be made.
    pub smallest: u64,
}

/// Where something new may go.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wish<'a> {
    /// The pool named in the parameters.
    pub(super) pool: Option<&'a str>,
    /// The pool its content is in: copies stay beside what they share blocks with.
    pub(super) beside: Option<&'a PoolName>,
    /// What the caller can reach.
    pub(super) requirement: Option<&'a Requirement>,
}

// === impl Pool ===

impl Pool {
    /// The class parameter that names one.
    pub const PARAMETER: &'static str = "pool";

    /// The bytes of a pool for which no size was given: more than anybody will ask for, and a number
    /// that callers can add up.
    pub const DEFAULT_CAPACITY: u64 = 1 << 60;
}

// === impl Array ===

impl Array {
    /// How much there is left in the pools that suit the question.
    ///
    /// # Errors
    /// If the pool named does not exist.
    pub fn room_for(&self, pool: Option<&str>, place: Option<&Segments>) -> Result<Room, Error> {
        self.known_pool(pool)?;
        let SizeRule { min, max, .. } = self.settings.sizes;
        let left = self
            .settings
            .pools
            .iter()
            .filter(|candidate| pool.is_none_or(|name| candidate.name.as_str() == name))
            .filter(|candidate| place.is_none_or(|place| candidate.segments.suits(place)))
            .map(|candidate| self.left_in(candidate));
        let (available, largest) = left.fold((0_u64, 0_u64), |(sum, largest), left| {
            (sum.saturating_add(left), largest.max(left))
        });
        Ok(Room {
            available,
            largest: if largest < min { 0 } else { largest.min(max) },
            smallest: min,
        })
    }

    /// Where a pool lies; none, which is everywhere, if it is not there any more.
    pub fn segments_of(&self, pool: &PoolName) -> Option<&Segments> {
        let known = self.settings.pools.iter().find(|known| known.name == *pool);
        known.map(|known| &known.segments)
    }

    /// The pools and what is left in each.
    pub fn pools(&self) -> impl Iterator<Item = (&Pool, u64)> {
        self.settings.pools.iter().map(|pool| (pool, self.left_in(pool)))
    }

    /// The pool for something of `bytes`: the first wish that can be fulfilled, and there the pool with
    /// the most space.
    pub(super) fn place(&self, bytes: u64, wish: &Wish<'_>) -> Result<PoolName, Error> {
        self.known_pool(wish.pool)?;
        let allowed: Vec<&Pool> = self
            .settings
            .pools
            .iter()
            .filter(|pool| wish.pool.is_none_or(|name| pool.name.as_str() == name))
            .filter(|pool| wish.beside.is_none_or(|source| pool.name == *source))
            .filter(|pool| {
                wish.requirement
                    .is_none_or(|wanted| wanted.admits(&pool.segments))
            })
            .collect();
        if allowed.is_empty() {
            return Err(Error::NoRoom {
                reason: "no pool that may be used lies where accessibility_requirements asks".to_owned(),
            });
        }
        let roomy: Vec<&Pool> = allowed
            .into_iter()
            .filter(|pool| self.left_in(pool) >= bytes)
            .collect();
        let roomiest = |place: &Segments| {
            roomy
                .iter()
                .filter(|pool| pool.segments.suits(place))
                // The first of equals, so that small arrays fill up in the order they are written.
                .rev()
                .max_by_key(|pool| self.left_in(pool))
        };
        let wished = wish
            .requirement
            .into_iter()
            .flat_map(Requirement::wishes)
            .find_map(roomiest);
        match wished.or_else(|| roomiest(&Segments::default())) {
            Some(pool) => Ok(pool.name.clone()),
            None => Err(Error::NoRoom {
                reason: format!("no pool that may be used has {bytes} bytes left"),
            }),
        }
    }

    /// The bytes left in a pool, for something that grows there.
    pub(super) fn left_beside(&self, pool: &PoolName) -> u64 {
        let known = self.settings.pools.iter().find(|known| known.name == *pool);
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

    fn left_in(&self, pool: &Pool) -> u64 {
        let used = self.used.get(&pool.name).copied().unwrap_or(0);
        pool.capacity.saturating_sub(used)
    }

    fn known_pool(&self, name: Option<&str>) -> Result<(), Error> {
        let Some(name) = name else { return Ok(()) };
        if self.settings.pools.iter().any(|pool| pool.name.as_str() == name) {
            return Ok(());
        }
        let known: Vec<&str> = self
            .settings
            .pools
            .iter()
            .map(|pool| pool.name.as_str())
            .collect();
        Err(Error::Illegal {
            field: "parameters".to_owned(),
            reason: format!("there is no pool \"{name}\", only {}", known.join(", ")),
        })
    }
}
