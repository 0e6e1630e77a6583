//! The array as a start finds it: stored, or lost in part.

use serde::{Deserialize, Serialize};

use super::database::Database;
use super::error::OpenError;
use crate::array::{Array, Change, Counters, Image, RowId, Settings};
use crate::fault::Loses;

/// What the array has lost when it is brought back the next time.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mark {
    pub(super) loses: Loses,
    /// The array to come back with; there if changes are lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) backup: Option<Image>,
}

// === impl Mark ===

impl Mark {
    pub(super) fn is_whole(&self) -> bool {
        (self.loses == Loses::Changes) == self.backup.is_some()
    }
}

/// The array as it is stored; none if none is.
pub(super) fn stored_image(database: &Database) -> Result<Option<Image>, OpenError> {
    let [counters, volumes, snapshots, groups, sick, storage, nodes, pools] = RowId::TABLES;
    let Some(counters) = database.get::<Counters>(counters, "")? else {
        return Ok(None);
    };
    Ok(Some(Image {
        volumes: database.all(volumes)?,
        snapshots: database.all(snapshots)?,
        groups: database.all(groups)?,
        sick: database.all(sick)?,
        storage: database.all(storage)?,
        nodes: database.all(nodes)?,
        pools: database.all(pools)?,
        ..Image::empty(counters)
    }))
}

/// The array with what it has not lost.
pub(super) fn restore(
    settings: Settings,
    epoch: u128,
    image: Option<Image>,
    changes: Vec<Change>,
    mark: Option<Mark>,
) -> Array {
    let begin = |image: Option<Image>| match image {
        Some(image) => Array::from_image(settings, image),
        None => Array::new(settings, epoch),
    };
    let loses_attachments = match mark {
        Some(Mark {
            loses: Loses::Everything,
            ..
        }) => return begin(None),
        Some(Mark {
            loses: Loses::Changes,
            backup,
        }) => return begin(backup),
        Some(Mark {
            loses: Loses::Attachments,
            ..
        }) => true,
        None => false,
    };
    let mut array = begin(image);
    for change in changes {
        array.apply(change);
    }
    if loses_attachments {
        array.lose_attachments();
    }
    array
}
