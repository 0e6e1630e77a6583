//! Reading volumes, snapshots and sick volumes page by page.
//!
//! Everything is listed in the order of ids, and a token says after which id the next page begins.
//! So what is there during the whole walk is seen exactly once, whatever comes and goes meanwhile, also
//! when the very thing a token names is gone. A token carries a mark made with the array's epoch and
//! the listing's kind: anything this array did not give out for this listing is refused.

use std::ops::Bound;
use std::sync::Arc;

use super::volume::Spec;
use super::{Array, Error, NodeId};

/// One page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T = Entry> {
    /// What was asked for, sorted by id.
    pub entries: Vec<T>,
    /// How to ask for the next page; none at the end.
    pub next_token: Option<String>,
}

/// A volume and the nodes it is published to, sorted by id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The volume.
    pub spec: Arc<Spec>,
    /// Where it is attached.
    pub nodes: Vec<NodeId>,
}

/// A page that is being made.
pub(super) struct Listing<'a> {
    array: &'a Array,
    kind: &'a str,
    after: Option<&'a str>,
    size: usize,
}

// === impl Array ===

impl Array {
    /// The page of volumes after `token`, or the first one. `max_entries` 0 leaves the size to the array.
    ///
    /// # Errors
    /// If the token is not one this array gave out for this listing.
    pub fn list(&self, max_entries: usize, token: Option<&str>) -> Result<Page, Error> {
        let listing = Listing::begin(self, "page", max_entries, token)?;
        let rest = self.volumes.range::<str, _>(listing.rest());
        let entries = rest.map(|(_, volume)| Entry {
            spec: volume.spec.clone(),
            nodes: volume.attachments.keys().cloned().collect(),
        });
        Ok(listing.page(entries, |entry| entry.spec.id.as_str()))
    }

    fn token(&self, kind: &str, last: &str) -> String {
        format!("{:016x}.{last}", self.mark(&format!("{kind} after/{last}")))
    }
}

// === impl Listing ===

impl<'a> Listing<'a> {
    /// A page after `token`.
    pub(super) fn begin(
        array: &'a Array,
        kind: &'a str,
        max_entries: usize,
        token: Option<&'a str>,
    ) -> Result<Self, Error> {
        let after = match token {
            None => None,
            Some(token) => {
                let (_, last) = token.split_once('.').ok_or(Error::ForeignToken)?;
                if array.token(kind, last) != token {
                    return Err(Error::ForeignToken);
                }
                Some(last)
            }
        };
        let asked = if max_entries == 0 { usize::MAX } else { max_entries };
        let size = asked.min(array.settings.page_limit.unwrap_or(usize::MAX));
        Ok(Self {
            array,
            kind,
            after,
            size,
        })
    }

    /// The ids that are still to come.
    pub(super) fn rest(&self) -> (Bound<&'a str>, Bound<&'a str>) {
        let after = self.after.map_or(Bound::Unbounded, Bound::Excluded);
        (after, Bound::Unbounded)
    }

    /// Takes the page from what is still to come.
    pub(super) fn page<T>(
        self,
        mut rest: impl Iterator<Item = T>,
        id: impl for<'t> Fn(&'t T) -> &'t str,
    ) -> Page<T> {
        let entries: Vec<T> = rest.by_ref().take(self.size).collect();
        let next_token = match (entries.last(), rest.next()) {
            (Some(last), Some(_)) => Some(self.array.token(self.kind, id(last))),
            _ => None,
        };
        Page { entries, next_token }
    }
}
