//! What the kernel tells about this process.

use std::fs;

use super::{Exposition, family};

/// How many ticks of the kernel's accounts a second has: the same on every Linux of today (USER_HZ).
const TICKS: f64 = 100.0;
const KIB: f64 = 1024.0;
/// What stands for "unlimited", as Prometheus' own client has it: the largest 64-bit number.
const UNLIMITED: f64 = 18_446_744_073_709_551_615.0;

/// Writes the `process_*` families. What cannot be read is left out.
pub fn expose(exposition: &mut Exposition) {
    let read = |file: &str| fs::read_to_string(format!("/proc/{file}")).unwrap_or_default();
    let mut tell = |family, value: Option<f64>| {
        if let Some(value) = value {
            exposition.single(family, value);
        }
    };
    let stat = read("self/stat");
    let status = read("self/status");
    let limits = read("self/limits");
    let traffic = read("self/net/netstat");
    tell(&family::PROCESS_CPU, cpu_seconds(&stat));
    tell(&family::PROCESS_MAX_FDS, limit(&limits, "Max open files"));
    tell(&family::PROCESS_RECEIVED, netstat(&traffic, "InOctets"));
    tell(&family::PROCESS_SENT, netstat(&traffic, "OutOctets"));
    let open = fs::read_dir("/proc/self/fd").ok();
    // One of them is the directory that is being read.
    tell(
        &family::PROCESS_OPEN_FDS,
        open.map(|fds| fds.count().saturating_sub(1) as f64),
    );
    tell(&family::PROCESS_RESIDENT, kibibytes(&status, "VmRSS:"));
    tell(&family::PROCESS_START, start_seconds(&stat, &read("stat")));
    tell(&family::PROCESS_VIRTUAL, kibibytes(&status, "VmSize:"));
    tell(&family::PROCESS_VIRTUAL_MAX, limit(&limits, "Max address space"));
}

/// The fields of `/proc/self/stat` after the program's name, which may contain anything. The first is
/// the third of proc(5).
fn after_name(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(')')?.1.split_ascii_whitespace())
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    const UTIME: usize = 14 - 3;
    let mut fields = after_name(stat)?.skip(UTIME);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS)
}

fn start_seconds(stat: &str, system: &str) -> Option<f64> {
    const START: usize = 22 - 3;
    let ticks: f64 = after_name(stat)?.nth(START)?.parse().ok()?;
    let booted = system.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(booted.parse::<f64>().ok()? + ticks / TICKS)
}

fn kibibytes(status: &str, field: &str) -> Option<f64> {
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    let number: f64 = value.split_ascii_whitespace().next()?.parse().ok()?;
    Some(number * KIB)
}

fn limit(limits: &str, name: &str) -> Option<f64> {
    let soft = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match soft.split_ascii_whitespace().next()? {
        "unlimited" => Some(UNLIMITED),
        number => number.parse().ok(),
    }
}

/// A field of the `IpExt` table, which is a line of names and a line of values.
fn netstat(text: &str, field: &str) -> Option<f64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_ascii_whitespace().position(|name| name == field)?;
    values.split_ascii_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "4242 (csi) attacher) S 1 4242 4242 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 3 0 12345 99 88";

    #[test]
    fn fields_are_counted_from_the_end_of_the_name() {
        assert_eq!(cpu_seconds(STAT), Some(2.0));
        assert_eq!(
            start_seconds(STAT, "cpu 1 2\nbtime 1000\nprocesses 7\n"),
            Some(1123.45)
        );
        assert_eq!(cpu_seconds("cut off"), None);
        assert_eq!(start_seconds(STAT, ""), None);
    }

    #[test]
    fn tables_are_read_by_name() {
        let status = "Name:\tx\nVmSize:\t    1000 kB\nVmRSS:\t     20 kB\n";
        assert_eq!(kibibytes(status, "VmRSS:"), Some(20480.0));
        assert_eq!(kibibytes(status, "VmSwap:"), None);
        let limits = "Max open files            1024                 4096                 files\n\
                      Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(1024.0));
        assert_eq!(limit(limits, "Max address space"), Some(UNLIMITED));
        let traffic = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 10 20\n";
        assert_eq!(netstat(traffic, "OutOctets"), Some(20.0));
        assert_eq!(netstat(traffic, "Nothing"), None);
    }

    #[test]
    fn this_process_is_told_of_in_all_families() {
        let mut exposition = Exposition::default();
        expose(&mut exposition);
        let text = exposition.into_text();
        let told = text
            .lines()
            .filter(|line| line.starts_with("# TYPE process_"))
            .count();
        assert_eq!(told, 9, "{text}");
        assert!(!text.contains("process_resident_memory_bytes 0\n"));
    }
}
