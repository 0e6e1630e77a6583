//! The order of unmount, unpublish, publish and mount when a volume moves to another node.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;

use super::TestEnv;
use super::test_env::TestVolume;
use crate::driver::journal::{PUBLISH, UNPUBLISH};

/// Fails unless the first node unmounted the volume, then it was unpublished there, and only then published
/// to the second node, which then mounted it.
pub(super) fn ensure_moved_in_order(
    env: &TestEnv<'_>,
    volume: &TestVolume,
    from: usize,
    to: usize,
) -> Result<()> {
    let events = env.mount_events()?;
    let mount_event = |node: &str, mounted: bool| {
        let of_volume = events.iter().filter(|event| event.volume == volume.handle);
        let mut found = of_volume.filter(|event| event.node == node && event.mounted == mounted);
        found.next().map(|event| event.at)
    };
    let unmounted =
        mount_event(env.node(from).name(), false).context("the first node never unmounted the volume")?;
    let mounted =
        mount_event(env.node(to).name(), true).context("the second node never mounted the volume")?;

    let moved = ensure_detached_before_attach(env, volume, from, to)?;
    ensure!(
        unmounted <= moved.detach_start,
        "unpublished at {} before the unmount at {unmounted}",
        moved.detach_start
    );
    ensure!(
        moved.attach_end <= mounted,
        "mounted at {mounted} before the publish ended at {}",
        moved.attach_end
    );
    Ok(())
}

/// Times of a volume's move, from the driver's journal.
pub struct Moved {
    detach_start: Timestamp,
    attach_end: Timestamp,
}

/// Fails unless the volume was unpublished from the first node before it was published to the second.
pub fn ensure_detached_before_attach(
    env: &TestEnv<'_>,
    volume: &TestVolume,
    from: usize,
    to: usize,
) -> Result<Moved> {
    let calls = env.driver.calls()?;
    let times = |method: &str, node: usize| -> Result<(Timestamp, Timestamp)> {
        let node = env.node(node).node_id();
        let mut succeeded = calls.iter().filter(|call| {
            call.method == method && call.volume == volume.handle && call.node == node && call.succeeded()
        });
        let call = succeeded
            .next()
            .with_context(|| format!("no successful {method} for node {node}"))?;
        let end = call.end.as_ref().context("a successful call has an end")?;
        Ok((call.start, end.at))
    };
    let (detach_start, detached) = times(UNPUBLISH, from)?;
    let (attach_start, attach_end) = times(PUBLISH, to)?;
    ensure!(
        detached <= attach_start,
        "published to the second node at {attach_start} before the unpublish from the first ended at {detached}"
    );
    Ok(Moved {
        detach_start,
        attach_end,
    })
}
