//! Early reads: the reads of a READ COMMITTED transaction before its first write, on a replica.
//!
//! Under READ COMMITTED each statement has its own snapshot. A transaction whose BEGIN was put off, and that has only read so far, therefore needs to
//! exist on no server: its reads run on a replica, each by itself, and its client is told that the transaction is open. The first statement that is
//! not such a read begins the transaction on the primary. COMMIT and ROLLBACK of a transaction that has only read are answered by the proxy.
//!
//! ```text
//! client → proxy   BEGIN    SELECT …           SELECT …     UPDATE …          COMMIT
//! proxy → client   BEGIN T  rows, T            rows, T      UPDATE 1, T       COMMIT I
//! replica                   SELECT …, I        SELECT …, I
//! primary                                                   BEGIN; UPDATE …   COMMIT
//! ```
//!
//! A later statement of the transaction never sees less than an earlier one: all early reads run on one replica, where replay only moves forward, and
//! the primary of the same term is past every replica. When the term has changed, the transaction is lost, as on any server.

use sql::Flags;
use topology::NodeId;
use wire::message;

use crate::config::{Consistency, RouteTo, TransactionReads};
use crate::core::Core;
use crate::core::prepared::is_read_committed;
use crate::core::session::{Aborted, EarlyReads, SingleStatement, Unit, begins_read_only};

/// Nodes that an early read may run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum EarlyNode {
    /// Each replica: the unit is no early read, or the first of its transaction.
    Any,
    /// Only this replica, or the primary.
    Only(NodeId),
    /// The primary.
    Primary,
}

/// State of a transaction whose BEGIN was put off, and settings of its session.
#[derive(Debug, Clone, Copy)]
struct Transaction {
    reads: TransactionReads,
    consistency: Consistency,
    route: RouteTo,
    /// True if the transaction is known to be READ COMMITTED, and not READ ONLY (the whole of such a transaction may run on a replica).
    read_committed: bool,
    /// True if the client has session state, or a replica has refused the unit.
    bound: bool,
    /// True if the time of the whole transaction is limited: an early read does not know when its transaction began.
    limited: bool,
    /// True if terms are counted: positions can't be compared then.
    counted: bool,
}

/// Decides from plain values if the unit is an early read.
fn is_early(unit: &Unit, transaction: Transaction) -> bool {
    let describes = unit.end == b'S' && !unit.bound && !unit.executed;
    transaction.reads == TransactionReads::Replica
        && transaction.consistency != Consistency::Strong
        && transaction.route != RouteTo::Primary
        && transaction.read_committed
        && !transaction.bound
        && !transaction.limited
        && !transaction.counted
        && unit.whole
        && unit.read
        && unit.repeatable
        && !unit.begin_time
        && !unit.primary_only
        && !unit.standby
        && unit.hint != Some(sql::Hint::Primary)
        && unit.statement_kind == SingleStatement::Read
        && (unit.is_one() || describes)
}

impl Core {
    /// True if the client's unit, in a transaction whose BEGIN was put off, is an early read.
    pub(in crate::core) fn is_early(&self, c: usize) -> bool {
        let client = &self.clients[c];
        let Some(begin) = client.begun.statement() else { return false };
        let (pool, class) = (&self.pools[client.pool], begin.class());
        let reads = client.transaction_reads.unwrap_or(pool.database.transaction_reads);
        if reads == TransactionReads::Primary || self.view.nodes.len() < 2 {
            return false;
        }
        let by_default = || match client.params.get("default_transaction_isolation") {
            Some(level) => is_read_committed(level),
            None => pool.namespace.is_read_committed(),
        };
        let transaction = Transaction {
            reads,
            consistency: self.consistency(c),
            route: client.route.unwrap_or(RouteTo::Auto),
            read_committed: !begins_read_only(begin)
                && !class.flags.has(Flags::ONE_SNAPSHOT)
                && class.hint != Some(sql::Hint::Primary)
                && by_default(),
            bound: self.is_bound(c) || client.attempts.primary,
            limited: pool.database.time_limits.transaction.is_some(),
            counted: self.view.term.is_counted(),
        };
        is_early(&client.unit, transaction)
    }

    /// Returns the nodes on which the client's unit may run.
    pub(in crate::core) fn early_node(&self, c: usize) -> EarlyNode {
        let client = &self.clients[c];
        match client.begun.reads().filter(|_| client.unit.early) {
            None => EarlyNode::Any,
            Some(reads) => reads.node(self.view.epoch).map_or(EarlyNode::Primary, EarlyNode::Only),
        }
    }

    /// True if the term has changed since the early reads of the client's transaction: the primary may not have what they have seen. The
    /// transaction is lost then.
    pub(in crate::core) fn loses_early_reads(&mut self, c: usize) -> bool {
        let term = self.view.term;
        let client = &mut self.clients[c];
        if client.begun.reads().is_none_or(|reads| reads.term == term) {
            return false;
        }
        client.begun.take();
        client.aborted = Aborted::Untold;
        client.unit.reset();
        self.metrics.transactions_lost.add(1);
        true
    }

    /// Ends an early read: the client hears that its transaction is open still, or has failed.
    pub(in crate::core) fn early_read_done(&mut self, c: usize, s: usize, failed: bool) {
        if failed {
            self.fail_begun(c);
        } else {
            let reads = EarlyReads { node: self.servers[s].node, epoch: self.view.epoch, term: self.view.term };
            self.clients[c].begun.has_read(reads);
            self.metrics.early_reads.add(1);
        }
        let status = self.clients[c].status();
        self.write_client(c, |out| message::ready(out, status));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_units_are_early() {
        let unit = Unit { whole: true, statement_kind: SingleStatement::Read, end: b'Q', ..Unit::default() };
        let transaction = Transaction {
            reads: TransactionReads::Replica,
            consistency: Consistency::Session,
            route: RouteTo::Auto,
            read_committed: true,
            bound: false,
            limited: false,
            counted: false,
        };
        let executed = Unit { end: b'S', bound: true, executed: true, ..unit };
        for (unit, early) in [
            (unit, true),
            (executed, true),
            // Parse and Describe, or Parse alone.
            (Unit { end: b'S', single: false, ..unit }, true),
            (Unit { single: false, ..executed }, false),
            (Unit { executed: false, ..executed }, false),
            (Unit { end: b'H', whole: false, ..executed }, false),
            (Unit { read: false, ..unit }, false),
            (Unit { repeatable: false, ..unit }, false),
            (Unit { begin_time: true, ..unit }, false),
            (Unit { primary_only: true, ..unit }, false),
            (Unit { standby: true, ..unit }, false),
            (Unit { hint: Some(sql::Hint::Primary), ..unit }, false),
            (Unit { hint: Some(sql::Hint::Replica), ..unit }, true),
            (Unit { statement_kind: SingleStatement::Other, ..unit }, false),
        ] {
            assert_eq!(is_early(&unit, transaction), early, "{unit:?}");
        }
        for (transaction, early) in [
            (Transaction { reads: TransactionReads::Primary, ..transaction }, false),
            (Transaction { consistency: Consistency::Eventual, ..transaction }, true),
            (Transaction { consistency: Consistency::Strong, ..transaction }, false),
            (Transaction { route: RouteTo::Primary, ..transaction }, false),
            (Transaction { route: RouteTo::Replica, ..transaction }, true),
            (Transaction { read_committed: false, ..transaction }, false),
            (Transaction { bound: true, ..transaction }, false),
            (Transaction { limited: true, ..transaction }, false),
            (Transaction { counted: true, ..transaction }, false),
        ] {
            assert_eq!(is_early(&unit, transaction), early, "{transaction:?}");
        }
    }
}
