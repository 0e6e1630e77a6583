//! Capabilities and fault files.

use std::io::Read;
use std::path::Path;

use serde_json::{Value, json as object};

use super::output::{Done, Failure, Output};
use super::print::{done, print};
use crate::admin_api::client::Client;
use crate::admin_api::query::FileQuery;

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

/// Applies a fault file, and names its rules and backend faults. A bare list or item is of the kind `part`.
pub(super) async fn add(client: &Client, file: &Path, part: &str, output: Output) -> Result<Done, Failure> {
    let file = fault_file(file, part)?;
    client.put_fault_file(&FileQuery::default(), &file).await?;
    let lists = ["rules", "backend-faults"].map(|part| file[part].as_array());
    let ids = lists
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|item| item["id"].as_str());
    done(format!("added {}", ids.collect::<Vec<_>>().join(", ")), output)
}

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
