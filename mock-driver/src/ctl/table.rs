//! Tables: columns as wide as their cells, and control characters escaped.

use std::fmt::Write;

/// Maximum width to which a cell widens its column; a longer one shifts only the rest of its own row.
const WIDEST: usize = 256;

/// A table.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

// === impl Table ===

impl Table {
    pub(super) fn new<const N: usize>(head: [&str; N]) -> Self {
        Self {
            rows: vec![head.map(str::to_owned).to_vec()],
        }
    }

    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.iter().map(|cell| shown(cell)).collect());
    }

    /// The table as text, with a last line about the number of further items.
    pub(super) fn text(&self, matched: Option<usize>) -> String {
        let mut widths: Vec<usize> = Vec::new();
        for row in &self.rows {
            widths.resize(widths.len().max(row.len()), 0);
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count().min(WIDEST));
            }
        }
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths);
            let cells: Vec<String> = cells.map(|(cell, width)| padded(cell, *width)).collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        let shown = self.rows.len() - 1;
        if let Some(matched) = matched.filter(|matched| *matched > shown) {
            writeln!(text, "({shown} of {matched}; --limit and --after show others)")
                .expect("a string must take any text");
        }
        text
    }
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

/// A size with a binary unit.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
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
        let mut table = Table::new(["ID", "NAME"]);
        table.row(["vol-10".into(), String::new()]);
        table.row(["a".into(), "evil\u{1b}[2J".into()]);
        assert_eq!(
            table.text(Some(3)),
            "ID      NAME\nvol-10  -\na       evil\u{fffd}[2J\n(2 of 3; --limit and --after show others)\n"
        );
        assert!(!table.text(Some(2)).contains('('));
    }

    #[test]
    fn a_cell_of_any_length_is_shown_and_leaves_the_other_rows_narrow() {
        let mut table = Table::new(["ID", "NAME"]);
        table.row(["a".repeat(70_000), "b".into()]);
        table.row(["c".into(), "d".into()]);
        let text = table.text(None);
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
            ((1 << 30) + 512, "1073742336 B"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
