//! Panics as lines of the log.

use std::panic::PanicHookInfo;

/// Makes every panic from here on one line of the log, in whichever form that is, instead of several on
/// standard error that no log reader understands.
pub(super) fn become_a_line() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, panic = text(panic), "panicked");
    }));
}

fn text<'p>(panic: &'p PanicHookInfo<'_>) -> &'p str {
    panic.payload_as_str().unwrap_or("no text")
}
