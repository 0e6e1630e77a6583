//! The panels above the timeline: a table for each component.

use ratatui::Frame;
use ratatui::layout::{Constraint, Flex, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table};

use super::{BAD, BOLD, CHANGING, DIM, GOOD, PLAIN, wrap};
use crate::snapshot::{ArrayRow, AttachmentRow, LaneRow, NodeRow, PodRow, Snapshot, WorldRow};

/// Maximum number of lines of a row.
const WRAPPED: usize = 6;

/// A table with a title.
pub(super) struct Panel {
    title: &'static str,
    header: &'static [&'static str],
    widths: Vec<Constraint>,
    /// The rows, or the reason that there are none.
    rows: Result<Vec<Vec<Span<'static>>>, &'static str>,
}

/// The panels, row by row.
pub(super) fn panels(snapshot: &Snapshot) -> [[Panel; 2]; 3] {
    let fill = Constraint::Fill(1);
    let short = Constraint::Length(8);
    [
        [
            Panel {
                title: "Pods",
                header: &["name", "node", "phase", "volumes"],
                widths: vec![short, Constraint::Length(6), Constraint::Length(11), fill],
                rows: Ok(snapshot.pods.iter().map(pod).collect()),
            },
            Panel {
                title: "Nodes",
                header: &["name", "state", "in use", "attached"],
                widths: vec![Constraint::Length(4), Constraint::Length(14), fill, fill],
                rows: Ok(snapshot.nodes.iter().map(node).collect()),
            },
        ],
        [
            Panel {
                title: "VolumeAttachments",
                header: &["volume", "node", "state"],
                widths: vec![short, Constraint::Length(4), fill],
                rows: Ok(snapshot
                    .attachments
                    .iter()
                    .map(|row| attachment(row, snapshot.wait_of(row)))
                    .collect()),
            },
            Panel {
                title: "State of world: desired | actual",
                header: &["volume", "node", "desired", "actual", "op"],
                widths: vec![
                    Constraint::Max(8),
                    Constraint::Max(4),
                    Constraint::Min(5),
                    Constraint::Max(18),
                    Constraint::Length(3),
                ],
                rows: snapshot
                    .worlds
                    .as_ref()
                    .map(|worlds| worlds.iter().map(world).collect())
                    .ok_or("only on the embedded cluster"),
            },
        ],
        [
            Panel {
                title: "Attacher: lanes",
                header: &["lane", "running", "queued", "backoff"],
                widths: vec![Constraint::Length(10), short, short, fill],
                rows: lanes(snapshot),
            },
            Panel {
                title: "Array: published volumes",
                header: &["node", "volumes"],
                widths: vec![short, fill],
                rows: array(snapshot),
            },
        ],
    ]
}

// === impl Panel ===

impl Panel {
    /// Title, header and rows at this width.
    pub(super) fn height(&self, width: u16) -> u16 {
        let lines = match &self.rows {
            Ok(rows) => {
                let columns = self.columns(width);
                rows.iter().map(|row| cells(row, &columns, WRAPPED).1).sum()
            }
            Err(_) => 1,
        };
        u16::try_from(lines).unwrap_or(u16::MAX).saturating_add(2)
    }

    /// Widths of the columns.
    fn columns(&self, width: u16) -> Vec<u16> {
        let row = Layout::horizontal(&self.widths).flex(Flex::Start).spacing(1);
        let areas = row.split(Rect::new(0, 0, width, 1));
        areas.iter().map(|area| area.width).collect()
    }

    /// Wraps long texts if there is room for it, and otherwise cuts them.
    pub(super) fn draw(self, frame: &mut Frame<'_>, area: Rect) {
        let columns = self.columns(area.width);
        let rows = match self.rows {
            Ok(rows) => rows,
            Err(reason) => {
                let block = Block::new()
                    .borders(Borders::TOP)
                    .title(Span::styled(self.title, BOLD));
                frame.render_widget(Paragraph::new(reason).style(CHANGING).block(block), area);
                return;
            }
        };
        let room = usize::from(area.height.saturating_sub(1));
        // One more row is more useful than the header.
        let header = rows.len() < room;
        let shown = rows.len().min(if header { room - 1 } else { room });
        let title = match rows.len() - shown {
            0 => self.title.to_owned(),
            hidden => format!("{} (+{hidden})", self.title),
        };
        let block = Block::new()
            .borders(Borders::TOP)
            .title(Span::styled(title, BOLD));
        let wrapped = |limit: usize| {
            rows.iter()
                .map(|row| cells(row, &columns, limit).1)
                .sum::<usize>()
        };
        let limit = (2..=WRAPPED).rev().find(|limit| wrapped(*limit) < room);
        let rows = rows.iter().take(shown).map(|row| {
            let (cells, height) = cells(row, &columns, limit.unwrap_or(1));
            Row::new(cells).height(u16::try_from(height).unwrap_or(u16::MAX))
        });
        let table = Table::new(rows, columns.iter().copied().map(Constraint::Length)).block(block);
        let table = match header {
            true => table.header(Row::new(self.header.iter().copied()).style(DIM)),
            false => table,
        };
        frame.render_widget(table, area);
    }
}

// === rows ===

/// The cells of a row with at most `limit` lines each, and the height of the row.
fn cells(row: &[Span<'static>], columns: &[u16], limit: usize) -> (Vec<Text<'static>>, usize) {
    let cell = |(span, width): (&Span<'static>, &u16)| {
        let mut lines = wrap(&span.content, usize::from(*width));
        if lines.len() > limit {
            let rest = lines.split_off(limit - 1).join(" ");
            lines.push(rest);
        }
        Text::from_iter(lines.into_iter().map(Line::from)).style(span.style)
    };
    let cells: Vec<_> = row.iter().zip(columns).map(cell).collect();
    let height = cells.iter().map(Text::height).max().unwrap_or(0).max(1);
    (cells, height)
}

fn pod(pod: &PodRow) -> Vec<Span<'static>> {
    let style = match pod.phase.as_str() {
        "Running" => GOOD,
        "Failed" => BAD,
        _ => CHANGING,
    };
    vec![
        Span::raw(pod.name.clone()),
        Span::raw(or_dash(&pod.node)),
        Span::styled(pod.phase.clone(), style),
        match pod.reason.as_str() {
            "" => Span::raw(pod.volumes.join(" ")),
            reason => Span::styled(format!("{}: {reason}", pod.volumes.join(" ")), BAD),
        },
    ]
}

fn node(node: &NodeRow) -> Vec<Span<'static>> {
    let (state, style) = match (node.out_of_service, node.ready) {
        (true, _) => ("out of service", BAD),
        (false, true) => ("Ready", GOOD),
        (false, false) => ("NotReady", BAD),
    };
    vec![
        Span::raw(node.name.clone()),
        Span::styled(state, style),
        Span::raw(or_dash(&node.in_use.join(" "))),
        Span::raw(or_dash(&node.attached.join(" "))),
    ]
}

fn attachment(attachment: &AttachmentRow, wait: Option<String>) -> Vec<Span<'static>> {
    let state = match (attachment.deleting, attachment.attached) {
        (true, _) => "detaching",
        (false, true) => "attached",
        (false, false) => "attaching",
    };
    let state = match (attachment.error.as_str(), wait) {
        ("", Some(wait)) => Span::styled(format!("{state}: {wait}"), BAD),
        ("", None) if state == "attached" => Span::styled(state, GOOD),
        ("", None) => Span::styled(state, CHANGING),
        (error, _) => Span::styled(format!("{state}: {error}"), BAD),
    };
    vec![
        Span::raw(attachment.volume.clone()),
        Span::raw(attachment.node.clone()),
        state,
    ]
}

fn world(world: &WorldRow) -> Vec<Span<'static>> {
    let mut actual = world.actual.unwrap_or("-").to_owned();
    if world.in_use {
        actual.push_str(", in use");
    }
    let agrees = world.desired_by.is_empty() == world.actual.is_none();
    let style = match world.actual {
        Some("uncertain") => BAD,
        Some(_) | None if world.pending || !agrees => CHANGING,
        Some(_) | None => GOOD,
    };
    vec![
        Span::raw(world.volume.clone()),
        Span::raw(world.node.clone()),
        Span::raw(or_dash(&world.desired_by.join(" "))),
        Span::styled(actual, style),
        Span::styled(if world.pending { "..." } else { "-" }, style),
    ]
}

fn lanes(snapshot: &Snapshot) -> Result<Vec<Vec<Span<'static>>>, &'static str> {
    let lanes = snapshot.lanes.as_ref().ok_or(match snapshot.has_replicas {
        true => "not shown with several attachers",
        false => "the attacher does not respond",
    })?;
    let count =
        |count: usize, style: Style| Span::styled(count.to_string(), if count == 0 { PLAIN } else { style });
    let row = |lane: &LaneRow| {
        vec![
            Span::raw(lane.lane.clone()),
            Span::styled(
                format!("{}/{}", lane.running, lane.limit),
                if lane.running == 0 { PLAIN } else { GOOD },
            ),
            count(lane.ready, CHANGING),
            count(lane.waiting, BAD),
        ]
    };
    Ok(lanes.iter().map(row).collect())
}

fn array(snapshot: &Snapshot) -> Result<Vec<Vec<Span<'static>>>, &'static str> {
    let array = snapshot.array.as_ref().ok_or("the driver does not respond")?;
    let row = |row: &ArrayRow| {
        vec![
            Span::raw(row.node.clone()),
            Span::raw(or_dash(&row.volumes.join(" "))),
        ]
    };
    Ok(array.iter().map(row).collect())
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}
