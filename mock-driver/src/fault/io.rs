//! I/O on published volumes in terms of rules: a rule with `match.io` is a device fault.

use std::ops::Range;
use std::time::Duration;

use rustix::io::Errno;
use serde::Deserialize;

use crate::array::quantity;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Names")]
pub(crate) struct IoKinds(pub(super) Vec<IoKind>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoKind {
    Read,
    /// Also truncation.
    Write,
    /// Also fdatasync.
    Fsync,
    /// Of a file, directory or link.
    Create,
    /// Lookup, attributes and opening.
    Stat,
    /// The volume leaves the node.
    Detach,
}

pub(crate) struct Io<'a> {
    pub(crate) kind: IoKind,
    /// The bytes of the file; `None` if the operation has none.
    pub(crate) range: Option<Range<u64>>,
    pub(crate) path: &'a dyn FilePath,
}

/// Finds the path of a file, which few rules need.
pub(crate) trait FilePath {
    /// Below the root of the volume.
    fn file_path(&self) -> String;
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Offsets {
    #[serde(default)]
    pub(super) from: Bytes,
    /// Exclusive; `None` for the end of the file.
    pub(super) to: Option<Bytes>,
}

/// A number of bytes, with or without a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "RawBytes")]
pub(crate) struct Bytes(pub(crate) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoEnd {
    Fail(IoError),
    /// Only these first bytes are written, and the write succeeds.
    Torn(u64),
    /// The volume loses what was written since the last fsync, before the operation.
    LoseUnsynced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct IoError(pub(crate) Errno);

#[derive(Deserialize)]
#[serde(untagged, expecting = "must be the name of an operation, or a list of them")]
enum Names {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "must be a number of bytes, with or without a unit such as Ki or Mi"
)]
enum RawBytes {
    Number(u64),
    Text(String),
}

/// Why a rule with a number of bytes is refused.
pub(super) const NEEDS_BYTES: &str =
    "needs match.io: read, write or [read, write]: the other operations have no bytes";

/// Maximum number of bytes of a FUSE operation, into which the kernel splits reads and writes: `FUSE_MAX_MAX_PAGES` pages.
pub(super) const LARGEST_IO: u64 = 1 << 20;

const ERRORS: [(&str, Errno); 13] = [
    ("EIO", Errno::IO),
    ("ENOSPC", Errno::NOSPC),
    ("EDQUOT", Errno::DQUOT),
    ("EROFS", Errno::ROFS),
    ("EACCES", Errno::ACCESS),
    ("EPERM", Errno::PERM),
    ("EBUSY", Errno::BUSY),
    ("EFBIG", Errno::FBIG),
    ("ENODEV", Errno::NODEV),
    ("ENOMEM", Errno::NOMEM),
    ("ENXIO", Errno::NXIO),
    ("ESTALE", Errno::STALE),
    ("ETIMEDOUT", Errno::TIMEDOUT),
];

// === impl IoKind ===

impl IoKind {
    pub(super) const ALL: [Self; 6] = [
        Self::Read,
        Self::Write,
        Self::Fsync,
        Self::Create,
        Self::Stat,
        Self::Detach,
    ];

    pub(super) fn has_bytes(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Its name in rules and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Fsync => "fsync",
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Detach => "detach",
        }
    }
}

// === impl IoKinds ===

/// `*` is every operation except `detach`, which no process waits for.
impl TryFrom<Names> for IoKinds {
    type Error = String;

    fn try_from(names: Names) -> Result<Self, String> {
        let names = match names {
            Names::One(name) if name == "*" => {
                let kinds = IoKind::ALL.into_iter();
                return Ok(Self(kinds.filter(|kind| *kind != IoKind::Detach).collect()));
            }
            Names::One(name) => vec![name],
            Names::Many(names) => names,
        };
        let known = || IoKind::ALL.map(IoKind::name).join(", ");
        let kind = |name: &String| {
            let found = IoKind::ALL.into_iter().find(|kind| kind.name() == name);
            found.ok_or_else(|| format!("unknown operation \"{name}\": use * or some of {}", known()))
        };
        let kinds: Vec<_> = names.iter().map(kind).collect::<Result<_, _>>()?;
        match kinds.is_empty() {
            true => Err(format!("must name an operation: use * or some of {}", known())),
            false => Ok(Self(kinds)),
        }
    }
}

// === impl Offsets ===

impl Offsets {
    pub(super) fn overlaps(self, range: &Range<u64>) -> bool {
        range.end > self.from.0 && self.to.is_none_or(|to| range.start < to.0)
    }

    pub(super) fn is_empty(self) -> bool {
        self.to.is_some_and(|to| to <= self.from)
    }
}

// === impl Bytes ===

impl Bytes {
    /// The time of a transfer with this number of bytes per second.
    pub(super) fn time_of(self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.0.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl TryFrom<RawBytes> for Bytes {
    type Error = &'static str;

    fn try_from(bytes: RawBytes) -> Result<Self, Self::Error> {
        match bytes {
            RawBytes::Number(number) => Ok(Self(number)),
            RawBytes::Text(text) => quantity::bytes(&text)
                .map(Self)
                .ok_or("must be a number of bytes, with or without a unit such as Ki or Mi"),
        }
    }
}

// === impl IoError ===

impl TryFrom<String> for IoError {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let found = ERRORS.iter().find(|(known, _)| *known == name);
        found.map(|(_, errno)| Self(*errno)).ok_or_else(|| {
            let known = ERRORS.map(|(known, _)| known).join(", ");
            format!("unknown error \"{name}\": use one of {known}")
        })
    }
}
