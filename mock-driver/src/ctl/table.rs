//! Tables: columns as wide as their cells, and control characters escaped.

use std::iter;

/// Maximum width to which a cell widens its column; a longer one shifts only the rest of its own row.
const WIDEST: usize = 256;

/// A table as text, with a last line about the number of further items.
pub(super) fn table(
    head: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
    matched: Option<usize>,
) -> String {
    let head = head.iter().map(|cell| (*cell).to_owned()).collect();
    let escaped = |row: Vec<String>| row.iter().map(|cell| shown(cell)).collect();
    let rows: Vec<Vec<String>> = iter::once(head).chain(rows.into_iter().map(escaped)).collect();
    let mut widths = vec![0; rows[0].len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().min(WIDEST).max(*width);
        }
    }
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells.map(|(cell, width)| padded(cell, *width)).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    let shown = rows.len() - 1;
    if let Some(matched) = matched.filter(|matched| *matched > shown) {
        text.push_str(&format!(
            "({shown} of {matched}; --limit and --after show others)\n"
        ));
    }
    text
}

/// A cell padded to a width. The standard library's padding panics beyond 65,535.
fn padded(cell: &str, width: usize) -> String {
    let missing = width.saturating_sub(cell.chars().count());
    format!("{cell}{}", " ".repeat(missing))
}

/// Escapes control characters, which names from other programs may contain and a terminal would interpret.
pub(super) fn shown(text: &str) -> String {
    if text.is_empty() {
        return "-".to_owned();
    }
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(plain).collect()
}

pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut whole, mut unit) = (bytes, 0);
    while whole >= 1024 && whole % 1024 == 0 && unit < UNITS.len() - 1 {
        whole /= 1024;
        unit += 1;
    }
    format!("{whole} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let rows = [
            vec!["vol-10".into(), String::new()],
            vec!["a".into(), "evil\u{1b}[2J".into()],
        ];
        let text = |matched| table(&["ID", "NAME"], rows.clone(), Some(matched));
        assert_eq!(
            text(3),
            "ID      NAME\nvol-10  -\na       evil\u{fffd}[2J\n(2 of 3; --limit and --after show others)\n"
        );
        assert!(!text(2).contains('('));
    }

    #[test]
    fn a_cell_of_any_length_is_shown_and_leaves_the_other_rows_narrow() {
        let rows = [vec!["a".repeat(70_000), "b".into()], vec!["c".into(), "d".into()]];
        let text = table(&["ID", "NAME"], rows, None);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows[1], format!("{}  b", "a".repeat(70_000)));
        assert_eq!(rows[2], format!("c{}d", " ".repeat(WIDEST + 1)));
    }

    #[test]
    fn sizes_are_never_rounded() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1 << 30, "1 GiB"),
            (1 << 60, "1 EiB"),
            ((1 << 30) + 512, "1073742336 B"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
