//! Behaviour of the services where CSI leaves a choice, and required secrets.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use csi_proto::Secrets;

use crate::array::{Capability, Spec};
use crate::driver::error::Error;
use crate::rpc::method::Method;
use crate::rpc::validate::{self, Invalid};

/// Behaviour of the services where CSI leaves a choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceConfig {
    /// Time until a new snapshot is ready to use.
    pub snapshot_delay: Duration,
    /// Time after the start until Probe reports ready.
    pub ready_after: Duration,
    pub secrets: RequiredSecrets,
    /// Maximum size to which a node expands a volume; `None` for no limit of its own.
    pub node_growth_limit: Option<u64>,
    /// Minimum size in bytes of the disk of a volume with a filesystem. A smaller volume keeps its capacity, but its
    /// filesystem has this room, as csi-driver-host-path does not limit a volume to its capacity.
    pub min_filesystem_bytes: u64,
    /// Each NodeGetInfo reports a random `max_volumes_per_node`, as csi-driver-host-path does for Kubernetes' tests.
    pub(crate) random_limit: bool,
    /// A node accepts volumes that are not attached to it although the driver has ControllerPublishVolume, as
    /// csi-driver-host-path does, which works with and without attachRequired in its CSIDriver.
    pub attach_optional: bool,
    /// ControllerModifyVolume without parameters fails with INVALID_ARGUMENT: CSI marks the field as required.
    pub strict_modify: bool,
}

/// Secrets that calls must have, by RPC. `Debug` shows no values.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RequiredSecrets(BTreeMap<Method, BTreeMap<String, String>>);

/// A required secret of an RPC, in the form of the flag: `CreateVolume:user=me`.
#[derive(Clone, PartialEq, Eq)]
pub struct RequiredSecret {
    method: Method,
    key: String,
    value: String,
}

/// A malformed required secret. The text is not shown, because it may contain the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be RPC:key=value, as in CreateVolume:user=me, for an RPC that has secrets")]
pub struct InvalidSecret;

// === impl ServiceConfig ===

impl ServiceConfig {
    /// The size of a volume's disk in bytes.
    pub(crate) fn disk_bytes(&self, volume: &Spec) -> u64 {
        if volume.capabilities.iter().all(Capability::is_block) {
            volume.capacity_bytes
        } else {
            volume.capacity_bytes.max(self.min_filesystem_bytes)
        }
    }
}

// === impl RequiredSecrets ===

impl RequiredSecrets {
    /// Validates the secrets of a call and compares them with the required ones.
    pub(crate) fn check<M: Secrets>(&self, method: Method, request: &M) -> Result<(), Error> {
        for secrets in request.secrets() {
            validate::secrets(secrets)?;
            for (key, value) in self.0.get(&method).into_iter().flatten() {
                match secrets.get(key) {
                    None => return Err(Invalid::new("secrets", format!("\"{key}\" must be set")).into()),
                    Some(other) if other != value => return Err(Error::Unauthenticated { key: key.clone() }),
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }
}

impl FromIterator<RequiredSecret> for RequiredSecrets {
    fn from_iter<I: IntoIterator<Item = RequiredSecret>>(secrets: I) -> Self {
        let mut all = Self::default();
        for RequiredSecret { method, key, value } in secrets {
            all.0.entry(method).or_default().insert(key, value);
        }
        all
    }
}

impl fmt::Debug for RequiredSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = |(method, secrets): (&Method, &BTreeMap<String, String>)| {
            (*method, secrets.keys().cloned().collect::<Vec<_>>())
        };
        f.debug_map().entries(self.0.iter().map(keys)).finish()
    }
}

// === impl RequiredSecret ===

impl FromStr for RequiredSecret {
    type Err = InvalidSecret;

    fn from_str(text: &str) -> Result<Self, InvalidSecret> {
        let (method, secret) = text.split_once(':').ok_or(InvalidSecret)?;
        let (key, value) = secret.split_once('=').ok_or(InvalidSecret)?;
        let method: Method = method.parse().map_err(|_| InvalidSecret)?;
        if key.is_empty() || !method.takes("secrets") {
            return Err(InvalidSecret);
        }
        Ok(Self {
            method,
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }
}

impl fmt::Debug for RequiredSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}=...", self.method, self.key)
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::v1::CreateVolumeRequest;
    use tonic::Code;

    use super::*;

    #[test]
    fn missing_and_wrong_secrets_have_different_codes() {
        let required: RequiredSecrets = ["CreateVolume:user=me", "CreateVolume:password=a=b"]
            .map(|text| text.parse::<RequiredSecret>().unwrap())
            .into_iter()
            .collect();
        let code = |method, brought: &[(&str, &str)]| {
            let brought = brought
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let request = CreateVolumeRequest {
                secrets: brought.collect(),
                ..Default::default()
            };
            let outcome = required.check(method, &request);
            outcome.map_err(|error| error.code())
        };
        let both = [("user", "me"), ("password", "a=b"), ("more", "too")];
        assert_eq!(code(Method::CreateVolume, &both), Ok(()));
        assert_eq!(code(Method::DeleteVolume, &[]), Ok(()));
        assert_eq!(code(Method::CreateVolume, &both[..1]), Err(Code::InvalidArgument));
        let wrong = [("user", "you"), ("password", "a=b")];
        assert_eq!(code(Method::CreateVolume, &wrong), Err(Code::Unauthenticated));
        assert!(!format!("{required:?}").contains("a=b"));
    }

    #[test]
    fn malformed_secret_is_refused_without_showing_it() {
        for text in [
            "CreateVolume",
            "CreateVolume:user",
            "Create:user=hush",
            "CreateVolume:=hush",
            "ListVolumes:user=hush",
        ] {
            let error = text.parse::<RequiredSecret>().unwrap_err().to_string();
            assert!(!error.contains("hush"), "{text}");
        }
    }
}
