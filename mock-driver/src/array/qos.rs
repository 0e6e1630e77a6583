//! Mutable parameters: supported keys and values.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use super::error::listed;
use super::{Array, Change, Done, Error};

/// The supported mutable parameters and their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QosRule(BTreeMap<String, Values>);

/// The values of one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    /// Any text.
    Any,
    /// An integer in this inclusive range.
    Range(u64, u64),
    /// One of these texts.
    OneOf(Vec<String>),
}

/// A malformed parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" describes no mutable parameter: write key for any value, key=LOW..HIGH for whole numbers, \
     or key=ONE|OTHER for a choice"
)]
pub struct InvalidQosRule {
    text: String,
}

// === impl QosRule ===

impl QosRule {
    /// The parameter with the additional duration of attach and detach in milliseconds.
    pub(crate) const LATENCY: &str = "latency";

    /// The key for all other parameters.
    pub(crate) const ANY_KEY: &str = "*";

    /// Supports exactly these parameters.
    pub(crate) fn new(parameters: impl IntoIterator<Item = (String, Values)>) -> Self {
        Self(parameters.into_iter().collect())
    }

    /// The parameters and their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Values)> {
        self.0.iter().map(|(key, values)| (key.as_str(), values))
    }

    /// Why the class parameter [`QosRule::LATENCY`] is not supported, if so; the mutable parameter takes precedence.
    fn objection_to_class(&self, parameters: &BTreeMap<String, String>) -> Option<String> {
        let (key, value) = parameters.get_key_value(Self::LATENCY)?;
        self.0.get(key)?;
        self.objection(&[(key.clone(), value.clone())].into())
    }

    /// The first unsupported parameter, and the cause.
    pub(super) fn objection(&self, asked: &BTreeMap<String, String>) -> Option<String> {
        asked.iter().find_map(
            |(key, value)| match self.0.get(key).or_else(|| self.0.get(Self::ANY_KEY)) {
                None => Some(format!(
                    "unknown mutable parameter \"{key}\": use one of {}",
                    listed(self.0.keys().cloned())
                )),
                Some(values) if values.contain(value) => None,
                Some(values) => Some(format!("\"{key}\" must be {values}, is \"{value}\"")),
            },
        )
    }
}

impl Default for QosRule {
    /// The usual parameters of storage classes: `latency` in milliseconds delays attach and detach, the others have no effect.
    fn default() -> Self {
        let tiers = ["bronze", "silver", "gold"].map(str::to_owned).to_vec();
        Self::new([
            ("iops".to_owned(), Values::Range(1, 1_000_000)),
            (Self::LATENCY.to_owned(), Values::Range(0, 600_000)),
            ("throughput".to_owned(), Values::Range(1, 1_000_000)),
            ("tier".to_owned(), Values::OneOf(tiers)),
        ])
    }
}

// === impl Values ===

impl Values {
    fn contain(&self, value: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Range(low, high) => value
                .parse::<u64>()
                .is_ok_and(|number| (*low..=*high).contains(&number)),
            Self::OneOf(choices) => choices.iter().any(|choice| choice == value),
        }
    }
}

impl std::fmt::Display for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Any => f.write_str("anything"),
            Self::Range(low, high) => write!(f, "a whole number from {low} to {high}"),
            Self::OneOf(choices) => write!(f, "one of {}", listed(choices.iter().cloned())),
        }
    }
}

impl FromStr for QosRule {
    type Err = InvalidQosRule;

    /// Parses `iops=1..1000,tier=gold|silver,note`; `*` stands for all other keys.
    fn from_str(text: &str) -> Result<Self, InvalidQosRule> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        items
            .map(|item| {
                let no_parameter = || InvalidQosRule {
                    text: item.to_owned(),
                };
                let (key, values) = match item.split_once('=') {
                    None => (item, Values::Any),
                    Some((key, values)) => (key, read_values(values).ok_or_else(no_parameter)?),
                };
                if key.is_empty() {
                    return Err(no_parameter());
                }
                Ok((key.to_owned(), values))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

fn read_values(text: &str) -> Option<Values> {
    if let Some((low, high)) = text.split_once("..") {
        let (low, high) = (low.parse().ok()?, high.parse().ok()?);
        return (low <= high).then_some(Values::Range(low, high));
    }
    let choices: Vec<String> = text.split('|').map(str::to_owned).collect();
    choices
        .iter()
        .all(|choice| !choice.is_empty())
        .then_some(Values::OneOf(choices))
}

// === impl Array ===

impl Array {
    /// Changes mutable parameters of a volume. Those not in `asked` do not change.
    ///
    /// # Errors
    /// The volume does not exist, or a key or value is not supported; nothing has changed then.
    pub fn modify_volume(&mut self, id: &str, asked: &BTreeMap<String, String>) -> Result<Done<()>, Error> {
        let volume = self.volume(id)?;
        self.check_qos(asked)?;
        let mut qos = volume.qos.clone();
        qos.extend(asked.iter().map(|(key, value)| (key.clone(), value.clone())));
        if qos == volume.qos {
            return Ok(Done::unchanged(()));
        }
        let volume = volume.spec.id.clone();
        Ok(self.done((), Change::Modified { volume, qos }))
    }

    /// The additional duration of attach and detach: the volume's parameter [`QosRule::LATENCY`].
    pub(crate) fn latency(&self, id: &str) -> Duration {
        let volume = self.volumes.get(id);
        let millis = volume.and_then(|volume| {
            let mutable = volume.qos.get(QosRule::LATENCY);
            mutable
                .or_else(|| volume.spec.parameters.get(QosRule::LATENCY))?
                .parse()
                .ok()
        });
        millis.map_or(Duration::ZERO, Duration::from_millis)
    }

    pub(super) fn check_class(&self, parameters: &BTreeMap<String, String>) -> Result<(), Error> {
        match self.settings.qos.objection_to_class(parameters) {
            None => Ok(()),
            Some(reason) => Err(Error::Illegal {
                field: "parameters".to_owned(),
                reason,
            }),
        }
    }

    pub(super) fn check_qos(&self, asked: &BTreeMap<String, String>) -> Result<(), Error> {
        match self.settings.qos.objection(asked) {
            None => Ok(()),
            Some(reason) => Err(Error::Illegal {
                field: "mutable_parameters".to_owned(),
                reason,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_applied() {
        let rule: QosRule = "iops=10..20, tier=gold|tin,note".parse().unwrap();
        // (key, value, words of the objection)
        let table = [
            ("iops", "10", None),
            ("iops", "20", None),
            ("iops", "21", Some("from 10 to 20")),
            ("iops", "many", Some("whole number")),
            ("tier", "tin", None),
            ("tier", "Gold", Some("one of gold, tin")),
            ("note", "", None),
            ("XXX_FakeKey", "x", Some("iops, note, tier")),
        ];
        for (key, value, words) in table {
            let asked = BTreeMap::from([(key.to_owned(), value.to_owned())]);
            let objection = rule.objection(&asked);
            match words {
                None => assert_eq!(objection, None, "{key}={value}"),
                Some(words) => assert!(
                    objection.as_ref().is_some_and(|text| text.contains(words)),
                    "{key}={value}: {objection:?}"
                ),
            }
        }
    }

    #[test]
    fn what_describes_no_parameter_is_refused() {
        for text in ["=x", "iops=5..1", "iops=..", "tier=", "tier=a||b"] {
            assert!(text.parse::<QosRule>().is_err(), "{text}");
        }
    }

    fn mk_parameters(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn class_parameters_of_ours_must_have_values_the_array_takes_and_others_any() {
        let rule = QosRule::default();
        let objection = |key, value| rule.objection_to_class(&mk_parameters(&[(key, value)]));
        assert!(objection("latency", "-1").unwrap().contains("latency"));
        for (key, value) in [
            ("latency", "5"),
            ("iops", "many"),
            ("tier", "tin"),
            ("anything", "else"),
        ] {
            assert_eq!(objection(key, value), None, "{key}");
        }
        let other: QosRule = "note,*".parse().unwrap();
        assert_eq!(
            other.objection_to_class(&mk_parameters(&[("latency", "many")])),
            None
        );
    }
}
