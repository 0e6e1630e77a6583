//! Reintroduces historical Kubernetes bugs, to test that the simulation finds them.

/// A bug of a Kubernetes release. Only simulations inject one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedBug {
    /// [kubernetes#81078]: at its start the attach/detach controller adds pods from a list that is older than the
    /// deletions it has handled, and its populator mistakes the re-created pod of the same name for the deleted one.
    ///
    /// [kubernetes#81078]: https://github.com/kubernetes/kubernetes/issues/81078
    DeletedPodStaysDesired,
    /// [kubernetes#101791]: a restarted kubelet that fails to reconstruct a mounted volume reports it as not in use.
    ///
    /// [kubernetes#101791]: https://github.com/kubernetes/kubernetes/issues/101791
    FailedReconstruction,
    /// [kubernetes#106710]: the attach/detach controller detaches a mounted volume after six minutes from a healthy
    /// node, too.
    ///
    /// [kubernetes#106710]: https://github.com/kubernetes/kubernetes/issues/106710
    ForcedDetachFromHealthyNode,
    /// [kubernetes#115297]: a restarted attach/detach controller that does not know yet that a plugin is migrated to CSI
    /// mistakes the VolumeAttachment for that of an in-tree volume, which no pod uses.
    ///
    /// [kubernetes#115297]: https://github.com/kubernetes/kubernetes/issues/115297
    MigratedVolumeNotRecognized,
    /// [kubernetes#120571]: a volume whose detach failed counts as attached, although the detach may still be in
    /// progress.
    ///
    /// [kubernetes#120571]: https://github.com/kubernetes/kubernetes/issues/120571
    AttachedAfterFailedDetach,
}
