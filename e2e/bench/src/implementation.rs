//! The measured programs.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};

use super::Programs;
use super::bench_env::BenchEnv;
use csi_e2e::process::Spec;

/// A measured program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// A bare loop with this many volumes in flight.
    Limit(usize),
    /// csi-attacher.
    Ours(Workers),
    /// An earlier build of csi-attacher.
    Earlier(Workers),
    /// The Go attacher; without client-side rate limit unless it has its default flags.
    Go(Workers),
}

/// Concurrency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// The program's default.
    Default,
    /// `--worker-threads`.
    Number(usize),
}

// === impl Implementation ===

impl Implementation {
    /// Whether it is the Go attacher.
    pub fn is_go(self) -> bool {
        matches!(self, Self::Go(_))
    }

    /// Whether it is csi-attacher.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Ours(_))
    }

    /// Whether it is the bare loop.
    pub fn is_limit(self) -> bool {
        matches!(self, Self::Limit(_))
    }

    /// Its concurrency, if it is an attacher.
    pub(super) fn workers(self) -> Option<Workers> {
        match self {
            Self::Limit(_) => None,
            Self::Ours(workers) | Self::Earlier(workers) | Self::Go(workers) => Some(workers),
        }
    }

    /// Path of its executable.
    pub(super) fn program(self, programs: &Programs) -> Result<&Path> {
        match self {
            Self::Limit(_) => anyhow::bail!("the limit is a loop of the harness and has no program"),
            Self::Ours(_) => Ok(&programs.ours),
            Self::Earlier(_) => programs
                .earlier
                .as_deref()
                .context("an earlier build is to be measured: name its executable with --earlier"),
            Self::Go(_) => programs
                .go
                .as_deref()
                .context("the Go attacher must have been built"),
        }
    }

    /// Process specification under `name`, with additional flags.
    pub(super) fn spec(self, name: &str, programs: &Programs, env: &BenchEnv) -> Result<Spec> {
        let spec = Spec::new(name, self.program(programs)?);
        Ok(spec.dir(&env.dir).args(self.flags(env)))
    }

    /// The flags of this implementation, and of API server and driver.
    pub(super) fn flags(self, env: &BenchEnv) -> Vec<String> {
        let mut flags = vec![
            format!("--kubeconfig={}", env.kubeconfig.display()),
            format!("--csi-address={}", env.socket.display()),
        ];
        if let Some(Workers::Number(workers)) = self.workers() {
            flags.push(format!("--worker-threads={workers}"));
        }
        if let Self::Go(Workers::Number(_)) = self {
            flags.extend([
                "--kube-api-qps=10000".to_owned(),
                "--kube-api-burst=20000".to_owned(),
            ]);
        }
        flags
    }
}

impl fmt::Display for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(at_once) => write!(f, "limit-{at_once}"),
            Self::Ours(workers) => write!(f, "ours-{workers}"),
            Self::Earlier(workers) => write!(f, "earlier-{workers}"),
            Self::Go(workers) => write!(f, "go-{workers}"),
        }
    }
}

impl FromStr for Implementation {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let wrong = || format!("{name:?} is none of limit-N, and ours, earlier or go with -N or -default");
        let (who, number) = name.split_once('-').ok_or_else(wrong)?;
        let workers: Workers = number.parse().map_err(|()| wrong())?;
        match (who, workers) {
            ("limit", Workers::Number(number)) => Ok(Self::Limit(number)),
            ("ours", workers) => Ok(Self::Ours(workers)),
            ("earlier", workers) => Ok(Self::Earlier(workers)),
            ("go", workers) => Ok(Self::Go(workers)),
            _ => Err(wrong()),
        }
    }
}

// === impl Workers ===

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

impl FromStr for Workers {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "default" => Ok(Self::Default),
            number => match number.parse() {
                Ok(number) if number > 0 => Ok(Self::Number(number)),
                Ok(_) | Err(_) => Err(()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contender_is_found_by_its_name() {
        for implementation in [
            Implementation::Limit(16),
            Implementation::Ours(Workers::Default),
            Implementation::Ours(Workers::Number(10)),
            Implementation::Go(Workers::Default),
            Implementation::Go(Workers::Number(1000)),
        ] {
            assert_eq!(implementation.to_string().parse(), Ok(implementation));
        }
        for wrong in ["", "ours", "ours-0", "ours--1", "limit-default", "rust-1", "go-x"] {
            assert!(wrong.parse::<Implementation>().is_err(), "{wrong}");
        }
    }
}
