//! What `/proc` has about processes.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal};

/// Processor time a process has used so far, also when it is a zombie.
pub(super) fn cpu_time(pid: Pid) -> Option<Duration> {
    let stat = fs::read_to_string(entry(pid, "stat")).ok()?;
    parse_cpu_time(&stat, rustix::param::clock_ticks_per_second())
}

/// Largest resident set of a process so far, in bytes; `None` for a zombie, whose memory is gone.
pub(super) fn peak_rss(pid: Pid) -> Option<u64> {
    let status = fs::read_to_string(entry(pid, "status")).ok()?;
    parse_peak_rss(&status)
}

/// Whether a process has a handler for SIGTERM; before that the signal kills it.
pub(super) fn handles_sigterm(pid: Pid) -> bool {
    fs::read_to_string(entry(pid, "status")).is_ok_and(|status| parse_handles_sigterm(&status))
}

/// Living processes whose environment has `variable`, an entry of the form `NAME=value`.
///
/// A process whose environment cannot be read belongs to another user and is left out; so is a zombie, whose
/// environment is empty.
pub(super) fn with_environment(variable: &[u8]) -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(parse_pid) else {
            continue;
        };
        let Ok(environ) = fs::read(self::entry(pid, "environ")) else {
            continue;
        };
        if environ.split(|byte| *byte == 0).any(|entry| entry == variable) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Name and arguments of a process, for messages.
pub(super) fn command_line(pid: Pid) -> String {
    let raw = fs::read(entry(pid, "cmdline")).unwrap_or_default();
    let words: Vec<_> = raw
        .split(|byte| *byte == 0)
        .map(String::from_utf8_lossy)
        .collect();
    words.join(" ").trim_end().to_owned()
}

fn entry(pid: Pid, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/{file}", pid.as_raw_nonzero()))
}

fn parse_pid(name: &str) -> Option<Pid> {
    name.parse().ok().and_then(Pid::from_raw)
}

/// Fields 14 and 15 of `/proc/<pid>/stat`, counted after the command, which may hold spaces and parentheses.
fn parse_cpu_time(stat: &str, ticks_per_second: u64) -> Option<Duration> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let millis = (user + system).checked_mul(1000)?.checked_div(ticks_per_second)?;
    Some(Duration::from_millis(millis))
}

fn parse_peak_rss(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn parse_handles_sigterm(status: &str) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    // Bit 0 is signal 1.
    let sigterm = 1 << (Signal::TERM.as_raw() - 1);
    caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & sigterm != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_survives_a_command_with_parentheses() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 7 7 20 0 1 0 100 0 0";
        assert_eq!(parse_cpu_time(stat, 100), Some(Duration::from_secs(2)));
        assert_eq!(parse_cpu_time("42 (truncated) S 1 2", 100), None);
    }

    #[test]
    fn peak_rss_is_read_in_bytes() {
        assert_eq!(
            parse_peak_rss("Name:\tx\nVmPeak:\t 9 kB\nVmHWM:\t    2048 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(parse_peak_rss("Name:\tzombie\n"), None);
    }

    #[test]
    fn sigterm_handler_is_read_from_the_mask() {
        assert!(parse_handles_sigterm(
            "SigIgn:\t0000000000001000\nSigCgt:\t0000000100004002\n"
        ));
        assert!(!parse_handles_sigterm(
            "SigIgn:\t0000000000004000\nSigCgt:\t0000000100000002\n"
        ));
        assert!(!parse_handles_sigterm("Name:\tzombie\n"));
    }

    #[test]
    fn this_process_has_used_memory() {
        assert!(peak_rss(rustix::process::getpid()).is_some_and(|bytes| bytes > 1 << 20));
        assert!(cpu_time(rustix::process::getpid()).is_some());
    }
}
