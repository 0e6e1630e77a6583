//! Patterns of ids and names: `*` is any text, `?` any character.

use serde::Deserialize;
use wildmatch::WildMatch;

#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Pattern(WildMatch);

// === impl Pattern ===

impl Pattern {
    pub(super) fn matches(&self, text: &str) -> bool {
        self.0.matches(text)
    }

    pub(super) fn matches_all(&self) -> bool {
        self.0.pattern_chars().iter().all(|letter| *letter == '*')
    }
}

impl TryFrom<String> for Pattern {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.as_str() {
            "" => Err("must not be empty; omit it to match all"),
            text => Ok(Self(WildMatch::new(text))),
        }
    }
}
