//! The objects whose writes are observed.

/// An object whose writes are observed.
pub(crate) enum Object {
    Attachment(String),
    Volume(String),
    Lease { namespace: String, name: String },
    Other(String),
}

// === impl Object ===

impl Object {
    /// The object in a path; for a create, its name is in the body.
    pub(super) fn of(path: &str, body: &[u8]) -> Option<Self> {
        let mut parts = path.trim_matches('/').split('/').collect::<Vec<_>>();
        let name_in_body = || {
            let body: serde_json::Value = serde_json::from_slice(body).ok()?;
            Some(body.pointer("/metadata/name")?.as_str()?.to_owned())
        };
        if parts.last() == Some(&"status") {
            parts.pop();
        }
        match parts[..] {
            ["apis", "storage.k8s.io", "v1", "volumeattachments", name] => {
                Some(Self::Attachment(name.to_owned()))
            }
            ["api", "v1", "persistentvolumes", name] => Some(Self::Volume(name.to_owned())),
            [
                "apis",
                "coordination.k8s.io",
                "v1",
                "namespaces",
                namespace,
                "leases",
                name,
            ] => Some(Self::Lease {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            [
                "apis",
                "coordination.k8s.io",
                "v1",
                "namespaces",
                namespace,
                "leases",
            ] => Some(Self::Lease {
                namespace: namespace.to_owned(),
                name: name_in_body()?,
            }),
            _ => Some(Self::Other(path.to_owned())),
        }
    }
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Attachment(name) => write!(f, "VolumeAttachment {name}"),
            Self::Volume(name) => write!(f, "PersistentVolume {name}"),
            Self::Lease { name, .. } => write!(f, "Lease {name}"),
            Self::Other(path) => f.write_str(path),
        }
    }
}
