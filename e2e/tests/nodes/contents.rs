//! The table of the trials on real kubelets in `e2e/README.md`.

use anyhow::{Context, Result, ensure};
use csi_e2e::toolchain::workspace_root;

const HEAD: &str = "| trial | short form | content |\n|---|---|---|\n";

/// The table lists all trials, except for the scenarios `path::`, in order, and says which of them the short form runs.
pub(crate) fn readme_lists_the_trials(trials: &[&str], short: &[&str]) -> Result<()> {
    let readme =
        std::fs::read_to_string(workspace_root().join("e2e/README.md")).context("read the README")?;
    let (_, table) = readme
        .split_once(HEAD)
        .context("the README must have the table")?;
    let rows = table.lines().take_while(|line| line.starts_with("| `"));
    let rows: Vec<_> = rows.collect();
    ensure!(
        rows.len() == trials.len(),
        "the README lists {rows:?}, and the trials are {trials:?}"
    );
    for (row, trial) in rows.iter().zip(trials) {
        let is_short = if short.contains(trial) { "yes" } else { "-" };
        let content = row.strip_prefix(&format!("| `{trial}` | {is_short} | "));
        ensure!(
            content.is_some_and(|content| content.len() > " |".len()),
            "the row of {trial} with {is_short:?} in the short form is {row}"
        );
    }
    Ok(())
}
