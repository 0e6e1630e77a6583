//! The syntax of label selectors.

use std::collections::VecDeque;

use super::super::field::{FieldError, Path};
use super::super::names;
use super::{Operator, Requirement};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Identifier(String),
    Symbol(&'static str),
    End,
}

struct Parser {
    tokens: VecDeque<Token>,
}

/// Parses a selector.
pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, String> {
    let mut parser = Parser { tokens: lex(text)? };
    let mut requirements = Vec::new();
    loop {
        match parser.peek() {
            Token::End => return Ok(requirements),
            Token::Identifier(_) | Token::Symbol("!") => {
                let parsed = parser.requirement();
                requirements.push(parsed.map_err(|why| format!("unable to parse requirement: {why}"))?);
                match parser.next() {
                    Token::End => return Ok(requirements),
                    Token::Symbol(",") => match parser.peek() {
                        Token::Identifier(_) | Token::Symbol("!") => {}
                        other @ (Token::Symbol(_) | Token::End) => {
                            let found = other.literal();
                            return Err(format!("found '{found}', expected: identifier after ','"));
                        }
                    },
                    other @ (Token::Identifier(_) | Token::Symbol(_)) => {
                        let found = other.literal();
                        return Err(format!("found '{found}', expected: ',' or 'end of string'"));
                    }
                }
            }
            other @ Token::Symbol(_) => {
                let found = other.literal();
                return Err(format!(
                    "found '{found}', expected: !, identifier, or 'end of string'"
                ));
            }
        }
    }
}

// === impl Token ===

impl Token {
    fn literal(&self) -> &str {
        match self {
            Self::Identifier(text) => text,
            Self::Symbol(symbol) => symbol,
            Self::End => "",
        }
    }
}

/// Symbols, the longer ones first.
const SYMBOLS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];

fn lex(text: &str) -> Result<VecDeque<Token>, String> {
    let mut tokens = VecDeque::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        if rest.is_empty() {
            return Ok(tokens);
        }
        if let Some(symbol) = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) {
            tokens.push_back(Token::Symbol(symbol));
            rest = &rest[symbol.len()..];
            continue;
        }
        let end = rest
            .find([' ', '\t', '\r', '\n', '=', '!', '(', ')', ',', '>', '<'])
            .unwrap_or(rest.len());
        tokens.push_back(Token::Identifier(rest[..end].to_owned()));
        rest = &rest[end..];
    }
}

// === impl Parser ===

impl Parser {
    fn peek(&self) -> Token {
        self.tokens.front().cloned().unwrap_or(Token::End)
    }

    fn next(&mut self) -> Token {
        self.tokens.pop_front().unwrap_or(Token::End)
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let negated = self.peek() == Token::Symbol("!");
        if negated {
            self.next();
        }
        let key = match self.next() {
            Token::Identifier(key) => key,
            other @ (Token::Symbol(_) | Token::End) => {
                return Err(format!("found '{}', expected: identifier", other.literal()));
            }
        };
        let found = names::qualified(&key);
        if !found.is_empty() {
            let error = FieldError::invalid(&Path::new("<nil>"), key.as_str(), found.join("; "));
            return Err(error.to_string());
        }
        if negated {
            return Requirement::new(key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek(), Token::End | Token::Symbol(",")) {
            return Requirement::new(key, Operator::Exists, Vec::new());
        }
        let operator = match self.next() {
            Token::Symbol("=" | "==") => (Operator::In, false),
            Token::Symbol("!=") => (Operator::NotIn, false),
            Token::Symbol(">") => (Operator::GreaterThan, false),
            Token::Symbol("<") => (Operator::LessThan, false),
            Token::Identifier(word) if word == "in" => (Operator::In, true),
            Token::Identifier(word) if word == "notin" => (Operator::NotIn, true),
            other @ (Token::Identifier(_) | Token::Symbol(_) | Token::End) => {
                let found = other.literal();
                return Err(format!("found '{found}', expected: in, notin, =, ==, !=, gt, lt"));
            }
        };
        let (operator, is_set) = operator;
        let mut values = if is_set {
            self.set()?
        } else {
            vec![self.exact_value()?]
        };
        values.sort_unstable();
        values.dedup();
        Requirement::new(key, operator, values)
    }

    fn exact_value(&mut self) -> Result<String, String> {
        if matches!(self.peek(), Token::End | Token::Symbol(",")) {
            return Ok(String::new());
        }
        match self.next() {
            Token::Identifier(value) => Ok(value),
            other @ (Token::Symbol(_) | Token::End) => {
                Err(format!("found '{}', expected: identifier", other.literal()))
            }
        }
    }

    fn set(&mut self) -> Result<Vec<String>, String> {
        let open = self.next();
        if open != Token::Symbol("(") {
            return Err(format!("found '{}' expected: '('", open.literal()));
        }
        let mut values = Vec::new();
        let mut expects_value = true;
        loop {
            match self.next() {
                Token::Symbol(")") => {
                    if expects_value {
                        values.push(String::new());
                    }
                    return Ok(values);
                }
                Token::Symbol(",") => {
                    if expects_value {
                        values.push(String::new());
                    }
                    expects_value = true;
                }
                Token::Identifier(value) if expects_value => {
                    values.push(value);
                    expects_value = false;
                }
                other @ (Token::Identifier(_) | Token::Symbol(_) | Token::End) if expects_value => {
                    let found = other.literal();
                    return Err(format!("found '{found}', expected: ',', ')' or identifier"));
                }
                other @ (Token::Identifier(_) | Token::Symbol(_) | Token::End) => {
                    return Err(format!("found '{}', expected: ',' or ')'", other.literal()));
                }
            }
        }
    }
}
