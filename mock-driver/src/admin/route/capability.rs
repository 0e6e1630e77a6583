use tonic::Code;

use crate::admin::problem::Refusal;
use crate::admin::request::Reply;
use crate::admin::state::Admin;
use crate::admin_api::resource::{Capability, CapabilityChange};
use crate::rpc::capabilities;

pub(super) async fn list(admin: &Admin) -> Reply<Vec<Capability>> {
    let offered = admin.driver.capabilities.read();
    let all = capabilities::Capability::ALL.into_iter();
    Ok(all
        .map(|capability| shown(capability, offered.has(capability)))
        .collect())
}

pub(super) async fn change(admin: &Admin, name: &str, change: CapabilityChange) -> Reply<Capability> {
    let unknown = |error: capabilities::CapabilitySetError| Refusal::new(Code::NotFound, error.to_string());
    let capability = name.parse().map_err(unknown)?;
    admin.driver.capabilities.write().set(capability, change.enabled);
    admin.touch();
    Ok(shown(capability, change.enabled))
}

fn shown(capability: capabilities::Capability, enabled: bool) -> Capability {
    Capability {
        name: capability.name().to_owned(),
        enabled,
        default: capability.is_default(),
    }
}
