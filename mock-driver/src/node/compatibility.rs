//! Which calls for a volume are compatible with each other: the rules of NodeStageVolume and NodePublishVolume,
//! decided from the records alone.

use tonic::Code;

use super::error::Error;
use super::record::{Map, Progress, Record};
use crate::array::{AccessMode, Capability};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compatibility {
    /// An earlier call with the same arguments succeeded.
    Repeat,
    /// No earlier call succeeded.
    Proceed,
}

/// Whether an access mode allows a second target on the node.
fn is_shared(mode: AccessMode) -> bool {
    mode.is_multi_node() || mode == AccessMode::SingleNodeMultiWriter
}

/// Compares a call to stage or publish with the records of the volume and of the path.
pub(super) fn compare(
    there: Option<&Record>,
    of_volume: &[Record],
    wanted: &Record,
) -> Result<Compatibility, Error> {
    if let Some(there) = there {
        if there.volume != wanted.volume || there.is_staged() != wanted.is_staged() {
            return Err(Error::Taken {
                path: there.path.clone(),
                volume: there.volume.clone(),
                done: there.done(),
            });
        }
        // No response was sent for an unfinished call, so its arguments are not binding.
        if there.is_done() {
            return match difference(there, wanted) {
                None => Ok(Compatibility::Repeat),
                Some(field) => Err(Error::Otherwise {
                    volume: there.volume.clone(),
                    done: there.done(),
                    path: there.path.clone(),
                    field,
                }),
            };
        }
    }
    // Until a call to undo it has succeeded, a volume may still be in use.
    let others = || {
        of_volume.iter().filter(|other| {
            other.progress != Progress::Doing
                && other.path != wanted.path
                && other.is_staged() == wanted.is_staged()
        })
    };
    if wanted.is_staged() {
        return match others().next() {
            None => Ok(Compatibility::Proceed),
            Some(other) => Err(Error::StagedElsewhere {
                volume: other.volume.clone(),
                path: other.path.clone(),
            }),
        };
    }
    for other in others() {
        let modes = [other.capability.mode, wanted.capability.mode];
        if let Some(mode) = modes.into_iter().find(|mode| !is_shared(*mode)) {
            return Err(Error::NotShared {
                volume: other.volume.clone(),
                target: other.path.clone(),
                mode: mode.name(),
            });
        }
    }
    Ok(Compatibility::Proceed)
}

/// Checks that the capability of the staged volume covers that of the publish call.
pub(super) fn covered(
    volume: &str,
    done: &'static str,
    held: &Capability,
    asked: &Capability,
) -> Result<(), Error> {
    if held.covers(asked) {
        return Ok(());
    }
    Err(Error::failed_precondition(format!(
        "volume_capability: volume \"{volume}\" was {done} for {held}, which does not cover {asked}"
    )))
}

/// Checks that the publish context is the one that ControllerPublishVolume returned.
pub(super) fn same_context(volume: &str, expected: &Map, given: &Map) -> Result<(), Error> {
    let fault = |key: &String| match (expected.get(key), given.get(key)) {
        (Some(expected), None) => Some(format!("is missing, must be \"{expected}\"")),
        (Some(expected), Some(given)) if given != expected => {
            Some(format!("must be \"{expected}\", is \"{given}\""))
        }
        (None, Some(_)) => Some("must not be there".to_owned()),
        (Some(_), Some(_)) | (None, None) => None,
    };
    let mut keys = expected.keys().chain(given.keys());
    match keys.find_map(|key| Some((key, fault(key)?))) {
        None => Ok(()),
        Some((key, fault)) => Err(Error::refused(
            Code::InvalidArgument,
            format!(
                "publish_context[{key}]: {fault}; pass the publish_context that ControllerPublishVolume returned for \
                 volume \"{volume}\""
            ),
        )),
    }
}

/// Whether an argument of a call differs from that of the earlier call for the same path.
pub(super) fn differ(there: &Record, wanted: &Record) -> bool {
    difference(there, wanted).is_some()
}

/// The first argument of a call that differs from that of the earlier call for the same path.
fn difference(there: &Record, wanted: &Record) -> Option<&'static str> {
    if there.capability != wanted.capability {
        Some("volume_capability")
    } else if there.readonly != wanted.readonly {
        Some("readonly")
    } else if there.staging() != wanted.staging() {
        Some("staging_target_path")
    } else if there.publish_context != wanted.publish_context {
        Some("publish_context")
    } else if there.volume_context != wanted.volume_context {
        Some("volume_context")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::Access;
    use crate::node::record::Role;

    fn mk_published(path: &str, mode: AccessMode, readonly: bool) -> Record {
        Record {
            volume: "vol-0".to_owned(),
            path: path.to_owned(),
            role: Role::Published {
                staging: "/staging".to_owned(),
                ours: false,
            },
            capability: Capability {
                access: Access::Block,
                mode,
            },
            readonly,
            publish_context: Map::new(),
            volume_context: Map::new(),
            inline: None,
            mount_source: None,
            progress: Progress::Done,
        }
    }

    /// The two tables of the specification: for each mode, the same or another target with the same or
    /// other arguments.
    #[test]
    fn second_publish_follows_the_tables_of_the_specification() {
        for mode in AccessMode::ALL {
            let first = mk_published("/t1", mode, false);
            for (path, readonly) in [("/t1", false), ("/t1", true), ("/t2", false), ("/t2", true)] {
                let second = mk_published(path, mode, readonly);
                let there = (path == "/t1").then_some(&first);
                let compatibility = compare(there, std::slice::from_ref(&first), &second);
                let case = format!("{} {path} readonly={readonly}", mode.name());
                match (path, readonly) {
                    ("/t1", false) => assert_eq!(compatibility.unwrap(), Compatibility::Repeat, "{case}"),
                    ("/t1", _) => assert!(matches!(compatibility, Err(Error::Otherwise { .. })), "{case}"),
                    _ if mode.is_multi_node() || mode == AccessMode::SingleNodeMultiWriter => {
                        assert_eq!(compatibility.unwrap(), Compatibility::Proceed, "{case}");
                    }
                    _ => assert!(matches!(compatibility, Err(Error::NotShared { .. })), "{case}"),
                }
            }
        }
    }

    #[test]
    fn one_mode_that_does_not_share_is_enough_either_way() {
        for (first, second) in [
            (AccessMode::SingleNodeWriter, AccessMode::SingleNodeMultiWriter),
            (
                AccessMode::MultiNodeMultiWriter,
                AccessMode::SingleNodeSingleWriter,
            ),
        ] {
            let first = mk_published("/t1", first, false);
            let second = mk_published("/t2", second, false);
            assert!(compare(None, std::slice::from_ref(&first), &second).is_err());
            assert!(compare(None, std::slice::from_ref(&second), &first).is_err());
        }
    }

    #[test]
    fn unfinished_records_do_not_constrain_and_paths_have_one_owner() {
        let unfinished = mk_published("/t1", AccessMode::SingleNodeWriter, false).when(Progress::Doing);
        let other = mk_published("/t1", AccessMode::SingleNodeWriter, true);
        let compatibility = compare(Some(&unfinished), std::slice::from_ref(&unfinished), &other);
        assert_eq!(compatibility.unwrap(), Compatibility::Proceed);

        let elsewhere = mk_published("/t2", AccessMode::SingleNodeWriter, false);
        let compatibility = compare(None, std::slice::from_ref(&unfinished), &elsewhere);
        assert_eq!(compatibility.unwrap(), Compatibility::Proceed);

        let foreign = Record {
            volume: "vol-1".to_owned(),
            ..other.clone()
        };
        assert!(matches!(
            compare(Some(&foreign), &[], &other),
            Err(Error::Taken { .. })
        ));
        let staged = Record {
            role: Role::Staged,
            ..other.clone()
        };
        assert!(matches!(
            compare(Some(&staged), &[], &other),
            Err(Error::Taken { .. })
        ));
    }

    #[test]
    fn unfinished_undo_blocks_other_paths() {
        let undoing = mk_published("/t1", AccessMode::SingleNodeSingleWriter, false).when(Progress::Undoing);
        let other = mk_published("/t2", AccessMode::SingleNodeSingleWriter, false);
        let compatibility = compare(None, std::slice::from_ref(&undoing), &other);
        assert!(matches!(compatibility, Err(Error::NotShared { .. })));

        let [undoing, other] = [undoing, other].map(|record| Record {
            role: Role::Staged,
            ..record
        });
        let compatibility = compare(None, std::slice::from_ref(&undoing), &other);
        assert!(matches!(compatibility, Err(Error::StagedElsewhere { .. })));
        // There, it can be brought back.
        let compatibility = compare(Some(&undoing), std::slice::from_ref(&undoing), &undoing);
        assert_eq!(compatibility.unwrap(), Compatibility::Proceed);
    }
}
