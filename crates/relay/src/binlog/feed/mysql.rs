//! Selection of the events for a replica of MySQL: the transactions that are not in its set of GTIDs.

use ::binlog::event::{Header, Kind, mysql_gtid, mysql_gtid_tagged};
use ::binlog::gtid::mysql::Set;

use super::{FeedError, Refused, Verdict};

/// Returns the last file that begins with transactions which the replica has. `state`: the transactions of all files.
///
/// As a source, the relay refuses a replica that has more than it of its own UUID; and the relay's own are those of all servers in its log. Transactions of
/// other servers are the replica's business.
pub(super) fn first_file<'a>(
    begins: impl DoubleEndedIterator<Item = (usize, &'a Set)> + Clone,
    state: &Set,
    has: &Set,
) -> Result<usize, Refused> {
    let more = has.of_servers_in(state).without(state);
    if !more.is_empty() {
        return Err(Refused::More(more));
    }
    let oldest = begins.clone().next().map(|(_, begins)| begins.clone()).unwrap_or_default();
    let fits = begins.rev().find(|(_, begins)| has.includes(begins)).map(|(file, _)| file);
    fits.ok_or_else(|| Refused::PurgedBehind { has: has.clone(), begins: oldest })
}

/// Progress of one replica through the events of one epoch.
#[derive(Debug)]
pub(in super::super) struct Feed {
    /// The transactions that the replica has, with those that were sent.
    has: Set,
    /// True while the current transaction is left out.
    skipping: bool,
}

impl Feed {
    pub(super) fn new(has: Set) -> Feed {
        Feed { has, skipping: false }
    }

    /// Returns the transactions that the replica has.
    pub(super) fn has(&self) -> &Set {
        &self.has
    }

    /// Decides about an event by its header.
    pub(super) fn header(&mut self, header: &Header) -> Verdict {
        match header.kind {
            Kind::MYSQL_GTID | Kind::MYSQL_GTID_TAGGED | Kind::MYSQL_ANONYMOUS => Verdict::Look,
            // Events of the file, not of a transaction.
            Kind::FORMAT | Kind::MYSQL_PREVIOUS_GTIDS | Kind::ROTATE | Kind::STOP => {
                self.skipping = false;
                Verdict::Send
            }
            _ if self.skipping => Verdict::Skip,
            _ => Verdict::Send,
        }
    }

    /// Decides about a transaction at its beginning.
    pub(super) fn transaction(&mut self, header: &Header, body: &[u8]) -> Result<Verdict, FeedError> {
        let gtid = match header.kind {
            Kind::MYSQL_GTID => mysql_gtid(body)?,
            Kind::MYSQL_GTID_TAGGED => mysql_gtid_tagged(body)?,
            _ => return Err(Refused::Anonymous.into()),
        };
        self.skipping = self.has.contains(gtid);
        // A set without room for more is sent what it may have already: the replica skips it by itself.
        let _ = self.has.add_one(gtid);
        Ok(if self.skipping { Verdict::Skip } else { Verdict::Send })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const A: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
    const B: &str = "4e11fa47-71ca-11e1-9e33-c80aa9429562";

    fn set(text: &str) -> Set {
        text.replace('A', A).replace('B', B).parse().unwrap()
    }

    #[test]
    fn the_last_file_that_begins_with_what_the_replica_has() {
        let files = [set(""), set("A:1-5"), set("A:1-9:blue:1-2")];
        let state = set("A:1-12:blue:1-3");
        for (has, expected) in [
            ("", Ok(0)),
            ("A:1-4", Ok(0)),
            ("A:1-5", Ok(1)),
            ("A:1-9", Ok(1)),
            ("A:1-9:blue:1-2", Ok(2)),
            ("A:1-12:blue:1-3", Ok(2)),
            ("A:1-4:6-12", Ok(0)),
            // Transactions of its own are no reason to refuse it.
            ("A:1-9:blue:1-2, B:1-7", Ok(2)),
            ("A:1-13", Err("more GTIDs")),
            ("A:green:1", Err("more GTIDs")),
        ] {
            let found = first_file(files.iter().enumerate(), &state, &set(has)).map_err(|refused| refused.to_string());
            match expected {
                Ok(file) => assert_eq!(found, Ok(file), "{has}"),
                Err(says) => assert!(found.unwrap_err().contains(says), "{has}"),
            }
        }
        let purged = first_file([(0, &files[1])].into_iter(), &state, &set("A:1-4")).unwrap_err().to_string();
        assert!(
            purged.contains("purged required binary logs") && purged.contains("A:1-5".replace('A', A).as_str()),
            "{purged}"
        );
    }

    #[test]
    fn what_the_replica_has_is_left_out() {
        let mut feed = Feed::new(set("A:1-2:4"));
        let header = |kind| Header { timestamp: 1, kind, server_id: 1, length: 42, end: 0, flags: 0 };
        let mut sent = Vec::new();
        for number in 1..=5_u64 {
            let gtid = header(Kind::MYSQL_GTID);
            let mut body = vec![0];
            body.extend_from_slice(&A.parse::<::binlog::gtid::mysql::Uuid>().unwrap().0);
            body.extend_from_slice(&number.to_le_bytes());
            assert_eq!(feed.header(&gtid), Verdict::Look);
            let verdict = feed.transaction(&gtid, &body).unwrap();
            for kind in [Kind::QUERY, Kind::TABLE_MAP, Kind::TRANSACTION_PAYLOAD, Kind::XID] {
                assert_eq!(feed.header(&header(kind)), verdict, "all of a transaction, or nothing");
            }
            if verdict == Verdict::Send {
                sent.push(number);
            }
        }
        assert_eq!((sent, feed.has()), (vec![3, 5], &set("A:1-5")));
        assert_eq!(feed.header(&header(Kind::ROTATE)), Verdict::Send);
        assert_eq!(feed.header(&header(Kind::MYSQL_ANONYMOUS)), Verdict::Look);
        assert!(feed.transaction(&header(Kind::MYSQL_ANONYMOUS), &[]).is_err());
    }
}
