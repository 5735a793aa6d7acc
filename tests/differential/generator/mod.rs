//! Generates sessions from seeds.
//!
//! A session is chosen in advance, without the servers' answers: so it depends on its seed alone, and removing parts during shrinking does not change
//! the rest.

mod feature;
mod roads;
mod settings;
mod vocabulary;

use std::collections::VecDeque;

pub(crate) use feature::{FEATURES, Features};

use crate::config::Config;
use crate::rng::Rng;
use crate::session::{Client, Message, ORDERS, Packet, Session, Setup, Step, WAYS, Way, client_name};
use crate::world::{PAST_USER, USERS};
use feature::Feature;
use roads::{Known, Unit};
use vocabulary::{Effect, Speaker, Sql};

/// Number of steps of a session.
const STEPS: (usize, usize) = (14, 34);
/// Number of clients of a session.
const CLIENTS: (usize, usize) = (2, 4);

/// A planned packet of a client.
struct Planned {
    messages: Vec<Message>,
    /// True if the client may keep its server connection until its next packet.
    holds: bool,
}

struct Speakers {
    known: Known,
    planned: VecDeque<Planned>,
    /// True if the client may keep its server connection now.
    holds: bool,
}

struct Generator {
    rng: Rng,
    features: Features,
    session_mode: bool,
    crowded: bool,
    session: Session,
    speakers: Vec<Speakers>,
    /// Statements that clients have prepared as drivers do, so that another client prepares the same.
    prepared: Vec<Sql>,
}

/// Generates the session of a seed under a configuration, with the allowed features.
pub(crate) fn session(seed: u64, config: &Config, allowed: Features) -> Session {
    let mut rng = Rng::new(seed);
    let features = Features::swarm(&mut rng, allowed, config);
    let mut generator = Generator {
        rng,
        features,
        session_mode: config.session_mode,
        crowded: config.crowded,
        session: Session::default(),
        speakers: Vec::new(),
        prepared: Vec::new(),
    };
    generator.cast(config.late);
    generator.settings();
    generator.play();
    generator.session
}

impl Generator {
    fn has(&self, feature: Feature) -> bool {
        self.features.has(feature)
    }

    /// Chooses the clients.
    fn cast(&mut self, alone: bool) {
        let count = if alone { 1 } else { self.rng.between(CLIENTS.0, CLIENTS.1) };
        for _ in 0..count {
            let user = if self.has(Feature::Users) { self.rng.pick(&USERS) } else { USERS[0] };
            let database = if self.has(Feature::Databases) && self.rng.chance(50) { "shop" } else { "app" };
            // Clients of one user and database share server connections: some should exist.
            let (user, database) = match self.session.clients.last() {
                Some(last) if self.rng.chance(45) => (&*last.user, &*last.database),
                _ => (user, database),
            };
            let client =
                Client { user: user.into(), database: database.into(), past: false, parameters: self.parameters() };
            self.join(client);
        }
        if self.has(Feature::Past) {
            let database = self.session.clients[0].database.clone();
            self.join(Client { user: PAST_USER.into(), database, past: true, parameters: Vec::new() });
        }
    }

    fn join(&mut self, client: Client) {
        self.session.clients.push(client);
        self.speakers.push(Speakers { known: Known::default(), planned: VecDeque::new(), holds: false });
    }

    fn parameters(&mut self) -> Vec<(String, String)> {
        const LIST: [(&str, &str); 10] = [
            ("TimeZone", "Asia/Tokyo"),
            ("DateStyle", "German"),
            ("application_name", "mine"),
            ("search_path", "b, public"),
            ("options", "-c search_path=a -c timezone=America/New_York"),
            ("options", "-c app.t=t2"),
            ("extra_float_digits", "0"),
            ("client_encoding", "UTF8"),
            ("standard_conforming_strings", "off"),
            ("default_transaction_read_only", "on"),
        ];
        let mut parameters: Vec<(String, String)> = Vec::new();
        while self.has(Feature::Startup) && self.rng.chance(45) {
            let (name, value) = LIST[self.rng.below(LIST.len())];
            if !parameters.iter().any(|(known, _)| known == name) {
                parameters.push((name.into(), value.into()));
            }
        }
        parameters
    }

    /// Chooses the settings of roles and databases that a superuser makes.
    fn settings(&mut self) {
        const LIST: [&str; 9] = [
            "alter role bob set datestyle = 'German'",
            "alter role bob set search_path = b, public",
            "alter role carol set standard_conforming_strings = off",
            "alter role carol set timezone = 'Asia/Tokyo'",
            "alter role alice set app.t = 't1'",
            "alter database shop set timezone = 'America/New_York'",
            "alter database app set datestyle = 'SQL, DMY'",
            "alter role alice set search_path = a, public",
            "alter role bob set default_transaction_read_only = on",
        ];
        while self.has(Feature::Settings) && self.rng.chance(65) {
            let sql = self.rng.pick(&LIST).to_owned();
            self.session.setup.push(Setup { database: "app".into(), sql });
        }
    }

    fn play(&mut self) {
        let steps = self.rng.between(STEPS.0, STEPS.1);
        let new = self.has(Feature::New).then(|| self.rng.below(steps));
        for number in 0..steps {
            if new == Some(number) {
                self.newcomer();
            }
            let client = self.rng.below(self.speakers.len());
            if self.has(Feature::Together) && self.rng.chance(if self.crowded { 40 } else { 12 }) {
                self.together();
                continue;
            }
            if self.has(Feature::Reconnect) && self.rng.chance(6) {
                self.session.steps.push(Step::Reconnect(client));
                let speaker = &mut self.speakers[client];
                (speaker.known, speaker.holds) = (Known::default(), false);
                speaker.planned.clear();
                continue;
            }
            if self.has(Feature::Ends) && !self.session.clients[client].past && self.rng.chance(8) {
                self.end(client);
                continue;
            }
            if self.has(Feature::Operator) && self.rng.chance(12) {
                self.session.steps.push(Step::Operate(ORDERS[self.rng.below(ORDERS.len())].0));
                continue;
            }
            if self.speakers[client].planned.is_empty() {
                if self.session.clients[client].past { self.plan_past(client) } else { self.plan(client) }
            }
            if let Some(planned) = self.speakers[client].planned.pop_front() {
                self.needs(client);
                self.speakers[client].holds = planned.holds;
                self.session.steps.push(Step::Send(Packet { client, messages: planned.messages }));
            }
        }
        let pools = self.session.clients.iter().filter(|client| !client.past).count();
        if self.session_mode {
            self.session.pool = pools;
        } else if self.rng.chance(30) {
            self.session.pool += self.rng.between(1, 2);
        }
        self.session.pool = self.session.pool.max(1);
    }

    /// Ends a client, mostly with a packet that it sends together with the end.
    fn end(&mut self, client: usize) {
        let way = WAYS[self.rng.below(WAYS.len())].0;
        let mut messages = Vec::new();
        if way != Way::Reset && self.rng.chance(65) {
            if self.speakers[client].planned.is_empty() {
                self.plan(client);
            }
            self.needs(client);
            messages = self.speakers[client].planned.pop_front().map_or(Vec::new(), |planned| planned.messages);
        }
        self.session.steps.push(Step::End(Packet { client, messages }, way));
        let speaker = &mut self.speakers[client];
        (speaker.known, speaker.holds) = (Known::default(), false);
        speaker.planned.clear();
    }

    /// Makes the pool large enough for this client to continue while the others keep their connections.
    fn needs(&mut self, client: usize) {
        let of = |index: usize| (&self.session.clients[index].user, &self.session.clients[index].database);
        let others = (0..self.speakers.len()).filter(|&other| other != client && of(other) == of(client));
        let held = others.filter(|&other| self.speakers[other].holds).count();
        self.session.pool = self.session.pool.max(held + 1);
    }

    fn speaker(&self, client: usize) -> Speaker {
        let letter = client_name(client).chars().next().unwrap_or('a');
        Speaker { letter, in_transaction: self.speakers[client].known.open }
    }

    /// Chooses a client's next statement.
    fn choose(&mut self, client: usize) -> Sql {
        let who = self.speaker(client);
        let known = &self.speakers[client].known;
        let (open, failed) = (known.open, known.failed);
        let (rng, features) = (&mut self.rng, self.features);
        if open && rng.chance(if failed { 50 } else { 18 }) {
            return vocabulary::end(rng, features);
        }
        if open
            && rng.chance(if failed { 35 } else { 22 })
            && let Some(sql) = vocabulary::inside(rng, features)
        {
            return sql;
        }
        if !open && features.has(Feature::Transactions) && rng.chance(22) {
            return vocabulary::begin(rng, features);
        }
        vocabulary::any(rng, features, who)
    }

    /// Plans a client's packets up to the next Sync or further.
    fn plan(&mut self, client: usize) {
        let held = self.speakers[client].known.maybe_open || self.speakers[client].known.pinned;
        let known = &self.speakers[client].known;
        if known.maybe_open && !known.open && self.rng.chance(60) {
            // The rollback ends any transaction.
            self.speakers[client].known.ran(Effect::End { chain: false }, true);
            self.plan_packet(client, vec![Message::Query("rollback".into())], held);
            return;
        }
        if self.has(Feature::CopyIn) && self.rng.chance(12) {
            return self.plan_copy(client, held);
        }
        if self.has(Feature::Multi) && self.has(Feature::Simple) && self.rng.chance(12) {
            return self.plan_several(client, held);
        }
        let count = if self.has(Feature::Pipeline) && self.rng.chance(35) { self.rng.between(2, 4) } else { 1 };
        let units: Vec<Unit> = (0..count).map(|_| self.unit(client)).collect();
        let messages = self.join_units(units);
        self.plan_split(client, messages, held);
    }

    fn unit(&mut self, client: usize) -> Unit {
        if self.rng.chance(12) && (self.has(Feature::Unnamed) || self.has(Feature::Named)) {
            let (rng, features) = (&mut self.rng, self.features);
            if let Some(unit) = self.speakers[client].known.reuse(rng, features) {
                return unit;
            }
        }
        if self.has(Feature::Named) && self.has(Feature::Describe) && self.rng.chance(12) {
            return self.only_prepares(client);
        }
        let sql = self.choose(client);
        let (rng, features) = (&mut self.rng, self.features);
        self.speakers[client].known.unit(rng, features, sql)
    }

    /// A client prepares and describes a statement without running it yet: often one that another client has prepared before.
    fn only_prepares(&mut self, client: usize) -> Unit {
        let sql = if !self.prepared.is_empty() && self.rng.chance(65) {
            self.prepared[self.rng.below(self.prepared.len())].clone()
        } else {
            let sql = self.choose(client);
            self.prepared.push(sql.clone());
            sql
        };
        let (rng, features) = (&mut self.rng, self.features);
        self.speakers[client].known.only_prepares(rng, features, sql)
    }

    /// Joins units to one list of messages, with a Sync where one is needed, and sometimes where none is.
    fn join_units(&mut self, units: Vec<Unit>) -> Vec<Message> {
        let mut messages: Vec<Message> = Vec::new();
        let mut open = false;
        for unit in units {
            let must = unit.simple && !(self.has(Feature::Unsynced) && self.rng.chance(40));
            if open && (self.rng.chance(50) || must) {
                messages.push(Message::Sync);
            }
            open = !unit.simple;
            messages.extend(unit.messages);
        }
        if open {
            messages.push(Message::Sync);
        }
        messages
    }

    fn plan_packet(&mut self, client: usize, messages: Vec<Message>, held: bool) {
        let speaker = &mut self.speakers[client];
        let holds = held || speaker.known.maybe_open || speaker.known.pinned;
        speaker.planned.push_back(Planned { messages, holds });
    }

    /// Plans the messages as one packet, or as several, most of them with a Flush at their end.
    fn plan_split(&mut self, client: usize, messages: Vec<Message>, held: bool) {
        if !self.has(Feature::Split) || messages.len() < 2 || self.rng.chance(65) {
            return self.plan_packet(client, messages, held);
        }
        let mut packet = Vec::new();
        let last = messages.len() - 1;
        for (at, message) in messages.into_iter().enumerate() {
            let complete = matches!(message, Message::Sync | Message::Query(_));
            packet.push(message);
            if at < last && self.rng.chance(50) {
                if !complete && self.rng.chance(85) {
                    packet.push(Message::Flush);
                }
                self.plan_packet(client, std::mem::take(&mut packet), true);
            }
        }
        self.plan_packet(client, packet, held);
    }

    /// Plans several statements in one text.
    fn plan_several(&mut self, client: usize, held: bool) {
        let mut texts = Vec::new();
        for _ in 0..self.rng.between(2, 4) {
            let sql = self.choose(client);
            if sql.values.is_empty() {
                // Statements after a failure do not run.
                self.speakers[client].known.ran(sql.effect, false);
                texts.push(sql.text);
            }
        }
        self.plan_packet(client, vec![Message::Query(texts.join("; "))], held);
    }

    fn plan_copy(&mut self, client: usize, held: bool) {
        let errors = self.has(Feature::Errors);
        let (sql, data) = vocabulary::copy_in(&mut self.rng, errors);
        let (rng, features) = (&mut self.rng, self.features);
        let unit = self.speakers[client].known.copy(rng, features, sql);
        let mut rest: Vec<Message> = data.into_iter().map(Message::CopyData).collect();
        rest.push(if self.rng.chance(20) { Message::CopyFail("changed my mind".into()) } else { Message::CopyDone });
        let early = self.has(Feature::CopyEarly) && self.rng.chance(50);
        let mut first = unit.messages;
        if !unit.simple {
            rest.push(Message::Sync);
            // Drivers send a Sync after Execute, regardless of its result.
            first.push(if early && self.rng.chance(50) { Message::Sync } else { Message::Flush });
        }
        if early {
            first.extend(rest);
            return self.plan_packet(client, first, held);
        }
        self.plan_packet(client, first, true);
        self.plan_packet(client, rest, held);
    }

    /// Plans changes that bypass the proxy, mostly of the schema.
    fn plan_past(&mut self, client: usize) {
        let who = self.speaker(client);
        let swaps = self.has(Feature::Swap) && (self.rng.chance(40) || !self.has(Feature::Ddl));
        let sql = if swaps {
            Sql::of(vocabulary::SWAP, Effect::None)
        } else {
            vocabulary::ddl(&mut self.rng, self.features, who)
        };
        self.plan_packet(client, vec![Message::Query(sql.text)], false);
    }

    /// Plans reads of several clients at the same time, none in a transaction, most of them the same read.
    fn together(&mut self) {
        if self.has(Feature::Views) {
            // A reused name may belong to a view that writes, whose effect the other clients might or might not see.
            return;
        }
        let free = |index: &usize| {
            let speaker = &self.speakers[*index];
            speaker.planned.is_empty() && !self.session.clients[*index].past && !speaker.known.maybe_open
        };
        let clients: Vec<usize> = (0..self.speakers.len()).filter(free).collect();
        if clients.len() < 2 {
            return;
        }
        let mut sql = vocabulary::plain_read(&mut self.rng, self.features);
        // A shape is known from its third time on.
        for _ in 0..self.rng.between(1, 3) {
            let mut packets = Vec::new();
            for &client in &clients {
                self.needs(client);
                if self.rng.chance(20) {
                    sql = vocabulary::plain_read(&mut self.rng, self.features);
                }
                let (rng, features) = (&mut self.rng, self.features);
                let mut messages = self.speakers[client].known.unit(rng, features, sql.clone());
                if !messages.simple {
                    messages.messages.push(Message::Sync);
                }
                packets.push(Packet { client, messages: messages.messages });
            }
            self.session.steps.push(Step::Together(packets));
        }
    }

    /// Creates a role or a database, and a client that uses it.
    fn newcomer(&mut self) {
        let role = self.rng.chance(70);
        let sql = if role { "create role dora login in role owners" } else { "create database fresh" };
        let maker = self.session.clients.len();
        self.join(Client { user: PAST_USER.into(), database: "app".into(), past: false, parameters: Vec::new() });
        self.session.steps.push(Step::Send(Packet { client: maker, messages: vec![Message::Query(sql.into())] }));
        let (user, database) = if role { ("dora", "app") } else { ("alice", "fresh") };
        let client = self.session.clients.len();
        self.join(Client { user: user.into(), database: database.into(), past: false, parameters: Vec::new() });
        let text = if role { "select * from t order by 1" } else { "select 1 as one" };
        self.session.steps.push(Step::Send(Packet { client, messages: vec![Message::Query(text.into())] }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CONFIGS;

    #[test]
    fn a_seed_makes_the_same_session_again() {
        for config in &CONFIGS {
            assert_eq!(session(5, config, Features::ALL), session(5, config, Features::ALL));
            assert_ne!(session(5, config, Features::ALL), session(6, config, Features::ALL));
        }
    }

    #[test]
    fn sessions_can_be_written_and_read() {
        for seed in 0..300 {
            let session = session(seed, &CONFIGS[seed as usize % CONFIGS.len()], Features::ALL);
            assert!(session.pool >= 1 && !session.clients.is_empty());
            let again = crate::text::parse(&session.to_string()).unwrap().session;
            assert_eq!(again, session, "seed {seed}");
        }
    }
}
