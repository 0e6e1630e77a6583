//! Taking part in the leader election.

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{Error, Task, Tasks, config};
use crate::admin::View;
use crate::args::Args;
use crate::cluster::events::{Recorder, Regarding};
use crate::lease::{self, ApiLease, Campaign, Change, Leadership, Place, Settings, Timings};
use crate::model::Driver;

/// Starts it, over a connection of its own. The task ends when the lease was given back after `stop`.
pub(super) fn spawn(
    tasks: &mut Tasks,
    args: &Args,
    api_server: kube::Config,
    driver: &Driver,
    recorder: Recorder,
    view: &View,
    stop: CancellationToken,
) -> Result<Leadership, Error> {
    let election = &args.election;
    let variable = config::pod_namespace();
    let settings = Settings {
        place: Place::of(&driver.name, election.namespace.as_deref(), variable.as_deref()),
        identity: lease::identity()?,
        labels: election.labels.clone(),
        timings: Timings {
            lease_duration: election.lease_duration,
            renew_deadline: election.renew_deadline,
            retry_period: election.retry_period,
        },
    };
    tracing::info!(lease = %settings.place, identity = settings.identity, "standing for election");
    let server = ApiLease::new(&api_server, settings.place.clone(), view.requests.clone())?;
    let (place, identity) = (settings.place.clone(), settings.identity.clone());
    let (campaign, leadership) = Campaign::new(server, settings, Timestamp::now, fastrand::u64(..));
    let campaign = campaign.telling(move |change, lease| {
        let uid = lease.metadata.uid.as_deref().unwrap_or_default();
        let lease = Regarding::lease(&place.namespace, &place.name, uid);
        // In client-go's words.
        let message = match change {
            Change::Began => format!("{identity} became leader"),
            Change::Ended => format!("{identity} stopped leading"),
        };
        recorder.leadership(lease, message);
    });
    tasks.spawn(Task::Election, async move { Ok(campaign.run(stop).await?) });
    view.election_begins(leadership.clone());
    Ok(leadership)
}
