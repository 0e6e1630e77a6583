use csi_proto::v1::{
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, ControllerUnpublishVolumeRequest,
};

use super::*;
use crate::driver::Settings;
use crate::journal::JournalConfig;

fn mk_driver() -> Arc<Driver> {
    let settings = Settings {
        premade: 1,
        readers: JournalConfig {
            kept: 10,
            ..JournalConfig::default()
        },
        ..Settings::default()
    };
    Driver::open(settings).unwrap().0
}

#[tokio::test]
async fn journals_the_converted_reply_or_its_error() {
    let driver = mk_driver();
    let request = || {
        Request::new(ControllerGetVolumeRequest {
            volume_id: "vol-0".to_owned(),
        })
    };
    let fail = |_| std::future::ready(Err::<ControllerGetVolumeResponse, _>(Error::Broken));
    let refused = driver.answer_as(request(), fail).await.unwrap_err();
    assert_eq!(refused.code(), Code::Internal);
    let rename = |mut reply: ControllerGetVolumeResponse| async move {
        reply.volume.as_mut().unwrap().volume_id = "other".to_owned();
        Ok(reply)
    };
    let sent = driver.answer_as(request(), rename).await.unwrap().into_inner();
    assert_eq!(sent.volume.unwrap().volume_id, "other");
    let journal = driver.journal.as_ref().unwrap();
    let calls: Vec<_> = journal.look(|look| look.after(0).map(|(_, call)| call.clone()).collect());
    let codes: Vec<Code> = calls
        .iter()
        .map(|call| call.end().unwrap().outcome.code)
        .collect();
    assert_eq!(codes, [Code::Internal, Code::Ok]);
    assert_eq!(journal.response(&calls[0]), None);
    assert_eq!(
        journal.response(&calls[1]).unwrap()["volume"]["volume_id"],
        "other"
    );
}

#[tokio::test(start_paused = true)]
async fn operation_waits_for_the_volume_lock() {
    let driver = mk_driver();
    let request = ControllerUnpublishVolumeRequest {
        volume_id: "vol-0".to_owned(),
        ..Default::default()
    };
    let held = driver
        .locks
        .lock_all(Scope::Operation, request.keys())
        .await
        .unwrap();
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
