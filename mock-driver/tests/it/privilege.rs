//! Whether tests may make loop devices and mounts, and how they report it.

use std::io::Write;

use csi_mock_driver::node::device::{Choice, Kind};

/// Environment variable that makes missing privileges an error, for machines that must have them.
const REQUIRED: &str = "CSI_MOCK_REQUIRE_ROOT_TESTS";

/// Whether loop devices are available. Prints that the test is skipped if not.
pub(crate) fn is_there() -> bool {
    let there = Choice::Auto.settle().is_ok_and(|kind| kind == Kind::Loop);
    assert!(
        there || std::env::var_os(REQUIRED).is_none(),
        "{REQUIRED} is set, and this process cannot use loop devices"
    );
    if !there {
        // Bypasses the test harness's capture.
        writeln!(
            std::io::stderr(),
            "SKIPPED: needs root and loop devices, see {REQUIRED}"
        )
        .ok();
    }
    there
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
