//! One fault rule, and how it is written in YAML.
//!
//! Nothing is guessed: an unknown field, method or code is an error that names the rule and the
//! field, and so is a rule that could never fire or whose parts contradict each other.

use std::time::Duration;

use serde::Deserialize;
use tonic::Code;
use wildmatch::WildMatch;

use super::Occasion;
use crate::code;
use crate::duration;
use crate::method::Method;

/// What goes wrong, with which calls, when and how often.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Its name in the journal.
    pub id: String,
    /// The calls it is for.
    pub matches: Match,
    /// Before or after the effect.
    pub phase: Phase,
    /// What goes wrong.
    pub action: Action,
    /// How often; none for every time.
    pub times: Option<u64>,
}

/// Which calls a rule is for. What is absent matches every call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Match {
    /// The RPC.
    pub method: Option<Method>,
    /// Pattern of the volume's id (`*` any text, `?` any character).
    pub volume: Option<WildMatch>,
    /// Pattern of the node's id.
    pub node: Option<WildMatch>,
    /// Pattern of the name of a volume to be created.
    pub name: Option<WildMatch>,
}

/// When a rule acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Before the effect. With a code or a hang until the client leaves, there is no effect.
    #[default]
    Before,
    /// After the effect, and only if there was one: a call that fails by itself keeps its error.
    After,
}

/// What goes wrong: first the delay, then the hang, then the code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// The answer; none to let the call go on.
    pub code: Option<Code>,
    /// The answer's text.
    pub message: Option<String>,
    /// How long the call is slowed down.
    pub delay: Duration,
    /// How long it hangs after that.
    pub hang: Option<Hang>,
}

/// How long a call hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hang {
    /// Until the client gives up.
    ClientCancel,
    /// For a time.
    For(Duration),
}

/// What is wrong with a list of rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The text is no YAML list.
    #[error("not a YAML list of rules: {reason}")]
    NotAList {
        /// What the YAML reader says.
        reason: String,
    },
    /// One rule is wrong.
    #[error("rule {number}{}: {field}: {reason}", id.as_ref().map(|id| format!(" (\"{id}\")")).unwrap_or_default())]
    Rule {
        /// Its place, from 1.
        number: usize,
        /// Its id, if it has one.
        id: Option<String>,
        /// The field.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    id: String,
    #[serde(default, rename = "match")]
    matches: WrittenMatch,
    #[serde(default)]
    phase: Phase,
    action: WrittenAction,
    times: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenMatch {
    method: Option<String>,
    volume: Option<String>,
    node: Option<String>,
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAction {
    code: Option<String>,
    message: Option<String>,
    delay: Option<String>,
    hang: Option<String>,
}

/// A field and what is wrong with it.
struct Flaw(&'static str, String);

// === impl Rule ===

impl Rule {
    /// Reads a list of rules. An empty text is an empty list.
    ///
    /// # Errors
    /// At the first rule that is wrong; the whole list counts as unread.
    pub fn read_list(yaml: &str) -> Result<Vec<Self>, RuleError> {
        let not_a_list = |error: serde_saphyr::Error| RuleError::NotAList {
            reason: error.to_string(),
        };
        let items: Option<Vec<serde_json::Value>> = serde_saphyr::from_str(yaml).map_err(not_a_list)?;
        let mut rules: Vec<Self> = Vec::new();
        for (index, item) in items.unwrap_or_default().into_iter().enumerate() {
            let id = item
                .get("id")
                .and_then(serde_json::Value::as_str)
                .map(str::to_owned);
            let wrong = |field: String, reason: String| RuleError::Rule {
                number: index + 1,
                id: id.clone(),
                field,
                reason,
            };
            let written: Written = serde_path_to_error::deserialize(item)
                .map_err(|error| wrong(error.path().to_string(), error.inner().to_string()))?;
            let rule =
                Self::from_written(written).map_err(|Flaw(field, reason)| wrong(field.to_owned(), reason))?;
            if let Some(first) = rules.iter().position(|other| other.id == rule.id) {
                return Err(wrong("id".into(), format!("rule {} has the same", first + 1)));
            }
            rules.push(rule);
        }
        Ok(rules)
    }

    fn from_written(written: Written) -> Result<Self, Flaw> {
        if written.id.is_empty() {
            return Err(Flaw("id", "must not be empty".into()));
        }
        if written.times == Some(0) {
            return Err(Flaw(
                "times",
                "must be at least 1; leave it out for every time".into(),
            ));
        }
        Ok(Self {
            id: written.id,
            matches: Match::from_written(written.matches)?,
            phase: written.phase,
            action: Action::from_written(written.action)?,
            times: written.times,
        })
    }

    /// The error the rule answers with, if it answers.
    pub fn answer(&self) -> Option<(Code, String)> {
        let text = || format!("injected by fault rule \"{}\"", self.id);
        self.action
            .code
            .map(|code| (code, self.action.message.clone().unwrap_or_else(text)))
    }

    /// Whether the rule keeps the call from having any effect.
    pub fn replaces_effect(&self) -> bool {
        let never_goes_on = self.action.code.is_some() || self.action.hang == Some(Hang::ClientCancel);
        self.phase == Phase::Before && never_goes_on
    }
}

// === impl Match ===

impl Match {
    fn from_written(written: WrittenMatch) -> Result<Self, Flaw> {
        let method = match written.method {
            None => None,
            Some(name) => Some(
                name.parse::<Method>()
                    .map_err(|unknown| Flaw("match.method", unknown.to_string()))?,
            ),
        };
        let pattern = |field, has: fn(Method) -> bool, text: Option<String>| match (text, method) {
            (Some(text), _) if text.is_empty() => Err(Flaw(
                field,
                "must not be empty; leave it out to match every call".into(),
            )),
            (Some(_), Some(method)) if !has(method) => Err(Flaw(
                field,
                format!("{method} carries none, so the rule could never fire"),
            )),
            (text, _) => Ok(text.map(|text| WildMatch::new(&text))),
        };
        Ok(Self {
            method,
            volume: pattern("match.volume", Method::has_volume, written.volume)?,
            node: pattern("match.node", Method::has_node, written.node)?,
            name: pattern("match.name", Method::has_name, written.name)?,
        })
    }

    /// Whether a call is meant.
    pub(super) fn covers(&self, occasion: &Occasion<'_>) -> bool {
        let fits = |pattern: &Option<WildMatch>, text: &str| match pattern {
            None => true,
            Some(pattern) => !text.is_empty() && pattern.matches(text),
        };
        self.method.is_none_or(|method| method == occasion.method)
            && fits(&self.volume, occasion.volume)
            && fits(&self.node, occasion.node)
            && fits(&self.name, occasion.name)
    }
}

// === impl Action ===

impl Action {
    fn from_written(written: WrittenAction) -> Result<Self, Flaw> {
        let time = |field, text: Option<&str>| {
            text.map(duration::parse)
                .transpose()
                .map_err(|error| Flaw(field, error.to_string()))
        };
        let hang = match written.hang.as_deref() {
            Some("client-cancel") => Some(Hang::ClientCancel),
            text => time("action.hang", text)
                .map_err(|Flaw(field, reason)| Flaw(field, format!("{reason}, or client-cancel")))?
                .map(Hang::For),
        };
        let code = match written.code {
            None => None,
            Some(name) => Some(error_code(&name)?),
        };
        let delay = time("action.delay", written.delay.as_deref())?;
        if code.is_none() && delay.is_none() && hang.is_none() {
            return Err(Flaw("action", "must have a code, a delay or a hang".into()));
        }
        if code.is_none() && written.message.is_some() {
            return Err(Flaw("action.message", "is never seen without a code".into()));
        }
        if code.is_some() && hang == Some(Hang::ClientCancel) {
            return Err(Flaw(
                "action.code",
                "is never seen by a client that has given up".into(),
            ));
        }
        if written.message.as_ref().is_some_and(String::is_empty) {
            return Err(Flaw(
                "action.message",
                "must not be empty: CSI asks for a text".into(),
            ));
        }
        Ok(Self {
            code,
            message: written.message,
            delay: delay.unwrap_or_default(),
            hang,
        })
    }
}

fn error_code(name: &str) -> Result<Code, Flaw> {
    code::named(name).ok_or_else(|| {
        Flaw(
            "action.code",
            format!("\"{name}\" is no error code; there are {}", code::names()),
        )
    })
}
