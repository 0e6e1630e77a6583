//! Prometheus metrics.
//!
//! Counters and histograms live beside the code that increments them; gauges are computed at each scrape, so they
//! cannot drift. A [`Scrape`] collects both.

pub(crate) mod process;

use prometheus::core::Collector;
use prometheus::{
    CounterVec, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry,
    TextEncoder,
};

/// Content type of [`Scrape::text`].
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The bounds of client-go's workqueue histograms: powers of ten by repeated multiplication.
pub(crate) const WORKQUEUE_BOUNDS: &[f64] = &[
    1e-8,
    1e-7,
    1e-6,
    9.999_999_999_999_999e-6,
    9.999_999_999_999_999e-5,
    0.001,
    0.01,
    0.1,
    1.0,
    10.0,
];

const VALID: &str = "names, labels and bounds must be valid";

/// The metric families of one scrape.
#[derive(Debug, Default)]
pub(crate) struct Scrape(Registry);

// === impl Scrape ===

impl Scrape {
    /// Adds metrics that live longer than the scrape.
    pub(crate) fn add(&self, metrics: impl Collector + 'static) {
        self.0
            .register(Box::new(metrics))
            .expect("a family must be added once");
    }

    pub(crate) fn gauge(&self, name: &str, help: &str, value: f64) {
        self.gauges(name, help, [], [([], value)]);
    }

    pub(crate) fn counter(&self, name: &str, help: &str, value: f64) {
        self.counters(name, help, [], [([], value)]);
    }

    /// Adds a family of gauges with the values of their labels.
    pub(crate) fn gauges<'v, const N: usize>(
        &self,
        name: &str,
        help: &str,
        labels: [&str; N],
        samples: impl IntoIterator<Item = ([&'v str; N], f64)>,
    ) {
        let family = GaugeVec::new(Opts::new(name, help), &labels).expect(VALID);
        for (values, value) in samples {
            family.with_label_values(&values).set(value);
        }
        self.add(family);
    }

    /// Adds a family of counters with the values of their labels.
    pub(crate) fn counters<'v, const N: usize>(
        &self,
        name: &str,
        help: &str,
        labels: [&str; N],
        samples: impl IntoIterator<Item = ([&'v str; N], f64)>,
    ) {
        let family = CounterVec::new(Opts::new(name, help), &labels).expect(VALID);
        for (values, value) in samples {
            family.with_label_values(&values).inc_by(value);
        }
        self.add(family);
    }

    /// All families in Prometheus' text format. A label with an empty value is omitted, which means the same.
    pub(crate) fn text(&self) -> String {
        let mut families = self.0.gather();
        for metric in families.iter_mut().flat_map(|family| family.mut_metric()) {
            let mut labels = metric.take_label();
            labels.retain(|label| !label.value().is_empty());
            metric.set_label(labels);
        }
        let text = TextEncoder::new()
            .encode_to_string(&families)
            .expect("gathered families can be encoded");
        spell_bounds_as_go(text)
    }
}

/// A bound is a label, so its spelling is part of a series' name. The library spells small ones without an exponent.
fn spell_bounds_as_go(text: String) -> String {
    let small = WORKQUEUE_BOUNDS.iter().filter(|bound| **bound < 1e-4);
    small.fold(text, |text, bound| {
        let go = format!("{bound:e}").replace("e-", "e-0");
        text.replace(&format!("le=\"{bound}\""), &format!("le=\"{go}\""))
    })
}

pub(crate) fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::new(name, help).expect(VALID)
}

pub(crate) fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    IntCounterVec::new(Opts::new(name, help), labels).expect(VALID)
}

pub(crate) fn histogram(name: &str, help: &str, bounds: &[f64]) -> Histogram {
    Histogram::with_opts(HistogramOpts::new(name, help).buckets(bounds.to_vec())).expect(VALID)
}

pub(crate) fn histograms(name: &str, help: &str, labels: &[&str], bounds: &[f64]) -> HistogramVec {
    HistogramVec::new(HistogramOpts::new(name, help).buckets(bounds.to_vec()), labels).expect(VALID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_text_like_the_go_client() {
        let scrape = Scrape::default();
        scrape.gauges("empty", "Help.", ["a"], []);
        scrape.counters(
            "c_total",
            "Two\nlines.",
            ["a", "b"],
            [(["x", "q\"\\\n"], 3.0), (["y", ""], 0.5)],
        );
        let histogram = histograms("h_seconds", "Help.", &["a"], WORKQUEUE_BOUNDS);
        histogram.with_label_values(&["x"]).observe(0.5);
        scrape.add(histogram);
        assert_eq!(
            scrape.text(),
            r#"# HELP c_total Two\nlines.
# TYPE c_total counter
c_total{a="x",b="q\"\\\n"} 3
c_total{a="y"} 0.5
# HELP h_seconds Help.
# TYPE h_seconds histogram
h_seconds_bucket{a="x",le="1e-08"} 0
h_seconds_bucket{a="x",le="1e-07"} 0
h_seconds_bucket{a="x",le="1e-06"} 0
h_seconds_bucket{a="x",le="9.999999999999999e-06"} 0
h_seconds_bucket{a="x",le="9.999999999999999e-05"} 0
h_seconds_bucket{a="x",le="0.001"} 0
h_seconds_bucket{a="x",le="0.01"} 0
h_seconds_bucket{a="x",le="0.1"} 0
h_seconds_bucket{a="x",le="1"} 1
h_seconds_bucket{a="x",le="10"} 1
h_seconds_bucket{a="x",le="+Inf"} 1
h_seconds_sum{a="x"} 0.5
h_seconds_count{a="x"} 1
"#
        );
    }
}
