//! The gRPC services: thin adapters from CSI messages to the array and back.

pub use self::controller::ControllerService;
pub use self::dispatch::Services;
pub use self::identity::IdentityService;
pub use self::node::NodeService;

mod controller;
mod dispatch;
mod identity;
mod node;
