//! Global transaction identifiers: the two families name transactions, and compare the transactions of servers, in different ways.
//!
//! | | MariaDB ([`mariadb`]) | MySQL ([`mysql`]) |
//! |---|---|---|
//! | one transaction | `domain-server-sequence` | `uuid:number`, `uuid:tag:number` |
//! | what a server has | the last one of each domain and server | a set with holes: `uuid:1-5:7-9` |
//!
//! [`Gtid`] and [`State`] are of either family. Transactions of one family are never contained in a state of the other.

pub mod mariadb;
pub mod mysql;

use std::fmt;

use crate::Dialect;

/// Identifier of one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gtid {
    /// One of MariaDB.
    MariaDb(mariadb::Gtid),
    /// One of MySQL.
    MySql(mysql::Gtid),
}

impl fmt::Display for Gtid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Gtid::MariaDb(gtid) => gtid.fmt(f),
            Gtid::MySql(gtid) => gtid.fmt(f),
        }
    }
}

/// Transactions of a binary log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// State of a log of MariaDB.
    MariaDb(mariadb::State),
    /// State of a log of MySQL.
    MySql(mysql::Set),
}

impl State {
    /// Makes the state of an empty log.
    #[must_use]
    pub fn new(dialect: Dialect) -> State {
        match dialect {
            Dialect::MariaDb => State::MariaDb(mariadb::State::default()),
            Dialect::MySql => State::MySql(mysql::Set::default()),
        }
    }

    /// Parses the text of a state.
    ///
    /// # Errors
    /// The text is not a state of this family.
    pub fn parse(dialect: Dialect, text: &str) -> Result<State, GtidError> {
        Ok(match dialect {
            Dialect::MariaDb => State::MariaDb(text.parse()?),
            Dialect::MySql => State::MySql(text.parse()?),
        })
    }

    /// Adds a written transaction. False: there are too many domains and servers, or origins, or it is of the other family.
    #[must_use]
    pub fn add(&mut self, gtid: Gtid) -> bool {
        match (self, gtid) {
            (State::MariaDb(state), Gtid::MariaDb(gtid)) => state.add(gtid),
            (State::MySql(set), Gtid::MySql(gtid)) => set.add_one(gtid),
            _ => false,
        }
    }

    /// Adds all of `other`. False if there are too many, or they are of the other family.
    #[must_use]
    pub fn merge(&mut self, other: &State) -> bool {
        match (self, other) {
            (State::MariaDb(state), State::MariaDb(other)) => state.merge(other),
            (State::MySql(set), State::MySql(other)) => set.merge(other),
            _ => false,
        }
    }

    /// True if the transaction is in the log.
    #[must_use]
    pub fn contains(&self, gtid: Gtid) -> bool {
        match (self, gtid) {
            (State::MariaDb(state), Gtid::MariaDb(gtid)) => state.contains(gtid),
            (State::MySql(set), Gtid::MySql(gtid)) => set.contains(gtid),
            _ => false,
        }
    }

    /// True if nothing was ever written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            State::MariaDb(state) => state.is_empty(),
            State::MySql(set) => set.is_empty(),
        }
    }

    /// True if a log with this state has all transactions of `other`. For MariaDB it has the last one of each domain: a domain's transactions are in order.
    #[must_use]
    pub fn includes(&self, other: &State) -> bool {
        match (self, other) {
            (State::MariaDb(state), State::MariaDb(other)) => state.lacks(&other.position()).is_empty(),
            (State::MySql(set), State::MySql(other)) => set.includes(other),
            _ => false,
        }
    }

    /// True if a file that begins with `begins` may follow a log with this state. For MySQL it has everything, and perhaps more: transactions that the
    /// server counts as its own without having written them, as after `SET GLOBAL gtid_purged`.
    #[must_use]
    pub fn is_followed_by(&self, begins: &State) -> bool {
        match (self, begins) {
            (State::MariaDb(state), State::MariaDb(begins)) => state.is_followed_by(begins),
            (State::MySql(set), State::MySql(begins)) => begins.includes(set),
            _ => false,
        }
    }

    /// Returns, as text, the transactions of this log that a server with `theirs` has lost since it wrote them; None if it has lost none.
    #[must_use]
    pub fn lost_by(&self, theirs: &State) -> Option<String> {
        let (is_lost, text) = match (self, theirs) {
            (State::MariaDb(state), State::MariaDb(theirs)) => {
                let lost = state.lost_by(theirs);
                (!lost.is_empty(), lost.to_string())
            }
            (State::MySql(set), State::MySql(theirs)) => {
                let lost = set.without(theirs);
                (!lost.is_empty(), lost.to_string())
            }
            _ => (!self.is_empty(), self.to_string()),
        };
        is_lost.then_some(text)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::MariaDb(state) => state.fmt(f),
            State::MySql(set) => set.fmt(f),
        }
    }
}

/// An invalid GTID, or set of GTIDs, as text or bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct GtidError {
    /// The given text, cut off after some characters.
    pub text: String,
    /// The expected form.
    pub expected: &'static str,
}

fn refuse(text: &str, expected: &'static str) -> GtidError {
    GtidError { text: text.chars().take(80).collect(), expected }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn which_log_has_all_of_another() {
        const UUID: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
        let set = |text: &str| State::parse(Dialect::MySql, &format!("{UUID}:{text}")).unwrap();
        let log = |text: &str| State::parse(Dialect::MariaDb, text).unwrap();
        for (state, other, expected) in [
            (log("0-1-9"), log("0-1-5"), true),
            (log("0-1-9,0-2-12"), log("0-1-9"), true),
            (log("0-1-9"), log("0-1-9,0-2-12"), false),
            (log("0-1-9"), log("0-1-9,1-1-1"), false),
            (set("1-9"), set("1-5"), true),
            (set("1-5:7-20"), set("1-9"), false),
            (set("1-9"), log("0-1-9"), false),
            (log("0-1-9"), set("1-9"), false),
        ] {
            assert_eq!(state.includes(&other), expected, "{state} and {other}");
        }
    }
}
