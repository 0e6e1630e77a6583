//! The array compared with a naive model: random operations, each repeated. Responses and listings are compared after every
//! step, and the changes are replayed at the end.

use std::collections::BTreeMap;

use csi_mock_driver::array::{
    Access, AccessMode, Array, Capability, CreateVolumeParams, Done, Error, PublishParams, Row, Settings,
    SizeRange, SizeRule,
};
use proptest::prelude::*;
use proptest::sample::select;

const LIMIT: usize = 2;
const NODES: [&str; 4] = ["node-0", "node-1", "node-2", "gone"];

/// An operation; volumes are selected among all ids so far, including deleted ones.
#[derive(Clone, Debug)]
enum Op {
    Create {
        name: usize,
        mib: u64,
        capabilities: Vec<Capability>,
        tier: bool,
    },
    Delete {
        volume: usize,
    },
    Publish {
        volume: usize,
        node: &'static str,
        hold: PublishParams,
    },
    Unpublish {
        volume: usize,
        node: Option<&'static str>,
    },
}

/// The outcome, as far as a caller can distinguish refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    VolumeGone,
    NodeGone,
    NameTaken,
    InUse,
    NotSupported,
    OtherWay,
    Elsewhere,
    Full,
    NoSuchSize,
    Token,
    /// A refusal that none of these operations can cause.
    NotHere,
}

/// The naive model: a list of volumes that is searched linearly.
#[derive(Default)]
struct Model {
    volumes: Vec<Modelled>,
}

struct Modelled {
    id: String,
    name: String,
    bytes: u64,
    /// `None`: all capabilities.
    capabilities: Option<Vec<Capability>>,
    tier: bool,
    holders: BTreeMap<&'static str, PublishParams>,
}

// === impl Model ===

impl Model {
    fn find(&self, id: &str) -> Option<&Modelled> {
        self.volumes.iter().find(|volume| volume.id == id)
    }

    /// The expected outcome of an operation; does not change the state, unlike [`Model::apply`].
    fn expected(&self, op: &Op, ids: &[String]) -> Outcome {
        match op {
            Op::Create {
                name,
                mib,
                capabilities,
                tier,
            } => {
                let name = format!("name-{name}");
                let Some(volume) = self.volumes.iter().find(|volume| volume.name == name) else {
                    return if *mib > 64 {
                        Outcome::NoSuchSize
                    } else {
                        Outcome::Done
                    };
                };
                let same_uses = volume.capabilities.as_ref().is_some_and(|made| {
                    made.iter().all(|use_| capabilities.contains(use_))
                        && capabilities.iter().all(|use_| made.contains(use_))
                });
                if volume.bytes >= mib << 20 && same_uses && volume.tier == *tier {
                    Outcome::Done
                } else {
                    Outcome::NameTaken
                }
            }
            Op::Delete { volume } => match self.find(&ids[*volume]) {
                Some(volume) if !volume.holders.is_empty() => Outcome::InUse,
                _ => Outcome::Done,
            },
            Op::Publish { volume, node, hold } => self.expected_publish(&ids[*volume], node, hold),
            Op::Unpublish { .. } => Outcome::Done,
        }
    }

    fn expected_publish(&self, id: &str, node: &str, hold: &PublishParams) -> Outcome {
        let Some(volume) = self.find(id) else {
            return Outcome::VolumeGone;
        };
        if node == "gone" {
            return Outcome::NodeGone;
        }
        if let Some(held) = volume.holders.get(node) {
            return if held == hold {
                Outcome::Done
            } else {
                Outcome::OtherWay
            };
        }
        if let Some(made) = &volume.capabilities
            && !made.iter().any(|made| made.covers(&hold.capability))
        {
            return Outcome::NotSupported;
        }
        let all: Vec<&PublishParams> = volume.holders.values().chain([hold]).collect();
        if !may_be_held_together(&all) {
            return Outcome::Elsewhere;
        }
        let there = self
            .volumes
            .iter()
            .filter(|volume| volume.holders.contains_key(node))
            .count();
        if there >= LIMIT {
            Outcome::Full
        } else {
            Outcome::Done
        }
    }

    fn apply(&mut self, op: &Op, ids: &[String], created: Option<String>) {
        match op {
            Op::Create {
                name,
                mib,
                capabilities,
                tier,
            } => {
                let id = created.expect("a created volume must have an id");
                if self.find(&id).is_none() {
                    self.volumes.push(Modelled {
                        id,
                        name: format!("name-{name}"),
                        bytes: (mib << 20).max(1 << 20),
                        capabilities: Some(capabilities.clone()),
                        tier: *tier,
                        holders: BTreeMap::new(),
                    });
                }
            }
            Op::Delete { volume } => self.volumes.retain(|other| other.id != ids[*volume]),
            Op::Publish { volume, node, hold } => {
                let volume = self
                    .volumes
                    .iter_mut()
                    .find(|other| other.id == ids[*volume])
                    .unwrap();
                volume.holders.insert(node, hold.clone());
            }
            Op::Unpublish { volume, node } => {
                for volume in self.volumes.iter_mut().filter(|other| other.id == ids[*volume]) {
                    volume
                        .holders
                        .retain(|holder, _| node.is_some_and(|node| node != *holder));
                }
            }
        }
    }

    fn listing(&self) -> Vec<(String, Vec<String>)> {
        let mut all: Vec<_> = self
            .volumes
            .iter()
            .map(|volume| {
                let nodes = volume.holders.keys().map(ToString::to_string).collect();
                (volume.id.clone(), nodes)
            })
            .collect();
        all.sort();
        all
    }
}

/// A second implementation of the access modes' rules, for the whole set of nodes.
fn may_be_held_together(holds: &[&PublishParams]) -> bool {
    use AccessMode::{MultiNodeMultiWriter, MultiNodeReaderOnly, MultiNodeSingleWriter};
    if holds.len() == 1 {
        return true;
    }
    let modes: Vec<AccessMode> = holds.iter().map(|hold| hold.capability.mode).collect();
    let multi = [MultiNodeMultiWriter, MultiNodeReaderOnly, MultiNodeSingleWriter];
    if !modes.iter().all(|mode| multi.contains(mode)) {
        return false;
    }
    let writers: Vec<AccessMode> = holds
        .iter()
        .filter(|hold| !hold.readonly && hold.capability.mode != MultiNodeReaderOnly)
        .map(|hold| hold.capability.mode)
        .collect();
    let readers_are_promised_quiet = modes.contains(&MultiNodeReaderOnly);
    let one_writer_is_promised = modes.contains(&MultiNodeSingleWriter);
    let quiet_is_kept = !readers_are_promised_quiet || writers.is_empty();
    let one_is_kept = !one_writer_is_promised || matches!(writers[..], [] | [MultiNodeSingleWriter]);
    quiet_is_kept && one_is_kept
}

fn run(array: &mut Array, op: &Op, ids: &[String]) -> Result<(Option<String>, Vec<Row>), Error> {
    let nothing = |done: Done<()>| (None, done.rows);
    match op {
        Op::Create {
            name,
            mib,
            capabilities,
            tier,
        } => {
            let wanted = CreateVolumeParams {
                name: format!("name-{name}"),
                size: SizeRange {
                    required: mib << 20,
                    limit: 0,
                },
                capabilities: capabilities.clone(),
                parameters: tier
                    .then(|| ("tier".to_owned(), "gold".to_owned()))
                    .into_iter()
                    .collect(),
                ..CreateVolumeParams::default()
            };
            array
                .create_volume(&wanted)
                .map(|done| (Some(done.reply.id.to_string()), done.rows))
        }
        Op::Delete { volume } => array.delete_volume(&ids[*volume]).map(nothing),
        Op::Publish { volume, node, hold } => array
            .publish(&ids[*volume], node, hold)
            .map(|done| (Some(format!("{:?}", done.reply)), done.rows)),
        Op::Unpublish { volume, node } => array.unpublish(&ids[*volume], *node).map(nothing),
    }
}

fn to_outcome<T>(outcome: &Result<T, Error>) -> Outcome {
    match outcome {
        Ok(_) => Outcome::Done,
        Err(Error::VolumeNotFound { .. }) => Outcome::VolumeGone,
        Err(Error::NodeNotFound { .. }) => Outcome::NodeGone,
        Err(Error::NameTaken { .. }) => Outcome::NameTaken,
        Err(Error::SizeOutOfRange { .. }) => Outcome::NoSuchSize,
        Err(Error::InUse { .. }) => Outcome::InUse,
        Err(Error::NotSupported { .. }) => Outcome::NotSupported,
        Err(Error::AttachedDifferently { .. }) => Outcome::OtherWay,
        Err(Error::AttachedElsewhere { .. }) => Outcome::Elsewhere,
        Err(Error::NodeFull { .. }) => Outcome::Full,
        Err(Error::ForeignToken) => Outcome::Token,
        Err(
            Error::SnapshotNotFound { .. }
            | Error::GroupNotFound { .. }
            | Error::Illegal { .. }
            | Error::InsufficientCapacity { .. }
            | Error::NotReady { .. }
            | Error::HasDependants { .. }
            | Error::Online { .. }
            | Error::CannotGroup { .. }
            | Error::OutOfReach { .. }
            | Error::PoolNotFound { .. }
            | Error::PoolInUse { .. }
            | Error::PoolTooLarge { .. },
        ) => Outcome::NotHere,
    }
}

fn settings() -> Settings {
    Settings {
        nodes: Settings::numbered_nodes(3),
        attach_limit: Some(LIMIT),
        sizes: SizeRule {
            min: 1 << 20,
            default: 1 << 20,
            max: 64 << 20,
        },
        ..Settings::default()
    }
}

fn listing(array: &Array) -> Vec<(String, Vec<String>)> {
    let entries = array.list(0, None).unwrap().entries;
    entries
        .into_iter()
        .map(|entry| {
            (
                entry.spec.id.to_string(),
                entry.nodes.iter().map(ToString::to_string).collect(),
            )
        })
        .collect()
}

// === random operations ===

fn capability() -> impl Strategy<Value = Capability> {
    let mount = |fs_type: &str| Access::Mount {
        fs_type: fs_type.into(),
        flags: vec![],
        group: String::new(),
    };
    let access = select(vec![Access::Block, mount(""), mount("ext4")]);
    // Multi-node modes are twice as likely, because they have more rules.
    let multi = &AccessMode::ALL[2..5];
    let modes: Vec<AccessMode> = AccessMode::ALL
        .iter()
        .chain(multi)
        .chain(multi)
        .copied()
        .collect();
    (access, select(modes)).prop_map(|(access, mode)| Capability { access, mode })
}

fn operation() -> impl Strategy<Value = Op> {
    let volume = 0_usize..64;
    let node = select(NODES.to_vec());
    prop_oneof![
        2 => (0_usize..3, 0_u64..66, prop::collection::vec(capability(), 1..3), any::<bool>())
            .prop_map(|(name, mib, capabilities, tier)| Op::Create { name, mib, capabilities, tier }),
        1 => volume.clone().prop_map(|volume| Op::Delete { volume }),
        6 => (volume.clone(), node.clone(), capability(), any::<bool>()).prop_map(
            |(volume, node, capability, readonly)| Op::Publish { volume, node, hold: PublishParams { capability, readonly } }
        ),
        3 => (volume, prop::option::weighted(0.8, node)).prop_map(|(volume, node)| Op::Unpublish { volume, node }),
    ]
}

fn aimed(op: Op, ids: usize) -> Op {
    match op {
        Op::Create { .. } => op,
        Op::Delete { volume } => Op::Delete { volume: volume % ids },
        Op::Publish { volume, node, hold } => Op::Publish {
            volume: volume % ids,
            node,
            hold,
        },
        Op::Unpublish { volume, node } => Op::Unpublish {
            volume: volume % ids,
            node,
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn array_matches_the_model(ops in prop::collection::vec(operation(), 1..60)) {
        let mut array = Array::new(settings(), 7);
        array.add_initial_volumes(2);
        let beginning = array.image();
        let mut model = Model::default();
        let mut ids: Vec<String> = vec!["never-was".to_owned()];
        for id in ["vol-0", "vol-1"] {
            ids.push(id.to_owned());
            model.volumes.push(Modelled {
                id: id.to_owned(),
                name: String::new(),
                bytes: 1 << 20,
                capabilities: None,
                tier: false,
                holders: BTreeMap::new(),
            });
        }
        let mut rows = Vec::new();
        for op in ops {
            let op = aimed(op, ids.len());
            let expected = model.expected(&op, &ids);
            let outcome = run(&mut array, &op, &ids);
            prop_assert_eq!(to_outcome(&outcome), expected, "{:?}", op);

            match &outcome {
                Ok((reply, change)) => {
                    rows.extend(change.clone());
                    let created = reply.clone().filter(|_| matches!(op, Op::Create { .. }));
                    if let Some(id) = created.clone().filter(|id| !ids.contains(id)) {
                        ids.push(id);
                    }
                    model.apply(&op, &ids, created);
                    let again = run(&mut array, &op, &ids);
                    prop_assert_eq!(again, Ok((reply.clone(), Vec::new())), "repeated: {:?}", op);
                }
                Err(error) => {
                    let again = run(&mut array, &op, &ids);
                    prop_assert_eq!(again.as_ref().err(), Some(error), "repeated: {:?}", op);
                }
            }
            prop_assert_eq!(listing(&array), model.listing(), "after {:?}", op);
            for node in NODES {
                let held: Vec<_> = array.attached_to(node).map(ToString::to_string).collect();
                let listed = model.listing().into_iter().filter(|(_, nodes)| nodes.iter().any(|n| n == node));
                prop_assert_eq!(held, listed.map(|(id, _)| id).collect::<Vec<_>>(), "{}", node);
            }
        }

        let mut replayed = Array::from_image(settings(), beginning);
        for row in rows {
            let text = serde_json::to_string(&row).unwrap();
            replayed.apply(serde_json::from_str(&text).unwrap());
        }
        prop_assert_eq!(replayed.image(), array.image());
        prop_assert_eq!(Array::from_image(settings(), array.image()).image(), array.image());
    }
}
