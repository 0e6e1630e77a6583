//! What is explained: one object as kubectl spells it, `KIND/NAME` or `KIND NAME`, or the whole cluster.

use std::fmt;

/// The kinds that can be explained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ResourceKind {
    #[default]
    Pod,
    PersistentVolumeClaim,
    PersistentVolume,
    VolumeAttachment,
    Node,
    /// All volumes of the cluster that wait for something. It has no name.
    Cluster,
}

/// One object of the cluster, or the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) kind: ResourceKind,
    /// Empty for cluster-scoped kinds.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Parses kind and name.
///
/// # Errors
///
/// The usage error, with the correct syntax.
pub(crate) fn parse(arguments: &[String]) -> Result<(ResourceKind, &str), String> {
    let (kind, name) = match arguments {
        [both] => both
            .split_once('/')
            .ok_or_else(|| match ResourceKind::parse(both) {
                Some(_) => format!("{both:?} lacks a name: write {both}/NAME"),
                None => format!("{both:?} lacks a kind: write KIND/NAME, such as pod/{both}"),
            })?,
        [one, other] if one.contains('/') && other.contains('/') => {
            return Err(format!("one object at a time: explain {one} first, then {other}"));
        }
        [kind, name] => (kind.as_str(), name.as_str()),
        _ => return Err("one object at a time".to_owned()),
    };
    let kind = ResourceKind::parse(kind).ok_or_else(|| {
        format!(
            "{kind:?} cannot be explained: only pod (po), persistentvolumeclaim (pvc), persistentvolume (pv), \
             volumeattachment (va) and node (no)"
        )
    })?;
    if !is_object_name(name) {
        return Err(format!(
            "{name:?} is not a valid object name: write KIND/NAME, such as pod/web-0"
        ));
    }
    Ok((kind, name))
}

/// Whether `name` is a valid object name, which is safe in a URL path and in a field selector without escaping. The
/// plugin takes names from fields of other objects, which may contain any text.
pub(crate) fn is_object_name(name: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
    !name.is_empty() && name != "." && name != ".." && name.chars().all(is_valid)
}

// === impl ResourceKind ===

impl ResourceKind {
    /// The full names, for shell completion.
    pub(crate) const NAMES: [&str; 5] = [
        "node",
        "persistentvolume",
        "persistentvolumeclaim",
        "pod",
        "volumeattachment",
    ];

    /// Accepts `kubectl get -o name`'s API group.
    fn parse(text: &str) -> Option<Self> {
        let lower = text.to_ascii_lowercase();
        let name = lower.strip_suffix(".storage.k8s.io").unwrap_or(&lower);
        match name {
            "pod" | "pods" | "po" => Some(Self::Pod),
            "persistentvolumeclaim" | "persistentvolumeclaims" | "pvc" => Some(Self::PersistentVolumeClaim),
            "persistentvolume" | "persistentvolumes" | "pv" => Some(Self::PersistentVolume),
            "volumeattachment" | "volumeattachments" | "va" => Some(Self::VolumeAttachment),
            "node" | "nodes" | "no" => Some(Self::Node),
            _ => None,
        }
    }

    pub(crate) fn is_namespaced(self) -> bool {
        match self {
            Self::Pod | Self::PersistentVolumeClaim => true,
            Self::PersistentVolume | Self::VolumeAttachment | Self::Node | Self::Cluster => false,
        }
    }
}

// === impl Resource ===

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ResourceKind::Pod => "pod",
            ResourceKind::PersistentVolumeClaim => "persistentvolumeclaim",
            ResourceKind::PersistentVolume => "persistentvolume",
            ResourceKind::VolumeAttachment => "volumeattachment",
            ResourceKind::Node => "node",
            ResourceKind::Cluster => return f.write_str("cluster"),
        };
        if self.namespace.is_empty() {
            write!(f, "{kind}/{}", self.name)
        } else {
            write!(f, "{kind}/{} in namespace {}", self.name, self.namespace)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_names_cannot_change_the_request_path() {
        assert!(is_object_name("pv-1.a_b"));
        for name in ["", "..", "../x", "a/b", "x?y=z", "a%2Fb", "a,b=c"] {
            assert!(!is_object_name(name), "{name:?}");
        }
    }
}
