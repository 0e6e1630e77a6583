use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, access_mode::Mode};
use csi_proto::v1::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, GetMetadataAllocatedRequest,
    GetMetadataAllocatedResponse, ListVolumesRequest, VolumeCapability,
};
use futures::StreamExt;
use serde_json::json;
use tokio::time;
use tokio_test::{assert_pending, task};
use tonic::Code;

use super::*;
use crate::array::{CreateSnapshotParams, HealthIssue, Severity};
use crate::driver::Settings;
use crate::fault::{Rule, RuleKind};
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

/// Returns its id.
async fn mk_snapshot(driver: &Driver) -> String {
    let wanted = CreateSnapshotParams {
        name: "s".to_owned(),
        source: "vol-0".to_owned(),
        parameters: std::collections::BTreeMap::new(),
        requirement: None,
    };
    driver.create_snapshot(&wanted).await.unwrap().id.to_string()
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
    let snapshot_id = mk_snapshot(&driver).await;
    let rule = json!({"id": "late", "match": {"method": "GetMetadataAllocated"}, "phase": "after",
        "action": {"after-messages": 2, "code": "DATA_LOSS"}});
    if has_fault {
        driver.faults.put(Rule::from_value(rule).unwrap()).unwrap();
    }
    let request = Request::new(GetMetadataAllocatedRequest {
        snapshot_id,
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
        .map(|call| call.end().unwrap().status.code())
        .collect();
    assert_eq!(codes, [Code::OutOfRange]);
}

/// Its client may read it later or never, so the reset cannot wait for it.
#[tokio::test]
async fn stream_from_before_a_reset_leaves_no_trace_after_it() {
    let driver = mk_driver();
    let snapshot_id = mk_snapshot(&driver).await;
    let rule = json!({"id": "x", "match": {"method": "GetMetadataAllocated"}, "phase": "after",
        "action": {"after-messages": 1, "set-state": "seen", "code": "DATA_LOSS"}});
    let journal = driver.journal.as_ref().unwrap();
    for has_fault in [false, true] {
        if has_fault {
            driver
                .faults
                .put(Rule::from_value(rule.clone()).unwrap())
                .unwrap();
        }
        let request = Request::new(GetMetadataAllocatedRequest {
            snapshot_id: snapshot_id.clone(),
            ..Default::default()
        });
        let messages = |first: &GetMetadataAllocatedResponse| {
            futures::stream::iter([Ok(first.clone()), Ok(first.clone())])
        };
        let sent = driver.answer_in_messages(request, messages).await.unwrap();
        let mut sent = sent.into_inner();
        sent.next().await.unwrap().unwrap();
        driver.reset(false).await.unwrap();
        let rest: Vec<_> = sent.collect().await;
        let calls = journal.read(|memory| {
            (
                memory.running().len(),
                memory.after(0).count(),
                memory.durations.len(),
            )
        });
        assert_eq!(calls, (0, 0, 0), "{has_fault}");
        assert_eq!(
            (driver.faults.injected(), &*driver.faults.state()),
            (vec![], "start"),
            "{has_fault}"
        );
        let [Err(interrupted)] = &rest[..] else {
            panic!("{rest:?}")
        };
        assert_eq!(interrupted.code(), Code::Aborted, "{has_fault}");
        // The reset has removed the snapshot.
        mk_snapshot(&driver).await;
    }
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
    for volume in ["vol-0", "vol-1"] {
        let refused = driver.answer(publish(volume)).await.unwrap_err();
        // A response may show neither the attachment nor its count before they are stored.
        assert_eq!(refused.code(), Code::Internal, "{volume}: {refused}");
    }
    let attached = driver.store.peek(|array| array.attached_to("node-0").count());
    assert_eq!(attached, 1, "the limit has something to count");
}

fn publish(volume: &str) -> Request<ControllerPublishVolumeRequest> {
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
}

#[tokio::test(start_paused = true)]
async fn limit_counts_calls_that_ran_before_it_was_set() {
    let (driver, _) = Driver::open(Settings {
        initial_volumes: 2,
        latency: time::Duration::from_secs(10),
        ..Settings::default()
    })
    .unwrap();
    let mut first = task::spawn(driver.answer(publish("vol-0")));
    assert_pending!(first.poll());
    let limit = json!({"id": "x", "type": "node-limit", "limit": 1});
    let limit = Rule::backend_fault_from_value(limit).unwrap();
    driver.faults.put(limit).unwrap();
    let refused = driver.answer(publish("vol-1")).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    first.await.unwrap();
}

#[tokio::test]
async fn frozen_list_has_the_condition_of_its_time() {
    let (driver, _) = Driver::open(Settings {
        initial_volumes: 1,
        capabilities: "+VOLUME_CONDITION".parse().unwrap(),
        ..Settings::default()
    })
    .unwrap();
    let frozen = Rule::backend_fault_from_value(json!({"id": "x", "type": "frozen-list"})).unwrap();
    driver.faults.put(frozen).unwrap();
    let issue = HealthIssue {
        status: Severity::Degraded,
        reason: "Slow".to_owned(),
        message: "slow".to_owned(),
    };
    let set = driver
        .store
        .change(|array| array.set_volume_health("vol-0", vec![issue]));
    set.await.unwrap();
    for abnormal in [false, true] {
        let listed = driver
            .answer(Request::new(ListVolumesRequest::default()))
            .await
            .unwrap();
        let status = listed.into_inner().entries.pop().unwrap().status.unwrap();
        assert_eq!(status.volume_condition.unwrap().abnormal, abnormal);
        driver.faults.remove(RuleKind::BackendFault, "x");
    }
}

#[tokio::test(start_paused = true)]
async fn reply_before_its_operation_has_the_number_and_id_of_the_operation() {
    let (driver, _) = Driver::open(Settings {
        initial_volumes: 2,
        ..Settings::default()
    })
    .unwrap();
    for (method, field, value) in [
        ("ControllerPublishVolume", "volume", "vol-0"),
        ("CreateVolume", "name", "a"),
    ] {
        let rule = json!({"id": method, "match": {"method": method, field: value},
            "action": {"effect": "later", "delay": "10s", "code": "OK"}});
        driver.faults.put(Rule::from_value(rule).unwrap()).unwrap();
    }
    let create = |name: &str| {
        Request::new(csi_proto::v1::CreateVolumeRequest {
            name: name.to_owned(),
            volume_capabilities: publish("").into_inner().volume_capability.into_iter().collect(),
            ..Default::default()
        })
    };
    let number = |reply: Response<csi_proto::v1::ControllerPublishVolumeResponse>| {
        reply.into_inner().publish_context["attachment"].clone()
    };
    let id =
        |reply: Response<csi_proto::v1::CreateVolumeResponse>| reply.into_inner().volume.unwrap().volume_id;
    let promised = number(driver.answer(publish("vol-0")).await.unwrap());
    let other = number(driver.answer(publish("vol-1")).await.unwrap());
    assert_ne!(promised, other);
    let promised_id = id(driver.answer(create("a")).await.unwrap());
    let other_id = id(driver.answer(create("b")).await.unwrap());
    assert_ne!(promised_id, other_id);
    time::sleep(time::Duration::from_secs(11)).await;
    let found = driver.store.peek(|array| {
        let attachments = &array.volume("vol-0").unwrap().attachments;
        let number = attachments
            .values()
            .next()
            .map(|attachment| attachment.number.to_string());
        (
            number,
            array.volume_named("a").map(|volume| volume.spec.id.to_string()),
        )
    });
    assert_eq!(found, (Some(promised), Some(promised_id.clone())));
    // A volume that is created again under the name has another id.
    let delete = csi_proto::v1::DeleteVolumeRequest {
        volume_id: promised_id.clone(),
        ..Default::default()
    };
    driver.answer(Request::new(delete)).await.unwrap();
    driver.faults.remove(RuleKind::Rule, "CreateVolume");
    assert_ne!(id(driver.answer(create("a")).await.unwrap()), promised_id);
}
