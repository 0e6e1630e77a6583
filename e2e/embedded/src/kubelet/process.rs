//! A kubelet as a task that can crash.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use futures::FutureExt as _;
use kube::Client;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use super::{Command, NodeDisk, run};
use crate::apiserver::Clock;
use crate::driver_connection::DriverConnection;
use crate::event_recorder::EventBroadcaster;
use crate::injected_bug::InjectedBug;

/// Configuration of a kubelet.
#[derive(Clone)]
pub struct KubeletConfig {
    /// A client with the permissions of a kubelet.
    pub client: Client,
    /// Clock of its timestamps.
    pub clock: Clock,
    /// Name of the Node.
    pub name: String,
    /// Labels of the Node in addition to those that kubelet sets.
    pub labels: BTreeMap<String, String>,
    /// The node's CSI driver.
    pub driver: Option<DriverConnection>,
    /// State of mounted volumes on the node's disk.
    pub disk: NodeDisk,
    /// Period in which it writes a node status that has not changed: kubelet's `nodeStatusReportFrequency`.
    pub node_status_report_frequency: Duration,
    /// A bug to inject.
    pub injected_bug: Option<InjectedBug>,
}

/// A running kubelet. Dropping it simulates a crash: it unmounts and reports nothing any more.
#[derive(Debug)]
pub struct KubeletProcess {
    commands: UnboundedSender<Command>,
    task: JoinSet<()>,
}

// === impl KubeletProcess ===

impl KubeletProcess {
    /// Starts a kubelet. Must be called in a tokio runtime. A panic sets `panicked`, also if nothing stops the kubelet.
    pub fn start(config: KubeletConfig, panicked: &watch::Sender<bool>) -> Self {
        let panicked = panicked.clone();
        let (commands, requests) = mpsc::unbounded_channel();
        let events = EventBroadcaster::new(config.client.clone(), config.clock.clone());
        let recorder = events.recorder("kubelet", &config.name);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let running = async {
                futures::join!(events.run(), run(config, recorder, requests));
            };
            if let Err(panic) = AssertUnwindSafe(running).catch_unwind().await {
                panicked.send_replace(true);
                resume_unwind(panic);
            }
        });
        Self { commands, task }
    }

    /// Makes kubelet call NodeGetInfo again, as after a restart of the driver.
    pub fn register_driver(&self) {
        self.send(Command::RegisterDriver);
    }

    /// Makes the containers of a running pod exit with this code.
    pub fn exit_containers(&self, pod_uid: &str, code: i32) {
        self.send(Command::ExitContainers(pod_uid.to_owned(), code));
    }

    fn send(&self, command: Command) {
        if self.commands.send(command).is_err() {
            tracing::debug!("kubelet panicked; `stop` reports it");
        }
    }

    /// Stops the kubelet without a shutdown, simulating a crash.
    ///
    /// # Errors
    /// It panicked.
    pub async fn stop(mut self) -> Result<(), JoinError> {
        self.task.abort_all();
        while let Some(ended) = self.task.join_next().await {
            if let Err(error) = ended
                && error.is_panic()
            {
                return Err(error);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::path::Path;

    use http::{Request, Response};
    use kube::client::Body;
    use tower::service_fn;

    use super::*;

    /// A crash of the node, which drops the process, must not hide an earlier panic.
    #[tokio::test]
    async fn panic_is_reported_without_stop() {
        let client =
            service_fn(async |_: Request<Body>| -> Result<Response<Body>, Infallible> { panic!("injected") });
        let config = KubeletConfig {
            client: Client::new(client, "default"),
            clock: Clock::system(),
            name: "a".to_owned(),
            labels: BTreeMap::new(),
            driver: None,
            disk: NodeDisk::in_memory(Path::new("/var/lib/kubelet")),
            node_status_report_frequency: Duration::from_secs(60),
            injected_bug: None,
        };
        let panicked = watch::Sender::new(false);
        let kubelet = KubeletProcess::start(config, &panicked);
        let mut reported = panicked.subscribe();
        let reported = reported.wait_for(|panicked| *panicked);
        let reported = tokio::time::timeout(Duration::from_secs(10), reported).await;
        assert!(reported.is_ok(), "the panic was not reported");
        drop(kubelet);
    }
}
