//! The program with command lines of csi-driver-host-path: of its manifests, and of Kubernetes' storage tests, which add
//! flags.

use std::process::Command;
use std::time::Duration;

use csi_proto::v1::controller_service_capability::{Type, rpc};
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::node_client::NodeClient;
use csi_proto::v1::{
    ControllerGetCapabilitiesRequest, CreateVolumeRequest, GetCapacityRequest, GetPluginInfoRequest,
    NodeGetInfoRequest, NodeGetInfoResponse, ProbeRequest,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time;
use tonic::Code;
use tonic::transport::Channel;

use crate::program::{Program, output};
use crate::server::{DEADLINE, mk_create};

/// A manifest's container.
struct Manifest {
    name: &'static str,
    args: &'static [&'static str],
    /// The driver's name in them.
    driver: &'static str,
    /// Whether attach is enabled.
    attaches: bool,
}

/// `deploy/kubernetes-1.34` and similar ones, which Kubernetes has copied.
const PLUGIN: [&str; 4] = [
    "--drivername=hostpath.csi.k8s.io",
    "--v=5",
    "--endpoint=$(CSI_ENDPOINT)",
    "--nodeid=$(KUBE_NODE_NAME)",
];

/// Kubernetes' `mock/csi-mock-driver.yaml`.
const MOCK: [&str; 5] = [
    "--drivername=mock.storage.k8s.io",
    "--nodeid=$(KUBE_NODE_NAME)",
    "--endpoint=/csi/csi.sock",
    "--statedir=/tmp/csi-hotpath-data",
    "-v=5",
];

const MANIFESTS: [Manifest; 6] = [
    Manifest {
        name: "host-path, and Kubernetes' group snapshots",
        args: &PLUGIN,
        driver: "hostpath.csi.k8s.io",
        attaches: false,
    },
    Manifest {
        name: "host-path with SnapshotMetadata",
        args: &[
            PLUGIN[0],
            PLUGIN[1],
            PLUGIN[2],
            PLUGIN[3],
            "--enable-snapshot-metadata",
        ],
        driver: "hostpath.csi.k8s.io",
        attaches: false,
    },
    Manifest {
        name: "host-path, distributed",
        args: &[
            PLUGIN[0],
            PLUGIN[1],
            PLUGIN[2],
            PLUGIN[3],
            "--capacity=slow=10Gi",
            "--capacity=fast=100Gi",
        ],
        driver: "hostpath.csi.k8s.io",
        attaches: false,
    },
    Manifest {
        name: "host-path, inline volumes of old",
        args: &[
            "--v=5",
            "--endpoint=$(CSI_ENDPOINT)",
            "--nodeid=$(KUBE_NODE_NAME)",
            "--ephemeral=true",
        ],
        driver: "hostpath.csi.k8s.io",
        attaches: false,
    },
    Manifest {
        name: "Kubernetes' tests with the hostpath driver",
        args: &[
            PLUGIN[0],
            PLUGIN[1],
            PLUGIN[2],
            PLUGIN[3],
            "--drivername=csi-hostpath-provisioning-1234",
            "--maxvolumespernode=10",
            "--check-volume-lifecycle=true",
            "--enable-controller-modify-volume=true",
            "--accepted-mutable-parameter-names=e2eVacTest",
            "--enable-snapshot-metadata",
        ],
        driver: "csi-hostpath-provisioning-1234",
        attaches: false,
    },
    Manifest {
        name: "Kubernetes' tests with the mock driver",
        args: &[
            MOCK[0],
            MOCK[1],
            MOCK[2],
            MOCK[3],
            MOCK[4],
            "--drivername=csi-mock-csi-mock-volumes-1234",
            "--enable-attach",
            "--enable-topology",
            "--attach-limit",
            "2",
            "--node-expand-required=true",
        ],
        driver: "csi-mock-csi-mock-volumes-1234",
        attaches: true,
    },
];

/// Expands variables as in a pod; paths are in a temporary directory.
fn in_pod(args: &[&str], directory: &TempDir) -> Vec<String> {
    let path = directory.path().display();
    let substitute = |arg: &&str| {
        arg.replace("$(CSI_ENDPOINT)", &format!("unix://{path}/csi.sock"))
            .replace("/csi/csi.sock", &format!("{path}/csi.sock"))
            .replace("/tmp/csi-hotpath-data", &format!("{path}/state"))
            .replace("$(KUBE_NODE_NAME)", "worker")
    };
    args.iter().map(substitute).collect()
}

async fn start(args: &[&str], directory: &TempDir) -> Program {
    // By default, a directory of the host if it exists.
    let state = format!("--statedir={}", directory.path().join("state").display());
    let args = [&[state.as_str()], args].concat();
    Program::start(&directory.path().join("csi.sock"), in_pod(&args, directory)).await
}

async fn node_info(channel: Channel) -> NodeGetInfoResponse {
    let mut node = NodeClient::new(channel);
    node.node_get_info(NodeGetInfoRequest {})
        .await
        .unwrap()
        .into_inner()
}

fn mk_kind(name: &str, kind: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        parameters: [("kind".to_owned(), kind.to_owned())].into(),
        ..mk_create(name)
    }
}

#[tokio::test]
async fn hostpath_command_lines_start_a_working_driver() {
    for manifest in MANIFESTS {
        let directory = tempfile::tempdir().unwrap();
        let program = start(manifest.args, &directory).await;
        let channel = program.channel().await;
        let mut identity = IdentityClient::new(channel.clone());
        let probe = identity.probe(ProbeRequest {}).await.unwrap().into_inner();
        assert_eq!(probe.ready, Some(true), "{}", manifest.name);
        let info = identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap();
        assert_eq!(info.into_inner().name, manifest.driver, "{}", manifest.name);
        let info = node_info(channel).await;
        assert_eq!(info.node_id, "worker", "{}", manifest.name);
        let segments = info.accessible_topology.unwrap().segments;
        assert_eq!(
            segments["topology.hostpath.csi/node"], "worker",
            "{}",
            manifest.name
        );

        let mut controller = program.controller().await;
        let capabilities = controller
            .controller_get_capabilities(ControllerGetCapabilitiesRequest {})
            .await;
        let publishes = capabilities.unwrap().into_inner().capabilities.iter().any(|capability| {
            matches!(&capability.r#type, Some(Type::Rpc(rpc)) if rpc.r#type() == rpc::Type::PublishUnpublishVolume)
        });
        assert_eq!(publishes, manifest.attaches, "{}", manifest.name);
    }
}

#[tokio::test]
async fn capacity_kinds_are_selected_by_class_parameters() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(MANIFESTS[2].args, &directory).await;
    let mut controller = program.controller().await;
    let mut left = async |kind: &str| {
        let request = GetCapacityRequest {
            parameters: [("kind".to_owned(), kind.to_owned())].into(),
            ..Default::default()
        };
        let reply = controller.get_capacity(request).await;
        reply.map(|reply| reply.into_inner().available_capacity >> 30)
    };
    assert_eq!(left("slow").await.unwrap(), 10);
    assert_eq!(left("fast").await.unwrap(), 100);
    assert_eq!(left("odd").await.unwrap_err().code(), Code::InvalidArgument);

    let mut controller = program.controller().await;
    let mut large = mk_kind("large", "slow");
    large.capacity_range.get_or_insert_default().required_bytes = 11 << 30;
    let refused = controller.create_volume(large.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    large.parameters = mk_kind("", "fast").parameters;
    controller.create_volume(large).await.unwrap();
}

#[tokio::test]
async fn random_limit_changes_between_calls() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(&["--nodeid=worker", "--attach-limit=-1", "--seed=7"], &directory).await;
    let mut limits = Vec::new();
    for _ in 0..20 {
        limits.push(node_info(program.channel().await).await.max_volumes_per_node);
    }
    assert!(limits.iter().all(|limit| (1..=10).contains(limit)), "{limits:?}");
    limits.sort_unstable();
    limits.dedup();
    assert!(limits.len() > 1, "{limits:?}");
}

/// Kubernetes' `mock/csi-mock-proxy.yaml`, whose driver runs in the test program and connects to the port.
#[tokio::test]
async fn proxy_of_kubernetes_tests_pairs_connections() {
    let directory = tempfile::tempdir().unwrap();
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let proxied = format!("-proxy-endpoint=tcp://:{port}");
    let args = [
        "-v=5",
        "-nodeid=$(KUBE_NODE_NAME)",
        "-endpoint=/csi/csi.sock",
        &proxied,
    ];
    let socket = directory.path().join("csi.sock");
    let _program = Program::start(&socket, in_pod(&args, &directory)).await;
    // The closed connection of the readiness probe is paired with the first driver. The port opens after the socket.
    let dialled = async {
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    time::timeout(DEADLINE, dialled)
        .await
        .expect("must listen in time");
    let mut client = UnixStream::connect(&socket).await.unwrap();
    let mut driver = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    client.write_all(b"call").await.unwrap();
    let mut heard = [0; 4];
    let read = time::timeout(DEADLINE, driver.read_exact(&mut heard)).await;
    read.unwrap().unwrap();
    assert_eq!(&heard, b"call");
}

#[test]
fn flags_without_effect_are_logged() {
    let directory = tempfile::tempdir().unwrap();
    let state = format!("--statedir={}", directory.path().join("state").display());
    // The directory does not exist, so the program exits.
    let socket = directory.path().join("missing/csi.sock");
    let said = output(&socket, &["--nodeid=worker", "--vmodule=server=9", &state]).stderr;
    let said = String::from_utf8_lossy(&said);
    let is_warning = |line: &str| line.contains("WARN") && line.contains("--vmodule: has no effect");
    assert!(said.lines().any(is_warning), "{said}");
}

#[test]
fn tcp_endpoint_is_refused_with_the_alternative() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_csi-mock-driver"));
    let output = command
        .args(["--nodeid=worker", "--endpoint=tcp://127.0.0.1:10000"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("--endpoint") && said.contains("unix-connect:"),
        "{said}"
    );
}
