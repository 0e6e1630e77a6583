//! Lists volumes, snapshots and health issues in pages.
//!
//! Lists are sorted by id, and a token contains the id after which the next page begins. So each object that exists during
//! the whole list is returned exactly once, whatever is created or deleted meanwhile, even if the id of the token is
//! deleted. A token has a checksum keyed by the array's id_seed and the kind of list; any other token is refused.

use std::ops::Bound;
use std::sync::Arc;

use super::{Array, Error, HealthIssue, NodeId, Spec, Volume};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T = Entry> {
    pub entries: Vec<T>,
    /// Token of the next page; `None` on the last one.
    pub next_token: Option<String>,
}

/// A volume and the nodes that have it attached, sorted by id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub spec: Arc<Spec>,
    pub nodes: Vec<NodeId>,
    pub issues: Vec<HealthIssue>,
}

// === impl Entry ===

impl Entry {
    pub(super) fn id(&self) -> &str {
        self.spec.id.as_str()
    }
}

impl From<&Volume> for Entry {
    fn from(volume: &Volume) -> Self {
        Self {
            spec: volume.spec.clone(),
            nodes: volume.attachments.keys().cloned().collect(),
            issues: volume.health.clone(),
        }
    }
}

/// A list from its token on.
pub(super) struct Listing<'a> {
    array: &'a Array,
    kind: &'a str,
    after: Option<&'a str>,
    size: usize,
}

// === impl Array ===

impl Array {
    /// The page of volumes after `token`, or the first one. `max_entries` 0 means the array's default.
    ///
    /// # Errors
    /// The token is not from this array and list.
    pub fn list(&self, max_entries: usize, token: Option<&str>) -> Result<Page, Error> {
        let listing = Listing::begin(self, "page", max_entries, token)?;
        let rest = self.volumes.range::<str, _>(listing.rest());
        Ok(listing.page(rest.map(|(_, volume)| volume.into()), Entry::id))
    }

    fn token(&self, kind: &str, last: &str) -> String {
        format!("{:016x}.{last}", self.keyed_hash(&format!("{kind} after/{last}")))
    }
}

// === impl Listing ===

impl<'a> Listing<'a> {
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

    /// The range of ids after the token.
    pub(super) fn rest(&self) -> (Bound<&'a str>, Bound<&'a str>) {
        let after = self.after.map_or(Bound::Unbounded, Bound::Excluded);
        (after, Bound::Unbounded)
    }

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
