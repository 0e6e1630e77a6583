//! Measured quantities, their units, and whether higher or lower is better.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Measurements of one implementation in one round of one row.
pub(super) type Figures = BTreeMap<Quantity, f64>;

/// A measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Attaches per second in a burst.
    AttachRate,
    /// Detaches per second in a burst.
    DetachRate,
    /// Median time from the watch event of a new VolumeAttachment to `attached`.
    AttachP50,
    /// 99th percentile of the same.
    AttachP99,
    /// Median time from the deletion timestamp to the removal of the object.
    DetachP50,
    /// 99th percentile of the same.
    DetachP99,
    /// From the start of the burst until all are attached.
    AllAttached,
    /// The same for detaches.
    AllDetached,
    /// Refused calls for each successful one.
    Refusals,
    /// Writes of `errorCode` 8 (RESOURCE_EXHAUSTED), for each of which kubelet fails a pod.
    Exhausted,
    /// Time for the attaches of all other nodes beside a node whose calls hang, over the time without it.
    Slowdown,
    /// From a VolumeAttachment's creation to the ControllerPublishVolume call.
    PublishStart,
    /// From the start of the process to its first attach.
    Ready,
    /// From the moment when an attach became possible again to the first success.
    Recovery,
    /// CPU time of the attacher per thousand attaches and detaches.
    Cpu,
    /// CPU time of the attacher from its start until it was ready.
    StartCpu,
    /// Peak resident set size of the attacher.
    Memory,
    /// VolumeAttachment writes per attach, as the API server counts them.
    AttachWrites,
    /// VolumeAttachment writes per detach.
    DetachWrites,
    /// PersistentVolume writes per volume.
    VolumeWrites,
    /// GET requests per attach and detach.
    Reads,
    /// Size of the executable.
    Size,
}

/// Whether higher or lower is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Higher is better.
    More,
    /// Lower is better.
    Less,
}

// === impl Quantity ===

impl Quantity {
    /// Title, number of decimals, and whether higher or lower is better.
    fn properties(self) -> (&'static str, usize, Better) {
        use Better::{Less, More};
        match self {
            Self::AttachRate => ("attaches/s", 1, More),
            Self::DetachRate => ("detaches/s", 1, More),
            Self::AttachP50 => ("attach p50 ms", 1, Less),
            Self::AttachP99 => ("attach p99 ms", 1, Less),
            Self::DetachP50 => ("detach p50 ms", 1, Less),
            Self::DetachP99 => ("detach p99 ms", 1, Less),
            Self::AllAttached => ("all attached s", 2, Less),
            Self::AllDetached => ("all detached s", 2, Less),
            Self::Refusals => ("refused/call", 2, Less),
            Self::Exhausted => ("errorCode 8", 0, Less),
            Self::Slowdown => ("slowdown", 2, Less),
            Self::PublishStart => ("publish starts ms", 1, Less),
            Self::Ready => ("ready s", 2, Less),
            Self::Recovery => ("next attach s", 2, Less),
            Self::Cpu => ("CPU s per 1,000", 2, Less),
            Self::StartCpu => ("CPU s to ready", 2, Less),
            Self::Memory => ("peak MB", 1, Less),
            Self::AttachWrites => ("VA writes/attach", 2, Less),
            Self::DetachWrites => ("VA writes/detach", 2, Less),
            Self::VolumeWrites => ("PV writes/volume", 2, Less),
            Self::Reads => ("reads/volume", 2, Less),
            Self::Size => ("size MB", 2, Less),
        }
    }

    /// Column header.
    pub fn title(self) -> &'static str {
        self.properties().0
    }

    /// The value as text, rounded to significant digits.
    pub fn text(self, value: f64) -> String {
        let digits = match self.properties() {
            (_, _, Better::More) if value >= 10.0 => 0,
            (_, digits, _) => digits,
        };
        format!("{value:.digits$}")
    }

    /// Whether higher or lower is better.
    pub fn better(self) -> Better {
        self.properties().2
    }
}

// === impl Better ===

impl Better {
    /// The best and the worst of these values.
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
