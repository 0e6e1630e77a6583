//! The process as a whole, with an API server in this process.

use std::convert::Infallible;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use csi_attacher::args::Args;
use csi_attacher::kube_api::Access;
use csi_attacher::leader_election::Fenced;
use csi_attacher::manager::{self, Environment, Error, Pod};
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use kube::client::Body;
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tower::service_fn;

use crate::connection::Driver;

/// Timeout for prompt events, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn serve_returns_both_driver_names_if_the_driver_changed() {
    let dir = TempDir::new().expect("a directory for the socket");
    let socket = dir.path().join("csi.sock");
    let process = Driver::new("d.example").serve(&socket);
    // The attacher lists after its first connection to the driver.
    let listed = Arc::new(Notify::new());
    let server = {
        let listed = listed.clone();
        service_fn(move |_: Request<Fenced<Body>>| {
            listed.notify_one();
            let mut refusal = Response::new(Body::empty());
            *refusal.status_mut() = StatusCode::FORBIDDEN;
            async { Ok::<_, Infallible>(refusal) }
        })
    };
    let flags = [
        "csi-attacher".to_owned(),
        format!("--csi-address={}", socket.display()),
    ];
    let args = Args::read(flags.map(OsString::from)).expect("flags of the attacher");
    let environment = Environment {
        access: Access::in_process(server).expect("an API server in this process"),
        driver: args.csi_address.clone(),
        pod: Pod {
            host_name: "pod-1".to_owned(),
            namespace: None,
            clock: || Timestamp::UNIX_EPOCH,
        },
    };
    let replace_driver = async {
        listed.notified().await;
        drop(process);
        let _other = Driver::new("other.example").serve(&socket);
        std::future::pending::<()>().await;
    };
    let ended = async {
        tokio::select! {
            ended = manager::serve(args, environment, CancellationToken::new()) => ended,
            () = replace_driver => unreachable!("the other driver keeps running"),
        }
    };
    let ended = tokio::time::timeout(SOON, ended).await.expect("the process ends");
    let Err(Error::DriverChanged(changed)) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!((&*changed.was, &*changed.is), ("d.example", "other.example"));
}
