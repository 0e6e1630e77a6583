//! The driver as its callers meet it: over a socket, in process where that is enough and as a real
//! process where signals and kills matter.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod admin;
mod array;
mod attach;
mod authority;
mod device;
mod durability;
mod faults;
mod hostpath;
mod in_process;
mod journal;
mod malformed;
mod metadata_memory;
mod model;
mod node;
mod offers;
mod paging;
mod parallel;
mod power;
mod privilege;
mod process;
mod program;
mod readme;
mod server;
mod table;
mod volumes;
mod wire;
