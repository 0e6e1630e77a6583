//! The commands about calls.

use std::io::{self, Write};
use std::ops::ControlFlow;

use clap::{Args, Subcommand};

use super::output::{Done, Failure, Output};
use super::print::{json, print};
use super::table::shown;
use crate::admin_api::client::{CallEvent, Calls, Client};
use crate::admin_api::resource::{Call, Expectation, ExpectationStatus, Expected};

/// Which calls.
#[derive(Args, Clone, Debug)]
pub(super) struct CallFilterArgs {
    /// Those of this method.
    #[arg(long)]
    method: Option<String>,
    /// Those with this code, such as NOT_FOUND; !OK for all errors.
    #[arg(long)]
    code: Option<String>,
    /// Those about a volume, snapshot or name like this pattern.
    #[arg(long)]
    volume: Option<String>,
    /// Those about a node like this pattern.
    #[arg(long)]
    node: Option<String>,
    /// Those in which a fault rule like this pattern had a hand.
    #[arg(long)]
    fault: Option<String>,
    /// Those that ended after this place.
    #[arg(long)]
    after: Option<u64>,
}

/// The calls that ended: lists them; or waits for some, compares them with what is expected, tells of
/// them as they happen, forgets them.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct JournalArgs {
    #[command(flatten)]
    which: CallFilterArgs,
    /// At most so many, the latest ones.
    #[arg(long, default_value_t = 50)]
    limit: usize,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Waits until such calls have ended; exit code 1 if they do not come.
    Wait {
        #[command(flatten)]
        which: CallFilterArgs,
        /// How many.
        #[arg(long, default_value_t = 1)]
        count: usize,
        /// How long.
        #[arg(long, default_value = "30s")]
        timeout: String,
        /// Waits for calls that run at this moment.
        #[arg(long)]
        running: bool,
    },
    /// Compares the calls with those expected; exit code 1 if they differ.
    Assert {
        /// METHOD or METHOD=CODE, in order; neighbours that are alike count as one.
        #[arg(required = true)]
        expected: Vec<String>,
        /// A method to look at, too; may be repeated. All others that are not expected are passed over.
        #[arg(long)]
        track: Vec<String>,
        /// Looks at calls about a volume like this pattern only.
        #[arg(long)]
        volume: Option<String>,
        /// Looks at calls that ended after this place only.
        #[arg(long, default_value_t = 0)]
        after: u64,
        /// How long to wait for calls that are missing.
        #[arg(long)]
        timeout: Option<String>,
    },
    /// Tells of calls as they happen, until interrupted.
    Follow {
        #[command(flatten)]
        which: CallFilterArgs,
    },
    /// Forgets the calls that ended.
    Forget,
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
                track,
                volume,
                after,
                timeout,
            }) => {
                let expected: Vec<Expected> = expected.iter().map(|text| expectation(text)).collect();
                let methods = expected.iter().map(|expected| expected.method.clone());
                let tracked = methods.chain(track.iter().cloned()).collect();
                let expectation = Expectation {
                    tracked: Some(tracked),
                    expected,
                    volume: volume.clone(),
                    after: *after,
                    timeout: timeout.clone(),
                };
                let verdict = client.judge(&expectation).await?;
                let as_expected = verdict.verdict == ExpectationStatus::Complete;
                let text = match output {
                    Output::Json => json(&verdict),
                    Output::Table => format!("{}\n", shown(&verdict.message)),
                };
                Ok(Done::Text(text, as_expected))
            }
            Some(What::Follow { which }) => follow(client, which, output).await,
            Some(What::Forget) => {
                client.forget_journal().await?;
                super::print::done("forgot the calls that had ended".to_owned(), output)
            }
        }
    }
}

fn expectation(text: &str) -> Expected {
    let (method, code) = text.split_once('=').unwrap_or((text, "OK"));
    Expected {
        method: method.to_owned(),
        code: code.to_owned(),
    }
}

async fn follow(client: &Client, which: &CallFilterArgs, output: Output) -> Result<Done, Failure> {
    let mut out = io::stdout();
    let tell = |happened: CallEvent| {
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
    client.follow(&which.calls(), tell).await?;
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
