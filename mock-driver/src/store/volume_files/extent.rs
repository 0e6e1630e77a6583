//! The allocated extents of a sparse file, and the extents in which two files differ.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use super::copy::go_on;

/// Extents are whole blocks of this size.
pub(crate) const BLOCK: u64 = 4096;

/// Number of bytes that are read and compared at once.
const CHUNK: usize = 256 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A disk, which reads as zeroes and has length 0 if it has no file.
struct SparseFile(Option<File>);

// === impl Extent ===

impl Extent {
    /// The first byte after it.
    pub(crate) fn end(self) -> u64 {
        self.offset + self.length
    }

    /// Offset and length of each chunk.
    fn chunks(self) -> impl Iterator<Item = (u64, usize)> {
        let offsets = (self.offset..self.end()).step_by(CHUNK);
        offsets.map(move |offset| (offset, CHUNK.min((self.end() - offset) as usize)))
    }
}

// === impl SparseFile ===

impl SparseFile {
    fn open(path: &Path) -> io::Result<Self> {
        match File::open(path) {
            Ok(file) => Ok(Self(Some(file))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self(None)),
            Err(error) => Err(error),
        }
    }

    /// The first extent that ends after `position`, from `position` on.
    fn next_extent(&self, position: u64) -> io::Result<Option<Extent>> {
        match &self.0 {
            Some(file) => next_extent(file, position),
            None => Ok(None),
        }
    }

    /// Fills the buffer; bytes beyond the end are zeroes.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        if let Some(file) = &self.0 {
            while filled < buffer.len() {
                match file.read_at(&mut buffer[filled..], offset + filled as u64) {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        buffer[filled..].fill(0);
        Ok(())
    }
}

/// The first `limit` allocated extents of the file at `path` from `from` on. `from` must be a multiple of [`BLOCK`].
pub(super) fn allocated(
    path: &Path,
    from: u64,
    limit: usize,
    stop: &CancellationToken,
) -> io::Result<Vec<Extent>> {
    let disk = SparseFile::open(path)?;
    let mut found = Vec::new();
    let mut position = from;
    while let Some(extent) = disk.next_extent(position)? {
        go_on(stop)?;
        if !append(&mut found, extent, limit) {
            break;
        }
        position = extent.end();
    }
    Ok(found)
}

/// The first `limit` parts in which `target` differs from `base`. Only reads extents that are allocated in one of
/// them.
pub(super) fn changed(
    base: &Path,
    target: &Path,
    from: u64,
    limit: usize,
    stop: &CancellationToken,
) -> io::Result<Vec<Extent>> {
    let (base, target) = (SparseFile::open(base)?, SparseFile::open(target)?);
    let mut found = Vec::new();
    let (mut ours, mut theirs) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut position = from;
    loop {
        let candidates = [base.next_extent(position)?, target.next_extent(position)?];
        let Some(candidate) = candidates
            .into_iter()
            .flatten()
            .min_by_key(|extent| extent.offset)
        else {
            return Ok(found);
        };
        for (mut offset, length) in candidate.chunks() {
            go_on(stop)?;
            base.read(offset, &mut ours[..length])?;
            target.read(offset, &mut theirs[..length])?;
            let blocks = ours[..length]
                .chunks(BLOCK as usize)
                .zip(theirs[..length].chunks(BLOCK as usize));
            for (before, after) in blocks {
                let block = Extent {
                    offset,
                    length: BLOCK,
                };
                if before != after && !append(&mut found, block, limit) {
                    return Ok(found);
                }
                offset = block.end();
            }
        }
        position = candidate.end();
    }
}

/// Whether all bytes of the file at `path` are zero.
pub(crate) fn is_blank(path: &Path, stop: &CancellationToken) -> io::Result<bool> {
    let disk = SparseFile::open(path)?;
    let mut buffer = vec![0; CHUNK];
    let mut position = 0;
    while let Some(extent) = disk.next_extent(position)? {
        for (offset, length) in extent.chunks() {
            go_on(stop)?;
            disk.read(offset, &mut buffer[..length])?;
            if buffer[..length].iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
        }
        position = extent.end();
    }
    Ok(true)
}

/// The first part of an open file that is not a hole and ends after `position`, from `position` on, as whole blocks.
pub(super) fn next_extent(file: &File, position: u64) -> io::Result<Option<Extent>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(position)) {
        Ok(start) => start,
        // The rest of the file is a hole.
        Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
    let offset = start - start % BLOCK;
    Ok(Some(Extent {
        offset,
        length: end.next_multiple_of(BLOCK) - offset,
    }))
}

/// Appends an extent, or extends the last one that it touches. Returns false if that makes more than `limit`.
fn append(found: &mut Vec<Extent>, next: Extent, limit: usize) -> bool {
    let is_full = found.len() == limit;
    match found.last_mut() {
        Some(last) if next.offset <= last.end() => last.length = next.end() - last.offset,
        _ if is_full => return false,
        _ => found.push(next),
    }
    true
}
