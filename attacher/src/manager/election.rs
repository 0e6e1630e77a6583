//! Starts and stops this replica's leader election.

use std::sync::Mutex;

use tokio_util::sync::CancellationToken;

use super::{Error, Service, Task, Tasks};
use crate::controller::state::ControllerState;
use crate::kube_api::ApiLease;
use crate::kube_api::events::{self, Reason, Recorder};
use crate::leader_election::{self, Change, LeaderElector, Leadership, LeaseMeta, Settings, Timings};
use crate::model::{Driver, PublishTarget};

impl Service {
    /// Starts the elector, over a connection of its own. Its task ends when the lease is released after `stop`.
    pub(super) fn spawn_election(
        &self,
        tasks: &mut Tasks,
        driver: &Driver,
        recorder: Recorder,
        stop: CancellationToken,
    ) -> Result<Leadership, Error> {
        let (election, pod) = (&self.args.election, &self.pod);
        let lease_meta = LeaseMeta::of(
            &driver.name,
            election.namespace.as_deref(),
            pod.namespace.as_deref(),
        );
        let identity = leader_election::identity(&pod.host_name)?;
        tracing::info!(lease = %lease_meta, identity, "attempting to acquire leader lease");
        let settings = Settings {
            lease_meta: lease_meta.clone(),
            identity: identity.clone(),
            labels: election.labels(),
            timings: Timings {
                lease_duration: election.lease_duration,
                renew_deadline: election.renew_deadline,
                retry_period: election.retry_period,
            },
        };
        let server = ApiLease::new(
            self.clients.access.clone(),
            lease_meta.clone(),
            self.view.requests.clone(),
        );
        let (elector, leadership) = LeaderElector::new(server, settings, pod.clock, fastrand::u64(..));
        let elector = elector.with_callback(move |change, lease| {
            let uid = lease.metadata.uid.as_deref().unwrap_or_default();
            let lease = events::lease(&lease_meta.namespace, &lease_meta.name, uid);
            // client-go's texts.
            let message = match change {
                Change::StartedLeading => format!("{identity} became leader"),
                Change::StoppedLeading => format!("{identity} stopped leading"),
            };
            recorder.report(lease, Reason::LeaderElection, None, message);
        });
        tasks.spawn(Task::Election, async move { Ok(elector.run(stop).await?) });
        self.view.election_begins(leadership.clone());
        Ok(leadership)
    }
}

/// Releases the lease after the last sync, so that another replica can become leader.
///
/// The lease is not released if syncs were cancelled: the driver may still execute their calls and the API
/// server their writes, while another replica would call for the same volumes. So that replica waits for the
/// lease's expiry, as after a crash. `--timeout` bounds the calls.
pub(super) async fn end(
    tasks: &mut Tasks,
    stop: &CancellationToken,
    state: &Mutex<ControllerState>,
) -> Result<(), Error> {
    if !tasks.contains(Task::Election) {
        return Ok(());
    }
    // After a panic with the state locked, its content is unreliable.
    let drained = state.lock().ok().filter(|state| state.is_drained());
    // They stay in the state: this process may continue them in its next term.
    let orphans = drained.map(|state| state.orphans());
    if let Some(orphans) = orphans {
        for orphan in orphans {
            let PublishTarget { volume_id, node_id } = &orphan.target;
            let va = &orphan.attachment.name;
            tracing::warn!(%volume_id, %node_id, %va, "the volume may stay published; no other process knows that");
        }
        stop.cancel();
        return tasks.join(Task::Election).await;
    }
    tracing::warn!(
        "not releasing the lease: the driver may still execute calls that were cut off; the lease expires by itself"
    );
    tasks.stop(Task::Election).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::abandon;
    use super::*;
    use crate::controller::state::tests::mk_state;
    use crate::controller::state::{Event, Item, lock};
    use crate::informer::Change;
    use crate::manager::tests::lose_lease;
    use crate::plan::tests::{mk_attachment, mk_node, mk_volume};
    use crate::plan::{Orphan, Subject};

    /// A state with an attach that has not begun.
    fn mk_enqueued() -> ControllerState {
        let mut state = mk_state(1);
        state.handle(Event::Volumes(Change::Applied(mk_volume("pv"))));
        state.handle(Event::Nodes(Change::Applied(mk_node("node", Some("id")))));
        state.handle(Event::Attachments(Change::Applied(mk_attachment("va"))));
        state
    }

    fn mk_orphan() -> Orphan {
        Orphan {
            target: PublishTarget {
                volume_id: "handle".into(),
                node_id: "id".into(),
            },
            secret: None,
            migrated: false,
            attachment: Arc::new(mk_attachment("gone")),
        }
    }

    #[tokio::test]
    async fn reports_a_lease_lost_while_the_controller_ended() {
        let (mut tasks, stop) = (Tasks::default(), CancellationToken::new());
        lose_lease(&mut tasks).await;
        let abandoned = abandon(&mut tasks, &stop, &Mutex::new(mk_enqueued())).await;
        assert!(
            matches!(abandoned, Err(Error::StoppedLeading(_))),
            "{abandoned:?}"
        );
    }

    /// Only this process knows them, and its next term continues them.
    #[tokio::test]
    async fn orphans_outlive_a_term_without_a_driver() {
        let (mut tasks, stop, state) = (
            Tasks::default(),
            CancellationToken::new(),
            Mutex::new(mk_state(1)),
        );
        lock(&state).add_orphan(mk_orphan());
        let stopped = stop.clone();
        tasks.spawn(Task::Election, async move {
            stopped.cancelled().await;
            Ok(())
        });
        assert!(abandon(&mut tasks, &stop, &state).await.is_ok());
        let kept = lock(&state).orphans();
        assert_eq!(kept, [Arc::new(mk_orphan())]);
        let mut next_term = mk_state(2);
        next_term.resume_orphan(&kept[0]);
        #[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
        let item = next_term.start(std::time::Instant::now());
        assert!(
            matches!(item, Some(Item::Subject(Subject::Orphan(_)))),
            "{item:?}"
        );
    }

    #[tokio::test]
    async fn releases_the_lease_unless_a_sync_was_cut_off() {
        for cut_off in [false, true] {
            let mut state = mk_enqueued();
            // Its next process cannot know it, however long this one waits.
            state.resume_orphan(&mk_orphan());
            if cut_off {
                #[expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
                let now = std::time::Instant::now();
                state.start(now).expect("an attach");
            }
            let (mut tasks, stop) = (Tasks::default(), CancellationToken::new());
            let released = Arc::new(AtomicBool::new(false));
            let (stopped, releases) = (stop.clone(), released.clone());
            tasks.spawn(Task::Election, async move {
                stopped.cancelled().await;
                releases.store(true, Ordering::Relaxed);
                Ok(())
            });
            let state = Mutex::new(state);
            assert!(end(&mut tasks, &stop, &state).await.is_ok());
            assert!(!tasks.contains(Task::Election), "no task renews it");
            assert_eq!(released.load(Ordering::Relaxed), !cut_off);
        }
    }
}
