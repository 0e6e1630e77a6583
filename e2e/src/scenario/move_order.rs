//! The order in which a volume passes from one node to another, read from what nodes and driver did.

use anyhow::{Context, Result, ensure};

use super::TestEnv;
use super::test_env::TestVolume;
use crate::driver::journal::{Call, PUBLISH, UNPUBLISH};

/// Fails unless the first node unmounted the volume, then it was unpublished there, and only then published
/// to the second node, which then mounted it.
pub(super) fn ensure_moved_in_order(
    env: &TestEnv<'_>,
    volume: &TestVolume,
    from: usize,
    to: usize,
) -> Result<()> {
    let (from, to) = (env.node(from), env.node(to));
    let events = env.mount_events()?;
    let mount_event = |node: &str, mounted: bool| {
        let of_volume = events.iter().filter(|event| event.volume == volume.handle);
        let mut found = of_volume.filter(|event| event.node == node && event.mounted == mounted);
        found.next().map(|event| event.at)
    };
    let unmounted = mount_event(from.name(), false).context("the first node never unmounted the volume")?;
    let mounted = mount_event(to.name(), true).context("the second node never mounted the volume")?;

    let calls = env.driver.calls()?;
    let call = |method: &str, node: &str| -> Result<&Call> {
        calls
            .iter()
            .find(|call| {
                call.method == method && call.volume == volume.handle && call.node == node && call.succeeded()
            })
            .with_context(|| format!("no successful {method} for node {node}"))
    };
    let unpublish = call(UNPUBLISH, from.node_id())?;
    let publish = call(PUBLISH, to.node_id())?;
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
