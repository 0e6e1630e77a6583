//! The observations of one case, in the order in which they happen.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use attacher_contract::observation::Method;
use attacher_contract::{Contract, Observation, Settings};
use csi_mock_driver::array::Array;
use csi_mock_driver::driver::Driver;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::mutex::lock;
use crate::observe;

/// The observer of a case. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Observer {
    contract: Arc<Mutex<Contract>>,
    count: Arc<watch::Sender<usize>>,
    began: Instant,
    pub(super) start: Timestamp,
}

// === impl Observer ===

impl Observer {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            contract: Arc::new(Mutex::new(Contract::new(settings))),
            count: Arc::new(watch::Sender::new(0)),
            began: Instant::now(),
            start: Timestamp::now(),
        }
    }

    pub(super) fn observe(&self, seen: Observation) {
        self.add(|_| vec![seen]);
    }

    /// Observes what the array has published and unpublished.
    pub(super) fn observe_array(&self, driver: &Driver) {
        let changes = |array: &Array, contract: &Contract| observe::array_changes(array, contract.world());
        self.add(|contract| driver.store.peek(|array| changes(array, contract)));
    }

    fn add(&self, seen: impl FnOnce(&Contract) -> Vec<Observation>) {
        // The time under the lock, so that it never decreases.
        let mut contract = self.contract();
        for seen in seen(&contract) {
            contract.observe(self.began.elapsed(), seen);
        }
        // A waiter holds the count while it reads the contract.
        drop(contract);
        self.count.send_modify(|count| *count += 1);
    }

    /// Observes that the attacher had enough time, once nothing breaks the contract then, or after this time.
    pub(super) async fn observe_in_time(&self, seen: Observation, within: Duration) {
        let is_fine = |contract: &Contract| contract.preview(self.began.elapsed(), &seen).is_empty();
        self.wait(within, is_fine).await;
        self.observe(seen);
    }

    pub(super) fn contract(&self) -> MutexGuard<'_, Contract> {
        lock(&self.contract)
    }

    /// Waits until a condition holds for the observations. Returns whether it does in time.
    pub(super) async fn wait(&self, within: Duration, condition: impl Fn(&Contract) -> bool) -> bool {
        let mut count = self.count.subscribe();
        let holds = count.wait_for(|_| condition(&self.contract()));
        timeout(within, holds).await.is_ok_and(|held| held.is_ok())
    }
}

// === functions ===

/// How many answers with this code the calls of a method got.
pub(super) fn answers(contract: &Contract, method: Method, code: &str) -> usize {
    let mut calls = BTreeMap::new();
    let mut count = 0;
    for (_, seen) in contract.history() {
        if let Observation::CallBegan(call) = seen {
            calls.insert(call.number, call.method);
        } else if let Observation::CallEnded(number, answer) = seen
            && &*answer.code == code
            && calls.get(number) == Some(&method)
        {
            count += 1;
        }
    }
    count
}
