//! Which parts of a sparse file are in use, and in which parts two such files differ.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Extents are whole blocks of this size.
pub const BLOCK: u64 = 4096;

/// How much is read at once to compare.
const CHUNK: usize = 256 * 1024;

/// A part of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins.
    pub(crate) offset: u64,
    /// How long it is.
    pub length: u64,
}

/// A disk that may have no file yet; then it is all zeroes and has no length.
struct SparseFile(Option<File>);

// === impl Extent ===

impl Extent {
    /// The first byte after it.
    pub fn end(self) -> u64 {
        self.offset + self.length
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

    fn extents(&self, from: u64) -> io::Result<Vec<Extent>> {
        match &self.0 {
            Some(file) => extents(file, from),
            None => Ok(Vec::new()),
        }
    }

    /// Fills the buffer; what lies behind the end is zeroes.
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

/// The parts in use of the file at `path`, from the first one that ends after `from`.
pub(super) fn allocated(path: &Path, from: u64) -> io::Result<Vec<Extent>> {
    SparseFile::open(path)?.extents(from)
}

/// The parts in which `target` differs from `base`. Only what is in use in one of them is read.
pub(super) fn changed(base: &Path, target: &Path, from: u64) -> io::Result<Vec<Extent>> {
    let (base, target) = (SparseFile::open(base)?, SparseFile::open(target)?);
    let mut candidates = base.extents(from)?;
    candidates.extend(target.extents(from)?);
    candidates.sort_by_key(|extent| extent.offset);

    let mut found = Vec::new();
    let (mut ours, mut theirs) = (vec![0; CHUNK], vec![0; CHUNK]);
    for candidate in merged(candidates) {
        let mut offset = candidate.offset;
        while offset < candidate.end() {
            let length = usize::try_from(candidate.end() - offset).map_or(CHUNK, |rest| rest.min(CHUNK));
            base.read(offset, &mut ours[..length])?;
            target.read(offset, &mut theirs[..length])?;
            let blocks = ours[..length]
                .chunks(BLOCK as usize)
                .zip(theirs[..length].chunks(BLOCK as usize));
            for (number, (before, after)) in blocks.enumerate() {
                if before != after {
                    found.push(Extent {
                        offset: offset + number as u64 * BLOCK,
                        length: BLOCK,
                    });
                }
            }
            offset += length as u64;
        }
    }
    Ok(merged(found))
}

/// Whether no byte of the file at `path` is set.
pub(crate) fn is_blank(path: &Path) -> io::Result<bool> {
    let disk = SparseFile::open(path)?;
    let mut buffer = vec![0; CHUNK];
    for extent in disk.extents(0)? {
        let mut offset = extent.offset;
        while offset < extent.end() {
            let length = usize::try_from(extent.end() - offset).map_or(CHUNK, |rest| rest.min(CHUNK));
            disk.read(offset, &mut buffer[..length])?;
            if buffer[..length].iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            offset += length as u64;
        }
    }
    Ok(true)
}

/// The parts of an open file that are not holes, as whole blocks.
pub(super) fn extents(file: &File, from: u64) -> io::Result<Vec<Extent>> {
    let mut found = Vec::new();
    let mut position = from - from % BLOCK;
    loop {
        let start = match rustix::fs::seek(file, SeekFrom::Data(position)) {
            Ok(start) => start,
            // Nothing but a hole from here on.
            Err(Errno::NXIO) => return Ok(merged(found)),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        let (first, last) = (start - start % BLOCK, end.next_multiple_of(BLOCK));
        found.push(Extent {
            offset: first,
            length: last - first,
        });
        position = end;
    }
}

/// Joins sorted extents that touch or overlap.
fn merged(sorted: Vec<Extent>) -> Vec<Extent> {
    let mut joined: Vec<Extent> = Vec::with_capacity(sorted.len());
    for next in sorted {
        match joined.last_mut() {
            Some(last) if next.offset <= last.end() => {
                last.length = last.length.max(next.end() - last.offset);
            }
            _ => joined.push(next),
        }
    }
    joined
}
