//! Prometheus' text format (version 0.0.4), as the Go sidecar writes it.
//!
//! See docs/adr/0016-metrics-without-a-library.md for why this is not left to a library.

use std::fmt::Write as _;

use super::{Family, Histogram};

/// What `Content-Type` says of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text that grows, family by family. A family without a sample leaves no trace.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

/// One family of the text, to which samples are added.
#[derive(Debug)]
pub struct Samples<'e> {
    text: &'e mut String,
    family: &'static Family,
    begun: bool,
}

// === impl Exposition ===

impl Exposition {
    /// Begins a family. All its samples must follow before the next family.
    pub fn family(&mut self, family: &'static Family) -> Samples<'_> {
        Samples {
            text: &mut self.text,
            family,
            begun: false,
        }
    }

    /// A family with one sample and no labels.
    pub fn single(&mut self, family: &'static Family, value: f64) {
        self.family(family).sample(&[], value);
    }

    /// The text.
    pub fn into_text(self) -> String {
        self.text
    }
}

// === impl Samples ===

impl Samples<'_> {
    /// Adds one sample. `values` are those of the family's labels, in their order; labels at the end
    /// that get no value are left out.
    pub fn sample(&mut self, values: &[&str], value: f64) {
        self.begin();
        self.line("", values, None, value);
    }

    /// Adds one histogram.
    pub fn histogram(&mut self, values: &[&str], histogram: &Histogram) {
        self.begin();
        for (bound, count) in histogram.cumulative() {
            self.line("_bucket", values, Some(&number(bound)), count as f64);
        }
        let count = histogram.count() as f64;
        self.line("_bucket", values, Some("+Inf"), count);
        self.line("_sum", values, None, histogram.sum());
        self.line("_count", values, None, count);
    }

    fn begin(&mut self) {
        if self.begun {
            return;
        }
        self.begun = true;
        let Family { name, kind, help, .. } = self.family;
        self.text.push_str("# HELP ");
        self.text.push_str(name);
        self.text.push(' ');
        escape(help, false, self.text);
        self.text.push_str("\n# TYPE ");
        self.text.push_str(name);
        self.text.push(' ');
        self.text.push_str(kind.name());
        self.text.push('\n');
    }

    fn line(&mut self, suffix: &str, values: &[&str], le: Option<&str>, value: f64) {
        self.text.push_str(self.family.name);
        self.text.push_str(suffix);
        let labels = self.family.labels.iter().copied().zip(values.iter().copied());
        let mut separator = '{';
        for (label, value) in labels.chain(le.map(|bound| ("le", bound))) {
            self.text.push(separator);
            separator = ',';
            self.text.push_str(label);
            self.text.push_str("=\"");
            escape(value, true, self.text);
            self.text.push('"');
        }
        if separator == ',' {
            self.text.push('}');
        }
        self.text.push(' ');
        self.text.push_str(&number(value));
        self.text.push('\n');
    }
}

fn escape(value: &str, quoted: bool, text: &mut String) {
    for char in value.chars() {
        match char {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if quoted => text.push_str("\\\""),
            char => text.push(char),
        }
    }
}

/// A number as Go's `%g` spells it. The bounds of buckets are labels, so their spelling is part of a
/// series' name.
fn number(value: f64) -> String {
    const SMALLEST: f64 = 1e-4;
    const LARGEST: f64 = 1e6;
    if value == 0.0 || (SMALLEST..LARGEST).contains(&value.abs()) {
        return format!("{value}");
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let text = format!("{value:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else {
        return text; // NaN
    };
    let (sign, digits) = exponent
        .strip_prefix('-')
        .map_or(('+', exponent), |digits| ('-', digits));
    let mut spelt = String::with_capacity(text.len() + 2);
    // Writing to a String cannot fail.
    write!(spelt, "{mantissa}e{sign}{digits:0>2}").expect("a String must take all text");
    spelt
}

#[cfg(test)]
mod tests {
    use super::super::family::Kind;
    use super::*;

    static COUNTER: Family = Family {
        name: "c_total",
        kind: Kind::Counter,
        labels: &["a", "b"],
        help: "Two\nlines.",
    };
    static HISTOGRAM: Family = Family {
        name: "h_seconds",
        kind: Kind::Histogram,
        labels: &["a"],
        help: "Help.",
    };

    #[test]
    fn the_text_is_what_go_writes() {
        let mut exposition = Exposition::default();
        exposition.family(&COUNTER);
        let mut samples = exposition.family(&COUNTER);
        samples.sample(&["x", "q\"\\\n"], 3.0);
        samples.sample(&["y"], 1_234_567.0);
        let mut histogram = Histogram::new(&[1e-8, 0.1, 1.0]);
        histogram.observe(0.5);
        exposition.family(&HISTOGRAM).histogram(&["x"], &histogram);
        assert_eq!(
            exposition.into_text(),
            r#"# HELP c_total Two\nlines.
# TYPE c_total counter
c_total{a="x",b="q\"\\\n"} 3
c_total{a="y"} 1.234567e+06
# HELP h_seconds Help.
# TYPE h_seconds histogram
h_seconds_bucket{a="x",le="1e-08"} 0
h_seconds_bucket{a="x",le="0.1"} 0
h_seconds_bucket{a="x",le="1"} 1
h_seconds_bucket{a="x",le="+Inf"} 1
h_seconds_sum{a="x"} 0.5
h_seconds_count{a="x"} 1
"#
        );
    }

    #[test]
    fn numbers_are_spelt_as_in_go() {
        for (value, spelt) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.25, "0.25"),
            (600.0, "600"),
            (1e-4, "0.0001"),
            (9.999_999_999_999_999e-6, "9.999999999999999e-06"),
            (1e6, "1e+06"),
            (999_999.0, "999999"),
            (1.8446744073709552e19, "1.8446744073709552e+19"),
            (-1.5, "-1.5"),
            (f64::INFINITY, "+Inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(number(value), spelt);
        }
    }
}
