//! Performance goals, as ratios within one run where the result depends on the machine.

use std::fmt::Write as _;

use super::quantity::Quantity;
use super::report::Report;

/// A goal and its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// The quantity or ratio.
    pub what: &'static str,
    /// The measured value.
    pub reached: f64,
    /// The bound.
    pub bound: Bound,
}

/// A bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

/// The value that is compared with a bound.
#[derive(Clone, Copy, Debug)]
enum Reached {
    /// The best csi-attacher over the best implementation whose name has this prefix, possibly in another
    /// row.
    BestOverBest(&'static str, (&'static str, &'static str), Quantity),
    /// The worst csi-attacher over the best Go attacher.
    WorstOverGo(&'static str, Quantity),
    /// The worst csi-attacher.
    Worst(&'static str, Quantity),
}

#[rustfmt::skip]
const GOALS: [(&str, Reached, Bound); 17] = {
    use Bound::{AtLeast, AtMost};
    use Quantity as Q;
    use Reached::{BestOverBest, Worst, WorstOverGo};
    [
        ("burst, attaches: ours / limit", BestOverBest("burst", ("burst", "limit"), Q::AttachRate), AtLeast(0.9)),
        ("burst, detaches: ours / limit", BestOverBest("burst", ("burst", "limit"), Q::DetachRate), AtLeast(0.9)),
        ("burst, attaches: ours / fastest Go", BestOverBest("burst", ("burst", "go"), Q::AttachRate), AtLeast(1.0)),
        ("burst, detaches: ours / fastest Go", BestOverBest("burst", ("burst", "go"), Q::DetachRate), AtLeast(1.0)),
        ("attaches/s: ours in the burst / Go with default flags", BestOverBest("burst", ("default", "go"), Q::AttachRate), AtLeast(200.0)),
        ("attach p50: ours / Go", WorstOverGo("latency", Q::AttachP50), AtMost(0.7)),
        ("detach p50: ours / Go", WorstOverGo("latency", Q::DetachP50), AtMost(0.7)),
        ("attach p50, API server 20 ms away: ours / Go", WorstOverGo("latency-far", Q::AttachP50), AtMost(0.7)),
        ("detach p50, API server 20 ms away: ours / Go", WorstOverGo("latency-far", Q::DetachP50), AtMost(0.7)),
        ("processor time: our worst / Go's best", WorstOverGo("burst", Q::Cpu), AtMost(0.35)),
        ("peak MB in the burst", Worst("burst", Q::Memory), AtMost(24.0)),
        ("MB with many foreign objects", Worst("foreign-many", Q::Memory), AtMost(20.0)),
        ("s for all attaches of one second", Worst("slow", Q::AllAttached), AtMost(3.0)),
        ("ms until an attach behind slow detaches starts", Worst("behind", Q::PublishStart), AtMost(100.0)),
        ("s of failover after SIGTERM", Worst("handover-term", Q::Recovery), AtMost(1.0)),
        ("s until an attach after the driver's restart", Worst("restart", Q::Recovery), AtMost(1.0)),
        ("MB of binary", Worst("size", Q::Size), AtMost(12.0)),
    ]
};

// === impl Reached ===

impl Reached {
    fn value(self, report: &Report) -> Option<f64> {
        let ends = |row: &str, who: &str, quantity: Quantity| {
            let medians = report.row(row)?.medians(quantity, who);
            quantity.better().ends(medians)
        };
        match self {
            Self::BestOverBest(row, (other, who), quantity) => {
                Some(ends(row, "ours", quantity)?.0 / ends(other, who, quantity)?.0)
            }
            Self::WorstOverGo(row, quantity) => {
                Some(ends(row, "ours", quantity)?.1 / ends(row, "go", quantity)?.0)
            }
            Self::Worst(row, quantity) => Some(ends(row, "ours", quantity)?.1),
        }
    }
}

// === impl Goal ===

impl Goal {
    /// Whether the goal was met.
    pub fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtLeast(bound) => self.reached >= bound,
            Bound::AtMost(bound) => self.reached <= bound,
        }
    }
}

/// The goals whose rows are in this report.
pub fn goals(report: &Report) -> Vec<Goal> {
    let reached = GOALS.iter().filter_map(|(what, reached, bound)| {
        Some(Goal {
            what,
            reached: reached.value(report)?,
            bound: *bound,
        })
    });
    reached.collect()
}

/// The goals as a Markdown table; empty if there are none.
pub fn markdown(goals: &[Goal]) -> String {
    if goals.is_empty() {
        return String::new();
    }
    let mut text = String::from("### Goals\n\n| | reached | goal | |\n|---|---|---|---|\n");
    for goal in goals {
        let bound = match goal.bound {
            Bound::AtLeast(bound) => format!("at least {bound:.2}"),
            Bound::AtMost(bound) => format!("at most {bound:.2}"),
        };
        let state = if goal.is_met() { "met" } else { "**missed**" };
        writeln!(
            text,
            "| {} | {:.2} | {bound} | {state} |",
            goal.what, goal.reached
        )
        .expect("writing to a string must not fail");
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::mk_report;
    use super::*;

    #[test]
    fn our_worst_is_held_against_the_best_of_the_others() {
        let implementations = [
            ("ours-10", 3.0),
            ("ours-64", 2.0),
            ("go-10", 8.0),
            ("go-100", 16.0),
        ];
        let cpu = goals(&mk_report("burst", Quantity::Cpu, &implementations));
        assert_eq!(cpu.len(), 1);
        assert_eq!(cpu[0].reached, 0.375);
        assert!(!cpu[0].is_met());
        let text = markdown(&cpu);
        assert!(text.contains("| 0.38 | at most 0.35 | **missed** |"), "{text}");
    }

    #[test]
    fn throughput_counts_at_our_best() {
        let implementations = [
            ("limit-16", 100.0),
            ("limit-64", 80.0),
            ("ours-10", 50.0),
            ("ours-64", 90.0),
        ];
        let rates = goals(&mk_report("burst", Quantity::AttachRate, &implementations));
        assert_eq!(
            rates.len(),
            1,
            "without the Go one, only the limit is there to compare with"
        );
        assert_eq!(rates[0].reached, 0.9);
        assert!(rates[0].is_met());
    }

    #[test]
    fn what_was_not_measured_is_no_goal() {
        assert_eq!(goals(&Report::default()), []);
        assert_eq!(markdown(&[]), "");
    }
}
