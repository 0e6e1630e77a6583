//! Finished and in-flight calls.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{self, error::Elapsed};
use tonic::{Code, Status};

use self::assertion::Calls;
use crate::admin::page::limit;
use crate::admin::problem::Refusal;
use crate::admin::request::{self, Reply};
use crate::admin::state::Admin;
use crate::admin_api::query::{JournalQuery, WaitQuery};
use crate::admin_api::resource::{Answer, Call, Expectation, ExpectationResult, Page};
use crate::journal::{self, Cursor, Filter, Gap, Journal, Memory};
use crate::rpc::code;
use crate::rpc::method::{self, Method};

mod assertion;

const DEFAULT_WAIT: &str = "30s";

pub(super) async fn list(admin: &Admin, query: JournalQuery) -> Reply<Page<Call>> {
    let journal = admin.journal()?;
    let (volume, node) = (&query.volume, &query.node);
    let wanted = filter([&query.method, &query.code, volume, node, &query.fault])?;
    let (limit, newest) = (limit(query.limit), query.newest.unwrap_or(false));
    let before = query.before.unwrap_or(u64::MAX);
    let (mut matched, mut left) = (0, false);
    let mut found: Vec<(u64, Arc<journal::Call>)> = Vec::new();
    journal.read(|memory| {
        let mut take = |(sequence, call): (u64, &Arc<journal::Call>)| {
            if !wanted.covers(call) {
                return;
            }
            matched += 1;
            if sequence < before && found.len() < limit {
                found.push((sequence, call.clone()));
            } else if sequence < before {
                left = true;
            }
        };
        let calls = memory.after(query.after.unwrap_or(0));
        if newest {
            calls.rev().for_each(&mut take);
        } else {
            calls.for_each(&mut take);
        }
    });
    let gap = journal.read(|memory| {
        let mut cursor = Cursor::after(query.after.unwrap_or(0), memory);
        cursor.new_calls(memory).for_each(drop);
        cursor.gap()
    });
    // Otherwise a page without calls would say that there were none.
    if let (0, Some(gap)) = (matched, gap) {
        return Err(lacking(&gap));
    }
    let next = left
        .then(|| found.last().map(|(sequence, _)| sequence.to_string()))
        .flatten();
    let messages = query.messages.unwrap_or(true);
    let shown =
        |(sequence, call): &(u64, Arc<journal::Call>)| shown(journal, call, Some(*sequence), messages);
    let items = found.iter().map(shown).collect();
    Ok(Page { items, matched, next })
}

pub(super) async fn clear(admin: &Admin) -> Reply<()> {
    admin.journal()?.clear();
    Ok(())
}

pub(super) async fn running(admin: &Admin) -> Reply<Vec<Call>> {
    let journal = admin.journal()?;
    let calls: Vec<_> = journal.read(|memory| memory.running().cloned().collect());
    let calls = calls.iter();
    Ok(calls.map(|call| shown(journal, call, None, true)).collect())
}

pub(super) async fn wait(admin: &Admin, query: WaitQuery) -> Reply<Vec<Call>> {
    let journal = admin.journal()?;
    let (volume, node) = (&query.volume, &query.node);
    let wanted = filter([&query.method, &query.code, volume, node, &query.fault])?;
    let running = query.running.unwrap_or(false);
    if running && query.code.is_some() {
        return Err(Refusal::invalid("code", "code: a call that runs has none yet"));
    }
    let count = query.count.unwrap_or(1).max(1);
    let mut cursor = journal.read(|memory| Cursor::after(query.after.unwrap_or(0), memory));
    let mut found: Vec<(Option<u64>, Arc<journal::Call>)> = Vec::new();
    let find = |memory: &Memory| {
        if running {
            let calls = memory.running().filter(|call| wanted.covers(call));
            found = calls.map(|call| (None, call.clone())).take(count).collect();
        } else {
            let calls = cursor.new_calls(memory).filter(|(_, call)| wanted.covers(call));
            found.extend(calls.map(|(sequence, call)| (Some(sequence), call.clone())));
        }
        found.truncate(count);
        if found.len() == count {
            return Some(Ok(std::mem::take(&mut found)));
        }
        cursor.gap().filter(|_| !running).map(Err)
    };
    let timeout = query.timeout.as_deref().unwrap_or(DEFAULT_WAIT);
    match unless_stopped(admin, request::wait("timeout", timeout)?, journal.wait(find)).await? {
        Ok(found) => {
            let found = found.map_err(|gap| lacking(&gap))?;
            let shown =
                |(sequence, call): &(Option<u64>, Arc<journal::Call>)| shown(journal, call, *sequence, true);
            Ok(found.iter().map(shown).collect())
        }
        Err(_) => Err(Refusal::new(
            Code::DeadlineExceeded,
            format!(
                "no {count} such calls within {timeout}; {} have ended in all",
                journal.read(|memory| memory.last)
            ),
        )),
    }
}

pub(super) async fn assert(admin: &Admin, expectation: Expectation) -> Reply<ExpectationResult> {
    let journal = admin.journal()?;
    let timeout = match &expectation.timeout {
        Some(timeout) => Some(request::wait("timeout", timeout)?),
        None => None,
    };
    check_expectation(&expectation)?;
    let mut calls = Calls::new(journal, &expectation)?;
    let now = journal
        .read(|memory| calls.compare(memory))
        .map_err(|gap| lacking(&gap))?;
    let is_final = calls.is_final(now.status);
    let (Some(timeout), false) = (timeout, is_final) else {
        return Ok(now);
    };
    let settled = |memory: &Memory| match calls.compare(memory) {
        Ok(result) if !calls.is_final(result.status) => None,
        settled => Some(settled),
    };
    let result = unless_stopped(admin, timeout, journal.wait(settled)).await?;
    let result = result.unwrap_or_else(|_| journal.read(|memory| calls.compare(memory)));
    result.map_err(|gap| lacking(&gap))
}

fn check_expectation(expectation: &Expectation) -> Result<(), Refusal> {
    let Expectation {
        expected,
        counts,
        tracked,
        ..
    } = expectation;
    if expected.is_empty() && counts.is_empty() && tracked.as_ref().is_none_or(Vec::is_empty) {
        let message = "expected: nothing is asserted: name the expected calls, or bounds in counts, or in tracked the methods \
                       that must not be called";
        return Err(Refusal::invalid("expected", message));
    }
    for (index, count) in counts.iter().enumerate() {
        let most = count.at_most.unwrap_or(u64::MAX);
        if (count.at_least == 0 && count.at_most.is_none()) || most < count.at_least {
            let field = format!("counts[{index}]");
            let message = match count.at_most {
                None => format!("{field}: has no bound: give atLeast or atMost"),
                Some(_) => format!("{field}: atMost must not be below atLeast"),
            };
            return Err(Refusal::invalid(field, message));
        }
        if expectation.volume.is_some() && count.volume.is_some() {
            let field = format!("counts[{index}].volume");
            let message = format!(
                "{field}: contradicts volume, which selects the calls of all counts: remove one of them"
            );
            return Err(Refusal::invalid(field, message));
        }
    }
    let methods = counts.iter().map(|count| &count.method);
    for method in methods.chain(expected.iter().map(|call| &call.method)) {
        check_has(
            "volume",
            expectation.volume.as_deref(),
            method,
            journal::has_volume,
        )?;
    }
    for (index, name) in tracked.iter().flatten().enumerate() {
        check_method(&format!("tracked[{index}]"), name)?;
    }
    for (index, expected) in expected.iter().enumerate() {
        check_method(&format!("expected[{index}].method"), &expected.method)?;
        if expected.code != "OK" && code::named(&expected.code).is_none() {
            let field = format!("expected[{index}].code");
            let message = format!(
                "{field}: unknown code \"{}\": use one of OK, {}",
                expected.code,
                code::names()
            );
            return Err(Refusal::invalid(field, message));
        }
    }
    Ok(())
}

fn lacking(gap: &Gap) -> Refusal {
    Refusal::new(Code::FailedPrecondition, gap.to_string())
}

/// An unknown method would never match. A method of another service, which a proxy may
/// forward, is written as a path.
fn check_method(field: &str, name: &str) -> Result<(), Refusal> {
    let is_path = name.starts_with('/') && !name.starts_with("/csi.v1.");
    match name.parse::<Method>() {
        Err(unknown) if !is_path => Err(Refusal::invalid(field, format!("{field}: {unknown}"))),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Calls of a method without the field would never match.
fn check_has(
    field: &str,
    pattern: Option<&str>,
    method: &str,
    has: fn(Method) -> bool,
) -> Result<(), Refusal> {
    match method.parse::<Method>() {
        Ok(known) if pattern.is_some_and(|pattern| pattern != "*") && !has(known) => {
            let message = format!("{field}: {known} has none, so no call would match: remove it");
            Err(Refusal::invalid(field, message))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

async fn unless_stopped<T>(
    admin: &Admin,
    timeout: Duration,
    work: impl Future<Output = T>,
) -> Result<Result<T, Elapsed>, Refusal> {
    let work = time::timeout(timeout, work);
    let done = admin.stop.run_until_cancelled(work).await;
    done.ok_or_else(|| Refusal::new(Code::Unavailable, "the driver stops"))
}

/// Reads the filter's method, code, volume, node and fault.
pub(super) fn filter(texts: [&Option<String>; 5]) -> Result<Filter, Refusal> {
    let [method, code, volume, node, fault] =
        texts.map(|text| text.as_deref().filter(|text| !text.is_empty()));
    let (code, failed) = match code {
        None => (None, false),
        Some("OK") => (Some(Code::Ok), false),
        Some("!OK") => (None, true),
        Some(name) => match code::named(name) {
            Some(code) => (Some(code), false),
            None => {
                let message = format!(
                    "code: unknown code \"{name}\": use one of OK, !OK, {}",
                    code::names()
                );
                return Err(Refusal::invalid("code", message));
            }
        },
    };
    if let Some(method) = method {
        check_method("method", method)?;
        check_has("volume", volume, method, journal::has_volume)?;
        check_has("node", node, method, Method::has_node)?;
    }
    Ok(Filter {
        method: method.map(str::to_owned),
        code,
        failed,
        volume: request::pattern(volume),
        node: request::pattern(node),
        fault: request::pattern(fault),
    })
}

pub(super) fn shown(journal: &Journal, call: &journal::Call, sequence: Option<u64>, messages: bool) -> Call {
    let answer = |time: jiff::Timestamp, status: &Status| Answer {
        code: code::name(status.code()).to_owned(),
        message: status.message().to_owned(),
        end: journal::text(time),
        seconds: time.duration_since(call.start).as_secs_f64(),
    };
    Call {
        number: call.number,
        sequence,
        method: method::short(&call.method).to_owned(),
        path: call.method.to_string(),
        peer: call.peer,
        start: journal::text(call.start),
        volume: call.volume().to_owned(),
        node: call.node().to_owned(),
        fault: call.fault(),
        answer: call.end().map(|end| answer(end.time, &end.status)),
        late: call.late().map(|late| answer(late.time, &late.status)),
        request: messages.then(|| journal.request(call)),
        response: if messages { journal.response(call) } else { None },
    }
}

#[cfg(test)]
mod tests;
