//! Logging flags of klog and component-base.

use std::str::FromStr;
use std::time::Duration;

use clap::{ArgAction, ValueEnum};

use super::{duration, number};

/// Logging flags.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Logging {
    /// Log verbosity: 0 for changes and failures, 2 for every attach and detach, 5 for every call.
    #[arg(long = "v", default_value = "0", value_parser = number::verbosity, value_name = "LEVEL")]
    pub(crate) verbosity: u8,

    /// Verbosity of single modules, such as controller=5,csi*=2.
    #[arg(long, default_value = "", value_name = "PATTERN=LEVEL,...")]
    pub(crate) vmodule: Modules,

    /// Log format.
    #[arg(
        long = "logging-format",
        value_enum,
        default_value = "text",
        value_name = "FORMAT"
    )]
    pub(crate) format: LogFormat,

    /// Maximum number of seconds between log flushes. Ignored: lines are written immediately.
    #[arg(long = "log-flush-frequency", default_value = "5s", value_parser = duration::positive,
          value_name = "DURATION")]
    pub(crate) flush_frequency: Duration,

    /// In text format: write errors to stderr and everything else to stdout.
    #[arg(long = "log-text-split-stream", default_value = "false", action = ArgAction::Set)]
    pub(crate) text_split_stream: bool,

    /// In JSON format: write errors to stderr and everything else to stdout.
    #[arg(long = "log-json-split-stream", default_value = "false", action = ArgAction::Set)]
    pub(crate) json_split_stream: bool,

    /// In text format with split streams: size of the info buffer, such as 512, 4K or 2Mi.
    #[arg(long = "log-text-info-buffer-size", default_value = "0", value_name = "BYTES")]
    pub(crate) text_info_buffer_size: Bytes,

    /// In JSON format with split streams: size of the info buffer, such as 512, 4K or 2Mi.
    #[arg(long = "log-json-info-buffer-size", default_value = "0", value_name = "BYTES")]
    pub(crate) json_info_buffer_size: Bytes,
}

/// `--logging-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// klog's text format.
    Text,
    /// One JSON object per line.
    Json,
}

/// `--vmodule`: patterns of modules (`*` and `?` are wildcards) with their levels. The first match wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Modules(pub(crate) Vec<(String, u8)>);

/// An amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

// === impl Modules ===

impl FromStr for Modules {
    type Err = String;

    fn from_str(value: &str) -> Result<Self, Self::Err> {
        let read = |item: &str| match item.split_once('=') {
            Some((pattern, level)) if !pattern.is_empty() => level
                .parse()
                .map(|level| (pattern.to_owned(), level))
                .map_err(|_| format!("{level:?} in {item:?} is not a level from 0 to 255")),
            Some(_) | None => Err(format!("{item:?} is not of the form pattern=level")),
        };
        let items = value.split(',').filter(|item| !item.is_empty());
        items.map(read).collect::<Result<_, _>>().map(Self)
    }
}

// === impl Bytes ===

impl FromStr for Bytes {
    type Err = String;

    fn from_str(value: &str) -> Result<Self, Self::Err> {
        let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
        let (number, unit) = value.split_at(digits);
        let factor: Option<u64> = match unit {
            "" => Some(1),
            "k" | "K" => Some(1000),
            "M" => Some(1000_u64.pow(2)),
            "G" => Some(1000_u64.pow(3)),
            "Ki" => Some(1 << 10),
            "Mi" => Some(1 << 20),
            "Gi" => Some(1 << 30),
            _ => None,
        };
        let bytes = factor
            .zip(number.parse::<u64>().ok())
            .and_then(|(factor, number)| number.checked_mul(factor));
        bytes
            .map(Self)
            .ok_or_else(|| format!("{value:?} is not a number of bytes such as 512, 4K or 2Mi"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_modules_as_pattern_and_level() {
        let modules = |pairs: &[(&str, u8)]| {
            Ok(Modules(
                pairs.iter().map(|(p, level)| ((*p).to_owned(), *level)).collect(),
            ))
        };
        assert_eq!("".parse(), modules(&[]));
        assert_eq!("a=1,b*=2,,".parse(), modules(&[("a", 1), ("b*", 2)]));
        for value in ["x", "=5", "a=b", "a=-1", "a=256"] {
            assert!(value.parse::<Modules>().is_err(), "{value}");
        }
    }

    #[test]
    fn parses_sizes_with_kubernetes_units() {
        for (value, bytes) in [
            ("0", 0),
            ("512", 512),
            ("1K", 1000),
            ("2Ki", 2048),
            ("3M", 3_000_000),
        ] {
            assert_eq!(value.parse(), Ok(Bytes(bytes)));
        }
        for value in ["", "K", "-1", "1.5K", "1Q", "99999999999G"] {
            assert!(value.parse::<Bytes>().is_err(), "{value}");
        }
    }
}
