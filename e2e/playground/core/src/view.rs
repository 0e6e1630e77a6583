//! Draws a snapshot. Pure: the same snapshot draws the same cells.
//!
//! Uses only colours of the terminal's palette that are readable on dark and light backgrounds in most themes, and the
//! terminal's background.

mod panel;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Wrap};

use super::action::{Action, BINDINGS, Command};
use super::snapshot::Snapshot;
use crate::narrate::TimelineRow;
use panel::panels;

const GOOD: Style = Style::new().fg(Color::Green);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const CHANGING: Style = Style::new().fg(Color::Magenta);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const PLAIN: Style = Style::new();

/// Minimum height of the timeline, including its title.
const TIMELINE: u16 = 7;
/// Rows of panels above the timeline.
const PANEL_ROWS: u16 = 3;
/// Relative widths of the panels of each row.
const PANEL_WIDTHS: [[u16; 2]; 3] = [[1, 1], [2, 3], [1, 1]];
/// Minimum width at which the timeline shows the full names of the components.
const WIDE: u16 = 110;

/// What covers the panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overlay {
    Help,
    /// What `kubectl csi-attach explain -A` prints.
    Explanation,
}

/// The user's selection in the view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) volume: usize,
    pub(crate) overlay: Option<Overlay>,
    /// Text of the explanation, and the number of its lines above the overlay.
    pub(crate) explanation: String,
    pub(crate) scrolled: usize,
    /// Whether the keys for faults are enabled.
    pub(crate) can_break: bool,
    /// URL of the web page; empty without one.
    pub(crate) page: String,
}

// === impl Choice ===

impl Choice {
    /// Applies a command about the view.
    pub(crate) fn apply(&mut self, command: Command, volumes: usize) {
        let volumes = volumes.max(1);
        match (command, self.overlay) {
            (Command::NextVolume, Some(Overlay::Explanation)) => {
                let last = self.explanation.lines().count().saturating_sub(1);
                self.scrolled = (self.scrolled + 1).min(last);
            }
            (Command::PreviousVolume, Some(Overlay::Explanation)) => {
                self.scrolled = self.scrolled.saturating_sub(1);
            }
            (Command::NextVolume, _) => self.volume = (self.volume + 1) % volumes,
            (Command::PreviousVolume, _) => self.volume = (self.volume + volumes - 1) % volumes,
            (Command::Help, _) => self.toggle(Overlay::Help),
            (Command::Explain, _) => self.toggle(Overlay::Explanation),
            (Command::Close, _) => self.overlay = None,
            (Command::Toggle(_) | Command::Step | Command::Resume | Command::Quit, _) => {}
        }
    }

    fn toggle(&mut self, overlay: Overlay) {
        self.overlay = (self.overlay != Some(overlay)).then_some(overlay);
        self.scrolled = 0;
    }
}

/// Draws the view.
pub(crate) fn draw(frame: &mut Frame<'_>, snapshot: &Snapshot, choice: &Choice) {
    let area = frame.area();
    let chapter = wrap(&snapshot.chapter, area.width.into());
    let chapter_height = u16::try_from(chapter.len()).unwrap_or(0).min(area.height / 5);
    let panels = panels(snapshot);
    let columns = |row: usize, area: Rect| -> [Rect; 2] {
        let widths = PANEL_WIDTHS[row].map(Constraint::Fill);
        Layout::horizontal(widths).spacing(1).areas(area)
    };
    let notice_height = u16::from(!snapshot.notice.is_empty());
    let free = area
        .height
        .saturating_sub(2 + notice_height + chapter_height + TIMELINE);
    let wanted = |row: usize| {
        let heights = panels[row].iter().zip(columns(row, area));
        heights
            .map(|(panel, area)| panel.height(area.width))
            .max()
            .unwrap_or(0)
    };
    let height = |row: usize| Constraint::Length(wanted(row).min(free / PANEL_ROWS));
    let [title, story, first, second, third, timeline, notice, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(chapter_height),
        height(0),
        height(1),
        height(2),
        Constraint::Min(3),
        Constraint::Length(notice_height),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(title_line(snapshot, choice), title);
    let chapter: Vec<_> = chapter.into_iter().map(|line| Line::styled(line, BOLD)).collect();
    frame.render_widget(Paragraph::new(chapter), story);
    for ((row, area), panels) in [first, second, third].into_iter().enumerate().zip(panels) {
        for (area, panel) in columns(row, area).into_iter().zip(panels) {
            panel.draw(frame, area);
        }
    }
    draw_timeline(frame, timeline, snapshot, choice);
    frame.render_widget(Line::styled(snapshot.notice.as_str(), CHANGING), notice);
    draw_footer(frame, footer, snapshot, choice);
    match choice.overlay {
        Some(Overlay::Help) => draw_help(frame, snapshot, choice),
        Some(Overlay::Explanation) => draw_explanation(frame, snapshot, choice),
        None => {}
    }
}

// === lines ===

fn title_line(snapshot: &Snapshot, choice: &Choice) -> Line<'static> {
    let mut spans = vec![
        Span::styled("playground", BOLD),
        Span::raw(format!("  {:.0} s  ", snapshot.elapsed)),
    ];
    match snapshot.broken.is_empty() {
        true => spans.push(Span::styled("no faults active", GOOD)),
        false => spans.push(Span::styled(snapshot.broken.join(", "), BAD)),
    }
    if snapshot.is_paused {
        spans.push(Span::styled("  paused: space steps, Enter goes on", CHANGING));
    }
    spans.push(Span::styled(format!("  {}", choice.page), DIM));
    Line::from(spans)
}

/// The keys that fit; those for help and quitting always do.
fn draw_footer(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot, choice: &Choice) {
    let faults = BINDINGS.iter().filter_map(|binding| {
        let action = binding.command.action()?;
        let word = action.word(snapshot.has_fault(action));
        Some(format!("{} {word}", binding.key))
    });
    let others: &[&str] = match choice.can_break {
        true => &["e explain", "space pause"],
        false => &["e explain", "space pause, step", "Enter go on", "up/down volume"],
    };
    let others = others.iter().map(|&key| key.to_owned());
    let keys = faults.filter(|_| choice.can_break).chain(others);
    let last = match area.width < WIDE && choice.can_break {
        true => "? q",
        false => "? help  q quit",
    };
    let room = usize::from(area.width).saturating_sub(last.len());
    let mut text = String::new();
    for key in keys {
        if text.len() + key.len() + 2 > room {
            break;
        }
        text.push_str(&key);
        text.push_str("  ");
    }
    frame.render_widget(Span::styled(text + last, DIM), area);
}

fn draw_timeline(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot, choice: &Choice) {
    let volume = snapshot.volumes.get(choice.volume).map_or("", String::as_str);
    let mut title = vec![Span::styled("Timeline of ", BOLD)];
    title.extend(snapshot.volumes.iter().enumerate().flat_map(|(index, name)| {
        let style = if index == choice.volume {
            BOLD.add_modifier(Modifier::REVERSED)
        } else {
            PLAIN
        };
        [Span::styled(format!(" {name} "), style), Span::raw(" ")]
    }));
    let block = Block::new().borders(Borders::TOP).title(Line::from(title));
    let actor_width = if area.width < WIDE { 13 } else { 24 };
    let text_width = usize::from(area.width).saturating_sub(8 + 2 + actor_width + 1);
    let room = usize::from(area.height.saturating_sub(1));
    let mut lines: Vec<Line<'static>> = Vec::new();
    for (row, times) in collapsed(snapshot.timeline_of(volume).collect())
        .into_iter()
        .rev()
    {
        let actor: String = row.actor.chars().take(actor_width).collect();
        let text = match times {
            1 => row.text.clone(),
            times => format!("{} ({times} times)", row.text),
        };
        let texts = wrap(&text, text_width);
        for (index, text) in texts.into_iter().enumerate().rev() {
            let first = index == 0;
            let time = if first {
                format!("{:8.2}", row.at)
            } else {
                " ".repeat(8)
            };
            let actor = if first { actor.as_str() } else { "" };
            lines.push(Line::from(vec![
                Span::styled(format!("{time}  "), DIM),
                Span::styled(format!("{actor:<actor_width$} "), colour_of(&row.actor)),
                Span::raw(text),
            ]));
        }
        if lines.len() >= room {
            break;
        }
    }
    lines.truncate(room);
    lines.reverse();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// The rows without repetitions of up to three rows: the last of each, and how often it came. The measured durations of calls
/// may differ.
fn collapsed(rows: Vec<&TimelineRow>) -> Vec<(&TimelineRow, usize)> {
    let is_same = |a: &TimelineRow, b: &TimelineRow| {
        a.actor == b.actor && without_duration(&a.text) == without_duration(&b.text)
    };
    let mut collapsed: Vec<(&TimelineRow, usize)> = Vec::new();
    for row in rows {
        collapsed.push((row, 1));
        for length in 1..=3 {
            let Some(second) = collapsed.len().checked_sub(length) else {
                break;
            };
            let Some(first) = second.checked_sub(length) else {
                break;
            };
            let repeats = (first..second).all(|index| {
                let ((earlier, _), (later, times)) = (collapsed[index], collapsed[index + length]);
                times == 1 && is_same(earlier, later)
            });
            if repeats {
                for index in first..second {
                    collapsed[index] = (collapsed[index + length].0, collapsed[index].1 + 1);
                }
                collapsed.truncate(second);
                break;
            }
        }
    }
    collapsed
}

/// The text before and after the first `N ms`.
fn without_duration(text: &str) -> (&str, &str) {
    for (at, unit) in text.match_indices(" ms") {
        let before = text[..at].trim_end_matches(|c: char| c.is_ascii_digit());
        if before.len() < at {
            return (before, &text[at + unit.len()..]);
        }
    }
    (text, "")
}

fn colour_of(actor: &str) -> Style {
    match actor {
        "you" => BOLD,
        attacher if attacher.starts_with("attacher") => GOOD,
        "driver" => CHANGING,
        "attach/detach controller" => Style::new().fg(Color::Cyan),
        _ => PLAIN,
    }
}

fn draw_help(frame: &mut Frame<'_>, snapshot: &Snapshot, choice: &Choice) {
    let area = frame.area();
    let popup_width = area.width.min(90);
    let width = usize::from(popup_width.saturating_sub(2)).max(1);
    let about = match choice.can_break {
        true => "Pods with volumes move. A key injects a fault; the same key removes it.",
        false => "A story runs; the keys for faults are disabled.",
    };
    let mut lines: Vec<Line<'static>> = wrap(about, width).into_iter().map(Line::raw).collect();
    lines.extend(BINDINGS.iter().map(|binding| {
        let active = binding.command.action();
        let active = active.filter(|action| snapshot.has_fault(*action));
        let help = active.map_or(binding.help, Action::undo);
        Line::from(vec![
            Span::styled(format!("{:>5}  ", binding.key.to_string()), BOLD),
            Span::raw(help),
        ])
    }));
    lines.extend(in_another_terminal(snapshot, width));
    let height = u16::try_from(lines.len()).unwrap_or(0) + 2;
    let popup = area.centered(
        Constraint::Length(popup_width),
        Constraint::Length(height.min(area.height)),
    );
    frame.render_widget(Clear, popup);
    let block = Block::bordered().title(Span::styled("Help", BOLD));
    frame.render_widget(Paragraph::new(lines).block(block), popup);
}

/// The commands for another terminal, unbroken, so that they can be copied; and what has other names there.
fn in_another_terminal(snapshot: &Snapshot, width: usize) -> Vec<Line<'static>> {
    let export = format!("export KUBECONFIG={}", snapshot.kubeconfig);
    let mut lines = Vec::new();
    for command in [&export, &snapshot.explain_command] {
        let characters: Vec<char> = command.chars().collect();
        let parts = characters.chunks(width);
        lines.extend(parts.map(|part| Line::raw(part.iter().collect::<String>())));
    }
    let names = wrap(&snapshot.names, width).into_iter();
    lines.extend(names.map(|line| Line::styled(line, DIM)));
    lines
}

fn draw_explanation(frame: &mut Frame<'_>, snapshot: &Snapshot, choice: &Choice) {
    let area = frame.area();
    // The first line of the view has the active faults, the last one the keys.
    let popup = Rect {
        y: area.y + 1.min(area.height),
        height: area.height.saturating_sub(2),
        ..area
    };
    let style = |line: &str| match line.split_once(':') {
        Some((_, " STUCK") | ("STUCK", _)) => BAD,
        Some((_, " in progress") | ("in progress", _)) => CHANGING,
        Some((_, " fine")) => GOOD,
        _ => PLAIN,
    };
    let text = choice.explanation.lines().skip(choice.scrolled);
    let mut lines: Vec<_> = text
        .map(|line| Line::styled(line.to_owned(), style(line)))
        .collect();
    lines.push(Line::default());
    let width = usize::from(popup.width.saturating_sub(2)).max(1);
    lines.extend(in_another_terminal(snapshot, width));
    let block = Block::bordered()
        .title(Span::styled("What waits: kubectl csi-attach explain -A", BOLD))
        .title_bottom(Span::styled("Esc closes  up/down scrolls", DIM));
    frame.render_widget(Clear, popup);
    let paragraph = Paragraph::new(lines).wrap(Wrap { trim: false });
    frame.render_widget(paragraph.block(block), popup);
}

/// Breaks text at spaces into lines of at most `width` characters; a longer word gets a separate line.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests;
