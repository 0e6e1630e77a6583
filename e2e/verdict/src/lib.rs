//! The verdict on a tree: which tests passed, which failed, and which were skipped for want of what.
//!
//! A test that needs more than cargo, rustc and a C compiler says so with [`require!`] (`#[test]`) or [`trial`] (of a test binary
//! without libtest). Without it the test is skipped, and the skip is recorded with its reason and the command that
//! provides what was missing. With `REQUIRE_ALL` a skip is a failure, unless `ACCEPTED_SKIPS` names its [`Missing::id`].
//!
//! [`run`] is the program behind `cargo test`.

mod requirement;
pub mod run;
mod skip;

pub use requirement::{Missing, Requirement, command};
pub use skip::{are_met, is_met, trial};

/// Variables that cargo sets for a test or `cargo run`. If another cargo inherited them, build scripts that watch these
/// variables (such as ring's) would run again, and cargo would recompile all dependents, here and again in the caller's next
/// build.
pub const CALLERS_PACKAGE_VARIABLES: &[&str] = &[
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_LINKS",
    "CARGO_MANIFEST_PATH",
    "CARGO_PKG_NAME",
    "CARGO_PKG_VERSION",
    "CARGO_PKG_VERSION_MAJOR",
    "CARGO_PKG_VERSION_MINOR",
    "CARGO_PKG_VERSION_PATCH",
    "CARGO_PKG_VERSION_PRE",
    "OUT_DIR",
];

/// Returns from a `#[test]`, and records it as skipped, unless all [`Requirement`]s are met.
///
/// ```no_run
/// use verdict::Requirement::{LoopDevices, Program};
///
/// fn xfs_grows() {
///     verdict::require!(LoopDevices, Program("mkfs.xfs"));
/// }
/// ```
#[macro_export]
macro_rules! require {
    ($($requirement:expr),+ $(,)?) => {
        if !$crate::are_met(&[$($requirement),+]) {
            return;
        }
    };
}
