//! Results of operations, and the steps that their events name.

use super::mount_spec::MountSpec;
use super::volume_manager::Outcome;

/// The result of an operation, and the event for the pod.
#[derive(Debug)]
pub(crate) struct Finished {
    pub outcome: Outcome,
    /// Reason and message of a Warning event.
    pub event: Option<(&'static str, String)>,
}

/// A step of mounting a filesystem volume, or of mapping a block volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    NodeAffinity,
    WaitForAttach,
    /// NodeStageVolume.
    MountDevice,
    /// NodePublishVolume.
    SetUp,
}

// === impl Finished ===

impl Finished {
    pub(super) fn new(outcome: Outcome) -> Self {
        Self { outcome, event: None }
    }

    pub(super) fn failed(outcome: Outcome, step: Step, spec: &MountSpec, error: &str) -> Self {
        let message = format!(
            "{} failed for volume {:?} : {error}",
            step.name(spec.block),
            spec.name
        );
        Self {
            outcome,
            event: Some((step.reason(spec.block), message)),
        }
    }
}

// === impl Step ===

impl Step {
    /// Upstream's name of the step, which differs for block volumes.
    fn name(self, block: bool) -> &'static str {
        match (self, block) {
            (Self::NodeAffinity, false) => "MountVolume.NodeAffinity check",
            (Self::NodeAffinity, true) => "MapVolume.NodeAffinity check",
            (Self::WaitForAttach, false) => "MountVolume.WaitForAttach",
            (Self::WaitForAttach, true) => "MapVolume.WaitForAttach",
            (Self::MountDevice, false) => "MountVolume.MountDevice",
            (Self::MountDevice, true) => "MapVolume.SetUpDevice",
            (Self::SetUp, false) => "MountVolume.SetUp",
            (Self::SetUp, true) => "MapVolume.MapPodDevice",
        }
    }

    fn reason(self, block: bool) -> &'static str {
        match (self, block) {
            (Self::NodeAffinity, _) | (_, false) => "FailedMount",
            (_, true) => "FailedMapVolume",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mount_spec::tests::mk_spec;
    use super::*;

    #[test]
    fn events_of_block_volumes_have_their_own_steps_and_reason() {
        let cases = [
            (
                Step::NodeAffinity,
                false,
                "FailedMount",
                "MountVolume.NodeAffinity check",
            ),
            (
                Step::NodeAffinity,
                true,
                "FailedMount",
                "MapVolume.NodeAffinity check",
            ),
            (
                Step::WaitForAttach,
                false,
                "FailedMount",
                "MountVolume.WaitForAttach",
            ),
            (
                Step::WaitForAttach,
                true,
                "FailedMapVolume",
                "MapVolume.WaitForAttach",
            ),
            (Step::MountDevice, false, "FailedMount", "MountVolume.MountDevice"),
            (
                Step::MountDevice,
                true,
                "FailedMapVolume",
                "MapVolume.SetUpDevice",
            ),
            (Step::SetUp, false, "FailedMount", "MountVolume.SetUp"),
            (Step::SetUp, true, "FailedMapVolume", "MapVolume.MapPodDevice"),
        ];
        for (step, block, reason, name) in cases {
            let spec = MountSpec { block, ..mk_spec() };
            let finished = Finished::failed(Outcome::Failed, step, &spec, "why");
            let message = format!("{name} failed for volume \"pv\" : why");
            assert_eq!(finished.event, Some((reason, message)));
        }
    }
}
