//! The order in which a volume passes from one node to another, read from what nodes and driver did.

use anyhow::{Context, Result, ensure};

use super::Stage;
use super::stage::StageVolume;
use crate::driver::journal::Call;
use crate::node::Deed;

/// Fails unless the first node unmounted the volume, then it was unpublished there, and only then published
/// to the second node, which then mounted it.
pub(super) fn ensure_in_order(stage: &Stage<'_>, volume: &StageVolume, from: usize, to: usize) -> Result<()> {
    let (from, to) = (stage.node(from), stage.node(to));
    let entries = stage.ledger().entries();
    let deed = |node: &str, deed: Deed| {
        entries
            .iter()
            .find(|entry| entry.node == node && entry.deed == deed)
            .map(|entry| entry.at)
    };
    let handle = volume.handle.clone();
    let unmounted = deed(
        from.name(),
        Deed::Unmounted {
            handle: handle.clone(),
        },
    )
    .context("the first node never unmounted the volume")?;
    let mounted =
        deed(to.name(), Deed::Mounted { handle }).context("the second node never mounted the volume")?;

    let calls = stage.driver.calls()?;
    let call = |method: &str, node: &str| -> Result<&Call> {
        calls
            .iter()
            .find(|call| {
                call.method == method && call.volume == volume.handle && call.node == node && call.succeeded()
            })
            .with_context(|| format!("no successful {method} for node {node}"))
    };
    let unpublish = call("ControllerUnpublishVolume", from.node_id())?;
    let publish = call("ControllerPublishVolume", to.node_id())?;
    let detached = unpublish.end.as_ref().context("a successful call has an end")?.at;
    let attached = publish.end.as_ref().context("a successful call has an end")?.at;

    ensure!(
        unmounted <= unpublish.start,
        "unpublished at {} before the unmount at {unmounted}",
        unpublish.start
    );
    ensure!(
        detached <= publish.start,
        "published to the second node at {} before {detached}",
        publish.start
    );
    ensure!(
        attached <= mounted,
        "mounted at {mounted} before the publish ended at {attached}"
    );
    Ok(())
}
