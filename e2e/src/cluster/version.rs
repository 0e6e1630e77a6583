//! Versions of Kubernetes.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result};
use verdict::Missing;

/// Major and minor version of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubernetesVersion {
    /// Major version, 1 so far.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
}

// === impl KubernetesVersion ===

impl KubernetesVersion {
    /// # Errors
    /// The version `server` of a cluster is older.
    pub fn require(self, server: Self) -> Result<(), Missing> {
        if server >= self {
            return Ok(());
        }
        let reason =
            format!("the cluster has Kubernetes {server}, and the tested feature exists since {self}");
        Err(Missing::new("kubernetes-version", reason, ""))
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Parses `gitVersion` of the API server's `/version`, such as `v1.36.3` or `v1.35.0-eks-1`.
impl FromStr for KubernetesVersion {
    type Err = Error;

    fn from_str(git_version: &str) -> Result<Self> {
        let parse = || {
            let mut numbers = git_version.strip_prefix('v')?.split('.');
            let mut next = || numbers.next()?.parse().ok();
            Some(Self {
                major: next()?,
                minor: next()?,
            })
        };
        parse().with_context(|| format!("parse the version {git_version:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_versions_are_skipped() {
        let needed = KubernetesVersion { major: 1, minor: 36 };
        for (server, is_skipped) in [
            ("v1.9.11", true),
            ("v1.35.4", true),
            ("v1.35.0-eks-1-35", true),
            ("v1.36.0-rc.1", false),
            ("v1.36.3+embedded", false),
            ("v1.37.0", false),
            ("v2.0.0", false),
        ] {
            let required = needed.require(server.parse().unwrap());
            assert_eq!(required.is_err(), is_skipped, "{server}");
        }
    }

    #[test]
    fn malformed_versions_are_errors() {
        for version in ["", "1.36.3", "v1", "v1.", "v1.x.3"] {
            assert!(version.parse::<KubernetesVersion>().is_err(), "{version:?}");
        }
    }
}
