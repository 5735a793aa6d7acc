//! A transaction whose BEGIN was put off: its client believes it open, and no server knows of it.

use std::cell::RefCell;
use std::sync::Arc;

use topology::{NodeId, Term};

use crate::core::memory::{Spare, keep_spare, take_spare};
use crate::core::prepared::Statement;

/// The transaction of a client. Takes the room of one pointer while there is none.
#[derive(Debug, Default)]
pub(in crate::core) struct PutOff(Option<Box<Transaction>>);

#[derive(Debug, Default)]
struct Transaction {
    begin: Option<PutOffBegin>,
    reads: Option<EarlyReads>,
}

/// A BEGIN that was answered and not sent.
#[derive(Debug, Clone)]
pub(in crate::core) struct PutOffBegin {
    pub statement: Arc<Statement>,
    /// True if it came by Bind and Execute, which leave a portal behind; a Query leaves none.
    pub leaves_portal: bool,
}

/// The replica of a transaction's early reads (`routing::early`), and the view in which it answered the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) struct EarlyReads {
    pub node: NodeId,
    pub epoch: u64,
    pub term: Term,
}

impl EarlyReads {
    /// Returns the replica, in the view in which it has answered; None in any other, whose nodes may have other numbers.
    pub(in crate::core) fn node(self, epoch: u64) -> Option<NodeId> {
        (self.epoch == epoch).then_some(self.node)
    }
}

thread_local! {
    /// Unused boxes: a client that begins transactions again and again allocates nothing.
    static SPARE: Spare<Transaction> = const { RefCell::new(Vec::new()) };
}

impl PutOff {
    /// True if there is such a transaction.
    pub(in crate::core) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// True if there is none.
    pub(in crate::core) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the statement that begins the transaction.
    pub(in crate::core) fn statement(&self) -> Option<&Arc<Statement>> {
        self.0.as_ref()?.begin.as_ref().map(|begin| &begin.statement)
    }

    /// Begins a transaction.
    pub(in crate::core) fn begin(&mut self, begin: PutOffBegin) {
        let transaction = self.0.get_or_insert_with(|| take_spare(&SPARE));
        transaction.begin = Some(begin);
    }

    /// Ends the transaction: it has failed, is over, or its BEGIN is sent now.
    pub(in crate::core) fn take(&mut self) -> Option<PutOffBegin> {
        let mut transaction = self.0.take()?;
        let begin = transaction.begin.take();
        transaction.reads = None;
        keep_spare(&SPARE, transaction);
        begin
    }

    /// Returns the early reads of the transaction, if it has had one.
    pub(in crate::core) fn reads(&self) -> Option<EarlyReads> {
        self.0.as_ref()?.reads
    }

    /// Notes an early read.
    pub(in crate::core) fn has_read(&mut self, reads: EarlyReads) {
        if let Some(transaction) = &mut self.0 {
            transaction.reads = Some(reads);
        }
    }
}
