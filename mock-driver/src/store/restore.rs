//! Restores the array, with or without a state loss.

use serde::{Deserialize, Serialize};

use super::database::Database;
use super::error::OpenError;
use crate::array::{Array, Counters, Image, RowId, Settings};
use crate::fault::Loses;

/// The state loss of the next start.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mark {
    pub(super) loses: Loses,
    /// The array to restore, if the loss discards changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) backup: Option<Image>,
}

// === impl Mark ===

impl Mark {
    pub(super) fn is_whole(&self) -> bool {
        (self.loses == Loses::Changes) == self.backup.is_some()
    }
}

pub(super) fn stored_image(database: &Database) -> Result<Option<Image>, OpenError> {
    let [
        counters,
        volumes,
        snapshots,
        groups,
        unhealthy,
        storage,
        nodes,
        pools,
    ] = RowId::TABLES;
    let Some(counters) = database.get::<Counters>(counters, "")? else {
        return Ok(None);
    };
    Ok(Some(Image {
        volumes: database.all(volumes)?,
        snapshots: database.all(snapshots)?,
        groups: database.all(groups)?,
        unhealthy: database.all(unhealthy)?,
        storage: database.all(storage)?,
        nodes: database.all(nodes)?,
        pools: database.all(pools)?,
        ..Image::empty(counters)
    }))
}

/// The array without the lost state.
pub(super) fn restore(settings: Settings, epoch: u128, image: Option<Image>, mark: Option<Mark>) -> Array {
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
    if loses_attachments {
        array.lose_attachments();
    }
    array
}
