//! Sizes of quantities.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The value of a quantity, rounded up, or `None` if it is not one.
pub(crate) fn bytes(quantity: &Quantity) -> Option<i64> {
    let text = quantity.0.as_str();
    let unit = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(unit);
    let factor: f64 = match suffix {
        "" => 1.0,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0 * 1024.0 * 1024.0,
        "Ti" => 1024.0_f64.powi(4),
        "Pi" => 1024.0_f64.powi(5),
        exponent => exponent
            .strip_prefix(['e', 'E'])
            .and_then(|exponent| exponent.parse().ok())
            .map(|exponent: i32| 10_f64.powi(exponent))?,
    };
    let value = (number.parse::<f64>().ok()? * factor).ceil();
    // Volumes are far smaller than the limit of exact integers in a float.
    #[allow(clippy::cast_possible_truncation, reason = "the range is checked")]
    (0.0..9e15).contains(&value).then_some(value as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_all_suffixes() {
        let cases = [
            ("1", Some(1)),
            ("1Gi", Some(1 << 30)),
            ("1.5Ki", Some(1536)),
            ("100m", Some(1)),
            ("2e3", Some(2000)),
            ("1x", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(bytes(&Quantity(text.to_owned())), expected, "{text}");
        }
    }
}
