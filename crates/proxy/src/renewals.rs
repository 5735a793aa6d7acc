//! Passwords that a server has refused, and that can be read again.
//!
//! ```text
//!  core: a server refuses a password ─ask: ticket n─▶ Renewals ─wake─▶ the reader of passwords
//!        tries once more ◀─CoreMessage::Renewed(m ≥ n)──  new settings, after a change, are sent before
//! ```
//!
//! A ticket is taken after the refusal, and answered only by a read that began after the ticket was taken. So a password that was changed before the
//! refusal is found.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Notifies the reader of passwords of a request. Must not block.
pub type WakeFn = Box<dyn Fn() + Send + Sync>;

/// Requests for passwords to be read again.
#[derive(Default)]
pub struct Renewals {
    asked: AtomicU64,
    wake: OnceLock<WakeFn>,
}

impl Renewals {
    /// Sets the function that notifies the reader of passwords. Only the first call has an effect.
    pub fn serve(&self, wake: WakeFn) {
        let _ = self.wake.set(wake);
    }

    /// Requests a read, and returns its ticket. `None`: there is no reader of passwords.
    pub(crate) fn ask(&self) -> Option<u64> {
        let wake = self.wake.get()?;
        let ticket = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        wake();
        Some(ticket)
    }

    /// Returns the last ticket: a read that begins now answers it and all earlier ones.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

impl std::fmt::Debug for Renewals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewals").field("asked", &self.asked()).finish_non_exhaustive()
    }
}
