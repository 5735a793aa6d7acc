//! Selection of the events for a replica of MariaDB.

use std::collections::BTreeMap;

use ::binlog::event::{Header, Kind, MariaDbGtid, SKIP_REPLICATION};
use ::binlog::gtid::mariadb::{Gtid, Position, State};

use super::{FeedError, Refused, Verdict};

/// The events that a replica requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Request {
    /// The last transaction of each domain that the replica has.
    pub(in super::super) position: Position,
    /// True if a position in a gap of the log is an error (`gtid_strict_mode`).
    pub(in super::super) strict: bool,
    /// True if the replica may have more of a domain than the log, from another source (`gtid_ignore_duplicates`).
    pub(in super::super) ignore_duplicates: bool,
    /// End of the stream (`START SLAVE UNTIL`). None: no end.
    pub(in super::super) until: Option<Until>,
    /// True if events marked with `@@skip_replication` are left out.
    pub(in super::super) skip_marked: bool,
    /// True if events that only annotate rows are sent.
    pub(in super::super) annotate: bool,
}

/// The end of a stream: each domain has reached its transaction. Domains without one are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Until {
    /// The domains that have not reached their transaction.
    pub(in super::super) at: Position,
    /// True if the transactions themselves are left out, too (`SQL_BEFORE_GTIDS`).
    pub(in super::super) before: bool,
}

fn not_here(gtid: Gtid, last: Option<Gtid>) -> Refused {
    match last {
        Some(last) if last.sequence >= gtid.sequence => Refused::Diverged(gtid),
        _ => Refused::NotHere(gtid),
    }
}

/// Returns the file from which `request` is served, given the files' beginnings (oldest first): the last one that begins at or before its position.
/// `state`: the transactions of all files. Removes from `request.until` the domains whose end lies before their beginning.
pub(in super::super) fn first_file<'a>(
    begins: impl DoubleEndedIterator<Item = (usize, &'a State)>,
    state: &State,
    request: &mut Request,
) -> Result<usize, Refused> {
    for gtid in request.position.iter() {
        // A domain without any transaction here may be another source's: see [`Feed::transaction`].
        let Some(last) = state.last(gtid.domain).filter(|_| !state.contains(gtid)) else { continue };
        if request.ignore_duplicates && last.sequence < gtid.sequence {
            continue;
        }
        if let Some(Until { at, .. }) = &mut request.until
            && at.get(gtid.domain).is_none_or(|end| state.contains(end))
        {
            at.remove(gtid.domain);
            continue;
        }
        return Err(not_here(gtid, Some(last)));
    }
    let position = &request.position;
    let reaches = |begins: &State| {
        begins.position().iter().all(|last| {
            let theirs = position.get(last.domain);
            theirs.is_some_and(|theirs| theirs == last || !begins.contains(theirs))
        })
    };
    begins.rev().find(|(_, begins)| reaches(begins)).map(|(file, _)| file).ok_or(Refused::Purged)
}

/// A domain whose next transactions the replica already has.
#[derive(Debug, Clone, Copy)]
struct Behind {
    /// The last transaction that the replica has.
    gtid: Gtid,
    /// True if the log had nothing of the domain when the replica connected.
    unknown: bool,
}

/// Progress of one replica through the events of one epoch.
#[derive(Debug)]
pub(in super::super) struct Feed {
    /// The request; its position grows with the sent events, its end shrinks.
    request: Request,
    /// Domains in which the replica's position has not been passed.
    behind: BTreeMap<u32, Behind>,
    /// True while the current transaction is left out.
    skipping: bool,
    /// True once the last transaction has begun: the stream ends after it.
    ends: bool,
    /// Transactions that were passed, for the list at the end of the stream.
    passed: State,
}

impl Feed {
    /// Starts to serve `request` with a file that begins at `begins`. `state`: the transactions of the log.
    pub(in super::super) fn new(mut request: Request, begins: &State, state: &State) -> Feed {
        let behind = request.position.iter().filter(|gtid| begins.last(gtid.domain) != Some(*gtid));
        let of = |gtid: Gtid| (gtid.domain, Behind { gtid, unknown: state.last(gtid.domain).is_none() });
        let behind = behind.map(of).collect();
        let mut ends = false;
        if let Some(Until { at, .. }) = &mut request.until {
            let over: Vec<u32> = at.iter().filter(|end| begins.contains(*end)).map(|end| end.domain).collect();
            over.into_iter().for_each(|domain| at.remove(domain));
            ends = at.is_empty();
        }
        Feed { request, behind, skipping: false, ends, passed: begins.clone() }
    }

    /// Returns the part of the request that is not served yet.
    pub(in super::super) fn request(&self) -> &Request {
        &self.request
    }

    /// True if the stream ends after the transaction that was sent last.
    pub(in super::super) fn ends(&self) -> bool {
        self.ends
    }

    /// Returns the transactions before this point, including those left out.
    pub(in super::super) fn passed(&self) -> &State {
        &self.passed
    }

    /// Decides about an event by its header.
    pub(in super::super) fn header(&mut self, header: &Header) -> Verdict {
        match header.kind {
            Kind::MARIADB_GTID => return Verdict::Look,
            Kind::ROTATE | Kind::STOP if self.ends => return Verdict::Stop,
            // Events of the file, not of a transaction.
            Kind::FORMAT | Kind::MARIADB_GTID_LIST | Kind::ROTATE | Kind::STOP | Kind::BINLOG_CHECKPOINT => {
                self.skipping &= header.kind == Kind::BINLOG_CHECKPOINT;
                return Verdict::Send;
            }
            _ => {}
        }
        let unwanted =
            self.skipping || self.is_marked(header) || (header.kind == Kind::ANNOTATE_ROWS && !self.request.annotate);
        if unwanted { Verdict::Skip } else { Verdict::Send }
    }

    fn is_marked(&self, header: &Header) -> bool {
        self.request.skip_marked && header.flags & SKIP_REPLICATION != 0
    }

    /// Decides about a transaction at its beginning. `log`: the current transactions of the log.
    pub(in super::super) fn transaction(
        &mut self,
        header: &Header,
        body: &[u8],
        log: impl Fn() -> State,
    ) -> Result<Verdict, FeedError> {
        if self.ends {
            return Ok(Verdict::Stop);
        }
        let gtid = MariaDbGtid::parse(header, body)?.gtid;
        self.skipping = false;
        if let Some(Behind { gtid: theirs, unknown }) = self.behind.get(&gtid.domain).copied() {
            if unknown {
                let state = log();
                if !state.contains(theirs) {
                    return Err(not_here(theirs, state.last(theirs.domain)).into());
                }
                self.behind.insert(gtid.domain, Behind { gtid: theirs, unknown: false });
            }
            self.skipping = gtid.server != theirs.server || gtid.sequence <= theirs.sequence;
            if gtid.server == theirs.server && gtid.sequence >= theirs.sequence {
                if self.request.strict && gtid.sequence > theirs.sequence {
                    return Err(Refused::Hole(theirs).into());
                }
                self.behind.remove(&gtid.domain);
            }
        }
        if let Some(Until { at, before }) = &mut self.request.until {
            let _ = self.passed.add(gtid);
            match at.get(gtid.domain) {
                None => self.skipping = true,
                Some(end) if end.server == gtid.server && gtid.sequence >= end.sequence => {
                    at.remove(gtid.domain);
                    self.ends = at.is_empty();
                    self.skipping |= *before || gtid.sequence > end.sequence;
                }
                Some(_) => {}
            }
        }
        if self.skipping {
            return Ok(Verdict::Skip);
        }
        self.request.position.set(gtid);
        Ok(if self.is_marked(header) { Verdict::Skip } else { Verdict::Send })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn request(position: &str) -> Request {
        let (strict, ignore_duplicates) = (true, false);
        let position = position.parse().unwrap();
        Request { position, strict, ignore_duplicates, until: None, skip_marked: false, annotate: true }
    }

    fn choose(begins: &[&str], state: &str, position: &str) -> Result<usize, String> {
        let begins: Vec<State> = begins.iter().map(|text| text.parse().unwrap()).collect();
        let (state, mut request) = (state.parse().unwrap(), request(position));
        first_file(begins.iter().enumerate(), &state, &mut request).map_err(|refused| refused.to_string())
    }

    #[test]
    fn the_last_file_that_begins_at_or_before() {
        let files = ["", "0-1-5", "0-1-9,1-1-2"];
        let all = "0-1-12,1-1-4";
        for (position, expected) in [
            ("", Ok(0)),
            ("0-1-3", Ok(0)),
            ("0-1-5", Ok(1)),
            ("0-1-7", Ok(1)),
            ("0-1-9,1-1-2", Ok(2)),
            ("0-1-12,1-1-4", Ok(2)),
            ("0-1-12", Ok(1)),
            ("0-1-12,7-7-7", Ok(1)),
        ] {
            assert_eq!(choose(&files, all, position), expected, "{position}");
        }
        for position in ["0-1-13", "0-2-3", "0-1-12,1-1-5"] {
            assert!(
                choose(&files, all, position).unwrap_err().contains("which is not in the master's binlog"),
                "{position}"
            );
        }
        for (files, position) in
            [(&["0-1-5"][..], ""), (&["0-1-5"][..], "0-1-3"), (&["0-1-5,1-1-1"][..], "0-1-6"), (&[][..], "")]
        {
            let refused = choose(files, all, position).unwrap_err();
            assert!(refused.contains("have been purged"), "{position}: {refused}");
        }
        // Two servers in one domain: the replica has the first one's transactions, and not yet the second one's.
        assert_eq!(choose(&["", "0-1-5", "0-1-5,0-2-8"], "0-1-5,0-2-9", "0-1-5"), Ok(1));
    }

    fn header(kind: Kind, server_id: u32) -> Header {
        Header { timestamp: 1, kind, server_id, length: 42, end: 0, flags: 0 }
    }

    /// Returns the sequence numbers that are sent, and how the stream ends; or an error with the numbers before it.
    fn sent(feed: &mut Feed, state: &str, transactions: &[(u32, u32, u64)]) -> Result<Vec<u64>, String> {
        let mut out = Vec::new();
        for (domain, server_id, sequence) in transactions {
            let mut body = sequence.to_le_bytes().to_vec();
            body.extend_from_slice(&domain.to_le_bytes());
            body.push(0);
            let gtid = header(Kind::MARIADB_GTID, *server_id);
            assert_eq!(feed.header(&gtid), Verdict::Look);
            let verdict =
                feed.transaction(&gtid, &body, || state.parse().unwrap()).map_err(|error| error.to_string())?;
            if verdict == Verdict::Stop {
                break;
            }
            assert_eq!(feed.header(&header(Kind::XID, *server_id)), verdict, "all of a transaction, or nothing");
            if verdict == Verdict::Send {
                out.push(*sequence);
            }
        }
        Ok(out)
    }

    const LOG: [(u32, u32, u64); 6] = [(0, 1, 6), (1, 1, 3), (0, 1, 7), (0, 2, 8), (1, 1, 4), (2, 1, 1)];
    const BEGINS: &str = "0-1-5,1-1-2";
    const ALL: &str = "0-1-7,0-2-8,1-1-4,2-1-1";

    #[test]
    fn what_the_replica_has_is_left_out() {
        for (position, expected) in [
            ("0-1-5,1-1-2", vec![6, 3, 7, 8, 4, 1]),
            ("0-1-7,1-1-2", vec![3, 8, 4, 1]),
            ("0-2-8,1-1-4,2-1-1", vec![]),
            ("0-1-6,1-1-3", vec![7, 8, 4, 1]),
        ] {
            let begins = BEGINS.parse().unwrap();
            let mut feed = Feed::new(request(position), &begins, &ALL.parse().unwrap());
            assert_eq!(sent(&mut feed, ALL, &LOG).unwrap(), expected, "{position}");
            assert_eq!(feed.request().position.to_string(), "0-2-8,1-1-4,2-1-1", "{position}");
            assert!(!feed.ends());
        }
    }

    /// A position that the log lacks between two that it has: an error in strict mode, else the stream starts after it.
    #[test]
    fn a_position_in_a_gap() {
        let log = [(0, 1, 6), (0, 1, 8), (0, 1, 9)];
        for (strict, expected) in
            [(false, Ok(vec![8, 9])), (true, Err(Refused::Hole("0-1-7".parse().unwrap()).to_string()))]
        {
            let request = Request { strict, ..request("0-1-7") };
            let mut feed = Feed::new(request, &"0-1-5".parse().unwrap(), &"0-1-9".parse().unwrap());
            assert_eq!(sent(&mut feed, "0-1-9", &log), expected);
        }
    }

    #[test]
    fn what_other_sources_gave_the_replica() {
        let ahead = Request { ignore_duplicates: true, ..request("0-1-20") };
        let begins: State = "0-1-5".parse().unwrap();
        let state: State = "0-1-9".parse().unwrap();
        assert_eq!(first_file([(0, &begins)].into_iter(), &state, &mut ahead.clone()), Ok(0));
        let mut feed = Feed::new(ahead, &begins, &state);
        assert_eq!(sent(&mut feed, "0-1-9", &[(0, 1, 19), (0, 1, 20), (0, 1, 21)]).unwrap(), [21]);
        // A domain that is unknown when the replica connects, and appears later.
        let unknown = request("0-1-5,7-7-7");
        for (later, expected) in
            [("7-7-7", Ok(vec![8])), ("7-7-6", Err(Refused::NotHere("7-7-7".parse().unwrap()).to_string()))]
        {
            let mut feed = Feed::new(unknown.clone(), &begins, &state);
            assert_eq!(sent(&mut feed, later, &[(7, 7, 7), (7, 7, 8)]), expected, "{later}");
        }
    }

    #[test]
    fn a_stream_ends_where_it_was_asked_to() {
        for (position, until, before, expected, passed) in [
            ("0-1-5,1-1-2", "0-1-7", false, vec![6, 7], "0-1-7,1-1-3"),
            ("0-1-5,1-1-2", "0-1-7", true, vec![6], "0-1-7,1-1-3"),
            ("0-1-5,1-1-2", "0-1-6,1-1-4", false, vec![6, 3, 4], "0-1-7,0-2-8,1-1-4"),
            ("0-1-5,1-1-2", "0-1-6,1-1-2", false, vec![6], "0-1-6,1-1-2"),
            // An end before the position, or at the start of the file: nothing is sent.
            ("0-1-7,1-1-2", "0-1-6", false, vec![], "0-1-6,1-1-2"),
            ("0-1-5,1-1-2", "0-1-5", false, vec![], "0-1-5,1-1-2"),
            ("0-1-5,1-1-2", "", false, vec![], "0-1-5,1-1-2"),
            // An end that is not in the log: the stream ends where it would have been.
            ("0-1-5,1-1-2", "1-1-2,2-1-0", false, vec![], "0-1-7,0-2-8,1-1-4,2-1-1"),
        ] {
            let request = Request { until: Some(Until { at: until.parse().unwrap(), before }), ..request(position) };
            let mut feed = Feed::new(request, &BEGINS.parse().unwrap(), &ALL.parse().unwrap());
            assert_eq!(sent(&mut feed, ALL, &LOG).unwrap(), expected, "{until}");
            assert!(feed.ends(), "{until}");
            assert_eq!(feed.header(&header(Kind::ROTATE, 1)), Verdict::Stop);
            let passed: State = passed.parse().unwrap();
            assert_eq!(feed.passed().position(), passed.position(), "{until}");
        }
        // A replica with more than the log, and an end that the log has.
        let (begins, state): (State, State) = ("".parse().unwrap(), "0-1-9".parse().unwrap());
        for (until, expected) in [("0-1-8", Ok(0)), ("0-1-11", Err(Refused::NotHere("0-1-12".parse().unwrap())))] {
            let until = Some(Until { at: until.parse().unwrap(), before: false });
            let mut request = Request { until, ..request("0-1-12") };
            assert_eq!(first_file([(0, &begins)].into_iter(), &state, &mut request), expected);
        }
    }

    #[test]
    fn what_a_replica_does_not_want() {
        let begins = State::default();
        for (skip_marked, annotate) in [(false, false), (true, false), (false, true)] {
            let request = Request { skip_marked, annotate, ..request("") };
            let mut feed = Feed::new(request, &begins, &begins);
            let rows = header(Kind::TABLE_MAP, 1);
            let verdict = |unwanted| if unwanted { Verdict::Skip } else { Verdict::Send };
            assert_eq!(feed.header(&rows), Verdict::Send);
            assert_eq!(feed.header(&Header { flags: SKIP_REPLICATION, ..rows }), verdict(skip_marked));
            assert_eq!(feed.header(&header(Kind::ANNOTATE_ROWS, 1)), verdict(!annotate));
        }
    }
}
