//! Choice of the node for a unit.

use sql::Hint;
use topology::{NodeId, Role, Term};
use watermark::{Lsn, Oracle};
use wire::frontend::{Message, messages};

use super::early::EarlyNode;
use super::strong::Reach;
use crate::config::{Consistency, PoolMode, RouteTo};
use crate::core::Core;
use crate::core::pool::NodeRequest;
use crate::core::session::{ReadBound, SingleStatement, Unit, begins_read_only};

/// Settings of the session, the listener and the database that decide the route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) struct Session {
    pub route: RouteTo,
    pub mode: PoolMode,
    /// True if the client keeps its server connection.
    pub pinned: bool,
    /// True if a replica refused this unit.
    pub refused: bool,
    /// The BEGIN that was put off, if the unit is the first of its transaction.
    pub begun: Begun,
    /// True if reads see all commits that were acknowledged to any client.
    pub strong: bool,
}

/// The BEGIN ahead of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Begun {
    No,
    /// BEGIN of a transaction that may write.
    ReadWrite,
    /// BEGIN of a transaction that is declared READ ONLY, and the hint in its text.
    ReadOnly(Option<Hint>),
}

/// Decides from plain values.
pub(in crate::core) fn node_request(unit: &Unit, session: Session) -> NodeRequest {
    if session.refused || session.pinned || session.mode == PoolMode::Session {
        return NodeRequest::Primary;
    }
    if unit.primary_only {
        return NodeRequest::Primary;
    }
    let hint = match session.begun {
        Begun::No => unit.hint,
        Begun::ReadWrite => return NodeRequest::Primary,
        Begun::ReadOnly(hint) => hint.or(unit.hint),
    };
    // A transaction on a replica would see the commits before its own begin, not those before each of its reads.
    if session.strong && (!unit.read || session.begun != Begun::No) {
        return NodeRequest::Primary;
    }
    let route = match hint {
        Some(Hint::Primary) => RouteTo::Primary,
        Some(Hint::Replica) => RouteTo::Replica,
        Some(Hint::Auto) => RouteTo::Auto,
        None => session.route,
    };
    match route {
        RouteTo::Primary => NodeRequest::Primary,
        // A unit that was too long to be kept could not be sent to the primary after a replica's refusal.
        RouteTo::Replica if unit.whole => NodeRequest::Read,
        RouteTo::Auto if unit.whole && unit.read => NodeRequest::Read,
        // `P begin B E P B E S`: as with a BEGIN that was put off, the first statement in the transaction decides. After a BEGIN that has to be sent
        // by itself nothing is known: the next statement may be `txid_current()` or LOCK TABLE.
        RouteTo::Auto
            if unit.whole
                && unit.begin_read_only
                && unit.writes_nothing
                && unit.statement_kind != SingleStatement::Begin =>
        {
            NodeRequest::Read
        }
        RouteTo::Auto if unit.whole && unit.writes_nothing && session.begun != Begun::No => NodeRequest::Read,
        RouteTo::Replica | RouteTo::Auto => NodeRequest::Primary,
    }
}

/// Returns true if the first of two nodes, given their statements in flight and weights, is the less loaded.
pub(in crate::core) fn less_loaded(first: (usize, u32), second: (usize, u32)) -> bool {
    // (busy + 1) / weight, without dividing.
    (first.0 as u64 + 1) * u64::from(second.1) <= (second.0 as u64 + 1) * u64::from(first.1)
}

/// A node that may answer a read: its number, units in flight and weight.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    node: u16,
    load: usize,
    weight: u32,
}

/// Preference among the nodes for a read: a higher rank leaves out all lower ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// True if the node is known to have replayed what the client must see.
    proven: bool,
    /// True if the node is in the proxy's zone.
    same_zone: bool,
}

/// Nodes to choose from for a read: those of the highest rank.
struct Candidates {
    /// At most this many are looked at; a cluster has a handful.
    nodes: [Candidate; 64],
    count: usize,
    rank: Rank,
}

impl Candidates {
    fn new() -> Candidates {
        let rank = Rank { proven: false, same_zone: false };
        Candidates { nodes: [Candidate { node: 0, load: 0, weight: 0 }; 64], count: 0, rank }
    }

    fn add(&mut self, candidate: Candidate, rank: Rank) {
        if rank > self.rank {
            self.rank = rank;
            self.count = 0;
        }
        if rank == self.rank && self.count < self.nodes.len() {
            self.nodes[self.count] = candidate;
            self.count += 1;
        }
    }

    /// Returns the less loaded of two, chosen by two random numbers; None without candidates.
    fn choose(&self, r1: u64, r2: u64) -> Option<NodeId> {
        let count = self.count as u64;
        if count == 0 {
            return None;
        }
        let a = self.nodes[(r1 % count) as usize];
        let b = self.nodes[((r1 % count + 1 + r2 % (count - 1).max(1)) % count) as usize];
        let chosen = if less_loaded((a.load, a.weight), (b.load, b.weight)) { a } else { b };
        Some(NodeId(chosen.node))
    }
}

impl Core {
    /// Returns the kind of node that the client's unit needs.
    pub(in crate::core) fn node_request(&self, c: usize) -> NodeRequest {
        let client = &self.clients[c];
        let session = Session {
            route: client.route.unwrap_or(RouteTo::Auto),
            mode: self.pools[client.pool].database.mode,
            pinned: !client.pins.is_empty(),
            refused: client.attempts.primary,
            begun: match client.begun.statement() {
                None => Begun::No,
                Some(_) if client.unit.early => Begun::No,
                Some(begin) if begins_read_only(begin) => Begun::ReadOnly(begin.class().hint),
                Some(_) => Begun::ReadWrite,
            },
            strong: self.consistency(c) == Consistency::Strong,
        };
        node_request(&client.unit, session)
    }

    /// Returns the node for a read: the less loaded of two replicas chosen at random from those that are known to have replayed what the client must
    /// see; else of those that can be asked by a replay check (`Unit::check`); the primary if there is none. With a `primary_weight`, the primary is
    /// among those chosen from. A statement that waits for a standby gets any replica: what it waits for need not be replayed yet.
    pub(in crate::core) fn read_node(&mut self, p: usize, c: usize) -> Option<NodeId> {
        self.clients[c].unit.check = None;
        if self.view.nodes.len() <= 1 && self.view.primary.is_some() {
            // There is nothing to choose from, and its position does not matter.
            return self.view.primary;
        }
        if !self.pools[p].namespace.is_agreed() && self.view.primary.is_some() {
            // Other nodes' sessions begin with the primary's values, which no session has told yet.
            self.pools[p].settings_wanted = true;
            return self.view.primary;
        }
        let standby = self.clients[c].unit.standby;
        let Some(floor) = (if standby { Some(0) } else { self.floor(c) }) else {
            self.metrics.consistency_primary.add(1);
            return self.view.primary;
        };
        let only = match self.early_node(c) {
            EarlyNode::Any => None,
            EarlyNode::Only(node) => Some(node),
            EarlyNode::Primary => return self.view.primary,
        };
        let avoid = self.clients[c].attempts.avoid;
        let (r1, r2) = (self.random(), self.random());
        let mut late = false;
        let mut candidates = Candidates::new();
        let mut of_primary = None;
        for (i, node) in self.view.nodes.iter().enumerate() {
            let primary = self.view.primary == Some(node.node.id);
            let weight = if primary { self.settings.primary_weight } else { node.weight };
            if !(primary || node.role == Role::Replica) || !node.usable || weight == 0 || avoid == Some(node.node.id) {
                continue;
            }
            if (primary && standby) || (!primary && only.is_some_and(|only| only != node.node.id)) {
                continue;
            }
            let place = &self.pools[p].nodes[i];
            if place.is_suspect(self.now) && place.idle.is_empty() {
                continue;
            }
            let same_zone = self.settings.zone.is_some() && node.zone == self.settings.zone;
            let candidate = Candidate { node: i as u16, load: place.load(), weight };
            if primary {
                of_primary = Some((candidate, same_zone));
            } else if self.known_replayed(node).0 >= floor {
                candidates.add(candidate, Rank { proven: true, same_zone });
            } else {
                late = true;
                if self.is_verifiable(c) && self.may_check(node) {
                    candidates.add(candidate, Rank { proven: false, same_zone });
                }
            }
        }
        let proven = candidates.rank.proven;
        if let Some((candidate, same_zone)) = of_primary {
            // It has everything, and is among the replicas whichever they are.
            candidates.add(candidate, Rank { proven, same_zone });
        }
        let Some(chosen) = candidates.choose(r1, r2) else {
            if late {
                self.metrics.consistency_primary.add(1);
                self.shared.topology.want_replay();
            }
            return self.view.primary;
        };
        if !proven && self.view.primary != Some(chosen) {
            self.clients[c].unit.check = Some(Lsn(floor));
        }
        Some(chosen)
    }

    /// Returns the LSN that a replica must have replayed for this client; None if that is not known yet.
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
        self.clients[c].read_bound.resolve(oracle, term)
    }

    /// Makes the client's reads see everything that another session has seen, which issued this token.
    pub(in crate::core) fn must_see(&mut self, c: usize, token: ReadBound) {
        let read_bound = match (self.clients[c].read_bound, token) {
            (ReadBound::At { term, lsn }, ReadBound::At { term: of, lsn: other }) if (term, lsn) >= (of, other) => {
                return;
            }
            // Which of the two is later is not known yet: the primary is past both.
            (ReadBound::Wrote | ReadBound::Asked(_), _) => {
                ReadBound::Asked(self.shared.topology.oracle().ticket_for_later())
            }
            (_, token) => token,
        };
        self.clients[c].read_bound = read_bound;
    }

    /// Notes that the client has committed something, which its reads must see. Nothing waits for the commit's position: until it is known, reads go
    /// to the primary. In a cluster of one node the position is not even queried.
    pub(in crate::core) fn mark_write(&mut self, c: usize) {
        // Its reads may be given to no other node, or need not see it: should that change, the first of them asks.
        let unasked = self.view.nodes.len() < 2 || self.consistency(c) != Consistency::Session;
        self.clients[c].read_bound =
            if unasked { ReadBound::Wrote } else { ReadBound::Asked(self.shared.topology.oracle().ticket_for_later()) };
    }

    /// Sends the statements of these messages to the primary from now on: a replica refused them.
    pub(in crate::core) fn demote(&mut self, c: usize, unit: &[u8]) {
        for (message, _) in messages(unit) {
            match message {
                Message::Query { text } => {
                    let class = self.classify(c, text);
                    self.demote_executed(c, class, text);
                    self.classifier.demote(text);
                }
                Message::Parse { text, types, .. } => {
                    let class = self.classify(c, text);
                    self.demote_executed(c, class, text);
                    self.statement_for(c, text, types, class).demote();
                }
                Message::Bind { statement: name, .. } => {
                    if let Some(statement) = self.clients[c].names.get(name).cloned() {
                        self.demote_executed(c, statement.class(), statement.text());
                        statement.demote();
                    }
                }
                Message::Describe(_) | Message::Close(_) | Message::Execute { .. } | Message::FunctionCall => {}
                Message::Sync | Message::Flush | Message::Terminate => {}
                Message::CopyData | Message::CopyDone | Message::CopyFail => {}
            }
        }
    }
}

impl ReadBound {
    /// Returns the position, once it is known; None before. `term` is the timeline of the primary.
    fn resolve(&mut self, oracle: &Oracle, term: u64) -> Option<u64> {
        if let ReadBound::Asked(ticket) = *self
            && let Some(answer) = oracle.answer(ticket)
        {
            // It is a timeline's number.
            *self = ReadBound::At { term: answer.term as u32, lsn: answer.lsn };
        }
        match *self {
            ReadBound::Nothing => Some(0),
            ReadBound::Asked(_) => None,
            ReadBound::At { term: of, lsn } if u64::from(of) == term => Some(lsn.0),
            // Another timeline: everything written then that has survived lies before its primary's present position.
            ReadBound::Wrote | ReadBound::At { .. } => {
                *self = ReadBound::Asked(oracle.ticket_for_later());
                None
            }
        }
    }

    /// Reads `timeline:lsn`, as given to a session. Timeline 0: a position that can't be expressed; the primary is past it.
    pub(in crate::core) fn from_token(token: &str) -> Option<ReadBound> {
        let (term, lsn) = token.split_once(':')?;
        let (term, lsn) = (term.parse::<u32>().ok()?, lsn.parse().ok()?);
        // Only the process that has counted a term knows the meaning of its number, and never gives it out.
        let known = term != 0 && !Term { system: 0, timeline: term }.is_counted();
        Some(if known { ReadBound::At { term, lsn } } else { ReadBound::Wrote })
    }

    /// Returns the query for `SHOW kingpost.token`: the primary's insert position. Every commit that was acknowledged to this client is before that
    /// position.
    pub(in crate::core) fn token_query(term: Term) -> String {
        match term.told_timeline() {
            0 => "SELECT '0:0/0' AS \"kingpost.token\"".into(),
            timeline => {
                format!("SELECT '{timeline}:' || pg_catalog.pg_current_wal_insert_lsn() AS \"kingpost.token\"")
            }
        }
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
            ("0:0/0", Some((0, 0))),
            ("0:16/B374D848", Some((0, 0))),
            ("2147483649:16/B374D848", Some((0, 0))),
            ("1:", None),
            (":0/1", None),
            ("-1:0/1", None),
            ("1:0/1/2", None),
            ("x", None),
            ("", None),
        ] {
            let mark = ReadBound::from_token(token).map(|read_bound| match read_bound {
                ReadBound::At { term, lsn } => (term, lsn.0),
                ReadBound::Wrote => (0, 0),
                _ => unreachable!("a position"),
            });
            assert_eq!(mark, expected, "{token:?}");
        }
    }

    #[test]
    fn wants() {
        let auto = Session {
            route: RouteTo::Auto,
            mode: PoolMode::Transaction,
            pinned: false,
            refused: false,
            begun: Begun::No,
            strong: false,
        };
        let begun = |begun| Session { begun, ..auto };
        let read_only = begun(Begun::ReadOnly(None));
        let strong = Session { strong: true, ..auto };
        let read = Unit { whole: true, ..Unit::default() };
        let write = Unit { read: false, writes_nothing: false, ..read };
        let set = Unit { read: false, ..read };
        let hinted = |unit: Unit, hint| Unit { hint: Some(hint), ..unit };
        let cases = [
            (read, auto, NodeRequest::Read),
            (write, auto, NodeRequest::Primary),
            (Unit { whole: false, ..read }, auto, NodeRequest::Primary),
            (Unit { begin_read_only: true, ..write }, auto, NodeRequest::Primary),
            (Unit { begin_read_only: true, statement_kind: SingleStatement::Other, ..set }, auto, NodeRequest::Read),
            (Unit { begin_read_only: true, statement_kind: SingleStatement::Begin, ..set }, auto, NodeRequest::Primary),
            (
                Unit { begin_read_only: true, statement_kind: SingleStatement::Begin, ..hinted(set, Hint::Replica) },
                auto,
                NodeRequest::Read,
            ),
            (hinted(read, Hint::Primary), auto, NodeRequest::Primary),
            (hinted(write, Hint::Replica), auto, NodeRequest::Read),
            (Unit { whole: false, ..hinted(write, Hint::Replica) }, auto, NodeRequest::Primary),
            (read, Session { route: RouteTo::Primary, ..auto }, NodeRequest::Primary),
            (write, Session { route: RouteTo::Replica, ..auto }, NodeRequest::Read),
            (hinted(write, Hint::Auto), Session { route: RouteTo::Replica, ..auto }, NodeRequest::Primary),
            (read, Session { pinned: true, ..auto }, NodeRequest::Primary),
            (hinted(read, Hint::Replica), Session { refused: true, ..auto }, NodeRequest::Primary),
            (read, Session { mode: PoolMode::Session, ..auto }, NodeRequest::Primary),
            // An advisory lock, or a PREPARE, in spite of every setting.
            (Unit { primary_only: true, ..read }, auto, NodeRequest::Primary),
            (Unit { primary_only: true, ..hinted(write, Hint::Replica) }, auto, NodeRequest::Primary),
            (Unit { primary_only: true, ..read }, Session { route: RouteTo::Replica, ..auto }, NodeRequest::Primary),
            // The first unit of a transaction.
            (read, begun(Begun::ReadWrite), NodeRequest::Primary),
            (hinted(read, Hint::Replica), begun(Begun::ReadWrite), NodeRequest::Primary),
            (read, read_only, NodeRequest::Read),
            (write, read_only, NodeRequest::Primary),
            (set, read_only, NodeRequest::Read),
            (set, auto, NodeRequest::Primary),
            (set, begun(Begun::ReadWrite), NodeRequest::Primary),
            (Unit { whole: false, ..set }, read_only, NodeRequest::Primary),
            (Unit { primary_only: true, ..read }, read_only, NodeRequest::Primary),
            (read, begun(Begun::ReadOnly(Some(Hint::Primary))), NodeRequest::Primary),
            (write, begun(Begun::ReadOnly(Some(Hint::Replica))), NodeRequest::Read),
            (read, Session { strong: true, ..read_only }, NodeRequest::Primary),
            (read, strong, NodeRequest::Read),
            (
                Unit { begin_read_only: true, statement_kind: SingleStatement::Other, ..set },
                strong,
                NodeRequest::Primary,
            ),
            (write, Session { route: RouteTo::Replica, ..strong }, NodeRequest::Primary),
            (read, Session { route: RouteTo::Replica, ..strong }, NodeRequest::Read),
        ];
        for (unit, session, expected) in cases {
            assert_eq!(node_request(&unit, session), expected, "{unit:?} {session:?}");
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
