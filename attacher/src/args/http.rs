//! Flags of the HTTP server.

use clap::ArgAction;

use super::MaybeText;

/// Flags of the HTTP server.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Http {
    /// Address of the HTTP server for metrics, health and status, such as :8080. Empty: disabled.
    #[arg(long = "http-endpoint", default_value = "", value_parser = address, value_name = "ADDRESS")]
    pub(crate) endpoint: MaybeText,

    /// Deprecated: use --http-endpoint. Address of the HTTP server.
    #[arg(long, default_value = "", value_parser = address, value_name = "ADDRESS")]
    pub(crate) metrics_address: MaybeText,

    /// HTTP path of the metrics.
    #[arg(long, default_value = "/metrics", value_parser = path, value_name = "PATH")]
    pub(crate) metrics_path: String,

    /// Serve /statusz, which shows names of volumes and nodes to every client of the port.
    #[arg(long, default_value = "true", action = ArgAction::Set)]
    pub(crate) statusz: bool,
}

/// Paths of the other pages.
pub(crate) const OTHER_PAGES: [&str; 4] = ["/healthz", "/healthz/leader-election", "/readyz", "/statusz"];

// === impl Http ===

impl Http {
    /// Checks that at most one address is given.
    ///
    /// # Errors
    ///
    /// A message that names the flags.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.endpoint.is_some() && self.metrics_address.is_some() {
            return Err(
                "only one of --metrics-address and --http-endpoint can be set: use --http-endpoint"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

fn address(value: &str) -> Result<MaybeText, String> {
    if value.is_empty() {
        return Ok(None);
    }
    let port = value
        .rsplit_once(':')
        .filter(|(host, _)| !host.contains(':') || host.starts_with('[') && host.ends_with(']'))
        .and_then(|(_, port)| port.parse::<u16>().ok());
    match port {
        Some(_) => Ok(Some(value.to_owned())),
        None => Err(format!(
            "{value:?} is not a listen address: give host and port, as in :8080, 127.0.0.1:8080 or [::1]:8080"
        )),
    }
}

fn path(value: &str) -> Result<String, String> {
    if !value.starts_with('/') {
        return Err(format!("{value:?} must begin with a slash, such as /metrics"));
    }
    if OTHER_PAGES.contains(&value) {
        return Err(format!(
            "{value:?} is the path of another page: give another, such as /metrics"
        ));
    }
    Ok(value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_path_must_not_hide_another_page() {
        assert_eq!(path("/m"), Ok("/m".to_owned()));
        for value in ["", "m"].iter().chain(&OTHER_PAGES) {
            assert!(path(value).unwrap_err().contains("such as /metrics"), "{value}");
        }
    }

    #[test]
    fn parses_addresses_like_go() {
        for value in [
            ":8080",
            ":0",
            "127.0.0.1:8080",
            "localhost:80",
            "[::]:8080",
            "[::1]:1",
        ] {
            assert_eq!(address(value), Ok(Some(value.to_owned())));
        }
        for value in [
            "8080", "host", ":", ":http", ":99999", "::1:80", "[::1]", "[::1]80",
        ] {
            assert!(address(value).is_err(), "{value}");
        }
    }
}
