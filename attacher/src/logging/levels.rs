//! The levels of `-v` and `--vmodule`.
//!
//! A pattern of `--vmodule` matches source files, as in klog: without a slash the file's name (`session`), else its path below
//! `src` (`csi/session`, `csi/*`). `*` matches any text and `?` any character. The first matching pattern wins.

use std::sync::Arc;

use tracing::subscriber::Interest;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Filter};

use crate::trace;

/// The crate to which `--vmodule` applies.
const OURS: &str = "csi_attacher";

#[derive(Clone, Debug)]
pub(super) struct Levels {
    verbosity: u8,
    modules: Arc<[(String, u8)]>,
}

// === impl Levels ===

impl Levels {
    pub(super) fn new(verbosity: u8, modules: &[(String, u8)]) -> Self {
        Self {
            verbosity,
            modules: modules.into(),
        }
    }

    fn wants(&self, callsite: &Metadata<'_>) -> bool {
        let at = verbosity(callsite.target(), callsite.level());
        if callsite.is_span() {
            return at == Some(0) && callsite.target() != trace::TARGET;
        }
        at.is_some_and(|at| at <= self.verbosity_of(callsite.module_path().unwrap_or_default()))
    }

    fn verbosity_of(&self, module: &str) -> u8 {
        let Some(path) = below_ours(module).filter(|_| !self.modules.is_empty()) else {
            return self.verbosity;
        };
        let path = path.replace("::", "/");
        let name = path.rsplit('/').next().unwrap_or(&path);
        let own = self.modules.iter().find(|(pattern, _)| {
            let subject = if pattern.contains('/') {
                path.as_str()
            } else {
                name
            };
            matches(pattern.as_bytes(), subject.as_bytes())
        });
        own.map_or(self.verbosity, |(_, level)| *level)
    }
}

impl<S> Filter<S> for Levels {
    fn enabled(&self, callsite: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.wants(callsite)
    }

    fn callsite_enabled(&self, callsite: &'static Metadata<'static>) -> Interest {
        if self.wants(callsite) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let modules = self.modules.iter().map(|(_, level)| *level);
        Some(match modules.fold(self.verbosity, u8::max) {
            0 | 1 => LevelFilter::INFO,
            2..=4 => LevelFilter::DEBUG,
            5.. => LevelFilter::TRACE,
        })
    }
}

/// The lowest `-v` at which a callsite is logged; none for never.
pub(super) fn verbosity(target: &str, level: &Level) -> Option<u8> {
    let ours = below_ours(target).is_some();
    match *level {
        // kube's client prints responses that it cannot parse, which may be Secrets; its watcher logs each failure, as we do.
        level if target.starts_with("kube_client") || target.starts_with("kube_runtime") => {
            (level == Level::ERROR).then_some(0)
        }
        Level::ERROR | Level::WARN => Some(0),
        Level::INFO => Some(if ours { 0 } else { 8 }),
        Level::DEBUG => Some(if ours { 2 } else { 8 }),
        // Frames of other crates, with tokens in headers.
        Level::TRACE => ours.then_some(5),
    }
}

/// A module's path inside our crate: the crate root is `lib`.
fn below_ours(module: &str) -> Option<&str> {
    match module.strip_prefix(OURS)? {
        "" => Some("lib"),
        below => below.strip_prefix("::"),
    }
}

fn matches(pattern: &[u8], subject: &[u8]) -> bool {
    match (pattern.split_first(), subject.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => (0..=subject.len()).any(|skip| matches(rest, &subject[skip..])),
        (Some((b'?', pattern)), Some((_, subject))) => matches(pattern, subject),
        (Some((wanted, pattern)), Some((found, subject))) if wanted == found => matches(pattern, subject),
        (Some(_) | None, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_target_and_level_to_klog_verbosity() {
        for (target, at, v) in [
            ("csi_attacher::manager", Level::INFO, Some(0)),
            ("csi_attacher", Level::WARN, Some(0)),
            ("csi_attacher::controller", Level::DEBUG, Some(2)),
            ("csi_attacher::csi::call", Level::TRACE, Some(5)),
            ("csi_attacher_other", Level::INFO, Some(8)),
            ("h2::proto", Level::WARN, Some(0)),
            ("h2::proto", Level::DEBUG, Some(8)),
            ("h2::hpack", Level::TRACE, None),
            ("kube_client::client", Level::WARN, None),
            ("kube_client::client", Level::DEBUG, None),
            ("kube_client::config", Level::ERROR, Some(0)),
            ("kube_runtime::watcher", Level::WARN, None),
            ("kube_runtime::watcher", Level::DEBUG, None),
        ] {
            assert_eq!(verbosity(target, &at), v, "{target} {at}");
        }
    }

    #[test]
    fn vmodule_patterns_match_file_names() {
        let levels = |modules: &[(&str, u8)]| {
            let modules: Vec<_> = modules.iter().map(|(p, v)| ((*p).to_owned(), *v)).collect();
            Levels::new(1, &modules)
        };
        let session = "csi_attacher::csi::session";
        for (modules, module, v) in [
            (&[][..], session, 1),
            (&[("session", 5)], session, 5),
            (&[("csi/session", 5)], session, 5),
            (&[("csi/*", 4)], session, 4),
            (&[("csi", 4)], session, 1),
            (&[("csi", 4)], "csi_attacher::csi", 4),
            (&[("sess*", 3)], session, 3),
            (&[("s?ssion", 3)], session, 3),
            (&[("*", 9)], session, 9),
            (&[("*", 0)], session, 0),
            (&[("w*", 2), ("*", 7)], session, 7),
            (&[("session", 2), ("*", 7)], session, 2),
            (&[("session", 5)], "kube_runtime::session", 1),
            (&[("lib", 5)], "csi_attacher", 5),
        ] {
            assert_eq!(levels(modules).verbosity_of(module), v, "{modules:?} {module}");
        }
    }
}
