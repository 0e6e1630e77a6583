//! `kubernetes.io/aws-ebs`: a volume by its id, or by a URL of zone and id, `aws://us-east-1a/vol-1`.

mod url;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::AWSElasticBlockStoreVolumeSource;
pub use url::UrlProblem;

use super::Plugin;
use crate::model::CsiSource;
use url::quoted;

const SCHEME: &str = "aws://";

/// A volume id that looks like a URL but names no volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedId {
    /// It is no URL.
    #[error("Invalid disk name ({id}): parse {}: {problem}", quoted(.url.as_bytes()))]
    Url {
        /// The id.
        id: String,
        /// The part of it that was looked at.
        url: String,
        /// Why it is none.
        problem: UrlProblem,
    },
    /// The URL's path is no EBS volume id.
    #[error("Invalid format for AWS volume ({0})")]
    Format(String),
}

pub(super) fn translate(source: &AWSElasticBlockStoreVolumeSource) -> Result<CsiSource, MalformedId> {
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

/// The id that AWS knows. An id that is no URL is taken as it is, whatever it looks like.
fn volume_id(id: &str) -> Result<String, MalformedId> {
    let Some(rest) = id.strip_prefix(SCHEME) else {
        return Ok(id.to_owned());
    };
    let path = url::path(rest).map_err(|(problem, length)| MalformedId::Url {
        id: id.to_owned(),
        url: id[..SCHEME.len() + length].to_owned(),
        problem,
    })?;
    // Ids are sent as text, so one that is none cannot be sent.
    let volume = String::from_utf8(path).ok();
    volume
        .as_deref()
        .map(|path| path.trim_matches('/'))
        .filter(|volume| volume.starts_with("vol-") && !volume.contains('/'))
        .map(str::to_owned)
        .ok_or_else(|| MalformedId::Format(id.to_owned()))
}
