//! `cargo run --release -p csi-bench` measures csi-attacher and the Go attacher side by side.

use std::process::ExitCode;

use csi_e2e::process::reaper_main_if_requested;

fn main() -> ExitCode {
    reaper_main_if_requested();
    csi_bench::cli::main()
}
