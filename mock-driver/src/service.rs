//! The gRPC services: adapters between CSI messages and the array.

pub(crate) use self::controller::ControllerService;
pub use self::dispatch::services;
pub(crate) use self::group::GroupService;
pub(crate) use self::identity::IdentityService;
pub(crate) use self::node::NodeService;
pub(crate) use self::snapshot_metadata::SnapshotMetadataService;

/// Implements a service: [`Driver::answer`](crate::driver::Driver::answer) handles each of its methods. Each request is given
/// with its fields of the volume, of the node and of the name of the object to create.
macro_rules! answer_calls {
    ($service:ident for $server:ident: $($rpc:ident: $method:ident($request:ident $({ $($of:ident: $field:ident),+ })?),)+) => {
        $(impl crate::service::call::RpcRequest for $request {
            const METHOD: crate::rpc::method::Method = crate::rpc::method::Method::$rpc;
            $($(fn $of(&self) -> &str {
                &self.$field
            })+)?
        })+

        #[tonic::async_trait]
        impl $service for $server {
            $(async fn $method(
                &self,
                request: tonic::Request<$request>,
            ) -> Result<tonic::Response<<$request as crate::service::call::Rpc>::Reply>, tonic::Status> {
                self.0.answer(request).await
            })+
        }
    };
}

pub(crate) mod call;
mod capabilities;
mod controller;
mod dispatch;
mod group;
mod grpc_health;
mod identity;
mod legacy;
mod node;
mod snapshot_metadata;
