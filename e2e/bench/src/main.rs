//! `cargo run --release -p csi-bench` measures csi-attacher and the Go attacher side by side.

use std::process::ExitCode;

use csi_e2e::process::reaper_main_if_requested;
use mimalloc::MiMalloc;

/// glibc's allocator slows down in a heap of several gigabytes, which the embedded cluster needs for 100,000 volumes.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    reaper_main_if_requested();
    csi_bench::cli::main()
}
