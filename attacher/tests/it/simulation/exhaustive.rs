//! All histories of small scopes: every fault of every request and call, up to a bound, enumerated and not drawn.
//!
//! Scope: one volume, one VolumeAttachment (or two of one target, or the next one of the same name), and an environment that
//! changes while the volume is attached. Each history has one fault, or, in some scopes, [`FAULTS`]: a lost or late request, a lost response, a
//! stray 404 or 504, an answer of the driver (OK without effect, NOT_FOUND, INVALID_ARGUMENT, ABORTED, a deadline with and without effect),
//! or a crash before or after a request or call.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use attacher_contract::{Clause, Observation};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::world::{Bug, Choices, Environment, World};
use super::{attacher, runtime, searches_all, settles};

/// In the scopes of [`Scope::deep`]; one fault in all others.
const FAULTS: usize = 2;
/// Longer than an operation that is repeated after two faults.
const OPERATION: Duration = Duration::from_secs(1);
const ENVIRONMENTS: [Environment; 9] = [
    Environment::Same,
    Environment::NoDriver,
    Environment::NoCsiNode,
    Environment::OtherMachine,
    Environment::OtherId,
    Environment::SharedId,
    Environment::NoCapability,
    Environment::CapabilityBack,
    Environment::NoVolume,
];

/// What users do.
#[derive(Clone, Copy, Debug)]
enum Users {
    /// Attach and detach.
    Once,
    /// The pod returns during the detach: the next attachment has the same name.
    Return,
    /// Two attachments of one target, one of which is deleted.
    Twice,
}

/// A set of histories.
#[derive(Clone, Copy, Debug)]
struct Scope {
    environment: Environment,
    users: Users,
    faults: usize,
}

/// The histories of a scope, and the first one that fails.
#[derive(Default)]
struct Searched {
    histories: usize,
    failure: Option<String>,
}

// === impl Scope ===

impl Scope {
    fn all(faults: usize) -> Vec<Self> {
        let users = [Users::Once, Users::Return, Users::Twice];
        let scopes = ENVIRONMENTS.into_iter().flat_map(|environment| {
            users.map(|users| Self {
                environment,
                users,
                faults,
            })
        });
        scopes.collect()
    }

    /// Those with more faults: in one of them two node IDs need a proof, in the other one decisions end with a session. The search of the
    /// machine has all pairs of faults.
    fn deep() -> Vec<Self> {
        let environments = [Environment::OtherMachine, Environment::CapabilityBack];
        let scopes = environments.map(|environment| Self {
            environment,
            users: Users::Once,
            faults: FAULTS,
        });
        scopes.into()
    }

    /// Runs the histories until one fails.
    fn search(self, bug: Option<Bug>) -> Searched {
        let mut choices = Choices::with_faults(self.faults);
        let mut searched = Searched::default();
        loop {
            searched.histories += 1;
            let (next, result) = runtime().block_on(self.history(choices, bug));
            if let Err(failure) = result {
                searched.failure = Some(format!("{self:?}, {next:?}: {failure}"));
                return searched;
            }
            choices = next;
            if !choices.advance() {
                return searched;
            }
        }
    }

    async fn history(self, choices: Choices, bug: Option<Bug>) -> (Choices, Result<(), String>) {
        let world = World::with_choices(choices.clone(), bug);
        let process = restarted(&world);
        let script = async {
            world.attach_all(1);
            if matches!(self.users, Users::Twice) {
                world.attach_second();
            }
            sleep(OPERATION).await;
            world.change(self.environment);
            sleep(OPERATION / 10).await;
            world.detach_one();
            match self.users {
                Users::Return => {
                    world.gone_within(OPERATION).await;
                    world.attach_all(1);
                    sleep(OPERATION).await;
                }
                Users::Once | Users::Twice => sleep(OPERATION).await,
            }
        };
        let made = async {
            script.await;
            let choices = world.take_choices();
            world.heal(true);
            choices
        };
        let choices = tokio::select! {
            biased;
            () = process => unreachable!("the process never ends"),
            made = made => made.unwrap_or(choices),
        };
        let verdict = async {
            world.verify()?;
            let process = attacher(&world, 0, CancellationToken::new());
            world.attacher_died();
            settles(&world, process, Observation::Settled, world.reattached()).await?;
            world.attacher_died();
            world.delete_everything();
            let process = attacher(&world, 1, CancellationToken::new());
            settles(&world, process, Observation::CleanedUp, world.settled()).await?;
            world.verify()
        };
        let verdict = verdict.await;
        (
            choices,
            verdict.map_err(|failure| format!("{failure}\n{}", world.timeline())),
        )
    }
}

/// The attacher, which is started again whenever a choice kills it.
async fn restarted(world: &World) {
    loop {
        tokio::select! {
            biased;
            () = world.crashed() => world.attacher_died(),
            () = attacher(world, 0, CancellationToken::new()) => unreachable!("the test does not stop it"),
        }
    }
}

/// Searches the scopes on all processors, until a history fails.
fn search(scopes: &[Scope]) -> Searched {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let next = AtomicUsize::new(0);
    let searcher = || {
        let mut sum = Searched::default();
        while let Some(scope) = scopes.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Searched { histories, failure } = scope.search(None);
            sum.histories += histories;
            if failure.is_some() {
                next.store(scopes.len(), Ordering::Relaxed);
                sum.failure = failure;
                break;
            }
        }
        sum
    };
    let mut sum = Searched::default();
    std::thread::scope(|scope| {
        let searchers: Vec<_> = (0..threads).map(|_| scope.spawn(searcher)).collect();
        for searcher in searchers {
            let found = searcher.join().expect("a searcher must not panic");
            sum.histories += found.histories;
            sum.failure = sum.failure.take().or(found.failure);
        }
    });
    sum
}

#[test]
fn every_history_of_a_small_scope_keeps_the_contract() {
    // A quick verdict leaves the deep scopes out.
    let (deep, least) = if searches_all() {
        (Scope::deep(), 5_000)
    } else {
        (Vec::new(), 1_000)
    };
    let scopes: Vec<_> = deep.into_iter().chain(Scope::all(1)).collect();
    let searched = search(&scopes);
    println!("{} histories", searched.histories);
    if let Some(failure) = searched.failure {
        panic!("history {}: {failure}", searched.histories);
    }
    assert!(searched.histories >= least, "{} histories", searched.histories);
}

/// Searches with ever more faults, in a fixed order, until a history breaks the contract, and asserts that it breaks this clause first.
#[expect(clippy::print_stdout, reason = "the number of histories is the result")]
fn is_found(bug: Bug, clause: Clause) {
    let mut histories = 0;
    let found = (0..FAULTS).flat_map(Scope::all).find_map(|scope| {
        let searched = scope.search(Some(bug));
        histories += searched.histories;
        searched.failure
    });
    let found = found.unwrap_or_else(|| panic!("{bug:?} is not found in {histories} histories"));
    let first = found.lines().next().unwrap_or_default();
    println!("{bug:?}: {histories} histories: {first}");
    assert!(
        first.contains(&format!(": {}: ", clause.rule().name)),
        "{bug:?}: {found}"
    );
}

#[test]
fn finds_writes_without_uid() {
    is_found(Bug::WritesWithoutUid, Clause::FinalizerWithProof);
}

#[test]
fn finds_pv_finalizer_that_is_appended() {
    is_found(Bug::PvFinalizerAppended, Clause::FinalizerOnce);
}

#[test]
fn finds_unpublish_of_the_present_node_id() {
    is_found(Bug::PresentNodeId, Clause::FinalizerWithProof);
}

#[test]
fn finds_not_found_as_proof() {
    is_found(Bug::NotFoundIsProof, Clause::FinalizerWithProof);
}

#[test]
fn finds_lost_capability_as_proof() {
    is_found(Bug::CapabilityIsProof, Clause::FinalizerWithProof);
}
