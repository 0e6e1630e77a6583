//! The Identity service.

use std::collections::HashMap;

use csi_proto::v1::identity_server::Identity;
use csi_proto::v1::plugin_capability::{Service, Type, VolumeExpansion};
use csi_proto::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};
use tokio::time::Instant;

use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::capabilities::{Capability, ReportedIn};
use crate::rpc::validate::Invalid;
use crate::service::call::Rpc;

answer_calls! {
    Identity:
    GetPluginInfo: get_plugin_info(GetPluginInfoRequest),
    GetPluginCapabilities: get_plugin_capabilities(GetPluginCapabilitiesRequest),
    Probe: probe(ProbeRequest),
}

impl Rpc for GetPluginInfoRequest {
    type Reply = GetPluginInfoResponse;
    type Params = ();

    fn validate(&self) -> Result<(), Invalid> {
        Ok(())
    }

    async fn execute((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        Ok(GetPluginInfoResponse {
            name: driver.name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: HashMap::new(),
        })
    }
}

impl Rpc for GetPluginCapabilitiesRequest {
    type Reply = GetPluginCapabilitiesResponse;
    type Params = ();

    fn validate(&self) -> Result<(), Invalid> {
        Ok(())
    }

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
        Ok(GetPluginCapabilitiesResponse {
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
    type Reply = ProbeResponse;
    type Params = ();

    fn validate(&self) -> Result<(), Invalid> {
        Ok(())
    }

    /// The socket is bound after the array is ready, so the driver is ready for any client, unless it is configured to report
    /// otherwise.
    async fn execute((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        let ready = Instant::now() >= driver.ready_from && driver.faults.is_ready();
        Ok(ProbeResponse { ready: Some(ready) })
    }
}
