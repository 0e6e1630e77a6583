//! `kubernetes.io/aws-ebs`: a volume by its id, or by a URL of zone and id, `aws://us-east-1a/vol-1`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::AWSElasticBlockStoreVolumeSource;
use percent_encoding::percent_decode_str;

use super::Fault;
use crate::model::CsiSource;

const SCHEME: &str = "aws://";

pub(super) fn translate(source: &AWSElasticBlockStoreVolumeSource) -> Result<CsiSource, Fault> {
    Ok(CsiSource {
        handle: volume_id(&source.volume_id)?.into(),
        read_only: source.read_only.unwrap_or_default(),
        fs_type: source.fs_type.clone().unwrap_or_default(),
        attributes: BTreeMap::from([(
            "partition".to_owned(),
            source.partition.unwrap_or_default().to_string(),
        )]),
        ..CsiSource::default()
    })
}

/// The volume id of an id or URL. An id that is not a URL is not validated. Of a URL, only the path is: Go refuses others for their
/// zone, but then the attach/detach controller, which is Go, creates no VolumeAttachment.
fn volume_id(id: &str) -> Result<String, Fault> {
    let Some(rest) = id.strip_prefix(SCHEME) else {
        return Ok(id.to_owned());
    };
    let location = rest.split(['#', '?']).next().unwrap_or_default();
    let path = location.split_once('/').map_or("", |(_zone, path)| path);
    // CSI ids are UTF-8.
    let volume = percent_decode_str(path).decode_utf8().ok();
    volume
        .as_deref()
        .map(|path| path.trim_matches('/'))
        .filter(|volume| volume.starts_with("vol-") && !volume.contains('/') && is_escaped(path))
        .map(str::to_owned)
        .ok_or_else(|| Fault::EbsVolumeId(id.to_owned()))
}

/// Whether each percent sign is followed by two hexadecimal digits.
fn is_escaped(path: &str) -> bool {
    let mut escapes = path.as_bytes().split(|byte| *byte == b'%').skip(1);
    escapes.all(|escape| escape.len() >= 2 && escape[..2].iter().all(u8::is_ascii_hexdigit))
}
