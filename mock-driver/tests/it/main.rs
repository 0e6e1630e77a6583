//! The driver as its callers meet it: over a socket, in process where that is enough and as a real
//! process where signals and kills matter.

mod durability;
mod faults;
mod journal;
mod malformed;
mod model;
mod outcomes;
mod paging;
mod parallel;
mod process;
mod program;
mod server;
mod wire;
