//! Pages of lists.

use crate::admin_api::resource::Page;

/// How many items a page has by default.
const DEFAULT_LIMIT: usize = 100;

/// The most items in a page.
const MAX_LIMIT: usize = 1000;

/// Page size: the requested one within the limits.
pub(super) fn limit(requested: Option<usize>) -> usize {
    requested.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT)
}

/// One page of sorted items after the cursor. `position` returns an item's cursor.
pub(super) fn page<I, T>(
    items: impl Iterator<Item = I>,
    limit: usize,
    is_later: impl Fn(&I) -> bool,
    shown: impl Fn(I) -> T,
    position: impl Fn(&T) -> String,
) -> Page<T> {
    let mut page = Page {
        items: Vec::new(),
        matched: 0,
        next: None,
    };
    for item in items {
        page.matched += 1;
        if !is_later(&item) {
            continue;
        }
        if page.items.len() < limit {
            page.items.push(shown(item));
        } else if page.next.is_none() {
            page.next = page.items.last().map(&position);
        }
    }
    page
}
