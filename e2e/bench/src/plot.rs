//! Bar charts as SVG, one per row: a panel for each quantity, a bar for each implementation, a line from the
//! smallest to the largest round.

use std::fmt::Write as _;

use super::quantity::{Better, Quantity};
use super::report::RowReport;

const WIDTH: f64 = 760.0;
/// Left end of all bars, and right end of the longest.
const BARS: (f64, f64) = (130.0, 640.0);
const BAR: f64 = 20.0;
const GAP: f64 = 6.0;
const TITLE: f64 = 44.0;
const PANEL_TITLE: f64 = 28.0;

/// The row as an SVG; `None` if nothing was measured.
pub fn svg(row: &RowReport) -> Option<String> {
    let panels: Vec<_> = row
        .quantities()
        .into_iter()
        .map(|quantity| Panel::new(row, quantity))
        .collect();
    if panels.is_empty() {
        return None;
    }
    let height = TITLE + panels.iter().map(Panel::height).sum::<f64>() + GAP;
    let mut text = String::new();
    draw(&mut text, row, &panels, height).expect("writing to a string must not fail");
    Some(text)
}

struct Panel<'a> {
    quantity: Quantity,
    bars: Vec<Bar<'a>>,
    longest: f64,
}

struct Bar<'a> {
    implementation: &'a str,
    median: f64,
    range: (f64, f64),
}

// === impl Panel ===

impl<'a> Panel<'a> {
    fn new(row: &'a RowReport, quantity: Quantity) -> Self {
        let bars: Vec<_> = row
            .implementations
            .iter()
            .filter_map(|implementation| {
                let found = implementation.figures.get(&quantity)?;
                Some(Bar {
                    implementation: &implementation.implementation,
                    median: found.median,
                    range: found.range(),
                })
            })
            .collect();
        let longest = bars.iter().map(|bar| bar.range.1).fold(0.0, f64::max);
        Self {
            quantity,
            bars,
            longest,
        }
    }

    fn height(&self) -> f64 {
        PANEL_TITLE + self.bars.len() as f64 * (BAR + GAP) + GAP
    }

    /// Horizontal position of a value.
    fn x(&self, value: f64) -> f64 {
        let (begin, end) = BARS;
        if self.longest > 0.0 {
            begin + (end - begin) * value / self.longest
        } else {
            begin
        }
    }

    fn draw(&self, text: &mut String, top: f64) -> std::fmt::Result {
        let better = match self.quantity.better() {
            Better::More => "more is better",
            Better::Less => "less is better",
        };
        writeln!(
            text,
            r#"<text x="12" y="{:.0}" class="h">{} <tspan class="n">({better})</tspan></text>"#,
            top + 18.0,
            escaped(self.quantity.title())
        )?;
        for (index, bar) in self.bars.iter().enumerate() {
            let y = top + PANEL_TITLE + index as f64 * (BAR + GAP);
            let middle = y + BAR / 2.0;
            let (least, most) = (self.x(bar.range.0), self.x(bar.range.1));
            writeln!(
                text,
                r#"<text x="{:.0}" y="{:.1}" text-anchor="end">{}</text>"#,
                BARS.0 - 8.0,
                middle + 4.0,
                escaped(bar.implementation)
            )?;
            writeln!(
                text,
                r#"<rect x="{:.1}" y="{y:.1}" width="{:.1}" height="{BAR}" rx="2" fill="{}"/>"#,
                BARS.0,
                // A bar of width 0 would be invisible.
                (self.x(bar.median) - BARS.0).max(1.0),
                colour(bar.implementation)
            )?;
            if most - least > 1.0 {
                writeln!(
                    text,
                    r#"<path d="M{least:.1} {middle:.1}H{most:.1}M{least:.1} {:.1}v8M{most:.1} {:.1}v8" class="w"/>"#,
                    middle - 4.0,
                    middle - 4.0
                )?;
            }
            writeln!(
                text,
                r#"<text x="{:.1}" y="{:.1}">{}</text>"#,
                most.max(self.x(bar.median)) + 8.0,
                middle + 4.0,
                self.quantity.text(bar.median)
            )?;
        }
        Ok(())
    }
}

fn draw(text: &mut String, row: &RowReport, panels: &[Panel<'_>], height: f64) -> std::fmt::Result {
    writeln!(
        text,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">"#
    )?;
    writeln!(
        text,
        "<style>text{{font:13px sans-serif;fill:#222}}.t{{font-size:17px;font-weight:bold}}.h{{font-weight:bold}}\
         .n{{font-weight:normal;fill:#666}}.w{{stroke:#222;stroke-width:1.2;fill:none}}</style>"
    )?;
    writeln!(text, r##"<rect width="100%" height="100%" fill="#fff"/>"##)?;
    writeln!(
        text,
        r#"<text x="12" y="28" class="t">{}</text>"#,
        escaped(&row.title)
    )?;
    let mut top = TITLE;
    for panel in panels {
        panel.draw(text, top)?;
        top += panel.height();
    }
    writeln!(text, "</svg>")
}

fn colour(implementation: &str) -> &'static str {
    match implementation.split('-').next() {
        Some("ours") => "#c8552b",
        Some("go") => "#3f8fb5",
        _ => "#a8a8a8",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::mk_report;
    use super::super::statistic::Summary;
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let report = mk_report(
            "burst",
            Quantity::Cpu,
            &[("ours-10", 1.0), ("go-10", 4.0), ("limit-16", 0.0)],
        );
        let picture = svg(&report.rows[0]).expect("there is something to draw");
        let widths: Vec<f64> = picture
            .split(r#"width=""#)
            .skip(3)
            .filter_map(|rest| rest.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(widths, [127.5, 510.0, 1.0]);
        assert!(picture.contains("less is better"));
        assert!(!picture.contains(r#"class="w"/>"#), "one round has no range");
    }

    #[test]
    fn the_range_of_the_rounds_is_marked_and_fits() {
        let mut report = mk_report("burst", Quantity::Cpu, &[("ours-10", 1.0)]);
        let figures = &mut report.rows[0].implementations[0].figures;
        figures.insert(Quantity::Cpu, Summary::of(vec![1.0, 2.0, 4.0]).expect("rounds"));
        let picture = svg(&report.rows[0]).expect("there is something to draw");
        assert!(picture.contains("M257.5 "), "{picture}");
        assert!(picture.contains("H640.0"), "{picture}");
    }

    #[test]
    fn names_cannot_break_the_picture() {
        let mut report = mk_report("burst", Quantity::Cpu, &[("ours-10", 1.0)]);
        report.rows[0].title = "a < b & c".to_owned();
        let picture = svg(&report.rows[0]).expect("there is something to draw");
        assert!(picture.contains("a &lt; b &amp; c"));
        report.rows[0].implementations.clear();
        assert_eq!(svg(&report.rows[0]), None);
    }
}
