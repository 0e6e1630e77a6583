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
    /// Four nodes that the driver locks for a second with each call.
    LockedNodes,
    /// One such node.
    LockedNode,
    /// A driver that takes 20 calls a second.
    Throttled,
    /// A node whose calls hang.
    SickNode,
    /// A node that is full until its detaches end.
    NodeFull,
    /// An outage of the driver.
    Outage,
    /// The same with many waiting attaches.
    OutageMany,
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
    /// The duration of an outage.
    pub outage: Duration,
    /// Volumes in [`Row::OutageMany`].
    pub outage_many: usize,
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
            outage,
            outage_many,
            foreign,
            own,
            many,
        } = sizes;
        let outage = outage.as_secs();
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
            Self::LockedNodes | Self::LockedNode => {
                let (volumes, nodes) = self.refusing_size(sizes);
                format!(
                    "{volumes} volumes, nodes: {nodes}, each locked for 1 s by a call of 1.5 s (ideal: {:.1} s)",
                    volumes.div_ceil(nodes) as f64 + 0.5
                )
            }
            Self::Throttled => {
                let (volumes, nodes) = self.refusing_size(sizes);
                format!(
                    "{volumes} volumes on {nodes} nodes, 20 calls a second after the first 20 (ideal: {:.1} s)",
                    (volumes - 20) as f64 / 20.0
                )
            }
            Self::SickNode => "Calls of 0.5 s, those for one of 10 nodes hang".to_owned(),
            Self::NodeFull => "3 attaches to a full node beside 3 detaches of 20 s (ideal: 20 s)".to_owned(),
            Self::Outage => format!("100 attaches after an outage of {outage} s"),
            Self::OutageMany => format!("{outage_many} attaches after an outage of {outage} s"),
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
            Self::LockedNodes
            | Self::LockedNode
            | Self::Throttled
            | Self::SickNode
            | Self::NodeFull
            | Self::Outage => vec![Ours(Default), Ours(Number(100)), Go(Default), Go(Number(100))],
            // Go's default flags allow five requests a second, so that 2,000 attaches take 20 minutes.
            Self::OutageMany => vec![Ours(Default), Ours(Number(100)), Go(Number(100))],
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

    /// Numbers of volumes and nodes of a row with a driver that refuses; of others nothing.
    pub(super) fn refusing_size(self, sizes: &Sizes) -> (usize, usize) {
        match self {
            Self::LockedNode => (16, 1),
            Self::Throttled => (400, 4),
            Self::SickNode => (400, 10),
            Self::NodeFull => (6, 1),
            Self::Outage => (100, 10),
            Self::OutageMany => (sizes.outage_many, 10),
            Self::LockedNodes => (40, 4),
            Self::Size
            | Self::Default
            | Self::Burst
            | Self::Latency
            | Self::LatencyFar
            | Self::Slow
            | Self::Behind
            | Self::Restart
            | Self::HandoverTerm
            | Self::HandoverKill
            | Self::Own
            | Self::OwnMany
            | Self::Foreign
            | Self::ForeignMany => (0, 1),
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
            | Self::LockedNodes
            | Self::LockedNode
            | Self::Throttled
            | Self::SickNode
            | Self::NodeFull
            | Self::Outage
            | Self::OutageMany
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
            outage: Duration::from_secs(30),
            outage_many: 2000,
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
            outage: Duration::from_secs(10),
            outage_many: 200,
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
