//! After the trials: were the rights of `deploy/` what the attachers needed, no less and no more?

use anyhow::{Result, ensure};
use csi_e2e::cluster::Cluster;
use csi_e2e::control_plane::Request;
use csi_e2e::rights::{complaints, is_refused_on_purpose, used};
use csi_e2e::scenario::test_env::ACCOUNT;

/// Compares rights granted with rights used, by the API server's own account of who asked for what.
///
/// The Go attacher acts under the same rights and must not want others, so that there is a way back to it. What
/// was not used is only wrong if every scenario that may use it ran.
///
/// # Errors
/// One line for each right that is wrong.
pub(crate) fn verify(cluster: &Cluster, everything_played: bool) -> Result<()> {
    let Some(mut requests) = cluster.audited_requests()? else {
        return Ok(());
    };
    requests.retain(|request| request.account == ACCOUNT);
    let granted = cluster.granted()?;
    let mut wrong = complaints(&granted, &used(&requests, is_ours), everything_played);
    let go = complaints(&granted, &used(&requests, |request| !is_ours(request)), false);
    wrong.extend(
        go.into_iter()
            .map(|complaint| format!("the Go attacher: {complaint}")),
    );
    let refused = requests
        .iter()
        .filter(|request| request.forbidden && !is_refused_on_purpose(request));
    wrong.extend(refused.map(|request| {
        let Request {
            user_agent,
            verb,
            resource,
            namespace,
            ..
        } = request;
        format!("{verb} {resource} was refused to {user_agent} of namespace {namespace}")
    }));
    ensure!(
        wrong.is_empty(),
        "the rights in deploy/ are wrong:\n{}",
        wrong.join("\n")
    );
    Ok(())
}

/// Both call themselves csi-attacher, for the sake of managedFields.
fn is_ours(request: &Request) -> bool {
    request.user_agent.ends_with("(rust)")
}
