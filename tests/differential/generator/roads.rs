//! Message sequences for sending a statement: every statement can take every one.

use super::feature::{Feature, Features};
use super::vocabulary::{Effect, Sql};
use crate::rng::Rng;
use crate::session::{Message, Target};

/// Names of prepared statements and portals.
const STATEMENTS: [&str; 3] = ["s1", "s2", "s3"];
const PORTALS: [&str; 2] = ["p1", "p2"];

/// The generator's belief about one client. It may be wrong after an error: then sessions contain errors.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    /// Named statements, and the unnamed one.
    pub(crate) statements: Vec<(String, Sql)>,
    pub(crate) unnamed: Option<Sql>,
    /// True if it is in a transaction.
    pub(crate) open: bool,
    /// True if it may be in one.
    pub(crate) maybe_open: bool,
    /// True if the transaction has failed.
    pub(crate) failed: bool,
    /// True if it may keep its server connection.
    pub(crate) pinned: bool,
}

/// The messages of one statement.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    pub(crate) messages: Vec<Message>,
    /// True for a Query, which needs no Sync.
    pub(crate) simple: bool,
    /// True if it is sure to run, unless an earlier message of its batch fails.
    pub(crate) sure: bool,
}

/// Way of a statement to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Road {
    Simple,
    Unnamed,
    Named,
}

fn parse(name: &str, sql: &Sql) -> Message {
    Message::Parse { name: name.into(), text: sql.text.clone(), types: sql.types.clone() }
}

fn bind(portal: &str, statement: &str, values: Vec<Option<String>>, binary: bool) -> Message {
    Message::Bind { portal: portal.into(), statement: statement.into(), values, binary }
}

impl Known {
    /// Records the effect of a statement, if it runs.
    pub(crate) fn ran(&mut self, effect: Effect, sure: bool) {
        match effect {
            Effect::Begin => (self.open, self.maybe_open) = (true, true),
            Effect::End { chain } => {
                (self.open, self.failed) = (chain, false);
                self.maybe_open = chain || (self.maybe_open && !sure);
            }
            Effect::Back => self.failed = false,
            Effect::Fails => self.failed |= self.open,
            Effect::Pins => self.pinned = true,
            Effect::None | Effect::CopyIn => {}
        }
    }

    /// Sends COPY FROM STDIN, followed only by messages that a server in COPY accepts.
    pub(crate) fn copy(&mut self, rng: &mut Rng, features: Features, sql: Sql) -> Unit {
        let open = |feature| usize::from(features.has(feature));
        let (simple, unnamed, prepared) = (open(Feature::Simple), open(Feature::Unnamed), open(Feature::Named));
        let roads = [(simple, Road::Simple), (unnamed, Road::Unnamed), (prepared, Road::Named)];
        let name = match rng.weighted(&roads) {
            Road::Simple => return Unit { messages: vec![Message::Query(sql.text)], simple: true, sure: true },
            Road::Unnamed => "",
            Road::Named => rng.pick(&STATEMENTS),
        };
        let mut messages = vec![parse(name, &sql), bind("", name, Vec::new(), false)];
        messages.push(Message::Execute { portal: String::new(), rows: 0 });
        if name.is_empty() {
            self.unnamed = Some(sql);
        } else {
            messages.insert(0, Message::Close(Target::Statement, name.into()));
            self.statements.retain(|(known, _)| known != name);
            self.statements.push((name.into(), sql));
        }
        Unit { messages, simple: false, sure: false }
    }

    /// Sends a statement by one of the session's roads.
    pub(crate) fn unit(&mut self, rng: &mut Rng, features: Features, sql: Sql) -> Unit {
        let has = |feature| features.has(feature);
        // A simple query binds nothing.
        let simple = has(Feature::Simple) && (sql.values.is_empty() || has(Feature::Errors) && rng.chance(5));
        let roads =
            [(simple, Road::Simple), (has(Feature::Unnamed), Road::Unnamed), (has(Feature::Named), Road::Named)];
        let open: Vec<(usize, Road)> = roads.iter().filter(|(open, _)| *open).map(|(_, road)| (3, *road)).collect();
        let road = if open.is_empty() { Road::Unnamed } else { rng.weighted(&open) };
        let effect = sql.effect;
        let unit = match road {
            Road::Simple => Unit { messages: vec![Message::Query(sql.text)], simple: true, sure: true },
            Road::Unnamed => self.unnamed(rng, features, sql),
            Road::Named => self.prepared(rng, features, sql),
        };
        self.ran(effect, unit.sure);
        unit
    }

    /// Returns the values to bind; and true if their number is right.
    fn values(rng: &mut Rng, features: Features, sql: &Sql) -> (Vec<Option<String>>, bool) {
        let mut broken = false;
        let mut values =
            if sql.values.is_empty() { Vec::new() } else { sql.values[rng.below(sql.values.len())].clone() };
        if features.has(Feature::Errors) && rng.chance(4) {
            // One too many, or one too few.
            broken = true;
            if values.pop().is_none() {
                values.push(Some("1".into()));
            }
        }
        (values, broken)
    }

    /// Returns Bind and Execute, with optional messages around them; and true if they should succeed.
    fn runs(rng: &mut Rng, features: Features, statement: &str, sql: &Sql) -> (Vec<Message>, bool) {
        let has = |feature| features.has(feature);
        let portal = if has(Feature::Portals) && rng.chance(40) { rng.pick(&PORTALS) } else { "" };
        let (values, broken) = Known::values(rng, features, sql);
        let binary = has(Feature::Binary) && rng.chance(30);
        let mut messages = vec![bind(portal, statement, values, binary)];
        if has(Feature::Describe) && rng.chance(35) {
            messages.push(Message::Describe(Target::Portal, portal.into()));
        }
        if has(Feature::Limits) && rng.chance(40) {
            let rows = rng.between(1, 3) as u32;
            for _ in 0..rng.between(1, 3) {
                messages.push(Message::Execute { portal: portal.into(), rows });
            }
        } else {
            messages.push(Message::Execute { portal: portal.into(), rows: 0 });
        }
        if rng.chance(8) {
            messages.push(Message::Close(Target::Portal, portal.into()));
        }
        (messages, !broken)
    }

    fn unnamed(&mut self, rng: &mut Rng, features: Features, sql: Sql) -> Unit {
        let mut messages = vec![parse("", &sql)];
        if features.has(Feature::Describe) && rng.chance(35) {
            messages.push(Message::Describe(Target::Statement, String::new()));
        }
        let (runs, sure) = Known::runs(rng, features, "", &sql);
        messages.extend(runs);
        if rng.chance(6) {
            messages.push(Message::Close(Target::Statement, String::new()));
        }
        self.unnamed = Some(sql);
        Unit { messages, simple: false, sure }
    }

    /// Returns the name, and the Parse of a named statement, behind a Close if the name is taken.
    fn parses(&mut self, rng: &mut Rng, features: Features, sql: Sql) -> (String, Vec<Message>) {
        let mut messages = Vec::new();
        let name = rng.pick(&STATEMENTS).to_owned();
        let taken = self.statements.iter().any(|(known, _)| *known == name);
        if taken && !(features.has(Feature::Errors) && rng.chance(15)) {
            messages.push(Message::Close(Target::Statement, name.clone()));
        }
        messages.push(parse(&name, &sql));
        self.statements.retain(|(known, _)| *known != name);
        self.statements.push((name.clone(), sql));
        (name, messages)
    }

    /// Prepares only: `P s1 "…"; D S s1` and no more, as asyncpg, pgx and others do before a statement's first use.
    pub(crate) fn only_prepares(&mut self, rng: &mut Rng, features: Features, sql: Sql) -> Unit {
        let (name, mut messages) = self.parses(rng, features, sql);
        messages.push(Message::Describe(Target::Statement, name));
        Unit { messages, simple: false, sure: false }
    }

    fn prepared(&mut self, rng: &mut Rng, features: Features, sql: Sql) -> Unit {
        let errors = features.has(Feature::Errors);
        let mut messages = Vec::new();
        let known = self.statements.iter().find(|(_, known)| *known == sql).map(|(name, _)| name.clone());
        let name = match known {
            Some(name) if rng.chance(85) => name,
            _ => {
                let (name, parses) = self.parses(rng, features, sql.clone());
                messages.extend(parses);
                name
            }
        };
        if features.has(Feature::Describe) && rng.chance(35) {
            messages.push(Message::Describe(Target::Statement, name.clone()));
        }
        let wrong = errors && rng.chance(4);
        let (runs, _) = Known::runs(rng, features, if wrong { "nosuch" } else { &name }, &sql);
        messages.extend(runs);
        if rng.chance(5) {
            messages.push(Message::Close(Target::Statement, name.clone()));
            self.statements.retain(|(known, _)| *known != name);
        }
        // Earlier messages decide whether the name exists.
        Unit { messages, simple: false, sure: false }
    }

    /// Returns a unit that names in SQL a statement that was prepared by the protocol: it is executed, dropped, or its name given to another one.
    fn by_name(&mut self, rng: &mut Rng, features: Features) -> Option<Unit> {
        // Messages behind an unexpected COPY would break the protocol.
        let known: Vec<_> = self.statements.iter().filter(|(_, sql)| sql.effect != Effect::CopyIn).collect();
        let (name, sql) = known.get(rng.below(known.len().max(1))).map(|known| (*known).clone())?;
        let (values, _) = Known::values(rng, features, &sql);
        let value = |value: &Option<String>| match value {
            Some(value) => format!("'{}'", value.replace('\'', "''")),
            None => "null".to_owned(),
        };
        let values: Vec<String> = values.iter().map(value).collect();
        let values = if values.is_empty() { String::new() } else { format!(" ({})", values.join(", ")) };
        let execute = format!("execute {name}{values}");
        let (text, effect) = match rng.below(12) {
            0 => (format!("prepare {name} as select 7 as seven"), Effect::Pins),
            1 => (format!("deallocate {name}"), Effect::None),
            2 if features.has(Feature::Multi) => (format!("{execute}; deallocate {name}; {execute}"), sql.effect),
            3 if features.has(Feature::Multi) => (format!("select 1; {execute}; select 2"), sql.effect),
            4 if features.has(Feature::Multi) => {
                (format!("deallocate {name}; prepare {name} as select 7"), Effect::Pins)
            }
            5 => (format!("create temp table made as {execute}"), Effect::Pins),
            _ => (execute, sql.effect),
        };
        let runs = Sql { values: Vec::new(), types: Vec::new(), ..Sql::of(&text, effect) };
        let multi = text.contains(';');
        self.ran(effect, false);
        if multi || features.has(Feature::Simple) && rng.chance(60) {
            return Some(Unit { messages: vec![Message::Query(text)], simple: true, sure: false });
        }
        let (messages, _) = Known::runs(rng, features, "", &runs);
        let messages = [vec![parse("", &runs)], messages].concat();
        self.unnamed = Some(runs);
        Some(Unit { messages, simple: false, sure: false })
    }

    /// Returns a unit that uses existing names without a Parse; or, in sessions with errors, possibly missing names and portals without a Bind. None:
    /// there are no names.
    pub(crate) fn reuse(&mut self, rng: &mut Rng, features: Features) -> Option<Unit> {
        let errors = features.has(Feature::Errors);
        if features.has(Feature::SqlPrepare) && rng.chance(50) {
            return self.by_name(rng, features);
        }
        let mut names: Vec<&str> = self.statements.iter().map(|(name, _)| name.as_str()).collect();
        if self.unnamed.is_some() || errors {
            names.extend(["", ""]);
        }
        if features.has(Feature::SqlPrepare) {
            names.push("q1");
        }
        if errors {
            names.push("s1");
        }
        let statement = names.get(rng.below(names.len().max(1)))?.to_string();
        let known = match statement.as_str() {
            "" => self.unnamed.clone(),
            name => self.statements.iter().find(|(known, _)| known == name).map(|(_, sql)| sql.clone()),
        };
        // Messages behind an unexpected COPY would break the protocol.
        let known = known.filter(|sql| sql.effect != Effect::CopyIn);
        let portal = match rng.below(4) {
            // An SQL cursor is a portal.
            0 if errors && features.has(Feature::Cursors) => "c1",
            1 | 2 if features.has(Feature::Portals) => rng.pick(&PORTALS),
            _ => "",
        };
        let choice = if errors { rng.below(9) } else { 6 };
        let messages = match (choice, known) {
            (0, _) => vec![Message::Describe(Target::Statement, statement)],
            (1, _) => vec![Message::Close(Target::Statement, statement)],
            (2, _) => vec![Message::Execute { portal: portal.into(), rows: rng.below(3) as u32 }],
            (3, _) => vec![Message::Describe(Target::Portal, portal.into())],
            (4, _) => vec![Message::Close(Target::Portal, portal.into())],
            (_, Some(sql)) => {
                let (messages, _) = Known::runs(rng, features, &statement, &sql);
                self.ran(sql.effect, false);
                messages
            }
            (_, None) if statement == "q1" || errors => {
                let statement = if statement == "q1" { statement } else { "nosuch".into() };
                let portal = portal.to_owned();
                vec![bind(&portal, &statement, Vec::new(), false), Message::Execute { portal, rows: 0 }]
            }
            _ => return None,
        };
        Some(Unit { messages, simple: false, sure: false })
    }
}
