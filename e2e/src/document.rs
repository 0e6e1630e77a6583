//! Code blocks of the repository's documents, and a shell that runs their commands.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::process::{Process, Run, Spec, write_script};
use crate::toolchain::workspace_root;

/// Programs that the shell replaces by a no-op, with the reasons. A recipe with such a program is tested only in
/// part.
pub const NOT_RUN: [(&str, &str); 3] = [
    (
        "cargo",
        "the toolchain has built the programs; a release build takes minutes",
    ),
    (
        "docker",
        "no container engine is needed: the harness makes the images itself",
    ),
    ("kind", "the two real kubelets are the cluster"),
];
/// Real nodes need root, so this shell already runs as root. Recipes replace the directories that commands with
/// `sudo` would change.
const SUDO: &str = "#!/bin/sh\nexec \"$@\"\n";
/// Timeout of a block, longer than any block takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(400);

/// A fenced block of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Info string of the fence, such as `console`.
    pub language: String,
    /// Its lines.
    pub text: String,
}

struct Replacement {
    text: String,
    by: String,
    /// Whether the text occurred in commands.
    is_used: AtomicBool,
}

/// Runs commands with bash in the repository's root directory.
pub struct Shell {
    run: Arc<Run>,
    dir: PathBuf,
    env: Vec<(String, String)>,
    replacements: Vec<Replacement>,
    scripts: AtomicUsize,
}

/// The blocks of the document at `path` below the root of the repository.
pub fn blocks(path: impl AsRef<Path>) -> Result<Vec<Block>> {
    let path = workspace_root().join(path);
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

/// The only block of a document that begins with `begins`.
pub fn block(path: &str, begins: &str) -> Result<String> {
    let mut found = blocks(path)?;
    found.retain(|block| block.text.starts_with(begins));
    ensure!(
        found.len() == 1,
        "{path} has {} blocks that begin with {begins}",
        found.len()
    );
    Ok(found.remove(0).text)
}

fn parse(text: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => {
                open = Some(Block {
                    language: language.to_owned(),
                    text: String::new(),
                });
            }
            (None, Some(block)) => {
                block.text += line;
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    ensure!(open.is_none(), "a block must end");
    Ok(blocks)
}

// === impl Shell ===

impl Shell {
    /// A shell whose home directory, programs and output are in a directory of the run.
    pub fn new(run: &Arc<Run>, name: &str) -> Result<Self> {
        let dir = run.new_subdir(name)?;
        let shell = Self {
            run: Arc::clone(run),
            dir,
            env: Vec::new(),
            replacements: Vec::new(),
            scripts: AtomicUsize::new(0),
        };
        for dir in ["bin", "home"] {
            std::fs::create_dir(shell.dir.join(dir)).with_context(|| format!("make {dir}"))?;
        }
        for (program, _) in NOT_RUN {
            shell.script(program, "#!/bin/sh\n")?;
        }
        shell.script("sudo", SUDO)?;
        Ok(shell)
    }

    /// The shell's home directory.
    pub fn home(&self) -> PathBuf {
        self.dir.join("home")
    }

    /// Puts a program on `PATH`.
    pub fn program(self, name: &str, path: &Path) -> Result<Self> {
        symlink(path, self.dir.join("bin").join(name)).with_context(|| format!("link {name}"))?;
        Ok(self)
    }

    /// Puts a script on `PATH`.
    pub fn script(&self, name: &str, text: &str) -> Result<()> {
        write_script(&self.dir.join("bin").join(name), text)
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Replaces a placeholder of the documents, such as an address.
    #[must_use]
    pub fn replacing(mut self, text: &str, by: &str) -> Self {
        self.replacements.push(Replacement {
            text: text.to_owned(),
            by: by.to_owned(),
            is_used: AtomicBool::new(false),
        });
        self
    }

    /// Checks that each text to replace occurred in commands that ran. Otherwise a document has changed.
    pub fn ensure_all_replaced(&self) -> Result<()> {
        let unused = self
            .replacements
            .iter()
            .filter(|replacement| !replacement.is_used.load(Ordering::Relaxed));
        let unused: Vec<_> = unused.map(|replacement| &replacement.text).collect();
        ensure!(unused.is_empty(), "no command has {unused:?}");
        Ok(())
    }

    /// Starts commands in the background.
    pub fn start(&self, commands: &str) -> Result<Process> {
        let mut script = format!("cd '{}'\n{commands}", workspace_root().display());
        for Replacement { text, by, is_used } in &self.replacements {
            if script.contains(text) {
                is_used.store(true, Ordering::Relaxed);
                script = script.replace(text, by);
            }
        }
        let number = self.scripts.fetch_add(1, Ordering::Relaxed);
        let path = format!(
            "{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            self.dir.join("bin").display()
        );
        let spec = Spec::new(format!("commands-{number}"), "bash")
            .args(["-euo", "pipefail", "-c", &script])
            .env("HOME", self.home())
            .env("PATH", path)
            .dir(&self.dir);
        let spec = self
            .env
            .iter()
            .fold(spec, |spec, (name, value)| spec.env(name, value));
        Process::spawn(&self.run, spec)
    }

    /// Runs commands, each of which must succeed, and returns what they print to stdout.
    pub async fn run(&self, commands: &str) -> Result<String> {
        let process = self.start(commands)?;
        let exit = process.exited_within(LIMIT).await?;
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let (stdout, stderr) = (read(process.stdout()), read(process.log()));
        let status = exit.status;
        ensure!(status.success(), "{status}: {commands}\n{stdout}\n{stderr}");
        Ok(stdout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_language_and_text() {
        let text = "a\n```console\nls\n\ncd\n```\nb\n```\nx\n```\n";
        let block = |language: &str, text: &str| Block {
            language: language.to_owned(),
            text: text.to_owned(),
        };
        assert_eq!(
            parse(text).unwrap(),
            [block("console", "ls\n\ncd\n"), block("", "x\n")]
        );
        assert!(parse("```console\nls\n").is_err());
    }
}
