//! Kubelet's side of the registration API has no official descriptor in the comparison, so its bytes are held here.

use csi_proto::registration::{PluginInfo, RegistrationStatus};
use prost::Message as _;

#[test]
fn plugin_info_has_the_bytes_that_kubelet_reads() {
    let info = PluginInfo {
        r#type: "T".into(),
        name: "N".into(),
        endpoint: "E".into(),
        supported_versions: vec!["1.0.0".into(), "2".into()],
    };
    assert_eq!(
        info.encode_to_vec(),
        b"\x0a\x01T\x12\x01N\x1a\x01E\x22\x051.0.0\x22\x012"
    );
}

#[test]
fn registration_status_is_read_from_the_bytes_that_kubelet_sends() {
    let status = RegistrationStatus::decode(&b"\x08\x01\x12\x02no"[..]).unwrap();
    assert_eq!(
        status,
        RegistrationStatus {
            plugin_registered: true,
            error: "no".into()
        }
    );
}
