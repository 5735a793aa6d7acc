//! Verified reads: a replica is asked for its replayed position on the connection of the read, ahead of the read.
//!
//! A read may go to a replica that is not known to have replayed the read's position. Then a **replay check** goes ahead of the read, as a unit of the
//! proxy's in the same packet. Replay only moves forward, and the read takes its snapshot after the check was answered: an answer that is not below
//! the read's position proves the read. Otherwise the read's answer is dropped, and the read is dispatched again, without a check.
//!
//! ```text
//! proxy → replica   B '' kp00; E; S            B '' kp17; E; S        (one packet)
//! replica → proxy   0/5A31C20, ReadyForQuery    rows, ReadyForQuery    0/5A31C20 ≥ the position: the rows are forwarded
//!                                                                      below it: the rows are dropped, and the read runs elsewhere
//! ```
//!
//! From PostgreSQL 19 on the replica waits for the position, for [`WAIT`] at most: `Q "WAIT FOR LSN …"` in place of `B E S`.
//!
//! Only a replica of the view's term is asked: positions of two terms are never compared. An answer is a worker's own knowledge of the node, until the
//! view changes. A node that was behind is asked again after a pause.

use std::time::{Duration, Instant};

use topology::{NodeId, NodeView, Role};
use watermark::Lsn;
use wire::{Sqlstate, message, payload};

use crate::core::Core;
use crate::core::prepared::Unnamed;
use crate::core::server::{Note, Request};
use crate::core::session::begins_read_only;

/// Name of the prepared statement of replay checks: like the proxy's other names, and none of them, for numbers have no leading zero.
const NAME: &[u8] = b"kp00";
/// Query of a replay check; NULL on a server that never was a standby.
pub(in crate::core) const REPLAYED: &str = "SELECT pg_catalog.pg_last_wal_replay_lsn()";
/// First major version with `WAIT FOR LSN`.
const WAITS_SINCE: u32 = 19;
/// Longest wait of a check for the position, in milliseconds: below what keeps a read out of lanes.
const WAIT: u32 = 3;
/// Pause after a node was behind; doubles each time, up to [`LONGEST`].
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(64);
/// Pause for a node that may not be asked.
const REFUSED: Duration = Duration::from_secs(10);

/// A replay check that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) struct ReplayCheck {
    /// The position that the read behind the check must see.
    position: Lsn,
    /// True if the replica waits for the position, and false if it tells its own.
    waits: bool,
    /// The view in which the node was a replica of the position's term.
    epoch: u64,
}

/// The result of a replay check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Replayed {
    /// The node had replayed everything up to this position.
    To(Lsn),
    /// The question has failed.
    Unknown,
    /// The node may not be asked, or has answered with NULL.
    Refused,
}

impl Replayed {
    /// Returns the meaning of an error. A role that may not ask, or a server that does not know the question, answers the next one in the same way. A
    /// cancel, a time-out or a conflict with recovery says nothing about the node.
    pub(in crate::core) fn of_error(code: Option<Sqlstate>) -> Replayed {
        match code {
            Some(code) if !code.0.starts_with(b"42") => Replayed::Unknown,
            _ => Replayed::Refused,
        }
    }
}

/// One worker's knowledge of nodes from replay checks, within one view.
#[derive(Debug, Default)]
pub(in crate::core) struct ReplayChecks {
    epoch: u64,
    nodes: Vec<Checked>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Checked {
    replayed: Lsn,
    /// Checks in a row that found the node behind.
    misses: u32,
    /// Time from which the node may be checked again.
    next: Option<Instant>,
}

impl ReplayChecks {
    /// Returns the position that the node is known to have replayed; 0 if nothing is known in the view of this epoch.
    pub(in crate::core) fn replayed(&self, node: NodeId, epoch: u64) -> Lsn {
        let known = self.nodes.get(usize::from(node.0)).filter(|_| self.epoch == epoch);
        known.map_or(Lsn(0), |checked| checked.replayed)
    }

    /// True if the node's pause is over.
    fn is_due(&self, node: NodeId, epoch: u64, now: Instant) -> bool {
        let checked = self.nodes.get(usize::from(node.0)).filter(|_| self.epoch == epoch);
        checked.is_none_or(|checked| checked.next.is_none_or(|next| next <= now))
    }

    /// Records the answer to a check. Returns true if it proves the read.
    fn answered(&mut self, node: NodeId, check: ReplayCheck, answer: Replayed, epoch: u64, now: Instant) -> bool {
        if check.epoch != epoch {
            // The node may be on another term by now.
            return false;
        }
        if self.epoch != epoch {
            *self = ReplayChecks { epoch, nodes: Vec::new() };
        }
        let at = usize::from(node.0);
        if self.nodes.len() <= at {
            self.nodes.resize(at + 1, Checked::default());
        }
        let checked = &mut self.nodes[at];
        let replayed = match answer {
            Replayed::To(replayed) => replayed,
            Replayed::Unknown => Lsn(0),
            Replayed::Refused => {
                checked.next = Some(now + REFUSED);
                return false;
            }
        };
        checked.replayed = checked.replayed.max(replayed);
        let proven = replayed >= check.position;
        if proven {
            (checked.misses, checked.next) = (0, None);
        } else {
            let pause = SHORTEST.saturating_mul(1 << checked.misses.min(16)).min(LONGEST);
            checked.misses = checked.misses.saturating_add(1);
            checked.next = Some(now + pause);
        }
        proven
    }
}

impl ReplayCheck {
    /// Reads the answer from its row: the position that was replayed, or the result of the wait.
    pub(in crate::core) fn read_answer(self, row: &[u8], whole: bool) -> Replayed {
        let value = payload::only_value(row).filter(|_| whole);
        let lsn = match (self.waits, value) {
            (true, Some(b"success")) => Some(self.position),
            // (Or it has just been promoted: then nothing is known of it.)
            (true, Some(b"timeout")) => Some(Lsn(0)),
            (false, Some(value)) => std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()),
            (true, Some(_)) | (_, None) => None,
        };
        lsn.map_or(Replayed::Refused, Replayed::To)
    }
}

/// Returns the major version in a server's report of its version: `15.4 (Debian …)`, `19rc1`.
fn major(version: &str) -> Option<u32> {
    let digits = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    version[..digits].parse().ok()
}

impl Core {
    /// True if the client's unit may go to a replica behind a replay check: one whole read, outside of a transaction or the first in one that is READ
    /// ONLY, which can be sent again.
    pub(in crate::core) fn is_verifiable(&self, c: usize) -> bool {
        let client = &self.clients[c];
        self.settings.verified_reads
            && !client.attempts.behind
            && client.begun.statement().is_none_or(|begin| client.unit.early || begins_read_only(begin))
            && client.pins.is_empty()
            && client.unit.read
            && client.unit.repeatable
            && client.unit.is_one()
            && !self.view.term.is_counted()
    }

    /// True if a replay check on this node can prove a read: it is a replica whose positions are of the view's term.
    pub(in crate::core) fn may_check(&self, node: &NodeView) -> bool {
        node.role == Role::Replica
            && node.node.replayed.get() != Lsn(0)
            && self.replay_checks.is_due(node.node.id, self.view.epoch, self.now)
    }

    /// Returns the position up to which a replica is known to have replayed, by its probes and by checks.
    pub(in crate::core) fn known_replayed(&self, node: &NodeView) -> Lsn {
        node.node.replayed.get().max(self.replay_checks.replayed(node.node.id, self.view.epoch))
    }

    /// Sends the replay check for the client's unit ahead of it, if the unit needs one. The unit is kept to be sent again.
    pub(in crate::core) fn check_replay(&mut self, c: usize, s: usize) {
        let Some(position) = self.clients[c].unit.check.take() else { return };
        debug_assert!(self.clients[c].replay.is_some(), "a unit that was not kept could not be sent again");
        let server = &mut self.servers[s];
        let waits = server.reports("server_version").and_then(major).is_some_and(|major| major >= WAITS_SINCE);
        let note = || Note::ReplayCheck(ReplayCheck { position, waits, epoch: self.view.epoch });
        self.metrics.replay_checks.add(1);
        if waits {
            server.statements.set_unnamed(Unnamed::Unknown);
            server.protocol.sent(Request::Query, note());
            return self.write_server(s, |out| {
                message::query(out, &format!("WAIT FOR LSN '{position}' WITH (TIMEOUT '{WAIT}ms', NO_THROW)"));
            });
        }
        let prepared = server.statements.set_has_replay_check(true);
        if !prepared {
            server.protocol.sent(Request::Close, note());
            server.protocol.sent(Request::Parse, note());
        }
        server.protocol.sent(Request::Bind, note());
        server.protocol.sent(Request::Execute, note());
        server.protocol.sent(Request::Sync, note());
        self.write_server(s, |out| {
            if !prepared {
                // After a Parse that failed it is not known if the statement exists.
                message::close_statement(out, NAME);
                message::parse(out, NAME, REPLAYED.as_bytes(), b"\0\0");
            }
            message::bind(out, b"", NAME);
            message::execute(out, b"");
            message::empty(out, b'S');
        });
    }

    /// Handles the end of a replay check. Returns true if the read behind it is proven, or has no client any more.
    pub(in crate::core) fn replay_checked(&mut self, s: usize, check: ReplayCheck) -> bool {
        let server = &mut self.servers[s];
        let answer = server.replayed.take().unwrap_or(Replayed::Unknown);
        if !matches!(answer, Replayed::To(_)) {
            server.statements.set_has_replay_check(false);
        }
        let proven = self.replay_checks.answered(server.node, check, answer, self.view.epoch, self.now);
        if proven {
            return true;
        }
        let Some(c) = server.client else { return true };
        self.metrics.replay_checks_behind.add(1);
        let client = &mut self.clients[c];
        client.output.retract(&mut self.buffers);
        client.attempts.behind = true;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_proves_a_read_within_its_view_only() {
        let now = Instant::now();
        let check = |position, epoch| ReplayCheck { position: Lsn(position), waits: false, epoch };
        for (position, sent_in, answer, epoch, proven) in [
            (5, 1, Replayed::To(Lsn(5)), 1, true),
            (5, 1, Replayed::To(Lsn(9)), 1, true),
            (5, 1, Replayed::To(Lsn(4)), 1, false),
            (5, 1, Replayed::Refused, 1, false),
            (5, 1, Replayed::Unknown, 1, false),
            // The view has changed since: the position may be of another term.
            (5, 1, Replayed::To(Lsn(9)), 2, false),
        ] {
            let mut checks = ReplayChecks::default();
            let answered = checks.answered(NodeId(3), check(position, sent_in), answer, epoch, now);
            assert_eq!(answered, proven, "{position} {sent_in} {answer:?} {epoch}");
        }
    }

    #[test]
    fn knowledge_ends_with_its_view() {
        let now = Instant::now();
        let mut checks = ReplayChecks::default();
        let check = |epoch| ReplayCheck { position: Lsn(5), waits: false, epoch };
        assert!(checks.answered(NodeId(1), check(1), Replayed::To(Lsn(7)), 1, now));
        assert!(!checks.answered(NodeId(1), check(1), Replayed::To(Lsn(3)), 1, now));
        assert_eq!(checks.replayed(NodeId(1), 1), Lsn(7), "replay does not go back");
        assert_eq!((checks.replayed(NodeId(1), 2), checks.replayed(NodeId(0), 1)), (Lsn(0), Lsn(0)));
        assert!(!checks.answered(NodeId(0), check(2), Replayed::To(Lsn(4)), 2, now));
        assert_eq!((checks.replayed(NodeId(1), 2), checks.replayed(NodeId(0), 2)), (Lsn(0), Lsn(4)));
    }

    #[test]
    fn a_node_that_is_behind_is_left_alone_for_longer_and_longer() {
        let begun = Instant::now();
        let mut checks = ReplayChecks::default();
        let check = ReplayCheck { position: Lsn(5), waits: false, epoch: 1 };
        let mut now = begun;
        for pause in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert!(checks.is_due(NodeId(0), 1, now));
            assert!(!checks.answered(NodeId(0), check, Replayed::To(Lsn(1)), 1, now));
            let pause = Duration::from_millis(pause);
            assert!(!checks.is_due(NodeId(0), 1, now + pause / 2) && checks.is_due(NodeId(0), 1, now + pause));
            now += pause;
        }
        assert!(checks.answered(NodeId(0), check, Replayed::To(Lsn(5)), 1, now));
        assert!(checks.is_due(NodeId(0), 1, now));
        assert!(!checks.answered(NodeId(0), check, Replayed::Refused, 1, now));
        assert!(!checks.is_due(NodeId(0), 1, now + REFUSED / 2) && checks.is_due(NodeId(0), 2, now));
    }

    #[test]
    fn answers() {
        let row = |value: &[u8]| [&b"\0\x01"[..], &(value.len() as u32).to_be_bytes(), value].concat();
        let read_answer =
            |row: &[u8], whole| ReplayCheck { position: Lsn(5), waits: false, epoch: 1 }.read_answer(row, whole);
        let waited = |row: &[u8]| ReplayCheck { position: Lsn(5), waits: true, epoch: 1 }.read_answer(row, true);
        assert_eq!(read_answer(&row(b"16/B374D848"), true), Replayed::To(Lsn(0x16_b374_d848)));
        assert_eq!(read_answer(&row(b"16/B374D848"), false), Replayed::Refused);
        assert_eq!(read_answer(b"\0\x01\xff\xff\xff\xff", true), Replayed::Refused);
        for bad in [&b""[..], b"\0", b"\0\0", b"\0\x01\0\0\0\x09a", &row(b"x")] {
            assert_eq!(read_answer(bad, true), Replayed::Refused, "{bad:?}");
            assert_eq!(waited(bad), Replayed::Refused, "{bad:?}");
        }
        assert_eq!(waited(&row(b"success")), Replayed::To(Lsn(5)));
        assert_eq!(waited(&row(b"timeout")), Replayed::To(Lsn(0)));
        assert_eq!(waited(&row(b"not in recovery")), Replayed::Refused);
    }

    #[test]
    fn errors() {
        for (code, expected) in [
            (Some(b"42501"), Replayed::Refused),
            (Some(b"42601"), Replayed::Refused),
            (None, Replayed::Refused),
            (Some(b"57014"), Replayed::Unknown),
            (Some(b"40001"), Replayed::Unknown),
        ] {
            assert_eq!(Replayed::of_error(code.copied().map(Sqlstate)), expected, "{code:?}");
        }
    }

    #[test]
    fn versions() {
        for (version, expected) in
            [("19rc1", Some(19)), ("15.4 (Debian 15.4-1)", Some(15)), ("9", Some(9)), ("", None), ("x19", None)]
        {
            assert_eq!(major(version), expected, "{version}");
        }
    }
}
