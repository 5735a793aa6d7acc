//! The protocol state of one server connection: what it has been sent, what it owes for that, and what each of its messages ends.
//!
//! Pure: requests in ([`Protocol::sent`]), a server's messages in ([`Protocol::received`]), and out comes which request a message
//! answers. Each request carries a note of the caller's, which comes back when it is answered or skipped. Nothing in here knows of
//! clients or bytes.
//!
//! What PostgreSQL does (`postgres.c`): after an error in an extended-protocol message it skips what it gets, Queries included, up to the
//! next Sync. While it reads COPY data it ignores Sync and Flush; outside of COPY it ignores COPY data.

use std::collections::VecDeque;

use wire::message::Status;

/// A message that a server answers, or that changes what it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// Answered by `ParseComplete`.
    Parse,
    /// By `BindComplete`.
    Bind,
    /// Of a statement: by `ParameterDescription`, and `RowDescription` or `NoData`. Of a portal: by the latter.
    Describe,
    /// By `CloseComplete`.
    Close,
    /// By rows, and `CommandComplete`, `EmptyQueryResponse` or `PortalSuspended`.
    Execute,
    /// By `ReadyForQuery`.
    Sync,
    /// By anything, and `ReadyForQuery`. So is a function call.
    Query,
    /// `CopyDone` or `CopyFail`, sent before the server has asked for COPY data: the server does not answer it.
    CopyEnd,
    /// Nothing was sent: the caller answers the client by itself when everything before has been answered.
    Nothing,
}

/// What a request's note says.
pub(crate) trait Note {
    /// True if a message of a later unit may mean something else when this request is skipped.
    fn is_depended_on(&self) -> bool;
}

/// What a server's message is.
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
    /// `CommandComplete`, `EmptyQueryResponse` or `PortalSuspended`: with the Execute that it ends; None inside of a Query.
    Completed(Option<N>),
    /// `CopyInResponse`: the server reads COPY data.
    CopyIn {
        /// The Syncs that had been sent, and that it ignores: they end nothing.
        ignored: Vec<N>,
    },
    /// An error. The request that failed, if there is one, and what the server skips after it, in order.
    Failed {
        /// None: it is about no request, or about a unit as a whole.
        failed: Option<N>,
        /// Not answered any more.
        skipped: Vec<N>,
    },
    /// `ReadyForQuery`, which ends this Query or Sync.
    Ready(N),
    /// `ParameterStatus`, `NoticeResponse` or `NotificationResponse`: it answers nothing.
    Aside,
    /// The message makes no sense: the connection can't be used any more.
    Broken(&'static str),
}

/// A request that is to be answered.
#[derive(Debug)]
struct Owed<N> {
    request: Request,
    /// As its note said when it was sent.
    is_depended_on: bool,
    note: N,
}

/// What one server connection owes, and the state that it is in.
#[derive(Debug)]
pub(crate) struct Protocol<N> {
    /// Oldest first.
    owed: VecDeque<Owed<N>>,
    /// As of its last `ReadyForQuery`.
    status: Status,
    /// Extended-protocol messages were sent, and no Sync after them.
    in_unit: bool,
    /// The server has given an error, and skips what it gets up to a Sync, which has not been sent yet.
    skipping: bool,
    /// The server reads COPY data.
    copies_in: bool,
    /// How many units (each ends in `ReadyForQuery`) were sent to their end, and how many have ended.
    units_sent: u64,
    units_ended: u64,
    /// How many owed requests have a note that is depended on; and how many of these requests are in units whose end was sent.
    depended: usize,
    depended_before: usize,
}

impl<N: Note> Protocol<N> {
    /// Of a connection that has just logged in.
    pub(crate) fn new() -> Protocol<N> {
        Protocol {
            owed: VecDeque::new(),
            status: Status::Idle,
            in_unit: false,
            skipping: false,
            copies_in: false,
            units_sent: 0,
            units_ended: 0,
            depended: 0,
            depended_before: 0,
        }
    }

    // --- what is so ---

    /// The status of its last `ReadyForQuery`, or [`Status::Transaction`] after [`begins`](Protocol::begins).
    pub(crate) fn status(&self) -> Status {
        self.status
    }

    /// True if it owes nothing. (It may be in the middle of a unit.)
    pub(crate) fn is_settled(&self) -> bool {
        self.owed.is_empty()
    }

    /// True if it owes nothing and is in no unit.
    pub(crate) fn is_quiet(&self) -> bool {
        self.owed.is_empty() && !self.in_unit
    }

    /// How many answers it owes.
    pub(crate) fn owes(&self) -> usize {
        self.owed.len()
    }

    /// The request that its next message is about.
    pub(crate) fn front(&self) -> Option<(Request, &N)> {
        self.owed.front().map(|owed| (owed.request, &owed.note))
    }

    /// What it owes, oldest first.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Request, &N)> {
        self.owed.iter().map(|owed| (owed.request, &owed.note))
    }

    /// Messages of a unit were sent, and not its end.
    pub(crate) fn is_in_unit(&self) -> bool {
        self.in_unit
    }

    /// It skips what it gets, up to a Sync that has not been sent.
    pub(crate) fn is_skipping(&self) -> bool {
        self.skipping
    }

    /// It reads COPY data.
    pub(crate) fn copies_in(&self) -> bool {
        self.copies_in
    }

    /// True if it owes the end of a unit.
    pub(crate) fn owes_end(&self) -> bool {
        self.units_sent > self.units_ended
    }

    /// The number of the unit that the next message is part of.
    pub(crate) fn unit(&self) -> u64 {
        self.units_sent
    }

    /// The number of the unit that has ended last; to be asked after [`Reply::Ready`].
    pub(crate) fn last_ended(&self) -> u64 {
        self.units_ended.saturating_sub(1)
    }

    /// The connection is lost: what it owes, oldest first.
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

    /// True if what a message of the next unit means depends on an answer that is still to come.
    pub(crate) fn is_depended_on(&self) -> bool {
        self.depended_before > 0
    }

    // --- what is sent ---

    /// A request is sent.
    pub(crate) fn sent(&mut self, request: Request, note: N) {
        match request {
            Request::Sync | Request::Query => {
                self.in_unit = false;
                self.skipping = false;
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

    /// `CopyDone` or `CopyFail` is sent. If the server has not asked for COPY data yet, that is noted with `note`.
    pub(crate) fn ends_copy(&mut self, note: N) {
        if self.copies_in {
            self.copies_in = false;
        } else if !self.owed.is_empty() {
            self.sent(Request::CopyEnd, note);
        }
    }

    /// A message of a unit is kept back: the unit is begun all the same, and its Sync is still to be sent. `skips`: nothing of it is sent
    /// until then.
    pub(crate) fn enters_unit(&mut self, skips: bool) {
        self.in_unit = true;
        self.skipping |= skips;
    }

    /// A statement that begins a transaction is sent without its end: from here on the loss of the connection is that of a transaction.
    pub(crate) fn begins(&mut self) {
        self.status = Status::Transaction;
    }

    // --- what is received ---

    /// The server has sent a message: `tag`, and the first byte of its payload, if there is one.
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

    /// The notes of what the caller answers by itself, and whose turn has come.
    pub(crate) fn due(&mut self) -> Option<N> {
        while self.is_at(Request::CopyEnd) {
            // There was no COPY: the server has ignored it.
            self.settle();
        }
        if self.is_at(Request::Nothing) { self.settle() } else { None }
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

    /// The oldest thing that it owes is settled: answered, or skipped.
    fn settle(&mut self) -> Option<N> {
        let owed = self.owed.pop_front()?;
        if matches!(owed.request, Request::Sync | Request::Query) {
            self.units_ended += 1;
        }
        Some(self.done(owed))
    }

    /// The server owes this no more.
    fn done(&mut self, owed: Owed<N>) -> N {
        if owed.is_depended_on {
            self.depended -= 1;
            self.depended_before = self.depended_before.saturating_sub(1);
        }
        owed.note
    }

    fn copy_in(&mut self) -> Reply<N> {
        self.copies_in = true;
        let mut ignored = Vec::new();
        // What was sent behind the statement, up to the end of its data if that was sent.
        loop {
            match self.owed.get(1).map(|behind| behind.request) {
                Some(Request::Sync) => {
                    // The Sync that ends the unit comes behind the data.
                    self.units_sent -= 1;
                    if let Some(owed) = self.owed.remove(1) {
                        ignored.push(self.done(owed));
                    }
                }
                Some(Request::CopyEnd) => {
                    if let Some(owed) = self.owed.remove(1) {
                        self.done(owed);
                    }
                    self.copies_in = false;
                    break;
                }
                _ => break,
            }
        }
        if self.is_at(Request::Execute) && !self.owed.iter().any(|owed| owed.request == Request::Sync) {
            // The Sync that ends the unit is still to come.
            self.in_unit = true;
        }
        Reply::CopyIn { ignored }
    }

    fn failed(&mut self) -> Reply<N> {
        self.copies_in = false;
        match self.front_request() {
            None | Some(Request::Sync | Request::Query) => {
                // A unit as a whole, or something between two requests.
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
                // It did not fail: it is answered by nobody now, as what comes behind it.
                Request::Nothing | Request::CopyEnd => skipped.push(note),
                _ if failed.is_none() => failed = Some(note),
                _ => skipped.push(note),
            }
        }
        // Its Sync is still to be sent. (A Query that was sent instead is skipped, too.)
        (self.in_unit, self.skipping) = (true, true);
        Reply::Failed { failed, skipped }
    }

    fn ready(&mut self, status: Status) -> Reply<N> {
        if !matches!(self.front_request(), Some(Request::Sync | Request::Query)) {
            return Reply::Broken("ReadyForQuery out of order");
        }
        self.status = status;
        self.copies_in = false;
        match self.settle() {
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
