//! `kubernetes.io/aws-ebs`: a volume by its id, or by a URL of zone and id, `aws://us-east-1a/vol-1`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::AWSElasticBlockStoreVolumeSource;
use percent_encoding::percent_decode_str;
use url::Url;

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
    if !id.starts_with(SCHEME) {
        return Ok(id.to_owned());
    }
    let url = Url::parse(id).map_err(|problem| Fault::EbsUrl(id.to_owned(), problem))?;
    // CSI ids are UTF-8.
    let path = percent_decode_str(url.path()).decode_utf8();
    let path = path.as_deref().map(|path| path.trim_matches('/'));
    path.ok()
        .filter(|volume| volume.starts_with("vol-") && !volume.contains('/'))
        .map(str::to_owned)
        .ok_or_else(|| Fault::EbsVolumeId(id.to_owned()))
}
