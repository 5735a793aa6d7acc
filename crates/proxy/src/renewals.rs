//! Passwords that a server has refused, and that can be read again.
//!
//! ```text
//!  core: a server refuses a password ─ask: ticket n─▶ Renewals ─bell─▶ whoever reads passwords
//!        tries once more ◀─Mail::Renewed(m ≥ n)──  new settings, where one has changed, go first
//! ```
//!
//! A ticket is taken after the refusal, and answered only by a reading that has begun after the ticket was taken. So a password that was changed before the
//! refusal is found.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tells whoever reads passwords that somebody has asked. Must not block.
pub type Bell = Box<dyn Fn() + Send + Sync>;

/// Who asks for passwords to be read again.
#[derive(Default)]
pub struct Renewals {
    asked: AtomicU64,
    bell: OnceLock<Bell>,
}

impl Renewals {
    /// Sets who reads passwords. Only the first call counts.
    pub fn serve(&self, bell: Bell) {
        let _ = self.bell.set(bell);
    }

    /// Asks. `None`: nobody reads passwords.
    pub(crate) fn ask(&self) -> Option<u64> {
        let bell = self.bell.get()?;
        let ticket = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        bell();
        Some(ticket)
    }

    /// The last ticket: a reading that begins now answers it and all before it.
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
