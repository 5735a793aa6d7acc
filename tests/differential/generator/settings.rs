//! Statements about session state: parameters, roles, and state left by functions.

use super::feature::{Feature, Features};
use super::vocabulary::{Effect, Speaker, Sql, one_of};
use crate::rng::Rng;

const BASIC_SETTINGS: [(&str, &[&str]); 10] = [
    ("timezone", &["Asia/Tokyo", "America/New_York", "UTC"]),
    ("datestyle", &["ISO, DMY", "German", "SQL, MDY"]),
    ("intervalstyle", &["iso_8601", "postgres_verbose"]),
    ("application_name", &["one", "two", ""]),
    ("extra_float_digits", &["0", "3"]),
    ("statement_timeout", &["60s", "0"]),
    ("bytea_output", &["escape", "hex"]),
    ("work_mem", &["1MB", "8MB", "nonsense"]),
    ("plan_cache_mode", &["force_generic_plan", "auto"]),
    ("default_transaction_isolation", &["repeatable read", "read committed", "serializable"]),
];

fn setting(rng: &mut Rng, features: Features) -> (&'static str, &'static str) {
    let mut list: Vec<(&str, &[&str])> = BASIC_SETTINGS.to_vec();
    if features.has(Feature::Literals) {
        // The interesting ones more often than the rest.
        list.extend([BASIC_SETTINGS[0]; 4]);
        list.extend([BASIC_SETTINGS[1]; 4]);
    }
    if features.has(Feature::Rls) {
        list.extend([("app.t", &["t1", "t2", ""][..]); 6]);
    }
    if features.has(Feature::Path) {
        list.extend([("search_path", &["a", "b", "a, public", "b, public", "\"$user\", public"][..]); 6]);
    }
    if features.has(Feature::Strings) {
        list.extend([("standard_conforming_strings", &["off", "on"][..]); 4]);
    }
    let (name, values) = list[rng.below(list.len())];
    (name, values[rng.below(values.len())])
}

/// Formats a value for SET: lists are not quoted.
fn literal(name: &str, value: &str) -> String {
    if name == "search_path" || name == "datestyle" { value.to_owned() } else { format!("'{value}'") }
}

fn shows(rng: &mut Rng, features: Features) -> Sql {
    let (name, _) = setting(rng, features);
    match rng.below(3) {
        // A custom parameter may be missing.
        _ if name == "app.t" => Sql::of("select current_setting('app.t', true)", Effect::None),
        0 => Sql::of(&format!("show {name}"), Effect::None),
        _ => Sql::of(&format!("select current_setting('{name}')"), Effect::None),
    }
}

pub(crate) fn sets(rng: &mut Rng, features: Features, _: Speaker) -> Sql {
    let (name, value) = setting(rng, features);
    let literal = literal(name, value);
    let text = match rng.below(9) {
        0 | 1 => return shows(rng, features),
        2 => format!("set session {name} = {literal}"),
        3 if name == "timezone" => format!("set time zone '{value}'"),
        3 => "set session characteristics as transaction isolation level repeatable read".into(),
        4 => format!("set {name} to default"),
        _ => format!("set {name} to {literal}"),
    };
    Sql::of(&text, Effect::None)
}

pub(crate) fn sets_local(rng: &mut Rng, features: Features, _: Speaker) -> Sql {
    let (name, value) = setting(rng, features);
    let literal = literal(name, value);
    let text = match rng.below(6) {
        0 => return shows(rng, features),
        1 => format!("set local {name} to default"),
        2 if name == "timezone" => format!("set local time zone '{value}'"),
        _ => format!("set local {name} = {literal}"),
    };
    Sql::of(&text, Effect::None)
}

pub(crate) fn set_configs(rng: &mut Rng, features: Features, _: Speaker) -> Sql {
    let (name, value) = setting(rng, features);
    let local = rng.pick(&["false", "false", "true"]);
    match rng.below(4) {
        0 => shows(rng, features),
        1 => Sql {
            values: vec![vec![Some(value.into())]],
            ..Sql::of(&format!("select set_config('{name}', $1, {local})"), Effect::None)
        },
        _ => Sql::of(&format!("select set_config('{name}', '{value}', {local})"), Effect::None),
    }
}

pub(crate) fn resets(rng: &mut Rng, features: Features, _: Speaker) -> Sql {
    let (name, _) = setting(rng, features);
    let text = match rng.below(7) {
        0 => return shows(rng, features),
        1 => "reset all".into(),
        2 => format!("set {name} = default"),
        3 if name == "timezone" => "set time zone default".into(),
        4 if features.has(Feature::Role) => "reset role".into(),
        _ => format!("reset {name}"),
    };
    Sql::of(&text, Effect::None)
}

pub(crate) fn roles(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    const TEXTS: [&str; 10] = [
        "set role low",
        "set role low",
        "set local role low",
        "select set_config('role', 'low', false)",
        "reset role",
        "set role none",
        "set role to default",
        "select current_user, session_user",
        "select current_user, session_user",
        "select count(*) from secret",
    ];
    one_of(rng, &TEXTS, Effect::None)
}

/// Texts whose meaning depends on parameters.
pub(crate) const LITERALS: [&str; 4] = [
    "select '2020-01-01 00:00'::timestamptz at time zone 'utc', '03/04/2020'::date",
    "select '2020-06-01 12:00+00'::timestamptz::text, '1 day 02:00'::interval",
    "select date '05/06/2020' - date '01/01/2020'",
    "select '\\x616200'::bytea, 0.1::float8 / 3",
];

pub(crate) fn literals(rng: &mut Rng, features: Features, who: Speaker) -> Sql {
    match rng.below(4) {
        0 => sets(rng, features, who),
        _ => one_of(rng, &LITERALS, Effect::None),
    }
}

pub(crate) fn paths(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    const TEXTS: [&str; 9] = [
        "select w from here",
        "select w from here",
        "select * from shape",
        "select * from shape",
        "set search_path = a, public",
        "set search_path = b, public",
        "set local search_path = a, public",
        "set local search_path = b",
        "select set_config('search_path', 'b, public', true)",
    ];
    one_of(rng, &TEXTS, Effect::None)
}

pub(crate) fn strings(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    const TEXTS: [&str; 6] = [
        "select 'a\\', ' b; set app.t = t1 --'",
        "select 'a\\', ' b; set app.t = t1 --'",
        "select 'x\\\\y', E'x\\\\y'",
        "set standard_conforming_strings = off",
        "set local standard_conforming_strings = off",
        "show standard_conforming_strings",
    ];
    one_of(rng, &TEXTS, Effect::None)
}

pub(crate) fn encodings(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    const TEXTS: [&str; 6] = [
        "set client_encoding = 'LATIN1'",
        "set names 'utf8'",
        "reset client_encoding",
        "set local client_encoding = 'LATIN1'",
        "select U&'\\00e9' as accented",
        "show client_encoding",
    ];
    one_of(rng, &TEXTS, Effect::None)
}

pub(crate) fn functions(rng: &mut Rng, _: Features, who: Speaker) -> Sql {
    let mark = format!("t{}", who.letter);
    let text = match rng.below(11) {
        0 | 1 => format!("select enter('{mark}')"),
        2 => format!("do $$ begin perform set_config('app.t', '{mark}', false); end $$"),
        3 => format!("select enter_local('{mark}')"),
        4 => "select scratch()".into(),
        5 => "select take(7)".into(),
        6 => "select count(*) from scratch".into(),
        7 | 8 => "select current_setting('app.t', true)".into(),
        _ => "select tenant from rls order by 1".into(),
    };
    Sql::of(&text, Effect::None)
}

pub(crate) fn tenants(rng: &mut Rng, _: Features, _: Speaker) -> Sql {
    const TEXTS: [&str; 8] = [
        "select tenant, n from rls order by 2",
        "select tenant, n from rls order by 2",
        "select current_setting('app.t', true)",
        "set app.t = 't1'",
        "set local app.t = 't2'",
        "select set_config('app.t', 't2', true)",
        "select set_config('app.t', 't1', false)",
        "reset app.t",
    ];
    one_of(rng, &TEXTS, Effect::None)
}
