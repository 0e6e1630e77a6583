//! The words of a command line, and what a command reads from them.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use jiff::SignedDuration;

use super::Setup;

/// The most nodes that a story may have.
pub(super) const MAX_NODES: usize = 5;

/// A story that cannot be read: where, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SyntaxError {
    /// From 1.
    pub(super) line: usize,
    /// From 1, in characters.
    pub(super) column: usize,
    pub(super) text: String,
}

/// A word or a quoted text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Word {
    text: String,
    is_quoted: bool,
    column: usize,
}

/// The words of one line that are not read yet.
#[derive(Debug)]
pub(super) struct Words {
    line: usize,
    /// In reverse order.
    rest: Vec<Word>,
    /// Column after the last word.
    end: usize,
}

// === impl SyntaxError ===

impl Display for SyntaxError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.text)
    }
}

// === impl Words ===

impl Words {
    /// Splits a line into words, commas and quoted texts.
    pub(super) fn of(line: usize, text: &str) -> Result<Self, SyntaxError> {
        let mut words: Vec<Word> = Vec::new();
        let mut characters = (1..).zip(text.chars()).peekable();
        while let Some((column, character)) = characters.next() {
            if character.is_whitespace() {
                continue;
            }
            let mut word = String::new();
            let is_quoted = character == '"';
            if is_quoted {
                loop {
                    match characters.next() {
                        Some((_, '"')) => break,
                        Some((_, character)) => word.push(character),
                        None => {
                            let text = "the quoted text has no end: add a \"".to_owned();
                            return Err(SyntaxError { line, column, text });
                        }
                    }
                }
            } else {
                word.push(character);
                let ends = |next: char| next.is_whitespace() || next == ',' || next == '"';
                while character != ','
                    && let Some((_, next)) = characters.next_if(|(_, next)| !ends(*next))
                {
                    word.push(next);
                }
            }
            words.push(Word {
                text: word,
                is_quoted,
                column,
            });
        }
        words.reverse();
        let end = text.trim_end().chars().count() + 1;
        Ok(Self {
            line,
            rest: words,
            end,
        })
    }

    /// An error at the next word.
    pub(super) fn error(&self, text: impl Into<String>) -> SyntaxError {
        SyntaxError {
            line: self.line,
            column: self.rest.last().map_or(self.end, |word| word.column),
            text: text.into(),
        }
    }

    /// The next word, without reading it; empty at the end and for a quoted text.
    pub(super) fn peek(&self) -> &str {
        match self.rest.last() {
            Some(word) if !word.is_quoted => &word.text,
            _ => "",
        }
    }

    /// Reads these words if they come next.
    pub(super) fn accept(&mut self, words: &str) -> bool {
        let wanted: Vec<_> = words.split(' ').collect();
        let next = self.rest.iter().rev().take(wanted.len());
        let comes_next = next
            .map(|word| (word.text.as_str(), word.is_quoted))
            .eq(wanted.iter().map(|word| (*word, false)));
        if comes_next {
            self.rest.truncate(self.rest.len() - wanted.len());
        }
        comes_next
    }

    /// Reads these words.
    pub(super) fn expect(&mut self, words: &str) -> Result<(), SyntaxError> {
        match self.accept(words) {
            true => Ok(()),
            false => Err(self.error(format!("expected `{words}`{}", self.found()))),
        }
    }

    /// Fails unless all words are read.
    pub(super) fn end(&self) -> Result<(), SyntaxError> {
        match self.rest.last() {
            None => Ok(()),
            Some(word) => Err(self.error(format!("`{}` is too much", word.text))),
        }
    }

    /// Reads the name of an object, which is `what`.
    pub(super) fn name(&mut self, what: &str) -> Result<String, SyntaxError> {
        self.one_of(what, "lowercase letters, digits and hyphens", |word| {
            let is_name = word
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
            let has_ends = !word.starts_with('-') && !word.ends_with('-');
            (is_name && has_ends && word.len() <= 40).then(|| word.to_owned())
        })
    }

    /// Reads the reason of an Event.
    pub(super) fn reason(&mut self) -> Result<String, SyntaxError> {
        self.one_of("the reason of an Event", "such as FailedAttachVolume", |word| {
            let is_reason = word.starts_with(|c: char| c.is_ascii_uppercase());
            is_reason.then(|| word.to_owned())
        })
    }

    /// Reads the name of a node.
    pub(super) fn node(&mut self, setup: &Setup) -> Result<usize, SyntaxError> {
        let nodes = setup.config.nodes;
        let allowed = match node_name(nodes - 1) {
            'a' => "a".to_owned(),
            last => format!("a to {last} (`set nodes` before the first paragraph adds more)"),
        };
        self.one_of("a node", &allowed, |word| {
            (0..nodes).find(|index| word == node_name(*index).to_string())
        })
    }

    /// Reads `[for VOLUME] [on NODE]`.
    pub(super) fn volume_and_node(
        &mut self,
        setup: &Setup,
    ) -> Result<(Option<String>, Option<usize>), SyntaxError> {
        let volume = match self.accept("for") {
            true => Some(self.name("the name of a volume")?),
            false => None,
        };
        let node = match self.accept("on") {
            true => Some(self.node(setup)?),
            false => None,
        };
        Ok((volume, node))
    }

    /// Reads a time, such as `30s` or `250ms`.
    pub(super) fn duration(&mut self) -> Result<Duration, SyntaxError> {
        self.one_of("a time", "such as 30s, 250ms or 2m", |word| {
            let parsed: SignedDuration = word.parse().ok()?;
            Duration::try_from(parsed).ok()
        })
    }

    /// Reads a number of at least one.
    pub(super) fn number(&mut self, max: usize) -> Result<usize, SyntaxError> {
        self.one_of("a number", &format!("1 to {max}"), |word| {
            word.parse().ok().filter(|number| (1..=max).contains(number))
        })
    }

    /// Reads one of these words.
    pub(super) fn choice(
        &mut self,
        what: &str,
        choices: &'static [&'static str],
    ) -> Result<&'static str, SyntaxError> {
        self.one_of(what, &choices.join(", "), |word| {
            choices.iter().copied().find(|choice| *choice == word)
        })
    }

    /// Reads a quoted text, if one comes next; empty otherwise.
    pub(super) fn text(&mut self) -> String {
        match self.rest.pop_if(|word| word.is_quoted) {
            Some(word) => word.text,
            None => String::new(),
        }
    }

    /// Reads items that commas separate.
    pub(super) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, SyntaxError>,
    ) -> Result<Vec<T>, SyntaxError> {
        let mut items = vec![item(self)?];
        while self.accept(",") {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Reads a word with a value.
    fn one_of<T>(
        &mut self,
        what: &str,
        allowed: &str,
        value: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, SyntaxError> {
        let next = self.rest.last().filter(|word| !word.is_quoted);
        match next.and_then(|word| value(&word.text)) {
            Some(value) => {
                self.rest.pop();
                Ok(value)
            }
            None => Err(self.error(format!("expected {what}: {allowed}{}", self.found()))),
        }
    }

    fn found(&self) -> String {
        match self.rest.last() {
            Some(word) if word.is_quoted => format!("; found \"{}\"", word.text),
            Some(word) => format!("; found `{}`", word.text),
            None => "; the line ends here".to_owned(),
        }
    }
}

/// The name of a node in stories.
pub(super) fn node_name(index: usize) -> char {
    ('a'..).nth(index).unwrap_or('?')
}
