//! ControllerListVolumeHealth and ControllerGetVolumeHealth.

use csi_proto::v1::{
    ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse, ControllerListVolumeHealthRequest,
    ControllerListVolumeHealthResponse,
};

use super::list::ListParams;
use super::shape;
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;

impl Rpc for ControllerListVolumeHealthRequest {
    type Reply = ControllerListVolumeHealthResponse;
    type Params = ListParams;

    fn validate(&self) -> Result<ListParams, Invalid> {
        ListParams::read(self.max_entries, &self.starting_token)
    }

    async fn execute(wish: ListParams, driver: &Driver) -> Result<Self::Reply, Error> {
        let page = driver
            .store
            .read(|array| array.list_health(wish.max_entries, wish.token.as_deref()))
            .await?;
        Ok(ControllerListVolumeHealthResponse {
            entries: page.entries.iter().map(shape::health).collect(),
            next_token: page.next_token.unwrap_or_default(),
        })
    }
}

impl Rpc for ControllerGetVolumeHealthRequest {
    type Reply = ControllerGetVolumeHealthResponse;
    type Params = String;

    fn validate(&self) -> Result<String, Invalid> {
        Ok(validate::required("volume_id", &self.volume_id)?.to_owned())
    }

    async fn execute(volume: String, driver: &Driver) -> Result<Self::Reply, Error> {
        let sick = driver.store.read(|array| array.volume_health(&volume)).await?;
        Ok(ControllerGetVolumeHealthResponse {
            volume_health: Some(shape::health(&sick)),
        })
    }
}
