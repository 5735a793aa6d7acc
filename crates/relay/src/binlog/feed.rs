//! What a replica gets: from which file on, and which events of it. Decisions, without I/O.

use std::collections::BTreeSet;

use ::binlog::event::{Header, Kind, MariaDbGtid};
use ::binlog::gtid::mariadb::{Gtid, Position, State};

/// Why a replica is not fed. In the words of a MariaDB source: people and tools match on them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("Error: connecting slave requested to start from GTID {0}, which is not in the master's binlog")]
    NotHere(Gtid),
    #[error(
        "Could not find GTID state requested by slave in any binlog files. Probably the slave state is too old and required binlog files have \
         been purged."
    )]
    Purged,
}

/// Which of the files, by what was there before each (oldest first), a replica that has `position` is to be fed from: the last one that begins
/// at or before it. `state`: what all files have.
pub(super) fn first_file<'a>(
    begins: impl DoubleEndedIterator<Item = (usize, &'a State)>,
    state: &State,
    position: &Position,
) -> Result<usize, Refused> {
    if let Some(gtid) = position.iter().find(|gtid| state.last(gtid.domain).is_some() && !state.contains(*gtid)) {
        return Err(Refused::NotHere(gtid));
    }
    let reaches = |begins: &State| {
        begins.position().iter().all(|last| {
            let theirs = position.get(last.domain);
            theirs.is_some_and(|theirs| theirs == last || !begins.contains(theirs))
        })
    };
    begins.rev().find(|(_, begins)| reaches(begins)).map(|(file, _)| file).ok_or(Refused::Purged)
}

/// What is done with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Send,
    Skip,
    /// Only the beginning of its body says: [`Feed::transaction`].
    Look,
}

/// Follows the events of one epoch for one replica.
#[derive(Debug)]
pub(super) struct Feed {
    /// The last transaction of each domain that the replica has.
    position: Position,
    /// Domains in which what comes is known to the replica, up to and with the transaction of `position`.
    behind: BTreeSet<u32>,
    /// The transaction under way is left out.
    skipping: bool,
}

impl Feed {
    /// For a replica that has `position`, from the start of a file that begins at `begins`.
    pub(super) fn new(position: Position, begins: &State) -> Feed {
        let behind = position.iter().filter(|gtid| begins.last(gtid.domain) != Some(*gtid)).map(|gtid| gtid.domain);
        Feed { behind: behind.collect(), position, skipping: false }
    }

    /// What the replica has, with all that was sent.
    pub(super) fn position(&self) -> &Position {
        &self.position
    }

    /// What to do with an event, by its header.
    pub(super) fn header(&mut self, header: &Header) -> Verdict {
        match header.kind {
            Kind::MARIADB_GTID => Verdict::Look,
            // Of the file, not of a transaction.
            Kind::FORMAT | Kind::MARIADB_GTID_LIST | Kind::ROTATE | Kind::STOP | Kind::BINLOG_CHECKPOINT => {
                self.skipping &= header.kind == Kind::BINLOG_CHECKPOINT;
                Verdict::Send
            }
            _ if self.skipping => Verdict::Skip,
            _ => Verdict::Send,
        }
    }

    /// A transaction begins.
    pub(super) fn transaction(&mut self, header: &Header, body: &[u8]) -> Result<Verdict, ::binlog::event::BodyError> {
        let gtid = MariaDbGtid::parse(header, body)?.gtid;
        self.skipping = self.behind.contains(&gtid.domain);
        if self.skipping {
            if self.position.get(gtid.domain) == Some(gtid) {
                self.behind.remove(&gtid.domain);
            }
            return Ok(Verdict::Skip);
        }
        self.position.set(gtid);
        Ok(Verdict::Send)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn choose(begins: &[&str], state: &str, position: &str) -> Result<usize, String> {
        let begins: Vec<State> = begins.iter().map(|text| text.parse().unwrap()).collect();
        let (state, position) = (state.parse().unwrap(), position.parse().unwrap());
        first_file(begins.iter().enumerate(), &state, &position).map_err(|refused| refused.to_string())
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
        // Two servers in one domain: the replica has what the first one wrote, and not yet what the second did.
        assert_eq!(choose(&["", "0-1-5", "0-1-5,0-2-8"], "0-1-5,0-2-9", "0-1-5"), Ok(1));
    }

    fn sent(feed: &mut Feed, transactions: &[(u32, u32, u64)]) -> Vec<u64> {
        let mut out = Vec::new();
        for (domain, server_id, sequence) in transactions {
            let of = |kind| Header { timestamp: 1, kind, server_id: *server_id, length: 42, end: 0, flags: 0 };
            let mut body = sequence.to_le_bytes().to_vec();
            body.extend_from_slice(&domain.to_le_bytes());
            body.push(0);
            let gtid = of(Kind::MARIADB_GTID);
            assert_eq!(feed.header(&gtid), Verdict::Look);
            let verdict = feed.transaction(&gtid, &body).unwrap();
            assert_eq!(feed.header(&of(Kind::XID)), verdict, "all of a transaction, or nothing");
            if verdict == Verdict::Send {
                out.push(*sequence);
            }
        }
        out
    }

    #[test]
    fn what_the_replica_has_is_left_out() {
        let log = [(0, 1, 6), (1, 1, 3), (0, 1, 7), (0, 2, 8), (1, 1, 4), (2, 1, 1)];
        let begins: State = "0-1-5,1-1-2".parse().unwrap();
        for (position, expected) in [
            ("0-1-5,1-1-2", vec![6, 3, 7, 8, 4, 1]),
            ("0-1-7,1-1-2", vec![3, 8, 4, 1]),
            ("0-2-8,1-1-4,2-1-1", vec![]),
            ("0-1-6,1-1-3", vec![7, 8, 4, 1]),
        ] {
            let mut feed = Feed::new(position.parse().unwrap(), &begins);
            assert_eq!(sent(&mut feed, &log), expected, "{position}");
            assert_eq!(feed.position().to_string(), "0-2-8,1-1-4,2-1-1", "{position}");
        }
    }
}
