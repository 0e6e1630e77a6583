//! Groups of snapshots, created at one point in time, all or none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::error::listed;
use super::snapshot::{Snapshot, Timing};
use super::volume::Source;
use super::{Array, Done, Error, GroupId, PoolName, Row, SnapshotId, VolumeId, first_difference, promise};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    pub id: GroupId,
    pub name: String,
    pub members: BTreeMap<VolumeId, SnapshotId>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    #[serde(with = "jiff::fmt::serde::timestamp::nanosecond::required")]
    pub created: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateGroupParams {
    /// Name of the request, the key of idempotency.
    pub name: String,
    pub sources: BTreeSet<String>,
    pub parameters: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    pub group: Arc<Group>,
    pub snapshots: Vec<Arc<Snapshot>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupIds {
    pub group: GroupId,
    pub members: BTreeMap<VolumeId, SnapshotId>,
}

// === impl Members ===

impl Members {
    pub(crate) fn are_ready(&self) -> bool {
        self.snapshots.iter().all(|snapshot| snapshot.is_ready())
    }
}

// === impl Array ===

impl Array {
    /// The group of an earlier equal request, if any.
    ///
    /// # Errors
    /// A new group could not be created.
    pub(crate) fn find_group(&self, wanted: &CreateGroupParams) -> Result<Option<Members>, Error> {
        if let Some(existing) = self.group_names.get(&wanted.name) {
            let existing = self.group(existing.as_str(), &[])?;
            return match wanted.difference(&existing.group) {
                None => Ok(Some(existing)),
                Some(field) => Err(Error::NameTaken {
                    kind: "group snapshot",
                    name: wanted.name.clone(),
                    existing: existing.group.id.to_string(),
                    field,
                }),
            };
        }
        self.check_group(wanted).map(|()| None)
    }

    pub fn group_ids(&self, wanted: &CreateGroupParams) -> GroupIds {
        let taken = |id: &str| self.groups.contains_key(id);
        let group = self.fresh(promise::GROUP, "group", self.counters.made, &wanted.name, taken);
        let member = |volume: &String| {
            let id = self.snapshot_id(&format!("{group}/{volume}"));
            (VolumeId::from(volume.as_str()), id)
        };
        GroupIds {
            members: wanted.sources.iter().map(member).collect(),
            group: GroupId::from(group),
        }
    }

    /// Creates the snapshots of a group, or finds the group of an earlier equal request.
    ///
    /// # Errors
    /// A volume does not exist, the volumes are in different pools, the name belongs to another request, or the capacity is
    /// insufficient. Nothing is created then.
    pub fn create_group(
        &mut self,
        wanted: &CreateGroupParams,
        ids: GroupIds,
        timing: Timing,
    ) -> Result<Done<Members>, Error> {
        if let Some(existing) = self.find_group(wanted)? {
            return Ok(Done::unchanged(existing));
        }
        let snapshot = |(volume, id): (&VolumeId, &SnapshotId)| {
            let spec = &self.volume(volume.as_str())?.spec;
            Ok(Arc::new(Snapshot {
                id: id.clone(),
                name: String::new(),
                source: volume.clone(),
                size_bytes: spec.capacity_bytes,
                created: timing.now,
                ready_after: timing.ready_after(),
                group: Some(ids.group.clone()),
                pool: spec.pool.clone(),
                parameters: BTreeMap::new(),
            }))
        };
        let snapshots: Vec<Arc<Snapshot>> = ids.members.iter().map(snapshot).collect::<Result<_, Error>>()?;
        let group = Arc::new(Group {
            id: ids.group.clone(),
            name: wanted.name.clone(),
            members: ids.members,
            parameters: wanted.parameters.clone(),
            created: timing.now,
        });
        let of_snapshot =
            |snapshot: &Arc<Snapshot>| Row::Snapshot(snapshot.id.clone(), Some(snapshot.clone()));
        let mut rows = vec![self.count_made(), Row::Group(ids.group, Some(group.clone()))];
        rows.extend(snapshots.iter().map(of_snapshot));
        Ok(self.done(Members { group, snapshots }, rows))
    }

    /// Deletes a group with its snapshots and returns their ids; succeeds if it does not exist.
    ///
    /// # Errors
    /// `snapshots` differ from those of the group, or volumes depend on one of them.
    pub fn delete_group(&mut self, id: &str, snapshots: &[String]) -> Result<Done<Vec<SnapshotId>>, Error> {
        let Some(group) = self.groups.get(id).cloned() else {
            return Ok(Done::unchanged(Vec::new()));
        };
        check_members(&group, snapshots)?;
        for snapshot in group.members.values() {
            self.check_no_dependants(&Source::Snapshot(snapshot.clone()))?;
        }
        let snapshots: Vec<SnapshotId> = group.members.values().cloned().collect();
        let mut rows = vec![Row::Group(group.id.clone(), None)];
        rows.extend(snapshots.iter().cloned().map(|id| Row::Snapshot(id, None)));
        Ok(self.done(snapshots, rows))
    }

    /// The group with this id.
    ///
    /// # Errors
    /// It does not exist, or `snapshots` is not empty and differs from those of the group.
    pub fn group(&self, id: &str, snapshots: &[String]) -> Result<Members, Error> {
        let group = self
            .groups
            .get(id)
            .ok_or_else(|| Error::GroupNotFound { group: id.to_owned() })?;
        if !snapshots.is_empty() {
            check_members(group, snapshots)?;
        }
        Ok(self.members(group))
    }

    pub(crate) fn members(&self, group: &Arc<Group>) -> Members {
        let snapshots = group.members.values();
        Members {
            group: group.clone(),
            snapshots: snapshots
                .filter_map(|id| self.snapshots.get(id).cloned())
                .collect(),
        }
    }

    /// All groups, sorted by id.
    pub fn groups(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.groups.values()
    }

    fn check_group(&self, wanted: &CreateGroupParams) -> Result<(), Error> {
        let mut sizes: BTreeMap<&PoolName, u64> = BTreeMap::new();
        for source in &wanted.sources {
            let spec = &self.volume(source)?.spec;
            let bytes = sizes.entry(&spec.pool).or_default();
            *bytes = bytes.saturating_add(spec.capacity_bytes);
        }
        if sizes.len() > 1 {
            return Err(Error::CannotGroup {
                pools: listed(sizes.keys().map(ToString::to_string)),
            });
        }
        match sizes
            .into_iter()
            .find(|(pool, bytes)| self.available_bytes(pool) < *bytes)
        {
            None => Ok(()),
            Some((pool, bytes)) => Err(Error::InsufficientCapacity {
                reason: format!("pool \"{pool}\" has no {bytes} bytes left"),
            }),
        }
    }
}

// === impl CreateGroupParams ===

impl CreateGroupParams {
    fn difference(&self, existing: &Group) -> Option<&'static str> {
        let same = existing.members.keys().map(VolumeId::as_str);
        first_difference(&[
            (
                "source_volume_ids",
                same.eq(self.sources.iter().map(String::as_str)),
            ),
            ("parameters", self.parameters == existing.parameters),
        ])
    }
}

fn check_members(group: &Group, snapshots: &[String]) -> Result<(), Error> {
    let named: BTreeSet<&str> = snapshots.iter().map(String::as_str).collect();
    let members: BTreeSet<&str> = group.members.values().map(SnapshotId::as_str).collect();
    if named == members {
        return Ok(());
    }
    let id = &group.id;
    let reason = match named.difference(&members).next() {
        Some(stranger) => format!("snapshot \"{stranger}\" does not belong to group \"{id}\""),
        None => format!(
            "group \"{id}\" has {} snapshots, not {}",
            members.len(),
            named.len()
        ),
    };
    Err(Error::illegal("snapshot_ids", reason))
}
