use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// SIGTERM, SIGINT and, if asked for, the end of standard input.
pub(super) struct Signals {
    term: Signal,
    int: Signal,
    /// Cancelled at the end of standard input; `None` afterwards.
    stdin: Option<CancellationToken>,
}

// === impl Signals ===

impl Signals {
    pub(super) fn new(has_stdin: bool) -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            stdin: has_stdin.then(end_of_stdin),
        })
    }

    pub(super) async fn next(&mut self) {
        let stdin = async {
            match &self.stdin {
                Some(end) => end.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
            () = stdin => self.stdin = None,
        }
    }
}

/// Cancelled at the end of standard input. A thread of its own reads it, as the runtime would wait for one of its threads.
fn end_of_stdin() -> CancellationToken {
    let end = CancellationToken::new();
    let ended = end.clone();
    std::thread::spawn(move || {
        io::copy(&mut io::stdin(), &mut io::sink()).ok();
        ended.cancel();
    });
    end
}
