//! The health RPCs.

use csi_mock_driver::array::{Array, HealthIssue, Severity};
use csi_proto::v1::{
    ControllerGetVolumeHealthRequest, ControllerListVolumeHealthRequest, VolumeHealth, VolumeHealthErrorType,
};
use tonic::{Code, Status};

use super::{World, assert_refused};

fn mk_health_issue(status: Severity) -> HealthIssue {
    HealthIssue {
        status,
        reason: "Fan".to_owned(),
        message: "a fan stands still".to_owned(),
    }
}

impl World {
    async fn set_health(&mut self, volume: &str, issues: Vec<HealthIssue>) {
        let set = |array: &mut Array| array.set_volume_health(volume, issues);
        self.server.driver().store.change(set).await.unwrap();
    }

    async fn health(&mut self, volume: &str) -> Result<VolumeHealth, Status> {
        let request = ControllerGetVolumeHealthRequest {
            volume_id: volume.to_owned(),
            ..Default::default()
        };
        let reply = self.controller.controller_get_volume_health(request).await?;
        Ok(reply.into_inner().volume_health.unwrap())
    }

    async fn unhealthy(&mut self, max_entries: i32, token: &str) -> Result<(Vec<String>, String), Status> {
        let request = ControllerListVolumeHealthRequest {
            max_entries,
            starting_token: token.to_owned(),
            ..Default::default()
        };
        let reply = self
            .controller
            .controller_list_volume_health(request)
            .await?
            .into_inner();
        let id = |health: VolumeHealth| health.volume_id;
        Ok((reply.entries.into_iter().map(id).collect(), reply.next_token))
    }
}

#[tokio::test]
async fn unhealthy_volumes_are_listed_in_pages() {
    let mut world = World::start_with(|_, settings| settings.initial_volumes = 9).await;
    assert_eq!(world.unhealthy(0, "").await.unwrap(), (vec![], String::new()));
    for volume in ["vol-1", "vol-4", "vol-7"] {
        world
            .set_health(volume, vec![mk_health_issue(Severity::Degraded)])
            .await;
    }
    assert_eq!(
        world.unhealthy(0, "").await.unwrap().0,
        ["vol-1", "vol-4", "vol-7"]
    );
    let (first, token) = world.unhealthy(2, "").await.unwrap();
    assert_eq!(first, ["vol-1", "vol-4"]);
    world.delete("vol-4").await.unwrap();
    assert_eq!(
        world.unhealthy(2, &token).await.unwrap(),
        (vec!["vol-7".to_owned()], String::new())
    );
    world.set_health("vol-7", vec![]).await;
    assert_eq!(
        world.unhealthy(0, "").await.unwrap().0,
        ["vol-1"],
        "deleted and healthy volumes are not listed"
    );

    let (_, of_volumes) = {
        let request = csi_proto::v1::ListVolumesRequest {
            max_entries: 1,
            ..Default::default()
        };
        let page = world.controller.list_volumes(request).await.unwrap().into_inner();
        (page.entries, page.next_token)
    };
    for token in ["invalid-token", &of_volumes] {
        assert_refused(
            token,
            world.unhealthy(0, token).await,
            Code::Aborted,
            &["starting_token"],
        );
    }
    assert_refused(
        "negative",
        world.unhealthy(-1, "").await,
        Code::InvalidArgument,
        &["max_entries"],
    );
}

#[tokio::test]
async fn all_health_issues_of_a_volume_are_reported() {
    let mut world = World::start_with(|_, settings| settings.initial_volumes = 2).await;
    let all = [Severity::Degraded, Severity::Inaccessible, Severity::DataLoss].map(mk_health_issue);
    world.set_health("vol-0", all.to_vec()).await;
    let health = world.health("vol-0").await.unwrap();
    let statuses: Vec<_> = health
        .health_statuses
        .iter()
        .map(|entry| entry.status())
        .collect();
    use VolumeHealthErrorType::{DataLoss, Degraded, Inaccessible};
    assert_eq!(statuses, [Degraded, Inaccessible, DataLoss]);
    assert_eq!(health.health_statuses[0].reason, "Fan");
    assert_eq!(health.health_statuses[0].message, "a fan stands still");

    let well = world.health("vol-1").await.unwrap();
    assert_eq!(
        (well.volume_id.as_str(), well.health_statuses.len()),
        ("vol-1", 0)
    );
    assert_refused("gone", world.health("gone").await, Code::NotFound, &["gone"]);
    assert_refused(
        "none",
        world.health("").await,
        Code::InvalidArgument,
        &["volume_id"],
    );
}

/// The status as callers before CSI 1.13 decode it, with the VolumeCondition in field 2.
#[derive(Clone, PartialEq, prost::Message)]
struct OlderStatus {
    #[prost(string, repeated, tag = "1")]
    nodes: Vec<String>,
    #[prost(message, optional, tag = "2")]
    condition: Option<OlderCondition>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OlderCondition {
    #[prost(bool, tag = "1")]
    abnormal: bool,
    #[prost(string, tag = "2")]
    message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OlderEntry {
    #[prost(message, optional, tag = "1")]
    volume: Option<csi_proto::v1::Volume>,
    #[prost(message, optional, tag = "2")]
    status: Option<OlderStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OlderList {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<OlderEntry>,
}

#[tokio::test]
async fn legacy_condition_is_reported_only_with_its_capability() {
    let mut world = World::start_with(|_, settings| settings.initial_volumes = 2).await;
    world
        .set_health("vol-1", vec![mk_health_issue(Severity::Degraded)])
        .await;
    world.publish("vol-1", "node-0").await.unwrap();
    let channel = world.server.channel().await;
    for (changes, reported) in [("", false), ("+VOLUME_CONDITION", true)] {
        let live = &world.server.driver().capabilities;
        live.write().change(changes).unwrap();
        let capabilities = world
            .controller
            .controller_get_capabilities(csi_proto::v1::ControllerGetCapabilitiesRequest {})
            .await
            .unwrap()
            .into_inner()
            .capabilities;
        let number = |capability: &csi_proto::v1::ControllerServiceCapability| {
            use csi_proto::v1::controller_service_capability::Type;
            matches!(&capability.r#type, Some(Type::Rpc(rpc)) if rpc.r#type == 11)
        };
        assert_eq!(capabilities.iter().any(number), reported);

        let list: OlderList = crate::wire::call(
            &channel,
            "/csi.v1.Controller/ListVolumes",
            csi_proto::v1::ListVolumesRequest::default(),
        )
        .await
        .unwrap();
        let get = csi_proto::v1::ControllerGetVolumeRequest {
            volume_id: "vol-1".into(),
        };
        let one: OlderEntry = crate::wire::call(&channel, "/csi.v1.Controller/ControllerGetVolume", get)
            .await
            .unwrap();
        let well = OlderCondition::default();
        let ill = OlderCondition {
            abnormal: true,
            message: "a fan stands still".to_owned(),
        };
        let conditions: Vec<_> = list
            .entries
            .iter()
            .map(|entry| entry.status.as_ref().and_then(|status| status.condition.clone()))
            .collect();
        assert_eq!(
            conditions,
            [reported.then_some(well), reported.then_some(ill.clone())]
        );
        assert_eq!(list.entries[1], one);
        let status = one.status.unwrap();
        assert_eq!(status.nodes, ["node-0"]);
        assert_eq!(status.condition, reported.then_some(ill));
    }
}
