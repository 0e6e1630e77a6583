//! What a volume loses with a power failure: the writes since the last fsync of each file.
//!
//! The files contain all writes; this keeps the blocks before them, which [`Unsynced::lose`] writes back.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::Result;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::inode::Inode;

/// Unit of what is kept.
const BLOCK: u64 = 4096;
const BLOCK_LEN: usize = 4096;

/// Number of blocks that are kept. Beyond it all writes count as written back, as the kernel does in time.
const MAX_BLOCKS: u64 = 16_384;

/// The unsynced files of a volume.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    /// By inode number.
    files: BTreeMap<u64, Before>,
    /// Number of their blocks, one more for each file.
    kept: u64,
}

/// A file as it is on the disk.
#[derive(Debug)]
struct Before {
    inode: Arc<Inode>,
    size: u64,
    /// The blocks that were written since, by their number.
    blocks: BTreeMap<u64, Vec<u8>>,
}

// === impl Unsynced ===

impl Unsynced {
    /// Keeps what is in a range of a file before it is written. `file` is open for reading.
    pub(super) fn keep(&mut self, inode: &Arc<Inode>, file: &File, range: Range<u64>) -> Result<()> {
        let size = file.metadata()?.len();
        let blocks = range.start / BLOCK..range.end.min(size).div_ceil(BLOCK);
        if self.kept + blocks.end.saturating_sub(blocks.start) > MAX_BLOCKS {
            tracing::debug!("too many unsynced writes: they count as written back");
            *self = Self::default();
            if blocks.end.saturating_sub(blocks.start) > MAX_BLOCKS {
                return Ok(());
            }
        }
        let before = match self.files.entry(inode.number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                self.kept += 1;
                let (inode, blocks) = (inode.clone(), BTreeMap::new());
                new.insert(Before { inode, size, blocks })
            }
        };
        for number in blocks.start..blocks.end.min(before.size.div_ceil(BLOCK)) {
            if let Entry::Vacant(new) = before.blocks.entry(number) {
                let mut block = vec![0; BLOCK_LEN];
                let length = file.read_at(&mut block, number * BLOCK)?;
                block.truncate(length);
                new.insert(block);
                self.kept += 1;
            }
        }
        Ok(())
    }

    /// The file is on the disk, or deleted.
    pub(super) fn forget(&mut self, inode: &Inode) {
        if let Some(before) = self.files.remove(&inode.number) {
            self.kept -= 1 + u64::try_from(before.blocks.len()).unwrap_or(0);
        }
    }

    /// Loses all unsynced writes, and returns how many files had some.
    pub(super) fn lose(&mut self) -> Result<usize> {
        let lost = std::mem::take(self);
        // The other files lose theirs nevertheless.
        let results: Vec<_> = lost.files.values().map(Before::restore).collect();
        let restored: Result<Vec<()>> = results.into_iter().collect();
        restored.map(|files| files.len())
    }
}

// === impl Before ===

impl Before {
    fn restore(&self) -> Result<()> {
        let file = self.inode.open(OFlags::RDWR)?;
        file.set_len(self.size)?;
        let mut blocks = self.blocks.iter();
        blocks.try_for_each(|(number, block)| file.write_all_at(block, number * BLOCK))
    }
}
