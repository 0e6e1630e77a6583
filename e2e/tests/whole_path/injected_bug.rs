//! Injected bugs, to test that the simulation finds them (mutation testing).

use embedded_cluster::injected_bug::InjectedBug;

/// A bug to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// In the controllers or kubelets.
    Kubernetes(InjectedBug),
    /// [kubernetes#121937], which Kubernetes has: volumes that a restarted kubelet has forgotten count as mounted.
    ///
    /// [kubernetes#121937]: https://github.com/kubernetes/kubernetes/issues/121937
    StagedVolumesCount,
}

// === impl Bug ===

impl Bug {
    pub(crate) fn of_kubernetes(self) -> Option<InjectedBug> {
        match self {
            Self::Kubernetes(bug) => Some(bug),
            Self::StagedVolumesCount => None,
        }
    }
}
