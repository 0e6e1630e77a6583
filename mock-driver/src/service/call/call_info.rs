use std::borrow::Cow;

use http::HeaderMap;
use prost_reflect::DynamicMessage;

use super::driver_call::DriverCall;
use super::rpc::Rpc;
use crate::array::Array;
use crate::fault::{ArrayUsage, CallInfo, Reservations, VolumeLocation};
use crate::journal::Peer;

impl<Q: Rpc> CallInfo for DriverCall<'_, Q> {
    fn path(&self) -> &str {
        Q::PATH
    }

    fn volume(&self) -> &str {
        self.request.get_ref().volume()
    }

    fn node(&self) -> &str {
        match self.request.get_ref().node() {
            "" if Q::METHOD.is_on_node() => self.here.get_or_init(|| self.driver.own_node()),
            node => node,
        }
    }

    fn name(&self) -> &str {
        self.request.get_ref().name()
    }

    fn message(&self) -> Option<Cow<'_, DynamicMessage>> {
        let wire = self.request.get_ref().encode_to_vec();
        DynamicMessage::decode(Q::METHOD.request(), wire.as_slice())
            .ok()
            .map(Cow::Owned)
    }

    fn headers(&self) -> Option<&HeaderMap> {
        Some(self.request.metadata().as_ref())
    }

    fn peer(&self) -> Option<Peer> {
        self.call
            .connection
            .as_ref()
            .and_then(|connection| connection.peer)
    }

    fn usage(&self, reserved: &Reservations) -> ArrayUsage {
        self.driver.store.peek(|array| match self.volume() {
            "" => array_usage(array, self, reserved),
            volume => node_usage(array, self.node(), volume, reserved),
        })
    }

    fn location(&self) -> Option<VolumeLocation> {
        let volume = self.volume();
        (!volume.is_empty()).then(|| self.driver.location(volume, self.node()))
    }
}

/// All volumes, and those that in-flight calls will create.
fn array_usage(array: &Array, call: &dyn CallInfo, reserved: &Reservations) -> ArrayUsage {
    let is_new = |name: &str| name != call.name() && array.volume_named(name).is_none();
    let (mut count, mut bytes) = (array.volumes().len(), 0_u64);
    for volume in array.volumes() {
        bytes = bytes.saturating_add(volume.spec.capacity_bytes);
    }
    for (_, more) in reserved.creating().filter(|(name, _)| is_new(name)) {
        count += 1;
        bytes = bytes.saturating_add(more);
    }
    ArrayUsage {
        volumes: u64::try_from(count).unwrap_or(u64::MAX),
        bytes,
        asked: call.size(),
        is_repeat: array.volume_named(call.name()).is_some(),
        ..ArrayUsage::default()
    }
}

/// The volumes of a node, and those that in-flight calls will attach to it.
fn node_usage(array: &Array, node: &str, volume: &str, reserved: &Reservations) -> ArrayUsage {
    let is_here = |volume: &str| {
        let found = array.volume(volume).ok();
        found.is_some_and(|found| found.attachments.contains_key(node))
    };
    let others = reserved.attaching(node);
    let coming = others.filter(|other| *other != volume && !is_here(other)).count();
    ArrayUsage {
        on_node: u64::try_from(array.attached_to(node).count() + coming).unwrap_or(u64::MAX),
        is_repeat: is_here(volume),
        ..ArrayUsage::default()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::OnceCell;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use csi_proto::v1;
    use prost::Message;
    use prost_reflect::{ReflectMessage, Value};
    use tonic::Request;

    use super::*;
    use crate::driver::{Driver, Settings};
    use crate::rpc::method::{self, Method};
    use crate::service::call::Call;

    /// A request with a different text in each of these fields.
    fn mk_request<Q: Rpc + Default>(fields: &[&str]) -> Q {
        let mut message = DynamicMessage::new(Q::METHOD.request());
        for field in fields {
            if message.descriptor().get_field_by_name(field).is_some() {
                message.set_field_by_name(field, Value::String(format!("the {field}")));
            }
        }
        Q::decode(message.encode_to_vec().as_slice()).unwrap()
    }

    /// Compares the fields in `CallInfo` with those that rules may match.
    fn compare<Q: Rpc + Default>(driver: &Arc<Driver>, seen: &mut BTreeSet<&'static str>) {
        let rpc = Q::METHOD;
        assert!(seen.insert(Q::METHOD.path()), "{} is listed twice", rpc.name());
        let fields = [&method::VOLUME[..], &method::NODE, &method::NAME].concat();
        let request: Request<Q> = Request::new(mk_request(&fields));
        let call = DriverCall {
            driver,
            request: &request,
            params: None,
            locked: Vec::new(),
            call: &mut Call::begin(driver, &request),
            here: OnceCell::new(),
        };
        let info = |fields: &[&str]| {
            let found = fields.iter().find(|field| rpc.takes(field));
            found.map(|field| format!("the {field}"))
        };
        let node = info(&method::NODE).or_else(|| rpc.is_on_node().then(|| "node-1".to_owned()));
        let expected = (
            info(&method::VOLUME).unwrap_or_default(),
            node.unwrap_or_default(),
            info(&method::NAME).unwrap_or_default(),
        );
        let found = (
            call.volume().to_owned(),
            call.node().to_owned(),
            call.name().to_owned(),
        );
        assert_eq!(found, expected, "{}", rpc.name());
        assert_eq!(rpc.has_volume(), !found.0.is_empty(), "{}", rpc.name());
        assert_eq!(rpc.has_node(), !found.1.is_empty(), "{}", rpc.name());
        assert_eq!(rpc.has_name(), !found.2.is_empty(), "{}", rpc.name());
        assert_eq!(call.location().is_some(), rpc.has_volume(), "{}", rpc.name());
    }

    macro_rules! compare_all {
        ($driver:expr, $seen:expr, $($request:ident)+) => { $(compare::<v1::$request>($driver, $seen);)+ };
    }

    #[tokio::test]
    async fn rules_can_match_every_field_of_each_method() {
        let settings = Settings {
            node_id: Some("node-1".to_owned()),
            ..Settings::default()
        };
        let (driver, _) = Driver::open(settings).unwrap();
        let mut seen = BTreeSet::new();
        compare_all!(&driver, &mut seen,
            GetPluginInfoRequest GetPluginCapabilitiesRequest ProbeRequest
            CreateVolumeRequest DeleteVolumeRequest ControllerPublishVolumeRequest
            ControllerUnpublishVolumeRequest ValidateVolumeCapabilitiesRequest ListVolumesRequest
            GetCapacityRequest ControllerGetCapabilitiesRequest CreateSnapshotRequest DeleteSnapshotRequest
            ListSnapshotsRequest GetSnapshotRequest ControllerExpandVolumeRequest ControllerGetVolumeRequest
            ControllerModifyVolumeRequest ControllerListVolumeHealthRequest ControllerGetVolumeHealthRequest
            GroupControllerGetCapabilitiesRequest CreateVolumeGroupSnapshotRequest
            DeleteVolumeGroupSnapshotRequest GetVolumeGroupSnapshotRequest
            GetMetadataAllocatedRequest GetMetadataDeltaRequest
            NodeStageVolumeRequest NodeUnstageVolumeRequest NodePublishVolumeRequest
            NodeUnpublishVolumeRequest NodeGetVolumeStatsRequest NodeExpandVolumeRequest
            NodeGetCapabilitiesRequest NodeGetInfoRequest NodeGetVolumeHealthRequest
            NodeGetStorageHealthRequest);
        assert_eq!(seen.len(), Method::ALL.len());
    }
}
