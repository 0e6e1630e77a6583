//! Registration of the node's driver, and periodic updates of its attach limit: upstream's `csiNodeUpdater`.

use std::time::Duration;

use futures::FutureExt;
use futures::stream::{self, BoxStream, StreamExt};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::time::{Instant, sleep};

use super::csi_mounter::CsiMounter;
use super::{Kubelet, REGISTRATION_RETRY, Report};
use crate::informer::WatchBackoff;

/// Updates of the attach limit of the registered driver.
pub(super) struct CsiNodeUpdater {
    /// Watch of the driver's CSIDriver.
    pub(super) drivers: BoxStream<'static, watcher::Result<Event<CSIDriver>>>,
    /// `nodeAllocatableUpdatePeriodSeconds`.
    period: Option<Duration>,
    /// The period in the list that is in progress, between `Init` and `InitDone`.
    listed: Option<Duration>,
    /// Time of the next update.
    pub(super) due: Option<Instant>,
}

// === impl CsiNodeUpdater ===

impl CsiNodeUpdater {
    pub(super) fn new() -> Self {
        Self {
            drivers: stream::pending().boxed(),
            period: None,
            listed: None,
            due: None,
        }
    }

    fn set_period(&mut self, period: Option<Duration>) {
        if period != self.period {
            self.period = period;
            self.due = period.map(|period| Instant::now() + period);
        }
    }
}

// === impl Kubelet ===

impl Kubelet {
    pub(super) fn register_driver(&mut self) {
        let Some(driver) = self.config.driver.clone() else {
            return;
        };
        let (registration, node) = (self.registration.clone(), self.registered_node.clone());
        self.running.push(
            async move {
                loop {
                    match registration.install_driver(&node, &driver).await {
                        Ok(name) => return Report::DriverRegistered(name),
                        Err(error) => {
                            tracing::debug!(node = registration.name, %error, "driver was not registered");
                        }
                    }
                    sleep(REGISTRATION_RETRY).await;
                }
            }
            .boxed(),
        );
    }

    pub(super) fn driver_registered(&mut self, name: String) {
        let drivers = Api::<CSIDriver>::all(self.config.client.clone());
        let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
        self.updater = CsiNodeUpdater {
            drivers: watcher(drivers, only).backoff(WatchBackoff::default()).boxed(),
            ..CsiNodeUpdater::new()
        };
        let driver = self.config.driver.clone().map(|driver| (name, driver));
        self.mounter = CsiMounter::new(
            self.config.client.clone(),
            &self.config.name,
            driver,
            self.config.disk.clone(),
        );
    }

    pub(super) fn driver_event(&mut self, event: watcher::Result<Event<CSIDriver>>) {
        match event {
            Ok(Event::Init) => self.updater.listed = None,
            Ok(Event::InitApply(driver)) => {
                self.update_attachability(&driver);
                self.updater.listed = update_period(&driver);
            }
            Ok(Event::InitDone) => self.updater.set_period(self.updater.listed),
            Ok(Event::Apply(driver)) => {
                self.update_attachability(&driver);
                self.updater.set_period(update_period(&driver));
            }
            Ok(Event::Delete(_)) => self.updater.set_period(None),
            Err(error) => tracing::debug!(node = self.config.name, %error, "watch of the CSIDriver failed"),
        }
    }

    /// As upstream's populator: volumes may become non-attachable, and not the reverse.
    fn update_attachability(&mut self, driver: &CSIDriver) {
        if driver.spec.attach_required == Some(false) {
            let name = driver.metadata.name.as_deref().unwrap_or_default();
            self.volumes.mark_not_attachable(name);
        }
    }

    /// Updates the attach limit if that is due.
    pub(super) fn update_driver_if_due(&mut self, now: Instant) {
        if self.updater.due.is_some_and(|due| now >= due) {
            self.updater.due = self.updater.period.map(|period| now + period);
            self.update_driver();
        }
    }

    /// Writes the driver's attach limit into CSINode. As upstream, only the next update retries it.
    pub(super) fn update_driver(&mut self) {
        let Some(driver) = self.config.driver.clone() else {
            return;
        };
        let (registration, node) = (self.registration.clone(), self.registered_node.clone());
        self.running.push(
            async move {
                if let Err(error) = registration.update_driver(&node, &driver).await {
                    tracing::debug!(node = registration.name, %error, "CSINode was not updated");
                }
                Report::Nothing
            }
            .boxed(),
        );
    }
}

// === functions ===

fn update_period(driver: &CSIDriver) -> Option<Duration> {
    let seconds = u64::try_from(driver.spec.node_allocatable_update_period_seconds?).ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds))
}
