use std::collections::HashMap;

use csi_proto::v1::identity_server::Identity;
use csi_proto::v1::plugin_capability::{Service, Type, VolumeExpansion};
use csi_proto::v1::{GetPluginCapabilitiesRequest, GetPluginInfoRequest, PluginCapability, ProbeRequest};
use tokio::time::Instant;

use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::capabilities::{Capability, ReportedIn};
use crate::service::call::Rpc;

answer_calls! {
    Identity:
    GetPluginInfo: get_plugin_info(GetPluginInfoRequest) -> GetPluginInfoResponse,
    GetPluginCapabilities: get_plugin_capabilities(GetPluginCapabilitiesRequest) -> GetPluginCapabilitiesResponse,
    Probe: probe(ProbeRequest) -> ProbeResponse,
}

impl Rpc for GetPluginInfoRequest {
    no_parameters!();

    async fn execute((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        Ok(Self::Reply {
            name: driver.settings.name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: HashMap::new(),
        })
    }
}

impl Rpc for GetPluginCapabilitiesRequest {
    no_parameters!();

    async fn execute((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        let info = |capability: Capability| match capability.reported_in() {
            ReportedIn::Service(service) => Some(Type::Service(Service {
                r#type: service.into(),
            })),
            ReportedIn::Expansion(expansion) => Some(Type::VolumeExpansion(VolumeExpansion {
                r#type: expansion.into(),
            })),
            ReportedIn::Controller(_) | ReportedIn::Group(_) | ReportedIn::Node(_) => None,
        };
        Ok(Self::Reply {
            capabilities: driver
                .capabilities
                .read()
                .iter()
                .filter_map(info)
                .map(|r#type| PluginCapability { r#type: Some(r#type) })
                .collect(),
        })
    }
}

impl Rpc for ProbeRequest {
    no_parameters!();

    /// The socket is bound after the array is ready, so the driver is ready for any client, unless it is configured to report
    /// otherwise.
    async fn execute((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        let ready = Instant::now() >= driver.ready_from && driver.faults.is_ready();
        Ok(Self::Reply { ready: Some(ready) })
    }
}
