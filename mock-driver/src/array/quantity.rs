/// Suffixes of Kubernetes' resource quantities.
const UNITS: [(&str, u64); 13] = [
    ("", 1),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
];

/// Parses `64Mi`, `2G` or `4096`; `None` for other texts, and for more than 64 bits.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (_, unit) = UNITS.into_iter().find(|(unit, _)| *unit == suffix)?;
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_with_every_suffix() {
        for (text, expected) in [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("64Mi", Some(64 << 20)),
            ("2G", Some(2_000_000_000)),
            ("3k", Some(3000)),
            ("1Pi", Some(1 << 50)),
            ("15Ei", Some(15 << 60)),
            ("1P", Some(1_000_000_000_000_000)),
            ("16Ei", None),
            ("", None),
            ("Mi", None),
            ("+5", None),
            ("-1Mi", None),
            ("1.5Gi", None),
            ("1ki", None),
            ("1 Mi", None),
            ("1MiB", None),
        ] {
            assert_eq!(bytes(text), expected, "{text:?}");
        }
    }
}
