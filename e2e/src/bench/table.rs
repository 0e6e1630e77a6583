//! What was measured, for people and for programs.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::Contender;

/// What one contender took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Measured {
    /// Attaches a second in the burst.
    pub attach_rate: f64,
    /// Detaches a second in the burst.
    pub detach_rate: f64,
    /// Median milliseconds from a VolumeAttachment's appearance to `attached`.
    pub attach_p50: Option<f64>,
    /// 99th percentile of the same.
    pub attach_p99: Option<f64>,
    /// Median milliseconds from the deletion timestamp to the end.
    pub detach_p50: Option<f64>,
    /// 99th percentile of the same.
    pub detach_p99: Option<f64>,
    /// Processor seconds of the attacher for the burst, both ways.
    pub cpu: Option<f64>,
    /// Largest resident set in MB.
    pub memory: Option<f64>,
    /// VolumeAttachment writes for each attach, from the API server's own count.
    pub writes_per_attach: f64,
    /// VolumeAttachment writes for each detach.
    pub writes_per_detach: f64,
    /// PersistentVolume writes for each volume.
    pub writes_per_volume: f64,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Who.
    pub contender: String,
    /// Medians over the rounds.
    pub measured: Measured,
}

type Field = fn(&mut Measured) -> &mut f64;
type OptionalField = fn(&mut Measured) -> &mut Option<f64>;

const FIELDS: [Field; 5] = [
    |m| &mut m.attach_rate,
    |m| &mut m.detach_rate,
    |m| &mut m.writes_per_attach,
    |m| &mut m.writes_per_detach,
    |m| &mut m.writes_per_volume,
];
const OPTIONAL_FIELDS: [OptionalField; 6] = [
    |m| &mut m.attach_p50,
    |m| &mut m.attach_p99,
    |m| &mut m.detach_p50,
    |m| &mut m.detach_p99,
    |m| &mut m.cpu,
    |m| &mut m.memory,
];

/// The median of each figure over the rounds, in the order of `contenders`.
pub(super) fn medians(contenders: &[Contender], rounds: &[(Contender, Measured)]) -> Vec<Row> {
    contenders
        .iter()
        .map(|contender| {
            let mut all: Vec<Measured> = rounds
                .iter()
                .filter(|(who, _)| who == contender)
                .map(|(_, measured)| *measured)
                .collect();
            let mut measured = Measured::default();
            for field in FIELDS {
                *field(&mut measured) = median(all.iter_mut().map(|m| *field(m)).collect()).unwrap_or(0.0);
            }
            for field in OPTIONAL_FIELDS {
                *field(&mut measured) = median(all.iter_mut().filter_map(|m| *field(m)).collect());
            }
            Row {
                contender: contender.to_string(),
                measured,
            }
        })
        .collect()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[n / 2]),
        n => Some((values[n / 2 - 1] + values[n / 2]) / 2.0),
    }
}

/// The value below which `percent` of the samples lie, in milliseconds.
pub(super) fn percentile(samples: &mut [Duration], percent: usize) -> Option<f64> {
    samples.sort_unstable();
    let index = (samples.len() * percent / 100).min(samples.len().checked_sub(1)?);
    Some(samples[index].as_secs_f64() * 1e3)
}

/// The rows as a Markdown table.
pub fn markdown(rows: &[Row]) -> String {
    let mut table = String::from(
        "| | attach/s | detach/s | attach p50/p99 ms | detach p50/p99 ms | CPU s | peak MB | VA writes attach/detach | PV writes |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
    for Row {
        contender,
        measured: m,
    } in rows
    {
        writeln!(
            table,
            "| {contender} | {:.0} | {:.0} | {} / {} | {} / {} | {} | {} | {:.2} / {:.2} | {:.2} |",
            m.attach_rate,
            m.detach_rate,
            optional(m.attach_p50),
            optional(m.attach_p99),
            optional(m.detach_p50),
            optional(m.detach_p99),
            m.cpu.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.2}")),
            optional(m.memory),
            m.writes_per_attach,
            m.writes_per_detach,
            m.writes_per_volume,
        )
        .expect("writing to a string must not fail");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles_are_what_they_say() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        let mut samples: Vec<_> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut samples, 50), Some(51.0));
        assert_eq!(percentile(&mut samples, 99), Some(100.0));
        assert_eq!(percentile(&mut [], 50), None);
    }
}
