//! Snapshots: the content of a volume at one point in time, independent of the volume.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::listing::{Listing, Page};
use super::pool::PlacementRequest;
use super::volume::Source;
use super::{
    Array, Counters, Done, Error, GroupId, PoolName, Requirement, Row, SnapshotId, VolumeId, promise,
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    pub id: SnapshotId,
    /// CreateSnapshotRequest.name; empty for a member of a group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The source volume, which may be deleted.
    pub source: VolumeId,
    /// The size of the source volume at creation.
    pub size_bytes: u64,
    #[serde(with = "jiff::fmt::serde::timestamp::nanosecond::required")]
    pub created: Timestamp,
    /// The duration of its copy from its creation; `None` once it is ready to use, which it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_after: Option<Duration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    #[serde(default)]
    pub pool: PoolName,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateSnapshotParams {
    /// Name of the request, the key of idempotency.
    pub name: String,
    pub source: String,
    pub parameters: BTreeMap<String, String>,
    /// The accessibility requirement; `None` for any pool.
    pub requirement: Option<Requirement>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotFilter {
    pub source: Option<String>,
    pub snapshot: Option<String>,
}

/// The time of a creation and the delay until the snapshot is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub now: Timestamp,
    pub delay: Duration,
}

// === impl Snapshot ===

impl Snapshot {
    pub fn is_ready(&self) -> bool {
        self.ready_after.is_none()
    }

    /// The time until it is ready to use, at most the whole duration of its copy, wherever the wall clock was set to.
    pub(crate) fn time_left(&self, now: Timestamp) -> Option<Duration> {
        let whole = self.ready_after?;
        let elapsed = Duration::try_from(now.duration_since(self.created)).unwrap_or_default();
        Some(whole.saturating_sub(elapsed))
    }
}

// === impl Timing ===

impl Timing {
    pub(super) fn ready_after(self) -> Option<Duration> {
        Some(self.delay).filter(|delay| !delay.is_zero())
    }
}

// === impl Array ===

impl Array {
    /// The snapshot of an earlier equal request, if any.
    ///
    /// # Errors
    /// A new one could not be created.
    pub(crate) fn find_snapshot(
        &self,
        wanted: &CreateSnapshotParams,
    ) -> Result<Option<Arc<Snapshot>>, Error> {
        if let Some(existing) = self.snapshot_names.get(&wanted.name) {
            let existing = self.snapshot(existing.as_str())?;
            if existing.source.as_str() == wanted.source {
                return Ok(Some(existing.clone()));
            }
            return Err(Error::NameTaken {
                kind: "snapshot",
                name: wanted.name.clone(),
                existing: existing.id.to_string(),
                field: "source_volume_id",
            });
        }
        self.pool_of_snapshot(wanted).map(|_| None)
    }

    /// An id for a snapshot to be created under this name.
    pub fn snapshot_id(&self, name: &str) -> SnapshotId {
        let taken = |id: &str| self.snapshots.contains_key(id);
        SnapshotId::from(self.fresh(promise::SNAPSHOT, "snap", self.counters.made, name, taken))
    }

    /// Creates a snapshot with `id`, or finds the one of an earlier equal request.
    ///
    /// # Errors
    /// The volume does not exist, the name belongs to a snapshot of another volume, or the capacity is insufficient.
    pub fn create_snapshot(
        &mut self,
        wanted: &CreateSnapshotParams,
        id: SnapshotId,
        timing: Timing,
    ) -> Result<Done<Arc<Snapshot>>, Error> {
        if let Some(existing) = self.find_snapshot(wanted)? {
            return Ok(Done::unchanged(existing));
        }
        let pool = self.pool_of_snapshot(wanted)?;
        let volume = self.volume(&wanted.source)?;
        let snapshot = Arc::new(Snapshot {
            id: id.clone(),
            name: wanted.name.clone(),
            source: volume.spec.id.clone(),
            size_bytes: volume.spec.capacity_bytes,
            created: timing.now,
            ready_after: timing.ready_after(),
            group: None,
            pool,
            parameters: wanted.parameters.clone(),
        });
        let row = Row::Snapshot(id, Some(snapshot.clone()));
        Ok(self.done(snapshot, [self.count_made(), row]))
    }

    /// Makes snapshots ready to use, which were copied; those that do not exist any more are passed over.
    pub fn finish_snapshots(&mut self, ids: &[SnapshotId]) -> Done<()> {
        let copied = ids.iter().filter_map(|id| self.snapshots.get(id));
        let copied = copied.filter(|snapshot| !snapshot.is_ready());
        let ready = copied.map(|snapshot| Snapshot {
            ready_after: None,
            ..(**snapshot).clone()
        });
        let rows = ready.map(|ready| Row::Snapshot(ready.id.clone(), Some(Arc::new(ready))));
        let rows: Vec<Row> = rows.collect();
        self.done((), rows)
    }

    pub(super) fn count_made(&self) -> Row {
        Row::Counters(Counters {
            made: self.counters.made + 1,
            ..self.counters
        })
    }

    /// Deletes a snapshot; succeeds if it does not exist.
    ///
    /// # Errors
    /// It belongs to a group, or volumes depend on it.
    pub fn delete_snapshot(&mut self, id: &str) -> Result<Done<()>, Error> {
        let Some(snapshot) = self.snapshots.get(id) else {
            return Ok(Done::unchanged(()));
        };
        if let Some(group) = &snapshot.group {
            let reason = format!("snapshot \"{id}\" belongs to group \"{group}\": delete the group");
            return Err(Error::illegal("snapshot_id", reason));
        }
        let snapshot = snapshot.id.clone();
        self.check_no_dependants(&Source::Snapshot(snapshot.clone()))?;
        Ok(self.done((), [Row::Snapshot(snapshot, None)]))
    }

    /// # Errors
    /// It does not exist.
    pub fn snapshot(&self, id: &str) -> Result<&Arc<Snapshot>, Error> {
        self.snapshots.get(id).ok_or_else(|| Error::SnapshotNotFound {
            snapshot: id.to_owned(),
        })
    }

    /// All snapshots, sorted by id.
    pub fn snapshots(&self) -> impl Iterator<Item = &Arc<Snapshot>> {
        self.snapshots.values()
    }

    /// The snapshots that match a filter, in pages.
    ///
    /// # Errors
    /// The token is not from this array and filter.
    pub fn list_snapshots(
        &self,
        filter: &SnapshotFilter,
        max_entries: usize,
        token: Option<&str>,
    ) -> Result<Page<Arc<Snapshot>>, Error> {
        let kind = match &filter.source {
            Some(source) => format!("snapshots of/{source}"),
            None => "snapshots".to_owned(),
        };
        let listing = Listing::begin(self, &kind, max_entries, token)?;
        Ok(match (&filter.snapshot, &filter.source) {
            (Some(one), source) => {
                let of_source = |snapshot: &&Arc<Snapshot>| {
                    let is_source = |source: &String| snapshot.source.as_str() == source.as_str();
                    source.as_ref().is_none_or(is_source)
                };
                let found = self.snapshots.get(one.as_str()).filter(of_source);
                Page {
                    entries: found.cloned().into_iter().collect(),
                    next_token: None,
                }
            }
            (None, Some(source)) => {
                let taken = self.taken_of.get(source.as_str()).into_iter();
                let rest = listing.rest();
                let ids = taken.flat_map(move |ids| ids.range::<str, _>(rest));
                let found = ids.filter_map(|id| self.snapshots.get(id)).cloned();
                listing.page(found, |snapshot| snapshot.id.as_str())
            }
            (None, None) => {
                let rest = self.snapshots.range::<str, _>(listing.rest());
                listing.page(rest.map(|(_, snapshot)| snapshot.clone()), |snapshot| {
                    snapshot.id.as_str()
                })
            }
        })
    }

    /// The pool of a snapshot: that of the volume unless another one is preferred.
    fn pool_of_snapshot(&self, wanted: &CreateSnapshotParams) -> Result<PoolName, Error> {
        let volume = self.volume(&wanted.source)?;
        let bytes = volume.spec.capacity_bytes;
        let own = &volume.spec.pool;
        let segments = self.segments_of(own).zip(wanted.requirement.as_ref());
        let admitted = segments.is_none_or(|(segments, requirement)| {
            let first = requirement.preferred.first();
            requirement.is_satisfied_by(segments) && first.is_none_or(|first| segments.satisfies(first))
        });
        if admitted && self.available_bytes(own) >= bytes {
            return Ok(own.clone());
        }
        let request = PlacementRequest {
            beside: wanted.requirement.is_none().then_some(own),
            requirement: wanted.requirement.as_ref(),
            ..PlacementRequest::default()
        };
        self.choose_pool(bytes, &request)
    }
}
