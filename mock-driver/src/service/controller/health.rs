//! ControllerListVolumeHealth and ControllerGetVolumeHealth.

use csi_proto::v1::{
    ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse, ControllerListVolumeHealthRequest,
    ControllerListVolumeHealthResponse,
};

use super::list::Wish;
use super::shape;
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::method::Method;
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;

impl Rpc for ControllerListVolumeHealthRequest {
    const METHOD: Method = Method::ControllerListVolumeHealth;
    type Reply = ControllerListVolumeHealthResponse;
    type Plan = Wish;

    fn check(&self) -> Result<Wish, Invalid> {
        validate::secrets(&self.secrets)?;
        Wish::read(self.max_entries, &self.starting_token)
    }

    async fn act(wish: Wish, driver: &Driver) -> Result<Self::Reply, Error> {
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
    const METHOD: Method = Method::ControllerGetVolumeHealth;
    type Reply = ControllerGetVolumeHealthResponse;
    type Plan = String;

    fn volume(&self) -> &str {
        &self.volume_id
    }

    fn check(&self) -> Result<String, Invalid> {
        validate::secrets(&self.secrets)?;
        Ok(validate::required("volume_id", &self.volume_id)?.to_owned())
    }

    async fn act(volume: String, driver: &Driver) -> Result<Self::Reply, Error> {
        let sick = driver.store.read(|array| array.volume_health(&volume)).await?;
        Ok(ControllerGetVolumeHealthResponse {
            volume_health: Some(shape::health(&sick)),
        })
    }
}
