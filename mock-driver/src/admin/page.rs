//! Pages of lists.

use crate::admin_api::resource::Page;

/// How many items a page has by default.
const DEFAULT_LIMIT: usize = 100;

/// The most items in a page.
const MAX_LIMIT: usize = 1000;

/// The number of items that a page is to have.
pub(super) fn limit(asked: Option<usize>) -> usize {
    asked.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT)
}

/// A page of items that are in the order of their places: those after a place, as many as fit.
pub(super) fn page<I, T>(
    items: impl Iterator<Item = I>,
    limit: usize,
    is_later: impl Fn(&I) -> bool,
    shown: impl Fn(I) -> T,
    place: impl Fn(&T) -> String,
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
            page.next = page.items.last().map(&place);
        }
    }
    page
}
