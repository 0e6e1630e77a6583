//! The fault proxy in front of our own driver and of an unknown one, and the relay.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use csi_mock_driver::driver::{Driver, Settings, registration};
use csi_mock_driver::proxy::relay::Relay;
use csi_mock_driver::run;
use csi_mock_driver::socket::Listener;
use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::node_client::NodeClient;
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::{nodes_of, publish, unpublish};
use crate::program::Program;
use crate::server::{DEADLINE, Server, cancel_after, connect, line_in, lines, mk_map, mk_publish};

/// A driver, and a proxy in front of it with its own rules and journal.
pub(super) struct Fronted {
    directory: TempDir,
    driver: Arc<Driver>,
    behind: Server,
    _serving: JoinSet<Result<(), run::Error>>,
}

impl Fronted {
    pub(super) async fn start(rules: &[&str]) -> Self {
        let behind = Server::start_with(|directory, settings| {
            settings.initial_volumes = 5;
            settings.journal = Some(directory.join("journal"));
        })
        .await;
        Self::before(behind, rules)
    }

    pub(super) fn before(behind: Server, rules: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let to = behind.path("csi.sock");
        let (driver, serving) = front(directory.path(), &to, rules);
        Self {
            directory,
            driver,
            behind,
            _serving: serving,
        }
    }

    pub(super) async fn client(&self) -> ControllerClient<Channel> {
        ControllerClient::new(connect(&self.directory.path().join("csi.sock")).await)
    }

    /// The proxy's socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.directory.path().join("csi.sock")
    }

    /// The proxy.
    pub(super) fn front(&self) -> &Driver {
        &self.driver
    }

    /// The driver behind it.
    pub(super) fn behind(&self) -> &Driver {
        self.behind.driver()
    }

    pub(super) fn journal(&self) -> PathBuf {
        self.directory.path().join("journal")
    }

    pub(super) fn behind_journal(&self) -> PathBuf {
        self.behind.path("journal")
    }
}

/// Serves a proxy to `to` in a directory.
pub(super) fn front(
    directory: &Path,
    to: &Path,
    rules: &[&str],
) -> (Arc<Driver>, JoinSet<Result<(), run::Error>>) {
    let yaml: String = rules.iter().map(|rule| format!("- {rule}\n")).collect();
    fs::write(directory.join("faults.yaml"), yaml).unwrap();
    let settings = Settings {
        proxy_to: Some(to.to_owned()),
        faults: Some(directory.join("faults.yaml")),
        ..Settings::default()
    };
    front_with(directory, settings)
}

/// Serves a proxy with these settings and a journal in a directory.
fn front_with(directory: &Path, settings: Settings) -> (Arc<Driver>, JoinSet<Result<(), run::Error>>) {
    let settings = Settings {
        journal: Some(directory.join("journal")),
        ..settings
    };
    let (driver, faults) = Driver::open(settings).unwrap();
    let listener = Listener::bind(&directory.join("csi.sock").into()).unwrap();
    let mut serving = JoinSet::new();
    serving.spawn(run::serve(
        driver.clone(),
        faults,
        listener,
        None,
        CancellationToken::new(),
        DEADLINE,
    ));
    (driver, serving)
}

#[tokio::test]
async fn calls_are_proxied_and_journaled_on_both_sides() {
    let fronted = Fronted::start(&[]).await;
    let mut client = fronted.client().await;
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);
    let mut direct = fronted.behind.controller().await;
    assert_eq!(nodes_of(&mut direct, "vol-0").await, ["node-0"]);
    assert_eq!(nodes_of(&mut client, "vol-0").await, ["node-0"]);
    let through = client
        .controller_publish_volume(mk_publish("vol-9", "node-0"))
        .await
        .unwrap_err();
    let straight = direct
        .controller_publish_volume(mk_publish("vol-9", "node-0"))
        .await
        .unwrap_err();
    assert_eq!(
        (through.code(), through.message()),
        (straight.code(), straight.message())
    );
    let same = |line: &serde_json::Value| {
        (
            line["code"].clone(),
            line["request"].clone(),
            line["response"].clone(),
        )
    };
    let end = |line: &serde_json::Value| {
        line["event"] == "end" && line["method"] == "/csi.v1.Controller/ControllerPublishVolume"
    };
    let here = line_in(&fronted.journal(), end).await;
    let there = line_in(&fronted.behind.path("journal"), end).await;
    assert_eq!(same(&here), same(&there));
}

/// Every path below a directory, with the content of files.
fn tree(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(tree(&path));
        }
        let content = if path.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        all.insert(path, content);
    }
    all
}

#[tokio::test]
async fn proxy_with_the_flags_of_its_driver_changes_no_file_of_it() {
    let shared = tempfile::tempdir().unwrap();
    let path = |name: &str| shared.path().join(name);
    fs::create_dir(path("registry")).unwrap();
    let flags = Settings {
        initial_volumes: 5,
        state_dir: Some(path("state")),
        media_dir: Some(path("media")),
        node_id: Some("node-0".to_owned()),
        registration: Some(registration::Settings {
            directory: path("registry"),
            endpoint: path("csi.sock"),
        }),
        ..Settings::default()
    };
    let behind = Server::start_with(|_, settings| *settings = flags.clone()).await;
    // After its start, in which it removes such leftovers of its node.
    let attached = publish(&mut behind.controller().await, "vol-0", "node-0").await;
    assert_eq!(attached, Code::Ok);
    fs::create_dir_all(path("media/ephemeral/.new-node-0%2Fx")).unwrap();
    let before = tree(shared.path());

    let front = tempfile::tempdir().unwrap();
    let settings = Settings {
        proxy_to: Some(behind.path("csi.sock")),
        ..flags
    };
    let _serving = front_with(front.path(), settings);
    let mut client = ControllerClient::new(connect(&front.path().join("csi.sock")).await);
    let listed = client
        .list_volumes(v1::ListVolumesRequest::default())
        .await
        .unwrap();
    assert_eq!(listed.into_inner().entries.len(), 5);
    line_in(&front.path().join("journal"), |line| line["code"] == "OK").await;
    assert_eq!(tree(shared.path()), before);
}

#[tokio::test]
async fn rules_act_before_after_and_in_the_background() {
    let fronted = Fronted::start(&[
        "{id: before, match: {volume: vol-0, method: ControllerPublishVolume}, action: {code: ABORTED}, times: 1}",
        "{id: after, match: {volume: vol-1, method: ControllerPublishVolume}, phase: after, action: {code: INTERNAL}, times: 1}",
        "{id: edit, match: {volume: vol-2, method: ControllerPublishVolume}, phase: after, \
          action: {edit: {publish_context.device: /dev/odd}}}",
        "{id: late, match: {volume: vol-3, method: ControllerPublishVolume}, phase: background, action: {delay: 50ms}, times: 1}",
        "{id: twice, match: {while: {volume: attached-here}, method: ControllerPublishVolume}, action: {code: UNKNOWN}}",
        "{id: secret, match: {secrets: {a: b}}, action: {code: UNAUTHENTICATED}}",
    ])
    .await;
    let mut client = fronted.client().await;
    let mut direct = fronted.behind.controller().await;
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Aborted);
    assert!(nodes_of(&mut direct, "vol-0").await.is_empty());
    assert_eq!(publish(&mut client, "vol-1", "node-0").await, Code::Internal);
    assert_eq!(nodes_of(&mut direct, "vol-1").await, ["node-0"]);
    let reply = client
        .controller_publish_volume(mk_publish("vol-2", "node-0"))
        .await
        .unwrap();
    let context = reply.into_inner().publish_context;
    assert!(
        context["device"] == "/dev/odd" && context.len() > 1,
        "{context:?}"
    );
    assert_eq!(
        publish(&mut client, "vol-3", "node-0").await,
        Code::DeadlineExceeded
    );
    line_in(&fronted.journal(), |line| {
        line["event"] == "late" && line["code"] == "OK"
    })
    .await;
    assert_eq!(nodes_of(&mut direct, "vol-3").await, ["node-0"]);
    assert_eq!(
        publish(&mut client, "vol-3", "node-0").await,
        Code::Unknown,
        "the proxy recorded the attachment"
    );
    assert_eq!(unpublish(&mut client, "vol-3", "node-0").await, Code::Ok);
    assert_eq!(publish(&mut client, "vol-3", "node-0").await, Code::Ok);
    let mut request = mk_publish("vol-4", "node-0");
    request.secrets = mk_map(&[("a", "b")]);
    let status = client.controller_publish_volume(request).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    let shown = lines(&fronted.journal())
        .iter()
        .map(ToString::to_string)
        .collect::<String>();
    assert!(shown.contains("hash:"), "the proxy hashes secrets, too");
}

/// It holds the driver's work, for which a shutdown waits another minute after the grace period.
#[tokio::test]
async fn proxy_ends_although_a_rule_holds_a_call_in_the_background() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(
        path("faults.yaml"),
        "- {id: held, match: {method: '*'}, action: {effect: later, hang: release}}",
    )
    .unwrap();
    let flags = [
        format!("--proxy-to={}", path("driver.sock").display()),
        format!("--faults={}", path("faults.yaml").display()),
        "--shutdown-grace=100ms".to_owned(),
    ];
    let mut program = Program::start(&path("csi.sock"), flags).await;
    let mut client = program.controller().await;
    let held = client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await;
    assert_eq!(held.unwrap_err().code(), Code::DeadlineExceeded);
    program.signal(Signal::TERM);
    assert!(program.ended().await.success());
}

#[tokio::test]
async fn header_lists_above_16_kib_are_proxied() {
    let large = "x".repeat(40 << 10);
    let fronted = Fronted::start(&[]).await;
    let rule = format!("- {{id: a, match: {{volume: vol-0}}, action: {{code: INTERNAL, message: {large}}}}}");
    fronted.behind.set_faults(&rule);
    let channel = Endpoint::from_shared(format!("unix:{}", fronted.socket().display()))
        .unwrap()
        .http2_max_header_list_size(64 << 10)
        .connect()
        .await
        .unwrap();
    let mut request = Request::new(mk_publish("vol-0", "node-0"));
    request.metadata_mut().insert("x-large", large.parse().unwrap());
    let refused = ControllerClient::new(channel)
        .controller_publish_volume(request)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Internal, "{refused}");
    assert_eq!(refused.message(), large);
}

#[tokio::test]
async fn cancellation_and_deadline_reach_the_driver_behind() {
    let fronted = Fronted::start(&[]).await;
    let faults = &fronted.behind.driver().faults;
    let stuck = json!({"id": "stuck", "match": {"method": "ControllerPublishVolume"}, "action": {"hang": "client-cancel"}});
    faults
        .put(csi_mock_driver::fault::Rule::from_value(stuck).unwrap())
        .unwrap();
    let mut client = fronted.client().await;
    let behind = fronted.behind.path("journal");
    let begun = async {
        line_in(&behind, |line| line["event"] == "begin").await;
    };
    cancel_after(
        begun,
        client.controller_publish_volume(mk_publish("vol-0", "node-0")),
    )
    .await;
    line_in(&behind, |line| line["code"] == "CANCELLED").await;
    line_in(&fronted.journal(), |line| line["code"] == "CANCELLED").await;

    let mut request = Request::new(mk_publish("vol-1", "node-0"));
    request.set_timeout(Duration::from_secs(3));
    let (response, _) = tokio::join!(
        client.controller_publish_volume(request),
        line_in(&behind, |line| {
            line["event"] == "begin" && line["request"]["volume_id"] == "vol-1"
        })
    );
    response.unwrap_err();
    line_in(&behind, |line| {
        line["code"] == "CANCELLED" && line["request"]["volume_id"] == "vol-1"
    })
    .await;
}

#[tokio::test]
async fn absent_driver_is_unavailable_until_it_returns() {
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("driver.sock");
    let _serving = front(directory.path(), &to, &[]);
    let mut client = ControllerClient::new(connect(&directory.path().join("csi.sock")).await);
    let away = client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap_err();
    assert_eq!(away.code(), Code::Unavailable);
    assert!(
        away.message().contains("--proxy-to") && away.message().contains("driver.sock"),
        "{away}"
    );

    let settings = Settings {
        initial_volumes: 1,
        ..Settings::default()
    };
    let (driver, _) = Driver::open(settings).unwrap();
    let listener = Listener::bind(&to.into()).unwrap();
    let mut behind = JoinSet::new();
    behind.spawn(run::serve(
        driver,
        None,
        listener,
        None,
        CancellationToken::new(),
        DEADLINE,
    ));
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);
}

/// A service unknown to the proxy: a bidirectional stream that echoes each message three times, with metadata and status
/// details.
mod foreign {
    use std::convert::Infallible;
    use std::task::{Context, Poll};

    use tonic::body::Body;
    use tonic::codegen::{BoxFuture, Service, http};
    use tonic::metadata::MetadataMap;
    use tonic::server::{Grpc, StreamingService};
    use tonic::{Request, Response, Status, Streaming};
    use tonic_prost::ProstCodec;

    #[derive(Clone)]
    pub(super) struct Foreign;

    struct Echo;

    impl StreamingService<Vec<u8>> for Echo {
        type Response = Vec<u8>;
        type ResponseStream = futures::stream::BoxStream<'static, Result<Vec<u8>, Status>>;
        type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

        fn call(&mut self, request: Request<Streaming<Vec<u8>>>) -> Self::Future {
            Box::pin(async move {
                let asked = request.metadata().get("x-ask").cloned();
                let stream =
                    futures::stream::unfold((request.into_inner(), false), |(mut inner, ended)| async move {
                        if ended {
                            return None;
                        }
                        match inner.message().await {
                            Ok(Some(message)) => Some((Ok(message), (inner, false))),
                            Ok(None) => {
                                let mut metadata = MetadataMap::new();
                                metadata.insert("x-late", "trailer".parse().expect("must be a value"));
                                let status = Status::with_details_and_metadata(
                                    tonic::Code::ResourceExhausted,
                                    "enough",
                                    vec![1, 2, 3].into(),
                                    metadata,
                                );
                                Some((Err(status), (inner, true)))
                            }
                            Err(status) => Some((Err(status), (inner, true))),
                        }
                    });
                let mut response = Response::new(Box::pin(stream) as Self::ResponseStream);
                if let Some(asked) = asked {
                    response.metadata_mut().insert("x-asked", asked);
                }
                Ok(response)
            })
        }
    }

    impl Service<http::Request<Body>> for Foreign {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = BoxFuture<http::Response<Body>, Infallible>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            Box::pin(async move {
                let codec: ProstCodec<Vec<u8>, Vec<u8>> = ProstCodec::default();
                Ok(Grpc::new(codec).streaming(Echo, request).await)
            })
        }
    }
}

#[tokio::test]
async fn unknown_streams_are_proxied_with_metadata_and_status_details() {
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("driver.sock");
    let listener = tokio::net::UnixListener::bind(&to).unwrap();
    let mut behind = JoinSet::new();
    behind.spawn(async move {
        let incoming = futures::stream::unfold(listener, async |listener| {
            let connection = listener.accept().await.map(|(connection, _)| connection);
            Some((connection, listener))
        });
        tonic::transport::Server::builder()
            .serve_with_incoming(foreign::Foreign, incoming)
            .await
    });
    let _serving = front(
        directory.path(),
        &to,
        &["{id: stop, match: {method: /vendor.v1.Copy/Stop}, action: {code: ABORTED}}"],
    );
    let channel = connect(&directory.path().join("csi.sock")).await;
    let mut grpc = tonic::client::Grpc::new(channel);
    let codec = || tonic_prost::ProstCodec::<Vec<u8>, Vec<u8>>::default();

    // Each response arrives before the next message is sent.
    let (sender, receiver) = futures::channel::mpsc::unbounded();
    let mut request = Request::new(receiver);
    request
        .metadata_mut()
        .insert("x-ask", MetadataValue::from_static("who"));
    grpc.ready().await.unwrap();
    let response = grpc
        .streaming(
            request,
            http::uri::PathAndQuery::from_static("/vendor.v1.Copy/Start"),
            codec(),
        )
        .await
        .unwrap();
    assert_eq!(response.metadata().get("x-asked").unwrap(), "who");
    let mut stream = response.into_inner();
    for text in ["one", "two"] {
        sender.unbounded_send(text.as_bytes().to_vec()).unwrap();
        assert_eq!(stream.message().await.unwrap().unwrap(), text.as_bytes());
    }
    drop(sender);
    let end = stream.message().await.unwrap_err();
    assert_eq!(
        (end.code(), end.message(), end.details()),
        (Code::ResourceExhausted, "enough", &[1, 2, 3][..])
    );
    assert_eq!(end.metadata().get("x-late").unwrap(), "trailer");
    let journal = directory.path().join("journal");
    let line = line_in(&journal, |line| line["event"] == "end").await;
    assert_eq!(
        (&line["method"], &line["code"]),
        (&json!("/vendor.v1.Copy/Start"), &json!("RESOURCE_EXHAUSTED"))
    );

    grpc.ready().await.unwrap();
    let refused: Result<tonic::Response<Vec<u8>>, Status> = grpc
        .unary(
            Request::new(vec![1]),
            http::uri::PathAndQuery::from_static("/vendor.v1.Copy/Stop"),
            codec(),
        )
        .await;
    assert_eq!(refused.unwrap_err().code(), Code::Aborted);
}

#[tokio::test]
async fn relay_pairs_connections_of_its_two_ends() {
    let directory = tempfile::tempdir().unwrap();
    let clients = directory.path().join("clients.sock");
    let relay = Relay::bind(&clients.clone().into(), &"tcp://127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let port = relay.driver_port().unwrap();
    let mut running = JoinSet::new();
    running.spawn(relay.run());

    // A driver that connects instead of listening.
    let (driver, _) = Driver::open(Settings {
        initial_volumes: 1,
        ..Settings::default()
    })
    .unwrap();
    let listener = Listener::bind(&directory.path().join("driver.sock").into()).unwrap();
    let mut serving = JoinSet::new();
    serving.spawn(run::serve(
        driver,
        None,
        listener,
        None,
        CancellationToken::new(),
        DEADLINE,
    ));
    let own = directory.path().join("driver.sock");
    running.spawn(async move {
        let mut out = tokio::net::TcpStream::connect(port).await.unwrap();
        let mut to = tokio::net::UnixStream::connect(own).await.unwrap();
        tokio::io::copy_bidirectional(&mut out, &mut to).await.ok();
    });
    let mut client = ControllerClient::new(connect(&clients).await);
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);
    assert!(
        "tcp://nowhere"
            .parse::<csi_mock_driver::admin_api::Endpoint>()
            .is_err()
    );
    let mut identity = v1::identity_client::IdentityClient::new(connect(&own_socket(&directory)).await);
    identity.probe(v1::ProbeRequest {}).await.unwrap();
}

fn own_socket(directory: &TempDir) -> std::path::PathBuf {
    directory.path().join("driver.sock")
}

#[tokio::test]
async fn volume_conditions_of_an_older_driver_are_journaled_and_proxied() {
    let fronted = Fronted::start(&[]).await;
    let offer = &fronted.behind.driver().capabilities;
    offer.write().change("+VOLUME_CONDITION").unwrap();
    let get = v1::ControllerGetVolumeRequest {
        volume_id: "vol-0".to_owned(),
    };
    fronted.client().await.controller_get_volume(get).await.unwrap();
    let shown = |line: &serde_json::Value| {
        line["event"] == "end" && line["response"]["status"]["volume_condition"].is_object()
    };
    for journal in [fronted.journal(), fronted.behind_journal()] {
        line_in(&journal, shown).await;
    }
}

#[tokio::test]
async fn proxy_lies_with_an_empty_reply() {
    let fronted = Fronted::start(&[
        "{id: lie, match: {method: ControllerPublishVolume}, action: {pretend: OK}, times: 1}",
    ])
    .await;
    let mut client = fronted.client().await;
    let reply = client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap();
    assert!(reply.into_inner().publish_context.is_empty());
    let mut direct = fronted.behind.controller().await;
    assert!(nodes_of(&mut direct, "vol-0").await.is_empty());
    let end = line_in(&fronted.journal(), |line| line["event"] == "end").await;
    assert_eq!((&end["code"], &end["fault"]), (&json!("OK"), &json!("lie")));
}

#[tokio::test]
async fn clients_lose_their_connection_when_the_driver_does() {
    let fronted = Fronted::start(&[]).await;
    let mut client = fronted.client().await;
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);
    let idle = tokio::net::UnixStream::connect(fronted.socket()).await.unwrap();
    let connections = || fronted.front().socket_control.connections();
    let both = async {
        while connections() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(DEADLINE, both).await.unwrap();
    // As when the driver restarts.
    fronted.behind().socket_control.cut_all();
    let closed = async {
        let mut byte = [0; 64];
        loop {
            idle.readable().await.unwrap();
            match idle.try_read(&mut byte) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    };
    tokio::time::timeout(DEADLINE, closed)
        .await
        .expect("the proxy must close the connections");
    let mut again = fronted.client().await;
    assert_eq!(
        publish(&mut again, "vol-1", "node-0").await,
        Code::Ok,
        "clients may reconnect"
    );
}

#[tokio::test]
async fn delay_of_a_rule_shortens_the_deadline_of_the_driver() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("driver.sock");
    let (seen_tx, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let service = tower::service_fn(move |request: http::Request<tonic::body::Body>| {
        let left = request.headers()["grpc-timeout"].to_str().unwrap().to_owned();
        seen_tx.send(left).unwrap();
        std::future::ready(Ok(Status::unavailable("seen").into_http()))
    });
    let _driver = super::fixed_reply::serve(&socket, service);
    let rules = ["{id: slow, match: {method: ControllerPublishVolume}, action: {delay: 1s}}"];
    let (_proxy, _serving) = front(directory.path(), &socket, &rules);
    let mut client = ControllerClient::new(connect(&directory.path().join("csi.sock")).await);
    let mut request = Request::new(mk_publish("vol-0", "node-0"));
    request.set_timeout(Duration::from_secs(60));
    let status = client.controller_publish_volume(request).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let left = seen.recv().await.unwrap();
    let micros: u64 = left.strip_suffix('u').unwrap().parse().unwrap();
    assert!((30_000_000..=59_000_000).contains(&micros), "{left}");
}

#[tokio::test]
async fn health_of_a_proxy_is_that_of_its_driver() {
    let behind = Server::start_with(|_, settings| settings.config.ready_after = DEADLINE * 10).await;
    let to = behind.path("csi.sock");
    let (server, client) = Server::start_administered(|_, settings| settings.proxy_to = Some(to)).await;
    let health = client.text("/healthz").await;
    assert!(health.is_err(), "the driver is not ready: {health:?}");
    behind.stop().await;
    let health = client.text("/healthz").await.unwrap_err().to_string();
    assert!(health.contains("--proxy-to"), "{health}");
    drop(server);
}

#[tokio::test]
async fn rules_with_a_node_match_before_node_get_info_passed() {
    let behind = Server::start_with(|_, settings| settings.node_id = Some("node-7".to_owned())).await;
    let rule = "{id: x, match: {method: NodeGetCapabilities, node: node-7}, action: {code: ABORTED}}";
    let fronted = Fronted::before(behind, &[rule]);
    let mut node = NodeClient::new(connect(&fronted.socket()).await);
    let request = v1::NodeGetCapabilitiesRequest {};
    let refused = node.node_get_capabilities(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
}
