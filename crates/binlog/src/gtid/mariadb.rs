//! MariaDB's GTIDs: `domain-server-sequence`, as `0-1-15`.
//!
//! In each domain transactions have one order, and sequence numbers grow (always under `gtid_strict_mode`). A replica's position is the last GTID of
//! each domain ([`Position`]); a binary log has the last one of each domain and server ([`State`]).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::{GtidError, refuse};

/// Limit of the entries of a state, and of a list in a file.
pub const MAX_ENTRIES: usize = 65_536;

/// Identifier of one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gtid {
    /// `gtid_domain_id` at its origin.
    pub domain: u32,
    /// `server_id` of its origin.
    pub server: u32,
    /// Sequence number in the domain.
    pub sequence: u64,
}

impl fmt::Display for Gtid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.domain, self.server, self.sequence)
    }
}

impl FromStr for Gtid {
    type Err = GtidError;

    fn from_str(text: &str) -> Result<Gtid, GtidError> {
        let wrong = || refuse(text, "a GTID of the form domain-server-sequence, as 0-1-15");
        let mut parts = text.split('-');
        let mut next = || parts.next().filter(|part| part.bytes().all(|byte| byte.is_ascii_digit())).ok_or_else(wrong);
        let gtid = Gtid {
            domain: next()?.parse().map_err(|_| wrong())?,
            server: next()?.parse().map_err(|_| wrong())?,
            sequence: next()?.parse().map_err(|_| wrong())?,
        };
        if parts.next().is_some() { Err(wrong()) } else { Ok(gtid) }
    }
}

fn list(text: &str) -> Result<Vec<Gtid>, GtidError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let gtids: Vec<Gtid> =
        text.split(',').take(MAX_ENTRIES + 1).map(|part| part.trim().parse()).collect::<Result<_, _>>()?;
    if gtids.len() > MAX_ENTRIES { Err(refuse(text, "a list of at most 65536 GTIDs")) } else { Ok(gtids) }
}

/// Position of a replica: the last transaction of each domain. As text `0-1-15,1-2-3`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Position(BTreeMap<u32, Gtid>);

impl Position {
    /// Returns the last transaction of a domain.
    #[must_use]
    pub fn get(&self, domain: u32) -> Option<Gtid> {
        self.0.get(&domain).copied()
    }

    /// Returns all GTIDs, by domain.
    pub fn iter(&self) -> impl Iterator<Item = Gtid> + '_ {
        self.0.values().copied()
    }

    /// Sets the last transaction of its domain.
    pub fn set(&mut self, gtid: Gtid) {
        if self.0.len() < MAX_ENTRIES || self.0.contains_key(&gtid.domain) {
            self.0.insert(gtid.domain, gtid);
        }
    }

    /// Removes a domain.
    pub fn remove(&mut self, domain: u32) {
        self.0.remove(&domain);
    }

    /// True if the position has no domain.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Gtid> for Position {
    fn from_iter<I: IntoIterator<Item = Gtid>>(gtids: I) -> Position {
        let mut position = Position::default();
        gtids.into_iter().for_each(|gtid| position.set(gtid));
        position
    }
}

impl FromStr for Position {
    type Err = GtidError;

    /// Each domain may occur once: with two GTIDs of one domain the last would be undefined.
    fn from_str(text: &str) -> Result<Position, GtidError> {
        let gtids = list(text)?;
        let position: Position = gtids.iter().copied().collect();
        if position.0.len() == gtids.len() {
            Ok(position)
        } else {
            Err(refuse(text, "a position with each domain once"))
        }
    }
}

fn show(f: &mut fmt::Formatter<'_>, gtids: impl Iterator<Item = Gtid>) -> fmt::Result {
    for (index, gtid) in gtids.enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(f, "{comma}{gtid}")?;
    }
    Ok(())
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.iter())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Domain {
    last: Gtid,
    /// The last sequence number of each server.
    servers: BTreeMap<u32, u64>,
}

/// State of a binary log: in each domain the last transaction of each server, and the last of all. As text like `@@gtid_binlog_state`: the last of
/// all comes last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    domains: BTreeMap<u32, Domain>,
    entries: usize,
}

impl State {
    /// Adds a written transaction. False if it is the first of another server or domain, and [`MAX_ENTRIES`] exist already.
    #[must_use]
    pub fn add(&mut self, gtid: Gtid) -> bool {
        let is_new = !self.domains.get(&gtid.domain).is_some_and(|domain| domain.servers.contains_key(&gtid.server));
        if is_new {
            if self.entries >= MAX_ENTRIES {
                return false;
            }
            self.entries += 1;
        }
        let domain = self.domains.entry(gtid.domain).or_insert_with(|| Domain { last: gtid, servers: BTreeMap::new() });
        domain.last = gtid;
        domain.servers.insert(gtid.server, gtid.sequence);
        true
    }

    /// Adds all of `other` that is not contained. False if there are too many domains and servers.
    pub fn merge(&mut self, other: &State) -> bool {
        for (domain, of) in &other.domains {
            let gtid =
                |(server, sequence): (&u32, &u64)| Gtid { domain: *domain, server: *server, sequence: *sequence };
            // The last one of a domain is added last.
            for gtid in of.servers.iter().map(gtid).filter(|gtid| gtid.server != of.last.server).chain([of.last]) {
                if !self.contains(gtid) && !self.add(gtid) {
                    return false;
                }
            }
        }
        true
    }

    /// Makes the state from a file's list: the last transaction of a domain comes last. None if there are too many.
    #[must_use]
    pub fn from_list(list: &[Gtid]) -> Option<State> {
        let mut state = State::default();
        list.iter().all(|gtid| state.add(*gtid)).then_some(state)
    }

    /// Returns the last transaction of each domain.
    #[must_use]
    pub fn position(&self) -> Position {
        self.domains.values().map(|domain| domain.last).collect()
    }

    /// Returns the last transaction of a domain.
    #[must_use]
    pub fn last(&self, domain: u32) -> Option<Gtid> {
        self.domains.get(&domain).map(|domain| domain.last)
    }

    /// True if `gtid` is in the log, by MariaDB's own rule: the last sequence number of its server in its domain is not lower.
    #[must_use]
    pub fn contains(&self, gtid: Gtid) -> bool {
        let domain = self.domains.get(&gtid.domain);
        domain.and_then(|domain| domain.servers.get(&gtid.server)).is_some_and(|last| *last >= gtid.sequence)
    }

    /// Returns the transactions of `position` that are not in the log.
    #[must_use]
    pub fn lacks(&self, position: &Position) -> Position {
        position.iter().filter(|gtid| !self.contains(*gtid)).collect()
    }

    /// True if nothing was ever written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// Returns the last transaction of each domain and server, by domain; the last of a domain comes last.
    pub fn iter(&self) -> impl Iterator<Item = Gtid> + '_ {
        self.domains.values().flat_map(|domain| {
            let others = domain.servers.iter().filter(|(server, _)| **server != domain.last.server);
            let of = |(server, sequence): (&u32, &u64)| Gtid { server: *server, sequence: *sequence, ..domain.last };
            others.map(of).chain(std::iter::once(domain.last))
        })
    }

    /// True if a file that begins with `begins` may follow a log with this state: each of its domains has the same state here. Domains may be missing
    /// (`FLUSH BINARY LOGS DELETE_DOMAIN_ID`), but not all of them.
    #[must_use]
    pub fn is_followed_by(&self, begins: &State) -> bool {
        begins.is_empty() == self.is_empty()
            && begins.domains.iter().all(|(domain, theirs)| self.domains.get(domain) == Some(theirs))
    }

    /// Returns the transactions of this log that a server whose binary log has `theirs` has lost since it wrote them. Domains may be missing, but not
    /// all of them.
    #[must_use]
    pub fn lost_by(&self, theirs: &State) -> Position {
        let is_there = |gtid: &Gtid| theirs.is_empty() || theirs.domains.contains_key(&gtid.domain);
        self.position().iter().filter(|gtid| is_there(gtid) && !theirs.contains(*gtid)).collect()
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.iter())
    }
}

impl FromStr for State {
    type Err = GtidError;

    fn from_str(text: &str) -> Result<State, GtidError> {
        State::from_list(&list(text)?).ok_or_else(|| refuse(text, "a list of at most 65536 GTIDs"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn gtid() -> impl Strategy<Value = Gtid> {
        (0_u32..4, 1_u32..5, 1_u64..1000).prop_map(|(domain, server, sequence)| Gtid { domain, server, sequence })
    }

    #[test]
    fn texts() {
        for text in ["", "0-1-15", "0-1-15,1-2-3", "4294967295-4294967295-18446744073709551615"] {
            assert_eq!(text.parse::<Position>().unwrap().to_string(), text);
        }
        for text in ["0-1", "0-1-2-3", "a-1-1", "0-1--1", "+0-1-1", "0-1-1,", "4294967296-1-1", "0-1-1,0-2-2", "0-1-é"]
        {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
        assert_eq!(" 0-2-7 , 0-1-9 ".parse::<State>().unwrap().position().to_string(), "0-1-9");
    }

    #[test]
    fn what_a_log_has() {
        let state: State = "0-2-7,0-1-9,5-1-3".parse().unwrap();
        assert_eq!(state.to_string(), "0-2-7,0-1-9,5-1-3");
        for (gtid, held) in
            [("0-1-9", true), ("0-1-8", true), ("0-1-10", false), ("0-2-8", false), ("0-3-1", false), ("6-1-1", false)]
        {
            assert_eq!(state.contains(gtid.parse().unwrap()), held, "{gtid}");
        }
        assert_eq!(state.lacks(&"0-3-8,5-1-2,7-1-1".parse().unwrap()).to_string(), "0-3-8,7-1-1");
    }

    #[test]
    fn one_history_and_another() {
        let state: State = "0-2-7,0-1-9,5-1-3".parse().unwrap();
        for (begins, follows) in [
            ("0-2-7,0-1-9,5-1-3", true),
            ("5-1-3", true),
            ("0-1-9,0-2-7,5-1-3", false),
            ("0-2-7,0-1-9,5-1-2", false),
            ("0-2-7,0-1-9,5-1-4", false),
            ("0-2-7,0-1-9,5-1-3,6-1-1", false),
            ("", false),
        ] {
            assert_eq!(state.is_followed_by(&begins.parse().unwrap()), follows, "{begins}");
        }
        assert!(State::default().is_followed_by(&State::default()));
        for (theirs, lost) in [
            ("0-2-7,0-1-9,5-1-3", ""),
            ("0-1-12", ""),
            ("0-1-8,5-1-3", "0-1-9"),
            ("0-1-2", "0-1-9"),
            ("", "0-1-9,5-1-3"),
        ] {
            assert_eq!(state.lost_by(&theirs.parse().unwrap()).to_string(), lost, "{theirs}");
        }
    }

    proptest! {
        #[test]
        fn a_state_is_read_as_it_is_shown(gtids in prop::collection::vec(gtid(), 0..20)) {
            let mut state = State::default();
            for gtid in &gtids {
                prop_assert!(state.add(*gtid));
                prop_assert!(state.contains(*gtid));
                prop_assert_eq!(state.last(gtid.domain), Some(*gtid));
            }
            prop_assert_eq!(&state.to_string().parse::<State>().unwrap(), &state);
            prop_assert!(state.lacks(&state.position()).is_empty());
        }

        #[test]
        fn no_text_makes_a_panic(text in "\\PC{0,40}") {
            let _ = (text.parse::<Position>(), text.parse::<State>());
        }
    }
}
