//! Programs that a test writes itself.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Makes an executable script.
///
/// Another program writes it. A child that some thread is starting holds all that this process has open until it
/// runs, and the kernel runs no file that is open for writing (ETXTBSY).
pub fn write_script(path: &Path, text: &str) -> Result<()> {
    let draft = path.with_extension("draft");
    fs::write(&draft, text).with_context(|| format!("write {}", draft.display()))?;
    fs::set_permissions(&draft, Permissions::from_mode(0o755)).context("make the script executable")?;
    let copied = Command::new("cp")
        .arg(&draft)
        .arg(path)
        .status()
        .context("run cp")?;
    ensure!(copied.success(), "cp could not make {}", path.display());
    fs::remove_file(&draft).context("remove the draft of a script")
}
