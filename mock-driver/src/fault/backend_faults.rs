//! The backend faults the array is in: which there are, and what they do together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::backend_fault::{ArrayUsage, BackendFault, BackendFaultKind, Injection, Memory};
use super::overlay::{DeviceOverlay, DiskOverlay, Freeze, ListOverlay, Loss};
use super::reservation::{self, Reservation, Reservations};
use super::rule::CallInfo;
use super::{IdConflict, Origin, none_taken};

/// The backend faults of one array.
#[derive(Debug)]
pub struct BackendFaults {
    began: Instant,
    list: Mutex<Vec<BackendFaultState>>,
    /// So that calls need no lock while all is well.
    any: AtomicBool,
    /// What calls that met the backend faults are about to take.
    claims: Arc<Mutex<Reservations>>,
    /// How the listing is frozen; shared with the store, which keeps the old state then.
    frozen: Arc<RwLock<Option<Freeze>>>,
    /// What the array is to lose at its end.
    loss: watch::Sender<Option<Loss>>,
}

/// A backend fault and how it fares.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackendFaultReport {
    /// Its id.
    pub id: String,
    /// Where it comes from.
    pub origin: Origin,
    /// Whether it is there now.
    pub enabled: bool,
    /// How many calls it stood in the way of.
    pub met: u64,
    /// As it was written.
    pub trouble: Value,
}

/// What a call has met.
#[derive(Debug, Default)]
pub struct FaultDecision {
    /// What stands in its way, and the id of the backend fault that says so.
    pub obstacle: Option<(String, Injection)>,
    /// What it is about to take: to be dropped when the array has it or the call has failed.
    pub claim: Option<Reservation>,
}

#[derive(Debug)]
struct BackendFaultState {
    trouble: BackendFault,
    origin: Origin,
    enabled: bool,
    met: u64,
    memory: Memory,
}

// === impl Backend faults ===

impl Default for BackendFaults {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            list: Mutex::default(),
            any: AtomicBool::new(false),
            claims: Arc::default(),
            frozen: Arc::default(),
            loss: watch::Sender::default(),
        }
    }
}

impl BackendFaults {
    /// Puts other backend faults in place of all those of the same origin. One that comes back unchanged goes on as
    /// it was.
    ///
    /// # Errors
    /// If an id belongs to a backend fault of another origin; nothing has changed then.
    pub fn replace(&self, origin: Origin, troubles: Vec<BackendFault>) -> Result<(), IdConflict> {
        self.change(|list, now| {
            check(list, origin, &troubles)?;
            let (mut old, others): (Vec<_>, Vec<_>) = std::mem::take(list)
                .into_iter()
                .partition(|standing| standing.origin == origin);
            *list = others;
            for trouble in troubles {
                let same = old.iter().position(|standing| standing.trouble == trouble);
                list.push(match same {
                    Some(index) => old.swap_remove(index),
                    None => BackendFaultState::new(trouble, origin, now),
                });
            }
            list.sort_by_key(|standing| standing.origin);
            Ok(())
        })
    }

    /// Puts a backend fault in place at run time, instead of the one with its id if there is one.
    ///
    /// # Errors
    /// If its id belongs to a backend fault of another origin, which would take it away with its next reload.
    pub fn put(&self, trouble: BackendFault) -> Result<(), IdConflict> {
        self.change(|list, now| {
            check(list, Origin::Admin, std::slice::from_ref(&trouble))?;
            let known = list.iter().position(|standing| standing.trouble.id == trouble.id);
            let standing = BackendFaultState::new(trouble, Origin::Admin, now);
            match known {
                Some(place) => list[place] = standing,
                None => list.insert(0, standing),
            }
            Ok(())
        })
    }

    /// Whether [`BackendFaults::replace`] would take these.
    ///
    /// # Errors
    /// If not.
    pub(super) fn check(&self, origin: Origin, troubles: &[BackendFault]) -> Result<(), IdConflict> {
        check(&self.list(), origin, troubles)
    }

    /// Ends a backend fault for good, and says whether there was one.
    pub fn remove(&self, id: &str) -> bool {
        self.change(|list, _| {
            let before = list.len();
            list.retain(|standing| standing.trouble.id != id);
            list.len() < before
        })
    }

    /// Has a backend fault begin or end, and says whether there is one.
    pub fn set_enabled(&self, id: &str, enabled: bool) -> bool {
        self.change(|list, now| {
            let found = list.iter_mut().find(|standing| standing.trouble.id == id);
            let is_there = found.is_some();
            if let Some(standing) = found.filter(|standing| standing.enabled != enabled) {
                standing.enabled = enabled;
                standing.memory = Memory::beginning(now);
            }
            is_there
        })
    }

    /// Every backend fault.
    pub fn reports(&self) -> Vec<BackendFaultReport> {
        let report = |standing: &BackendFaultState| BackendFaultReport {
            id: standing.trouble.id.clone(),
            origin: standing.origin,
            enabled: standing.enabled,
            met: standing.met,
            trouble: standing.trouble.text().clone(),
        };
        self.list().iter().map(report).collect()
    }

    /// What stands in a call's way, and the id of the backend fault that says so: a refusal before any wait, the
    /// longest wait before shorter ones. A call that is not refused has claimed what it is about to take.
    pub fn decide(
        &self,
        call: &dyn CallInfo,
        changes: bool,
        stock: &dyn Fn(&Reservations) -> ArrayUsage,
    ) -> FaultDecision {
        if !self.any.load(Ordering::Relaxed) {
            return FaultDecision::default();
        }
        let now = self.began.elapsed();
        let mut worst: Option<(String, Injection)> = None;
        let mut refused = false;
        // Held until the claim is made: of calls that come at the same time each sees those before it.
        let mut list = self.list();
        for standing in list.iter_mut().filter(|standing| standing.enabled) {
            let kind = &standing.trouble.kind;
            // The stock is looked at with the claims locked: a call gives its claim back when the array has
            // what it took, so it is always seen in one of the two.
            let claims = reservation::lock(&self.claims);
            let Some(obstacle) = kind.decide(&mut standing.memory, call, changes, &claims, stock, now) else {
                continue;
            };
            standing.met += 1;
            let is_refusal = matches!(obstacle, Injection::Refuse { .. });
            let is_worse = match (&worst, &obstacle) {
                (Some((_, Injection::Wait(other))), Injection::Wait(time)) => time > other,
                _ => true,
            };
            if is_worse {
                worst = Some((standing.trouble.id.clone(), obstacle));
            }
            if is_refusal {
                refused = true;
                break;
            }
        }
        let claim = (!refused).then(|| Reservation::of(call, &self.claims)).flatten();
        FaultDecision {
            obstacle: worst,
            claim,
        }
    }

    /// How ListVolumes answers.
    pub fn listing(&self) -> ListOverlay {
        let mut view = ListOverlay::default();
        self.each(|kind, _| match kind {
            BackendFaultKind::FrozenList(age) => {
                view.frozen.get_or_insert(*age);
            }
            BackendFaultKind::ListLacks(scope) => view.lacks.push(scope.clone()),
            BackendFaultKind::ListAdds { scope, node } => view.adds.push((scope.clone(), node.clone())),
            BackendFaultKind::DeviceAbsent(_)
            | BackendFaultKind::WrongDevice { .. }
            | BackendFaultKind::DirtyFilesystem { .. }
            | BackendFaultKind::ForeignData { .. }
            | BackendFaultKind::NodeGone(_)
            | BackendFaultKind::NodeLimit { .. }
            | BackendFaultKind::ReadOnly(_)
            | BackendFaultKind::Busy { .. }
            | BackendFaultKind::Quota { .. }
            | BackendFaultKind::SlowNode { .. }
            | BackendFaultKind::RateLimit { .. }
            | BackendFaultKind::TrackingOff(_)
            | BackendFaultKind::TokensExpired(_)
            | BackendFaultKind::StateLoss(_)
            | BackendFaultKind::NotReady(_) => {}
        });
        view
    }

    /// Which device shows up on a node for a volume: the first backend fault that speaks of it says so.
    pub fn device(&self, volume: &str, node: &str) -> DeviceOverlay {
        let mut view = DeviceOverlay::Right;
        self.each(|kind, _| {
            if view != DeviceOverlay::Right {
                return;
            }
            match kind {
                BackendFaultKind::DeviceAbsent(scope) if scope.has(volume, node) => {
                    view = DeviceOverlay::Absent
                }
                BackendFaultKind::WrongDevice { scope, device } if scope.has(volume, node) => {
                    view = DeviceOverlay::Wrong(device.clone());
                }
                BackendFaultKind::DeviceAbsent(_)
                | BackendFaultKind::WrongDevice { .. }
                | BackendFaultKind::DirtyFilesystem { .. }
                | BackendFaultKind::ForeignData { .. }
                | BackendFaultKind::FrozenList(_)
                | BackendFaultKind::ListLacks(_)
                | BackendFaultKind::ListAdds { .. }
                | BackendFaultKind::NodeGone(_)
                | BackendFaultKind::NodeLimit { .. }
                | BackendFaultKind::ReadOnly(_)
                | BackendFaultKind::Busy { .. }
                | BackendFaultKind::Quota { .. }
                | BackendFaultKind::SlowNode { .. }
                | BackendFaultKind::RateLimit { .. }
                | BackendFaultKind::TrackingOff(_)
                | BackendFaultKind::TokensExpired(_)
                | BackendFaultKind::StateLoss(_)
                | BackendFaultKind::NotReady(_) => {}
            }
        });
        view
    }

    /// What staging finds on a volume's device on a node: the first backend fault that speaks of it says so.
    pub fn disk(&self, volume: &str, node: &str) -> DiskOverlay {
        let mut found = None;
        self.each(|kind, _| {
            let says = if let BackendFaultKind::DirtyFilesystem { scope, damaged } = kind {
                let view = if *damaged {
                    DiskOverlay::Damaged
                } else {
                    DiskOverlay::Dirty
                };
                scope.has(volume, node).then_some(view)
            } else if let BackendFaultKind::ForeignData { scope, found } = kind {
                scope.has(volume, node).then_some(DiskOverlay::Foreign(found))
            } else {
                None
            };
            found = found.or(says);
        });
        found.unwrap_or(DiskOverlay::Right)
    }

    /// What the array is to have lost when it comes back, as it is at any time.
    pub(crate) fn loss(&self) -> watch::Receiver<Option<Loss>> {
        self.loss.subscribe()
    }

    /// Whether Probe says that the driver is ready.
    pub fn is_ready(&self) -> bool {
        let now = self.began.elapsed();
        let mut is_ready = true;
        self.each(|kind, since| {
            if let BackendFaultKind::NotReady(period) = kind {
                is_ready &= period.is_some_and(|period| now >= since + period);
            }
        });
        is_ready
    }

    /// Which past the listing tells of, as it is at any time; none while it tells of now.
    pub(crate) fn frozen(&self) -> Arc<RwLock<Option<Freeze>>> {
        self.frozen.clone()
    }

    fn each(&self, mut look: impl FnMut(&BackendFaultKind, Duration)) {
        if self.any.load(Ordering::Relaxed) {
            for standing in self.list().iter().filter(|standing| standing.enabled) {
                look(&standing.trouble.kind, standing.memory.since);
            }
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<BackendFaultState>, Duration) -> T) -> T {
        let now = self.began.elapsed();
        let mut list = self.list();
        let outcome = change(&mut list, now);
        let freeze = |standing: &BackendFaultState| {
            let since = standing.memory.since;
            let BackendFaultKind::FrozenList(age) = standing.trouble.kind else {
                return None;
            };
            Some(Freeze { since, age })
        };
        let freeze = list.iter().filter(|standing| standing.enabled).find_map(freeze);
        *self.frozen.write().unwrap_or_else(PoisonError::into_inner) = freeze;
        let loss = |standing: &BackendFaultState| {
            let since = standing.memory.since;
            let BackendFaultKind::StateLoss(loses) = standing.trouble.kind else {
                return None;
            };
            Some(Loss { since, loses })
        };
        let loss = list.iter().filter(|standing| standing.enabled).find_map(loss);
        self.loss
            .send_if_modified(|old| std::mem::replace(old, loss) != loss);
        self.any
            .store(list.iter().any(|standing| standing.enabled), Ordering::Relaxed);
        outcome
    }

    fn list(&self) -> MutexGuard<'_, Vec<BackendFaultState>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Standing ===

impl BackendFaultState {
    fn new(trouble: BackendFault, origin: Origin, now: Duration) -> Self {
        Self {
            enabled: trouble.enabled,
            trouble,
            origin,
            met: 0,
            memory: Memory::beginning(now),
        }
    }
}

/// Checks that no id of backend faults of an origin belongs to a backend fault of another one.
fn check(there: &[BackendFaultState], origin: Origin, troubles: &[BackendFault]) -> Result<(), IdConflict> {
    let there = there
        .iter()
        .map(|standing| (&*standing.trouble.id, standing.origin));
    none_taken("trouble", there, origin, |id| {
        troubles.iter().any(|trouble| trouble.id == id)
    })
}
