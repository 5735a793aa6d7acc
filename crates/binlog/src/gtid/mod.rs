//! Global transaction identifiers: the two families name transactions in different ways, and compare what a server has in different ways.
//!
//! | | MariaDB ([`mariadb`]) | MySQL ([`mysql`]) |
//! |---|---|---|
//! | one transaction | `domain-server-sequence` | `uuid:number` |
//! | what a server has | the last one of each domain and server | a set with holes: `uuid:1-5:7-9` |

pub mod mariadb;
pub mod mysql;

/// Why a text or a byte sequence is no GTID, or no set of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct GtidError {
    /// What was given, cut off after some characters.
    pub text: String,
    /// What would have been right.
    pub expected: &'static str,
}

fn refuse(text: &str, expected: &'static str) -> GtidError {
    GtidError { text: text.chars().take(80).collect(), expected }
}
