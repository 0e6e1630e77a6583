//! Go programs that the tests run in addition to those of this workspace.

use super::go::GoProgram;

/// Go module of csi-snapshotter and the snapshot controller: their client-go is newer than csi-provisioner compiles with.
pub(super) const SNAPSHOTTER: &str = "e2e/snapshotter";

/// A Go program of the modules `e2e/peers`, `e2e/sidecars` and `e2e/snapshotter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// external-attacher, the Go sidecar to which csi-attacher is compared.
    ExternalAttacher,
    /// The sidecar that provisions volumes.
    ExternalProvisioner,
    /// The sidecar that expands volumes.
    ExternalResizer,
    /// The sidecar that creates snapshots.
    ExternalSnapshotter,
    /// The controller of VolumeSnapshots for all drivers.
    SnapshotController,
    /// The CSI conformance tests.
    CsiSanity,
    /// Prints the official descriptor of csi.proto.
    CsiDescriptors,
    /// Clients of the mock driver that connect like kubelet and the sidecars.
    GrpcClients,
    /// A grpc-go client and server that report the calls that they observe through a proxy.
    GrpcProxied,
    /// Calls Kubernetes' library that translates in-tree volumes.
    CsiTranslation,
}

// === impl Peer ===

impl Peer {
    /// Name of the executable.
    pub fn name(self) -> &'static str {
        self.program().name
    }

    /// Folder of its Go module.
    fn module(self) -> &'static str {
        match self {
            // The Go attacher keeps the versions in its go.mod.
            Self::ExternalProvisioner | Self::ExternalResizer => "e2e/sidecars",
            Self::ExternalSnapshotter | Self::SnapshotController => SNAPSHOTTER,
            Self::ExternalAttacher
            | Self::CsiSanity
            | Self::CsiDescriptors
            | Self::CsiTranslation
            | Self::GrpcClients
            | Self::GrpcProxied => "e2e/peers",
        }
    }

    pub(super) fn program(self) -> GoProgram {
        let peer = |package, name, what, stamps| GoProgram {
            module: self.module(),
            package,
            name,
            stamps,
            what,
            expectation: "at most 4 minutes on two cores from cold caches",
        };
        match self {
            Self::ExternalAttacher => peer(
                "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher",
                "external-attacher",
                "the Go external-attacher",
                &[("main.version", "github.com/kubernetes-csi/external-attacher/v4")],
            ),
            Self::ExternalResizer => peer(
                "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer",
                "external-resizer",
                "the Go external-resizer",
                &[("main.version", "github.com/kubernetes-csi/external-resizer/v2")],
            ),
            Self::ExternalProvisioner => peer(
                "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner",
                "external-provisioner",
                "the Go external-provisioner",
                &[(
                    "main.version",
                    "github.com/kubernetes-csi/external-provisioner/v6",
                )],
            ),
            Self::ExternalSnapshotter => peer(
                "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
                "external-snapshotter",
                "the Go external-snapshotter",
                &[(
                    "main.version",
                    "github.com/kubernetes-csi/external-snapshotter/v8",
                )],
            ),
            Self::SnapshotController => peer(
                "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
                "snapshot-controller",
                "the snapshot controller",
                &[(
                    "main.version",
                    "github.com/kubernetes-csi/external-snapshotter/v8",
                )],
            ),
            Self::CsiSanity => peer(
                "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity",
                "csi-sanity",
                "the CSI conformance tests",
                &[],
            ),
            Self::CsiDescriptors => peer(
                "./csi-descriptors",
                "csi-descriptors",
                "the official CSI descriptor",
                &[],
            ),
            Self::GrpcClients => peer(
                "./grpc-clients",
                "grpc-clients",
                "the Go clients of the driver",
                &[],
            ),
            Self::GrpcProxied => peer(
                "./grpc-proxied",
                "grpc-proxied",
                "the Go client and server of the proxy's test",
                &[],
            ),
            Self::CsiTranslation => peer(
                "./csi-translation",
                "csi-translation",
                "Kubernetes' translation of in-tree volumes",
                &[],
            ),
        }
    }
}
