//! Reads `/proc/<pid>`.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use procfs::ProcResult;
use procfs::process::{Process, all_processes};
use rustix::process::{Pid, Signal};

/// Processor time of a process so far, also of a zombie.
pub(super) fn cpu_time(pid: Pid) -> Option<Duration> {
    let stat = process(pid).and_then(|process| process.stat()).ok()?;
    let ticks = stat.utime + stat.stime;
    Some(Duration::from_millis(ticks * 1000 / procfs::ticks_per_second()))
}

/// Largest resident set of a process so far, in bytes; `None` for a zombie, whose memory is gone.
pub(super) fn peak_rss(pid: Pid) -> Option<u64> {
    let status = process(pid).and_then(|process| process.status()).ok()?;
    Some(status.vmhwm? * 1024)
}

/// Whether a process has a handler for SIGTERM; without it the signal kills the process.
pub(super) fn handles_sigterm(pid: Pid) -> bool {
    // Bit 0 is signal 1.
    let sigterm = 1 << (Signal::TERM.as_raw() - 1);
    process(pid)
        .and_then(|process| process.status())
        .is_ok_and(|status| status.sigcgt & sigterm != 0)
}

/// Living processes whose environment has this variable with this value.
///
/// Omits a process whose environment cannot be read, because it belongs to another user, and a zombie, whose
/// environment is empty.
pub(super) fn with_environment(name: &OsStr, value: &OsStr) -> ProcResult<Vec<Pid>> {
    let has = |process: &Process| {
        let environ = process.environ();
        environ.is_ok_and(|environ| environ.get(name).is_some_and(|found| found == value))
    };
    let processes = all_processes()?.flatten();
    Ok(processes
        .filter(has)
        .filter_map(|process| Pid::from_raw(process.pid()))
        .collect())
}

/// The command lines of the processes that name a file in `dir`.
pub fn processes_of(dir: &Path) -> ProcResult<Vec<String>> {
    let dir = dir.to_string_lossy();
    let lines = all_processes()?
        .flatten()
        .filter_map(|process| process.cmdline().ok());
    let lines = lines.map(|words| words.join(" "));
    Ok(lines.filter(|line| line.contains(&*dir)).collect())
}

/// Name and arguments of a process, for messages.
pub(super) fn command_line(pid: Pid) -> String {
    let words = process(pid).and_then(|process| process.cmdline());
    words.unwrap_or_default().join(" ")
}

fn process(pid: Pid) -> ProcResult<Process> {
    Process::new(pid.as_raw_nonzero().get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_memory() {
        assert!(peak_rss(rustix::process::getpid()).is_some_and(|bytes| bytes > 1 << 20));
        assert!(cpu_time(rustix::process::getpid()).is_some());
    }
}
