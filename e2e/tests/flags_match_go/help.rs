//! Parses the flags in a program's `--help`.

use std::collections::BTreeMap;

/// Flags and their defaults from the help of Go's flag package: a line `  -name type`, then an indented text that may end with
/// `(default X)`. The help omits defaults that are zero values.
pub(super) fn of_go(help: &str) -> BTreeMap<String, String> {
    let mut flags: BTreeMap<String, String> = BTreeMap::new();
    let mut current = None;
    for line in help.lines() {
        if let Some(flag) = line.strip_prefix("  -") {
            let name = flag.split_whitespace().next().unwrap_or_default().to_owned();
            flags.insert(name.clone(), String::new());
            current = Some(name);
        } else if let (Some(name), Some(default)) = (&current, between(line, "(default ", ")")) {
            flags.insert(name.clone(), normal(default));
        }
    }
    flags
}

/// Feature gates in the help of Go's flag package: `    Name=true|false (BETA - default=true)`.
pub(super) fn gates(help: &str) -> Vec<String> {
    let gate = |line: &str| Some(line.trim().split_once("=true|false")?.0.to_owned());
    help.lines().filter_map(gate).collect()
}

/// Flags and their defaults from clap's help: a line `--name <VALUE>`, and `[default: X]`.
pub(super) fn of_ours(help: &str) -> BTreeMap<String, String> {
    let mut flags: BTreeMap<String, String> = BTreeMap::new();
    let mut current = None;
    for line in help.lines() {
        let trimmed = line.trim_start();
        // Also after a short name, as in `-h, --help`.
        let long = trimmed
            .strip_prefix("--")
            .or_else(|| trimmed.strip_prefix("-h, --"));
        if let Some(flag) = long {
            let name: String = flag
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '-')
                .collect();
            flags.insert(name.clone(), String::new());
            current = Some(name);
        }
        if let (Some(name), Some(default)) = (&current, between(line, "[default: ", "]")) {
            flags.insert(name.clone(), normal(default));
        }
    }
    flags
}

fn between<'l>(line: &'l str, begin: &str, end: &str) -> Option<&'l str> {
    let (_, rest) = line.rsplit_once(begin)?;
    Some(rest.split_once(end)?.0)
}

/// Normalizes a value: removes quotes, writes `1m0s` as `1m`, zero values as empty.
fn normal(value: &str) -> String {
    let value = value.trim_matches('"');
    let value = value
        .strip_suffix("m0s")
        .map_or(value.to_owned(), |minutes| format!("{minutes}m"));
    if matches!(value.as_str(), "0" | "0s" | "false") {
        String::new()
    } else {
        value
    }
}
