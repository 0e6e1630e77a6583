//! Whether tests may make loop devices and mounts, and how that is told.

use std::io::Write;

use crate::device::{Choice, Kind};

/// Set, it makes a lack of privileges an error: for machines that are known to have them.
const REQUIRED: &str = "CSI_MOCK_REQUIRE_ROOT_TESTS";

/// Whether loop devices can be had. Says so loudly if not.
///
/// # Panics
/// If they cannot, and must.
pub(crate) fn is_there() -> bool {
    let there = Choice::Auto.settle().is_ok_and(|kind| kind == Kind::Loop);
    assert!(
        there || std::env::var_os(REQUIRED).is_none(),
        "{REQUIRED} is set, and this process cannot have loop devices"
    );
    if !there {
        // Past the capture of the test harness.
        writeln!(
            std::io::stderr(),
            "SKIPPED: needs root and loop devices, see {REQUIRED}"
        )
        .ok();
    }
    there
}
