//! The commands about calls.

use std::io::{self, Write};
use std::ops::ControlFlow;

use clap::{Args, Subcommand};

use super::output::{Done, Failure, Output};
use super::print::{json, print};
use super::table::{shown, table};
use crate::admin_api::client::{CallEvent, Calls, Client};
use crate::admin_api::resource::{Call, Comparison, Expectation, ExpectationStatus, Expected, ExpectedCount};

#[derive(Args, Clone, Debug)]
pub(super) struct CallFilterArgs {
    /// Only calls of this method.
    #[arg(long)]
    method: Option<String>,
    /// Only calls with this code, such as NOT_FOUND; !OK for all errors.
    #[arg(long)]
    code: Option<String>,
    /// Only calls whose volume id, snapshot id or name matches this pattern.
    #[arg(long)]
    volume: Option<String>,
    /// Only calls whose node id matches this pattern.
    #[arg(long)]
    node: Option<String>,
    /// Only calls that a fault rule whose id matches this pattern affected.
    #[arg(long)]
    fault: Option<String>,
    /// Only calls with a journal sequence number above this.
    #[arg(long)]
    after: Option<u64>,
}

#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct JournalArgs {
    #[command(flatten)]
    which: CallFilterArgs,
    /// Maximum number of calls; the latest ones.
    #[arg(long, default_value_t = 50)]
    limit: usize,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Wait until such calls have finished; exit code 1 on timeout.
    Wait {
        #[command(flatten)]
        which: CallFilterArgs,
        /// Number of calls.
        #[arg(long, default_value_t = 1)]
        count: usize,
        /// Timeout.
        #[arg(long, default_value = "30s")]
        timeout: String,
        /// Wait for in-flight calls instead.
        #[arg(long)]
        running: bool,
    },
    /// Compare the calls with those expected; exit code 1 if they differ.
    Assert {
        /// Expected calls in order: METHOD or METHOD=CODE, also with ,volume=PATTERN and ,node=PATTERN. Consecutive equal calls
        /// count as one.
        #[arg(required_unless_present_any = ["never", "exactly", "at_least", "at_most"], value_parser = expected)]
        expected: Vec<Expected>,
        /// The expected calls may come in any order.
        #[arg(long)]
        any_order: bool,
        #[command(flatten)]
        counts: CountArgs,
        /// Additional method to check; repeatable. Other methods are ignored.
        #[arg(long)]
        track: Vec<String>,
        /// Only calls whose volume id matches this pattern.
        #[arg(long)]
        volume: Option<String>,
        /// Only calls with a journal sequence number above this.
        #[arg(long, default_value_t = 0)]
        after: u64,
        /// How long to wait for missing calls.
        #[arg(long)]
        timeout: Option<String>,
    },
    /// Stream calls until interrupted.
    Follow {
        #[command(flatten)]
        which: CallFilterArgs,
    },
    /// Clear the journal in memory.
    Clear,
}

/// Bounds on the number of calls. With --timeout, upper bounds must hold for the whole time.
#[derive(Args, Clone, Debug)]
struct CountArgs {
    /// METHOD or METHOD=CODE that must not come; repeatable.
    #[arg(long, value_name = "METHOD=CODE", value_parser = counted)]
    never: Vec<ExpectedCount>,
    /// Number of calls that must come, as in 2:METHOD=CODE; repeatable.
    #[arg(long, value_name = "N:METHOD=CODE", value_parser = bound)]
    exactly: Vec<(u64, ExpectedCount)>,
    /// Minimum number of calls; repeatable.
    #[arg(long, value_name = "N:METHOD=CODE", value_parser = bound)]
    at_least: Vec<(u64, ExpectedCount)>,
    /// Maximum number of calls; repeatable.
    #[arg(long, value_name = "N:METHOD=CODE", value_parser = bound)]
    at_most: Vec<(u64, ExpectedCount)>,
}

// === impl CountArgs ===

impl CountArgs {
    fn counts(&self) -> Vec<ExpectedCount> {
        let with = |count: &ExpectedCount, at_least, at_most| ExpectedCount {
            at_least,
            at_most,
            ..count.clone()
        };
        let never = self.never.iter().map(|count| with(count, 0, Some(0)));
        let exactly = self.exactly.iter().map(|(n, count)| with(count, *n, Some(*n)));
        let at_least = self.at_least.iter().map(|(n, count)| with(count, *n, None));
        let at_most = self.at_most.iter().map(|(n, count)| with(count, 0, Some(*n)));
        never.chain(exactly).chain(at_least).chain(at_most).collect()
    }
}

// === impl CallFilterArgs ===

impl CallFilterArgs {
    fn calls(&self) -> Calls {
        let given = [
            ("method", self.method.clone()),
            ("code", self.code.clone()),
            ("volume", self.volume.clone()),
            ("node", self.node.clone()),
            ("fault", self.fault.clone()),
            ("after", self.after.map(|after| after.to_string())),
        ];
        given
            .into_iter()
            .fold(Calls::all(), |calls, (name, value)| match value {
                Some(value) => calls.with(name, &value),
                None => calls,
            })
    }
}

// === impl JournalArgs ===

impl JournalArgs {
    pub(super) async fn run(&self, client: &Client, output: Output) -> Result<Done, Failure> {
        match &self.what {
            None => {
                let calls = self.which.calls().with("limit", &self.limit.to_string());
                let mut page = client.journal(&calls.with("newest", "true")).await?;
                page.items.reverse();
                print(&page, output)
            }
            Some(What::Wait {
                which,
                count,
                timeout,
                running,
            }) => {
                let calls = if *running {
                    which.calls().running()
                } else {
                    which.calls()
                };
                print(&client.wait(&calls, *count, timeout).await?, output)
            }
            Some(What::Assert {
                expected,
                any_order,
                counts,
                track,
                volume,
                after,
                timeout,
            }) => {
                let methods = expected.iter().map(|expected| expected.method.clone());
                let tracked = methods.chain(track.iter().cloned()).collect();
                let expectation = Expectation {
                    tracked: Some(tracked),
                    counts: counts.counts(),
                    any_order: *any_order,
                    expected: expected.clone(),
                    volume: volume.clone(),
                    after: *after,
                    timeout: timeout.clone(),
                };
                let result = client.assert_calls(&expectation).await?;
                let as_expected = result.status == ExpectationStatus::Complete;
                let text = match output {
                    Output::Json => json(&result),
                    Output::Table if as_expected => format!("{}\n", shown(&result.message)),
                    Output::Table => format!("{}\n\n{}", shown(&result.message), beside(&result.comparison)),
                };
                Ok(Done::Text(text, as_expected))
            }
            Some(What::Follow { which }) => follow(client, which, output).await,
            Some(What::Clear) => {
                client.clear_journal().await?;
                super::print::done("journal cleared".to_owned(), output)
            }
        }
    }
}

/// What was expected beside what came.
fn beside(comparison: &[Comparison]) -> String {
    let cell = |text: &Option<String>| text.clone().unwrap_or_default();
    let rows = comparison.iter().map(|row| {
        let agrees = if row.agrees { "yes" } else { "no" };
        vec![cell(&row.expected), cell(&row.came), agrees.to_owned()]
    });
    table(&["EXPECTED", "ACTUAL", "AGREES"], rows, None)
}

/// Reads METHOD or METHOD=CODE, with `,volume=PATTERN` and `,node=PATTERN`.
fn counted(text: &str) -> Result<ExpectedCount, &'static str> {
    let mut parts = text.split(',');
    let call = parts.next().unwrap_or_default();
    let (method, code) = match call.split_once('=') {
        Some((method, code)) => (method, Some(code.to_owned())),
        None => (call, None),
    };
    let mut count = ExpectedCount {
        method: method.to_owned(),
        code,
        ..ExpectedCount::default()
    };
    for part in parts {
        match part.split_once('=') {
            Some(("volume", pattern)) => count.volume = Some(pattern.to_owned()),
            Some(("node", pattern)) => count.node = Some(pattern.to_owned()),
            _ => return Err("must be METHOD, METHOD=CODE or METHOD=CODE,volume=PATTERN,node=PATTERN"),
        }
    }
    Ok(count)
}

/// Reads N: and an expected call.
fn bound(text: &str) -> Result<(u64, ExpectedCount), &'static str> {
    let (number, call) = text
        .split_once(':')
        .ok_or("must be N:METHOD or N:METHOD=CODE, as in 2:DeleteVolume")?;
    let number = number
        .parse()
        .map_err(|_| "must begin with a number, as in 2:DeleteVolume")?;
    Ok((number, counted(call)?))
}

fn expected(text: &str) -> Result<Expected, &'static str> {
    let ExpectedCount {
        method,
        code,
        volume,
        node,
        ..
    } = counted(text)?;
    Ok(Expected {
        method,
        code: code.unwrap_or_else(|| "OK".to_owned()),
        volume,
        node,
        request: None,
    })
}

async fn follow(client: &Client, which: &CallFilterArgs, output: Output) -> Result<Done, Failure> {
    let mut out = io::stdout();
    let print_event = |happened: CallEvent| {
        let text = match output {
            Output::Json => match &happened {
                CallEvent::Begin(call) | CallEvent::End(call) | CallEvent::Late(call) => {
                    serde_json::to_string(call).unwrap_or_default()
                }
                CallEvent::Lost(missed) => format!("{{\"lost\":{missed}}}"),
            },
            Output::Table => line(&happened),
        };
        match writeln!(out, "{text}").and_then(|()| out.flush()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    };
    client.follow(&which.calls(), print_event).await?;
    Ok(Done::Printed)
}

fn line(happened: &CallEvent) -> String {
    let about = |call: &Call| {
        let subject = [call.volume.as_str(), call.node.as_str()];
        let subject: Vec<&str> = subject.into_iter().filter(|text| !text.is_empty()).collect();
        shown(&format!("#{} {} {}", call.number, call.method, subject.join(" ")))
    };
    let answer = |answer: Option<&crate::admin_api::resource::Answer>| match answer {
        Some(answer) => shown(&format!(
            "{} after {:.3} s {}",
            answer.code, answer.seconds, answer.message
        )),
        None => String::new(),
    };
    match happened {
        CallEvent::Begin(call) => format!("begin  {}", about(call)),
        CallEvent::End(call) => format!("end    {}: {}", about(call), answer(call.answer.as_ref())),
        CallEvent::Late(call) => format!("late   {}: {}", about(call), answer(call.late.as_ref())),
        CallEvent::Lost(missed) => format!("lost   {missed} events: too many to follow"),
    }
}
