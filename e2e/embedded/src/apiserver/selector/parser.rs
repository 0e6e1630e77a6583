//! The syntax of label selectors.

use super::super::names;
use super::{Operator, Requirement};

/// Operators between a key and a value; those that contain others come first.
const OPERATORS: [(&str, Operator); 5] = [
    ("!=", Operator::NotIn),
    ("==", Operator::In),
    ("=", Operator::In),
    (">", Operator::GreaterThan),
    ("<", Operator::LessThan),
];

/// Parses a selector.
pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let mut depth = 0_usize;
    let parts = text.split(|letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    });
    parts
        .map(|part| {
            requirement(part.trim()).map_err(|why| format!("unable to parse requirement {part:?}: {why}"))
        })
        .collect()
}

fn requirement(text: &str) -> Result<Requirement, String> {
    if let Some(key) = text.strip_prefix('!') {
        return new(key, Operator::DoesNotExist, Vec::new());
    }
    if let Some((head, set)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let head = head.trim();
        let operator = |word| {
            head.strip_suffix(word)
                .filter(|key| key.ends_with(char::is_whitespace))
        };
        let values = set.split(',').collect();
        return match (operator("notin"), operator("in")) {
            (Some(key), _) => new(key, Operator::NotIn, values),
            (None, Some(key)) => new(key, Operator::In, values),
            (None, None) => Err("expected: in, notin".to_owned()),
        };
    }
    for (symbol, operator) in OPERATORS {
        if let Some((key, value)) = text.split_once(symbol) {
            return new(key, operator, vec![value]);
        }
    }
    new(text, Operator::Exists, Vec::new())
}

fn new(key: &str, operator: Operator, values: Vec<&str>) -> Result<Requirement, String> {
    let key = key.trim();
    let found = names::qualified(key);
    if !found.is_empty() {
        return Err(format!("key {key:?} {}", found.join("; ")));
    }
    let values = values.into_iter().map(|value| value.trim().to_owned());
    Requirement::new(key.to_owned(), operator, values.collect())
}
