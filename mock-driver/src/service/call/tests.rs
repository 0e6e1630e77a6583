use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, access_mode::Mode};
use csi_proto::v1::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, GetMetadataAllocatedRequest,
    GetMetadataAllocatedResponse, VolumeCapability,
};
use futures::StreamExt;
use serde_json::json;
use tokio::time;

use tonic::Code;

use super::*;
use crate::array::CreateSnapshotParams;
use crate::driver::Settings;
use crate::fault::Rule;
use crate::journal::JournalConfig;
use crate::store::tests::mk_store_on_a_full_disk;

fn mk_driver() -> Arc<Driver> {
    let settings = Settings {
        initial_volumes: 1,
        journal_config: JournalConfig {
            kept: 10,
            ..JournalConfig::default()
        },
        ..Settings::default()
    };
    Driver::open(settings).unwrap().0
}

/// Otherwise the journal would record OK, or that the client disconnected.
#[tokio::test]
async fn journals_an_error_that_ends_a_stream() {
    for has_fault in [false, true] {
        journals_the_error_of_a_stream(has_fault).await;
    }
}

async fn journals_the_error_of_a_stream(has_fault: bool) {
    let driver = mk_driver();
    let wanted = CreateSnapshotParams {
        name: "s".to_owned(),
        source: "vol-0".to_owned(),
        parameters: std::collections::BTreeMap::new(),
        requirement: None,
    };
    let snapshot = driver.create_snapshot(&wanted).await.unwrap();
    let rule = json!({"id": "late", "match": {"method": "GetMetadataAllocated"}, "phase": "after",
        "action": {"after-messages": 2, "code": "DATA_LOSS"}});
    if has_fault {
        driver.faults.put(Rule::from_value(rule).unwrap()).unwrap();
    }
    let request = Request::new(GetMetadataAllocatedRequest {
        snapshot_id: snapshot.id.to_string(),
        ..Default::default()
    });
    let messages = |first: &GetMetadataAllocatedResponse| {
        let error = Error::OffsetOutOfRange { offset: 0, size: 0 };
        futures::stream::iter([Ok(first.clone()), Err(error)])
    };
    let sent = driver.answer_in_messages(request, messages).await.unwrap();
    let sent: Vec<_> = sent.into_inner().collect().await;
    let codes: Vec<Code> = sent
        .iter()
        .map(|message| message.as_ref().err().map_or(Code::Ok, Status::code))
        .collect();
    assert_eq!(codes, [Code::Ok, Code::OutOfRange]);
    let journal = driver.journal.as_ref().unwrap();
    let calls: Vec<_> = journal.read(|memory| memory.after(0).map(|(_, call)| call.clone()).collect());
    let codes: Vec<Code> = calls
        .iter()
        .map(|call| call.end().unwrap().outcome.code)
        .collect();
    assert_eq!(codes, [Code::OutOfRange]);
}

#[tokio::test(start_paused = true)]
async fn calls_and_admin_operations_wait_for_the_volume_lock() {
    let driver = mk_driver();
    let request = ControllerUnpublishVolumeRequest {
        volume_id: "vol-0".to_owned(),
        ..Default::default()
    };
    let held = driver.locks.lock(Scope::Operation, request.keys()).await.unwrap();
    let work =
        driver.execute::<ControllerUnpublishVolumeRequest>(request.validate().unwrap(), request.keys());
    let mut work = std::pin::pin!(work);
    let call = driver.answer(Request::new(request.clone()));
    let mut call = std::pin::pin!(call);
    let while_held = time::Duration::from_secs(5);
    assert!(time::timeout(while_held, &mut work).await.is_err());
    assert!(time::timeout(while_held, &mut call).await.is_err());
    drop(held);
    work.await.unwrap();
    call.await.unwrap();
}

#[tokio::test]
async fn refusal_by_a_limit_waits_until_what_it_counted_is_durable() {
    let (store, state) = mk_store_on_a_full_disk();
    let driver = Driver {
        store: Arc::new(store),
        state: Some(state),
        ..Arc::into_inner(mk_driver()).unwrap()
    };
    let driver = Arc::new(driver);
    let limit = json!({"id": "x", "type": "node-limit", "limit": 1});
    driver
        .faults
        .put(Rule::backend_fault_from_value(limit).unwrap())
        .unwrap();
    let publish = |volume: &str| {
        Request::new(ControllerPublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: "node-0".to_owned(),
            volume_capability: Some(VolumeCapability {
                access_mode: Some(AccessMode {
                    mode: Mode::SingleNodeWriter.into(),
                }),
                access_type: Some(AccessType::Block(BlockVolume {})),
            }),
            ..Default::default()
        })
    };
    for volume in ["vol-0", "vol-1"] {
        let refused = driver.answer(publish(volume)).await.unwrap_err();
        // A response may show neither the attachment nor its count before they are stored.
        assert_eq!(refused.code(), Code::Internal, "{volume}: {refused}");
    }
    let attached = driver.store.peek(|array| array.attached_to("node-0").count());
    assert_eq!(attached, 1, "the limit has something to count");
}
