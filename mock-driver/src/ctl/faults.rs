//! The commands that break things: capabilities, fault rules, troubles, scenarios.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Value, json as object};

use super::output::{Done, Failure, Output};
use super::print::{Print, done, json, print};
use crate::admin_api::client::Client;

/// What to do with fault rules.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum FaultCommand {
    /// Puts a fault file into force: all of it, or nothing if anything in it is wrong.
    Add {
        /// A list of rules, a rule, or `rules` and `troubles`, in YAML; - for stdin.
        file: PathBuf,
    },
    /// Takes one out of force.
    Remove {
        /// Its id.
        rule: String,
    },
    /// Switches one on.
    Enable {
        /// Its id.
        rule: String,
    },
    /// Switches one off.
    Disable {
        /// Its id.
        rule: String,
    },
    /// Lets the calls go that one holds up.
    Release {
        /// Its id.
        rule: String,
    },
    /// Sets all counts to zero.
    Reset,
}

/// What to do with a trouble.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum TroubleCommand {
    /// Puts a fault file into force: all of it, or nothing if anything in it is wrong.
    Add {
        /// A list of troubles, a trouble, or `rules` and `troubles`, in YAML; - for stdin.
        file: PathBuf,
    },
    /// Ends one for good.
    Remove {
        /// Its id.
        trouble: String,
    },
    /// Has one begin.
    Enable {
        /// Its id.
        trouble: String,
    },
    /// Has one end.
    Disable {
        /// Its id.
        trouble: String,
    },
}

/// What to do with a scenario.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum ScenarioCommand {
    /// Plays one.
    Start {
        /// Its name.
        scenario: String,
    },
    /// Ends one.
    Stop {
        /// Its name.
        scenario: String,
    },
}

/// Lists and switches capabilities.
pub(super) async fn capabilities(
    client: &Client,
    changes: &[String],
    output: Output,
) -> Result<Done, Failure> {
    let mut wanted = Vec::new();
    for change in changes {
        match change.split_at_checked(1) {
            Some(("+", name)) => wanted.push((name, true)),
            Some(("-", name)) => wanted.push((name, false)),
            Some(_) | None => {
                return Err(Failure::Usage(format!("\"{change}\": write +NAME or -NAME")));
            }
        }
    }
    let known = client.capabilities().await?;
    if let Some((name, _)) = wanted
        .iter()
        .find(|(name, _)| known.iter().all(|known| known.name != *name))
    {
        return Err(Failure::Usage(format!(
            "there is no capability \"{name}\", so nothing is changed: `ctl capabilities` lists them"
        )));
    }
    for (name, enabled) in wanted {
        client.set_capability(name, enabled).await?;
    }
    print(&client.capabilities().await?, output)
}

/// Lists and changes fault rules.
pub(super) async fn faults(
    client: &Client,
    what: Option<&FaultCommand>,
    output: Output,
) -> Result<Done, Failure> {
    match what {
        None => {}
        Some(FaultCommand::Add { file }) => {
            client.put_script(&script(file, "rules")?).await?;
        }
        Some(FaultCommand::Remove { rule }) => client.remove_fault(rule).await?,
        Some(FaultCommand::Enable { rule }) => drop(client.set_fault(rule, true).await?),
        Some(FaultCommand::Disable { rule }) => drop(client.set_fault(rule, false).await?),
        Some(FaultCommand::Release { rule }) => {
            let released = client.release_fault(rule).await?;
            return done(format!("{rule} let {} calls go", released.calls), output);
        }
        Some(FaultCommand::Reset) => drop(client.reset_faults().await?),
    }
    let faults = client.faults().await?;
    let text = match output {
        Output::Table => faults.rules.table(),
        Output::Json => json(&faults),
    };
    Ok(Done::Text(text, true))
}

/// Lists and changes troubles.
pub(super) async fn troubles(
    client: &Client,
    what: Option<&TroubleCommand>,
    output: Output,
) -> Result<Done, Failure> {
    match what {
        None => {}
        Some(TroubleCommand::Add { file }) => {
            client.put_script(&script(file, "troubles")?).await?;
        }
        Some(TroubleCommand::Remove { trouble }) => client.remove_trouble(trouble).await?,
        Some(TroubleCommand::Enable { trouble }) => drop(client.set_trouble(trouble, true).await?),
        Some(TroubleCommand::Disable { trouble }) => drop(client.set_trouble(trouble, false).await?),
    }
    print(&client.troubles().await?, output)
}

/// What a fault file says. A list alone, or one item, is of the kind `part`.
fn script(file: &Path, part: &str) -> Result<Value, Failure> {
    let failed = |reason: String| Failure::Usage(format!("{}: {reason}", file.display()));
    let text = if file.as_os_str() == "-" {
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        read.map(|_| text).map_err(|error| failed(error.to_string()))?
    } else {
        std::fs::read_to_string(file).map_err(|error| failed(error.to_string()))?
    };
    let whole: Option<Value> = serde_saphyr::from_str(&text).map_err(|error| failed(error.to_string()))?;
    match whole.unwrap_or_default() {
        Value::Array(items) => Ok(object!({ part: items })),
        Value::Object(whole) if whole.contains_key("rules") || whole.contains_key("troubles") => {
            Ok(Value::Object(whole))
        }
        Value::Object(item) => Ok(object!({ part: [item] })),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(failed(
            "must be a YAML list, or a mapping with rules and troubles".to_owned(),
        )),
    }
}
