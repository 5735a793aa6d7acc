//! Where a unit goes.

use std::sync::atomic::Ordering;

use sql::Hint;
use topology::{NodeId, Role};
use watermark::Oracle;

use super::Core;
use super::client::{Mark, Unit};
use super::pool::Want;
use super::statistics::{End, Timing};
use super::strong::Reach;
use super::trace::Outcome;
use crate::config::{Consistency, PoolMode, RouteTo};

/// What the session, the listener and the database say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Session {
    pub route: RouteTo,
    pub mode: PoolMode,
    /// It keeps its server connection.
    pub pinned: bool,
    /// A replica refused this unit, or it is part of a transaction that is to be begun.
    pub refused: bool,
    /// Its reads see what anybody has committed.
    pub strong: bool,
}

/// The decision, from plain values.
pub(super) fn want(unit: &Unit, session: Session) -> Want {
    if session.refused || session.pinned || session.mode == PoolMode::Session {
        return Want::Primary;
    }
    // A transaction on a replica would see what was committed before it began, not before each of its reads.
    if session.strong && !unit.read {
        return Want::Primary;
    }
    let route = match unit.hint {
        Some(Hint::Primary) => RouteTo::Primary,
        Some(Hint::Replica) => RouteTo::Replica,
        Some(Hint::Auto) => RouteTo::Auto,
        None => session.route,
    };
    match route {
        RouteTo::Primary => Want::Primary,
        // A unit that was too long to be kept could not be sent to the primary after a replica's refusal.
        RouteTo::Replica if unit.whole => Want::Read,
        RouteTo::Auto if unit.whole && (unit.read || unit.begin_read_only) => Want::Read,
        RouteTo::Replica | RouteTo::Auto => Want::Primary,
    }
}

/// Of two nodes with so many statements in flight and such weights, is the first the less loaded?
pub(super) fn less_loaded(first: (usize, u32), second: (usize, u32)) -> bool {
    // (busy + 1) / weight, without dividing.
    (first.0 as u64 + 1) * u64::from(second.1) <= (second.0 as u64 + 1) * u64::from(first.1)
}

impl Core {
    /// What the client's unit needs.
    pub(super) fn want(&self, c: usize) -> Want {
        let client = &self.clients[c];
        let session = Session {
            route: client.route.unwrap_or(RouteTo::Auto),
            mode: self.pools[client.pool].database.mode,
            pinned: !client.pins.is_empty(),
            refused: client.again.primary || client.begun.is_some(),
            strong: self.consistency(c) == Consistency::Strong,
        };
        want(&client.unit, session)
    }

    /// The node for a read: the less loaded of two replicas chosen at random from those that have replayed what the client
    /// must see; the primary if there is none.
    pub(super) fn read_node(&mut self, p: usize, c: usize) -> Option<NodeId> {
        let Some(floor) = self.floor(c) else {
            self.metrics.consistency_primary.add(1);
            return self.view.primary;
        };
        let avoid = self.clients[c].again.avoid;
        let (r1, r2) = (self.random(), self.random());
        let mut late = false;
        // At most this many replicas are looked at; a cluster has a handful.
        let mut fit: [(u16, usize, u32); 64] = [(0, 0, 0); 64];
        let mut count = 0;
        let mut zoned = false;
        for (i, node) in self.view.nodes.iter().enumerate() {
            if node.role != Role::Replica || !node.usable || node.weight == 0 || avoid == Some(node.node.id) {
                continue;
            }
            let place = &self.pools[p].nodes[i];
            if place.is_suspect(self.now) && place.idle.is_empty() {
                continue;
            }
            if node.node.replayed.get().0 < floor {
                late = true;
                continue;
            }
            let same_zone = self.settings.zone.is_some() && node.zone == self.settings.zone;
            if same_zone && !zoned {
                zoned = true;
                count = 0;
            }
            if zoned == same_zone && count < fit.len() {
                fit[count] = (i as u16, place.load(), node.weight);
                count += 1;
            }
        }
        if count == 0 {
            if late {
                self.metrics.consistency_primary.add(1);
                self.shared.topology.want_replay();
            }
            return self.view.primary;
        }
        let a = fit[(r1 % count as u64) as usize];
        let b = fit[((r1 % count as u64 + 1 + r2 % (count as u64 - 1).max(1)) % count as u64) as usize];
        let chosen = if less_loaded((a.1, a.2), (b.1, b.2)) { a } else { b };
        Some(NodeId(chosen.0))
    }

    /// The LSN that a replica must have replayed for this client; None if that is not known yet.
    fn floor(&mut self, c: usize) -> Option<u64> {
        match self.consistency(c) {
            Consistency::Eventual => return Some(0),
            Consistency::Session => {}
            Consistency::Strong => {
                let term = u64::from(self.view.term.timeline);
                return match self.clients[c].unit.reach {
                    Reach::At { term: of, lsn } if of == term => Some(lsn.0),
                    _ => None,
                };
            }
        }
        let oracle = self.shared.topology.oracle();
        let term = u64::from(self.view.term.timeline);
        self.clients[c].mark.resolve(oracle, term)
    }

    /// The client's reads must see what another session has seen, which gave it this.
    pub(super) fn must_see(&mut self, c: usize, token: Mark) {
        let mark = match (self.clients[c].mark, token) {
            (Mark::At { term, lsn }, Mark::At { term: of, lsn: other }) if (term, lsn) >= (of, other) => return,
            // Which of the two is later is not known yet: the primary is past both.
            (Mark::Wrote | Mark::Asked(_), _) => Mark::Asked(self.shared.topology.oracle().ticket_for_later()),
            (_, token) => token,
        };
        self.clients[c].mark = mark;
    }

    /// The client has committed something: its reads must see it. Nobody waits for where that was: until it is known, reads go to
    /// the primary. Where there is no other node, nobody even asks.
    pub(super) fn mark_write(&mut self, c: usize) {
        let alone = self.view.nodes.len() < 2;
        self.clients[c].mark =
            if alone { Mark::Wrote } else { Mark::Asked(self.shared.topology.oracle().ticket_for_later()) };
    }

    /// A server is being used for one more unit of its client: counted by destination.
    pub(super) fn count_statement(&self, s: usize) {
        if self.is_primary(s) { self.metrics.statements_primary.add(1) } else { self.metrics.statements_replica.add(1) }
    }

    /// A statement of this shape is being sent; the unit that it is in is counted under the last of its statements.
    ///
    /// `spoken`: the client has just sent this text.
    pub(super) fn count_begin(&mut self, c: usize, s: usize, key: u64, text: &[u8], spoken: bool) {
        let key = self.statistics.begin(key, text);
        let span = match self.servers[s].timing.span.take() {
            None => self.trace_begin(c, s, text, spoken),
            Some(span) => Some(span.again(text)),
        };
        self.servers[s].timing = Timing { key, since: self.now, span };
    }

    /// A unit has ended; `heard`: its client was given the answer.
    pub(super) fn count_end(&mut self, s: usize, heard: bool) {
        let primary = self.is_primary(s);
        let server = &mut self.servers[s];
        let (rows, error) = (std::mem::take(&mut server.rows), server.erred.take());
        let Some(timing) = server.ended.take().filter(|_| heard) else { return };
        if let Some(span) = timing.span {
            self.trace_end(*span, rows, error.map_or(Outcome::Done, |code| Outcome::Failed(code.0)));
        }
        let failed = error.is_some();
        let elapsed = self.now.saturating_duration_since(timing.since);
        let end = End { elapsed, rows, failed, primary };
        if let Some(statement) = self.statistics.end(timing.key, end, self.settings.slow_statement, self.now) {
            let server = &self.servers[s];
            let key = &self.pools[server.pool].key;
            self.metrics.statements_slow.add(1);
            tracing::info!(
                target: "kingpost::slow",
                millis = elapsed.as_millis() as u64,
                rows,
                failed,
                node = self.view.node(server.node).map(|node| node.node.name.as_str()),
                database = &*key.database,
                user = &*key.user,
                statement,
                "slow statement"
            );
        }
    }

    /// A replica refused these messages: their statements go to the primary from now on.
    pub(super) fn demote(&mut self, c: usize, unit: &[u8]) {
        let mut rest = unit;
        while let Ok(Some(frame)) = wire::Frame::read(rest) {
            let Some(data) = rest.get(wire::HEADER..frame.total()) else { return };
            match frame.tag {
                b'Q' => {
                    if let Some((text, _)) = wire::payload::cstr(data) {
                        self.classifier.demote(text);
                    }
                }
                b'P' => {
                    if let Some((_, text, types)) = wire::payload::parse(data) {
                        self.statement(c, text, types).demoted.store(true, Ordering::Relaxed);
                    }
                }
                b'B' => {
                    if let Some((_, name, _)) = wire::payload::bind(data)
                        && let Some(statement) = self.statement_of(c, name)
                    {
                        statement.demoted.store(true, Ordering::Relaxed);
                    }
                }
                _ => {}
            }
            rest = &rest[frame.total()..];
        }
    }
}

impl Mark {
    /// The position, once it is known; None before. `term` is the timeline of the primary.
    fn resolve(&mut self, oracle: &Oracle, term: u64) -> Option<u64> {
        if let Mark::Asked(ticket) = *self
            && let Some(answer) = oracle.answer(ticket)
        {
            // It is a timeline's number.
            *self = Mark::At { term: answer.term as u32, lsn: answer.lsn };
        }
        match *self {
            Mark::Nothing => Some(0),
            Mark::Asked(_) => None,
            Mark::At { term: of, lsn } if u64::from(of) == term => Some(lsn.0),
            // Another timeline: what was written then and what survived of it lies before where its primary is now.
            Mark::Wrote | Mark::At { .. } => {
                *self = Mark::Asked(oracle.ticket_for_later());
                None
            }
        }
    }

    /// From `timeline:lsn`, as a session was told it.
    pub(super) fn from_token(token: &str) -> Option<Mark> {
        let (term, lsn) = token.split_once(':')?;
        let term = term.parse::<u32>().ok()?;
        Some(Mark::At { term, lsn: lsn.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens() {
        for (token, expected) in [
            ("2:0/1a2b", Some((2, 0x1a2b))),
            ("1:16/B374D848", Some((1, 0x16_b374_d848))),
            ("1:", None),
            (":0/1", None),
            ("-1:0/1", None),
            ("1:0/1/2", None),
            ("x", None),
            ("", None),
        ] {
            let mark = Mark::from_token(token).map(|mark| match mark {
                Mark::At { term, lsn } => (term, lsn.0),
                _ => unreachable!("a position"),
            });
            assert_eq!(mark, expected, "{token:?}");
        }
    }

    #[test]
    fn wants() {
        let auto =
            Session { route: RouteTo::Auto, mode: PoolMode::Transaction, pinned: false, refused: false, strong: false };
        let strong = Session { strong: true, ..auto };
        let read = Unit { whole: true, ..Unit::default() };
        let write = Unit { read: false, ..read };
        let hinted = |unit: Unit, hint| Unit { hint: Some(hint), ..unit };
        let cases = [
            (read, auto, Want::Read),
            (write, auto, Want::Primary),
            (Unit { whole: false, ..read }, auto, Want::Primary),
            (Unit { begin_read_only: true, ..write }, auto, Want::Read),
            (hinted(read, Hint::Primary), auto, Want::Primary),
            (hinted(write, Hint::Replica), auto, Want::Read),
            (Unit { whole: false, ..hinted(write, Hint::Replica) }, auto, Want::Primary),
            (read, Session { route: RouteTo::Primary, ..auto }, Want::Primary),
            (write, Session { route: RouteTo::Replica, ..auto }, Want::Read),
            (hinted(write, Hint::Auto), Session { route: RouteTo::Replica, ..auto }, Want::Primary),
            (read, Session { pinned: true, ..auto }, Want::Primary),
            (hinted(read, Hint::Replica), Session { refused: true, ..auto }, Want::Primary),
            (read, Session { mode: PoolMode::Session, ..auto }, Want::Primary),
            (read, strong, Want::Read),
            (Unit { begin_read_only: true, ..write }, strong, Want::Primary),
            (write, Session { route: RouteTo::Replica, ..strong }, Want::Primary),
            (read, Session { route: RouteTo::Replica, ..strong }, Want::Read),
        ];
        for (unit, session, expected) in cases {
            assert_eq!(want(&unit, session), expected, "{unit:?} {session:?}");
        }
    }

    #[test]
    fn load_is_weighed() {
        assert!(less_loaded((0, 1), (1, 1)));
        assert!(!less_loaded((1, 1), (0, 1)));
        assert!(less_loaded((1, 2), (1, 1)));
        assert!(less_loaded((2, 3), (0, 1)));
        assert!(!less_loaded((3, 3), (0, 1)));
    }
}
