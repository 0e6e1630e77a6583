//! At most one operation per volume, with exponential backoff: upstream's `nestedpendingoperations`.
//!
//! An operation is keyed by volume, pod and node; an empty pod or node matches any. The time is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Delay before the first retry.
const INITIAL_DURATION_BEFORE_RETRY: Duration = Duration::from_millis(500);
/// Maximum delay: two minutes and two seconds, just above the timeout of a CSI call.
const MAX_DURATION_BEFORE_RETRY: Duration = Duration::from_secs(122);

/// Key of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OperationKey {
    pub volume: String,
    /// UID of the pod; empty for any.
    pub pod: String,
    /// Name of the node; empty for any.
    pub node: String,
}

/// The reason that an operation was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotStarted {
    AlreadyExists,
    Backoff,
}

/// The running operations, and the failed ones in backoff.
#[derive(Debug, Default)]
pub(crate) struct NestedPendingOperations {
    by_volume: BTreeMap<String, Vec<Operation>>,
}

#[derive(Debug)]
struct Operation {
    key: OperationKey,
    name: &'static str,
    pending: bool,
    backoff: Backoff,
}

#[derive(Clone, Copy, Debug, Default)]
struct Backoff {
    failed_at: Option<Instant>,
    before_retry: Duration,
}

// === impl OperationKey ===

impl OperationKey {
    /// Any operation on the volume.
    pub(crate) fn of_volume(volume: &str) -> Self {
        Self {
            volume: volume.to_owned(),
            pod: String::new(),
            node: String::new(),
        }
    }

    /// Operations on the volume on one node.
    pub(crate) fn on_node(volume: &str, node: &str) -> Self {
        Self {
            node: node.to_owned(),
            ..Self::of_volume(volume)
        }
    }

    /// Operations on the volume for one pod.
    pub(crate) fn for_pod(volume: &str, pod: &str) -> Self {
        Self {
            pod: pod.to_owned(),
            ..Self::of_volume(volume)
        }
    }

    /// Whether the key matches one of the same volume with this pod and node.
    fn matches(&self, pod: &str, node: &str) -> bool {
        let same_or_any = |a: &str, b: &str| a.is_empty() || b.is_empty() || a == b;
        same_or_any(&self.pod, pod) && same_or_any(&self.node, node)
    }
}

// === impl NestedPendingOperations ===

impl NestedPendingOperations {
    /// Whether an operation is running that excludes another one on the volume, for the pod and on the node.
    pub(crate) fn is_operation_pending(&self, volume: &str, pod: &str, node: &str) -> bool {
        let mut operations = self.by_volume.get(volume).into_iter().flatten();
        operations.any(|operation| operation.pending && operation.key.matches(pod, node))
    }

    /// Whether `name` could be started: no operation is running for the key, and its own backoff has expired.
    pub(crate) fn is_operation_safe_to_retry(
        &self,
        volume: &str,
        pod: &str,
        node: &str,
        name: &'static str,
        now: Instant,
    ) -> bool {
        let operations = self.by_volume.get(volume).map(Vec::as_slice).unwrap_or_default();
        position(operations, pod, node).is_none_or(|index| {
            let operation = &operations[index];
            !operation.pending && (operation.name != name || operation.backoff.is_over(now))
        })
    }

    /// Marks an operation as running.
    pub(crate) fn start(
        &mut self,
        key: &OperationKey,
        name: &'static str,
        now: Instant,
    ) -> Result<(), NotStarted> {
        let operations = self.by_volume.entry(key.volume.clone()).or_default();
        let Some(index) = position(operations, &key.pod, &key.node) else {
            operations.push(Operation {
                key: key.clone(),
                name,
                pending: true,
                backoff: Backoff::default(),
            });
            return Ok(());
        };
        let operation = &mut operations[index];
        if operation.pending {
            return Err(NotStarted::AlreadyExists);
        }
        // As upstream, another operation takes the name and resets the backoff only while the backoff runs.
        if !operation.backoff.is_over(now) {
            if operation.name == name {
                return Err(NotStarted::Backoff);
            }
            operation.name = name;
            operation.backoff = Backoff::default();
        }
        operation.key = key.clone();
        operation.pending = true;
        Ok(())
    }

    /// The operation ended; a failed one is kept until its backoff expires.
    pub(crate) fn finish(&mut self, key: &OperationKey, succeeded: bool, now: Instant) {
        let Some(operations) = self.by_volume.get_mut(&key.volume) else {
            return;
        };
        if succeeded {
            operations.retain(|operation| !(operation.pending && operation.key == *key));
            if operations.is_empty() {
                self.by_volume.remove(&key.volume);
            }
            return;
        }
        for operation in operations {
            if operation.pending && operation.key == *key {
                operation.pending = false;
                operation.backoff.update(now);
                tracing::debug!(
                    volume = key.volume,
                    operation = operation.name,
                    "Operation failed. No retries permitted yet (durationBeforeRetry {:?})",
                    operation.backoff.before_retry
                );
            }
        }
    }

    /// Resets the backoff of a failed operation of this name.
    pub(crate) fn forget_backoff(&mut self, key: &OperationKey, name: &'static str) {
        if let Some(operations) = self.by_volume.get_mut(&key.volume) {
            operations
                .retain(|operation| operation.pending || operation.key != *key || operation.name != name);
        }
    }

    /// The operation must wait: it may be started again after the initial delay, without exponential growth.
    pub(crate) fn finish_without_backoff_growth(&mut self, key: &OperationKey, now: Instant) {
        for operation in self.by_volume.get_mut(&key.volume).into_iter().flatten() {
            if operation.pending && operation.key == *key {
                operation.pending = false;
                operation.backoff = Backoff::default();
                operation.backoff.update(now);
            }
        }
    }

    /// When the next backoff expires.
    pub(crate) fn next_retry(&self, now: Instant) -> Option<Instant> {
        self.by_volume
            .values()
            .flatten()
            .filter(|operation| !operation.pending)
            .filter_map(|operation| operation.backoff.ends_at())
            .filter(|end| *end > now)
            .min()
    }
}

/// As upstream, a matching pending operation takes precedence over a failed one.
fn position(operations: &[Operation], pod: &str, node: &str) -> Option<usize> {
    let matching = |pending: bool| {
        operations
            .iter()
            .position(|operation| operation.pending == pending && operation.key.matches(pod, node))
    };
    matching(true)
        .or_else(|| {
            let same = |operation: &Operation| operation.key.pod == pod && operation.key.node == node;
            operations.iter().position(same)
        })
        .or_else(|| matching(false))
}

// === impl Backoff ===

impl Backoff {
    fn update(&mut self, now: Instant) {
        self.before_retry = if self.before_retry.is_zero() {
            INITIAL_DURATION_BEFORE_RETRY
        } else {
            (self.before_retry * 2).min(MAX_DURATION_BEFORE_RETRY)
        };
        self.failed_at = Some(now);
    }

    fn ends_at(&self) -> Option<Instant> {
        self.failed_at.map(|failed| failed + self.before_retry)
    }

    fn is_over(&self, now: Instant) -> bool {
        self.ends_at().is_none_or(|end| now >= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACH: &str = "volume_attach";
    const DETACH: &str = "volume_detach";

    #[test]
    fn second_operation_on_a_volume_is_refused_while_one_runs() {
        let now = Instant::now();
        let cases = [
            (
                OperationKey::of_volume("v"),
                OperationKey::on_node("v", "a"),
                true,
            ),
            (
                OperationKey::on_node("v", "a"),
                OperationKey::of_volume("v"),
                true,
            ),
            (
                OperationKey::on_node("v", "a"),
                OperationKey::on_node("v", "b"),
                false,
            ),
            (
                OperationKey::for_pod("v", "p"),
                OperationKey::for_pod("v", "q"),
                false,
            ),
            (
                OperationKey::for_pod("v", "p"),
                OperationKey::of_volume("v"),
                true,
            ),
            (OperationKey::of_volume("v"), OperationKey::of_volume("w"), false),
        ];
        for (running, next, refused) in cases {
            let mut operations = NestedPendingOperations::default();
            operations.start(&running, ATTACH, now).unwrap();
            assert_eq!(
                operations.is_operation_pending(&next.volume, &next.pod, &next.node),
                refused,
                "{running:?} {next:?}"
            );
            let expected = if refused {
                Err(NotStarted::AlreadyExists)
            } else {
                Ok(())
            };
            assert_eq!(operations.start(&next, DETACH, now), expected);
        }
    }

    #[test]
    fn backoff_doubles_to_its_limit_and_ends_with_success() {
        let mut now = Instant::now();
        let key = OperationKey::of_volume("v");
        let mut operations = NestedPendingOperations::default();
        let mut delays = Vec::new();
        for _ in 0..10 {
            operations.start(&key, ATTACH, now).unwrap();
            operations.finish(&key, false, now);
            assert_eq!(operations.start(&key, ATTACH, now), Err(NotStarted::Backoff));
            assert!(!operations.is_operation_safe_to_retry("v", "", "", ATTACH, now));
            let retry = operations.next_retry(now).unwrap();
            delays.push((retry - now).as_millis());
            now = retry;
        }
        assert_eq!(
            delays,
            [
                500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000
            ]
        );
        operations.start(&key, ATTACH, now).unwrap();
        operations.finish(&key, true, now);
        assert_eq!(operations.next_retry(now), None);
    }

    #[test]
    fn another_operation_after_the_backoff_keeps_its_growth_and_the_name() {
        let mut now = Instant::now();
        let key = OperationKey::of_volume("v");
        let mut operations = NestedPendingOperations::default();
        operations.start(&key, ATTACH, now).unwrap();
        operations.finish(&key, false, now);
        now = operations.next_retry(now).unwrap();
        operations.start(&key, DETACH, now).unwrap();
        operations.finish(&key, false, now);
        assert_eq!(
            operations.next_retry(now),
            Some(now + 2 * INITIAL_DURATION_BEFORE_RETRY)
        );
        assert_eq!(operations.start(&key, ATTACH, now), Err(NotStarted::Backoff));
        operations.start(&key, DETACH, now).unwrap();
    }

    #[test]
    fn another_operation_does_not_wait_for_the_backoff_of_the_failed_one() {
        let now = Instant::now();
        let key = OperationKey::of_volume("v");
        let mut operations = NestedPendingOperations::default();
        operations.start(&key, ATTACH, now).unwrap();
        operations.finish(&key, false, now);
        assert!(operations.is_operation_safe_to_retry("v", "", "", DETACH, now));
        operations.start(&key, DETACH, now).unwrap();
        assert!(operations.is_operation_pending(&key.volume, &key.pod, &key.node));
    }
}
