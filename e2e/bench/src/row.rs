//! The rows: measurements that can be selected on the command line.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;

use super::Implementation;
use super::implementation::Workers::{Default, Number};

/// One measurement. In measuring order: those that fill the cluster are last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Row {
    /// Size of the executable.
    Size,
    /// Default flags, a small burst.
    Default,
    /// A large burst of attaches, then of detaches: speed, CPU, memory, requests.
    Burst,
    /// Single attaches and detaches at a steady rate.
    Latency,
    /// The same with 20 ms more per round trip to the API server.
    LatencyFar,
    /// Many concurrent driver calls of one second.
    Slow,
    /// One attach behind many detaches of two seconds each.
    Behind,
    /// A restart of the driver.
    Restart,
    /// SIGTERM to the leader.
    HandoverTerm,
    /// SIGKILL to the leader.
    HandoverKill,
    /// Some VolumeAttachments of this driver that are attached already.
    Own,
    /// Many of them.
    OwnMany,
    /// Some VolumeAttachments and PersistentVolumes of other drivers.
    Foreign,
    /// Many objects of other drivers.
    ForeignMany,
}

/// Objects that are in the cluster before an attacher starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Load {
    /// None.
    Empty,
    /// Attached VolumeAttachments of the measured driver, and their PersistentVolumes.
    Own(usize),
    /// VolumeAttachments and PersistentVolumes of other drivers.
    Foreign(usize),
}

/// Sizes of the rows.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Volumes in [`Row::Default`].
    pub few: usize,
    /// Volumes in [`Row::Burst`].
    pub burst: usize,
    /// Volumes in [`Row::Latency`].
    pub samples: usize,
    /// Their rate per second.
    pub rate: u32,
    /// Volumes in [`Row::Slow`] and [`Row::Behind`].
    pub slow: usize,
    /// Foreign objects of each kind in [`Row::Foreign`].
    pub foreign: usize,
    /// VolumeAttachments in [`Row::Own`].
    pub own: usize,
    /// Objects of each kind in [`Row::ForeignMany`] and [`Row::OwnMany`].
    pub many: usize,
}

// === impl Row ===

impl Row {
    /// Title for a heading.
    pub fn title(self, sizes: &Sizes) -> String {
        let Sizes {
            few,
            burst,
            samples,
            rate,
            slow,
            foreign,
            own,
            many,
        } = sizes;
        match self {
            Self::Size => "Size of the program".to_owned(),
            Self::Default => format!("Default flags, a burst of {few}"),
            Self::Burst => format!("A burst of {burst}"),
            Self::Latency => format!("One by one, {rate} a second, {samples} times"),
            Self::LatencyFar => {
                format!("One by one, {rate} a second, {samples} times, the API server 20 ms away")
            }
            Self::Slow => format!("{slow} attaches, driver calls of 1 s"),
            Self::Behind => format!("One attach behind {slow} detaches of 2 s"),
            Self::Restart => "Restart of the driver".to_owned(),
            Self::HandoverTerm => "Failover: the leader receives SIGTERM".to_owned(),
            Self::HandoverKill => "Failover: the leader is killed (SIGKILL)".to_owned(),
            Self::Foreign => format!("{foreign} foreign VolumeAttachments and PersistentVolumes"),
            Self::ForeignMany => format!("{many} foreign VolumeAttachments and PersistentVolumes"),
            Self::Own => format!("Started with {own} attached volumes of its driver"),
            Self::OwnMany => format!("Started with {many} attached volumes of its driver"),
        }
    }

    /// The implementations measured by default.
    pub fn implementations(self, sizes: &Sizes) -> Vec<Implementation> {
        use Implementation::{Go, Limit, Ours};
        match self {
            Self::Size | Self::Default | Self::HandoverTerm | Self::HandoverKill => {
                vec![Ours(Default), Go(Default)]
            }
            Self::Burst => vec![
                Limit(16),
                Limit(64),
                Limit(128),
                Ours(Number(10)),
                Ours(Number(64)),
                Go(Number(10)),
                Go(Number(100)),
                Go(Number(1000)),
            ],
            Self::Latency
            | Self::LatencyFar
            | Self::Restart
            | Self::Foreign
            | Self::ForeignMany
            | Self::Own
            | Self::OwnMany => {
                vec![Ours(Number(10)), Go(Number(10))]
            }
            Self::Slow => vec![Ours(Number(sizes.slow)), Go(Number(sizes.slow))],
            Self::Behind => vec![Ours(Number(10)), Ours(Number(sizes.slow)), Go(Number(100))],
        }
    }

    /// Whether the limit is measured.
    pub fn has_limit(self) -> bool {
        matches!(self, Self::Burst)
    }

    /// One-way network delay to the API server.
    pub(super) fn api_delay(self) -> Option<Duration> {
        (self == Self::LatencyFar).then_some(Duration::from_millis(10))
    }

    /// Objects that are in the cluster before the attachers start.
    pub(super) fn load(self, sizes: &Sizes) -> Load {
        match self {
            Self::Size
            | Self::Default
            | Self::Burst
            | Self::Latency
            | Self::LatencyFar
            | Self::Slow
            | Self::Behind
            | Self::Restart
            | Self::HandoverTerm
            | Self::HandoverKill => Load::Empty,
            Self::Foreign => Load::Foreign(sizes.foreign),
            Self::ForeignMany => Load::Foreign(sizes.many),
            Self::Own => Load::Own(sizes.own),
            Self::OwnMany => Load::Own(sizes.many),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("every row must have a name");
        f.write_str(value.get_name())
    }
}

// === impl Sizes ===

impl Sizes {
    /// The sizes used for the figures in the documentation.
    pub fn full() -> Self {
        Self {
            few: 30,
            burst: 2000,
            samples: 200,
            rate: 20,
            slow: 1000,
            foreign: 20_000,
            own: 20_000,
            many: 100_000,
        }
    }

    /// Small sizes for a smoke test.
    pub fn quick() -> Self {
        Self {
            few: 6,
            burst: 200,
            samples: 40,
            rate: 20,
            slow: 100,
            foreign: 500,
            own: 500,
            many: 2000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_never_has_to_shrink() {
        for sizes in [Sizes::full(), Sizes::quick()] {
            let rows = Row::value_variants().iter();
            let loads: Vec<_> = rows.map(|row| row.load(&sizes)).collect();
            assert!(loads.is_sorted(), "{loads:?}");
        }
    }

    #[test]
    fn every_row_compares_both_attachers() {
        for row in Row::value_variants() {
            let implementations = row.implementations(&Sizes::full());
            assert!(implementations.iter().any(|c| c.is_ours()), "{row}");
            assert!(implementations.iter().any(|c| c.is_go()), "{row}");
            assert!(
                row.has_limit() || !implementations.iter().any(|c| c.is_limit()),
                "{row}"
            );
        }
    }
}
