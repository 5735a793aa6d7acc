//! Grouping of events into transactions.

use crate::event::{self, BodyError, Kind, MariaDbGtid};
use crate::gtid::Gtid;
use crate::walker::Event;

/// The name of a transaction; None for no name: MySQL with `gtid_mode = OFF`.
pub type Name = Option<Gtid>;

/// Place of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Outside of transactions: format, lists, announcements, the end of a file.
    Outside,
    /// The first event of this transaction.
    Begins(Name),
    /// An event inside of a transaction.
    Inside,
    /// The last event of this transaction.
    Ends(Name),
}

impl Group {
    /// True if a log that ends behind the event holds whole transactions only.
    #[must_use]
    pub fn is_whole(self) -> bool {
        matches!(self, Group::Outside | Group::Ends(_))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Ends with XID, COMMIT, ROLLBACK or XA PREPARE.
    Commit,
    /// Ends with the statement: the first event that does more than prepare it.
    Statement,
    /// Unknown at the beginning in MySQL: the end is the statement, unless that is BEGIN.
    Unknown,
}

/// Grouping of a log's events.
#[derive(Debug, Default)]
pub struct Groups {
    open: Option<(Name, Until)>,
}

impl Groups {
    /// Returns the place of the log's next event. Artificial events are not part of the log and must not be passed.
    ///
    /// # Errors
    /// The beginning of a transaction cannot be parsed.
    pub fn next(&mut self, event: &Event<'_>) -> Result<Group, BodyError> {
        let (header, body) = (&event.header, event.body);
        let begins = match header.kind {
            Kind::MARIADB_GTID => {
                let MariaDbGtid { gtid, standalone } = MariaDbGtid::parse(header, body)?;
                Some((Some(Gtid::MariaDb(gtid)), if standalone { Until::Statement } else { Until::Commit }))
            }
            Kind::MYSQL_GTID => Some((Some(Gtid::MySql(event::mysql_gtid(body)?)), Until::Unknown)),
            Kind::MYSQL_GTID_TAGGED => Some((Some(Gtid::MySql(event::mysql_gtid_tagged(body)?)), Until::Unknown)),
            Kind::MYSQL_ANONYMOUS => Some((None, Until::Unknown)),
            _ => None,
        };
        // A transaction without an end (its server crashed while writing it) did not happen.
        if let Some((name, until)) = begins {
            self.open = Some((name, until));
            return Ok(Group::Begins(name));
        }
        if matches!(header.kind, Kind::FORMAT | Kind::ROTATE | Kind::STOP) {
            self.open = None;
        }
        let Some((name, until)) = self.open else { return Ok(Group::Outside) };
        let commits = match header.kind {
            Kind::XID | Kind::XA_PREPARE | Kind::TRANSACTION_PAYLOAD => true,
            Kind::QUERY => event::statement(body).is_some_and(event::ends_transaction),
            _ => false,
        };
        let ends = match until {
            Until::Commit => commits,
            Until::Statement => !prepares(header.kind),
            Until::Unknown if header.kind == Kind::QUERY && !commits => {
                let begin = |statement: &[u8]| {
                    statement.eq_ignore_ascii_case(b"BEGIN") || statement.to_ascii_uppercase().starts_with(b"XA START")
                };
                let is_begin = event::statement(body).is_some_and(begin);
                if is_begin {
                    self.open = Some((name, Until::Commit));
                }
                !is_begin
            }
            Until::Unknown => commits || !prepares(header.kind),
        };
        if ends {
            self.open = None;
        }
        Ok(if ends { Group::Ends(name) } else { Group::Inside })
    }

    /// True if a log that ends here holds whole transactions only.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.open.is_none()
    }

    /// Resets at the start of a file, or before resent events: an open transaction has no end.
    pub fn reset(&mut self) {
        self.open = None;
    }
}

/// True if an event of this kind only prepares the statement behind it.
fn prepares(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::INTVAR
            | Kind::RAND
            | Kind::USER_VAR
            | Kind::TABLE_MAP
            | Kind::ANNOTATE_ROWS
            | Kind::APPEND_BLOCK
            | Kind::BEGIN_LOAD_QUERY
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::event::Header;

    fn event(kind: Kind, body: &[u8]) -> Event<'_> {
        let header = Header { timestamp: 1, kind, server_id: 7, length: 0, end: 0, flags: 0 };
        Event { header, at: 4, artificial: false, body }
    }

    fn query(statement: &[u8]) -> Vec<u8> {
        let mut body = vec![0; 14];
        body.extend_from_slice(statement);
        body
    }

    fn mariadb(sequence: u64, flags: u8) -> Vec<u8> {
        let mut body = sequence.to_le_bytes().to_vec();
        body.extend_from_slice(&[0, 0, 0, 0, flags]);
        body
    }

    fn shape(events: &[(Kind, Vec<u8>)]) -> String {
        let mut groups = Groups::default();
        let letter = |(kind, body): &(Kind, Vec<u8>)| match groups.next(&event(*kind, body)).unwrap() {
            Group::Outside => 'o',
            Group::Begins(_) => 'b',
            Group::Inside => 'i',
            Group::Ends(_) => 'e',
        };
        events.iter().map(letter).collect()
    }

    #[test]
    fn table() {
        let gtid = |flags| (Kind::MARIADB_GTID, mariadb(1, flags));
        let mut own = vec![0];
        own.extend_from_slice(&[9; 16]);
        own.extend_from_slice(&5_u64.to_le_bytes());
        let mysql = (Kind::MYSQL_GTID, own);
        let rows = (Kind(23), vec![]);
        let map = (Kind::TABLE_MAP, vec![]);
        let note = (Kind::ANNOTATE_ROWS, vec![]);
        let xid = (Kind::XID, vec![]);
        let sql = |text: &[u8]| (Kind::QUERY, query(text));
        for (events, expected, why) in [
            (vec![(Kind::FORMAT, vec![]), (Kind::MARIADB_GTID_LIST, vec![]), (Kind::STOP, vec![])], "ooo", "a file"),
            (vec![gtid(0), note.clone(), map.clone(), rows.clone(), xid.clone()], "biiie", "rows"),
            (vec![gtid(0), sql(b"insert"), sql(b"COMMIT")], "bie", "statements of a table without transactions"),
            (vec![gtid(1), sql(b"create table t (a int)"), (Kind::BINLOG_CHECKPOINT, vec![])], "beo", "DDL"),
            (vec![gtid(1), (Kind::USER_VAR, vec![]), sql(b"call p(@a)")], "bie", "DDL with a variable"),
            (vec![gtid(0), map.clone(), (Kind::XA_PREPARE, vec![])], "bie", "XA"),
            (vec![gtid(0), map.clone(), gtid(0), map.clone(), xid.clone()], "bibie", "one that has no end"),
            (vec![gtid(0), map.clone(), (Kind::ROTATE, vec![0; 8])], "bio", "a file that ends in one"),
            (vec![mysql.clone(), sql(b"BEGIN"), map.clone(), rows, xid], "biiie", "MySQL's rows"),
            (vec![mysql.clone(), sql(b"create table t (a int)")], "be", "MySQL's DDL"),
            (vec![mysql, (Kind::TRANSACTION_PAYLOAD, vec![])], "be", "MySQL's compressed transaction"),
            (vec![(Kind::MYSQL_ANONYMOUS, vec![]), sql(b"BEGIN"), sql(b"COMMIT")], "bie", "without a name"),
        ] {
            assert_eq!(shape(&events), expected, "{why}");
        }
    }

    #[test]
    fn names() {
        let mut groups = Groups::default();
        let body = mariadb(15, 0);
        let gtid = crate::gtid::mariadb::Gtid { domain: 0, server: 7, sequence: 15 };
        assert_eq!(groups.next(&event(Kind::MARIADB_GTID, &body)), Ok(Group::Begins(Some(Gtid::MariaDb(gtid)))));
        assert_eq!(groups.next(&event(Kind::XID, &[])), Ok(Group::Ends(Some(Gtid::MariaDb(gtid)))));
        assert!(groups.next(&event(Kind::MARIADB_GTID, &body[..9])).is_err());
        assert!(groups.next(&event(Kind::MYSQL_GTID_TAGGED, &[0; 60])).is_err());
    }
}
