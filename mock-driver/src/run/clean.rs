//! `csi-mock-driver clean`: undoes what killed drivers left, without starting one.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::driver::abandoned;
use crate::error_chain;

/// Undoes what killed drivers left, and prints a line for each. Exit code 1 if something is left.
///
/// # Errors
/// The directory for temporary files cannot be read, or nothing can be printed.
pub fn clean(args: &[OsString]) -> io::Result<ExitCode> {
    if !args.is_empty() {
        let usage = "csi-mock-driver clean undoes the mounts, loop devices, sockets and directories that killed drivers without \
                     --state-dir and --media-dir left. It takes no arguments; it looks in TMPDIR.\n";
        let asks = args.iter().any(|word| word == "--help" || word == "-h");
        io::stderr().lock().write_all(usage.as_bytes())?;
        return Ok(ExitCode::from(if asks { 0 } else { 2 }));
    }
    let all = abandoned::undo_all().map_err(io::Error::other)?;
    let mut out = io::stdout().lock();
    if all.is_empty() {
        writeln!(out, "nothing to clean")?;
    }
    let mut code = ExitCode::SUCCESS;
    for one in all {
        match one {
            Ok(cleaned) => writeln!(out, "removed {cleaned}")?,
            Err(left) => {
                writeln!(io::stderr().lock(), "{}", error_chain(&left))?;
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
