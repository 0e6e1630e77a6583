//! Changes to csi.proto that the comparison must report, to verify that it does not accept every file.

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;

use crate::{compile, facts::Facts};

/// One change to the text of csi.proto.
struct Change {
    name: &'static str,
    /// Text that occurs once in csi.proto, and its replacement.
    from: &'static str,
    to: &'static str,
    /// Expected entry in the list of differences from the unchanged file.
    expected: &'static [&'static str],
}

const CHANGES: &[Change] = &[
    Change {
        name: "number of a field",
        from: "bool readonly = 4;",
        to: "bool readonly = 14;",
        expected: &[
            "field csi.v1.ControllerPublishVolumeRequest.readonly: ours says number 14, ",
            "; official says number 4, ",
        ],
    },
    Change {
        name: "missing field",
        from: "bool node_expansion_required = 2;",
        to: "",
        expected: &[
            "field csi.v1.ControllerExpandVolumeResponse.node_expansion_required: only official has it: number 2",
        ],
    },
    Change {
        name: "additional field",
        from: "message ProbeRequest {}",
        to: "message ProbeRequest { string who = 1; }",
        expected: &["field csi.v1.ProbeRequest.who: only ours has it: number 1, Optional string"],
    },
    Change {
        name: "type of a field",
        from: "int64 max_volumes_per_node = 2;",
        to: "int32 max_volumes_per_node = 2;",
        expected: &[
            "field csi.v1.NodeGetInfoResponse.max_volumes_per_node: ours says number 2, Optional int32",
        ],
    },
    Change {
        name: "message type of a field",
        from: "google.protobuf.Int64Value maximum_volume_size = 2;",
        to: "google.protobuf.Int32Value maximum_volume_size = 2;",
        expected: &[
            "Optional message google.protobuf.Int32Value",
            "Optional message google.protobuf.Int64Value",
        ],
    },
    Change {
        name: "value type of a map",
        from: "map<string, string> publish_context = 1;",
        to: "map<string, bytes> publish_context = 1;",
        expected: &[
            "field csi.v1.ControllerPublishVolumeResponse.PublishContextEntry.value: ours says number 2, Optional bytes",
        ],
    },
    Change {
        name: "repeated",
        from: "repeated string mount_flags = 2;",
        to: "string mount_flags = 2;",
        expected: &[
            "field csi.v1.VolumeCapability.MountVolume.mount_flags: ours says number 2, Optional string",
        ],
    },
    Change {
        name: "presence",
        from: "int64 available_capacity = 1;",
        to: "optional int64 available_capacity = 1;",
        expected: &[
            "field csi.v1.GetCapacityResponse.available_capacity: ours says number 1, Optional int64",
            "presence true",
        ],
    },
    Change {
        name: "JSON name",
        from: "string volume_mount_group = 3;",
        to: "string volume_mount_group = 3 [json_name = \"group\"];",
        expected: &[
            "field csi.v1.VolumeCapability.MountVolume.volume_mount_group: ours says ",
            "json group",
        ],
    },
    Change {
        name: "lost secret mark",
        from: "map<string, string> secrets = 7 [(csi_secret) = true];",
        to: "map<string, string> secrets = 7;",
        expected: &[
            "field csi.v1.NodePublishVolumeRequest.secrets: ",
            "[\"(csi.v1.csi_secret)=Bool(true)\"]",
        ],
    },
    Change {
        name: "lost alpha mark of a method",
        from: "returns (GetSnapshotResponse) {\n    option (alpha_method) = true;\n  }",
        to: "returns (GetSnapshotResponse) {}",
        expected: &[
            "method csi.v1.Controller.GetSnapshot: ours says ",
            "official says ",
            "alpha_method)=Bool(true)",
        ],
    },
    Change {
        name: "number of an option",
        from: "bool csi_secret = 1059;",
        to: "bool csi_secret = 1058;",
        expected: &[
            "extension csi.v1.csi_secret: ours says extends google.protobuf.FieldOptions, number 1058",
        ],
    },
    Change {
        name: "number of an enum value",
        from: "PUBLISH_READONLY = 8;",
        to: "PUBLISH_READONLY = 18;",
        expected: &[
            "value csi.v1.ControllerServiceCapability.RPC.Type.PUBLISH_READONLY: ours says number 18",
        ],
    },
    Change {
        name: "name of an enum value",
        from: "DATA_LOSS = 3;",
        to: "LOST = 3;",
        expected: &[
            "value csi.v1.VolumeHealthErrorType.DATA_LOSS: only official has it",
            "value csi.v1.VolumeHealthErrorType.LOST: only ours has it",
        ],
    },
    Change {
        name: "reserved number",
        from: "reserved 11;",
        to: "",
        expected: &[
            "enum csi.v1.ControllerServiceCapability.RPC.Type: ours says reserved [] []",
            "reserved [11..=11] []",
        ],
    },
    Change {
        name: "oneof",
        from: "oneof access_type {\n    // A block device.\n    BlockVolume block = 1;",
        to: "BlockVolume block = 1;\n  oneof access_type {",
        expected: &[
            "field csi.v1.VolumeCapability.block: ours says ",
            "oneof csi.v1.VolumeCapability.access_type: ours says [\"mount\"]",
        ],
    },
    Change {
        name: "stream",
        from: "returns (stream GetMetadataDeltaResponse)",
        to: "returns (GetMetadataDeltaResponse)",
        expected: &[
            "method csi.v1.SnapshotMetadata.GetMetadataDelta: ",
            "returns stream csi.v1.GetMetadataDeltaResponse",
        ],
    },
    Change {
        name: "missing method",
        from: "rpc Probe(ProbeRequest) returns (ProbeResponse) {}",
        to: "",
        expected: &["method csi.v1.Identity.Probe: only official has it"],
    },
    Change {
        name: "package",
        from: "package csi.v1;",
        to: "package csi.v2;",
        expected: &[
            "file csi.v1: only official has it",
            "message csi.v2.Topology: only ours has it",
        ],
    },
];

/// A trial for each change.
pub(crate) fn trials(source: &'static str) -> impl Iterator<Item = Trial> {
    CHANGES.iter().map(move |change| {
        verdict::trial(format!("change is found: {}", change.name), &[], move || {
            change.is_found(source)
        })
    })
}

// === impl Change ===

impl Change {
    fn is_found(&self, source: &str) -> Result<()> {
        ensure!(
            source.matches(self.from).count() == 1,
            "csi.proto must hold {:?} once",
            self.from
        );
        let changed = compile(&source.replacen(self.from, self.to, 1)).context("compile the changed file")?;
        let found = Facts::differences(&Facts::of(&changed), &Facts::of(&compile(source)?)).join("\n");
        for part in self.expected {
            ensure!(found.contains(part), "{part:?} is not in:\n{found}");
        }
        Ok(())
    }
}
