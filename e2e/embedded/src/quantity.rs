//! `resource.Quantity`: a fixed-point number with a suffix, written in canonical form.

use std::cmp::Ordering;

use k8s_openapi::apimachinery::pkg::api::resource;

/// Error text for a malformed quantity.
pub(crate) const SYNTAX: &str = "quantities must match the regular expression \
     '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

const NANO: i128 = 1_000_000_000;
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// Decimal suffixes and their powers of ten.
const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Decimal,
    Binary,
    Exponent,
}

/// A parsed quantity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantity {
    nanos: i128,
    format: Format,
}

// === impl Quantity ===

impl Quantity {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits_end = text
            .char_indices()
            .find(|(at, c)| !(c.is_ascii_digit() || *c == '.' || (*at == 0 && matches!(c, '+' | '-'))))
            .map_or(text.len(), |(at, _)| at);
        let (number, suffix) = text.split_at(digits_end);
        let (factor, format) = factor(suffix)?;
        let negative = number.starts_with('-');
        let number = number.trim_start_matches(['+', '-']);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let nanos = scaled(whole, fraction, factor);
        Some(Self {
            nanos: if negative { -nanos } else { nanos },
            format,
        })
    }

    pub(crate) fn cmp_zero(self) -> Ordering {
        self.nanos.cmp(&0)
    }

    pub(crate) fn compare(self, other: Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }

    /// The amount in whole units, rounded away from 0 (`Quantity.Value`).
    pub(crate) fn whole_units(self) -> i64 {
        let units = self.nanos.unsigned_abs().div_ceil(NANO.unsigned_abs());
        let units = i64::try_from(units).unwrap_or(i64::MAX);
        if self.nanos < 0 { -units } else { units }
    }

    /// Rounds up to thousandths, as resource lists are stored.
    #[must_use]
    pub(crate) fn round_up_to_milli(self) -> Self {
        let milli = NANO / 1000;
        let nanos = self.nanos.div_euclid(milli) * milli;
        Self {
            nanos: if nanos < self.nanos { nanos + milli } else { nanos },
            ..self
        }
    }
}

impl std::fmt::Display for Quantity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let whole = self.nanos % NANO == 0;
        if self.format == Format::Binary && whole && (self.nanos / NANO).abs() >= 1024 {
            let mut value = self.nanos / NANO;
            let mut power = 0;
            while value % 1024 == 0 && power + 1 < BINARY.len() {
                value /= 1024;
                power += 1;
            }
            return write!(f, "{value}{}", BINARY[power]);
        }
        let (mut value, mut exponent) = (self.nanos, -9);
        while value % 1000 == 0 && exponent < 18 {
            value /= 1000;
            exponent += 3;
        }
        if self.format == Format::Exponent && exponent != 0 {
            return write!(f, "{value}e{exponent}");
        }
        let suffix = DECIMAL.iter().find(|(_, power)| *power == exponent);
        write!(f, "{value}{}", suffix.map_or("", |(suffix, _)| suffix))
    }
}

/// The bytes of a size; `None` if it is not a quantity.
pub(crate) fn bytes(size: &resource::Quantity) -> Option<i64> {
    Quantity::parse(&size.0).map(Quantity::whole_units)
}

/// What a suffix multiplies by, in billionths, and the format it stands for.
fn factor(suffix: &str) -> Option<(i128, Format)> {
    if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((10_i128.pow(u32::try_from(power + 9).ok()?), Format::Decimal));
    }
    if let Some(power) = BINARY.iter().position(|name| *name == suffix) {
        return Some((NANO << (10 * power), Format::Binary));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let power = u32::try_from(exponent.clamp(-9, 18) + 9).ok()?;
    Some((10_i128.pow(power), Format::Exponent))
}

/// The number times the factor, rounded up to whole billionths and capped far above what Kubernetes allows.
fn scaled(whole: &str, fraction: &str, factor: i128) -> i128 {
    let mut nanos: i128 = whole.bytes().fold(0_i128, |value, digit| {
        value.saturating_mul(10).saturating_add(i128::from(digit - b'0'))
    });
    nanos = nanos.saturating_mul(factor);
    let (mut unit, mut rest) = (factor, 0_i128);
    let mut remainder = false;
    for digit in fraction.bytes() {
        remainder |= unit % 10 != 0 && digit != b'0';
        unit /= 10;
        rest += unit * i128::from(digit - b'0');
        remainder |= unit == 0 && digit != b'0';
    }
    nanos.saturating_add(rest).saturating_add(i128::from(remainder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_canonical_form() {
        for (text, canonical) in [
            ("1", "1"),
            ("0", "0"),
            ("1024", "1024"),
            ("1024Mi", "1Gi"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1.5Gi", "1536Mi"),
            ("0.5", "500m"),
            ("1e3", "1e3"),
            ("12e6", "12e6"),
            ("1000", "1k"),
            ("123456Ki", "123456Ki"),
            ("-1Gi", "-1Gi"),
            ("512Ki", "512Ki"),
            ("100", "100"),
        ] {
            let parsed = Quantity::parse(text).map(|quantity| quantity.to_string());
            assert_eq!(parsed.as_deref(), Some(canonical), "{text}");
        }
    }

    #[test]
    fn refuses_invalid_quantities() {
        for text in ["", "abc", "1Q", "1.2.3", ".", "1 Gi", "Gi"] {
            assert!(Quantity::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn sizes_are_rounded_to_whole_bytes_away_from_zero() {
        let cases = [
            ("1", Some(1)),
            ("1n", Some(1)),
            ("1u", Some(1)),
            ("100m", Some(1)),
            ("-1500m", Some(-2)),
            ("1.5Ki", Some(1536)),
            ("2e3", Some(2000)),
            ("9007199254740993", Some(9_007_199_254_740_993)),
            ("1024Pi", Some(1 << 60)),
            ("1Ei", Some(1 << 60)),
            ("1E", Some(1_000_000_000_000_000_000)),
            ("16Ei", Some(i64::MAX)),
            ("-16Ei", Some(-i64::MAX)),
            ("1x", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(bytes(&resource::Quantity(text.to_owned())), expected, "{text}");
        }
    }
}
