//! The endpoint of the admin API.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use crate::socket;

/// The endpoint of the admin API, if it is enabled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Endpoint {
    /// Disabled.
    #[default]
    None,
    /// On a TCP address.
    Tcp(SocketAddr),
    /// On a host with this DNS name, and a port. For clients only.
    Host {
        /// The name.
        name: String,
        /// The port.
        port: u16,
    },
    /// On a Unix socket.
    Unix(socket::Endpoint),
}

/// A malformed endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid endpoint \"{text}\": write 127.0.0.1:9810, [::1]:9810, example.org:9810, unix:///path/admin.sock or /path/admin.sock"
)]
pub struct InvalidEndpoint {
    text: String,
}

// === impl Endpoint ===

impl Endpoint {
    pub(crate) fn is_given(&self) -> bool {
        *self != Self::None
    }

    /// Whether only clients on this machine can reach it.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::None | Self::Unix(_) => true,
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Host { .. } => false,
        }
    }
}

impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let no_endpoint = || InvalidEndpoint {
            text: text.to_owned(),
        };
        if text.is_empty() {
            return Ok(Self::None);
        }
        let address = text.strip_prefix("http://").unwrap_or(text);
        let address = address.strip_prefix("tcp://").unwrap_or(address);
        let address = address.strip_suffix('/').unwrap_or(address);
        // `localhost` is not resolved: it always means loopback.
        let address = match address.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}"),
            None => address.to_owned(),
        };
        if let Ok(address) = address.parse() {
            return Ok(Self::Tcp(address));
        }
        if let Some((name, port)) = address.rsplit_once(':')
            && is_dns_name(name)
            && let Ok(port) = port.parse()
        {
            let name = name.to_owned();
            return Ok(Self::Host { name, port });
        }
        // A bare word is more likely a mistyped address than a path.
        if !text.contains('/') {
            return Err(no_endpoint());
        }
        text.parse().map(Self::Unix).map_err(|_| no_endpoint())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("nowhere"),
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Host { name, port } => write!(f, "http://{name}:{port}"),
            Self::Unix(socket) => write!(f, "unix://{}", socket.path().display()),
        }
    }
}

/// RFC 1123, 2.1, and `_`, which container runtimes allow, with the final dot of a fully qualified name or without; a name that
/// ends in a number is a mistaken address.
fn is_dns_name(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    text.len() <= 253 && text.split('.').all(is_label) && !last.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_in_every_spelling() {
        // (text, as it is shown or none, local)
        let table = [
            ("", Some("nowhere"), true),
            ("127.0.0.1:9810", Some("http://127.0.0.1:9810"), true),
            ("http://127.0.0.1:9810/", Some("http://127.0.0.1:9810"), true),
            ("tcp://127.9.9.9:1", Some("http://127.9.9.9:1"), true),
            ("localhost:9810", Some("http://127.0.0.1:9810"), true),
            ("[::1]:0", Some("http://[::1]:0"), true),
            ("[::ffff:127.0.0.1]:1", Some("http://[::ffff:127.0.0.1]:1"), true),
            ("0.0.0.0:9810", Some("http://0.0.0.0:9810"), false),
            ("[::]:9810", Some("http://[::]:9810"), false),
            ("10.1.2.3:9810", Some("http://10.1.2.3:9810"), false),
            ("unix:///run/admin.sock", Some("unix:///run/admin.sock"), true),
            ("/run/admin.sock", Some("unix:///run/admin.sock"), true),
            ("9810", None, true),
            (":9810", None, true),
            ("localhost", None, true),
            ("example.org:80", Some("http://example.org:80"), false),
            (
                "http://csi-mock-driver.storage.svc:9810/",
                Some("http://csi-mock-driver.storage.svc:9810"),
                false,
            ),
            (
                "csi-mock-driver.storage.svc.cluster.local.:9810",
                Some("http://csi-mock-driver.storage.svc.cluster.local.:9810"),
                false,
            ),
            ("example.org..:80", None, true),
            (".:80", None, true),
            ("127.0.0.1.5.:80", None, true),
            ("csi-mock-driver:9810", Some("http://csi-mock-driver:9810"), false),
            ("my_host.storage:9810", Some("http://my_host.storage:9810"), false),
            ("example.org:http", None, true),
            ("example..org:80", None, true),
            ("-x:80", None, true),
            ("127.0.0.1.5:80", None, true),
            ("example.org", None, true),
            ("unix:///", None, true),
        ];
        for (text, shown, local) in table {
            let endpoint = text.parse::<Endpoint>().ok();
            assert_eq!(
                endpoint.as_ref().map(ToString::to_string).as_deref(),
                shown,
                "{text:?}"
            );
            assert!(
                endpoint.is_none_or(|endpoint| endpoint.is_local() == local),
                "{text:?}"
            );
        }
    }
}
