//! Flags of the journal's readers and of the admin API.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::value::{path_or_empty, switch};
use crate::admin::{BindError, Server};
use crate::admin_api::{Endpoint, InvalidEndpoint};
use crate::array::quantity;
use crate::journal;

/// Default number of ended calls that the admin API keeps; some megabytes.
const DEFAULT_JOURNAL_SIZE: usize = 10_000;

/// Flags of the journal's readers and of the admin API.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Admin API, journal and log")]
pub(crate) struct AdminArgs {
    /// Address of the admin API, the dashboard and metrics: 127.0.0.1:9810 or unix:///path/admin.sock.
    /// Default: disabled.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = listening)]
    pub(crate) admin_endpoint: Endpoint,

    /// Allow a non-loopback --admin-endpoint. The admin API has no authentication, so every client can change
    /// and destroy state.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch, value_name = "BOOL")]
    pub(crate) admin_allow_remote: bool,

    /// Host name, such as that of a Service, that the admin API accepts over TCP beside IP addresses and
    /// localhost (DNS rebinding protection). Repeatable.
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    pub(crate) admin_allowed_host: Vec<String>,

    /// File for the journal of calls, one JSON object per line. If it stalls, calls do not wait for it, and a line
    /// says how many lines are missing.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub(crate) journal: PathBuf,

    /// Size at which the journal's file becomes FILE.1, in place of the one before. 0 = unlimited.
    #[arg(long, default_value = "1Gi", value_parser = bytes, value_name = "SIZE")]
    pub(crate) journal_max_size: u64,

    /// Number of finished calls that the admin API keeps.
    #[arg(long, default_value_t = DEFAULT_JOURNAL_SIZE, value_parser = at_least_one)]
    pub(crate) journal_size: usize,

    /// Log each call as a line gRPCCall: {...}, as csi-driver-host-path does.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch, value_name = "BOOL")]
    pub(crate) log_grpc_calls: bool,

    /// Show secrets in the journal, the admin API and the log. Only for fictitious secrets.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch, value_name = "BOOL")]
    pub(crate) log_secrets: bool,
}

// === impl AdminArgs ===

impl AdminArgs {
    /// The admin API's server, if it has an address.
    pub(in crate::run) async fn bind(&self) -> Result<Option<Server>, BindError> {
        let server = Server::bind(&self.admin_endpoint, self.admin_allow_remote).await?;
        let server = server.map(|server| server.allow_hosts(self.admin_allowed_host.clone()));
        if let Some(server) = &server {
            tracing::info!(endpoint = %server.endpoint(), "serving the admin API and the dashboard");
        }
        if self.log_secrets {
            tracing::warn!("--log-secrets: secrets are shown in journal, admin API and log");
        }
        Ok(server)
    }

    /// The outputs of the journal besides its file.
    pub(super) fn journal_config(&self) -> journal::JournalConfig {
        journal::JournalConfig {
            kept: if self.admin_endpoint.is_given() {
                self.journal_size
            } else {
                0
            },
            max_file_bytes: self.journal_max_size,
            call_lines: false,
            grpc_call_lines: self.log_grpc_calls,
            show_secrets: self.log_secrets,
        }
    }
}

/// Only clients resolve DNS names.
fn listening(text: &str) -> Result<Endpoint, String> {
    match text.parse() {
        Ok(Endpoint::Host { name, .. }) => Err(format!("{name} is a name: give the address to listen on")),
        endpoint => endpoint.map_err(|error: InvalidEndpoint| error.to_string()),
    }
}

/// A name as it appears in a `Host` header (RFC 3986, 3.2.2), which need not be a DNS name: container runtimes allow `_`.
fn host_name(text: &str) -> Result<String, &'static str> {
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~');
    if name
        .split('.')
        .all(|label| !label.is_empty() && label.bytes().all(is_unreserved))
    {
        Ok(name.to_owned())
    } else {
        Err("must be a host name without scheme, port and path, such as csi-mock-driver.storage.svc")
    }
}

fn bytes(text: &str) -> Result<u64, &'static str> {
    quantity::bytes(text).ok_or("must be a number of bytes, with or without a unit such as Mi or Gi")
}

fn at_least_one(text: &str) -> Result<usize, &'static str> {
    match text.parse() {
        Ok(0) | Err(_) => Err("must be a number of calls, at least 1"),
        Ok(number) => Ok(number),
    }
}
