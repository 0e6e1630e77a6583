//! Scripts that tests create.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Creates an executable script.
///
/// Another program writes the file. A child that another thread is spawning inherits this process's open files
/// until its exec, and the kernel does not execute a file that is open for writing (ETXTBSY).
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
