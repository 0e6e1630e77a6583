//! Mutable parameters: supported keys and values.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use super::error::listed;
use super::{Array, Done, Error};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QosRule(BTreeMap<String, Values>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    Any,
    /// An integer in this inclusive range.
    Range(u64, u64),
    OneOf(Vec<String>),
}

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

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Values)> {
        self.0.iter().map(|(key, values)| (key.as_str(), values))
    }

    /// Of class parameters, only [`QosRule::LATENCY`] has an effect; the mutable parameter takes precedence.
    fn check_class(&self, parameters: &BTreeMap<String, String>) -> Result<(), Error> {
        let latency = parameters.get_key_value(Self::LATENCY);
        self.check("parameters", latency.filter(|(key, _)| self.0.contains_key(*key)))
    }

    fn check<'a>(
        &self,
        field: &str,
        asked: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<(), Error> {
        for (key, value) in asked {
            let reason = match self.0.get(key).or_else(|| self.0.get(Self::ANY_KEY)) {
                None => format!(
                    "unknown mutable parameter \"{key}\": use one of {}",
                    listed(self.0.keys().cloned())
                ),
                Some(values) if values.contain(value) => continue,
                Some(values) => format!("\"{key}\" must be {values}, is \"{value}\""),
            };
            return Err(Error::illegal(field, reason));
        }
        Ok(())
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
        let mut volume = self.volume(id)?.clone();
        self.check_qos(asked)?;
        let asked = asked.iter().map(|(key, value)| (key.clone(), value.clone()));
        volume.qos.extend(asked);
        if volume.qos == self.volume(id)?.qos {
            return Ok(Done::unchanged(()));
        }
        Ok(self.replaced((), volume))
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
        self.settings.qos.check_class(parameters)
    }

    pub(super) fn check_qos(&self, asked: &BTreeMap<String, String>) -> Result<(), Error> {
        self.settings.qos.check("mutable_parameters", asked)
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
            let checked = rule.check("mutable_parameters", &asked);
            match words {
                None => assert_eq!(checked, Ok(()), "{key}={value}"),
                Some(words) => {
                    let refused = checked.unwrap_err().to_string();
                    assert!(refused.contains(words), "{key}={value}: {refused}");
                }
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
        let check = |key, value| rule.check_class(&mk_parameters(&[(key, value)]));
        assert!(
            check("latency", "-1")
                .unwrap_err()
                .to_string()
                .contains("latency")
        );
        for (key, value) in [
            ("latency", "5"),
            ("iops", "many"),
            ("tier", "tin"),
            ("anything", "else"),
        ] {
            assert_eq!(check(key, value), Ok(()), "{key}");
        }
        let other: QosRule = "note,*".parse().unwrap();
        let latency = mk_parameters(&[("latency", "many")]);
        assert_eq!(other.check_class(&latency), Ok(()));
    }
}
