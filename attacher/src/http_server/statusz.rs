//! `/statusz`: the whole state as text, or with `?format=json` as JSON.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;

use super::View;
use super::status::{
    DriverStatus, ElectionStatus, FailureCount, FailureStatus, LaneStatus, ListStatus, ReconcileStatus,
    Status, WorkStatus,
};

pub(super) async fn page(State(view): State<Arc<View>>, RawQuery(query): RawQuery) -> Response {
    let status = Status::of(&view);
    let query = query.unwrap_or_default();
    match query.split('&').find_map(|pair| pair.strip_prefix("format=")) {
        None | Some("" | "text") => Text(&status).to_string().into_response(),
        Some("json") => match serde_json::to_string_pretty(&status) {
            Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        },
        Some(_) => (StatusCode::BAD_REQUEST, "format must be text or json\n").into_response(),
    }
}

/// The state as aligned text.
struct Text<'s>(&'s Status);

/// Seconds in their two largest units.
struct For(f64);

/// Untrusted text on one line, without control characters.
struct Line<'t>(&'t str);

// === impl Text ===

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let status = self.0;
        writeln!(
            f,
            "csi-attacher {}, up {}, {}",
            status.version,
            For(status.up),
            status.time
        )?;
        if status.not_ready.is_empty() {
            writeln!(f, "ready")?;
        }
        for missing in &status.not_ready {
            writeln!(f, "NOT READY: {}", Line(missing))?;
        }
        writeln!(f)?;
        driver(f, &status.driver)?;
        if let Some(election) = &status.leader_election {
            leadership(f, election)?;
        }
        self.api(f)?;
        for (at, list) in status.lists.iter().enumerate() {
            let head = if at == 0 { "caches" } else { "" };
            write!(f, "{head:<13} {:>7} {}", list.objects, list.resource)?;
            self.list(f, list)?;
        }
        if let Some(reconcile) = &status.reconcile {
            rounds(f, reconcile)?;
        }
        self.lanes(f)?;
        let total = |stage: fn(&LaneStatus) -> usize| status.lanes.iter().map(stage).sum();
        works(f, "RUNNING", &status.running, total(|lane| lane.running))?;
        works(f, "QUEUED", &status.ready, total(|lane| lane.ready))?;
        works(f, "IN BACKOFF", &status.waiting, total(|lane| lane.waiting))
    }
}

impl Text<'_> {
    fn api(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let api = &self.0.api;
        match api.last_answer {
            Some(ago) => write!(f, "API server    last response {} ago", For(ago))?,
            None => write!(f, "API server    no response yet")?,
        }
        match api.last_success {
            Some(ago) => write!(f, ", last success {} ago", For(ago))?,
            None => write!(f, ", NO SUCCESS YET")?,
        }
        writeln!(f, ", {} in flight", api.in_flight)?;
        failures(f, "refused", &api.refused)?;
        failures(f, "unanswered", &api.unanswered)
    }

    fn list(&self, f: &mut Formatter<'_>, list: &ListStatus) -> fmt::Result {
        let election = self.0.leader_election.as_ref();
        let stands_by = election.is_some_and(|election| !election.leads);
        match (list.complete, list.resource) {
            (true, _) => writeln!(f)?,
            (false, "volumeattachments") if stands_by => writeln!(f, "; listed by the leader")?,
            (false, _) => writeln!(f, " so far; cache not synced")?,
        }
        list.failure
            .as_ref()
            .map_or(Ok(()), |failure| failing(f, failure))
    }

    fn lanes(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.lanes.is_empty() {
            return writeln!(f, "\nworkers not started");
        }
        writeln!(
            f,
            "\n{:<10} {:>9} {:>9} {:>9}   oldest",
            "LANE", "running", "queued", "backoff"
        )?;
        for lane in &self.0.lanes {
            let running = format!("{}/{}", lane.running, lane.limit);
            let (name, ready, waiting) = (lane.lane, lane.ready, lane.waiting);
            write!(f, "{name:<10} {running:>9} {ready:>9} {waiting:>9}   ")?;
            match lane.oldest {
                Some(age) => writeln!(f, "{}", For(age))?,
                None => writeln!(f, "-")?,
            }
        }
        Ok(())
    }
}

fn leadership(f: &mut Formatter<'_>, election: &ElectionStatus) -> fmt::Result {
    let part = if election.leads { "leader" } else { "standby" };
    let (identity, lease) = (Line(&election.identity), Line(&election.lease));
    write!(f, "leadership    {part} as {identity}; lease {lease}, ")?;
    match election.holder.as_deref() {
        None => write!(f, "holder UNKNOWN")?,
        Some("") => write!(f, "no holder")?,
        Some(holder) => write!(f, "held by {}", Line(holder))?,
    }
    if let Some(renewed) = election.renewed {
        write!(f, ", last renewed {} ago", For(renewed))?;
    }
    writeln!(f)?;
    if let Some(problem) = &election.problem {
        writeln!(f, "              {}", Line(problem))?;
    }
    election
        .failure
        .as_ref()
        .map_or(Ok(()), |failure| failing(f, failure))
}

fn failing(f: &mut Formatter<'_>, failure: &FailureStatus) -> fmt::Result {
    let times = if failure.times == 1 { "time" } else { "times" };
    writeln!(
        f,
        "              FAILED {} {times} in {}, last {} ago: {}",
        failure.times,
        For(failure.failing),
        For(failure.last),
        Line(&failure.error)
    )
}

fn failures(f: &mut Formatter<'_>, what: &str, failures: &FailureCount) -> fmt::Result {
    let (Some(last), Some(error)) = (failures.last, &failures.error) else {
        return Ok(());
    };
    let (count, last) = (failures.count, For(last));
    writeln!(
        f,
        "              {count} {what}, last {last} ago: {}",
        Line(error)
    )
}

fn driver(f: &mut Formatter<'_>, driver: &DriverStatus) -> fmt::Result {
    let name = driver.name.as_deref().unwrap_or("(unknown)");
    writeln!(f, "driver        {}", Line(name))?;
    let state = if driver.connected {
        "connected"
    } else {
        "NOT CONNECTED"
    };
    write!(f, "              {state}")?;
    if let Some(since) = driver.since {
        write!(f, " for {}", For(since))?;
    }
    writeln!(f, ", {} reconnects", driver.reconnects)?;
    if let Some(why) = &driver.last_failure {
        writeln!(f, "              {}", Line(why))?;
    }
    if !driver.capabilities.is_empty() {
        writeln!(f, "              capabilities {}", driver.capabilities.join(", "))?;
    }
    Ok(())
}

fn rounds(f: &mut Formatter<'_>, reconcile: &ReconcileStatus) -> fmt::Result {
    let (last, took) = (For(reconcile.last), For(reconcile.took));
    write!(
        f,
        "reconcile     last round {last} ago in {took}, {} volumes listed",
        reconcile.listed
    )?;
    match &reconcile.error {
        Some(error) => writeln!(f, "\n              FAILED: {}", Line(error))?,
        None => writeln!(f, ", {} lost, {} left over", reconcile.lost, reconcile.leftover)?,
    }
    writeln!(
        f,
        "              {} rounds completed, {} failed; {} repairs succeeded, {} refused",
        reconcile.completed, reconcile.failed, reconcile.repaired, reconcile.refused
    )
}

fn works(f: &mut Formatter<'_>, title: &str, works: &[WorkStatus], total: usize) -> fmt::Result {
    if works.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{title}: {total}")?;
    for work in works {
        write!(f, "  {:<7} {}", work.lane, Line(&work.name))?;
        if let Some(volume) = work.volume.as_ref().filter(|volume| **volume != work.name) {
            write!(f, "  volume {}", Line(volume))?;
        }
        if let Some(node) = &work.node {
            write!(f, "  node {}", Line(node))?;
        }
        if let Some(elapsed) = work.elapsed {
            write!(f, "  for {}", For(elapsed))?;
        }
        if let Some(wanted) = work.wanted {
            write!(f, "  requested {} ago", For(wanted))?;
        }
        writeln!(f)?;
        if let (Some(next), Some(why)) = (work.next, work.why) {
            writeln!(f, "          retry in {}: {why}", For(next))?;
        }
        if let (Some(error), Some(failing)) = (&work.error, work.failing) {
            let times = if work.failures == 1 { "time" } else { "times" };
            writeln!(
                f,
                "          failed {} {times} in {}, last: {}",
                work.failures,
                For(failing),
                Line(error)
            )?;
        }
    }
    if let Some(more) = total.checked_sub(works.len()).filter(|more| *more > 0) {
        writeln!(f, "  ... and {more} more")?;
    }
    Ok(())
}

// === impl For ===

impl Display for For {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let whole = self.0.max(0.0) as u64;
        let (days, hours, minutes, seconds) =
            (whole / 86_400, whole / 3600 % 24, whole / 60 % 60, whole % 60);
        match (days, hours, minutes) {
            (0, 0, 0) if whole < 10 => write!(f, "{:.1}s", self.0.max(0.0)),
            (0, 0, 0) => write!(f, "{seconds}s"),
            (0, 0, _) => write!(f, "{minutes}m{seconds:02}s"),
            (0, _, _) => write!(f, "{hours}h{minutes:02}m"),
            (_, _, _) => write!(f, "{days}d{hours:02}h"),
        }
    }
}

// === impl Line ===

impl Display for Line<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            '\n' | '\t' | '\r' => f.write_str(" "),
            char if char.is_control() => write!(f, "{}", char.escape_default()),
            char => write!(f, "{char}"),
        })
    }
}

#[cfg(test)]
mod tests;
