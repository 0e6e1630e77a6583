//! Accepts connections; closes them, and removes and recreates the socket at run time, as when a driver crashes or is
//! upgraded.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::io::poll_read_buf;
use tonic::transport::server::Connected;

use super::authority::AuthorityFilter;
use crate::journal::Peer;

const READ: usize = 16 << 10;

#[derive(Debug)]
pub struct SocketControl {
    pub(super) wanted: watch::Sender<SocketState>,
    living: Mutex<Vec<Weak<ConnectionHandle>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SocketState {
    /// Incremented to bind the socket again.
    pub(super) edition: u64,
    pub(super) visibility: Visibility,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visibility {
    Present,
    /// Removed, permanently or until a time.
    Removed(Option<Instant>),
}

#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    info: ConnectionInfo,
    filter: AuthorityFilter,
    /// Input that the filter has not processed.
    input: BytesMut,
    /// Filtered input that was not read yet.
    output: BytesMut,
}

/// The connection from a call's point of view.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionInfo {
    /// The process at the other end.
    pub(crate) peer: Option<Peer>,
    pub(crate) handle: Arc<ConnectionHandle>,
}

#[derive(Debug)]
pub(crate) struct ConnectionHandle(Option<StdStream>);

// === impl SocketControl ===

impl Default for SocketControl {
    fn default() -> Self {
        Self {
            wanted: watch::Sender::new(SocketState {
                edition: 0,
                visibility: Visibility::Present,
            }),
            living: Mutex::default(),
        }
    }
}

impl SocketControl {
    /// Removes the socket, for a time or until it is opened, and closes all connections. Returns their number.
    pub(crate) fn take_away(&self, time: Option<Duration>) -> usize {
        let until = time.map(|time| Instant::now() + time);
        self.wanted
            .send_modify(|wanted| wanted.visibility = Visibility::Removed(until));
        self.cut_all()
    }

    /// Opens the socket, or binds it again, so that its file has another inode. Connections remain.
    pub fn renew(&self) {
        self.wanted.send_modify(|wanted| {
            wanted.edition += 1;
            wanted.visibility = Visibility::Present;
        });
    }

    pub(crate) fn open(&self) {
        self.wanted.send_if_modified(|wanted| {
            let is_removed = wanted.visibility != Visibility::Present;
            wanted.visibility = Visibility::Present;
            is_removed
        });
    }

    /// Closes all connections and returns their number. Clients may reconnect at once.
    pub fn cut_all(&self) -> usize {
        let handles = self.take_all();
        for handle in &handles {
            handle.cut();
        }
        handles.len()
    }

    /// The connections so far, for the caller to close. Later ones remain.
    pub(crate) fn take_all(&self) -> Vec<Arc<ConnectionHandle>> {
        let living = std::mem::take(&mut *crate::lock(&self.living));
        living.iter().filter_map(Weak::upgrade).collect()
    }

    pub fn connections(&self) -> usize {
        let living = crate::lock(&self.living);
        living.iter().filter(|handle| handle.strong_count() > 0).count()
    }

    pub(super) fn admit(&self, stream: UnixStream) -> Connection {
        let end = stream.as_fd().try_clone_to_owned().map(StdStream::from);
        let end = end.inspect_err(|error| tracing::warn!(%error, "a connection cannot be cut later"));
        let handle = Arc::new(ConnectionHandle(end.ok()));
        let mut living = crate::lock(&self.living);
        living.retain(|handle| handle.strong_count() > 0);
        living.push(Arc::downgrade(&handle));
        let info = ConnectionInfo {
            peer: stream.peer_cred().ok().map(|peer| Peer {
                pid: peer.pid(),
                uid: peer.uid(),
            }),
            handle,
        };
        Connection {
            stream,
            info,
            filter: AuthorityFilter::default(),
            input: BytesMut::new(),
            output: BytesMut::new(),
        }
    }
}

// === impl ConnectionHandle ===

impl ConnectionHandle {
    /// Closes the connection; unsent data is lost.
    pub(crate) fn cut(&self) {
        // Fails only for a connection that has ended.
        if let Some(end) = &self.0
            && let Err(error) = end.shutdown(Shutdown::Both)
        {
            tracing::debug!(%error, "connection ended before it could be cut");
        }
    }
}

// === impl Connection ===

impl Connected for Connection {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        self.info.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            stream,
            filter,
            input,
            output,
            ..
        } = &mut *self;
        while output.is_empty() {
            filter.pass(input, output);
            if !output.is_empty() {
                break;
            }
            input.reserve(READ);
            if ready!(poll_read_buf(Pin::new(&mut *stream), context, input))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        let passing = output.len().min(buffer.remaining());
        buffer.put_slice(&output.split_to(passing));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
