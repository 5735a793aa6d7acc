//! The runtime of control work, and the process's limits.

use crate::error::Failure;

/// Makes the runtime of control work: probing, HTTP, signals. Sessions have threads of their own.
///
/// # Errors
/// The system refuses a thread.
pub fn control_runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("control")
        .enable_all()
        .build()
        .map_err(|error| Failure::runtime(format!("cannot start the control threads: {error}")))
}

/// Raises the soft limit of descriptors, usually 1024, as each client needs one. Returns the resulting limit.
pub fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let before = limit.current;
        limit.current = limit.maximum;
        match setrlimit(Resource::Nofile, limit) {
            Ok(()) => tracing::debug!(limit = ?limit.maximum, "raised the limit of open files"),
            Err(error) => {
                limit.current = before;
                tracing::warn!(%error, "cannot raise the limit of open files");
            }
        }
    }
    limit.current.unwrap_or(u64::MAX)
}
