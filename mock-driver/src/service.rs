//! The gRPC services: thin adapters from CSI messages to the array and back.

pub use self::controller::ControllerService;
pub use self::dispatch::Services;
pub(crate) use self::group::GroupService;
pub(crate) use self::identity::IdentityService;
pub(crate) use self::node::NodeService;
pub use self::snapshot_metadata::SnapshotMetadataService;

pub(crate) mod call;
mod controller;
mod dispatch;
mod group;
mod grpc_health;
mod identity;
mod legacy;
mod node;
mod snapshot_metadata;
