//! The figures of a run on the embedded cluster: their goals and their table.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::{Scale, WATCHES};
use crate::goal::{Bound, Goal};

/// The measurements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(super) scale: Scale,
    pub(super) ready: Duration,
    pub(super) creations: f64,
    pub(super) status_patches: f64,
    pub(super) watch_events: f64,
    pub(super) bind: Duration,
    pub(super) attach: Duration,
    pub(super) detach: Duration,
    pub(super) peak_bytes: u64,
}

// === impl Measured ===

impl Measured {
    pub(crate) fn goals(&self) -> Vec<Goal> {
        use Bound::{AtLeast, AtMost};
        [
            (
                "seconds from process start to first response",
                self.ready.as_secs_f64(),
                AtMost(0.3),
            ),
            ("API server: creations/s", self.creations, AtLeast(20_000.0)),
            (
                "API server: status patches/s",
                self.status_patches,
                AtLeast(20_000.0),
            ),
            (
                "API server: watch events/s",
                self.watch_events,
                AtLeast(100_000.0),
            ),
            ("GiB peak", self.peak_gib(), AtMost(16.0)),
        ]
        .map(|(what, reached, bound)| Goal { what, reached, bound })
        .into()
    }

    fn peak_gib(&self) -> f64 {
        self.peak_bytes as f64 / f64::powi(2.0, 30)
    }
}

impl Display for Measured {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Scale { volumes, nodes } = self.scale;
        let per_second = |duration: Duration| volumes as f64 / duration.as_secs_f64();
        writeln!(
            formatter,
            "## Embedded cluster: {volumes} volumes on {nodes} nodes\n"
        )?;
        writeln!(formatter, "| figure | value |\n|---|---|")?;
        writeln!(
            formatter,
            "| start of the process to the first response | {:.2} s |",
            self.ready.as_secs_f64()
        )?;
        writeln!(formatter, "| API server: creations/s | {:.0} |", self.creations)?;
        writeln!(
            formatter,
            "| API server: status patches/s | {:.0} |",
            self.status_patches
        )?;
        writeln!(
            formatter,
            "| API server: watch events/s, {WATCHES} watches | {:.0} |",
            self.watch_events
        )?;
        for (phase, duration) in [
            ("claims bound", self.bind),
            (
                "pods created, until all volumes are attached and all pods run",
                self.attach,
            ),
            ("pods deleted, until all volumes are detached", self.detach),
        ] {
            let rate = per_second(duration);
            writeln!(
                formatter,
                "| {phase} | {:.1} s, {rate:.0}/s |",
                duration.as_secs_f64()
            )?;
        }
        writeln!(formatter, "| peak resident memory | {:.2} GiB |", self.peak_gib())
    }
}
