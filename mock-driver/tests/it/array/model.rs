//! Snapshots, groups, copies, expansion and limits compared with a naive model: random operations, each repeated, and
//! restarts. Listings are compared after every step, and all changes are replayed at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use csi_mock_driver::array::{
    Access, AccessMode, Array, Capability, CreateGroupParams, CreateSnapshotParams, CreateVolumeParams, Done,
    Error, NodeSettings, Pool, PoolName, PublishParams, Row, Segments, Settings, SizeRange, SnapshotFilter,
    Source, Timing,
};
use jiff::Timestamp;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
/// Total space, in MiB.
const SPACE: u64 = 40;
const POOL: &str = "pool";

/// An operation. Numbers select among all ids of that kind so far, including deleted ones.
#[derive(Clone, Debug)]
enum Op {
    Create {
        name: u8,
        mib: u64,
        source: Option<(bool, usize)>,
    },
    Delete {
        volume: usize,
    },
    Snapshot {
        name: u8,
        volume: usize,
    },
    DeleteSnapshot {
        snapshot: usize,
    },
    Group {
        name: u8,
        volumes: BTreeSet<usize>,
    },
    DeleteGroup {
        group: usize,
        complete: bool,
    },
    Expand {
        volume: usize,
        mib: u64,
        limit: u64,
    },
    Modify {
        volume: usize,
        iops: u64,
    },
    Publish {
        volume: usize,
        node: u8,
    },
    Unpublish {
        volume: usize,
    },
    Limit {
        node: u8,
        limit: usize,
    },
    Resize {
        mib: u64,
    },
    Wait,
    Restart,
}

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Gone,
    Taken,
    Full,
    NotReady,
    Illegal,
    Size,
    InUse,
    NodeFull,
    Elsewhere,
}

#[derive(Clone, Debug)]
struct ModelVolume {
    id: String,
    name: u8,
    mib: u64,
    source: Option<(bool, String)>,
    iops: Option<u64>,
    node: Option<u8>,
}

#[derive(Clone, Debug)]
struct ModelSnapshot {
    id: String,
    /// None in a group.
    name: Option<u8>,
    volume: String,
    mib: u64,
    taken: u64,
    group: Option<String>,
}

#[derive(Clone, Debug)]
struct ModelGroup {
    id: String,
    name: u8,
    volumes: BTreeSet<String>,
}

/// The naive model: lists that are searched linearly.
#[derive(Default)]
struct Model {
    time: u64,
    volumes: Vec<ModelVolume>,
    snapshots: Vec<ModelSnapshot>,
    groups: Vec<ModelGroup>,
    limits: BTreeMap<u8, usize>,
    /// Size of the pool if it was changed since the start.
    space: Option<u64>,
}

/// All ids so far, by kind.
struct Ids {
    volumes: Vec<String>,
    snapshots: Vec<String>,
    groups: Vec<String>,
}

/// The array under test and its history.
struct TestArray {
    array: Array,
    rows: Vec<Row>,
    time: u64,
}

// === impl Ids ===

impl Ids {
    fn new() -> Self {
        let gone = || vec!["never-was".to_owned()];
        Self {
            volumes: gone(),
            snapshots: gone(),
            groups: gone(),
        }
    }

    fn of(list: &[String], number: usize) -> &str {
        &list[number % list.len()]
    }

    fn note(list: &mut Vec<String>, id: &str) {
        if !list.iter().any(|known| known == id) {
            list.push(id.to_owned());
        }
    }
}

// === impl Model ===

impl Model {
    fn space(&self) -> u64 {
        self.space.unwrap_or(SPACE)
    }

    fn used(&self) -> u64 {
        let volumes: u64 = self.volumes.iter().map(|volume| volume.mib).sum();
        let snapshots: u64 = self.snapshots.iter().map(|snapshot| snapshot.mib).sum();
        volumes + snapshots
    }

    fn volume(&self, id: &str) -> Option<&ModelVolume> {
        self.volumes.iter().find(|volume| volume.id == id)
    }

    fn snapshot(&self, id: &str) -> Option<&ModelSnapshot> {
        self.snapshots.iter().find(|snapshot| snapshot.id == id)
    }

    fn expected_create(&self, name: u8, mib: u64, source: Option<&(bool, String)>) -> (Outcome, u64) {
        if let Some(there) = self.volumes.iter().find(|volume| volume.name == name) {
            let same = there.mib >= mib && there.source.as_ref() == source;
            return (if same { Outcome::Done } else { Outcome::Taken }, 0);
        }
        let needs = match source {
            None => 1,
            Some((true, id)) => match self.snapshot(id) {
                None => return (Outcome::Gone, 0),
                Some(snapshot) if self.time < snapshot.taken + 2 => return (Outcome::NotReady, 0),
                Some(snapshot) => snapshot.mib,
            },
            Some((false, id)) => match self.volume(id) {
                None => return (Outcome::Gone, 0),
                Some(volume) => volume.mib,
            },
        };
        if source.is_some() && mib != 0 && mib < needs {
            return (Outcome::Size, 0);
        }
        let size = mib.max(needs);
        if self.used() + size > self.space() {
            return (Outcome::Full, 0);
        }
        (Outcome::Done, size)
    }

    fn expected_publish(&self, id: &str, node: u8) -> Outcome {
        let Some(volume) = self.volume(id) else {
            return Outcome::Gone;
        };
        match volume.node {
            Some(there) if there == node => return Outcome::Done,
            Some(_) => return Outcome::Elsewhere,
            None => {}
        }
        let there = self
            .volumes
            .iter()
            .filter(|volume| volume.node == Some(node))
            .count();
        match self.limits.get(&node) {
            Some(limit) if *limit > 0 && there >= *limit => Outcome::NodeFull,
            _ => Outcome::Done,
        }
    }

    /// Applies an operation to the model and returns the expected outcome.
    fn act(&mut self, op: &Op, ids: &mut Ids, made: &Made) -> Outcome {
        match op {
            Op::Create { name, mib, source } => self.act_create(*name, *mib, *source, ids, made),
            Op::Delete { volume } => {
                let id = Ids::of(&ids.volumes, *volume);
                if self.volume(id).is_some_and(|volume| volume.node.is_some()) {
                    return Outcome::InUse;
                }
                self.volumes.retain(|volume| volume.id != id);
                Outcome::Done
            }
            Op::Snapshot { name, volume } => self.act_snapshot(*name, *volume, ids, made),
            Op::DeleteSnapshot { snapshot } => {
                let id = Ids::of(&ids.snapshots, *snapshot);
                if self.snapshot(id).is_some_and(|snapshot| snapshot.group.is_some()) {
                    return Outcome::Illegal;
                }
                self.snapshots.retain(|snapshot| snapshot.id != id);
                Outcome::Done
            }
            Op::Group { name, volumes } => self.act_group(*name, volumes, ids, made),
            Op::DeleteGroup { group, complete } => {
                let id = Ids::of(&ids.groups, *group);
                if self.groups.iter().any(|group| group.id == id) && !complete {
                    return Outcome::Illegal;
                }
                self.groups.retain(|group| group.id != id);
                self.snapshots
                    .retain(|snapshot| snapshot.group.as_deref() != Some(id));
                Outcome::Done
            }
            Op::Expand { volume, mib, limit } => {
                let id = Ids::of(&ids.volumes, *volume).to_owned();
                self.act_expand(&id, *mib, *limit)
            }
            Op::Modify { volume, iops } => {
                let id = Ids::of(&ids.volumes, *volume);
                match self.volumes.iter_mut().find(|volume| volume.id == id) {
                    None => Outcome::Gone,
                    Some(_) if *iops == 0 => Outcome::Illegal,
                    Some(volume) => {
                        volume.iops = Some(*iops);
                        Outcome::Done
                    }
                }
            }
            Op::Publish { volume, node } => {
                let id = Ids::of(&ids.volumes, *volume);
                let outcome = self.expected_publish(id, *node);
                if let Some(volume) = self.volumes.iter_mut().find(|volume| volume.id == id)
                    && outcome == Outcome::Done
                {
                    volume.node = Some(*node);
                }
                outcome
            }
            Op::Unpublish { volume } => {
                let id = Ids::of(&ids.volumes, *volume);
                if let Some(volume) = self.volumes.iter_mut().find(|volume| volume.id == id) {
                    volume.node = None;
                }
                Outcome::Done
            }
            Op::Resize { mib } if *mib < self.used() => Outcome::InUse,
            Op::Resize { mib } => {
                self.space = Some(*mib);
                Outcome::Done
            }
            Op::Limit { node, limit } => {
                self.limits.insert(*node, *limit);
                Outcome::Done
            }
            Op::Wait => {
                self.time += 1;
                Outcome::Done
            }
            Op::Restart => Outcome::Done,
        }
    }

    fn act_create(
        &mut self,
        name: u8,
        mib: u64,
        source: Option<(bool, usize)>,
        ids: &mut Ids,
        made: &Made,
    ) -> Outcome {
        let source = source.map(|(snapshot, number)| {
            let list = if snapshot { &ids.snapshots } else { &ids.volumes };
            (snapshot, Ids::of(list, number).to_owned())
        });
        let (outcome, size) = self.expected_create(name, mib, source.as_ref());
        if let (Outcome::Done, Made::One(id)) = (outcome, made)
            && self.volume(id).is_none()
        {
            Ids::note(&mut ids.volumes, id);
            self.volumes.push(ModelVolume {
                id: id.clone(),
                name,
                mib: size,
                source,
                iops: None,
                node: None,
            });
        }
        outcome
    }

    fn act_snapshot(&mut self, name: u8, volume: usize, ids: &mut Ids, made: &Made) -> Outcome {
        let source = Ids::of(&ids.volumes, volume).to_owned();
        let named = |snapshot: &&ModelSnapshot| snapshot.name == Some(name);
        if let Some(there) = self.snapshots.iter().find(named) {
            return if there.volume == source {
                Outcome::Done
            } else {
                Outcome::Taken
            };
        }
        let Some(mib) = self.volume(&source).map(|volume| volume.mib) else {
            return Outcome::Gone;
        };
        if self.used() + mib > self.space() {
            return Outcome::Full;
        }
        if let Made::One(id) = made {
            Ids::note(&mut ids.snapshots, id);
            self.snapshots.push(ModelSnapshot {
                id: id.clone(),
                name: Some(name),
                volume: source,
                mib,
                taken: self.time,
                group: None,
            });
        }
        Outcome::Done
    }

    fn act_expand(&mut self, id: &str, mib: u64, limit: u64) -> Outcome {
        let free = self.space().saturating_sub(self.used());
        let Some(volume) = self.volumes.iter_mut().find(|volume| volume.id == id) else {
            return Outcome::Gone;
        };
        match (mib, limit) {
            (mib, limit) if limit != 0 && (mib > limit || volume.mib > limit) => Outcome::Size,
            (mib, _) if mib <= volume.mib => Outcome::Done,
            (mib, _) if mib - volume.mib > free => Outcome::Full,
            (mib, _) => {
                volume.mib = mib;
                Outcome::Done
            }
        }
    }

    fn act_group(&mut self, name: u8, volumes: &BTreeSet<usize>, ids: &mut Ids, made: &Made) -> Outcome {
        let sources: BTreeSet<String> = named(volumes, ids);
        if let Some(there) = self.groups.iter().find(|group| group.name == name) {
            return if there.volumes == sources {
                Outcome::Done
            } else {
                Outcome::Taken
            };
        }
        let sizes: Option<Vec<u64>> = sources
            .iter()
            .map(|source| self.volume(source).map(|volume| volume.mib))
            .collect();
        let Some(sizes) = sizes else {
            return Outcome::Gone;
        };
        if self.used() + sizes.iter().sum::<u64>() > self.space() {
            return Outcome::Full;
        }
        if let Made::Group(id, members) = made {
            Ids::note(&mut ids.groups, id);
            for ((source, mib), member) in sources.iter().zip(sizes).zip(members) {
                Ids::note(&mut ids.snapshots, member);
                self.snapshots.push(ModelSnapshot {
                    id: member.clone(),
                    name: None,
                    volume: source.clone(),
                    mib,
                    taken: self.time,
                    group: Some(id.clone()),
                });
            }
            self.groups.push(ModelGroup {
                id: id.clone(),
                name,
                volumes: sources,
            });
        }
        Outcome::Done
    }

    /// The expected listing.
    fn listing(&self) -> Listing {
        let volume = |volume: &ModelVolume| {
            let node = volume.node.map(|node| format!("node-{node}"));
            (volume.id.clone(), volume.mib * MIB, node, volume.iops)
        };
        let snapshot = |snapshot: &ModelSnapshot| {
            let ready = self.time >= snapshot.taken + 2;
            (
                snapshot.id.clone(),
                snapshot.volume.clone(),
                ready,
                snapshot.group.clone(),
            )
        };
        let mut shown = Listing {
            volumes: self.volumes.iter().map(volume).collect(),
            snapshots: self.snapshots.iter().map(snapshot).collect(),
            groups: self.groups.iter().map(|group| group.id.clone()).collect(),
            left: (self.space() - self.used()) * MIB,
        };
        shown.volumes.sort();
        shown.snapshots.sort();
        shown.groups.sort();
        shown
    }
}

/// The ids that an operation returned.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Made {
    Nothing,
    One(String),
    Group(String, Vec<String>),
}

#[derive(Debug, PartialEq, Eq)]
struct Listing {
    volumes: Vec<(String, u64, Option<String>, Option<u64>)>,
    snapshots: Vec<(String, String, bool, Option<String>)>,
    groups: Vec<String>,
    left: u64,
}

fn named(volumes: &BTreeSet<usize>, ids: &Ids) -> BTreeSet<String> {
    volumes
        .iter()
        .map(|number| Ids::of(&ids.volumes, *number).to_owned())
        .collect()
}

// === impl TestArray ===

impl TestArray {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH + Duration::from_secs(self.time)
    }

    fn timing(&self) -> Timing {
        Timing {
            now: self.now(),
            delay: Duration::from_secs(2),
        }
    }

    fn run(&mut self, op: &Op, ids: &Ids) -> Result<(Made, Vec<Row>), Error> {
        let (now, timing) = (self.now(), self.timing());
        let array = &mut self.array;
        let nothing = |done: Done<()>| (Made::Nothing, done.rows);
        match op {
            Op::Create { name, mib, source } => {
                let done = array.create_volume(&wanted_volume(*name, *mib, *source, ids))?;
                Ok((Made::One(done.reply.id.to_string()), done.rows))
            }
            Op::Delete { volume } => array.delete_volume(Ids::of(&ids.volumes, *volume)).map(nothing),
            Op::Snapshot { name, volume } => {
                let name = format!("snapshot-{name}");
                let id = array.snapshot_id(&name);
                let wanted = CreateSnapshotParams {
                    name,
                    source: Ids::of(&ids.volumes, *volume).to_owned(),
                    parameters: BTreeMap::new(),
                    requirement: None,
                };
                let done = array.create_snapshot(&wanted, id, timing)?;
                Ok((Made::One(done.reply.id.to_string()), done.rows))
            }
            Op::DeleteSnapshot { snapshot } => array
                .delete_snapshot(Ids::of(&ids.snapshots, *snapshot))
                .map(nothing),
            Op::Group { name, volumes } => {
                let wanted = CreateGroupParams {
                    name: format!("group-{name}"),
                    sources: named(volumes, ids),
                    parameters: BTreeMap::new(),
                };
                let group_ids = array.group_ids(&wanted);
                let done = array.create_group(&wanted, group_ids, timing)?;
                let members = done.reply.group.members.values().map(ToString::to_string);
                Ok((
                    Made::Group(done.reply.group.id.to_string(), members.collect()),
                    done.rows,
                ))
            }
            Op::DeleteGroup { group, complete } => {
                let id = Ids::of(&ids.groups, *group);
                let members = members_of(array, id, *complete);
                let done = array.delete_group(id, &members)?;
                Ok((Made::Nothing, done.rows))
            }
            Op::Expand { volume, mib, limit } => {
                let range = SizeRange {
                    required: mib * MIB,
                    limit: limit * MIB,
                };
                let done = array.expand_volume(Ids::of(&ids.volumes, *volume), range, true)?;
                Ok((Made::Nothing, done.rows))
            }
            Op::Modify { volume, iops } => {
                let requested = BTreeMap::from([("iops".to_owned(), iops.to_string())]);
                array
                    .modify_volume(Ids::of(&ids.volumes, *volume), &requested)
                    .map(nothing)
            }
            Op::Publish { volume, node } => {
                let (volume, node) = (Ids::of(&ids.volumes, *volume), format!("node-{node}"));
                let done = array.publish(volume, &node, &mk_publish_params())?;
                Ok((Made::Nothing, done.rows))
            }
            Op::Unpublish { volume } => array.unpublish(Ids::of(&ids.volumes, *volume), None).map(nothing),
            Op::Limit { node, limit } => {
                let settings = NodeSettings {
                    limit: Some(*limit),
                    ..NodeSettings::default()
                };
                Ok(nothing(array.set_node(&format!("node-{node}"), settings)))
            }
            Op::Resize { mib } => array.resize_pool(POOL, mib * MIB).map(nothing),
            Op::Wait => Ok(nothing(finish_due(array, now))),
            Op::Restart => Ok((Made::Nothing, Vec::new())),
        }
    }

    fn listing(&self) -> Listing {
        let array = &self.array;
        let volumes = array.list(0, None).unwrap().entries.into_iter().map(|entry| {
            let volume = array.volume(entry.spec.id.as_str()).unwrap();
            let node = entry.nodes.first().map(ToString::to_string);
            let iops = volume.qos.get("iops").map(|iops| iops.parse().unwrap());
            (entry.spec.id.to_string(), entry.spec.capacity_bytes, node, iops)
        });
        let listed = array.list_snapshots(&SnapshotFilter::default(), 0, None).unwrap();
        let snapshots = listed.entries.iter().map(|snapshot| {
            let group = snapshot.group.as_ref().map(ToString::to_string);
            (
                snapshot.id.to_string(),
                snapshot.source.to_string(),
                snapshot.is_ready(),
                group,
            )
        });
        Listing {
            volumes: volumes.collect(),
            snapshots: snapshots.collect(),
            groups: array.groups().map(|group| group.id.to_string()).collect(),
            left: array.capacity_for(None, None).unwrap().available,
        }
    }
}

/// Makes the snapshots ready whose copies have ended.
fn finish_due(array: &mut Array, now: Timestamp) -> Done<()> {
    let due = array.snapshots().filter(|snapshot| {
        let ready_after = snapshot.ready_after;
        ready_after.is_some_and(|after| snapshot.created + after <= now)
    });
    let due: Vec<_> = due.map(|snapshot| snapshot.id.clone()).collect();
    array.finish_snapshots(&due)
}

fn wanted_volume(name: u8, mib: u64, source: Option<(bool, usize)>, ids: &Ids) -> CreateVolumeParams {
    let source = source.map(|(snapshot, number)| match snapshot {
        true => Source::Snapshot(Ids::of(&ids.snapshots, number).into()),
        false => Source::Volume(Ids::of(&ids.volumes, number).into()),
    });
    CreateVolumeParams {
        name: format!("volume-{name}"),
        size: SizeRange {
            required: mib * MIB,
            limit: 0,
        },
        capabilities: vec![mk_publish_params().capability],
        source,
        ..CreateVolumeParams::default()
    }
}

/// The snapshots of a group, or all but one of them.
fn members_of(array: &Array, group: &str, complete: bool) -> Vec<String> {
    let members = array
        .group(group, &[])
        .map(|members| members.group.members.clone());
    let members = members.unwrap_or_default();
    let count = members.len() - usize::from(!complete && !members.is_empty());
    members.values().take(count).map(ToString::to_string).collect()
}

fn mk_publish_params() -> PublishParams {
    PublishParams {
        capability: Capability {
            access: Access::Block,
            mode: AccessMode::SingleNodeWriter,
        },
        readonly: false,
    }
}

fn settings() -> Settings {
    Settings {
        nodes: Settings::numbered_nodes(2),
        pools: vec![Pool {
            name: PoolName::from(POOL),
            segments: Segments::default(),
            capacity: SPACE * MIB,
        }],
        sizes: csi_mock_driver::array::SizeRule {
            min: MIB,
            default: MIB,
            max: 100 * MIB,
        },
        ..Settings::default()
    }
}

fn to_outcome<T>(outcome: &Result<T, Error>) -> Outcome {
    match outcome {
        Ok(_) => Outcome::Done,
        Err(
            Error::VolumeNotFound { .. }
            | Error::NodeNotFound { .. }
            | Error::SnapshotNotFound { .. }
            | Error::GroupNotFound { .. }
            | Error::PoolNotFound { .. },
        ) => Outcome::Gone,
        Err(Error::NameTaken { .. }) => Outcome::Taken,
        Err(Error::InsufficientCapacity { .. }) => Outcome::Full,
        Err(Error::NotReady { .. }) => Outcome::NotReady,
        Err(Error::Illegal { .. }) => Outcome::Illegal,
        Err(Error::SizeOutOfRange { .. }) => Outcome::Size,
        Err(Error::InUse { .. } | Error::PoolInUse { .. }) => Outcome::InUse,
        Err(Error::NodeFull { .. }) => Outcome::NodeFull,
        Err(Error::AttachedElsewhere { .. }) => Outcome::Elsewhere,
        Err(
            error @ (Error::NotSupported { .. }
            | Error::AttachedDifferently { .. }
            | Error::ForeignToken
            | Error::HasDependants { .. }
            | Error::Online { .. }
            | Error::CannotGroup { .. }
            | Error::OutOfReach { .. }
            | Error::PoolTooLarge { .. }),
        ) => panic!("none of these operations can meet {error:?}"),
    }
}

fn operation() -> impl Strategy<Value = Op> {
    let one = 0_usize..64;
    let name = 0_u8..4;
    let node = 0_u8..2;
    prop_oneof![
        4 => (name.clone(), 0_u64..6, prop::option::of((any::<bool>(), one.clone())))
            .prop_map(|(name, mib, source)| Op::Create { name, mib, source }),
        2 => one.clone().prop_map(|volume| Op::Delete { volume }),
        4 => (name.clone(), one.clone()).prop_map(|(name, volume)| Op::Snapshot { name, volume }),
        2 => one.clone().prop_map(|snapshot| Op::DeleteSnapshot { snapshot }),
        3 => (name, prop::collection::btree_set(one.clone(), 1..3))
            .prop_map(|(name, volumes)| Op::Group { name, volumes }),
        2 => (one.clone(), any::<bool>()).prop_map(|(group, complete)| Op::DeleteGroup { group, complete }),
        3 => (one.clone(), 1_u64..12, 0_u64..12)
            .prop_map(|(volume, mib, limit)| Op::Expand { volume, mib, limit }),
        2 => (one.clone(), 0_u64..3).prop_map(|(volume, iops)| Op::Modify { volume, iops }),
        4 => (one.clone(), node.clone()).prop_map(|(volume, node)| Op::Publish { volume, node }),
        2 => one.prop_map(|volume| Op::Unpublish { volume }),
        1 => (node, 0_usize..3).prop_map(|(node, limit)| Op::Limit { node, limit }),
        2 => (0_u64..60).prop_map(|mib| Op::Resize { mib }),
        2 => Just(Op::Wait),
        1 => Just(Op::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn array_matches_the_model(ops in prop::collection::vec(operation(), 1..80)) {
        let mut test_array = TestArray { array: Array::new(settings(), 7), rows: Vec::new(), time: 0 };
        let (mut model, mut ids) = (Model::default(), Ids::new());
        for op in ops {
            match op {
                Op::Wait => test_array.time += 1,
                Op::Restart => test_array.array = Array::from_image(settings(), test_array.array.image()),
                Op::Create { .. }
                | Op::Delete { .. }
                | Op::Snapshot { .. }
                | Op::DeleteSnapshot { .. }
                | Op::Group { .. }
                | Op::DeleteGroup { .. }
                | Op::Expand { .. }
                | Op::Modify { .. }
                | Op::Publish { .. }
                | Op::Unpublish { .. }
                | Op::Limit { .. }
                | Op::Resize { .. } => {}
            }
            let outcome = test_array.run(&op, &ids);
            let again = test_array.run(&op, &ids);
            match (&outcome, &again) {
                (Ok((made, change)), Ok((repeated, second))) => {
                    test_array.rows.extend(change.clone());
                    prop_assert_eq!(made, repeated, "repeated: {:?}", op);
                    prop_assert_eq!(second, &Vec::new(), "repeated: {:?}", op);
                }
                (Err(first), Err(second)) => prop_assert_eq!(first, second, "repeated: {:?}", op),
                _ => prop_assert!(false, "{:?}: {:?}, then {:?}", op, outcome, again),
            }
            let made = outcome.as_ref().map_or(&Made::Nothing, |(made, _)| made).clone();
            let expected = model.act(&op, &mut ids, &made);
            prop_assert_eq!(to_outcome(&outcome), expected, "{:?}", op);
            prop_assert_eq!(test_array.listing(), model.listing(), "after {:?}", op);
        }

        let mut replayed = Array::new(settings(), 7);
        for row in &test_array.rows {
            let text = serde_json::to_string(row).unwrap();
            replayed.apply(serde_json::from_str(&text).unwrap());
        }
        prop_assert_eq!(replayed.image(), test_array.array.image());
    }
}
