//! Mutexes whose values stay valid if a holder panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the mutex, also after a holder has panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
