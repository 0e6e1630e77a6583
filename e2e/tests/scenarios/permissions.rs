//! After the scenarios: compares the permissions of `deploy/` with those that the attachers used.

use anyhow::{Result, ensure};
use csi_e2e::cluster::Cluster;
use csi_e2e::control_plane::Request;
use csi_e2e::permissions::{is_refused_on_purpose, permission_errors, used};
use csi_e2e::scenario::test_env::ACCOUNT;

/// Compares granted and used permissions by the API server's audit log.
///
/// The Go attacher runs with the same permissions and must not need others, so that users can switch back. An unused permission
/// is an error only if all scenarios ran.
///
/// # Errors
///
/// One line for each wrong permission.
pub(crate) fn verify(cluster: &Cluster, all_scenarios_ran: bool) -> Result<()> {
    let Some(mut requests) = cluster.audited_requests()? else {
        return Ok(());
    };
    requests.retain(|request| request.account == ACCOUNT);
    let granted = cluster.granted()?;
    let mut wrong = permission_errors(&granted, &used(&requests, is_ours), all_scenarios_ran);
    let go = permission_errors(&granted, &used(&requests, |request| !is_ours(request)), false);
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
        "the permissions in deploy/ are wrong:\n{}",
        wrong.join("\n")
    );
    Ok(())
}

/// Both have the user agent csi-attacher, for managedFields.
fn is_ours(request: &Request) -> bool {
    request.user_agent.ends_with("(rust)")
}
