//! Whether tests may make loop devices and mounts.

use verdict::Requirement::LoopDevices;

/// Whether loop devices are available. Records that the test is skipped if not.
pub(crate) fn is_there() -> bool {
    verdict::are_met(&[LoopDevices])
}

/// Whether this process has CAP_SYS_RESOURCE.
pub(crate) fn may_use_all_resources() -> bool {
    const SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << SYS_RESOURCE) != 0
}
