//! `kubernetes.io/aws-ebs`: a volume by its id, or by a URL of zone and id, `aws://us-east-1a/vol-1`.

pub(super) mod url;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::AWSElasticBlockStoreVolumeSource;

use super::{Fault, Plugin};
use crate::model::CsiSource;

const SCHEME: &str = "aws://";

pub(super) fn translate(source: &AWSElasticBlockStoreVolumeSource) -> Result<CsiSource, Fault> {
    Ok(CsiSource {
        driver: Plugin::Ebs.driver().to_owned(),
        handle: volume_id(&source.volume_id)?.into(),
        read_only: source.read_only.unwrap_or_default(),
        fs_type: source.fs_type.clone().unwrap_or_default(),
        attributes: BTreeMap::from([(
            "partition".to_owned(),
            source.partition.unwrap_or_default().to_string(),
        )]),
        publish_secret: None,
    })
}

/// The volume id of an id or URL. An id that is not a URL is not validated.
fn volume_id(id: &str) -> Result<String, Fault> {
    let Some(rest) = id.strip_prefix(SCHEME) else {
        return Ok(id.to_owned());
    };
    let path = url::path(rest).map_err(|(problem, length)| Fault::EbsUrl {
        id: id.to_owned(),
        url: id[..SCHEME.len() + length].to_owned(),
        problem,
    })?;
    // CSI ids are UTF-8.
    let volume = String::from_utf8(path).ok();
    volume
        .as_deref()
        .map(|path| path.trim_matches('/'))
        .filter(|volume| volume.starts_with("vol-") && !volume.contains('/'))
        .map(str::to_owned)
        .ok_or_else(|| Fault::EbsVolumeId(id.to_owned()))
}
