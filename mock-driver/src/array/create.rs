use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::listed;
use super::pool::PlacementRequest;
use super::volume::{CreateVolumeParams, SizeRange, Source, Spec, Volume};
use super::{Array, CopyMode, Counters, Done, Error, PoolName, Row, VolumeId, promise};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CreateOutcome {
    /// The volume of an earlier equal request.
    Existing(Arc<Spec>),
    /// A new volume of this size.
    New(u64),
}

// === impl Array ===

impl Array {
    /// The outcome of a request, without creating anything.
    pub(crate) fn validate_create(&self, wanted: &CreateVolumeParams) -> Result<CreateOutcome, Error> {
        match self.find_volume(wanted)? {
            Some(existing) => Ok(CreateOutcome::Existing(existing)),
            None => Ok(CreateOutcome::New(self.plan(wanted)?.0)),
        }
    }

    /// Creates a volume, or finds the one of an earlier equal request.
    ///
    /// # Errors
    /// The name belongs to another request, the source does not exist or is not ready, a parameter is not supported, or no size
    /// or pool satisfies the request.
    pub fn create_volume(&mut self, wanted: &CreateVolumeParams) -> Result<Done<Arc<Spec>>, Error> {
        let id = self.volume_id(&wanted.name);
        self.create_volume_as(wanted, id)
    }

    /// An id for a volume to be created under this name.
    ///
    /// It depends on the array's id_seed and on the number of earlier objects, so a volume that is created again under an earlier
    /// name gets another id.
    pub(crate) fn volume_id(&self, name: &str) -> VolumeId {
        let taken = |id: &str| self.volumes.contains_key(id);
        VolumeId::from(self.fresh(promise::VOLUME, "mock", self.counters.created, name, taken))
    }

    /// Creates a volume with `id`, which is from [`Array::volume_id`].
    pub(crate) fn create_volume_as(
        &mut self,
        wanted: &CreateVolumeParams,
        id: VolumeId,
    ) -> Result<Done<Arc<Spec>>, Error> {
        if let Some(existing) = self.find_volume(wanted)? {
            return Ok(Done::unchanged(existing));
        }
        let (capacity_bytes, pool) = self.plan(wanted)?;
        let spec = Arc::new(Spec {
            id: id.clone(),
            name: wanted.name.clone(),
            capacity_bytes,
            capabilities: wanted.sorted_capabilities(),
            parameters: wanted.parameters.clone(),
            mutable_parameters: wanted.mutable_parameters.clone(),
            source: wanted.source.clone(),
            pool,
        });
        let counters = Counters {
            created: self.counters.created + 1,
            ..self.counters
        };
        let volume = Row::Volume(id, Some(Volume::from(spec.clone())));
        Ok(self.done(spec, [Row::Counters(counters), volume]))
    }

    /// Whether an attached volume may be deleted: the array allows it, or the volume does not exist.
    pub(crate) fn deletes_in_use(&self, id: &str) -> bool {
        self.settings.deviations.delete_in_use || !self.volumes.contains_key(id)
    }

    /// Deletes a volume; succeeds if it does not exist.
    ///
    /// # Errors
    /// It is attached, or copies depend on it.
    pub fn delete_volume(&mut self, id: &str) -> Result<Done<()>, Error> {
        let Some(volume) = self.volumes.get(id) else {
            return Ok(Done::unchanged(()));
        };
        let id = volume.spec.id.clone();
        if !volume.attachments.is_empty() && !self.settings.deviations.delete_in_use {
            let nodes = volume.attachments.keys().cloned().collect();
            return Err(Error::InUse { volume: id, nodes });
        }
        self.check_no_dependants(&Source::Volume(id.clone()))?;
        Ok(self.done((), [Row::Volume(id, None)]))
    }

    /// Expands a volume, unless it is large enough, and returns its size. `online` allows expansion while it is attached.
    ///
    /// # Errors
    /// It does not exist, is attached without `online`, or no size satisfies the request.
    pub fn expand_volume(&mut self, id: &str, range: SizeRange, online: bool) -> Result<Done<u64>, Error> {
        let capacity_bytes = self.validate_expand(id, range, online)?;
        let mut volume = self.volume(id)?.clone();
        if volume.spec.capacity_bytes == capacity_bytes {
            return Ok(Done::unchanged(capacity_bytes));
        }
        Arc::make_mut(&mut volume.spec).capacity_bytes = capacity_bytes;
        Ok(self.replaced(capacity_bytes, volume))
    }

    /// The size after an expansion, without expanding it.
    pub(crate) fn validate_expand(&self, id: &str, range: SizeRange, online: bool) -> Result<u64, Error> {
        let volume = self.volume(id)?;
        let spec = &volume.spec;
        let has = spec.capacity_bytes;
        if range.limit != 0 && range.required > range.limit {
            self.settings.sizes.choose(range)?;
        }
        if has >= range.required && (range.limit == 0 || has <= range.limit) {
            return Ok(has);
        }
        if range.limit != 0 && has > range.limit {
            return Err(Error::SizeOutOfRange {
                reason: format!(
                    "volume \"{id}\" has {has} bytes, more than limit_bytes {}",
                    range.limit
                ),
            });
        }
        let capacity_bytes = self.settings.sizes.choose(range)?;
        if !online && !volume.attachments.is_empty() {
            return Err(Error::Online {
                volume: spec.id.clone(),
                nodes: volume.attachments.keys().cloned().collect(),
            });
        }
        if self.available_bytes(&spec.pool) < capacity_bytes - has {
            let reason = format!(
                "pool \"{}\" has no {} bytes left",
                spec.pool,
                capacity_bytes - has
            );
            return Err(Error::InsufficientCapacity { reason });
        }
        Ok(capacity_bytes)
    }

    /// Checks whether a volume supports mutable parameters, without changing it.
    pub(crate) fn validate_modify(&self, id: &str, asked: &BTreeMap<String, String>) -> Result<(), Error> {
        self.volume(id)?;
        self.check_qos(asked)
    }

    /// Refuses to delete the source of linked copies.
    pub(super) fn check_no_dependants(&self, source: &Source) -> Result<(), Error> {
        match self.settings.copy_mode {
            CopyMode::Independent => return Ok(()),
            CopyMode::Linked => {}
        }
        let mut dependants: Vec<String> = Vec::new();
        for child in self.made_from.get(source).into_iter().flatten() {
            dependants.push(format!("volume \"{child}\""));
        }
        if let Source::Volume(volume) = source {
            for snapshot in self.taken_of.get(volume).into_iter().flatten() {
                dependants.push(format!("snapshot \"{snapshot}\""));
            }
        }
        if dependants.is_empty() {
            return Ok(());
        }
        Err(Error::HasDependants {
            what: source.to_string(),
            dependants: listed(dependants.into_iter()),
        })
    }

    fn find_volume(&self, wanted: &CreateVolumeParams) -> Result<Option<Arc<Spec>>, Error> {
        let Some(existing) = self.names.get(&wanted.name).and_then(|id| self.volumes.get(id)) else {
            return Ok(None);
        };
        let spec = &existing.spec;
        let unreachable = || {
            let requirement = wanted.requirement.as_ref()?;
            let segments = self.segments_of(&spec.pool)?;
            (!requirement.is_satisfied_by(segments)).then_some("accessibility_requirements")
        };
        match wanted.difference(spec).or_else(unreachable) {
            None => Ok(Some(spec.clone())),
            Some(field) => Err(Error::NameTaken {
                kind: "volume",
                name: wanted.name.clone(),
                existing: spec.id.to_string(),
                field,
            }),
        }
    }

    /// Size and pool of a new volume.
    fn plan(&self, wanted: &CreateVolumeParams) -> Result<(u64, PoolName), Error> {
        self.check_qos(&wanted.mutable_parameters)?;
        self.check_class(&wanted.parameters)?;
        let source = match &wanted.source {
            None => None,
            Some(source) => Some(self.source(source)?),
        };
        let sizes = self.settings.sizes;
        let capacity_bytes = match &source {
            None => sizes.choose(wanted.size)?,
            Some((bytes, _)) => sizes.choose_holding(wanted.size, *bytes)?,
        };
        let request = PlacementRequest {
            pool: self.pool_named(&wanted.parameters),
            beside: source.as_ref().map(|(_, pool)| *pool),
            requirement: wanted.requirement.as_ref(),
        };
        Ok((capacity_bytes, self.choose_pool(capacity_bytes, &request)?))
    }

    /// Size and pool of the source of a new volume.
    fn source(&self, source: &Source) -> Result<(u64, &PoolName), Error> {
        match source {
            Source::Volume(id) => {
                let spec = &self.volume(id.as_str())?.spec;
                Ok((spec.capacity_bytes, &spec.pool))
            }
            Source::Snapshot(id) => {
                let snapshot = self.snapshot(id.as_str())?;
                if !snapshot.is_ready() {
                    return Err(Error::NotReady {
                        snapshot: snapshot.id.clone(),
                    });
                }
                Ok((snapshot.size_bytes, &snapshot.pool))
            }
        }
    }
}
