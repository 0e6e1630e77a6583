//! A disk that a test can fill, hold up, and take the power from.

use std::io::{self, ErrorKind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

/// What a disk tears a write into.
const SECTOR: usize = 512;

#[derive(Clone, Debug, Default)]
pub(super) struct Disk(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What a reader sees.
    content: Vec<u8>,
    flushed: Vec<u8>,
    /// The writes, changes of length and flushes since.
    unflushed: Vec<Step>,
    /// How many writes, changes of length and flushes still succeed, and how they fail then.
    left: Option<usize>,
    error: Option<ErrorKind>,
    /// Whether the next step panics.
    panics: bool,
    flushes: usize,
    is_held: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize, Vec<u8>),
    Resize(usize),
}

/// Which unflushed steps a loss of power leaves on the disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Survives {
    Nothing,
    Everything,
    /// Each step whole, in part or not at all, by a seed.
    Some(u64),
}

// === impl Disk ===

impl Disk {
    pub(super) fn with(content: Vec<u8>) -> Self {
        let disk = Self::default();
        disk.state().flushed.clone_from(&content);
        disk.state().content = content;
        disk
    }

    /// Lets so many more steps succeed, and fails then.
    pub(super) fn fail_after(&self, left: usize, error: ErrorKind) {
        let mut state = self.state();
        (state.left, state.error) = (Some(left), Some(error));
    }

    /// Lets the next step panic.
    pub(super) fn panic_once(&self) {
        self.state().panics = true;
    }

    pub(super) fn has_failed(&self) -> bool {
        self.state().left == Some(0)
    }

    pub(super) fn flushes(&self) -> usize {
        self.state().flushes
    }

    pub(super) fn len(&self) -> usize {
        self.state().content.len()
    }

    /// Lets flushes wait until it is called with `false`.
    pub(super) fn hold_flushes(&self, is_held: bool) {
        self.state().is_held = is_held;
        self.0.released.notify_all();
    }

    pub(super) fn after_power_loss(&self, survives: Survives) -> Self {
        let state = self.state();
        let mut content = state.flushed.clone();
        let mut random = match survives {
            Survives::Some(seed) => fastrand::Rng::with_seed(seed),
            Survives::Nothing | Survives::Everything => fastrand::Rng::with_seed(0),
        };
        for step in &state.unflushed {
            let part = match survives {
                Survives::Nothing => 0,
                Survives::Everything => 2,
                Survives::Some(_) => random.u8(0..3),
            };
            match (part, step) {
                (2, step) => step.apply(&mut content),
                (1, Step::Write(offset, data)) => {
                    let sectors = random.usize(0..=data.len() / SECTOR);
                    Step::Write(*offset, data[..sectors * SECTOR].to_vec()).apply(&mut content);
                }
                _ => {}
            }
        }
        Self::with(content)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len().try_into().unwrap())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        let state = self.state();
        let found = state.content.get(offset..offset + out.len());
        out.copy_from_slice(found.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.state().step(Step::Resize(len.try_into().unwrap()))
    }

    fn sync_data(&self) -> io::Result<()> {
        let held = |state: &mut State| state.is_held;
        let released = &self.0.released;
        let mut state = released
            .wait_while(self.state(), held)
            .unwrap_or_else(PoisonError::into_inner);
        state.take_one()?;
        state.flushes += 1;
        state.unflushed.clear();
        state.flushed = state.content.clone();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.state()
            .step(Step::Write(offset.try_into().unwrap(), data.to_vec()))
    }
}

// === impl State ===

impl State {
    /// The step that fails may still have reached the disk in part.
    fn step(&mut self, step: Step) -> io::Result<()> {
        let taken = self.take_one();
        if taken.is_ok() {
            step.apply(&mut self.content);
        }
        self.unflushed.push(step);
        taken
    }

    fn take_one(&mut self) -> io::Result<()> {
        assert!(!std::mem::take(&mut self.panics), "the disk panics");
        match &mut self.left {
            Some(0) => Err(self.error.unwrap_or(ErrorKind::Other).into()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

// === impl Step ===

impl Step {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Resize(len) => content.resize(*len, 0),
            Self::Write(offset, data) => {
                let end = offset + data.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*offset..end].copy_from_slice(data);
            }
        }
    }
}
