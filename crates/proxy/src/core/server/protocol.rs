//! The protocol state of one server connection: the messages it was sent, the answers it owes, and the request that each server message answers.
//!
//! Pure: [`Protocol::sent`] takes requests, [`Protocol::received`] takes a server's messages and says which request
//! each one answers. Each request carries a note from the caller, given back when the request is answered or skipped.
//! This module knows nothing of clients or bytes.
//!
//! PostgreSQL's behaviour (`postgres.c`): after an error in a message of the extended protocol the server skips
//! everything, Queries included, up to the next Sync. While it reads COPY data, it ignores Sync and Flush. Outside of
//! COPY, it ignores COPY data.

use std::collections::VecDeque;

use wire::message::Status;

/// A message that a server answers, or that changes its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// Answered by `ParseComplete`.
    Parse,
    /// Answered by `BindComplete`.
    Bind,
    /// Describe of a statement: answered by `ParameterDescription`, then `RowDescription` or `NoData`. Describe of a portal: answered only by the
    /// second.
    Describe,
    /// Answered by `CloseComplete`.
    Close,
    /// Answered by rows, then `CommandComplete`, `EmptyQueryResponse` or `PortalSuspended`.
    Execute,
    /// Answered by `ReadyForQuery`.
    Sync,
    /// A Query or FunctionCall: answered by any results, then `ReadyForQuery`.
    Query,
    /// `CopyDone` or `CopyFail`, sent before the server has asked for COPY data: the server does not answer it.
    CopyEnd,
    /// Placeholder without a message: the caller answers the client itself when all requests before have been answered.
    Nothing,
}

/// Data of the caller that a request carries.
pub(crate) trait Note {
    /// True if a later unit's message may mean something else when this request is skipped.
    fn is_depended_on(&self) -> bool;
}

/// The meaning of a server's message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply<N> {
    /// `ParseComplete`.
    Parsed(N),
    /// `BindComplete`.
    Bound(N),
    /// `CloseComplete`.
    Closed(N),
    /// `ParameterDescription`; the columns are still to come.
    Parameters,
    /// `RowDescription` or `NoData`, which ends a Describe.
    Described(N),
    /// `RowDescription` of rows that follow.
    Columns,
    /// A row, COPY data from the server or its end, or the beginning of such data.
    Data,
    /// `CommandComplete`, `EmptyQueryResponse` or `PortalSuspended`, with the note of the Execute that ends; `None`
    /// within a Query.
    Completed(Option<N>),
    /// `CopyInResponse`: the server reads COPY data.
    CopyIn {
        /// Syncs that were sent already and that the server ignores: they end no unit.
        ignored: Vec<N>,
    },
    /// An error: the request that failed, and the requests that the server skips after it, in order.
    Failed {
        /// `None`: the error is about a unit as a whole, or about no request.
        failed: Option<N>,
        /// Requests that get no answer any more.
        skipped: Vec<N>,
    },
    /// `ReadyForQuery`, which answers this Query or Sync.
    Ready(N),
    /// `ParameterStatus`, `NoticeResponse` or `NotificationResponse`, which answer no request.
    Aside,
    /// The message is out of place: the connection can't be used any more.
    Broken(&'static str),
}

/// A request that is still to be answered.
#[derive(Debug)]
struct Owed<N> {
    request: Request,
    /// Result of `Note::is_depended_on` when the request was sent.
    is_depended_on: bool,
    note: N,
}

/// Requests that one server connection still has to answer, and its state.
#[derive(Debug)]
pub(crate) struct Protocol<N> {
    /// Requests to be answered, oldest first.
    owed: VecDeque<Owed<N>>,
    /// The transaction status of the last `ReadyForQuery`.
    status: Status,
    /// True if an Execute in this unit ends the failed transaction that `status` is about, or its failed part, if anything behind it is run.
    recovers: bool,
    /// True if a statement of the unit whose answers arrive has succeeded: if the transaction had failed, it has not any more.
    recovered: bool,
    /// True if messages of the extended protocol were sent, and no Sync after them.
    in_unit: bool,
    /// True if the server has sent an error and skips messages up to a Sync, and that Sync has not been sent yet.
    skipping: bool,
    /// True if the server reads COPY data.
    copies_in: bool,
    /// Units (each ends in `ReadyForQuery`) whose end was sent, and units that have ended.
    units_sent: u64,
    units_ended: u64,
    /// Number of the oldest requests that are followed by a Flush.
    flushed: usize,
    /// Owed requests with `is_depended_on`; and how many of those are in units whose end was sent.
    depended: usize,
    depended_before: usize,
}

impl<N: Note> Protocol<N> {
    /// Returns the state of a connection that has just logged in.
    pub(crate) fn new() -> Protocol<N> {
        Protocol {
            owed: VecDeque::new(),
            status: Status::Idle,
            recovers: false,
            recovered: false,
            in_unit: false,
            skipping: false,
            copies_in: false,
            units_sent: 0,
            units_ended: 0,
            flushed: 0,
            depended: 0,
            depended_before: 0,
        }
    }

    // --- state ---

    /// Returns the status of the last `ReadyForQuery`, or [`Status::Transaction`] after [`begins`](Protocol::begins).
    pub(crate) fn status(&self) -> Status {
        self.status
    }

    /// True if the next message comes within a failed transaction, as far as the server has reported. Behind a ROLLBACK in the same unit it does not:
    /// should the ROLLBACK fail, then the server skips the message.
    pub(crate) fn is_failed(&self) -> bool {
        self.status == Status::Failed && !self.recovers
    }

    /// True if the server gives its present answer within a failed transaction.
    pub(crate) fn answers_in_failed(&self) -> bool {
        self.status == Status::Failed && !self.recovered
    }

    /// True if the server owes no answer. (The connection may be in the middle of a unit.)
    pub(crate) fn is_settled(&self) -> bool {
        self.owed.is_empty()
    }

    /// True if the server owes no answer and the connection is in no unit.
    pub(crate) fn is_quiet(&self) -> bool {
        self.owed.is_empty() && !self.in_unit
    }

    /// Returns the number of requests still to be answered.
    pub(crate) fn owes(&self) -> usize {
        self.owed.len()
    }

    /// Returns the request that the server's next message is about.
    pub(crate) fn front(&self) -> Option<(Request, &N)> {
        self.owed.front().map(|owed| (owed.request, &owed.note))
    }

    /// Returns the requests still to be answered, oldest first.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Request, &N)> {
        self.owed.iter().map(|owed| (owed.request, &owed.note))
    }

    /// True if messages of a unit were sent, and not its end.
    pub(crate) fn is_in_unit(&self) -> bool {
        self.in_unit
    }

    /// True if the server skips messages up to a Sync that has not been sent.
    pub(crate) fn is_skipping(&self) -> bool {
        self.skipping
    }

    /// True if the server reads COPY data.
    pub(crate) fn copies_in(&self) -> bool {
        self.copies_in
    }

    /// True if the end of some unit is still to be answered.
    pub(crate) fn owes_end(&self) -> bool {
        self.units_sent > self.units_ended
    }

    /// True if the server will answer something before it reads a further message: the end of a unit, or the answers that a Flush requests. `half`:
    /// the last message was sent in part only.
    pub(crate) fn will_answer(&self, half: bool) -> bool {
        let count = self.owed.len().saturating_sub(usize::from(half));
        let ends = |owed: &Owed<N>| matches!(owed.request, Request::Sync | Request::Query);
        !self.copies_in && (self.flushed > 0 || self.owed.iter().take(count).any(ends))
    }

    /// Returns the number of units whose end was sent and is still to be answered.
    pub(crate) fn units(&self) -> u64 {
        self.units_sent - self.units_ended
    }

    /// Returns the number of the unit to which the next message belongs.
    pub(crate) fn unit(&self) -> u64 {
        self.units_sent
    }

    /// Returns the number of the unit that ended last; valid after [`Reply::Ready`].
    pub(crate) fn last_ended(&self) -> u64 {
        self.units_ended.saturating_sub(1)
    }

    /// Takes out all notes of a lost connection, oldest first.
    pub(crate) fn abandon(&mut self) -> Vec<N> {
        let mut notes = Vec::with_capacity(self.owed.len());
        while let Some(note) = self.settle() {
            notes.push(note);
        }
        notes
    }

    /// True if the unit with this number has ended.
    pub(crate) fn has_ended(&self, unit: u64) -> bool {
        unit < self.units_ended
    }

    /// True if the meaning of the next unit's messages depends on an answer that is still to come.
    pub(crate) fn is_depended_on(&self) -> bool {
        self.depended_before > 0
    }

    // --- sent messages ---

    /// Notes that a request was sent.
    pub(crate) fn sent(&mut self, request: Request, note: N) {
        match request {
            Request::Sync | Request::Query => {
                self.in_unit = false;
                self.skipping = false;
                self.recovers = false;
                self.units_sent += 1;
                self.depended_before = self.depended;
            }
            Request::Nothing | Request::CopyEnd => {}
            _ => self.in_unit = true,
        }
        let is_depended_on = note.is_depended_on();
        if is_depended_on {
            self.depended += 1;
            if matches!(request, Request::Sync | Request::Query) {
                self.depended_before = self.depended;
            }
        }
        self.owed.push_back(Owed { request, is_depended_on, note });
    }

    /// Notes that a Flush was sent. A server that reads COPY data ignores it.
    pub(crate) fn flushes(&mut self) {
        if !self.copies_in {
            self.flushed = self.owed.len();
        }
    }

    /// Notes that `CopyDone` or `CopyFail` was sent. `note` is kept if the server has not asked for COPY data yet.
    pub(crate) fn ends_copy(&mut self, note: N) {
        if self.copies_in {
            self.copies_in = false;
        } else if !self.owed.is_empty() {
            self.sent(Request::CopyEnd, note);
        }
    }

    /// Begins a unit of which the proxy has kept a message back: its Sync is still to be sent. `skips`: nothing more is sent before that Sync.
    pub(crate) fn enters_unit(&mut self, skips: bool) {
        self.in_unit = true;
        self.skipping |= skips;
    }

    /// Notes that an Execute of a non-empty text is sent. In a failed transaction it succeeds only if it ends the transaction or its failed part:
    /// COMMIT, ROLLBACK, ROLLBACK TO.
    pub(crate) fn recovers(&mut self) {
        self.recovers = true;
    }

    /// Notes that a BEGIN was sent without a Sync behind it: if the connection is lost from here on, a transaction is lost.
    pub(crate) fn begins(&mut self) {
        self.status = Status::Transaction;
    }

    // --- received messages ---

    /// Handles a message of the server with this tag; `first` is the first byte of its payload, if there is one.
    pub(crate) fn received(&mut self, tag: u8, first: Option<u8>) -> Reply<N> {
        match tag {
            b'1' => self.answered(Request::Parse, Reply::Parsed, "ParseComplete without a Parse"),
            b'2' => self.answered(Request::Bind, Reply::Bound, "BindComplete without a Bind"),
            b'3' => self.answered(Request::Close, Reply::Closed, "CloseComplete without a Close"),
            b't' => Reply::Parameters,
            b'T' | b'n' if self.is_at(Request::Describe) => {
                self.answered(Request::Describe, Reply::Described, "a description without a Describe")
            }
            b'T' | b'n' => Reply::Columns,
            b'D' | b'd' | b'c' | b'H' | b'V' => Reply::Data,
            b'C' | b'I' | b's' => {
                self.copies_in = false;
                self.recovered |= tag == b'C';
                let ends = self.is_at(Request::Execute);
                Reply::Completed(if ends { self.settle() } else { None })
            }
            b'G' => self.copy_in(),
            b'E' => self.failed(),
            b'Z' => match first.and_then(Status::from_byte) {
                Some(status) => self.ready(status),
                None => Reply::Broken("invalid ReadyForQuery"),
            },
            b'S' | b'N' | b'A' => Reply::Aside,
            _ => Reply::Broken("a message that makes no sense here"),
        }
    }

    /// Returns the next note of a `Request::Nothing` whose turn has come: the caller sends its answer now.
    pub(crate) fn due(&mut self) -> Option<N> {
        self.pass_copy_ends();
        if self.is_at(Request::Nothing) { self.settle() } else { None }
    }

    /// Settles a `CopyDone` that the server has ignored because there was no COPY.
    fn pass_copy_ends(&mut self) {
        while self.is_at(Request::CopyEnd) {
            self.settle();
        }
    }

    fn front_request(&self) -> Option<Request> {
        self.owed.front().map(|owed| owed.request)
    }

    fn is_at(&self, request: Request) -> bool {
        self.owed.front().is_some_and(|front| front.request == request)
    }

    fn answered(&mut self, request: Request, reply: fn(N) -> Reply<N>, broken: &'static str) -> Reply<N> {
        if !self.is_at(request) {
            return Reply::Broken(broken);
        }
        match self.settle() {
            Some(note) => reply(note),
            None => Reply::Broken(broken),
        }
    }

    /// Takes out the oldest request: it was answered or skipped.
    fn settle(&mut self) -> Option<N> {
        let owed = self.owed.pop_front()?;
        self.flushed = self.flushed.saturating_sub(1);
        if matches!(owed.request, Request::Sync | Request::Query) {
            self.units_ended += 1;
        }
        Some(self.done(owed))
    }

    /// Takes the request out of the counts, and gives its note.
    fn done(&mut self, owed: Owed<N>) -> N {
        if owed.is_depended_on {
            self.depended -= 1;
            self.depended_before = self.depended_before.saturating_sub(1);
        }
        owed.note
    }

    fn copy_in(&mut self) -> Reply<N> {
        self.copies_in = true;
        // A Flush that was sent before the end of the data is ignored.
        let mut flushed = 0;
        let mut ignored = Vec::new();
        // Looks at the messages behind the COPY statement, up to CopyDone if that was sent: `Q S c`.
        loop {
            match self.owed.get(1).map(|behind| behind.request) {
                Some(Request::Sync) => {
                    // The server ignores this Sync; the one that ends the unit comes behind the data.
                    self.units_sent -= 1;
                    self.flushed = self.flushed.saturating_sub(usize::from(self.flushed > 1));
                    if let Some(owed) = self.owed.remove(1) {
                        ignored.push(self.done(owed));
                    }
                }
                Some(Request::CopyEnd) => {
                    flushed = self.flushed.saturating_sub(1);
                    if let Some(owed) = self.owed.remove(1) {
                        self.done(owed);
                    }
                    self.copies_in = false;
                    break;
                }
                _ => break,
            }
        }
        self.flushed = flushed;
        if self.is_at(Request::Execute) && !self.owed.iter().any(|owed| owed.request == Request::Sync) {
            // The Sync that ends the unit is still to be sent.
            self.in_unit = true;
        }
        Reply::CopyIn { ignored }
    }

    fn failed(&mut self) -> Reply<N> {
        self.copies_in = false;
        match self.front_request() {
            None | Some(Request::Sync | Request::Query) => {
                // The error is about the unit as a whole, or came between two requests.
                self.skipping = self.owed.is_empty() && self.in_unit;
                return Reply::Failed { failed: None, skipped: Vec::new() };
            }
            _ => {}
        }
        let mut failed = None;
        let mut skipped = Vec::new();
        while let Some(request) = self.front_request() {
            if request == Request::Sync {
                return Reply::Failed { failed, skipped };
            }
            let Some(note) = self.settle() else { break };
            match request {
                // This request did not fail itself, but now gets no answer, like everything behind the failed one.
                Request::Nothing | Request::CopyEnd => skipped.push(note),
                _ if failed.is_none() => failed = Some(note),
                _ => skipped.push(note),
            }
        }
        // The Sync that ends the skipping is still to be sent. (A Query that was sent without one was skipped, too.)
        (self.in_unit, self.skipping) = (true, true);
        Reply::Failed { failed, skipped }
    }

    fn ready(&mut self, status: Status) -> Reply<N> {
        if !matches!(self.front_request(), Some(Request::Sync | Request::Query)) {
            return Reply::Broken("ReadyForQuery out of order");
        }
        self.status = status;
        self.recovered = false;
        self.copies_in = false;
        let ended = self.settle();
        // `Q "copy nosuch from stdin"; d; c`: nothing more is owed.
        self.pass_copy_ends();
        match ended {
            Some(note) => Reply::Ready(note),
            None => Reply::Broken("ReadyForQuery out of order"),
        }
    }
}

#[cfg(any(test, fuzzing))]
#[path = "protocol_model.rs"]
pub(in crate::core) mod model;

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
