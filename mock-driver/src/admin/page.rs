//! Pages of lists.

use crate::admin_api::resource::Page;

/// The size of a page.
pub(super) fn limit(requested: Option<usize>) -> usize {
    requested.unwrap_or(100).clamp(1, 1000)
}

/// Whether an item of a list sorted by id is after the cursor.
pub(super) fn later<'a, I>(
    after: &'a Option<String>,
    id: impl Fn(&I) -> &str + 'a,
) -> impl Fn(&I) -> bool + 'a {
    move |item| after.as_deref().is_none_or(|after| id(item) > after)
}

/// One page of sorted items after the cursor. `position` returns an item's cursor.
pub(super) fn page<I, T>(
    items: impl Iterator<Item = I>,
    requested: Option<usize>,
    is_later: impl Fn(&I) -> bool,
    shown: impl Fn(I) -> T,
    position: impl Fn(&T) -> String,
) -> Page<T> {
    let limit = limit(requested);
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
