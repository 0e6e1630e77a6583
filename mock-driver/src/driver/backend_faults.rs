//! Effects of backend faults on ListVolumes.

use super::Driver;
use crate::array::{Array, NodeId, Page};
use crate::store;

// === impl Driver ===

impl Driver {
    /// A page of volumes, changed by the active backend faults.
    pub(crate) async fn page(&self, max_entries: usize, token: Option<&str>) -> Result<Page, store::Error> {
        let view = self.faults.listing();
        let list = |array: &Array| array.list(max_entries, token);
        let mut page = if view.is_frozen {
            self.store.read_stale(list).await?
        } else {
            self.store.read(list).await?
        };
        page.entries.retain(|entry| {
            let id = entry.spec.id.as_str();
            !view.lacks.iter().any(|pattern| pattern.matches(id, ""))
        });
        for entry in &mut page.entries {
            for (_, node) in view
                .adds
                .iter()
                .filter(|(pattern, _)| pattern.matches(entry.spec.id.as_str(), ""))
            {
                let node = NodeId::from(node.as_str());
                if !entry.nodes.contains(&node) {
                    entry.nodes.push(node);
                }
            }
        }
        Ok(page)
    }
}
