//! Comparison of the proxy's answers with PostgreSQL's.

use std::collections::HashMap;

use crate::reply::{Column, Reply};
use crate::rules::{Allowed, Scene, Verdict};

/// The first difference of two answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// Number of equal replies before it.
    pub(crate) at: usize,
    /// PostgreSQL's reply; None: no further one.
    pub(crate) direct: Option<Reply>,
    /// The proxy's reply; None: no further one.
    pub(crate) proxied: Option<Reply>,
}

/// Result of comparing two answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Compared {
    /// Equal, or different as a rule intends.
    Alike,
    /// Different as a rule intends, and later replies are not comparable.
    Over,
    /// Different.
    Differ(Box<Mismatch>),
}

/// Mapping of OIDs between the two worlds. OIDs below 16384 are PostgreSQL's own and equal in both.
#[derive(Debug, Default)]
pub(crate) struct Oids {
    /// Mapping by database.
    there: HashMap<(String, u32), u32>,
    back: HashMap<(String, u32), u32>,
}

/// The first OID of users' objects (FirstNormalObjectId).
const FIRST_OF_USERS: u32 = 16384;

impl Oids {
    /// True if two OIDs can belong to one object, as far as has been seen; from then on they do.
    fn pair(&mut self, database: &str, direct: u32, proxied: u32) -> bool {
        if direct < FIRST_OF_USERS || proxied < FIRST_OF_USERS {
            return direct == proxied;
        }
        let there = self.there.entry((database.to_owned(), direct)).or_insert(proxied);
        let back = self.back.entry((database.to_owned(), proxied)).or_insert(direct);
        *there == proxied && *back == direct
    }
}

impl Mismatch {
    /// Returns the kind of the difference, without contents: shrinking keeps it.
    pub(crate) fn kind(&self) -> String {
        let kind = |reply: &Option<Reply>| reply.as_ref().map_or("nothing".into(), Reply::kind);
        format!("{} -> {}", kind(&self.direct), kind(&self.proxied))
    }
}

fn same_column(scene: &mut Scene<'_>, direct: &Column, proxied: &Column) -> bool {
    let database = scene.database.to_owned();
    let plain = |column: &Column| Column { table: 0, kind: 0, ..column.clone() };
    plain(direct) == plain(proxied)
        && scene.oids.pair(&database, direct.table, proxied.table)
        && scene.oids.pair(&database, direct.kind, proxied.kind)
}

/// True if two replies are equal.
fn same(scene: &mut Scene<'_>, direct: &Reply, proxied: &Reply) -> bool {
    match (direct, proxied) {
        (Reply::Columns(direct), Reply::Columns(proxied)) => {
            direct.len() == proxied.len() && direct.iter().zip(proxied).all(|(d, p)| same_column(scene, d, p))
        }
        (Reply::Parameters(direct), Reply::Parameters(proxied)) => {
            let database = scene.database.to_owned();
            direct.len() == proxied.len() && direct.iter().zip(proxied).all(|(d, p)| scene.oids.pair(&database, *d, *p))
        }
        (direct, proxied) => direct == proxied,
    }
}

/// Compares the replies to one client in one step.
pub(crate) fn compare(scene: &mut Scene<'_>, allowed: &mut Allowed, direct: &[Reply], proxied: &[Reply]) -> Compared {
    let (mut at, mut at_proxied) = (0, 0);
    while at < direct.len() || at_proxied < proxied.len() {
        let (one, other) = (direct.get(at), proxied.get(at_proxied));
        (at, at_proxied) = (at + 1, at_proxied + 1);
        if let (Some(one), Some(other)) = (one, other)
            && same(scene, one, other)
        {
            continue;
        }
        match allowed.verdict(scene, one, other) {
            Some(Verdict::Same) => {}
            Some(Verdict::Missing) => at_proxied -= 1,
            Some(Verdict::More) => at -= 1,
            Some(Verdict::Over) => return Compared::Over,
            None => {
                let mismatch = Mismatch { at: at - 1, direct: one.cloned(), proxied: other.cloned() };
                return Compared::Differ(Box::new(mismatch));
            }
        }
    }
    Compared::Alike
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CONFIGS;

    fn column(name: &str, table: u32, kind: u32) -> Column {
        Column { name: name.into(), table, attribute: 1, kind, length: 4, modifier: -1, format: 0 }
    }

    fn row(value: &str) -> Reply {
        Reply::Row(vec![Some(value.into())])
    }

    /// Compares two answers, with the known `oids`; returns `0` if they are equal, else place and difference.
    fn compared(oids: &mut Oids, direct: &[Reply], proxied: &[Reply]) -> String {
        let mut scene = Scene::new(oids, "app", &CONFIGS[0]);
        match compare(&mut scene, &mut Allowed::new(false), direct, proxied) {
            Compared::Alike => "alike".into(),
            Compared::Over => "over".into(),
            Compared::Differ(mismatch) => format!("{} {}", mismatch.at, mismatch.kind()),
        }
    }

    #[test]
    fn answers_are_compared_reply_by_reply() {
        let done = || Reply::Complete("SELECT 1".into());
        let ready = || Reply::Ready(b'I');
        let table = [
            (vec![row("1"), done(), ready()], vec![row("1"), done(), ready()], "alike"),
            (vec![row("1"), done()], vec![row("2"), done()], "0 row -> row"),
            (vec![row("1"), done()], vec![row("1")], "1 C SELECT -> nothing"),
            (vec![row("1")], vec![row("1"), Reply::Closed], "1 nothing -> closed"),
            (vec![done(), ready()], vec![done(), Reply::Ready(b'T')], "1 ZI -> ZT"),
            (vec![done()], vec![Reply::Complete("SELECT 2".into())], "0 C SELECT -> C SELECT"),
            (vec![Reply::Parameters(vec![23])], vec![Reply::Parameters(vec![25])], "0 t -> t"),
            (vec![Reply::Parameters(vec![23])], vec![Reply::Parameters(vec![23, 23])], "0 t -> t"),
            (vec![ready()], vec![Reply::Silence], "0 ZI -> silence"),
        ];
        for (direct, proxied, expected) in table {
            assert_eq!(compared(&mut Oids::default(), &direct, &proxied), expected, "{direct:?} / {proxied:?}");
        }
    }

    #[test]
    fn an_oid_is_always_the_same_other_one() {
        let columns = |table, kind| vec![Reply::Columns(vec![column("x", table, kind)])];
        let mut oids = Oids::default();
        let mut check = |direct: (u32, u32), proxied: (u32, u32)| {
            compared(&mut oids, &columns(direct.0, direct.1), &columns(proxied.0, proxied.1))
        };
        assert_eq!(check((20_000, 23), (30_000, 23)), "alike");
        assert_eq!(check((20_000, 23), (30_000, 25)), "0 T -> T", "another type");
        assert_eq!(check((20_001, 23), (30_000, 23)), "0 T -> T", "another table");
        assert_eq!(check((20_000, 23), (30_001, 23)), "0 T -> T", "another table");
        assert_eq!(check((20_002, 20_003), (30_002, 30_003)), "alike");
        assert_eq!(check((0, 23), (30_002, 23)), "0 T -> T", "of no table");
        // Another database has its own OIDs.
        assert!(oids.pair("shop", 20_000, 40_000));
    }
}
