//! The gRPC services: adapters between CSI messages and the array.

use std::sync::Arc;

pub use self::dispatch::services;
use crate::driver::Driver;

/// Implements a service: [`Driver::answer`] handles each of its methods. Each request is given
/// with its fields of the volume, of the node and of the name of the object to create.
macro_rules! answer_calls {
    ($service:ident: $($rpc:ident: $method:ident($request:ident $({ $($of:ident: $field:ident),+ })?) -> $reply:ident,)+) => {
        $(impl crate::service::call::RpcRequest for csi_proto::v1::$request {
            type Reply = csi_proto::v1::$reply;

            const METHOD: crate::rpc::method::Method = crate::rpc::method::Method::$rpc;
            $($(fn $of(&self) -> &str {
                &self.$field
            })+)?
        })+

        #[tonic::async_trait]
        impl $service for crate::service::DriverService {
            $(async fn $method(
                &self,
                request: tonic::Request<csi_proto::v1::$request>,
            ) -> Result<tonic::Response<csi_proto::v1::$reply>, tonic::Status> {
                self.0.answer(request).await
            })+
        }
    };
}

/// The parameters of a request without any.
macro_rules! no_parameters {
    () => {
        type Params = ();

        fn validate(&self) -> Result<(), crate::rpc::validate::Invalid> {
            Ok(())
        }
    };
}

/// The parameters of a request with nothing but an id.
macro_rules! required_id {
    ($field:ident) => {
        type Params = String;

        fn validate(&self) -> Result<String, crate::rpc::validate::Invalid> {
            Ok(crate::rpc::validate::required(stringify!($field), &self.$field)?.to_owned())
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
