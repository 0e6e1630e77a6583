//! Reading the volumes page by page.
//!
//! Volumes are listed in the order of their ids, and a token says after which id the next page
//! begins. So a volume that is there during the whole walk is seen exactly once, whatever comes and
//! goes meanwhile, also when the very volume a token names is gone. A token carries a mark made
//! with the array's epoch: anything this array did not give out is refused.

use std::ops::Bound;
use std::sync::Arc;

use super::volume::Spec;
use super::{Array, Error, NodeId};

/// One page of the volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The volumes, sorted by id.
    pub entries: Vec<Entry>,
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

// === impl Array ===

impl Array {
    /// The page after `token`, or the first one. `max_entries` 0 leaves the size to the array.
    pub fn list(&self, max_entries: usize, token: Option<&str>) -> Result<Page, Error> {
        let after = match token {
            None => Bound::Unbounded,
            Some(token) => Bound::Excluded(self.redeem(token)?),
        };
        let asked = if max_entries == 0 { usize::MAX } else { max_entries };
        let size = asked.min(self.settings.page_limit.unwrap_or(usize::MAX));

        let mut rest = self
            .volumes
            .range::<str, _>((after, Bound::Unbounded))
            .map(|(_, v)| v);
        let entries: Vec<Entry> = rest
            .by_ref()
            .take(size)
            .map(|volume| Entry {
                spec: volume.spec.clone(),
                nodes: volume.attachments.keys().cloned().collect(),
            })
            .collect();
        let next_token = match (entries.last(), rest.next()) {
            (Some(last), Some(_)) => Some(self.token(last.spec.id.as_str())),
            _ => None,
        };
        Ok(Page { entries, next_token })
    }

    fn token(&self, last: &str) -> String {
        format!("{:016x}.{last}", self.mark(&format!("page after/{last}")))
    }

    fn redeem<'t>(&self, token: &'t str) -> Result<&'t str, Error> {
        let (_, last) = token.split_once('.').ok_or(Error::ForeignToken)?;
        if self.token(last) == token {
            Ok(last)
        } else {
            Err(Error::ForeignToken)
        }
    }
}
