//! The driver's socket: private from its creation, and removed when the driver stops.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use futures::stream;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixStream};
use tokio::time;

use self::control::Visibility;
pub(crate) use self::control::{Connection, ConnectionInfo, SocketControl};
use crate::store::PathError;

pub(crate) mod authority;
mod control;
mod hpack;

/// Maximum number of connections that wait to be accepted. Clients have one each.
const BACKLOG: i32 = 1024;

/// Delay after a failed accept, such as for lack of file descriptors.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A driver has no authentication, and kubelet and sidecars connect by Unix sockets.
const NO_TCP: &str = "; over TCP a driver would be open to everybody: put a forwarder before its socket, as in \
                      socat tcp-listen:10000,fork unix-connect:/path/csi.sock";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid endpoint \"{text}\": write unix:///path/csi.sock, unix:/path/csi.sock or /path/csi.sock{hint}"
)]
pub struct InvalidEndpoint {
    text: String,
    hint: &'static str,
}

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("another process serves {}: stop it or choose another path", path.display())]
    InUse { path: PathBuf },
    /// Another kind of file, which the driver does not remove.
    #[error("{} exists and is not a socket: remove it or choose another path", path.display())]
    NotASocket { path: PathBuf },
    #[error("directory {} does not exist: create it first", directory.display())]
    NoDirectory { directory: PathBuf },
    #[error(transparent)]
    Path(#[from] PathError),
}

/// The listener of a driver. Dropping it closes the socket and removes its file.
#[derive(Debug)]
pub struct Listener {
    endpoint: Endpoint,
    /// `None` while the socket is removed.
    bound: Option<Bound>,
}

#[derive(Debug)]
struct Bound {
    listener: UnixListener,
    _file: SocketFile,
}

/// The socket's file by its inode: a file with which another driver replaced it is not removed.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

// === impl Endpoint ===

impl Endpoint {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl From<PathBuf> for Endpoint {
    fn from(path: PathBuf) -> Self {
        Self(path)
    }
}

impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let no_endpoint = || InvalidEndpoint {
            hint: if text.starts_with("tcp:") { NO_TCP } else { "" },
            ..InvalidEndpoint::of(text)
        };
        let path = match text.split_once(':') {
            Some(("unix", rest)) => rest.strip_prefix("//").unwrap_or(rest),
            Some((scheme, _)) if !scheme.contains('/') => return Err(no_endpoint()),
            _ => text,
        };
        if path.is_empty() || path.ends_with('/') {
            return Err(no_endpoint());
        }
        Ok(Self(PathBuf::from(path)))
    }
}

// === impl InvalidEndpoint ===

impl InvalidEndpoint {
    pub(crate) fn of(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            hint: "",
        }
    }
}

// === impl Listener ===

impl Listener {
    /// Binds the socket, instead of a stale one.
    ///
    /// # Errors
    /// A running process serves it, another kind of file exists there, or its directory is missing.
    pub fn bind(endpoint: &Endpoint) -> Result<Self, BindError> {
        let bound = Some(Bound::to(endpoint)?);
        Ok(Self {
            bound,
            ..Self::later(endpoint)
        })
    }

    /// Checks whether the socket can be bound, without doing it.
    pub(crate) fn check(endpoint: &Endpoint) -> Result<(), BindError> {
        check_directory(endpoint.path())?;
        is_stale(endpoint.path()).map(drop)
    }

    /// A listener whose socket is bound when its `SocketControl` opens it.
    pub(crate) fn later(endpoint: &Endpoint) -> Self {
        Self {
            endpoint: endpoint.clone(),
            bound: None,
        }
    }

    pub fn path(&self) -> &Path {
        self.endpoint.path()
    }

    /// The accepted connections. The socket exists as long as the stream, unless the `SocketControl` removes it.
    pub(crate) fn incoming(
        self,
        socket_control: Arc<SocketControl>,
    ) -> impl Stream<Item = io::Result<Connection>> + Send {
        let wanted = socket_control.wanted.subscribe();
        stream::unfold(
            (self, socket_control, wanted, 0),
            async |(mut listener, socket_control, mut wanted, mut edition)| {
                loop {
                    let now = *wanted.borrow_and_update();
                    if now.visibility != Visibility::Present || now.edition != edition {
                        listener.bound = None;
                    }
                    edition = now.edition;
                    if now.visibility == Visibility::Present {
                        listener.be_bound().await;
                    }
                    tokio::select! {
                        biased;
                        changed = wanted.changed() => changed.expect("the socket_control must outlive its watcher"),
                        () = over(now.visibility) => socket_control.renew(),
                        connection = listener.accept() => {
                            let connection = socket_control.admit(connection);
                            return Some((Ok(connection), (listener, socket_control, wanted, edition)));
                        }
                    }
                }
            },
        )
    }

    /// Binds the socket unless it is bound. Retries after errors, and logs the first one.
    async fn be_bound(&mut self) {
        let mut info = false;
        while self.bound.is_none() {
            match Bound::to(&self.endpoint) {
                Ok(bound) => self.bound = Some(bound),
                Err(error) => {
                    if !std::mem::replace(&mut info, true) {
                        let error = crate::error_chain(&error);
                        tracing::error!(error, "the socket cannot be put back yet");
                    }
                    time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// The next connection; pending while the socket is removed.
    pub(crate) async fn accept(&self) -> UnixStream {
        let Some(bound) = &self.bound else {
            return std::future::pending().await;
        };
        loop {
            match bound.listener.accept().await {
                Ok((connection, _)) => return connection,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Waits until the socket is to be opened again.
async fn over(visibility: Visibility) {
    match visibility {
        Visibility::Removed(Some(until)) => time::sleep_until(until).await,
        Visibility::Removed(None) | Visibility::Present => std::future::pending().await,
    }
}

// === impl Bound ===

impl Bound {
    fn to(endpoint: &Endpoint) -> Result<Self, BindError> {
        let path = endpoint.path();
        check_directory(path)?;
        remove_stale(path)?;

        let listener = listen(path).map_err(PathError::of("listen on", path))?;
        let file = SocketFile {
            path: path.to_owned(),
            identity: identity(path),
        };
        let listener = UnixListener::from_std(listener).map_err(PathError::of("listen on", path))?;
        Ok(Self {
            listener,
            _file: file,
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some()
            && identity(&self.path) == self.identity
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

fn check_directory(path: &Path) -> Result<(), BindError> {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() && !directory.is_dir() => {
            Err(BindError::NoDirectory {
                directory: directory.to_owned(),
            })
        }
        Some(_) | None => Ok(()),
    }
}

fn remove_stale(path: &Path) -> Result<(), BindError> {
    if is_stale(path)? {
        tracing::info!(path = %path.display(), "removing the socket of a dead process");
        fs::remove_file(path).map_err(PathError::of("remove the stale socket", path))?;
    }
    Ok(())
}

/// Whether the path is a socket that no process serves; `false` if nothing is there.
fn is_stale(path: &Path) -> Result<bool, BindError> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(PathError::of("stat", path)(error).into()),
    };
    if !found.file_type().is_socket() {
        return Err(BindError::NotASocket {
            path: path.to_owned(),
        });
    }
    match StdStream::connect(path) {
        Ok(_) => Err(BindError::InUse {
            path: path.to_owned(),
        }),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(true),
        Err(error) => Err(PathError::of("find out who serves", path)(error).into()),
    }
}

/// Linux gives the file of a bound socket the mode of its descriptor, so it is private from its creation without a change
/// of the process's umask.
fn listen(path: &Path) -> io::Result<StdListener> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(StdListener::from(socket))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let meta = fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn endpoints_are_read_in_every_spelling() {
        // (text, path or none)
        let table = [
            ("unix:///run/csi.sock", Some("/run/csi.sock")),
            ("unix:/run/csi.sock", Some("/run/csi.sock")),
            ("/run/csi.sock", Some("/run/csi.sock")),
            ("unix://csi.sock", Some("csi.sock")),
            ("csi.sock", Some("csi.sock")),
            ("/run/a:b/csi.sock", Some("/run/a:b/csi.sock")),
            ("tcp://127.0.0.1:1", None),
            ("unix://", None),
            ("unix:", None),
            ("/run/", None),
            ("", None),
        ];
        for (text, expected) in table {
            let path = text.parse::<Endpoint>().ok();
            assert_eq!(
                path.as_ref().and_then(|endpoint| endpoint.path().to_str()),
                expected,
                "{text:?}"
            );
        }
    }

    #[tokio::test]
    async fn socket_is_private_and_goes_with_its_listener() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("csi.sock");
        let listener = Listener::bind(&path.clone().into()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn stale_socket_is_replaced_and_a_living_one_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("csi.sock");
        drop(StdListener::bind(&path).unwrap());
        assert!(
            path.exists(),
            "the standard library leaves the file, as a killed process does"
        );

        let listener = Listener::bind(&path.clone().into()).unwrap();
        let second = Listener::bind(&path.clone().into()).unwrap_err();
        assert!(matches!(second, BindError::InUse { .. }), "{second}");
        drop(listener);
    }

    #[tokio::test]
    async fn socket_of_a_successor_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("csi.sock");
        let old = Listener::bind(&path.clone().into()).unwrap();
        fs::remove_file(&path).unwrap();
        let _new = StdListener::bind(&path).unwrap();
        drop(old);
        assert!(path.exists());
    }

    #[tokio::test]
    async fn non_socket_and_missing_directory_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "precious").unwrap();
        let error = Listener::bind(&file.clone().into()).unwrap_err();
        assert!(matches!(error, BindError::NotASocket { .. }), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");

        let error = Listener::bind(&directory.path().join("missing/csi.sock").into()).unwrap_err();
        assert!(matches!(error, BindError::NoDirectory { .. }), "{error}");
    }
}
