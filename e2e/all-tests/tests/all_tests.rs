//! `cargo test`: runs the test binaries of all packages, and prints one table of their results.

use std::process::ExitCode;

fn main() -> ExitCode {
    verdict::run::main()
}
