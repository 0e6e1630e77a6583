//! The tasks of the process by name.

use std::collections::VecDeque;

use tokio_util::task::JoinMap;

use super::{Error, Task};

/// Running tasks, and those that ended while another one was joined.
#[derive(Default)]
pub(super) struct Tasks {
    running: JoinMap<Task, Result<(), Error>>,
    ended: VecDeque<(Task, Result<(), Error>)>,
}

// === impl Tasks ===

impl Tasks {
    pub(super) fn spawn(
        &mut self,
        task: Task,
        run: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) {
        self.running.spawn(task, run);
    }

    /// Whether this task runs, or ended without having been joined.
    pub(super) fn contains(&self, task: Task) -> bool {
        self.running.contains_key(&task) || self.ended.iter().any(|(ended, _)| *ended == task)
    }

    pub(super) async fn join_next(&mut self) -> Option<(Task, Result<(), Error>)> {
        match self.ended.pop_front() {
            Some(ended) => Some(ended),
            None => self.next_running().await,
        }
    }

    /// Waits for the end of this task; at once, if there is none. Other tasks that end meanwhile are kept for
    /// [`Tasks::join_next`] and [`Tasks::take_error`].
    pub(super) async fn join(&mut self, wanted: Task) -> Result<(), Error> {
        if let Some(position) = self.ended.iter().position(|(task, _)| *task == wanted) {
            return self.ended.remove(position).map_or(Ok(()), |(_, result)| result);
        }
        while self.running.contains_key(&wanted) {
            match self.next_running().await {
                Some((task, result)) if task == wanted => return result,
                Some(other) => self.ended.push_back(other),
                None => break,
            }
        }
        Ok(())
    }

    /// Aborts this task. An error with which it had ended before is kept.
    pub(super) async fn stop(&mut self, task: Task) {
        self.running.abort(&task);
        match self.join(task).await {
            // Aborted, or ended without error.
            Ok(()) | Err(Error::Task(_)) => {}
            Err(error) => self.ended.push_back((task, Err(error))),
        }
    }

    /// The error of a task that ended while another one was joined.
    pub(super) fn take_error(&mut self) -> Option<Error> {
        let position = self.ended.iter().position(|(_, result)| result.is_err())?;
        self.ended.remove(position)?.1.err()
    }

    pub(super) async fn shutdown(&mut self) {
        self.running.shutdown().await;
    }

    async fn next_running(&mut self) -> Option<(Task, Result<(), Error>)> {
        let (task, result) = self.running.join_next().await?;
        Some((task, result.unwrap_or(Err(Error::Task(task.name())))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader_election;

    fn lost() -> Error {
        let lost = leader_election::LeadershipLost::Unrenewed {
            lease: "ns/lease".to_owned(),
            within: std::time::Duration::from_secs(10),
            cause: "connection refused".to_owned(),
        };
        Error::StoppedLeading(lost)
    }

    /// Alerts look for the Go sidecar's text.
    #[test]
    fn lost_lease_error_starts_with_the_go_sidecars_text_and_names_the_cause() {
        let text = "Stopped leading: the lease ns/lease could not be renewed within 10s: connection refused";
        assert_eq!(crate::report::chain(&lost()), text);
    }

    #[tokio::test]
    async fn keeps_the_error_of_a_task_that_ends_while_another_is_joined() {
        let mut tasks = Tasks::default();
        tasks.spawn(Task::Election, async { Err(lost()) });
        tasks.spawn(Task::Controller, async {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            Ok(())
        });
        assert!(tasks.join(Task::Controller).await.is_ok());
        assert!(matches!(tasks.take_error(), Some(Error::StoppedLeading(_))));
        assert!(tasks.take_error().is_none());
    }

    #[tokio::test]
    async fn joins_a_task_that_ended_while_another_was_joined() {
        let mut tasks = Tasks::default();
        tasks.spawn(Task::Connection, async { Err(lost()) });
        tasks.spawn(Task::Http, async {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            Ok(())
        });
        assert!(tasks.join(Task::Http).await.is_ok());
        assert!(tasks.contains(Task::Connection));
        assert!(matches!(
            tasks.join(Task::Connection).await,
            Err(Error::StoppedLeading(_))
        ));
        assert!(!tasks.contains(Task::Connection));
    }

    #[tokio::test]
    async fn stop_keeps_the_error_of_an_ended_task() {
        let mut tasks = Tasks::default();
        tasks.spawn(Task::Controller, std::future::pending());
        tasks.stop(Task::Controller).await;
        assert!(tasks.take_error().is_none(), "it was aborted");
        tasks.spawn(Task::Controller, async { Err(lost()) });
        tokio::task::yield_now().await;
        tasks.stop(Task::Controller).await;
        assert!(matches!(tasks.take_error(), Some(Error::StoppedLeading(_))));
    }
}
