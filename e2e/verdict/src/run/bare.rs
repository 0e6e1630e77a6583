//! A `PATH` without any optional program.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::requirement::on_path;

/// What every machine with Rust has: the toolchain, a C compiler and the linker that it starts, `sh`, and coreutils.
const PROGRAMS: &[&str] = &[
    "cargo", "rustc", "rustdoc", "cc", "gcc", "ld", "as", "ar", "sh", "basename", "cat", "chmod", "chown",
    "cp", "cut", "date", "dirname", "echo", "env", "expr", "false", "head", "id", "ln", "ls", "mkdir",
    "mkfifo", "mknod", "mktemp", "mv", "nice", "od", "printf", "pwd", "readlink", "realpath", "rm", "rmdir",
    "seq", "sleep", "sort", "stat", "tail", "tee", "test", "timeout", "touch", "tr", "true", "truncate",
    "uname", "uniq", "wc",
];
/// Those without which no test can run.
const NEEDED: &[&str] = &["cargo", "rustc", "cc", "sh", "nice", "true"];

/// Makes a directory with only these programs.
pub(super) fn path(dir: &Path) -> Result<PathBuf> {
    fs::create_dir(dir).with_context(|| format!("make {}", dir.display()))?;
    for name in PROGRAMS {
        match on_path(name.as_ref()) {
            Some(program) => symlink(program, dir.join(name)).with_context(|| format!("link {name}"))?,
            None => ensure!(!NEEDED.contains(name), "{name} is not on PATH"),
        }
    }
    Ok(dir.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_has_the_toolchain_and_no_optional_program() {
        let dir = tempfile::tempdir().unwrap();
        let path = path(&dir.path().join("bin")).unwrap();
        for name in NEEDED {
            assert!(path.join(name).exists(), "{name}");
        }
        for name in ["git", "go", "mount", "mkfs.ext4", "bash", "python3"] {
            assert!(!path.join(name).exists(), "{name}");
        }
    }
}
