//! Pages of lists in natural order: `vol-2` precedes `vol-10`.

use std::cmp::Ordering;

use crate::admin_api::resource::Page;

pub(super) fn limit(requested: Option<usize>) -> usize {
    requested.unwrap_or(100).clamp(1, 1000)
}

/// One page of items sorted by id, after the id `after`.
pub(super) fn page<I, T>(
    items: impl Iterator<Item = I>,
    after: Option<&str>,
    requested: Option<usize>,
    id: impl Fn(&I) -> &str,
    shown: impl Fn(I) -> T,
) -> Page<T> {
    let limit = limit(requested);
    let mut matched = 0;
    let is_later = |item: &I| after.is_none_or(|after| natural(id(item), after).is_gt());
    let later: Vec<I> = items.inspect(|_| matched += 1).filter(is_later).collect();
    let has_more = later.len() > limit;
    let items = first(later, limit, &id);
    let next = items.last().filter(|_| has_more).map(|last| id(last).to_owned());
    Page {
        items: items.into_iter().map(shown).collect(),
        matched,
        next,
    }
}

/// The first `limit` items, sorted by id.
pub(super) fn first<I>(mut items: Vec<I>, limit: usize, id: impl Fn(&I) -> &str) -> Vec<I> {
    let order = |a: &I, b: &I| natural(id(a), id(b));
    if items.len() > limit {
        items.select_nth_unstable_by(limit, order);
        items.truncate(limit);
    }
    items.sort_by(order);
    items
}

/// Compares texts line by line, with the numbers in them by value: a cursor has a line for each id.
fn natural(a: &str, b: &str) -> Ordering {
    parts(a).cmp(parts(b))
}

/// The parts of a text, in their order: ends of lines, numbers by length, digits and leading zeros, and what is between them.
fn parts(text: &str) -> impl Iterator<Item = (Kind, usize, &[u8], usize)> {
    let parts = text
        .as_bytes()
        .chunk_by(|one, next| Kind::of(*one) == Kind::of(*next));
    parts.map(|part| match Kind::of(part[0]) {
        Kind::Number => {
            let zeros = part.iter().take_while(|digit| **digit == b'0').count();
            (Kind::Number, part.len() - zeros, &part[zeros..], zeros)
        }
        kind @ (Kind::LineEnd | Kind::Text) => (kind, 0, part, 0),
    })
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    LineEnd,
    Number,
    Text,
}

// === impl Kind ===

impl Kind {
    fn of(byte: u8) -> Self {
        match byte {
            b'\n' => Self::LineEnd,
            b'0'..=b'9' => Self::Number,
            _ => Self::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_sorted_line_by_line_with_numbers_by_value() {
        let sorted = [
            "",
            "2",
            "9-a",
            "10",
            "node",
            "node-2",
            "node-2a",
            "node-02",
            "node-10",
            "node-a",
            "vol-\nnode-1",
            "vol-1\nnode-2",
            "vol-1\nnode-10",
            "vol-1-a\nnode-1",
            "vol-2\nnode-1",
            "vol-10\nnode-1",
            "vol-18446744073709551616",
            "vol-a\nnode-2",
            "vol-a\nnode-10",
            "vol-a-1",
        ];
        for (index, id) in sorted.iter().enumerate() {
            for (other, after) in sorted.iter().enumerate() {
                assert_eq!(natural(id, after), index.cmp(&other), "{id:?} {after:?}");
            }
        }
    }

    #[test]
    fn pages_follow_each_other_when_the_last_item_is_gone() {
        let ids: Vec<String> = (0..25).map(|number| format!("vol-{number}")).collect();
        let next = |after: Option<&str>, gone: Option<&str>| {
            let there = ids.iter().filter(|id| gone != Some(id.as_str()));
            page(there, after, Some(10), |id| id.as_str(), Clone::clone)
        };
        let first = next(None, None);
        assert_eq!((first.items.as_slice(), first.matched), (&ids[..10], 25));
        let second = next(first.next.as_deref(), first.next.as_deref());
        assert_eq!((second.items.as_slice(), second.matched), (&ids[10..20], 24));
        let last = next(second.next.as_deref(), None);
        assert_eq!((last.items.as_slice(), last.next), (&ids[20..], None));
    }
}
