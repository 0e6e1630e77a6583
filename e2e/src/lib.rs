//! The whole attach/detach path on one machine: harness and scenarios.

mod api_proxy;
pub mod attacher;
pub mod cluster;
pub mod conform;
pub mod control_plane;
pub mod document;
pub mod driver;
pub mod fixture;
pub mod invariant;
pub mod kubeconfig;
pub mod mutex;
pub mod node;
pub mod nodes;
pub mod objects;
pub mod observe;
pub mod permissions;
pub mod process;
pub mod scenario;
pub mod test_binary;
pub mod toolchain;
pub mod wait;
