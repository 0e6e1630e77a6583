//! Flags of the HTTP server.

use std::path::PathBuf;

use clap::ArgAction;

use super::{MaybeText, go_style};

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

    /// Ask the API server (TokenReview, SubjectAccessReview) whether the bearer token of a request may get the path. Health
    /// needs no token. The port then serves TLS, with a self-signed certificate unless --http-tls-cert-file is given.
    #[arg(long, default_value = "false", action = ArgAction::Set)]
    pub(crate) http_auth: bool,

    /// File with the certificate chain (PEM) of --http-endpoint, which then serves TLS. Read again when it changes.
    #[arg(long, default_value = "", value_parser = go_style::non_empty, value_name = "FILE")]
    http_tls_cert_file: MaybeText,

    /// File with the private key (PEM) of --http-tls-cert-file.
    #[arg(long, default_value = "", value_parser = go_style::non_empty, value_name = "FILE")]
    http_tls_key_file: MaybeText,

    /// Address of another HTTP server for health alone, without TLS and authentication, such as :8081. Empty: disabled.
    #[arg(long, default_value = "", value_parser = address, value_name = "ADDRESS")]
    pub(crate) health_endpoint: MaybeText,
}

/// Paths of the other pages.
pub(crate) const OTHER_PAGES: [&str; 4] = ["/healthz", "/healthz/leader-election", "/readyz", "/statusz"];

// === impl Http ===

impl Http {
    pub(crate) fn has_tls(&self) -> bool {
        self.http_auth || self.http_tls_cert_file.is_some()
    }

    /// Checks that at most one address is given, and what its authentication and TLS need.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.endpoint.is_some() && self.metrics_address.is_some() {
            return Err(
                "only one of --metrics-address and --http-endpoint can be set: use --http-endpoint"
                    .to_owned(),
            );
        }
        if self.http_tls_cert_file.is_some() != self.http_tls_key_file.is_some() {
            return Err("--http-tls-cert-file and --http-tls-key-file must be set together".to_owned());
        }
        if self.has_tls() && self.address().is_none() {
            return Err("--http-auth and --http-tls-cert-file need --http-endpoint".to_owned());
        }
        Ok(())
    }

    /// The address of metrics, health and status, with its flag.
    pub(crate) fn address(&self) -> Option<(&'static str, &str)> {
        let endpoint = self
            .endpoint
            .as_deref()
            .map(|address| ("--http-endpoint", address));
        endpoint.or_else(|| Some(("--metrics-address", self.metrics_address.as_deref()?)))
    }

    pub(crate) fn certificate(&self) -> Option<[PathBuf; 2]> {
        let (certificate, key) = (
            self.http_tls_cert_file.as_ref()?,
            self.http_tls_key_file.as_ref()?,
        );
        Some([certificate.into(), key.into()])
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
