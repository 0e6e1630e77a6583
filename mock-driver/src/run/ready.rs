use std::io::{self, Write};
use std::path::Path;

use serde_json::json;

use crate::admin_api::Endpoint;

/// Removes the file of an earlier driver, which a reader would take for that of this one.
pub(super) fn remove(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The file of a driver that listens, removed when this is dropped.
pub(super) struct ReadyFile<'a>(&'a Path);

impl Drop for ReadyFile<'_> {
    fn drop(&mut self) {
        if let Err(error) = remove(self.0) {
            tracing::warn!(%error, file = %self.0.display(), "failed to remove the ready file");
        }
    }
}

/// Writes the file at once, so that a reader never sees a part of it; `-` is stdout.
pub(super) fn write<'a>(
    file: &'a Path,
    driver: &str,
    socket: &Path,
    admin: Option<&Endpoint>,
) -> io::Result<Option<ReadyFile<'a>>> {
    let ready = json!({
        "driver": driver,
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "endpoint": format!("unix://{}", std::path::absolute(socket)?.display()),
        "adminEndpoint": admin.map(ToString::to_string),
    });
    let line = format!("{ready}\n");
    if file.as_os_str() == "-" {
        io::stdout().lock().write_all(line.as_bytes())?;
        return Ok(None);
    }
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut new = tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new(".")))?;
    new.write_all(line.as_bytes())?;
    new.persist(file)?;
    Ok(Some(ReadyFile(file)))
}
