//! Pages of lists.

use crate::admin_api::resource::Page;

/// The size of a page.
pub(super) fn limit(requested: Option<usize>) -> usize {
    requested.unwrap_or(100).clamp(1, 1000)
}

/// One page of items sorted by id, after the id `after`.
pub(super) fn page_by_id<I, T>(
    items: impl Iterator<Item = I>,
    after: Option<&str>,
    requested: Option<usize>,
    id: impl Fn(&I) -> &str,
    shown: impl Fn(I) -> T,
) -> Page<T> {
    let is_later = |item: &I| after.is_none_or(|after| id(item) > after);
    page(items, requested, is_later, |item| id(item).to_owned(), shown)
}

/// One page of sorted items after the cursor. `position` returns an item's cursor.
pub(super) fn page<I, T>(
    items: impl Iterator<Item = I>,
    requested: Option<usize>,
    is_later: impl Fn(&I) -> bool,
    position: impl Fn(&I) -> String,
    shown: impl Fn(I) -> T,
) -> Page<T> {
    let limit = limit(requested);
    let mut page = Page {
        items: Vec::new(),
        matched: 0,
        next: None,
    };
    let mut last = None;
    for item in items {
        page.matched += 1;
        if !is_later(&item) {
            continue;
        }
        if page.items.len() < limit {
            if page.items.len() + 1 == limit {
                last = Some(position(&item));
            }
            page.items.push(shown(item));
        } else if page.next.is_none() {
            page.next = last.take();
        }
    }
    page
}
