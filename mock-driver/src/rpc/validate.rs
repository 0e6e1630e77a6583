//! Validation of requests before they reach the array: required fields, CSI's size limits, and enum values. Each error names
//! the field.

use std::collections::{BTreeMap, HashMap};

use csi_proto::v1;
use csi_proto::v1::volume_capability::{AccessType, access_mode::Mode};

use crate::array::{Access, AccessMode, Capability, Requirement, Segments, SizeRange, Source};
use crate::rpc::capabilities::{self, LiveCapabilities};

/// Maximum number of bytes of a string field.
const STRING_LIMIT: usize = 128;
/// The field of a node id, and its maximum number of bytes.
pub(crate) const NODE_ID: &str = "node_id";
const NODE_ID_LIMIT: usize = 256;
/// Maximum number of bytes of a map or list field, keys and values together.
const COLLECTION_LIMIT: usize = 4096;

/// Kubelet's key for the pod's service account tokens: in the volume context, or in the secrets of a driver with
/// `serviceAccountTokenInSecrets` (KEP-5538).
pub(crate) const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// Prefix of the keys that kubelet adds to the volume context.
pub(crate) const KUBELET: &str = "csi.storage.k8s.io/";

/// Maximum number of characters of each part of a topology key, and of a value.
const SEGMENT_LIMIT: usize = 63;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct Invalid {
    pub field: String,
    pub reason: String,
}

/// A map field, sorted by key.
pub(crate) type Map = BTreeMap<String, String>;

// === impl Invalid ===

impl Invalid {
    pub(crate) fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            reason: reason.into(),
        }
    }
}

pub(crate) fn required<'a>(field: &str, text: &'a str) -> Result<&'a str, Invalid> {
    if text.is_empty() {
        return Err(Invalid::new(field, "must be set"));
    }
    let limit = if field == NODE_ID {
        NODE_ID_LIMIT
    } else {
        STRING_LIMIT
    };
    bounded(field, text, limit)
}

pub(crate) fn name(text: &str) -> Result<&str, Invalid> {
    required("name", text)?;
    let banned = |c: char| matches!(c, '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\x7f'..='\u{9f}');
    match text.chars().find(|c| banned(*c)) {
        Some(c) => Err(Invalid::new(
            "name",
            format!("must not contain the character U+{:04X}", c as u32),
        )),
        None => Ok(text),
    }
}

pub(crate) fn map(field: &str, map: &HashMap<String, String>) -> Result<Map, Invalid> {
    bounded_collection(field, map.iter().flat_map(|(key, value)| [key, value]))?;
    Ok(map
        .iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect())
}

/// A volume context. Its limit does not concern what kubelet adds: attributes of the pod, and tokens.
pub(crate) fn volume_context(context: &HashMap<String, String>) -> Result<Map, Invalid> {
    let of_volume = context.iter().filter(|(key, _)| !key.starts_with(KUBELET));
    bounded_collection("volume_context", of_volume.flat_map(|(key, value)| [key, value]))?;
    let owned = |(key, value): (&String, &String)| (key.clone(), value.clone());
    Ok(context.iter().map(owned).collect())
}

/// Validates keys and size of secrets, without the tokens that kubelet adds. Errors show no value.
///
/// The CSI spec allows no `/` in a key, but kubelet's key for tokens has one.
pub(crate) fn secrets(secrets: &HashMap<String, String>) -> Result<(), Invalid> {
    let of_volume = secrets.iter().filter(|(key, _)| *key != TOKENS);
    bounded_collection("secrets", of_volume.flat_map(|(key, value)| [key, value]))?;
    let proper = |key: &str| {
        let mut chars = key.chars();
        key == TOKENS || chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    match secrets.keys().find(|key| key.is_empty() || !proper(key)) {
        Some(_) => Err(Invalid::new(
            "secrets",
            "keys must be made of alphanumerics, '-', '_' and '.'",
        )),
        None => Ok(()),
    }
}

/// Refuses a field whose capability the driver does not have.
pub(crate) fn needs(
    offered: &LiveCapabilities,
    capability: capabilities::Capability,
    field: &str,
    is_set: bool,
) -> Result<(), Invalid> {
    if !is_set || offered.has(capability) {
        return Ok(());
    }
    Err(Invalid::new(
        field,
        format!("must not be set: the driver does not have {}", capability.name()),
    ))
}

/// Refuses access modes that need the capability `newer`, whose name differs by service.
pub(crate) fn needs_modes(
    offered: &LiveCapabilities,
    newer: capabilities::Capability,
    field: &str,
    capabilities: &[Capability],
) -> Result<(), Invalid> {
    let is_new = |mode: AccessMode| {
        matches!(
            mode,
            AccessMode::SingleNodeSingleWriter | AccessMode::SingleNodeMultiWriter
        )
    };
    match capabilities.iter().find(|capability| is_new(capability.mode)) {
        Some(capability) if !offered.has(newer) => {
            let (mode, newer) = (capability.mode.name(), newer.name());
            let reason = format!("access mode {mode} is not known: the driver does not have {newer}");
            Err(Invalid::new(field, reason))
        }
        _ => Ok(()),
    }
}

pub(crate) fn count(field: &str, number: i32) -> Result<usize, Invalid> {
    usize::try_from(number).map_err(|_| Invalid::new(field, format!("must not be negative, is {number}")))
}

pub(crate) fn optional(field: &str, text: &str) -> Result<Option<String>, Invalid> {
    bounded(field, text, STRING_LIMIT)?;
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
}

pub(crate) fn ids(field: &str, ids: &[String]) -> Result<(), Invalid> {
    for (index, id) in ids.iter().enumerate() {
        required(&format!("{field}[{index}]"), id)?;
    }
    Ok(())
}

pub(crate) fn source(source: Option<&v1::VolumeContentSource>) -> Result<Option<Source>, Invalid> {
    let field = "volume_content_source";
    let Some(source) = source else { return Ok(None) };
    let id = |outer: &str, id: &str| required(&format!("{field}.{outer}"), id).map(str::to_owned);
    match &source.r#type {
        None => Err(Invalid::new(field, "must be a snapshot or a volume")),
        Some(v1::volume_content_source::Type::Snapshot(snapshot)) => {
            let id = id("snapshot.snapshot_id", &snapshot.snapshot_id)?;
            Ok(Some(Source::Snapshot(id.into())))
        }
        Some(v1::volume_content_source::Type::Volume(volume)) => {
            let id = id("volume.volume_id", &volume.volume_id)?;
            Ok(Some(Source::Volume(id.into())))
        }
    }
}

/// An accessibility requirement; absent means anywhere.
pub(crate) fn requirement(wanted: Option<&v1::TopologyRequirement>) -> Result<Option<Requirement>, Invalid> {
    let field = "accessibility_requirements";
    let Some(wanted) = wanted else { return Ok(None) };
    if wanted.requisite.is_empty() && wanted.preferred.is_empty() {
        return Err(Invalid::new(
            field,
            "must have requisite or preferred, or be left out",
        ));
    }
    let list = |name: &str, topologies: &[v1::Topology]| {
        let read =
            |(index, message): (usize, &v1::Topology)| topology(&format!("{field}.{name}[{index}]"), message);
        topologies
            .iter()
            .enumerate()
            .map(read)
            .collect::<Result<Vec<_>, _>>()
    };
    let requisite = list("requisite", &wanted.requisite)?;
    let preferred = list("preferred", &wanted.preferred)?;
    let stranger = preferred
        .iter()
        .position(|segments| !requisite.contains(segments));
    match stranger {
        Some(index) if !requisite.is_empty() => Err(Invalid::new(
            format!("{field}.preferred[{index}]"),
            "must be one of requisite",
        )),
        _ => Ok(Some(Requirement { requisite, preferred })),
    }
}

pub(crate) fn topology(field: &str, message: &v1::Topology) -> Result<Segments, Invalid> {
    let field = format!("{field}.segments");
    let pairs = message.segments.iter();
    segments(&field, pairs.map(|(key, value)| (key.as_str(), value.as_str())))
}

/// Topology segments of a message or flag: valid keys and values, without duplicate keys.
pub(crate) fn segments<'a>(
    field: &str,
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Segments, Invalid> {
    let pairs: Vec<(&str, &str)> = pairs.into_iter().collect();
    bounded_collection(field, pairs.iter().flat_map(|(key, value)| [key, value]))?;
    let is_proper = |part: &str| part.len() <= SEGMENT_LIMIT && is_label(part);
    for (key, value) in &pairs {
        let (prefix, name) = key.split_once('/').unwrap_or(("", key));
        if !is_proper(name) || (key.contains('/') && !is_proper(prefix)) {
            let reason = format!(
                "key \"{key}\" must be [PREFIX/]NAME, each of at most {SEGMENT_LIMIT} letters, digits, '-', '_' and \
                 '.', with a letter or digit at both ends"
            );
            return Err(Invalid::new(field, reason));
        }
        if !is_proper(value) {
            let reason = format!(
                "the value of \"{key}\" must be at most {SEGMENT_LIMIT} letters, digits, '-', '_' and '.', with a \
                 letter or digit at both ends"
            );
            return Err(Invalid::new(field, reason));
        }
    }
    let count = pairs.len();
    let segments: Segments = pairs.into_iter().collect();
    if segments.as_map().len() < count {
        return Err(Invalid::new(
            field,
            "has a key twice: keys that differ only in case are the same key",
        ));
    }
    Ok(segments)
}

/// Letters and digits, with `-`, `_` and `.` between them.
fn is_label(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_outer = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    is_outer(bytes.first()) && is_outer(bytes.last()) && bytes.iter().all(|byte| is_inner(*byte))
}

pub(crate) fn capabilities(list: &[v1::VolumeCapability]) -> Result<Vec<Capability>, Invalid> {
    if list.is_empty() {
        return Err(Invalid::new("volume_capabilities", "must be set"));
    }
    let check = |(index, asked)| capability(&format!("volume_capabilities[{index}]"), Some(asked));
    list.iter().enumerate().map(check).collect()
}

pub(crate) fn capability(
    field: &str,
    capability: Option<&v1::VolumeCapability>,
) -> Result<Capability, Invalid> {
    let invalid = |inner: &str, reason: String| Err(Invalid::new(format!("{field}{inner}"), reason));
    let must_be_set = |inner: &str| invalid(inner, "must be set".to_owned());
    let Some(capability) = capability else {
        return must_be_set("");
    };
    let access = match &capability.access_type {
        None => return must_be_set(".access_type"),
        Some(AccessType::Block(_)) => Access::Block,
        Some(AccessType::Mount(mount)) => {
            bounded(&format!("{field}.mount.fs_type"), &mount.fs_type, STRING_LIMIT)?;
            let group = format!("{field}.mount.volume_mount_group");
            bounded(&group, &mount.volume_mount_group, STRING_LIMIT)?;
            bounded_collection(&format!("{field}.mount.mount_flags"), &mount.mount_flags)?;
            Access::Mount {
                fs_type: mount.fs_type.clone(),
                flags: mount.mount_flags.clone(),
                group: mount.volume_mount_group.clone(),
            }
        }
    };
    let Some(mode) = &capability.access_mode else {
        return must_be_set(".access_mode");
    };
    let mode = match Mode::try_from(mode.mode) {
        Ok(Mode::SingleNodeWriter) => AccessMode::SingleNodeWriter,
        Ok(Mode::SingleNodeReaderOnly) => AccessMode::SingleNodeReaderOnly,
        Ok(Mode::MultiNodeReaderOnly) => AccessMode::MultiNodeReaderOnly,
        Ok(Mode::MultiNodeSingleWriter) => AccessMode::MultiNodeSingleWriter,
        Ok(Mode::MultiNodeMultiWriter) => AccessMode::MultiNodeMultiWriter,
        Ok(Mode::SingleNodeSingleWriter) => AccessMode::SingleNodeSingleWriter,
        Ok(Mode::SingleNodeMultiWriter) => AccessMode::SingleNodeMultiWriter,
        Ok(Mode::Unknown) => return must_be_set(".access_mode.mode"),
        Err(_) => return invalid(".access_mode.mode", format!("unknown access mode {}", mode.mode)),
    };
    Ok(Capability { access, mode })
}

pub(crate) fn optional_capability(
    capability: Option<&v1::VolumeCapability>,
) -> Result<Option<Capability>, Invalid> {
    capability
        .map(|asked| self::capability("volume_capability", Some(asked)))
        .transpose()
}

/// A capacity range; absent means any size.
pub(crate) fn size_range(range: Option<&v1::CapacityRange>) -> Result<SizeRange, Invalid> {
    let Some(range) = range else {
        return Ok(SizeRange::default());
    };
    let size = |field, bytes: i64| {
        u64::try_from(bytes).map_err(|_| Invalid::new(field, format!("must not be negative, is {bytes}")))
    };
    let required = size("capacity_range.required_bytes", range.required_bytes)?;
    let limit = size("capacity_range.limit_bytes", range.limit_bytes)?;
    if required == 0 && limit == 0 {
        return Err(Invalid::new(
            "capacity_range",
            "must have required_bytes or limit_bytes, or be left out",
        ));
    }
    Ok(SizeRange { required, limit })
}

fn bounded<'a>(field: &str, text: &'a str, limit: usize) -> Result<&'a str, Invalid> {
    if text.len() > limit {
        let reason = format!("must not be longer than {limit} bytes, has {}", text.len());
        return Err(Invalid::new(field, reason));
    }
    Ok(text)
}

pub(crate) fn bounded_collection<'a, T: AsRef<str> + ?Sized + 'a>(
    field: &str,
    texts: impl IntoIterator<Item = &'a T>,
) -> Result<(), Invalid> {
    let bytes: usize = texts.into_iter().map(|text| text.as_ref().len()).sum();
    if bytes > COLLECTION_LIMIT {
        let reason = format!("must not hold more than {COLLECTION_LIMIT} bytes, has {bytes}");
        return Err(Invalid::new(field, reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
