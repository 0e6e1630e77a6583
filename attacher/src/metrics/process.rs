//! Metrics of the process from `/proc`. The `prometheus` crate's own round the CPU time to whole seconds and lack the
//! network's.

use std::fs;

use super::Scrape;

/// USER_HZ, the same on all current architectures.
const TICKS: f64 = 100.0;
const KIB: f64 = 1024.0;
/// "unlimited", as in Prometheus' Go client: the largest 64-bit number.
const UNLIMITED: f64 = 18_446_744_073_709_551_615.0;

/// Adds the `process_*` families, except those that cannot be read.
pub(crate) fn collect(scrape: &Scrape) {
    let read = |file: &str| fs::read_to_string(format!("/proc/{file}")).unwrap_or_default();
    let counter =
        |name, help, value: Option<f64>| value.into_iter().for_each(|v| scrape.counter(name, help, v));
    let gauge = |name, help, value: Option<f64>| value.into_iter().for_each(|v| scrape.gauge(name, help, v));
    let stat = read("self/stat");
    let status = read("self/status");
    let limits = read("self/limits");
    let traffic = read("self/net/netstat");
    // One of them is the directory that is being read.
    let open_fds = fs::read_dir("/proc/self/fd").map(|fds| fds.count().saturating_sub(1) as f64);
    counter(
        "process_cpu_seconds_total",
        "Total user and system CPU time spent in seconds",
        cpu_seconds(&stat),
    );
    gauge(
        "process_max_fds",
        "Maximum number of open file descriptors",
        limit(&limits, "Max open files"),
    );
    counter(
        "process_network_receive_bytes_total",
        "Number of bytes received over the network in the network namespace of the process",
        netstat(&traffic, "InOctets"),
    );
    counter(
        "process_network_transmit_bytes_total",
        "Number of bytes sent over the network in the network namespace of the process",
        netstat(&traffic, "OutOctets"),
    );
    gauge(
        "process_open_fds",
        "Number of open file descriptors",
        open_fds.ok(),
    );
    gauge(
        "process_resident_memory_bytes",
        "Resident memory size in bytes",
        kibibytes(&status, "VmRSS:"),
    );
    gauge(
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds",
        start_seconds(&stat, &read("stat")),
    );
    gauge(
        "process_virtual_memory_bytes",
        "Virtual memory size in bytes",
        kibibytes(&status, "VmSize:"),
    );
    gauge(
        "process_virtual_memory_max_bytes",
        "Maximum amount of virtual memory available in bytes",
        limit(&limits, "Max address space"),
    );
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
    fn parses_stat_of_a_process_name_with_parenthesis() {
        assert_eq!(cpu_seconds(STAT), Some(2.0));
        assert_eq!(
            start_seconds(STAT, "cpu 1 2\nbtime 1000\nprocesses 7\n"),
            Some(1123.45)
        );
        assert_eq!(cpu_seconds("cut off"), None);
        assert_eq!(start_seconds(STAT, ""), None);
    }

    #[test]
    fn parses_proc_tables_by_name() {
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
    fn collects_all_families_of_this_process() {
        let scrape = Scrape::default();
        collect(&scrape);
        let text = scrape.text();
        assert_eq!(text.matches("# TYPE process_").count(), 9, "{text}");
        assert!(!text.contains("process_resident_memory_bytes 0\n"));
    }
}
