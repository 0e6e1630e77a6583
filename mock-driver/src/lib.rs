//! A CSI driver on an emulated array of block devices, for exercising the attach/detach path.
//!
//! The array is a pure state machine in [`mod@array`]. [`service`] handles calls, [`store`] makes the array's state
//! durable, [`fault`] injects faults, [`journal`] records calls, [`admin`] is the HTTP API, and [`mod@run`] runs the
//! driver.

#![allow(
    missing_docs,
    reason = "public for this repository's tests; a comment says what a name does not"
)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::task::TaskTracker;

pub mod admin;
pub mod admin_api;
pub mod array;
pub mod ctl;
pub mod driver;
pub mod fault;
pub mod journal;
pub(crate) mod line_writer;
pub mod log;
pub mod node;
pub mod proxy;
pub(crate) mod rpc;
pub mod run;
pub mod service;
pub mod socket;
pub mod store;

/// An error and its causes, joined by colons.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Locks a mutex. A panic does not break an invariant of the data that these locks protect.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a task on a blocking thread. It completes even if the caller is dropped, and its panic continues here. `None` if the
/// runtime has shut down.
pub(crate) async fn blocking<T: Send + 'static>(
    tasks: &TaskTracker,
    act: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (result_tx, result) = tokio::sync::oneshot::channel();
    let running = tasks.token();
    run_blocking(Box::new(move || {
        let _running = running;
        result_tx.send(act()).ok();
    }))
    .await;
    result.await.ok()
}

/// Boxed, so that tokio's code for a task is compiled once, and not for each caller of [`blocking`].
async fn run_blocking(work: Box<dyn FnOnce() + Send>) {
    let ended = tokio::task::spawn_blocking(work).await;
    if let Some(panic) = ended.err().and_then(|ended| ended.try_into_panic().ok()) {
        std::panic::resume_unwind(panic);
    }
}

/// The examples in Rust of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
