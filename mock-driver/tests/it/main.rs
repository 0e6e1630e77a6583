//! The driver over a socket: in this process if that suffices, or as a separate process for signals and kills.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod admin;
mod array;
mod attach;
mod authority;
mod device;
mod durability;
mod faults;
mod fixture;
mod hostpath;
mod in_process;
mod journal;
mod malformed;
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
mod replay;
mod server;
mod table;
mod volumes;
mod wire;
