//! A relay between two sockets: it pairs each connection to one with the next connection to the other and copies bytes
//! between them. A driver that cannot be reached connects to the second one.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::str::FromStr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::socket::{BindError, Endpoint, InvalidEndpoint, Listener};

/// An address of a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayAddress {
    /// A Unix socket.
    Unix(Endpoint),
    /// A TCP port.
    Tcp(SocketAddr),
}

/// A relay cannot listen.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "documented by the error messages")]
pub enum RelayError {
    #[error(transparent)]
    Unix(#[from] BindError),
    #[error("cannot listen on {address}")]
    Tcp { address: SocketAddr, source: io::Error },
}

/// The two listeners of a relay.
#[derive(Debug)]
pub struct Relay {
    clients: ListeningSocket,
    drivers: ListeningSocket,
}

#[derive(Debug)]
enum ListeningSocket {
    Unix(Listener),
    Tcp(TcpListener),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

// === impl RelayAddress ===

impl fmt::Display for RelayAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(endpoint) => write!(f, "{}", endpoint.path().display()),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

impl FromStr for RelayAddress {
    type Err = InvalidEndpoint;

    /// Parses an endpoint, or `tcp://host:port`; `tcp://:port` is on loopback.
    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let Some(address) = text.strip_prefix("tcp://") else {
            return text.parse().map(Self::Unix);
        };
        let address = match address.strip_prefix(':') {
            Some(port) => format!("127.0.0.1:{port}"),
            None => address.to_owned(),
        };
        address
            .parse()
            .map(Self::Tcp)
            .map_err(|_| InvalidEndpoint::of(text))
    }
}

// === impl Relay ===

impl Relay {
    /// Listens on both addresses.
    pub async fn bind(clients: &RelayAddress, drivers: &RelayAddress) -> Result<Self, RelayError> {
        Ok(Self {
            clients: ListeningSocket::bind(clients).await?,
            drivers: ListeningSocket::bind(drivers).await?,
        })
    }

    /// Pairs connections until it is dropped.
    ///
    /// # Cancellation
    /// Closes all connections and both sockets.
    pub async fn run(self) {
        let mut pairs = JoinSet::new();
        loop {
            let mut client = self.clients.accept().await;
            let mut driver = self.drivers.accept().await;
            pairs.spawn(async move {
                if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut driver).await {
                    tracing::debug!(%error, "a pair of connections ended");
                }
            });
            while pairs.try_join_next().is_some() {}
        }
    }

    /// The TCP address for drivers, if it is one.
    pub fn driver_port(&self) -> Option<SocketAddr> {
        match &self.drivers {
            ListeningSocket::Unix(_) => None,
            ListeningSocket::Tcp(listener) => listener.local_addr().ok(),
        }
    }
}

// === impl ListeningSocket ===

impl ListeningSocket {
    async fn bind(address: &RelayAddress) -> Result<Self, RelayError> {
        Ok(match address {
            RelayAddress::Unix(endpoint) => Self::Unix(Listener::bind(endpoint)?),
            RelayAddress::Tcp(address) => {
                let listener = TcpListener::bind(address).await;
                Self::Tcp(listener.map_err(|source| RelayError::Tcp {
                    address: *address,
                    source,
                })?)
            }
        })
    }

    async fn accept(&self) -> Pin<Box<dyn Stream>> {
        match self {
            Self::Unix(listener) => Box::pin(listener.accept().await),
            Self::Tcp(listener) => loop {
                match listener.accept().await {
                    Ok((stream, _)) => return Box::pin(stream),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(crate::socket::ACCEPT_PAUSE).await;
                    }
                }
            },
        }
    }
}
