//! The attacher's log at its default level, which administrators read.

use anyhow::{Result, ensure};

use super::{NODE, VOLUME};

/// Of values that are formatted for developers. Lists of strings are none: errors have commands with JSON.
const RUST_SYNTAX: [&str; 8] = ["Some(", "None", "r#", "Ok(", "Err(", "Response {", ": {", "::"];

/// One line for an attach and one for a detach, each with its objects; each failure has an object; no Rust syntax.
pub(super) fn verify(log: &str, attachment: &str) -> Result<()> {
    let lines = |message: &str| {
        let message = format!("] \"{message}\" ");
        let lines = log.lines().filter(|line| line.contains(&message));
        lines.collect::<Vec<_>>()
    };
    let fields = [
        format!(" va=\"{attachment}\""),
        format!(" pv=\"{VOLUME}\""),
        format!(" node=\"{NODE}\""),
    ];
    for message in ["attached", "detached"] {
        let found = lines(message);
        ensure!(
            found.len() == 1 && fields.iter().all(|field| found[0].contains(field.as_str())),
            "there must be one line {message:?} with {fields:?}, and not {found:?}"
        );
    }
    let failures = lines("sync failed, requeuing");
    ensure!(
        !failures.is_empty(),
        "no failure of the driver is in the log:\n{log}"
    );
    for line in failures {
        ensure!(
            line.contains(" va=\"") || line.contains(" pv=\""),
            "{line} names no object"
        );
    }
    for syntax in RUST_SYNTAX {
        let found = log.lines().find(|line| line.contains(syntax));
        ensure!(found.is_none(), "{syntax} is in the line {found:?}");
    }
    Ok(())
}
