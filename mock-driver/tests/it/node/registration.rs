//! Registration with kubelet.

use std::time::Duration;

use csi_mock_driver::admin_api::client;
use csi_mock_driver::run::Error;
use csi_proto::registration::registration_client::RegistrationClient;
use csi_proto::registration::{InfoRequest, RegistrationStatus};
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::server::connect;

async fn start() -> TestEnv {
    TestEnv::start_with(Choice::Emulated, |directory, settings| {
        settings.registration = Some(csi_mock_driver::driver::registration::Settings {
            directory: directory.to_owned(),
            endpoint: "/var/lib/kubelet/plugins/mock/csi.sock".into(),
        });
    })
    .await
}

/// A client of the registration socket, once it exists.
async fn client(env: &TestEnv) -> RegistrationClient<Channel> {
    let socket = env.server.path("mock.csi.local-reg.sock");
    while !socket.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "only kubelet may connect");
    RegistrationClient::new(connect(&socket).await)
}

#[tokio::test]
async fn kubelet_registers_the_driver_and_shutdown_removes_the_socket() {
    let env = start().await;
    let mut kubelet = client(&env).await;
    let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!(
        (info.r#type.as_str(), info.name.as_str()),
        ("CSIPlugin", "mock.csi.local")
    );
    assert_eq!(info.endpoint, "/var/lib/kubelet/plugins/mock/csi.sock");
    assert_eq!(info.supported_versions, ["1.0.0"]);
    let taken = RegistrationStatus {
        plugin_registered: true,
        error: String::new(),
    };
    kubelet.notify_registration_status(taken).await.unwrap();
    env.server.driver().check_registration().await.unwrap();
    let socket = env.server.path("mock.csi.local-reg.sock");
    env.end().await;
    assert!(!socket.exists());
}

/// Kubelet would look for a relative path below its own working directory.
#[tokio::test]
async fn relative_endpoint_is_registered_as_absolute_path() {
    let env = TestEnv::start_with(Choice::Emulated, |directory, settings| {
        settings.registration = Some(csi_mock_driver::driver::registration::Settings {
            directory: directory.to_owned(),
            endpoint: "csi.sock".into(),
        });
    })
    .await;
    let info = client(&env).await.get_info(InfoRequest {}).await.unwrap();
    let expected = std::env::current_dir().unwrap().join("csi.sock");
    assert_eq!(info.into_inner().endpoint, text(&expected));
    env.end().await;
}

#[tokio::test]
async fn driver_without_its_registration_socket_is_not_healthy() {
    let (server, client) = Server::start_administered(|directory, settings| {
        settings.registration = Some(csi_mock_driver::driver::registration::Settings {
            directory: directory.to_owned(),
            endpoint: "/var/lib/kubelet/plugins/mock/csi.sock".into(),
        });
    })
    .await;
    let socket = server.path("mock.csi.local-reg.sock");
    while server.driver().check_registration().await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(client.text("/healthz").await.unwrap(), "ok\n");
    fs::remove_file(&socket).unwrap();
    let error = client.text("/healthz").await.unwrap_err();
    let is_reported = matches!(&error, client::Error::Refused { status, problem }
        if *status == http::StatusCode::SERVICE_UNAVAILABLE && problem.message.contains("--registration-dir"));
    assert!(is_reported, "{error}");
}

#[tokio::test]
async fn driver_is_ready_once_kubelet_has_registered_it() {
    let (server, client) = Server::start_administered(|directory, settings| {
        settings.registration = Some(csi_mock_driver::driver::registration::Settings {
            directory: directory.to_owned(),
            endpoint: "/var/lib/kubelet/plugins/mock/csi.sock".into(),
        });
    })
    .await;
    let socket = server.path("mock.csi.local-reg.sock");
    while server.driver().check_registration().await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let error = client.ready().await.unwrap_err();
    let is_reported = matches!(&error, client::Error::Refused { status, problem }
        if *status == http::StatusCode::SERVICE_UNAVAILABLE && problem.message.contains("has not registered"));
    assert!(is_reported, "{error}");
    assert_eq!(
        client.text("/healthz").await.unwrap(),
        "ok\n",
        "no restart is necessary"
    );

    let mut kubelet = RegistrationClient::new(connect(&socket).await);
    let registered = RegistrationStatus {
        plugin_registered: true,
        error: String::new(),
    };
    kubelet.notify_registration_status(registered).await.unwrap();
    client.ready().await.unwrap();
}

#[tokio::test]
async fn driver_refused_by_kubelet_exits_with_the_reason() {
    let mut env = start().await;
    let mut kubelet = client(&env).await;
    let refused = RegistrationStatus {
        plugin_registered: false,
        error: "no such version".to_owned(),
    };
    // The driver may exit before its response arrives.
    kubelet.notify_registration_status(refused).await.ok();
    let error = env.server.ended().await.unwrap_err();
    assert!(
        matches!(&error, Error::Refused(reason) if reason == "no such version"),
        "{error}"
    );
}
