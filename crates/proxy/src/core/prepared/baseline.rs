//! Values of the session settings that all sessions of a namespace share, on every node.
//!
//! The proxy sends some of them to a client at its login (`TimeZone`, `DateStyle` …), and the client's statements depend on the others
//! (`search_path`, `statement_timeout` …). Each node has a `postgresql.conf` of its own, so nodes may disagree. The primary decides:
//!
//! ```text
//!  a connection to the primary ── asked for its values ─▶ the baseline
//!  a node's first connection ──── asked for its values ─▶ Own: which ones differ ── closed
//!  its further connections ────── begin with the baseline's values as start-up parameters
//! ```
//!
//! RESET and DISCARD ALL go back to the start-up parameters, and no reload of the node's files changes them.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sql::{ALIKE, Meaning, meaning_of};
use topology::NodeId;

/// Values in the order of [`ALIKE`]; `None`: the server has no parameter of this name.
pub(crate) type Values = [Option<Box<str>>; ALIKE.len()];

/// Age at which a node's own values are queried again while sessions begin with others: `ALTER ROLE … SET` shows only in a session without start-up
/// parameters, and on a replica perhaps later than on the primary.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Number of consecutive unanswered questions after which a node is believed to answer none.
const MOST_UNTOLD: u32 = 5;
/// Time after which another worker asks, if the one that claimed the question has not.
const CLAIMED_FOR: Duration = Duration::from_secs(5);

/// Values under which sessions of a namespace run, and those that each node would give them.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    agreed: Option<Agreed>,
    nodes: Vec<OnNode>,
}

#[derive(Debug)]
struct Agreed {
    values: Arc<Values>,
    /// The node with these values of its own: its sessions need no start-up parameters while it is primary.
    of: NodeId,
    /// True for a replica's values, learnt while no primary could be asked.
    provisional: bool,
}

#[derive(Debug, Default)]
struct OnNode {
    own: Option<Own>,
    /// The error with which the node refused a session with the baseline's values.
    refused: Option<Box<str>>,
    /// Number of questions that the node has not answered since it last answered one.
    untold: u32,
    /// The differences that were last reported as news.
    said: Vec<&'static str>,
    /// Time at which a worker last claimed the question to the node; and the start of the last session that was begun to ask it.
    claimed: Option<Instant>,
    asking: Option<Instant>,
    /// The parameters that the last session reported at its login, sorted.
    reported: Vec<(String, String)>,
}

/// The values that a node gives its sessions by itself.
#[derive(Debug)]
struct Own {
    /// `None`: the node did not answer.
    values: Option<Arc<Values>>,
    /// Number of the node's configuration then (`topology::NodeView::settings`).
    settings: u64,
    /// True if the node was primary then.
    as_primary: bool,
    asked: Instant,
}

/// A node at the moment a connection to it begins or answers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub node: NodeId,
    /// Number of the node's configuration.
    pub settings: u64,
    pub primary: bool,
    /// True if no node is known to be primary.
    pub orphaned: bool,
    pub now: Instant,
}

/// Values that a session begins with.
#[derive(Debug, Clone, Default)]
pub(crate) enum Begins {
    /// The node's own values, which are not queried.
    #[default]
    Own,
    /// The node's own values, which the session is asked for.
    Asked,
    /// The node's own values, which the session has reported.
    Told,
    /// The baseline's values. `differ`: the node would give others.
    Aligned { values: Arc<Values>, differ: bool },
}

impl Begins {
    /// True if the session begins with transactions that a standby refuses.
    pub(crate) fn is_serializable(&self) -> bool {
        let Begins::Aligned { values, .. } = self else { return false };
        isolation(values) == Some("serializable")
    }
}

/// Returns the isolation level of transactions that name none.
fn isolation(values: &Values) -> Option<&str> {
    let level = ALIKE.iter().zip(values).find(|(name, _)| **name == "default_transaction_isolation");
    level.and_then(|(_, value)| value.as_deref())
}

/// True for an isolation level under which each statement has its own snapshot.
pub(in crate::core) fn is_read_committed(level: &str) -> bool {
    level.eq_ignore_ascii_case("read committed") || level.eq_ignore_ascii_case("read uncommitted")
}

/// The consequence of a session's values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Learnt {
    /// The values are the baseline, as before or from now on.
    Kept,
    /// The primary's values have changed: they are the baseline from now on, and older sessions are to be closed.
    Changed,
    /// As `Changed`, and clients were sent a replica's values: their connections are to be closed, too.
    Replaced,
    /// The session is not to be used, only sessions with the baseline's values are. The parameters in which the node differs, if they are news.
    Unused(Option<Vec<&'static str>>),
}

/// The answer to: is a node to be asked now?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// No: its values are known.
    No,
    /// Yes, now, by the caller.
    Now,
    /// Another worker is about to ask.
    Claimed,
}

/// The parameters that a session has reported at its login, against those of the session before it on the same node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reported {
    /// No difference, or no session before.
    Same,
    /// Different.
    Other,
    /// Different in a parameter by which literals are read.
    OtherLiterals,
}

/// Differences of a node, for display.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Differences {
    /// Parameters, sorted.
    pub names: Vec<&'static str>,
    /// True if the node has refused sessions with the primary's values.
    pub refused: bool,
}

// === impl Baseline ===

impl Baseline {
    /// True if sessions can begin with the baseline's values.
    pub(super) fn is_agreed(&self) -> bool {
        self.agreed.is_some()
    }

    /// True if a BEGIN without an isolation level begins a READ COMMITTED transaction in a session with the baseline's values.
    pub(super) fn is_read_committed(&self) -> bool {
        let values = self.agreed.as_ref().map(|agreed| &*agreed.values);
        let level = values.and_then(|values| isolation(values));
        level.is_some_and(is_read_committed)
    }

    fn node(&mut self, id: NodeId) -> &mut OnNode {
        let at = usize::from(id.0);
        if self.nodes.len() <= at {
            self.nodes.resize_with(at + 1, OnNode::default);
        }
        &mut self.nodes[at]
    }

    /// Returns the node's own values, if they are still those that it gives.
    fn own(&self, at: Asked) -> Option<&Own> {
        let own = self.nodes.get(usize::from(at.node.0))?.own.as_ref()?;
        (own.settings == at.settings && (own.as_primary || !at.primary)).then_some(own)
    }

    /// Decides how a session begins on this node.
    pub(super) fn begins(&mut self, at: Asked) -> Begins {
        let Some(agreed) = &self.agreed else { return Begins::Asked };
        if agreed.of == at.node && (at.primary || agreed.provisional) {
            return Begins::Asked;
        }
        let is_late = |since: Instant, limit| at.now.saturating_duration_since(since) >= limit;
        let agreed = agreed.values.clone();
        let alike = |own: &Own| own.values.as_ref().is_none_or(|own| differences(own, &agreed).is_empty());
        let is_known = |own: &&Own| !is_late(own.asked, ASKED_AGAIN_AFTER) || (!at.primary && alike(own));
        if let Some(own) = self.own(at).filter(is_known) {
            let Some(own) = &own.values else { return Begins::Aligned { values: agreed, differ: false } };
            // A parameter that the node does not have is not sent: minor versions differ during an upgrade.
            let values = std::array::from_fn(|i| agreed[i].clone().filter(|_| own[i].is_some()));
            return Begins::Aligned { values: Arc::new(values), differ: !differences(own, &agreed).is_empty() };
        }
        let place = self.node(at.node);
        if place.asking.is_some_and(|since| !is_late(since, CLAIMED_FOR)) {
            // One session that is asked is enough.
            return Begins::Aligned { values: agreed, differ: false };
        }
        place.asking = Some(at.now);
        Begins::Asked
    }

    /// Learns a node's own values from a session that began with them; `None`: the node did not answer.
    pub(super) fn learn(&mut self, at: Asked, values: Option<Values>) -> Learnt {
        let values = values.map(Arc::new);
        let own = Own { values: values.clone(), settings: at.settings, as_primary: at.primary, asked: at.now };
        let place = self.node(at.node);
        let before = place.own.replace(own);
        (place.claimed, place.asking, place.refused) = (None, None, None);
        let Some(values) = values else {
            // No baseline is learnt from a primary that does not answer.
            let is_baseline = match &self.agreed {
                Some(agreed) => agreed.of == at.node && (at.primary || agreed.provisional),
                None => at.primary || at.orphaned,
            };
            let place = self.node(at.node);
            place.untold += 1;
            if place.untold < MOST_UNTOLD {
                // A short statement_timeout may end the question.
                place.own = before;
            }
            return if is_baseline { Learnt::Kept } else { Learnt::Unused(None) };
        };
        place.untold = 0;
        let new = Agreed { values: values.clone(), of: at.node, provisional: !at.primary };
        let Some(agreed) = &mut self.agreed else {
            if !at.primary && !at.orphaned {
                // The primary is asked first.
                return Learnt::Unused(None);
            }
            self.agreed = Some(new);
            return Learnt::Kept;
        };
        let same = agreed.values == values;
        let is_source = agreed.of == at.node;
        if at.primary && (same || is_source || agreed.provisional) || is_source && agreed.provisional {
            let dismisses = agreed.provisional && at.primary && !same;
            *agreed = new;
            return match (same, dismisses) {
                (true, _) => Learnt::Kept,
                (false, true) => Learnt::Replaced,
                (false, false) => Learnt::Changed,
            };
        }
        // A new primary whose settings differ from the old one's: clients were sent the old ones. Settings that are changed on it from then on are
        // the primary's.
        let known = before.as_ref().and_then(|own| own.values.as_ref().filter(|_| own.as_primary));
        if at.primary && known.is_some_and(|known| *known != values) {
            *agreed = new;
            return Learnt::Changed;
        }
        let names = differences(&values, &agreed.values);
        let said = &mut self.node(at.node).said;
        if *said == names {
            return Learnt::Unused(None);
        }
        said.clone_from(&names);
        Learnt::Unused(Some(names))
    }

    /// Notes that the node refuses sessions with the baseline's values. Returns true if it is the primary: then its own values are the baseline from
    /// now on, and clients that were sent the former ones are to be closed.
    pub(super) fn refused(&mut self, at: Asked, why: &str) -> bool {
        let place = self.node(at.node);
        place.refused = Some(why.into());
        if !at.primary {
            return false;
        }
        place.refused = None;
        let own = place.own.take().and_then(|own| own.values);
        self.agreed = own.map(|values| Agreed { values, of: at.node, provisional: false });
        true
    }

    /// Decides if the node is to be asked, though no client needs a connection to it.
    pub(crate) fn due(&mut self, at: Asked) -> Due {
        if self.own(at).is_some() {
            return Due::No;
        }
        let place = self.node(at.node);
        if place.claimed.is_some_and(|since| at.now.saturating_duration_since(since) < CLAIMED_FOR) {
            return Due::Claimed;
        }
        place.claimed = Some(at.now);
        Due::Now
    }

    /// Compares the parameters that a usable session has reported at its login with those of the session before.
    pub(super) fn reported(&mut self, node: NodeId, reported: &[(String, String)]) -> Reported {
        let mut now = reported.to_vec();
        now.sort_unstable();
        let place = self.node(node);
        place.refused = None;
        let before = std::mem::replace(&mut place.reported, now);
        if before.is_empty() || before == place.reported {
            return Reported::Same;
        }
        let literals = |list: &[(String, String)]| -> Vec<(String, String)> {
            let is = |name: &str| meaning_of(&name.to_ascii_lowercase()) == Meaning::Literals;
            list.iter().filter(|(name, _)| is(name)).cloned().collect()
        };
        if literals(&before) == literals(&place.reported) { Reported::Other } else { Reported::OtherLiterals }
    }

    /// Forgets all values: the next session on the primary reports the new ones.
    pub(super) fn forget(&mut self) {
        self.agreed = None;
        for node in &mut self.nodes {
            (node.own, node.refused, node.claimed, node.asking) = (None, None, None, None);
        }
    }

    /// Returns the differences of this node from the baseline.
    pub(super) fn differences(&self, node: NodeId) -> Differences {
        let (Some(agreed), Some(place)) = (&self.agreed, self.nodes.get(usize::from(node.0))) else {
            return Differences::default();
        };
        let own = place.own.as_ref().and_then(|own| own.values.as_ref());
        let names = own.map(|own| differences(own, &agreed.values)).unwrap_or_default();
        Differences { names, refused: place.refused.is_some() }
    }
}

/// Returns the parameters that both servers have, with different values.
fn differences(own: &Values, agreed: &Values) -> Vec<&'static str> {
    let differ = |i: &usize| own[*i].is_some() && agreed[*i].is_some() && own[*i] != agreed[*i];
    (0..ALIKE.len()).filter(differ).map(|i| ALIKE[i]).collect()
}

/// Returns the Query that asks a session for its values. Two rows answer it: the first has `statement_timeout`, so that a short one does not end the
/// question; the second has all. On a standby a serializable transaction could not ask.
pub(crate) fn question() -> String {
    let mut sql = String::from(
        "SHOW statement_timeout; SET LOCAL statement_timeout = 0; SET LOCAL transaction_isolation = 'read committed'; SELECT ",
    );
    for (i, name) in ALIKE.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        let _ = write!(sql, "{comma}pg_catalog.current_setting('{name}', true)");
    }
    sql
}

/// The answer to [`question`], read row by row.
#[derive(Debug, Default)]
pub(crate) struct ToldValues {
    timeout: Option<Box<str>>,
    values: Option<Values>,
    /// The server's error.
    pub error: Option<String>,
}

impl ToldValues {
    /// Takes the payload of a `DataRow`.
    pub(crate) fn row(&mut self, data: &[u8]) {
        let Some(columns) = columns(data) else { return };
        match <Vec<_> as TryInto<Values>>::try_into(columns) {
            Ok(values) => self.values = Some(values),
            Err(mut columns) if columns.len() == 1 => self.timeout = columns.pop().flatten(),
            Err(_) => {}
        }
    }

    /// Returns the values; `None`: the server's answer is incomplete or an error.
    pub(crate) fn values(self) -> Option<Values> {
        let mut values = self.values.filter(|_| self.error.is_none())?;
        if let Some(at) = ALIKE.iter().position(|name| *name == "statement_timeout") {
            values[at] = Some(self.timeout?);
        }
        Some(values)
    }
}

/// Returns the columns of a `DataRow`, as text; at most as many as a complete answer has.
fn columns(data: &[u8]) -> Option<Vec<Option<Box<str>>>> {
    let (count, mut rest) = data.split_first_chunk::<2>()?;
    let count = usize::from(u16::from_be_bytes(*count));
    if count > ALIKE.len() {
        return None;
    }
    let mut columns = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, after) = rest.split_first_chunk::<4>()?;
        rest = after;
        let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
            columns.push(None);
            continue;
        };
        let (text, after) = rest.split_at_checked(length)?;
        rest = after;
        columns.push(Some(str::from_utf8(text).ok()?.into()));
    }
    Some(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    fn at(node: NodeId, settings: u64, primary: bool) -> Asked {
        Asked { node, settings, primary, orphaned: false, now: Instant::now() }
    }

    /// Values `0` of every parameter but the time zone.
    fn values(zone: &str) -> Option<Values> {
        Some(std::array::from_fn(|i| Some(if ALIKE[i] == "timezone" { zone } else { "0" }.into())))
    }

    fn zone_of(begins: &Begins) -> Option<&str> {
        match begins {
            Begins::Aligned { values, .. } => {
                ALIKE.iter().zip(&**values).find(|(name, _)| **name == "timezone")?.1.as_deref()
            }
            _ => None,
        }
    }

    fn asks(begins: &Begins) -> bool {
        matches!(begins, Begins::Asked)
    }

    #[test]
    fn a_replica_gets_the_primarys_values() {
        let mut baseline = Baseline::default();
        assert!(asks(&baseline.begins(at(A, 1, true))));
        assert_eq!(baseline.learn(at(A, 1, true), values("UTC")), Learnt::Kept);
        assert!(asks(&baseline.begins(at(A, 1, true))), "ALTER ROLE is noticed with the next session");
        assert!(asks(&baseline.begins(at(B, 1, false))));
        assert_eq!(baseline.learn(at(B, 1, false), values("JST")), Learnt::Unused(Some(vec!["timezone"])));
        assert_eq!(zone_of(&baseline.begins(at(B, 1, false))), Some("UTC"));
        assert_eq!(baseline.differences(B).names, ["timezone"]);
        // After a reload of its configuration the node is asked again, and only new differences are news.
        assert!(asks(&baseline.begins(at(B, 2, false))));
        assert_eq!(baseline.learn(at(B, 2, false), values("JST")), Learnt::Unused(None));
        assert_eq!(baseline.learn(at(B, 3, false), values("UTC")), Learnt::Unused(Some(vec![])));
        let same = baseline.begins(at(B, 3, false));
        assert!(
            matches!(same, Begins::Aligned { differ: false, .. }),
            "also where nothing differs: a reload there changes nothing"
        );
        // The primary's settings are changed.
        assert_eq!(baseline.learn(at(A, 2, true), values("CET")), Learnt::Changed);
        assert_eq!(zone_of(&baseline.begins(at(B, 3, false))), Some("CET"));
        // Of sessions that begin at the same time one is asked.
        let later = |after| Asked { now: Instant::now() + after, ..at(B, 4, false) };
        assert!(asks(&baseline.begins(at(B, 4, false))));
        assert_eq!(zone_of(&baseline.begins(at(B, 4, false))), Some("CET"));
        assert!(asks(&baseline.begins(later(CLAIMED_FOR))));
        // An operator has all learnt anew.
        baseline.forget();
        assert!(asks(&baseline.begins(at(B, 3, false))) && !baseline.is_agreed());
    }

    #[test]
    fn a_new_primary_goes_on_with_the_former_ones_values() {
        for alike in [false, true] {
            let zone = if alike { "UTC" } else { "JST" };
            let mut baseline = Baseline::default();
            baseline.learn(at(A, 1, true), values("UTC"));
            baseline.learn(at(B, 1, false), values(zone));
            assert!(asks(&baseline.begins(at(B, 1, true))), "as a primary it is asked once more");
            assert_eq!(baseline.due(at(B, 1, true)), Due::Now);
            assert_eq!(baseline.due(at(B, 1, true)), Due::Claimed);
            let learnt = baseline.learn(at(B, 1, true), values(zone));
            assert_eq!(learnt, if alike { Learnt::Kept } else { Learnt::Unused(None) });
            assert_eq!(baseline.due(at(B, 1, true)), Due::No);
            let begins = baseline.begins(at(B, 1, true));
            assert_eq!((asks(&begins), zone_of(&begins)), (alike, (!alike).then_some("UTC")));
            assert_eq!(baseline.learn(at(A, 2, false), values("UTC")), Learnt::Unused(None));
            assert_eq!(zone_of(&baseline.begins(at(A, 2, false))), Some("UTC"));
            // Its settings are changed from then on.
            assert_eq!(baseline.learn(at(B, 2, true), values("CET")), Learnt::Changed);
            assert!(asks(&baseline.begins(at(B, 2, true))));
            assert_eq!(zone_of(&baseline.begins(at(A, 2, false))), Some("CET"));
        }
    }

    #[test]
    fn a_new_primary_that_refuses_them_keeps_its_own() {
        let mut baseline = Baseline::default();
        baseline.learn(at(A, 1, true), values("UTC"));
        baseline.learn(at(B, 1, false), values("JST"));
        assert!(!baseline.refused(at(B, 1, false), "no"), "as a replica it gets no reads");
        assert!(baseline.differences(B).refused);
        baseline.learn(at(B, 1, true), values("JST"));
        assert!(baseline.refused(at(B, 1, true), "no"));
        assert!(asks(&baseline.begins(at(B, 1, true))));
        assert_eq!(baseline.learn(at(B, 1, true), values("JST")), Learnt::Kept);
    }

    #[test]
    fn a_replica_decides_only_while_no_primary_can_be_asked() {
        for (zone, expected) in [("UTC", Learnt::Replaced), ("JST", Learnt::Kept)] {
            let mut baseline = Baseline::default();
            assert_eq!(baseline.learn(at(B, 1, false), values("JST")), Learnt::Unused(None));
            let orphaned = Asked { orphaned: true, ..at(B, 1, false) };
            assert_eq!(baseline.learn(orphaned, values("JST")), Learnt::Kept);
            assert!(asks(&baseline.begins(at(B, 1, false))) && asks(&baseline.begins(at(A, 1, true))));
            assert_eq!(baseline.learn(at(A, 1, true), values(zone)), expected);
            assert!(asks(&baseline.begins(at(A, 1, true))));
            assert_eq!(
                baseline.learn(at(B, 1, false), values("JST")),
                Learnt::Unused((zone == "UTC").then(|| vec!["timezone"]))
            );
            assert_eq!(zone_of(&baseline.begins(at(B, 1, false))), Some(zone));
        }
    }

    #[test]
    fn parameters_that_a_server_does_not_have_are_not_sent_to_it() {
        let mut baseline = Baseline::default();
        baseline.learn(at(A, 1, true), values("UTC"));
        let mut older = values("UTC");
        older.as_mut().expect("values")[0] = None;
        assert_eq!(baseline.learn(at(B, 1, false), older), Learnt::Unused(None));
        let Begins::Aligned { values, differ: false } = baseline.begins(at(B, 1, false)) else { panic!("alike") };
        assert!(values[0].is_none() && values[1].is_some());
        // A node that does not answer gets all values.
        for _ in 0..MOST_UNTOLD {
            assert!(asks(&baseline.begins(at(B, 2, false))));
            assert_eq!(baseline.learn(at(B, 2, false), None), Learnt::Unused(None));
        }
        let Begins::Aligned { values, .. } = baseline.begins(at(B, 2, false)) else { panic!("alike") };
        assert!(values.iter().all(Option::is_some));
    }

    #[test]
    fn what_a_login_reports() {
        let mut baseline = Baseline::default();
        let list =
            |zone: &str, version: &str| [("TimeZone".into(), zone.into()), ("server_version".into(), version.into())];
        for (node, zone, version, expected) in [
            (A, "UTC", "15.18", Reported::Same),
            (B, "JST", "15.17", Reported::Same),
            (A, "UTC", "15.18", Reported::Same),
            (A, "UTC", "15.19", Reported::Other),
            (A, "CET", "15.19", Reported::OtherLiterals),
            (B, "JST", "15.17", Reported::Same),
        ] {
            assert_eq!(baseline.reported(node, &list(zone, version)), expected, "{node:?} {zone} {version}");
        }
    }

    #[test]
    fn answers() {
        let row = |values: &[Option<&[u8]>]| {
            let mut out = Vec::new();
            wire::message::data_row(&mut out, values);
            out.split_off(wire::HEADER)
        };
        let mut answer = ToldValues::default();
        answer.row(&row(&[Some(b"1ms")]));
        assert_eq!(ToldValues { values: None, timeout: None, error: None }.values(), None);
        let mut all = vec![Some(&b"0"[..]); ALIKE.len()];
        all[0] = None;
        answer.row(&row(&all));
        let values = answer.values().expect("all values");
        let of = |name: &str| {
            ALIKE.iter().zip(&values).find(|(known, _)| **known == name).and_then(|(_, value)| value.as_deref())
        };
        assert_eq!((of(ALIKE[0]), of("statement_timeout"), of("timezone")), (None, Some("1ms"), Some("0")));
        // Odd ones.
        let mut answer = ToldValues::default();
        for odd in
            [&b""[..], &[0xff; 9], &row(&vec![None; ALIKE.len() + 1]), &row(&[Some(b"\xff")]), &[0, 1, 0, 0, 0, 9, 1]]
        {
            answer.row(odd);
        }
        assert_eq!(answer.values(), None);
        assert_eq!(question().matches("current_setting(").count(), ALIKE.len());
    }
}
