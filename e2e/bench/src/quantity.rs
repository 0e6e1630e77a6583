//! What is measured, with its unit and which way is better.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What one implementation took in one round of one row.
pub(super) type Figures = BTreeMap<Quantity, f64>;

/// Something that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Attaches a second in a burst.
    AttachRate,
    /// Detaches a second in a burst.
    DetachRate,
    /// Median time from a VolumeAttachment's appearance to `attached`.
    AttachP50,
    /// 99th percentile of the same.
    AttachP99,
    /// Median time from the deletion timestamp to the end.
    DetachP50,
    /// 99th percentile of the same.
    DetachP99,
    /// From the first moment until all are attached.
    AllAttached,
    /// From a VolumeAttachment's creation until the driver is asked to publish.
    PublishStart,
    /// From the start of the process until it has attached something.
    Ready,
    /// From the moment when an attach became possible again until one succeeded.
    Recovery,
    /// Processor time of the attacher for a thousand attaches and detaches.
    Cpu,
    /// Processor time of the attacher from its start until it was ready.
    StartCpu,
    /// Largest resident set of the attacher.
    Memory,
    /// VolumeAttachment writes for each attach, as the API server counts them.
    AttachWrites,
    /// VolumeAttachment writes for each detach.
    DetachWrites,
    /// PersistentVolume writes for each volume.
    VolumeWrites,
    /// Reads of single objects for each attach and detach.
    Reads,
    /// Size of the program's file.
    Size,
}

/// Which way a quantity gets better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// By going up.
    More,
    /// By going down.
    Less,
}

// === impl Quantity ===

impl Quantity {
    /// Head of a column.
    pub fn title(self) -> &'static str {
        match self {
            Self::AttachRate => "attaches/s",
            Self::DetachRate => "detaches/s",
            Self::AttachP50 => "attach p50 ms",
            Self::AttachP99 => "attach p99 ms",
            Self::DetachP50 => "detach p50 ms",
            Self::DetachP99 => "detach p99 ms",
            Self::AllAttached => "all attached s",
            Self::PublishStart => "publish starts ms",
            Self::Ready => "ready s",
            Self::Recovery => "next attach s",
            Self::Cpu => "CPU s per 1,000",
            Self::StartCpu => "CPU s to ready",
            Self::Memory => "peak MB",
            Self::AttachWrites => "VA writes/attach",
            Self::DetachWrites => "VA writes/detach",
            Self::VolumeWrites => "PV writes/volume",
            Self::Reads => "reads/volume",
            Self::Size => "size MB",
        }
    }

    /// The value as text, with as many digits as mean something.
    pub fn text(self, value: f64) -> String {
        let digits = match self {
            Self::AttachRate | Self::DetachRate if value >= 10.0 => 0,
            Self::AttachP50
            | Self::AttachP99
            | Self::DetachP50
            | Self::DetachP99
            | Self::PublishStart
            | Self::Memory
            | Self::AttachRate
            | Self::DetachRate => 1,
            Self::AllAttached
            | Self::Ready
            | Self::Recovery
            | Self::Cpu
            | Self::StartCpu
            | Self::AttachWrites
            | Self::DetachWrites
            | Self::VolumeWrites
            | Self::Reads
            | Self::Size => 2,
        };
        format!("{value:.digits$}")
    }

    /// Which way it gets better.
    pub fn better(self) -> Better {
        match self {
            Self::AttachRate | Self::DetachRate => Better::More,
            Self::AttachP50
            | Self::AttachP99
            | Self::DetachP50
            | Self::DetachP99
            | Self::AllAttached
            | Self::PublishStart
            | Self::Ready
            | Self::Recovery
            | Self::Cpu
            | Self::StartCpu
            | Self::Memory
            | Self::AttachWrites
            | Self::DetachWrites
            | Self::VolumeWrites
            | Self::Reads
            | Self::Size => Better::Less,
        }
    }
}

// === impl Better ===

impl Better {
    /// The better and the worse end of these values.
    pub(super) fn ends(self, values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        Some(match self {
            Self::More => (most, least),
            Self::Less => (least, most),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_better_end_depends_on_the_quantity() {
        assert_eq!(Better::More.ends([2.0, 3.0, 1.0]), Some((3.0, 1.0)));
        assert_eq!(Better::Less.ends([2.0, 3.0, 1.0]), Some((1.0, 3.0)));
        assert_eq!(Better::Less.ends([]), None);
    }

    #[test]
    fn rates_lose_their_digits_when_they_are_large() {
        assert_eq!(Quantity::AttachRate.text(1.94), "1.9");
        assert_eq!(Quantity::AttachRate.text(383.7), "384");
        assert_eq!(Quantity::Cpu.text(0.5), "0.50");
    }
}
