use std::os::unix::ffi::OsStrExt;

use csi_proto::v1::ControllerUnpublishVolumeRequest;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, access_mode::Mode};
use csi_proto::v1::{ControllerPublishVolumeRequest, VolumeCapability};
use tonic::Code;
use tonic::transport::Endpoint;

use super::*;
use crate::driver::Settings;
use crate::store::Database;
use crate::store::tests::mk_store_on_a_full_disk;

/// No condition in these tests takes this long unless something is broken.
const DEADLINE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn driver_that_cannot_keep_its_state_confirms_nothing_and_stops() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    let (driver, _) = Driver::open(Settings::default()).unwrap();
    let (store, state) = mk_store_on_a_full_disk();
    let driver = Driver {
        store: Arc::new(store),
        state: Some(state),
        ..Arc::into_inner(driver).unwrap()
    };
    let listener = Listener::bind(&socket.clone().into()).unwrap();
    let serving = serve(
        Arc::new(driver),
        None,
        listener,
        None,
        CancellationToken::new(),
        DEADLINE,
    );

    let calling = async {
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
        let mut client = ControllerClient::new(endpoint.connect().await.unwrap());
        let nothing = ControllerUnpublishVolumeRequest {
            volume_id: "gone".into(),
            ..Default::default()
        };
        client
            .controller_unpublish_volume(nothing)
            .await
            .expect("what changes nothing needs no log");
        let attach = ControllerPublishVolumeRequest {
            volume_id: "vol-0".into(),
            node_id: "node-0".into(),
            volume_capability: Some(VolumeCapability {
                access_mode: Some(AccessMode {
                    mode: Mode::SingleNodeWriter.into(),
                }),
                access_type: Some(AccessType::Block(BlockVolume {})),
            }),
            ..Default::default()
        };
        client.controller_publish_volume(attach).await.unwrap_err()
    };
    let both = async { tokio::join!(serving, calling) };
    let (served, refused) = time::timeout(DEADLINE, both).await.expect("must stop by itself");
    assert!(matches!(served, Err(Error::StateLost(_))), "{served:?}");
    assert_eq!(refused.code(), Code::Internal);
    assert!(refused.message().contains("state directory"), "{refused}");
    assert!(!socket.exists());
}

#[tokio::test]
async fn waits_for_the_lock_of_the_process_that_it_replaces() {
    let directory = tempfile::tempdir().unwrap();
    let (rules, journal) = (
        directory.path().join("faults.yaml"),
        directory.path().join("journal"),
    );
    std::fs::write(&rules, "- {id: x, match: {method: '*'}, action: {delay: 1ms}}").unwrap();
    let settings = Settings {
        state_dir: Some(directory.path().join("state")),
        ..Settings::default()
    };
    let (first, _) = Driver::open(settings.clone()).unwrap();
    let bounded = open(settings.clone(), Duration::ZERO, &|| Ok(()))
        .await
        .unwrap_err();
    assert!(bounded.is_in_use(), "{bounded}");

    let settings = Settings {
        faults: Some(rules),
        journal: Some(journal.clone()),
        ..settings
    };
    let mut waiting = pin!(open(settings, DEADLINE, &|| Ok(())));
    let early = time::timeout(2 * LOCK_RETRY, &mut waiting).await;
    assert!(early.is_err(), "opened beside the first");
    first.close();
    drop(first);
    waiting.await.unwrap();
    let lines = std::fs::read_to_string(journal).unwrap();
    assert_eq!(lines.lines().count(), 1, "not once for each try: {lines}");
}

#[tokio::test]
async fn wait_for_a_lock_applies_no_fixture() {
    for lock in ["media/media.lock", "media/devices/here"] {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut settings = Settings {
            initial_volumes: 1,
            node_id: Some("here".to_owned()),
            state_dir: Some(path("state")),
            media_dir: Some(path("media")),
            ..Settings::default()
        };
        let (first, _) = Driver::open(settings.clone()).unwrap();
        first.close();
        drop(first);
        std::fs::write(path("fixture.yaml"), "initial_volumes: 1").unwrap();
        settings.fixture = Some(path("fixture.yaml"));

        let held = std::fs::File::open(path(lock)).unwrap();
        held.lock().unwrap();
        let mut waiting = pin!(open(settings, DEADLINE, &|| Ok(())));
        let early = time::timeout(4 * LOCK_RETRY, &mut waiting).await;
        assert!(early.is_err(), "opened without {lock}");
        let stored = Database::open(&path("state")).unwrap().dump().unwrap();
        assert_eq!(
            stored["volumes"].as_object().map(serde_json::Map::len),
            Some(1),
            "{stored}"
        );
        drop(held);
        let (second, _) = waiting.await.unwrap();
        let volumes = second.store.peek(|array| array.volumes().len());
        assert_eq!(volumes, 0, "{lock}");
    }
}

#[tokio::test]
async fn directory_of_another_drivers_devices_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let mk_settings = |node: &str| {
        let mut settings = Settings {
            node_id: Some(node.to_owned()),
            ..Settings::default()
        };
        settings.node.device_dir = Some(directory.path().join("devices"));
        settings
    };
    let (first, _) = Driver::open(mk_settings("a")).unwrap();
    let refused = open(mk_settings("b"), Duration::ZERO, &|| Ok(()))
        .await
        .unwrap_err();
    assert!(
        refused.is_in_use() && refused.to_string().contains("--device-dir"),
        "{refused}"
    );
    let mut behind_proxy = mk_settings("c");
    behind_proxy.proxy_to = Some(directory.path().join("csi.sock"));
    open(behind_proxy, Duration::ZERO, &|| Ok(())).await.unwrap();
    drop(first);
    open(mk_settings("b"), DEADLINE, &|| Ok(())).await.unwrap();
}

#[tokio::test]
async fn call_that_panics_is_answered() {
    async fn panics(_: http::Request<Body>) -> Result<http::Response<Body>, Infallible> {
        panic!("the test's panic")
    }
    let answer =
        CatchPanic::custom(tower::service_fn(panics), panicked).call(http::Request::new(Body::empty()));
    let status = Status::from_header_map(answer.await.unwrap().headers()).unwrap();
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().contains("see the driver log"), "{status}");
}

#[tokio::test]
async fn directories_with_names_that_are_not_utf_8_are_refused_by_their_flag() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    for flag in ["--media-dir", "--state-dir", "--device-dir"] {
        let mut settings = Settings {
            node_id: Some("node-0".to_owned()),
            ..Settings::default()
        };
        match flag {
            "--media-dir" => settings.media_dir = Some(path.clone()),
            "--state-dir" => settings.state_dir = Some(path.clone()),
            _ => settings.node.device_dir = Some(path.clone()),
        }
        let refused = Driver::open(settings).unwrap_err().to_string();
        assert!(refused.contains(flag) && refused.contains("UTF-8"), "{refused}");
        assert!(!path.exists(), "{flag}");
    }
}

#[tokio::test]
async fn socket_that_cannot_be_bound_applies_no_fixture() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let fixture = "volumes: [{spec: {id: imported, capacity_bytes: 1048576, pool: pool-0}}]";
    std::fs::write(path("fixture.yaml"), fixture).unwrap();
    let mut settings = Settings {
        state_dir: Some(path("state")),
        ..Settings::default()
    };
    let (first, _) = Driver::open(settings.clone()).unwrap();
    first.close();
    drop(first);

    settings.fixture = Some(path("fixture.yaml"));
    let endpoint: crate::socket::Endpoint = path("none/csi.sock").into();
    let refused = open(settings.clone(), DEADLINE, &|| Listener::check(&endpoint)).await;
    assert!(refused.unwrap_err().to_string().contains("--endpoint"));
    // A child process that another test is starting has a copy of the lock until its exec.
    let database = loop {
        match crate::store::Database::open(&path("state")) {
            Err(crate::store::OpenError::InUse { .. }) => std::thread::yield_now(),
            opened => break opened.unwrap(),
        }
    };
    let dump = database.dump().unwrap();
    assert_eq!(
        dump["volumes"].as_object().map_or(0, serde_json::Map::len),
        0,
        "{dump}"
    );
    database.close();
    drop(database);
    let (second, _) = open(settings, DEADLINE, &|| Ok(())).await.unwrap();
    let volumes = second.store.peek(|array| array.volumes().len());
    assert_eq!(volumes, 1, "imported by the start that has a socket");
}
