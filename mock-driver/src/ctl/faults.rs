//! The commands that inject faults: capabilities, fault rules, backend faults, scenarios.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Value, json as object};

use super::output::{Done, Failure, Output};
use super::print::{Print, done, json, print};
use crate::admin_api::client::Client;

#[derive(Clone, Debug, Subcommand)]
pub(super) enum FaultCommand {
    /// Apply a fault file atomically.
    Add {
        /// A list of rules, a rule, or `rules` and `backend-faults`, in YAML; - for stdin.
        file: PathBuf,
    },
    /// Remove a fault rule.
    Remove {
        /// Its id.
        rule: String,
    },
    /// Enable a fault rule.
    Enable {
        /// Its id.
        rule: String,
    },
    /// Disable a fault rule.
    Disable {
        /// Its id.
        rule: String,
    },
    /// Release the calls that a rule blocks (`action.hang: release`).
    Release {
        /// Its id.
        rule: String,
    },
    /// Reset the counters and state of all rules.
    Reset,
}

#[derive(Clone, Debug, Subcommand)]
pub(super) enum BackendFaultCommand {
    /// Apply a fault file atomically.
    Add {
        /// A list of backend faults, a backend fault, or `rules` and `backend-faults`, in YAML; - for stdin.
        file: PathBuf,
    },
    /// Remove a backend fault.
    Remove {
        /// Its id.
        fault: String,
    },
    /// Enable a backend fault.
    Enable {
        /// Its id.
        fault: String,
    },
    /// Disable a backend fault.
    Disable {
        /// Its id.
        fault: String,
    },
}

#[derive(Clone, Debug, Subcommand)]
pub(super) enum ScenarioCommand {
    /// Start a scenario.
    Start {
        /// Its name.
        scenario: String,
    },
    /// Stop a scenario.
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
    if wanted.is_empty() {
        return print(&known, output);
    }
    let mut changed = Vec::new();
    for (name, enabled) in wanted {
        client.set_capability(name, enabled).await?;
        changed.push(format!("{name} {}", if enabled { "on" } else { "off" }));
    }
    done(changed.join(", "), output)
}

/// Lists and changes fault rules.
pub(super) async fn faults(
    client: &Client,
    what: Option<&FaultCommand>,
    output: Output,
) -> Result<Done, Failure> {
    let text = match what {
        None => {
            let faults = client.faults().await?;
            let text = match output {
                Output::Table => faults.rules.table(),
                Output::Json => json(&faults),
            };
            return Ok(Done::Text(text, true));
        }
        Some(FaultCommand::Add { file }) => added(client, &fault_file(file, "rules")?).await?,
        Some(FaultCommand::Remove { rule }) => {
            client.remove_fault(rule).await?;
            format!("removed {rule}")
        }
        Some(FaultCommand::Enable { rule }) => {
            client.set_fault(rule, true).await?;
            format!("enabled {rule}")
        }
        Some(FaultCommand::Disable { rule }) => {
            client.set_fault(rule, false).await?;
            format!("disabled {rule}")
        }
        Some(FaultCommand::Release { rule }) => {
            let released = client.release_fault(rule).await?;
            format!("{rule} released {} calls", released.calls)
        }
        Some(FaultCommand::Reset) => {
            client.reset_faults().await?;
            "reset the counters and the state of all rules".to_owned()
        }
    };
    done(text, output)
}

/// Lists and changes backend faults.
pub(super) async fn backend_faults(
    client: &Client,
    what: Option<&BackendFaultCommand>,
    output: Output,
) -> Result<Done, Failure> {
    let text = match what {
        None => return print(&client.backend_faults().await?, output),
        Some(BackendFaultCommand::Add { file }) => {
            added(client, &fault_file(file, "backend-faults")?).await?
        }
        Some(BackendFaultCommand::Remove { fault }) => {
            client.remove_backend_fault(fault).await?;
            format!("removed {fault}")
        }
        Some(BackendFaultCommand::Enable { fault }) => {
            client.set_backend_fault(fault, true).await?;
            format!("enabled {fault}")
        }
        Some(BackendFaultCommand::Disable { fault }) => {
            client.set_backend_fault(fault, false).await?;
            format!("disabled {fault}")
        }
    };
    done(text, output)
}

/// Applies a fault file, and names its rules and backend faults.
async fn added(client: &Client, file: &Value) -> Result<String, Failure> {
    client.put_fault_file(file).await?;
    let lists = ["rules", "backend-faults"].map(|part| file[part].as_array());
    let ids = lists
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|item| item["id"].as_str());
    Ok(format!("added {}", ids.collect::<Vec<_>>().join(", ")))
}

/// The content of a fault file. A bare list or item is of the kind `part`.
fn fault_file(file: &Path, part: &str) -> Result<Value, Failure> {
    match yaml_file(file)? {
        Value::Array(items) => Ok(object!({ part: items })),
        Value::Object(whole) if whole.contains_key("rules") || whole.contains_key("backend-faults") => {
            Ok(Value::Object(whole))
        }
        Value::Object(item) => Ok(object!({ part: [item] })),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(Failure::Usage(format!(
            "{}: must be a YAML list, or a mapping with rules and backend-faults",
            file.display()
        ))),
    }
}

/// The content of a YAML file; `-` is stdin.
pub(super) fn yaml_file(file: &Path) -> Result<Value, Failure> {
    let failed = |reason: String| Failure::Usage(format!("{}: {reason}", file.display()));
    let text = if file.as_os_str() == "-" {
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        read.map(|_| text).map_err(|error| failed(error.to_string()))?
    } else {
        std::fs::read_to_string(file).map_err(|error| failed(error.to_string()))?
    };
    let whole: Option<Value> = serde_saphyr::from_str(&text).map_err(|error| failed(error.to_string()))?;
    Ok(whole.unwrap_or_default())
}
