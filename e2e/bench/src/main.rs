//! `cargo run --release -p csi-bench`: our attacher and the Go one side by side.

use std::process::ExitCode;

use csi_e2e::process::reaper_main_if_requested;

fn main() -> ExitCode {
    reaper_main_if_requested();
    csi_bench::cli::main()
}
