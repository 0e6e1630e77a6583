//! Flags of the leader election.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ArgAction;

use super::{MaybeText, duration, kube_name};

/// Flags of the leader election.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Election {
    /// Enable leader election.
    #[arg(long = "leader-election", default_value = "false", action = ArgAction::Set)]
    pub(crate) enabled: bool,

    /// Namespace of the lease. Default: the pod's namespace.
    #[arg(long = "leader-election-namespace", default_value = "", value_parser = kube_name::namespace,
          value_name = "NAMESPACE")]
    pub(crate) namespace: MaybeText,

    /// Duration that non-leader candidates wait before they acquire a lease that its holder does not renew.
    #[arg(long = "leader-election-lease-duration", default_value = "15s", value_parser = duration::positive,
          value_name = "DURATION")]
    pub(crate) lease_duration: Duration,

    /// Duration that the leader retries to renew the lease before it pauses. It continues when it has renewed the lease, and exits if
    /// another replica has acquired it.
    #[arg(long = "leader-election-renew-deadline", default_value = "10s", value_parser = duration::positive,
          value_name = "DURATION")]
    pub(crate) renew_deadline: Duration,

    /// Duration between attempts to acquire or renew the lease.
    #[arg(long = "leader-election-retry-period", default_value = "5s", value_parser = duration::positive,
          value_name = "DURATION")]
    pub(crate) retry_period: Duration,

    /// Labels of the lease, such as key:value,key2:value2. Repeatable.
    #[arg(long = "leader-election-labels", default_value = "", value_parser = labels,
          action = ArgAction::Append, value_name = "LABELS")]
    labels: Vec<Labels>,
}

pub(crate) type Labels = BTreeMap<String, String>;

/// client-go's JitterFactor of the retry period.
const JITTER: f64 = 1.2;

// === impl Election ===

impl Election {
    /// The labels of all `--leader-election-labels`; the last value of a key wins, as in the Go sidecar.
    pub(crate) fn labels(&self) -> Labels {
        let pairs = self.labels.iter().flatten();
        pairs.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Checks that the timings allow an attempt to renew before the lease expires.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !self.enabled {
            return Ok(());
        }
        if self.lease_duration <= self.renew_deadline {
            return Err(format!(
                "--leader-election-lease-duration ({:?}) must be longer than --leader-election-renew-deadline ({:?}): \
                 else a renewal cannot be retried before the lease expires",
                self.lease_duration, self.renew_deadline
            ));
        }
        if self.renew_deadline <= self.retry_period.mul_f64(JITTER) {
            return Err(format!(
                "--leader-election-renew-deadline ({:?}) must be longer than {JITTER} times \
                 --leader-election-retry-period ({:?}): else one failed attempt pauses the leader",
                self.renew_deadline, self.retry_period
            ));
        }
        Ok(())
    }
}

fn labels(value: &str) -> Result<Labels, String> {
    if value.is_empty() {
        return Ok(Labels::new());
    }
    let read = |item: &str| match item.split_once(':') {
        Some((key, value)) if !key.trim().is_empty() && !value.contains(':') => {
            let (key, value) = (key.trim(), value.trim());
            kube_name::label(key, value)?;
            Ok((key.to_owned(), value.to_owned()))
        }
        Some(_) | None => Err(format!("{item:?} is not of the form key:value")),
    };
    value.split(',').map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_labels_as_pairs() {
        let pairs = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect::<Labels>()
        };
        assert_eq!(labels(""), Ok(Labels::new()));
        assert_eq!(labels("a:b, c:d"), Ok(pairs(&[("a", "b"), ("c", "d")])));
        assert_eq!(labels("a:b,a:c"), Ok(pairs(&[("a", "c")])));
        assert_eq!(labels("a:"), Ok(pairs(&[("a", "")])));
        for value in ["bad", "a:b,", "a:b:c", ":b"] {
            assert!(labels(value).is_err(), "{value}");
        }
    }
}
