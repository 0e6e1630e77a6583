//! A run of the harness: its temporary directory, its marker and its reaper.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::procfs;
use super::reaper::{MARKER, MarkedProcesses, Reaper};
use crate::mutex::lock;

/// Timeout of the exit of killed processes.
const DYING: Duration = Duration::from_secs(5);

/// The processes and files of one run of the harness.
///
/// If it is dropped without [`Run::finish`], the reaper cleans up.
#[derive(Debug)]
pub struct Run {
    dir: PathBuf,
    reaper: Mutex<Option<Reaper>>,
}

// === impl Run ===

impl Run {
    /// Creates the temporary directory and starts the reaper.
    ///
    /// # Errors
    /// The executable's `main` does not begin with
    /// [`reaper_main_if_requested`](super::reaper_main_if_requested).
    pub fn start() -> Result<Arc<Self>> {
        let dir = tempfile::Builder::new()
            .prefix("csi-e2e-")
            .rand_bytes(12)
            .tempdir()
            .context("make the run's temporary directory")?;
        let reaper = Reaper::start(dir.path())?;
        // From now on the reaper removes the directory, also if this process is killed.
        Ok(Arc::new(Self {
            dir: dir.keep(),
            reaper: Mutex::new(Some(reaper)),
        }))
    }

    /// The run's temporary directory, readable only by the current user.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Creates a subdirectory of the run's directory, for the files of one scenario or program.
    pub fn subdir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(dir)
    }

    /// Creates a new subdirectory with this name, or with this name and a number.
    pub fn new_subdir(&self, name: &str) -> Result<PathBuf> {
        let mut dir = self.dir.join(name);
        let mut number = 1;
        loop {
            match std::fs::create_dir(&dir) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                    number += 1;
                    dir = self.dir.join(format!("{name}-{number}"));
                }
                made => {
                    made.with_context(|| format!("make {}", dir.display()))?;
                    return Ok(dir);
                }
            }
        }
    }

    /// Name and value of the environment variable of every process of this run. The value is the run's
    /// directory, which is unique among the concurrent runs of this machine.
    pub fn marker(&self) -> (&'static str, &Path) {
        (MARKER, &self.dir)
    }

    /// Keeps the directory after the run, for its logs.
    pub fn keep_files(&self) -> Result<()> {
        match &mut *lock(&self.reaper) {
            Some(reaper) => reaper.keep_files(),
            None => bail!("the run is finished already"),
        }
    }

    /// Ends the run: kills the remaining processes, then the reaper removes the directory and exits.
    ///
    /// # Errors
    /// A process was neither stopped nor dropped before: it is a leak, is killed, and is named in the error.
    pub async fn finish(self: &Arc<Self>) -> Result<()> {
        let run = Arc::clone(self);
        tokio::task::spawn_blocking(move || run.close())
            .await
            .context("finish the run")?
    }

    fn close(&self) -> Result<()> {
        let Some(reaper) = lock(&self.reaper).take() else {
            return Ok(());
        };
        let marked = MarkedProcesses::of(&self.dir);
        let leaked: Vec<String> = marked
            .remaining_processes(DYING)?
            .into_iter()
            .map(|pid| format!("{} {}", pid.as_raw_nonzero(), procfs::command_line(pid)))
            .collect();
        reaper.stop()?;
        if !leaked.is_empty() {
            bail!(
                "processes of the run were left over and had to be killed: {}",
                leaked.join("; ")
            );
        }
        Ok(())
    }
}
