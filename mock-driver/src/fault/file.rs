//! The fault file, and its reload when it changes.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{self, MissedTickBehavior};

use super::{Faults, Origin, Rule, RuleConflict, RuleError};
use crate::journal::Journal;

/// Interval of polling the file: a stat of a cached inode takes a microsecond, and an edit should take effect at once.
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct FaultFile {
    path: PathBuf,
    seen: Option<Stamp>,
    ids: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "documented by the error messages")]
pub enum LoadError {
    #[error("--faults: cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("--faults: {}: {reason}", path.display())]
    Rules { path: PathBuf, reason: RuleError },
    #[error("--faults: {}", path.display())]
    Conflict { path: PathBuf, source: RuleConflict },
}

/// The version of a file. It includes the inode, because a file replaced by rename may have the earlier one's length and, on
/// coarse clocks, its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    len: u64,
    mtime: (i64, i64),
}

// === impl FaultFile ===

impl FaultFile {
    /// Loads the file for the first time. [`FaultFile::announce`] logs it.
    ///
    /// # Errors
    /// The file cannot be read or is malformed: without the requested faults, a test would pass without testing anything.
    pub(crate) fn open(path: &Path, faults: &Faults) -> Result<Self, LoadError> {
        let mut file = Self {
            path: path.to_owned(),
            seen: Stamp::of(path),
            ids: Vec::new(),
        };
        file.load(faults)?;
        Ok(file)
    }

    /// Logs and journals that the file's rules are active.
    pub(crate) fn announce(&self, journal: Option<&Journal>) {
        tracing::info!(file = %self.path.display(), rules = self.ids.len(), "fault rules in force");
        if let Some(journal) = journal {
            journal.faults_loaded(&self.path, self.ids.len(), Ok(&self.ids));
        }
    }

    /// Reloads the file whenever it changes. A malformed file is logged, and the earlier rules remain.
    ///
    /// # Cancellation
    /// Safe.
    pub(crate) async fn follow(mut self, faults: &Faults, journal: Option<&Journal>) {
        let mut ticks = time::interval(POLL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before = self.seen;
        loop {
            ticks.tick().await;
            let now = Stamp::of(&self.path);
            // A file that is still being written is not loaded before two polls agree.
            if now == before && now != self.seen {
                self.seen = now;
                match self.load(faults) {
                    Ok(()) => self.announce(journal),
                    Err(error) => {
                        let error = crate::error_chain(&error);
                        tracing::error!(
                            error,
                            rules = faults.len(),
                            "fault rules not reloaded, the old ones stay"
                        );
                        if let Some(journal) = journal {
                            journal.faults_loaded(&self.path, faults.len(), Err(&error));
                        }
                    }
                }
            }
            before = now;
        }
    }

    fn load(&mut self, faults: &Faults) -> Result<(), LoadError> {
        let text = fs::read_to_string(&self.path).map_err(|source| LoadError::Read {
            path: self.path.clone(),
            source,
        })?;
        let rules = Rule::read_list(&text).map_err(|reason| LoadError::Rules {
            path: self.path.clone(),
            reason,
        })?;
        let ids = rules.iter().map(|rule| rule.id.clone()).collect();
        faults
            .load(Origin::File, rules)
            .map_err(|source| LoadError::Conflict {
                path: self.path.clone(),
                source,
            })?;
        self.ids = ids;
        Ok(())
    }
}

// === impl Stamp ===

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        Some(Self {
            inode: meta.ino(),
            len: meta.len(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
        })
    }
}
