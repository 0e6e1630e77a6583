use csi_proto::v1;

use super::call::Rpc;
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::capabilities::{Capability, ReportedIn};

macro_rules! report_capabilities {
    ($($service:ident: $request:ident -> $reply:ident, $capability:ident in $types:ident;)+) => {
        $(impl Rpc for v1::$request {
            no_parameters!();

            async fn execute((): (), driver: &Driver) -> Result<Self::Reply, Error> {
                let reported = |capability: Capability| {
                    let ReportedIn::$service(r#type) = capability.reported_in() else {
                        return None;
                    };
                    let r#type = Some(v1::$types::Type::Rpc(v1::$types::Rpc { r#type }));
                    Some(v1::$capability { r#type })
                };
                let capabilities = driver.capabilities.read().iter().filter_map(reported).collect();
                Ok(v1::$reply { capabilities })
            }
        })+
    };
}

report_capabilities! {
    Controller: ControllerGetCapabilitiesRequest -> ControllerGetCapabilitiesResponse,
        ControllerServiceCapability in controller_service_capability;
    Group: GroupControllerGetCapabilitiesRequest -> GroupControllerGetCapabilitiesResponse,
        GroupControllerServiceCapability in group_controller_service_capability;
    Node: NodeGetCapabilitiesRequest -> NodeGetCapabilitiesResponse,
        NodeServiceCapability in node_service_capability;
}
