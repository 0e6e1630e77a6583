//! Calls of the elector's callback.

use std::sync::{Arc, Mutex};

use futures::stream;

use super::*;
use crate::leader_election::election_state::tests::mk_settings;

/// An API server with one Lease, which no other client writes.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Option<Lease>>>);

impl LeaseServer for Server {
    async fn get(&self) -> Result<Option<Lease>, LeaseError> {
        Ok(self.0.lock().expect("no test panics with it").clone())
    }

    async fn write(&self, lease: &Lease) -> Result<Lease, LeaseError> {
        let mut stored = self.0.lock().expect("no test panics with it");
        let version = stored.as_ref().map_or(0, |lease| {
            let version = lease.metadata.resource_version.as_deref();
            version.and_then(|version| version.parse().ok()).unwrap_or(0)
        });
        let mut lease = lease.clone();
        lease.metadata.resource_version = Some((version + 1u32).to_string());
        Ok(stored.insert(lease).clone())
    }

    fn changes(&self, _: &str) -> BoxStream<'static, Option<Lease>> {
        stream::empty().boxed()
    }

    fn address(&self) -> &'static str {
        "localhost"
    }

    fn reconnect(&mut self) {}
}

#[tokio::test(start_paused = true)]
async fn callback_is_called_once_per_leadership_change() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (elector, leadership) =
        LeaderElector::new(Server::default(), mk_settings("a"), || Timestamp::UNIX_EPOCH, 1);
    let elector = {
        let seen = seen.clone();
        elector.with_callback(move |change, _| seen.lock().expect("no test panics with it").push(change))
    };
    let stop = CancellationToken::new();
    let renews = async {
        leadership.begun().await;
        // Several renewals.
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(*seen.lock().unwrap(), [Change::StartedLeading]);
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(elector.run(stop.clone()), renews);
    assert_eq!(ended, Ok(()));
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen, [Change::StartedLeading, Change::StoppedLeading]);
}
