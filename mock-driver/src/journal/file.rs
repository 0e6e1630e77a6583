use std::fs;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::clock::Clock;
use super::line::Line;
use crate::line_writer::{LineWriter, Sink, count};

#[derive(Debug, thiserror::Error)]
#[error("--journal: cannot open {} for appending: its directory must exist and be writable", path.display())]
pub struct OpenError {
    path: PathBuf,
    source: io::Error,
}

#[derive(Debug)]
pub(super) struct File(LineWriter);

struct RotatingFile {
    file: fs::File,
    path: PathBuf,
    /// Size of the file; `None` for a pipe or device, which cannot be rotated.
    size: Option<u64>,
    max_bytes: u64,
    is_failing: bool,
    clock: Clock,
}

// === impl File ===

impl File {
    /// Opens the file. When it reaches `max_bytes`, it becomes `<path>.1`, in place of the one before; 0 means unlimited.
    pub(super) fn open(path: &Path, max_bytes: u64, clock: Clock) -> Result<Self, OpenError> {
        let failed = |source| OpenError {
            path: path.to_owned(),
            source,
        };
        let file = append_to(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let sink = RotatingFile {
            file,
            path: path.to_owned(),
            size: metadata.is_file().then_some(metadata.len()),
            max_bytes: if max_bytes == 0 { u64::MAX } else { max_bytes },
            is_failing: false,
            clock,
        };
        LineWriter::start("journal", sink).map(Self).map_err(failed)
    }

    /// Writes a line. It is in the page cache when this returns, so that a caller finds it in the file after the response,
    /// unless the file is stalled.
    pub(super) fn write(&self, line: &Line<'_>) {
        self.0.write_and_wait(&text(line));
    }

    pub(super) fn flush(&self, limit: Duration) {
        self.0.flush(limit);
    }

    pub(super) fn lost_lines(&self) -> u64 {
        self.0.lost_lines()
    }
}

// === impl RotatingFile ===

impl RotatingFile {
    fn append(&mut self, lines: &[u8]) -> Result<(), (io::Error, u64)> {
        let mut rest = lines;
        while !rest.is_empty() {
            let room = self
                .size
                .map_or(u64::MAX, |size| self.max_bytes.saturating_sub(size));
            let room = usize::try_from(room).unwrap_or(usize::MAX).min(rest.len());
            let fitting = rest[..room].iter().rposition(|byte| *byte == b'\n');
            let end = match (fitting, self.size) {
                (Some(last), _) => last + 1,
                (None, Some(1..)) => {
                    self.rotate().map_err(|error| (error, count(rest)))?;
                    continue;
                }
                // A line that is longer than a file may be.
                (None, Some(0) | None) => rest
                    .iter()
                    .position(|byte| *byte == b'\n')
                    .map_or(rest.len(), |end| end + 1),
            };
            let (now, later) = rest.split_at(end);
            self.write_lines(now)
                .map_err(|(error, failed)| (error, failed + count(later)))?;
            rest = later;
        }
        Ok(())
    }

    /// Opens the next file before it moves the present one, so that a failure changes nothing and the next line tries again.
    fn rotate(&mut self) -> io::Result<()> {
        let beside = |suffix| {
            let mut path = self.path.clone().into_os_string();
            path.push(suffix);
            PathBuf::from(path)
        };
        let next = beside(".next");
        let file = append_to(&next)?;
        file.set_len(0)?;
        match fs::rename(&self.path, beside(".1")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            // Another program has moved it.
            Ok(()) | Err(_) => {}
        }
        fs::rename(&next, &self.path)?;
        self.file = file;
        self.size = Some(0);
        Ok(())
    }

    /// Writes lines, and removes the part of a line that a full disk leaves.
    fn write_lines(&mut self, lines: &[u8]) -> Result<(), (io::Error, u64)> {
        let mut written = 0;
        while written < lines.len() {
            match self.file.write(&lines[written..]) {
                Ok(0) => return Err((io::ErrorKind::WriteZero.into(), self.remove_part(lines, written))),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err((error, self.remove_part(lines, written))),
            }
        }
        self.grow(written);
        Ok(())
    }

    /// Returns the number of lines that are not in the file.
    fn remove_part(&mut self, lines: &[u8], written: usize) -> u64 {
        let whole = lines[..written]
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |last| last + 1);
        self.grow(whole);
        if written > whole && self.size.is_some() {
            let part = u64::try_from(written - whole).unwrap_or_default();
            let removed = self.file.stream_position().and_then(|end| {
                // Another process may append to the file, too.
                match self.file.metadata()?.len() == end {
                    true => self.file.set_len(end - part),
                    false => Ok(()),
                }
            });
            if let Err(error) = removed {
                tracing::warn!(file = %self.path.display(), %error, "journal has a part of a line");
            }
        }
        count(&lines[whole..])
    }

    fn grow(&mut self, bytes: usize) {
        if let Some(size) = &mut self.size {
            *size = size.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        }
    }
}

impl Sink for RotatingFile {
    fn write(&mut self, lines: &[u8]) -> u64 {
        match self.append(lines) {
            Ok(()) => {
                self.is_failing = false;
                0
            }
            Err((error, failed)) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::error!(file = %self.path.display(), %error, "journal cannot be written, lines are lost");
                }
                failed
            }
        }
    }

    fn lost(&self, lines: u64) -> Vec<u8> {
        text(&Line::Lost {
            time: self.clock.now(),
            lines,
        })
    }
}

fn append_to(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().create(true).append(true).open(path)
}

fn text(line: &Line<'_>) -> Vec<u8> {
    let mut text = serde_json::to_vec(line).expect("a journal line must be representable as JSON");
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn full_file_is_rotated_between_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let line = |lines| Line::Lost {
            time: Timestamp::UNIX_EPOCH,
            lines,
        };
        let length = u64::try_from(text(&line(0)).len()).unwrap();
        fs::write(&path, text(&line(0))).unwrap();
        let file = File::open(&path, 3 * length + 1, Clock::system()).unwrap();
        let read = |path: &Path| {
            let text = fs::read_to_string(path).unwrap();
            let number = |line| {
                let Line::Lost { lines, .. } = serde_json::from_str(line).unwrap() else {
                    panic!("{line}");
                };
                lines
            };
            text.lines().map(number).collect::<Vec<u64>>()
        };
        for number in 1..9 {
            file.write(&line(number));
        }
        file.flush(Duration::from_secs(60));
        let before = directory.path().join("journal.1");
        assert_eq!((read(&before), read(&path)), (vec![3, 4, 5], vec![6, 7, 8]));
        fs::rename(&path, &before).unwrap();
        for number in 1..3 {
            file.write(&line(number));
        }
        file.flush(Duration::from_secs(60));
        assert_eq!(
            (read(&before), read(&path)),
            (vec![6, 7, 8], vec![1, 2]),
            "another program has rotated it"
        );
        let next = directory.path().join("journal.next");
        fs::create_dir(&next).unwrap();
        for number in 3..5 {
            file.write(&line(number));
        }
        file.flush(Duration::from_secs(60));
        assert_eq!(
            (read(&before), read(&path)),
            (vec![6, 7, 8], vec![1, 2, 3]),
            "the next one cannot be opened"
        );
        fs::remove_dir(&next).unwrap();
        file.write(&line(5));
        file.flush(Duration::from_secs(60));
        assert_eq!(
            (read(&before), read(&path)),
            (vec![1, 2, 3], vec![1, 5]),
            "a lost line is counted"
        );
        drop(file);
        let tiny = File::open(&path, 1, Clock::system()).unwrap();
        tiny.write(&line(9));
        tiny.flush(Duration::from_secs(60));
        assert_eq!(
            (read(&before), read(&path)),
            (vec![1, 5], vec![9]),
            "a line longer than the limit"
        );
    }
}
