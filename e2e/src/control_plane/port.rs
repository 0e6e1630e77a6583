//! Ports on loopback that no other process can take before or while a component listens on them.
//!
//! If the harness bound a free port, closed it and passed its number to a program, another process could bind it
//! in between. Instead the port stays bound here, without listening, and the component binds it a second time:
//! `SO_REUSEPORT` allows this for processes of the same user, and etcd and Kubernetes have documented flags for
//! it. A socket that does not listen gets no connections, so until the component listens, and while it restarts,
//! connections are refused at once.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

use anyhow::{Context, Result, bail};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// A port of 127.0.0.1, held until this is dropped.
#[derive(Debug)]
pub(super) struct Port {
    address: SocketAddrV4,
    _reservation: OwnedFd,
}

// === impl Port ===

impl Port {
    /// Binds a free port, which the kernel chooses.
    pub(super) fn reserve() -> Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .context("open a socket")?;
        rustix::net::sockopt::set_socket_reuseport(&socket, true)
            .context("share the port with its component")?;
        rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).context("bind a free port")?;
        let bound = rustix::net::getsockname(&socket).context("ask for the number of the port")?;
        match SocketAddr::try_from(bound).context("understand the address of the port")? {
            SocketAddr::V4(address) => Ok(Self {
                address,
                _reservation: socket,
            }),
            SocketAddr::V6(address) => bail!("{address} was bound in place of an IPv4 address"),
        }
    }

    /// The port number.
    pub(super) fn number(&self) -> u16 {
        self.address.port()
    }

    /// Address and number.
    pub(super) fn address(&self) -> SocketAddrV4 {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_reserved_port_refuses_clients_and_strangers() {
        let port = Port::reserve().unwrap();
        assert_eq!(
            TcpStream::connect(port.address()).unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
        // std binds without SO_REUSEPORT, like programs that do not share the port.
        assert_eq!(
            TcpListener::bind(port.address()).unwrap_err().kind(),
            ErrorKind::AddrInUse
        );
    }

    #[test]
    fn a_component_that_shares_the_port_gets_all_connections() {
        let port = Port::reserve().unwrap();
        let component = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        rustix::net::sockopt::set_socket_reuseport(&component, true).unwrap();
        rustix::net::bind(&component, &port.address()).unwrap();
        rustix::net::listen(&component, 128).unwrap();
        for _ in 0..100 {
            TcpStream::connect(port.address()).unwrap();
        }
    }

    #[test]
    fn two_reservations_differ() {
        let ports: Vec<_> = (0..200).map(|_| Port::reserve().unwrap()).collect();
        let numbers: std::collections::BTreeSet<_> = ports.iter().map(Port::number).collect();
        assert_eq!(numbers.len(), ports.len());
    }
}
