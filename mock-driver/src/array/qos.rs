//! Mutable parameters: supported keys and values.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use super::error::listed;
use super::{Array, Change, CreateVolumeParams, Done, Error, Source};

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

/// The speed of copies. The default is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyRate {
    iops: Option<u64>,
    /// MiB per second.
    throughput: Option<u64>,
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

    /// The parameter with the maximum number of copy requests per second, each of [`CopyRate::REQUEST`] bytes.
    pub(crate) const IOPS: &str = "iops";

    /// The parameter with the maximum number of MiB copied per second.
    pub(crate) const THROUGHPUT: &str = "throughput";

    /// The parameters that are also class parameters; mutable parameters take precedence.
    const DRIVEN: [&str; 3] = [Self::IOPS, Self::LATENCY, Self::THROUGHPUT];

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

    /// The first class parameter with an unsupported value, and the cause.
    fn objection_to_class(&self, parameters: &BTreeMap<String, String>) -> Option<String> {
        let ours = |key: &&str| self.0.contains_key(*key);
        let meant = Self::DRIVEN.into_iter().filter(ours);
        let given = meant.filter_map(|key| parameters.get_key_value(key));
        self.objection(&given.map(|(key, value)| (key.clone(), value.clone())).collect())
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
    /// The usual parameters of storage classes: `iops` and `throughput` limit copies of the volume, `latency` in milliseconds
    /// delays attach and detach, and `tier` has no effect.
    fn default() -> Self {
        let tiers = ["bronze", "silver", "gold"].map(str::to_owned).to_vec();
        Self::new([
            (Self::IOPS.to_owned(), Values::Range(1, 1_000_000)),
            (Self::LATENCY.to_owned(), Values::Range(0, 600_000)),
            (Self::THROUGHPUT.to_owned(), Values::Range(1, 1_000_000)),
            ("tier".to_owned(), Values::OneOf(tiers)),
        ])
    }
}

// === impl CopyRate ===

impl CopyRate {
    /// Bytes per copy request, the usual size that block storage counts as one.
    pub(crate) const REQUEST: u64 = 256 << 10;

    const MIB: u64 = 1 << 20;

    /// The rate of a volume with these class parameters and mutable parameters.
    fn of(class: &BTreeMap<String, String>, qos: &BTreeMap<String, String>) -> Self {
        let bound = |key| number(key, class, qos).filter(|bound| *bound > 0);
        Self {
            iops: bound(QosRule::IOPS),
            throughput: bound(QosRule::THROUGHPUT),
        }
    }

    /// The rate of a copy between both.
    fn and(self, other: Self) -> Self {
        let slower = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        Self {
            iops: slower(self.iops, other.iops),
            throughput: slower(self.throughput, other.throughput),
        }
    }

    /// The duration of a copy of so many bytes.
    pub(crate) fn time(self, bytes: u64) -> Duration {
        let takes = |work: u64, unit: u64, rate: Option<u64>| match rate {
            Some(rate) => {
                let nanos = u128::from(work) * 1_000_000_000 / u128::from(unit) / u128::from(rate);
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
            None => Duration::ZERO,
        };
        let requests = bytes.div_ceil(Self::REQUEST);
        takes(requests, 1, self.iops).max(takes(bytes, Self::MIB, self.throughput))
    }
}

/// A numeric parameter: the mutable one, else that of the class.
fn number(key: &str, class: &BTreeMap<String, String>, qos: &BTreeMap<String, String>) -> Option<u64> {
    qos.get(key).or_else(|| class.get(key))?.parse().ok()
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
        let millis = volume.and_then(|volume| number(QosRule::LATENCY, &volume.spec.parameters, &volume.qos));
        millis.map_or(Duration::ZERO, Duration::from_millis)
    }

    /// The rate of copies of a volume.
    pub(crate) fn pace(&self, id: &str) -> CopyRate {
        let volume = self.volumes.get(id);
        volume.map_or_else(CopyRate::default, |volume| {
            CopyRate::of(&volume.spec.parameters, &volume.qos)
        })
    }

    /// The rate at which the content of a new volume is copied: the lower one of both volumes.
    pub(crate) fn pace_to(&self, wanted: &CreateVolumeParams) -> CopyRate {
        let own = CopyRate::of(&wanted.parameters, &wanted.mutable_parameters);
        match &wanted.source {
            Some(Source::Volume(source)) => own.and(self.pace(source.as_str())),
            Some(Source::Snapshot(_)) | None => own,
        }
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
    fn copy_duration_follows_the_lower_of_throughput_and_iops() {
        const MIB: u64 = 1 << 20;
        // (class, mutable parameters, bytes, milliseconds)
        let table: [(&[_], &[_], u64, u64); 9] = [
            (&[], &[], 1 << 40, 0),
            (&[], &[("throughput", "4")], 8 * MIB, 2000),
            (&[], &[("iops", "16")], 8 * MIB, 2000),
            (&[], &[("iops", "16")], 1, 62),
            (&[], &[("iops", "16"), ("throughput", "1")], 8 * MIB, 8000),
            (&[], &[("iops", "2"), ("throughput", "8")], 8 * MIB, 16_000),
            (&[("throughput", "4")], &[], 8 * MIB, 2000),
            (&[("throughput", "4")], &[("throughput", "8")], 8 * MIB, 1000),
            (&[("throughput", "fast")], &[("iops", "0")], 8 * MIB, 0),
        ];
        for (class, qos, bytes, millis) in table {
            let pace = CopyRate::of(&mk_parameters(class), &mk_parameters(qos));
            assert_eq!(
                pace.time(bytes).as_millis(),
                u128::from(millis),
                "{class:?} {qos:?}"
            );
        }
        let slow = CopyRate::of(
            &BTreeMap::new(),
            &mk_parameters(&[("iops", "1"), ("throughput", "9")]),
        );
        let fast = CopyRate::of(&BTreeMap::new(), &mk_parameters(&[("iops", "5")]));
        assert_eq!(
            (slow.and(fast).iops, slow.and(fast).throughput),
            (Some(1), Some(9))
        );
        assert_eq!(slow.time(u64::MAX), Duration::from_nanos(u64::MAX), "no overflow");
    }

    #[test]
    fn class_parameters_of_ours_must_have_values_the_array_takes_and_others_any() {
        let rule = QosRule::default();
        let objection = |key, value| rule.objection_to_class(&mk_parameters(&[(key, value)]));
        assert!(objection("iops", "many").unwrap().contains("iops"));
        assert!(objection("latency", "-1").is_some() && objection("throughput", "0").is_some());
        for (key, value) in [("iops", "5"), ("tier", "tin"), ("anything", "else")] {
            assert_eq!(objection(key, value), None, "{key}");
        }
        let other: QosRule = "note,*".parse().unwrap();
        assert_eq!(
            other.objection_to_class(&mk_parameters(&[("iops", "many")])),
            None
        );
    }
}
