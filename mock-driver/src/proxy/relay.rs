//! A relay between two sockets: it pairs each connection to one with the next connection to the other and copies bytes
//! between them. A driver that cannot be reached connects to the second one.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::admin_api::Endpoint;
use crate::socket::{self, BindError};

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "documented by the error messages")]
pub enum RelayError {
    #[error(transparent)]
    Unix(#[from] BindError),
    #[error("cannot listen on {address}")]
    Tcp { address: SocketAddr, source: io::Error },
    #[error("cannot listen on {endpoint}: write an address or the path of a socket")]
    Name { endpoint: Endpoint },
}

#[derive(Debug)]
pub struct Relay {
    clients: socket::Listener,
    drivers: Listener,
}

#[derive(Debug)]
enum Listener {
    Unix(socket::Listener),
    Tcp(TcpListener),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

// === impl Relay ===

impl Relay {
    /// Listens on a socket for clients, and on another one or a TCP address for drivers.
    pub async fn bind(clients: &socket::Endpoint, drivers: &Endpoint) -> Result<Self, RelayError> {
        let drivers = match drivers {
            Endpoint::Unix(endpoint) => Listener::Unix(socket::Listener::bind(endpoint)?),
            Endpoint::Tcp(address) => {
                let listener = TcpListener::bind(address).await;
                Listener::Tcp(listener.map_err(|source| RelayError::Tcp {
                    address: *address,
                    source,
                })?)
            }
            Endpoint::None | Endpoint::Host { .. } => {
                let endpoint = drivers.clone();
                return Err(RelayError::Name { endpoint });
            }
        };
        Ok(Self {
            clients: socket::Listener::bind(clients)?,
            drivers,
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
            Listener::Unix(_) => None,
            Listener::Tcp(listener) => listener.local_addr().ok(),
        }
    }
}

// === impl Listener ===

impl Listener {
    async fn accept(&self) -> Pin<Box<dyn Stream>> {
        match self {
            Self::Unix(listener) => Box::pin(listener.accept().await),
            Self::Tcp(listener) => loop {
                match listener.accept().await {
                    Ok((stream, _)) => return Box::pin(stream),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(socket::ACCEPT_PAUSE).await;
                    }
                }
            },
        }
    }
}
