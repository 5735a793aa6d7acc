//! Global transaction identifiers: the two families name transactions, and compare the transactions of servers, in different ways.
//!
//! | | MariaDB ([`mariadb`]) | MySQL ([`mysql`]) |
//! |---|---|---|
//! | one transaction | `domain-server-sequence` | `uuid:number` |
//! | what a server has | the last one of each domain and server | a set with holes: `uuid:1-5:7-9` |

pub mod mariadb;
pub mod mysql;

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
