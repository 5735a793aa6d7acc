//! Start of a relay without a promise file: it learns its possible promises before it receives, and so acknowledges, anything.

use std::sync::PoisonError;
use std::time::{Instant, SystemTime};

use tracing::{info, warn};
use watermark::Lsn;
use wire::replication::Identity as Remote;

use super::attempt::{Attempt, Slot};
use crate::error::UpstreamError;
use crate::memory::{Conclusion, conclude, gather};
use crate::promise::Promise;
use crate::session::{Login, Session};

/// Advice to the operator.
const ADVICE: &str =
    "or start it once with --new, if it has never run before or those who could answer are gone for good";

impl Attempt<'_> {
    /// Returns once a promise is on disk.
    pub(super) fn remember(
        &self,
        session: &mut Session,
        login: &Login<'_>,
        remote: Remote,
    ) -> Result<(), UpstreamError> {
        let shared = self.shared;
        if shared.promise.exists() {
            return Ok(());
        }
        let around = shared.surroundings();
        let evidence = gather(&around, login, remote.timeline, remote.system, shared.instance);
        let learnt = match conclude(&evidence, shared.is_new) {
            Conclusion::Silent(silent) => {
                self.forget_what_was_seen();
                return Err(UpstreamError::NoMemory(format!(
                    "this relay does not know what it has promised: its directory is new or was lost. Nothing is acknowledged until \
                     these answer: {}; {ADVICE}",
                    silent.join(", ")
                )));
            }
            Conclusion::Known(promise) => {
                info!(
                    term = promise.term(),
                    fenced = promise.fenced_up_to(),
                    "learnt from other relays what was promised"
                );
                promise
            }
            Conclusion::Nobody { newest } => match self.ensure_slot(session)? {
                Slot::Made => {
                    info!(
                        "nobody remembers this relay, and the upstream had no slot of it: it runs for the first time"
                    );
                    Promise::learnt(0, newest.saturating_sub(1), None)
                }
                slot => {
                    if !shared.is_new {
                        self.must_have_been_seen_long_enough(slot, newest <= remote.timeline)?;
                    }
                    // Higher than any earlier term, as those rose one by one: no holder of an earlier term finds it again.
                    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                    let term = since_1970.map_or(1, |since| since.as_secs());
                    warn!(term, "what this relay had promised is lost, and nobody was promoted by it");
                    Promise::learnt(term, newest.saturating_sub(1), None)
                }
            },
        };
        let promise = learnt.begun_anew(remote.timeline, Lsn(remote.position));
        shared.promise.make(promise).map_err(|error| UpstreamError::State(Box::new(error)))
    }

    fn forget_what_was_seen(&self) {
        *self.shared.seen_unpromoted.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Checks that every server has been seen unpromoted for as long as a promotion may take. This relay may have been fenced by a failover under
    /// way; after that time it cannot promote any more, since its last look at this relay finds another term.
    fn must_have_been_seen_long_enough(&self, slot: Slot, unpromoted: bool) -> Result<(), UpstreamError> {
        let around = self.shared.surroundings();
        let before = match slot {
            Slot::None => "no slot tells whether it has been here before".to_owned(),
            _ => format!("the upstream has its slot {:?}, so it has been here before", self.config.slot),
        };
        if around.servers.is_empty() || !unpromoted {
            self.forget_what_was_seen();
            return Err(UpstreamError::NoMemory(format!(
                "this relay does not know what it has promised: its directory is new or was lost, and {before}. Nothing is acknowledged: list \
                 the cluster's servers and the other relays, [[cluster.nodes]] and [[cluster.relays]], for it to ask; {ADVICE}"
            )));
        }
        let now = Instant::now();
        let mut seen = self.shared.seen_unpromoted.lock().unwrap_or_else(PoisonError::into_inner);
        if now.duration_since(*seen.get_or_insert(now)) >= around.promotion {
            return Ok(());
        }
        Err(UpstreamError::NoMemory(format!(
            "this relay does not know what it has promised: its directory was lost, for {before}. No server was promoted; nothing is \
             acknowledged until that has been so for {} s, in which a failover that is under way would end; {ADVICE}",
            around.promotion.as_secs_f32()
        )))
    }
}
