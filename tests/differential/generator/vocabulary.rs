//! The statements of sessions. They are few on purpose: faults show where clients meet in one text, one name, one table. Rows always have a fixed
//! order, and nothing depends on time or chance.

use super::feature::{Feature, Features};
use super::settings::{
    LITERALS, encodings, functions, literals, paths, resets, roles, set_configs, sets, sets_local, strings, tenants,
};
use crate::rng::Rng;

/// Effect of a statement on the generator's knowledge of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// No effect.
    None,
    /// Begins a transaction.
    Begin,
    /// Ends a transaction, and with `chain` begins another.
    End { chain: bool },
    /// Rolls back to a savepoint.
    Back,
    /// Fails.
    Fails,
    /// Leaves state that may pin the server connection.
    Pins,
    /// Asks for CopyData.
    CopyIn,
}

/// One statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sql {
    /// Text, with `$1` for bound values.
    pub(crate) text: String,
    /// Sets of values, one of which is bound.
    pub(crate) values: Vec<Vec<Option<String>>>,
    /// OIDs of the types declared for them.
    pub(crate) types: Vec<u32>,
    /// Effect of the statement.
    pub(crate) effect: Effect,
}

impl Sql {
    /// Makes a statement without bound values.
    pub(crate) fn of(text: &str, effect: Effect) -> Sql {
        Sql { text: text.into(), values: Vec::new(), types: Vec::new(), effect }
    }
}

/// The client of a statement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Speaker {
    /// `a`, `b`, …: its rows have their own keys, so that no client waits for another.
    pub(crate) letter: char,
    /// True if it is in a transaction.
    pub(crate) in_transaction: bool,
}

/// Texts with bound values: `|` between values, `,` between sets of them, `~` for NULL, `!` for an invalid value. And the OID of a type that may be
/// declared for `$1`: int4, text, varchar.
const BOUND: [(&str, &str, u32); 5] = [
    ("select $1::int + 1 as next", "1,2,~,!x", 23),
    ("select w from t where id = $1", "1,2,9", 23),
    ("select k, v from kv where k = $1 order by 1", "x,y,z", 25),
    ("select $1 as given", "one,~", 1043),
    ("select g from generate_series(1, $1) g", "3,5", 23),
];

const READS: [&str; 13] = [
    "select 1 as one",
    "select * from t order by 1",
    "select * from t order by 1",
    "select id, m from m order by 1",
    "select id, m from m order by 1",
    "select v from kv where k = 'x'",
    "select * from sw order by 1",
    "select * from sw order by 1",
    "select count(*) from log",
    "select g from generate_series(1, 5) g",
    "values (1, 'a'), (2, 'b')",
    "explain (costs off) select * from t order by 1",
    "",
];

type Source = fn(&mut Rng, Features, Speaker) -> Sql;

/// Returns a statement of some feature of the session.
pub(crate) fn any(rng: &mut Rng, features: Features, who: Speaker) -> Sql {
    let sources: [(usize, Feature, Source); 28] = [
        (4, Feature::Writes, writes),
        (4, Feature::Errors, errors),
        (3, Feature::Set, sets),
        (3, Feature::Local, sets_local),
        (3, Feature::SetConfig, set_configs),
        (3, Feature::Reset, resets),
        (3, Feature::Role, roles),
        (4, Feature::Literals, literals),
        (3, Feature::Path, paths),
        (3, Feature::Strings, strings),
        (2, Feature::Encoding, encodings),
        (2, Feature::Temp, temporaries),
        (2, Feature::Locks, locks),
        (3, Feature::SqlPrepare, prepares),
        (2, Feature::Deallocate, deallocates),
        (1, Feature::Discard, discards),
        (4, Feature::Listen, notifies),
        (2, Feature::Ddl, ddl),
        (2, Feature::Swap, swaps),
        (4, Feature::Functions, functions),
        (3, Feature::Rls, tenants),
        (3, Feature::Views, views),
        (1, Feature::Sequences, sequences),
        (3, Feature::Users, users),
        (3, Feature::Cursors, cursors),
        (2, Feature::CopyOut, copies_out),
        (1, Feature::Large, large),
        (6, Feature::Wide, wide),
    ];
    let mut choices: Vec<(usize, Source)> = vec![(6, reads), (3, bound)];
    choices.extend(sources.iter().map(|(weight, feature, source)| (weight * features.weight(*feature), *source)));
    let source = rng.weighted(&choices);
    let mut sql = source(rng, features, who);
    if sql.effect == Effect::None && PINS.iter().any(|words| sql.text.contains(words)) {
        sql.effect = Effect::Pins;
    }
    if features.has(Feature::Hints) && rng.chance(10) {
        let hint = rng.pick(&["primary", "replica", "auto"]);
        sql.text = format!("/* kingpost.route={hint} */ {}", sql.text);
    }
    sql
}

/// Substrings of texts that pin a server connection. Another text that pins makes a session inconclusive (it is run again with a larger pool).
const PINS: [&str; 6] = ["create temp", "pg_try_advisory_lock", "prepare q", "with hold", "scratch()", "take("];

pub(crate) fn one_of(rng: &mut Rng, texts: &[&str], effect: Effect) -> Sql {
    Sql::of(rng.pick(texts), effect)
}

/// Returns a statement that only reads and never waits: several clients may run it at the same time.
pub(crate) fn plain_read(rng: &mut Rng, features: Features) -> Sql {
    let mut texts =
        vec!["select * from t order by 1", "select id, m from m order by 1", "select v from kv where k = 'x'"];
    texts.extend(["select 1 as one", "select count(*) from log", "select * from sw order by 1"]);
    if features.has(Feature::Literals) {
        texts.extend(LITERALS);
    }
    if features.has(Feature::Path) {
        texts.extend(["select w from here", "select * from shape"]);
    }
    if features.has(Feature::Users) {
        texts.push("select * from own");
    }
    if features.has(Feature::Errors) {
        texts.push("select 1/(n - 20) from t order by id");
    }
    one_of(rng, &texts, Effect::None)
}

fn reads(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    one_of(rng, &READS, Effect::None)
}

fn bound(rng: &mut Rng, features: Features, _: Speaker) -> Sql {
    let (text, values, kind) = BOUND[rng.below(BOUND.len())];
    let fits = |value: &&str| features.has(Feature::Errors) || !value.starts_with('!');
    let value = |value: &str| (value != "~").then(|| value.trim_start_matches('!').to_owned());
    let values = values.split(',').filter(fits).map(|set| set.split('|').map(value).collect()).collect();
    let types = if rng.chance(25) { vec![kind] } else { Vec::new() };
    Sql { values, types, ..Sql::of(text, Effect::None) }
}

fn writes(rng: &mut Rng, _: Features, who: Speaker) -> Sql {
    let key = format!("{}{}", who.letter, rng.between(1, 2));
    let own = vec![vec![Some(key.clone())]];
    match rng.below(7) {
        0 => Sql::of(
            &format!("insert into kv values ('{key}', 1) on conflict (k) do update set v = kv.v + 1"),
            Effect::None,
        ),
        1 => Sql::of(&format!("update kv set v = v + 1 where k = '{key}' returning k, v"), Effect::None),
        2 => Sql::of(&format!("delete from kv where k = '{key}'"), Effect::None),
        3 => Sql {
            values: own,
            ..Sql::of("insert into kv values ($1, 5) on conflict (k) do update set v = excluded.v", Effect::None)
        },
        4 => Sql { values: own, ..Sql::of("delete from kv where k = $1 returning v", Effect::None) },
        _ => Sql::of("insert into log values (4)", Effect::None),
    }
}

fn errors(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    const TEXTS: [&str; 10] = [
        "select 1/0",
        "select * from nosuch",
        "selekt 1",
        "select n from t where id = 1",
        "select 'x'::int",
        "select 1/(n - 20) from t order by id",
        "insert into kv values ('x', 1)",
        "select count(*) from secret",
        "select $1::int / 0",
        "commit prepared 'nosuch'",
    ];
    one_of(rng, &TEXTS, Effect::Fails)
}

fn temporaries(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    const TEXTS: [&str; 9] = [
        "create temp table tt (n int)",
        "create temp table tt (n int) on commit drop",
        "create temp table t as select 1 as shadow",
        "insert into tt values (1)",
        "select count(*) from tt",
        "select * from t order by 1",
        "drop table tt",
        "discard temp",
        "create temp view tv as select 1 as x",
    ];
    one_of(rng, &TEXTS, Effect::None)
}

fn locks(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    const TEXTS: [&str; 9] = [
        "select pg_try_advisory_lock(5)",
        "select pg_try_advisory_lock(5)",
        "select pg_try_advisory_xact_lock(5)",
        "select pg_try_advisory_xact_lock(5)",
        "select pg_try_advisory_lock_shared(5)",
        "select pg_advisory_unlock(5)",
        "select pg_advisory_unlock_all()",
        "lock table log in share mode nowait",
        "select id from t where id = 1 for update skip locked",
    ];
    one_of(rng, &TEXTS, Effect::None)
}

fn prepares(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    const TEXTS: [&str; 7] = [
        "prepare q1 as select * from t order by 1",
        "prepare q1 (int) as select $1 + 1 as next",
        "execute q1",
        "execute q1 (3)",
        "deallocate q1",
        "deallocate prepare q1",
        "prepare q2 as insert into log values (5)",
    ];
    one_of(rng, &TEXTS, Effect::None)
}

fn deallocates(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    const TEXTS: [&str; 5] =
        ["deallocate s1", "deallocate s2", "deallocate prepare s3", "deallocate all", "deallocate nosuch"];
    one_of(rng, &TEXTS, Effect::None)
}

fn discards(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    one_of(rng, &["discard all", "discard all", "discard plans", "discard temp", "discard sequences"], Effect::None)
}

fn notifies(rng: &mut Rng, _: Features, who: Speaker) -> Sql {
    let letter = who.letter;
    match rng.below(10) {
        0..=2 => one_of(rng, &["listen ch1", "listen ch1", "listen ch2"], Effect::None),
        3 => one_of(rng, &["unlisten ch1", "unlisten *"], Effect::None),
        4 | 5 => Sql::of(&format!("notify ch1, 'from {letter}'"), Effect::None),
        6 => Sql::of("notify ch1", Effect::None),
        7 => Sql::of(&format!("select tell('ch1', 'told by {letter}')"), Effect::None),
        _ => {
            let values = vec![vec![Some(format!("bound by {letter}"))]];
            Sql { values, ..Sql::of("select pg_notify('ch2', $1)", Effect::None) }
        }
    }
}

/// Returns a schema change, by a client or past the proxy.
pub(crate) fn ddl(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    const TEXTS: [&str; 15] = [
        "vacuum log",
        "alter table sw add column if not exists z int default 7",
        "alter table sw drop column if exists z",
        "alter table m add column if not exists extra text",
        "alter table m drop column if exists extra",
        "create table if not exists a.sw (only_in_a text)",
        "create table if not exists public.mine (n int)",
        "drop table if exists a.sw",
        "drop table if exists public.mine",
        "select * from mine",
        "drop view names; create view names as select v, k from kv",
        "alter type mood add value if not exists 'soso'",
        "create index if not exists kv_v on kv (v)",
        "truncate log",
        "alter table kv rename column v to value",
    ];
    one_of(rng, &TEXTS, Effect::None)
}

/// Swaps two tables of the same columns.
pub(crate) const SWAP: &str =
    "alter table sw rename to sw_old; alter table sw_next rename to sw; alter table sw_old rename to sw_next";

fn swaps(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    one_of(rng, &[SWAP, "select * from sw order by 1", "select * from sw order by 1"], Effect::None)
}

fn views(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    const TEXTS: [&str; 6] = [
        "select * from names order by 1",
        "select n from noting",
        "/* kingpost.route=primary */ select n from noting",
        "select count(*) from log",
        "select count(*) from log",
        "call put(8)",
    ];
    one_of(rng, &TEXTS, Effect::None)
}

fn sequences(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    one_of(rng, &["select nextval('seq')", "select setval('seq', 40)"], Effect::None)
}

fn users(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    one_of(rng, &["select * from own", "select * from own", "select current_user"], Effect::None)
}

fn cursors(rng: &mut Rng, features: Features, who: Speaker) -> Sql {
    const TEXTS: [&str; 8] = [
        "declare c1 cursor for select g from generate_series(1, 5) g",
        "declare c1 cursor for select id from t order by 1",
        "fetch 2 from c1",
        "fetch 2 from c1",
        "fetch all from c1",
        "move 1 in c1",
        "close c1",
        "close all",
    ];
    if features.has(Feature::Hold) && rng.chance(25) {
        return Sql::of("declare c1 cursor with hold for select g from generate_series(1, 5) g", Effect::None);
    }
    // Outside of a transaction most of these fail.
    if !who.in_transaction && rng.chance(60) { reads(rng, features, who) } else { one_of(rng, &TEXTS, Effect::None) }
}

fn copies_out(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    const TEXTS: [&str; 4] = [
        "copy (select id, v from cp order by 1) to stdout",
        "copy (select * from t order by 1) to stdout with (format csv, header)",
        "copy nosuch to stdout",
        "copy (select 1/(id - 2) from cp order by id) to stdout",
    ];
    one_of(rng, &TEXTS, Effect::None)
}

fn large(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    const TEXTS: [&str; 2] = ["select repeat('x', 70000)", "select g, repeat('y', 500) from generate_series(1, 200) g"];
    one_of(rng, &TEXTS, Effect::None)
}

fn wide(_: &mut Rng, _: Features, _: Speaker) -> Sql {
    Sql::of("select * from world.wide", Effect::None)
}

/// Returns a COPY FROM STDIN, and its data.
pub(crate) fn copy_in(rng: &mut Rng, errors: bool) -> (Sql, Vec<String>) {
    let text = rng.pick(&["copy cp from stdin", "copy cp (id, v) from stdin with (format csv)", "copy cp from stdin"]);
    let text = if errors && rng.chance(15) { "copy nosuch from stdin" } else { text };
    let comma = if text.contains("csv") { "," } else { "\t" };
    let mut data = vec![format!("7{comma}seven\n8{comma}eight\n")];
    if rng.chance(30) {
        data.push(format!("9{comma}nine\n"));
    }
    if errors && rng.chance(25) {
        data.push(format!("x{comma}no number\n"));
    }
    (Sql::of(text, Effect::CopyIn), data)
}

/// Returns the beginning of a transaction.
pub(crate) fn begin(rng: &mut Rng, features: Features) -> Sql {
    let mut texts = vec!["begin", "begin", "start transaction", "begin work"];
    if features.has(Feature::ReadOnly) {
        texts.extend(["begin read only", "start transaction read only", "begin read only"]);
    }
    if features.has(Feature::Isolation) {
        texts.extend(["begin isolation level serializable", "begin isolation level repeatable read"]);
        texts.push("begin read only, isolation level repeatable read");
    }
    one_of(rng, &texts, Effect::Begin)
}

/// Returns the end of a transaction.
pub(crate) fn end(rng: &mut Rng, features: Features) -> Sql {
    if features.has(Feature::Chain) && rng.chance(30) {
        return one_of(rng, &["commit and chain", "rollback and chain"], Effect::End { chain: true });
    }
    one_of(rng, &["commit", "commit", "end", "rollback", "abort"], Effect::End { chain: false })
}

/// Returns a statement that is only valid inside of a transaction.
pub(crate) fn inside(rng: &mut Rng, features: Features) -> Option<Sql> {
    let mut choices: Vec<Sql> = Vec::new();
    if features.has(Feature::Savepoints) {
        for name in ["sp1", "sp2"] {
            choices.push(Sql::of(&format!("savepoint {name}"), Effect::None));
            choices.push(Sql::of(&format!("rollback to {name}"), Effect::Back));
            choices.push(Sql::of(&format!("release {name}"), Effect::None));
        }
    }
    if features.has(Feature::ReadOnly) {
        for text in ["set transaction read only", "set transaction read write", "select txid_current() > 0"] {
            choices.push(Sql::of(text, Effect::None));
        }
    }
    if features.has(Feature::Isolation) {
        choices.push(Sql::of("set transaction isolation level repeatable read", Effect::None));
        choices.push(Sql::of("show transaction_isolation", Effect::None));
    }
    if choices.is_empty() { None } else { Some(choices.swap_remove(rng.below(choices.len()))) }
}
