//! The environment of the process, which a simulation replaces.

use jiff::Timestamp;

use super::{Error, config};
use crate::args::Args;
use crate::csi::Socket;
use crate::kube_api::Access;
use crate::leader_election::{self, IdentityError};

/// The environment of the process.
pub struct Environment<C> {
    /// The API server.
    pub access: Access,
    /// The CSI driver.
    pub driver: C,
    /// The pod.
    pub pod: Pod,
}

/// The pod that the process runs in.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Its host name, which identifies the replica in the leader election.
    pub host_name: String,
    /// Its namespace, if the downward API gives it.
    pub namespace: Option<String>,
    /// Its wall clock, for timestamps in the API; durations follow tokio's clock.
    pub clock: fn() -> Timestamp,
}

// === impl Environment ===

impl Environment<Socket> {
    /// Those of the flags and of the machine.
    ///
    /// # Errors
    ///
    /// If the API server's configuration is unusable, or there is no identity for the leader election.
    pub(super) async fn of_process(args: &Args) -> Result<Self, Error> {
        let host_name = match leader_election::host_name() {
            Err(source) if args.election.enabled => return Err(IdentityError::Unreadable(source).into()),
            host_name => host_name.unwrap_or_default(),
        };
        Ok(Self {
            access: Access::new(&config::read(args).await?)?,
            driver: args.csi_address.clone(),
            pod: Pod {
                host_name,
                namespace: config::pod_namespace(),
                clock: Timestamp::now,
            },
        })
    }
}
