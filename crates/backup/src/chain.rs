//! Chains of backups: a full one, and incremental ones of which each holds the blocks that changed since the one before. Pure.

use std::collections::HashMap;
use std::time::Duration;

use crate::record::{Point, Record};
use crate::timelines::Timelines;

/// Most backups of a chain: a restore unpacks each of them.
pub(crate) const MOST: usize = 100;

/// A backup that cannot be restored for lack of an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChainError {
    #[error("the backup {id} is incremental to the backup {parent}, which is not in the archive")]
    Missing { id: String, parent: String },
    #[error("the backup {id} is incremental to the backup {parent}, which did not end before it began")]
    Order { id: String, parent: String },
    #[error("the backup {0} follows more than {MOST} others")]
    Long(String),
}

/// The records of an archive by name.
pub(crate) struct Chains<'a>(HashMap<&'a str, &'a Record>);

impl<'a> Chains<'a> {
    pub(crate) fn new(records: impl IntoIterator<Item = &'a Record>) -> Chains<'a> {
        Chains(records.into_iter().map(|record| (record.id.as_str(), record)).collect())
    }

    /// Returns the chain of a backup: the full one first, the backup itself last.
    pub(crate) fn of(&self, record: &'a Record) -> Result<Vec<&'a Record>, ChainError> {
        let mut chain = vec![record];
        let mut at = record;
        while let Some(parent) = &at.parent {
            let (id, parent) = (at.id.clone(), parent.clone());
            let Some(found) = self.0.get(parent.as_str()).copied() else {
                return Err(ChainError::Missing { id, parent });
            };
            // As the server has it: an incremental backup begins behind the end of the one before.
            if found.end.lsn > at.start.lsn {
                return Err(ChainError::Order { id, parent });
            }
            if chain.len() > MOST {
                return Err(ChainError::Long(record.id.clone()));
            }
            chain.push(found);
            at = found;
        }
        chain.reverse();
        Ok(chain)
    }

    /// True if another backup is incremental to this one.
    pub(crate) fn is_parent(&self, id: &str) -> bool {
        self.0.values().any(|record| record.parent.as_deref() == Some(id))
    }
}

/// The kind of backup to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Full,
    /// Incremental, or none at all.
    Incremental,
    /// Incremental where the server can, and full once the last full one is this old.
    FullEvery(Duration),
}

/// Chooses the backup that a new one is incremental to: the newest one whose end the server's history contains and whose chain has room. None: a full
/// backup is due, or the only one possible. `server`: the server's timeline, and the end of its WAL; `now`: in seconds since 1970.
pub(crate) fn parent<'a>(
    records: &'a [Record],
    timelines: &Timelines,
    server: Point,
    wanted: Wanted,
    now: u64,
) -> Option<&'a Record> {
    let chains = Chains::new(records);
    let fits = |record: &&Record| {
        let Point { lsn, timeline } = record.end;
        let is_known = timeline == server.timeline || timelines.passes(server.timeline, timeline, lsn);
        is_known && lsn <= server.lsn
    };
    let newest = records.iter().filter(fits).max_by_key(|record| (record.end.lsn, record.ended))?;
    let chain = chains.of(newest).ok().filter(|chain| chain.len() < MOST)?;
    let is_young = |every: Duration| chain[0].started.saturating_add(every.as_secs()) > now;
    match wanted {
        Wanted::Full => None,
        Wanted::Incremental => Some(newest),
        Wanted::FullEvery(every) => Some(newest).filter(|_| is_young(every)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use archive::BackupId;
    use watermark::Lsn;

    use super::*;

    /// A backup that began at `start` and ended 0x10 later, at the second of its number.
    pub(crate) fn record(n: u32, timeline: u32, start: u64, parent: Option<&Record>) -> Record {
        let point = |lsn| Point { lsn: Lsn(lsn), timeline };
        let mut record = Record::begin(&BackupId::new(0, n), "n", "l", u64::from(n), point(start));
        record.end = point(start + 0x10);
        if let Some(parent) = parent {
            record.follow(parent);
        }
        record
    }

    #[test]
    fn chains() {
        let full = record(1, 1, 0x100, None);
        let first = record(2, 1, 0x200, Some(&full));
        let second = record(3, 2, 0x300, Some(&first));
        let all = [full.clone(), first.clone(), second.clone()];
        let names = |chain: Vec<&Record>| chain.into_iter().map(|record| record.started).collect::<Vec<_>>();
        assert_eq!(Chains::new(&all).of(&all[2]).map(names), Ok(vec![1, 2, 3]));
        assert_eq!(Chains::new(&all).of(&all[0]).map(names), Ok(vec![1]));
        assert!(Chains::new(&all).is_parent(&first.id) && !Chains::new(&all).is_parent(&second.id));
        let without = [full.clone(), second.clone()];
        assert!(matches!(Chains::new(&without).of(&without[1]), Err(ChainError::Missing { .. })));
        let early = [full.clone(), record(4, 1, 0x10f, Some(&full))];
        assert!(matches!(Chains::new(&early).of(&early[1]), Err(ChainError::Order { .. })));
        // A ring: of nothing but damaged records.
        let mut ring = [record(1, 1, 0x100, None), record(2, 1, 0x110, None)];
        let (one, other) = (ring[0].clone(), ring[1].clone());
        ring[0].follow(&other);
        ring[1].follow(&one);
        assert!(Chains::new(&ring).of(&ring[1]).is_err());
        let mut long = vec![full];
        for n in 2..200 {
            long.push(record(n, 1, 0x100 * u64::from(n), long.last()));
        }
        assert!(Chains::new(&long).of(&long[MOST]).is_ok());
        assert!(matches!(Chains::new(&long).of(&long[MOST + 1]), Err(ChainError::Long(_))));
    }

    #[test]
    fn the_backup_that_the_next_one_follows() {
        // 1 ── 0/400 ─▶ 2.
        let mut timelines = Timelines::default();
        timelines.add(1);
        timelines.add_history(2, b"1 0/400 x").unwrap();
        let full = record(10, 1, 0x100, None);
        let next = record(20, 1, 0x200, Some(&full));
        let all = [full.clone(), next.clone()];
        let side = [full.clone(), next.clone(), record(30, 1, 0x500, Some(&next))];
        let broken = [next.clone()];
        let every = |seconds| Wanted::FullEvery(Duration::from_secs(seconds));
        let at = |timeline, lsn| Point { lsn: Lsn(lsn), timeline };
        for (records, server, wanted, expected) in [
            (&all[..], at(1, 0x300), Wanted::Full, None),
            (&all, at(1, 0x300), Wanted::Incremental, Some(20)),
            // A server that has only the first, one of a later timeline, and one of a timeline that the archive does not know.
            (&all, at(1, 0x150), Wanted::Incremental, Some(10)),
            (&all, at(2, 0x500), Wanted::Incremental, Some(20)),
            (&all, at(3, 0x500), Wanted::Incremental, None),
            (&side, at(2, 0x900), Wanted::Incremental, Some(20)),
            (&side, at(1, 0x900), Wanted::Incremental, Some(30)),
            (&broken, at(1, 0x300), Wanted::Incremental, None),
            (&[], at(1, 0x300), Wanted::Incremental, None),
            // The full one is of second 10, and it is second 100.
            (&all, at(1, 0x300), every(91), Some(20)),
            (&all, at(1, 0x300), every(90), None),
        ] {
            let chosen = parent(records, &timelines, server, wanted, 100).map(|record| record.started);
            assert_eq!(chosen, expected, "{server} {wanted:?}");
        }
        let mut long = vec![full];
        // The full one has the number 10.
        for n in 11..10 + u32::try_from(MOST).unwrap() {
            long.push(record(n, 1, 0x1000 * u64::from(n), long.last()));
        }
        assert_eq!(long.len(), MOST);
        let server = at(1, u64::MAX);
        assert_eq!(parent(&long, &timelines, server, Wanted::Incremental, 0), None, "no room");
        long.pop();
        assert!(parent(&long, &timelines, server, Wanted::Incremental, 0).is_some());
    }
}
