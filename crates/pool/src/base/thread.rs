//! Threads of the pool's own.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread that may run on any CPU and runs as others do: who starts it may carry out a request, and
/// be bound to the caller's CPU, or be urgent.
///
/// # Errors
/// As of `pthread_create(3)`: EAGAIN.
pub(crate) fn start<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let body = strandfs_fuse::start_as_usual(body);
    Builder::new().name(name.to_owned()).spawn(body)
}
