//! Pods, as far as their volumes and the state of their containers go.

use jiff::Timestamp;
use serde::Deserialize;

use super::{Condition, Meta, time};

/// A Pod (v1).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(in crate::explain) struct Pod {
    pub(in crate::explain) metadata: Meta,
    pub(in crate::explain) spec: PodSpec,
    pub(in crate::explain) status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in crate::explain) struct PodSpec {
    pub(in crate::explain) node_name: String,
    pub(in crate::explain) volumes: Vec<PodVolume>,
}

/// A volume of a pod, if it is one that can be attached.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in crate::explain) struct PodVolume {
    pub(in crate::explain) name: String,
    pub(in crate::explain) persistent_volume_claim: Option<ClaimName>,
    /// The claim of a generic ephemeral volume is made for the pod and named for it.
    pub(in crate::explain) ephemeral: Option<Present>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in crate::explain) struct ClaimName {
    pub(in crate::explain) claim_name: String,
}

/// Something whose content does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub(in crate::explain) struct Present {}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in crate::explain) struct PodStatus {
    pub(in crate::explain) phase: String,
    pub(in crate::explain) conditions: Vec<Condition>,
    pub(in crate::explain) init_container_statuses: Vec<ContainerStatus>,
    pub(in crate::explain) container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(in crate::explain) struct ContainerStatus {
    pub(in crate::explain) name: String,
    pub(in crate::explain) state: ContainerState,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(in crate::explain) struct ContainerState {
    pub(in crate::explain) waiting: Option<Waiting>,
    pub(in crate::explain) running: Option<Running>,
    pub(in crate::explain) terminated: Option<Waiting>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(in crate::explain) struct Waiting {
    pub(in crate::explain) reason: String,
    pub(in crate::explain) message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in crate::explain) struct Running {
    #[serde(deserialize_with = "time")]
    pub(in crate::explain) started_at: Option<Timestamp>,
}

// === impl Pod ===

impl Pod {
    /// Names of the claims that the pod mounts, each with the pod's name for the volume.
    pub(in crate::explain) fn claims(&self) -> impl Iterator<Item = (&str, String)> {
        self.spec.volumes.iter().filter_map(|volume| {
            let claim = match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(claim), _) => claim.claim_name.clone(),
                (None, Some(_)) => format!("{}-{}", self.metadata.name, volume.name),
                (None, None) => return None,
            };
            Some((volume.name.as_str(), claim))
        })
    }

    /// Whether its containers have ended for good, so that it needs no volume any more.
    pub(in crate::explain) fn is_over(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    pub(in crate::explain) fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status
            .conditions
            .iter()
            .find(|condition| condition.kind == kind)
    }
}
