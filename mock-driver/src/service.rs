//! The gRPC services: adapters between CSI messages and the array.

use std::sync::Arc;

pub use self::dispatch::services;
use crate::driver::Driver;

/// Implements a service: [`Driver::answer`] handles each of its methods. Each request is given
/// with its fields of the volume, of the node and of the name of the object to create.
macro_rules! answer_calls {
    ($service:ident: $($rpc:ident: $method:ident($request:ident $({ $($of:ident: $field:ident),+ })?),)+) => {
        $(impl crate::service::call::RpcRequest for $request {
            const METHOD: crate::rpc::method::Method = crate::rpc::method::Method::$rpc;
            $($(fn $of(&self) -> &str {
                &self.$field
            })+)?
        })+

        #[tonic::async_trait]
        impl $service for crate::service::DriverService {
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
mod node;
mod snapshot_metadata;

/// Implements all services: those of CSI and gRPC's health service.
#[derive(Clone, Debug)]
struct DriverService(Arc<Driver>);
