//! A model of one PostgreSQL session: protocol 3 from the server's side, and just enough of SQL.
//!
//! The model is used twice: for the servers behind the core, and as the reference that one client talks to alone. A client must get the same through
//! the core as from its reference.
//!
//! Every number in a statement names its sender (`number / OWNER`). So a session notices by itself if two clients meet in one transaction, or if one
//! sees the session state that another has left.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use wire::message::{self, Status};
use wire::{Frame, HEADER, Severity, Sqlstate, payload, startup};

use crate::core::prepared::baseline::question;
use crate::core::server::Cleaning;

/// The range of numbers of one client.
pub(super) const OWNER: u64 = 100_000;
/// Added to a number that a function writes which is declared to only read: when the client leaves, the core may let
/// such a statement finish.
pub(super) const SNEAKY: u64 = OWNER / 2;
/// Length of the row that `SELECT rpad(…)` gives: more than the core holds back for a replay.
pub(super) const BIG: usize = 40_000;

type Code = &'static [u8; 5];

/// Returns the database and the user that client `id` logs in with; there are two of each.
pub(super) fn home_of(id: u64) -> (&'static str, &'static str) {
    (["d", "e"][id as usize % 2], ["u", "v"][id as usize / 2 % 2])
}

/// Run-time parameters of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Parameters {
    /// Initial values, besides PostgreSQL's own defaults.
    defaults: BTreeMap<String, String>,
    session: BTreeMap<String, String>,
    local: BTreeMap<String, String>,
    /// Set for the session by a function whose text does not show it.
    unseen: BTreeMap<String, String>,
    /// Values in `unseen` of an earlier transaction: they may be gone by now.
    perhaps: BTreeMap<String, String>,
    /// The server's own time zone; empty: GMT.
    zone: &'static str,
}

impl Parameters {
    fn get(&self, name: &str) -> String {
        let layers = [&self.local, &self.unseen, &self.session, &self.defaults];
        let set = layers.into_iter().find_map(|layer| layer.get(name));
        let own = match name {
            "search_path" => "public",
            "timezone" if self.zone.is_empty() => "GMT",
            "timezone" => self.zone,
            _ => "",
        };
        let value = set.cloned().unwrap_or_else(|| own.to_owned());
        match self.perhaps.get(name) {
            Some(perhaps) if !self.local.contains_key(name) && !self.unseen.contains_key(name) => {
                format!("{value}|{perhaps}")
            }
            _ => value,
        }
    }

    fn set(&mut self, name: &str, value: &str) {
        self.reset(name);
        self.session.insert(name.to_owned(), value.to_owned());
    }

    fn reset(&mut self, name: &str) {
        self.local.remove(name);
        self.unseen.remove(name);
        self.perhaps.remove(name);
        self.session.remove(name);
    }

    fn reset_all(&mut self) {
        self.local.clear();
        self.unseen.clear();
        self.perhaps.clear();
        self.session.clear();
    }
}

/// State shared by the servers of a cluster: committed numbers, in order.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub committed: Vec<u64>,
    /// Notifications that were committed, in order: channel, number, and by which session.
    pub notified: Vec<(u64, u64, u32)>,
}

/// The channel that all clients may use. Any other channel belongs to the client with its number.
pub(super) const COMMON: u64 = 0;

/// Parameters and channels at a savepoint, and the numbers written and notified before it.
#[derive(Clone)]
struct Savepoint {
    parameters: Parameters,
    listening: BTreeSet<u64>,
    pending: Vec<u64>,
    notifies: Vec<(u64, u64)>,
}

#[derive(Default)]
pub(super) struct Backend {
    pub pid: u32,
    pub replica: bool,
    pub out: Vec<u8>,
    input: Vec<u8>,
    started: bool,
    status: u8,
    read_only: bool,
    /// Number of replay checks; and the number of `ReadyForQuery` up to the end of the unit behind a check that found the server behind.
    checks: u32,
    behind: u8,
    pending: Vec<u64>,
    /// The client whose numbers the open transaction has seen.
    transaction_of: Option<u64>,
    /// Database and user.
    pub home: (String, String),
    parameters: Parameters,
    /// True for a reference in which a statement may change its columns if the client never asked for them. Behind the proxy that is so, because the
    /// statement is parsed anew wherever that is needed.
    pub lenient: bool,
    /// True for the reference of a client whose server connection is cleaned of functions' state when it is released: a value set by a function may
    /// be gone when its transaction is over. A value that is one or the other is shown as `one|other`.
    pub forgetful: bool,
    /// Channels as changed by the current transaction.
    listening: BTreeSet<u64>,
    /// `listens`: channels as committed; `unlistened`: how often a channel was given up; `heard`: the number of notifications that were looked at.
    pub listens: BTreeSet<u64>,
    pub unlistened: usize,
    heard: usize,
    /// Notifications to be sent: between two transactions, or right before the end of an answer.
    late: Vec<u8>,
    /// Notifications of the current transaction.
    notifies: Vec<(u64, u64)>,
    /// Parameters and channels as they were before the transaction.
    saved: Option<(Parameters, BTreeSet<u64>)>,
    savepoint: Option<Savepoint>,
    prepared: HashMap<Vec<u8>, Prepared>,
    portals: HashMap<Vec<u8>, Portal>,
    skipping: bool,
    /// True if a Parse, Bind or Describe has come since the last Sync: that begins a transaction, too.
    unit: bool,
    copy: Option<Copy>,
    /// The answer that `SELECT pg_sleep(…)` will give; no input is read meanwhile.
    pub sleeping: Option<Sleep>,
    /// True for a reference in which sleeps take no time.
    pub sleepless: bool,
    pub terminated: bool,
    /// True if every fifth BEGIN that is bound and executed fails.
    flaky: bool,
    begins: u32,
}

#[derive(Clone)]
struct Prepared {
    text: String,
    /// Name of the statement's column, which shows the meaning that the names in the text had when it was parsed.
    column: String,
    /// The time zone under which the literals were read.
    zone: String,
    /// True if a client has asked for the columns.
    told: bool,
}

#[derive(Clone)]
struct Portal {
    prepared: Prepared,
    called: Vec<u8>,
    parameter: Option<String>,
}

struct Copy {
    extended: bool,
    line: Vec<u8>,
}

#[derive(Debug, Clone)]
pub(super) struct Sleep {
    pub number: u64,
    extended: bool,
}

enum ScriptedReply {
    Row(String, &'static str),
    Done(&'static str),
    CopyIn,
    CopyOut,
    Sleep(u64),
}

impl Backend {
    pub(super) fn new(pid: u32, replica: bool) -> Backend {
        Backend { pid, replica, status: b'I', ..Backend::default() }
    }

    /// Returns the server with a time zone of its own in its configuration.
    pub(super) fn in_zone(mut self, zone: &'static str) -> Backend {
        self.parameters.zone = zone;
        self
    }

    pub(super) fn flaky(self, flaky: bool) -> Backend {
        Backend { flaky, ..self }
    }

    /// True if no client has left anything in the session.
    pub(super) fn is_clean(&self) -> bool {
        self.status == b'I'
            && self.pending.is_empty()
            && self.listening.is_empty()
            && self.copy.is_none()
            && !self.skipping
    }

    pub(super) fn receive(&mut self, bytes: &[u8], store: &mut Store) {
        self.input.extend_from_slice(bytes);
        self.go_on(store);
    }

    /// Ends the sleep, by itself or by a cancel request.
    pub(super) fn wake(&mut self, cancelled: bool, store: &mut Store) {
        if let Some(sleep) = self.sleeping.take() {
            if cancelled {
                self.fail(b"57014");
            } else {
                let column = self.column();
                self.row(&sleep.number.to_string(), &column, !sleep.extended);
                message::complete(&mut self.out, "SELECT 1");
            }
            if !sleep.extended {
                self.ready(store);
            }
            self.go_on(store);
        }
    }

    fn go_on(&mut self, store: &mut Store) {
        let mut input = std::mem::take(&mut self.input);
        let mut used = 0;
        if !self.started {
            match startup::read(&input).expect("a startup packet") {
                Some((startup::Startup::Login { parameters, .. }, length)) => {
                    for (name, value) in startup::parameters(parameters).flatten() {
                        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                        match name {
                            b"user" => self.home.1 = text(value),
                            b"database" => self.home.0 = text(value),
                            b"search_path" | b"timezone" => {
                                self.parameters.defaults.insert(text(name), text(value));
                            }
                            _ => {}
                        }
                    }
                    used = length;
                    self.started = true;
                    message::authentication_ok(&mut self.out);
                    message::parameter_status(&mut self.out, "server_version", "15.0");
                    message::parameter_status(&mut self.out, "standard_conforming_strings", "on");
                    message::backend_key(&mut self.out, self.pid, b"sesame");
                    message::ready(&mut self.out, Status::Idle);
                }
                Some((other, _)) => panic!("unexpected {other:?}"),
                None => {}
            }
        }
        while self.started && self.sleeping.is_none() && !self.terminated {
            let Some(frame) = Frame::read(&input[used..]).expect("a frame") else { break };
            let Some(data) = input.get(used + HEADER..used + frame.total()) else { break };
            self.message(frame.tag, data, store);
            used += frame.total();
        }
        input.drain(..used);
        self.input = input;
    }

    fn message(&mut self, tag: u8, data: &[u8], store: &mut Store) {
        if let Some(extended) = self.copy.as_ref().map(|copy| copy.extended) {
            return self.copy_message(tag, data, extended, store);
        }
        if self.skipping && tag != b'S' {
            return;
        }
        match tag {
            b'P' | b'B' | b'D' => self.unit = true,
            b'Q' | b'S' => self.unit = false,
            _ => {}
        }
        let result = match tag {
            b'Q' => return self.query(payload::cstr(data).unwrap().0, store),
            b'S' => {
                self.skipping = false;
                return self.ready(store);
            }
            b'X' => {
                self.terminated = true;
                Ok(())
            }
            b'd' | b'c' | b'f' | b'H' => Ok(()),
            b'P' => self.parse(data),
            b'B' => self.bind(data),
            b'D' => self.describe(data),
            b'C' => {
                match payload::named(data).unwrap() {
                    payload::Named::Statement(name) => drop(self.prepared.remove(name)),
                    payload::Named::Portal(name) => drop(self.portals.remove(name)),
                }
                message::empty(&mut self.out, b'3');
                Ok(())
            }
            b'E' => {
                let result = self.execute(data, store);
                // COMMIT and ROLLBACK end it at once.
                self.unit = self.saved.is_some();
                result
            }
            tag => panic!("unexpected message {:?}", char::from(tag)),
        };
        if let Err(code) = result {
            self.fail(code);
            self.skipping = true;
        }
    }

    fn copy_message(&mut self, tag: u8, data: &[u8], extended: bool, store: &mut Store) {
        let failure: Option<Code> = match tag {
            b'd' => {
                if let Some(copy) = &mut self.copy {
                    copy.line.extend_from_slice(data);
                }
                match self.copy_lines() {
                    Ok(()) => return,
                    Err(code) => Some(code),
                }
            }
            b'c' => None,
            b'f' => Some(b"57014"),
            b'S' | b'H' => return,
            tag => panic!("{:?} during COPY", char::from(tag)),
        };
        self.copy = None;
        match failure {
            None => message::complete(&mut self.out, "COPY 1"),
            Some(code) => {
                self.fail(code);
                self.skipping = extended;
            }
        }
        if !extended {
            self.ready(store);
        }
    }

    /// Takes the lines that are whole.
    fn copy_lines(&mut self) -> Result<(), Code> {
        while let Some(copy) = &mut self.copy
            && let Some(end) = copy.line.iter().position(|&b| b == b'\n')
        {
            let line: Vec<u8> = copy.line.drain(..=end).collect();
            let number = std::str::from_utf8(&line[..end]).unwrap().parse().map_err(|_| b"22P02")?;
            self.belongs(number);
            self.pending.push(number);
        }
        Ok(())
    }

    /// True if the client is in no transaction, as far as the server knows.
    pub(super) fn is_idle(&self) -> bool {
        self.status == b'I'
    }

    /// Sends notifications that the session has not sent yet, if it is between two transactions.
    pub(super) fn hear(&mut self, store: &Store) {
        let between = self.started && self.status == b'I' && self.saved.is_none() && !self.skipping && !self.unit;
        if between && self.copy.is_none() && self.sleeping.is_none() {
            self.hear_all(store);
            self.out.append(&mut self.late);
        }
    }

    fn hear_all(&mut self, store: &Store) {
        for &(channel, number, pid) in store.notified.get(self.heard..).unwrap_or_default() {
            if self.listens.contains(&channel) {
                let (channel, text) = (format!("c{channel}"), number.to_string());
                message::notification(&mut self.late, pid, channel.as_bytes(), text.as_bytes());
            }
        }
        self.heard = store.notified.len();
    }

    fn fail(&mut self, code: Code) {
        self.pending.clear();
        self.notifies.clear();
        if self.status == b'T' {
            self.status = b'E';
        } else if self.status == b'I' {
            self.restore();
        }
        if code == b"0A000" {
            // The routine distinguishes a statement whose columns have changed from one that PostgreSQL does not support at all.
            return message::message(&mut self.out, b'E', |out| {
                out.extend_from_slice(b"SERROR\0VERROR\0C0A000\0Mit changed\0RRevalidateCachedQuery\0\0");
            });
        }
        message::error(&mut self.out, Severity::Error, Sqlstate(*code), "it failed", "");
    }

    fn ready(&mut self, store: &mut Store) {
        if self.status == b'I' {
            self.commit(store);
            self.hear_all(store);
            self.out.append(&mut self.late);
        }
        message::ready(&mut self.out, Status::from_byte(self.status).unwrap());
        self.behind = self.behind.saturating_sub(1);
    }

    fn commit(&mut self, store: &mut Store) {
        assert!(!self.replica || self.pending.is_empty());
        store.committed.append(&mut self.pending);
        // Notifications from before the LISTEN are not for the session; its own notifications are.
        self.hear_all(store);
        self.unlistened += usize::from(self.listens.difference(&self.listening).next().is_some());
        self.listens = self.listening.clone();
        store.notified.extend(self.notifies.drain(..).map(|(channel, number)| (channel, number, self.pid)));
        self.saved = None;
        self.end();
    }

    fn restore(&mut self) {
        if let Some((parameters, listening)) = self.saved.take() {
            self.parameters = parameters;
            self.listening = listening;
        }
    }

    fn end(&mut self) {
        self.parameters.local.clear();
        if self.forgetful {
            let unseen = std::mem::take(&mut self.parameters.unseen);
            self.parameters.perhaps.extend(unseen);
        }
        self.status = b'I';
        self.read_only = false;
        self.transaction_of = None;
        self.portals.clear();
        self.savepoint = None;
    }

    /// Checks that the client that sent this number may see the session's state.
    fn belongs(&mut self, number: u64) {
        let owner = number / OWNER;
        let other = *self.transaction_of.get_or_insert(owner);
        assert_eq!(owner, other, "two clients in one transaction of session {}", self.pid);
        let home = (self.home.0.as_str(), self.home.1.as_str());
        assert_eq!(home_of(owner), home, "client {owner} in a session of another database or user");
        for &listening in self.listening.iter().filter(|of| **of != COMMON) {
            assert_eq!(owner, listening, "a client in a session {} with another's LISTEN", self.pid);
        }
    }

    /// Returns the name of a statement's column, which shows the meaning of its names.
    fn column(&self) -> String {
        format!("{}.{}.{}", self.home.0, self.home.1, self.parameters.get("search_path"))
    }

    fn row(&mut self, value: &str, column: &str, described: bool) {
        let mut both = Vec::new();
        message::text_row(&mut both, &[(column, value)]);
        let first = Frame::read(&both).unwrap().unwrap().total();
        self.out.extend_from_slice(if described { &both } else { &both[first..] });
    }

    fn query(&mut self, text: &[u8], store: &mut Store) {
        self.prepared.remove(&b""[..]);
        self.portals.remove(&b""[..]);
        let text = std::str::from_utf8(text).unwrap();
        if text == question() {
            return self.tell_values(store);
        }
        if text.contains("SELEC ") {
            self.fail(b"42601");
            return self.ready(store);
        }
        for text in text.split("; ").filter(|text| !text.is_empty()) {
            let zone = self.parameters.get("timezone");
            match self.run(text, None, &zone, store) {
                Ok(mut answer) => {
                    self.spoil(&mut answer);
                    if let Some(wait) = self.answer(answer, false) {
                        return wait;
                    }
                }
                Err(code) => {
                    self.fail(code);
                    break;
                }
            }
        }
        self.ready(store);
    }

    /// Answers the proxy's question for the session's initial values.
    fn tell_values(&mut self, store: &mut Store) {
        message::text_row(&mut self.out, &[("statement_timeout", "7s")]);
        message::complete(&mut self.out, "SHOW");
        message::complete(&mut self.out, "SET");
        message::complete(&mut self.out, "SET");
        let value = |name: &&str| match *name {
            "timezone" | "search_path" => self.parameters.get(name),
            "statement_timeout" => "0".to_owned(),
            "default_transaction_isolation" => "read committed".to_owned(),
            name => format!("own {name}"),
        };
        let values: Vec<String> = sql::ALIKE.iter().map(value).collect();
        let columns: Vec<(&str, &str)> = values.iter().map(|value| ("current_setting", value.as_str())).collect();
        message::text_row(&mut self.out, &columns);
        message::complete(&mut self.out, "SELECT 1");
        self.ready(store);
    }

    /// Sends it; Some if there is more to come from elsewhere.
    fn answer(&mut self, answer: ScriptedReply, extended: bool) -> Option<()> {
        match answer {
            ScriptedReply::Row(value, tag) => {
                let column = self.column();
                self.row(&value, &column, !extended);
                message::complete(&mut self.out, tag);
            }
            ScriptedReply::Done(tag) => message::complete(&mut self.out, tag),
            ScriptedReply::CopyIn => {
                message::message(&mut self.out, b'G', |out| out.extend([0, 0, 0]));
                self.copy = Some(Copy { extended, line: Vec::new() });
                return Some(());
            }
            ScriptedReply::CopyOut => {
                message::message(&mut self.out, b'H', |out| out.extend([0, 0, 0]));
                for _ in 0..3 {
                    message::message(&mut self.out, b'd', |out| out.extend(b"1\t2\n"));
                }
                message::empty(&mut self.out, b'c');
                message::complete(&mut self.out, "COPY 3");
            }
            ScriptedReply::Sleep(number) if self.sleepless => {
                let column = self.column();
                self.row(&number.to_string(), &column, !extended);
                message::complete(&mut self.out, "SELECT 1");
            }
            ScriptedReply::Sleep(number) => {
                self.sleeping = Some(Sleep { number, extended });
                return Some(());
            }
        }
        None
    }

    fn returns_rows(text: &str) -> bool {
        text.starts_with("SELECT") || text.starts_with("SHOW")
    }

    fn ends_transaction(text: &str) -> bool {
        text == "COMMIT" || text == "ROLLBACK" || text == "ROLLBACK TO p"
    }

    fn parse(&mut self, data: &[u8]) -> Result<(), Code> {
        let (name, text, _) = payload::parse(data).unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        if text.contains("SELEC ") {
            return Err(b"42601");
        }
        if self.status == b'E' && !Self::ends_transaction(&text) {
            return Err(b"25P02");
        }
        if name.is_empty() {
            self.prepared.remove(name);
        }
        if text.contains("nope") {
            return Err(b"42703");
        }
        if self.prepared.contains_key(name) {
            return Err(b"42P05");
        }
        let prepared = Prepared { text, column: self.column(), zone: self.parameters.get("timezone"), told: false };
        self.prepared.insert(name.to_vec(), prepared);
        message::empty(&mut self.out, b'1');
        Ok(())
    }

    /// Analyses a statement again, as PostgreSQL does if the meaning of its names has changed.
    fn revalidated(&mut self, name: &[u8]) -> Result<Prepared, Code> {
        let column = self.column();
        let prepared = self.prepared.get_mut(name).ok_or(b"26000")?;
        if self.lenient && !prepared.told {
            prepared.column = column;
        } else if Self::returns_rows(&prepared.text) && prepared.column != column {
            return Err(b"0A000");
        }
        Ok(prepared.clone())
    }

    fn bind(&mut self, data: &[u8]) -> Result<(), Code> {
        let (portal, name, rest) = payload::bind(data).unwrap();
        let text = self.prepared.get(name).ok_or(b"26000")?.text.clone();
        let count = u16::from_be_bytes([rest[2], rest[3]]);
        let parameter = (count == 1).then(|| {
            let length = u32::from_be_bytes(rest[4..8].try_into().unwrap()) as usize;
            String::from_utf8(rest[8..8 + length].to_vec()).unwrap()
        });
        if parameter.is_some() != text.contains("$1") {
            return Err(b"08P01");
        }
        if self.status == b'E' && !Self::ends_transaction(&text) {
            return Err(b"25P02");
        }
        if !portal.is_empty() && self.portals.contains_key(portal) {
            return Err(b"42P03");
        }
        let prepared = self.revalidated(name)?;
        self.portals.insert(portal.to_vec(), Portal { prepared, called: name.to_vec(), parameter });
        message::empty(&mut self.out, b'2');
        Ok(())
    }

    fn describe(&mut self, data: &[u8]) -> Result<(), Code> {
        let text = match payload::named(data).unwrap() {
            payload::Named::Statement(name) => {
                let text = self.prepared.get(name).ok_or(b"26000")?.text.clone();
                // PostgreSQL describes even then a statement that returns no rows. But a server connection without the statement cannot take it then,
                // so that a client's answer depends on the connection: the one difference that is left.
                if self.status == b'E' && !Self::ends_transaction(&text) {
                    return Err(b"25P02");
                }
                self.revalidated(name)?;
                if let Some(prepared) = self.prepared.get_mut(name).filter(|_| !name.is_empty()) {
                    prepared.told = true;
                }
                let count = u16::from(text.contains("$1"));
                message::message(&mut self.out, b't', |out| {
                    out.extend(count.to_be_bytes());
                    (0..count).for_each(|_| out.extend(23u32.to_be_bytes()));
                });
                text
            }
            payload::Named::Portal(name) => {
                let portal = self.portals.get(name).ok_or(b"34000")?;
                if let Some(prepared) = self.prepared.get_mut(&portal.called).filter(|_| !portal.called.is_empty()) {
                    prepared.told = true;
                }
                portal.prepared.text.clone()
            }
        };
        if Self::returns_rows(&text) {
            let mut both = Vec::new();
            message::text_row(&mut both, &[(&self.column(), "")]);
            let first = Frame::read(&both).unwrap().unwrap().total();
            self.out.extend_from_slice(&both[..first]);
        } else {
            message::empty(&mut self.out, b'n');
        }
        Ok(())
    }

    fn execute(&mut self, data: &[u8], store: &mut Store) -> Result<(), Code> {
        let (name, _) = payload::cstr(data).unwrap();
        let portal = self.portals.get(name).ok_or(b"34000")?.clone();
        let (text, zone) = (portal.prepared.text, portal.prepared.zone);
        self.begins += u32::from(text == "BEGIN");
        if self.flaky && text == "BEGIN" && self.begins.is_multiple_of(5) {
            return Err(b"40001");
        }
        let mut answer = self.run(&text, portal.parameter.as_deref(), &zone, store)?;
        if text != crate::core::routing::REPLAYED {
            self.spoil(&mut answer);
        }
        self.answer(answer, true);
        Ok(())
    }

    /// Replaces a row that no client may get: the server has just said that it is behind.
    fn spoil(&self, answer: &mut ScriptedReply) {
        if let (ScriptedReply::Row(value, _), 1) = (answer, self.behind) {
            *value = "behind".into();
        }
    }

    fn writes(&self) -> Result<(), Code> {
        if self.replica || self.read_only { Err(b"25006") } else { Ok(()) }
    }

    /// Runs a statement. `zone`: how its literals were read.
    fn run(
        &mut self,
        text: &str,
        parameter: Option<&str>,
        zone: &str,
        store: &mut Store,
    ) -> Result<ScriptedReply, Code> {
        if self.status == b'E' && !Self::ends_transaction(text) {
            return Err(b"25P02");
        }
        if self.saved.is_none() {
            self.saved = Some((self.parameters.clone(), self.listening.clone()));
        }
        let inner = |text: &str| -> u64 {
            parameter.map_or_else(
                || text.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap(),
                |parameter| parameter.parse().unwrap(),
            )
        };
        Ok(match text {
            "BEGIN" | "BEGIN READ ONLY" => {
                self.status = b'T';
                self.read_only = text == "BEGIN READ ONLY";
                ScriptedReply::Done("BEGIN")
            }
            "COMMIT" if self.status != b'E' => {
                self.commit(store);
                ScriptedReply::Done("COMMIT")
            }
            "COMMIT" | "ROLLBACK" => {
                self.pending.clear();
                self.notifies.clear();
                self.restore();
                self.end();
                ScriptedReply::Done("ROLLBACK")
            }
            "SELECT 1/0" => return Err(b"22012"),
            _ if text.starts_with("SELECT upper('") => {
                let number = inner(text);
                self.belongs(number);
                ScriptedReply::Sleep(number)
            }
            // Division of one shape, by zero or not.
            _ if text.contains(" / ") => {
                let (number, divisor) = text["SELECT ".len()..].split_once(" / ").unwrap();
                let number = number.parse().unwrap();
                self.belongs(number);
                if divisor == "0" {
                    return Err(b"22012");
                }
                ScriptedReply::Row(number.to_string(), "SELECT 1")
            }
            "COPY t FROM STDIN" => {
                self.writes()?;
                ScriptedReply::CopyIn
            }
            "COPY t TO STDOUT" => ScriptedReply::CopyOut,
            "SELECT 't'::timestamptz" => ScriptedReply::Row(zone.to_owned(), "SELECT 1"),
            "RESET ROLE" | "CLOSE ALL" | "DISCARD TEMP" | "DISCARD SEQUENCES" | "SET SESSION AUTHORIZATION DEFAULT" => {
                ScriptedReply::Done("RESET")
            }
            "SELECT pg_catalog.pg_advisory_unlock_all()" => ScriptedReply::Row(String::new(), "SELECT 1"),
            _ if text.ends_with(" FROM pg_catalog.pg_prepared_statements") => {
                // Only the proxy prepares here.
                let named = self.prepared.keys().filter(|name| !name.is_empty()).count();
                assert_eq!(text, Cleaning::ask_for_statements(named), "session {} has other statements", self.pid);
                ScriptedReply::Row("f".to_owned(), "SELECT 1")
            }
            crate::core::routing::REPLAYED => {
                self.checks += 1;
                let behind = self.checks.is_multiple_of(3);
                self.behind = if behind { 2 } else { 0 };
                let replayed = if behind { 0 } else { store.committed.len() as u64 + 1 };
                ScriptedReply::Row(watermark::Lsn(replayed).to_string(), "SELECT 1")
            }
            _ if text.starts_with("SHOW ") => ScriptedReply::Row(self.parameters.get(&text["SHOW ".len()..]), "SHOW"),
            _ if text.starts_with("RESET ") && text != "RESET ALL" => {
                self.parameters.reset(&text["RESET ".len()..]);
                ScriptedReply::Done("RESET")
            }
            "DISCARD PLANS" => ScriptedReply::Done("DISCARD PLANS"),
            "DEALLOCATE ALL" => {
                self.prepared.clear();
                ScriptedReply::Done("DEALLOCATE ALL")
            }
            _ if text.starts_with("DEALLOCATE ") => {
                self.prepared.remove(&text.as_bytes()["DEALLOCATE ".len()..]).ok_or(b"26000")?;
                ScriptedReply::Done("DEALLOCATE")
            }
            // A function that sets a parameter for the session, unseen.
            _ if text.starts_with("SELECT login('") => {
                let tenant = text.split('\'').nth(1).unwrap().to_owned();
                self.parameters.local.remove("app.tenant");
                self.parameters.unseen.insert("app.tenant".into(), tenant);
                ScriptedReply::Row(String::new(), "SELECT 1")
            }
            "SAVEPOINT p" if self.status == b'T' => {
                let (parameters, listening) = (self.parameters.clone(), self.listening.clone());
                let (pending, notifies) = (self.pending.clone(), self.notifies.clone());
                self.savepoint = Some(Savepoint { parameters, listening, pending, notifies });
                ScriptedReply::Done("SAVEPOINT")
            }
            "ROLLBACK TO p" => {
                let Savepoint { parameters, listening, pending, notifies } = self.savepoint.clone().ok_or(b"3B001")?;
                (self.parameters, self.listening, self.pending) = (parameters, listening, pending);
                self.notifies = notifies;
                self.status = b'T';
                ScriptedReply::Done("ROLLBACK")
            }
            "RESET ALL" => {
                self.parameters.reset_all();
                ScriptedReply::Done("RESET")
            }
            "DISCARD ALL" => {
                if self.status != b'I' {
                    return Err(b"25001");
                }
                self.parameters.reset_all();
                self.listening.clear();
                self.saved = None;
                self.prepared.clear();
                self.portals.clear();
                ScriptedReply::Done("DISCARD ALL")
            }
            "UNLISTEN *" => {
                self.listening.clear();
                ScriptedReply::Done("UNLISTEN")
            }
            _ if text.starts_with("UNLISTEN ") => {
                self.listening.remove(&inner(text));
                ScriptedReply::Done("UNLISTEN")
            }
            _ if text.starts_with("NOTIFY c") => {
                self.writes()?;
                let (channel, number) = text["NOTIFY c".len()..].split_once(", ").unwrap();
                let number = number.trim_matches('\'').parse().unwrap();
                self.belongs(number);
                self.notifies.push((channel.parse().unwrap(), number));
                ScriptedReply::Done("NOTIFY")
            }
            _ if text.starts_with("SELECT nope") => return Err(b"42703"),
            _ if text.starts_with("SELECT pg_catalog.set_config(") || text.starts_with("SELECT set_config(") => {
                let mut value = String::new();
                for call in text.split("set_config(").skip(1) {
                    let call = call.split(')').next().unwrap();
                    let words: Vec<&str> = call.split(", ").collect();
                    let name = words[0].trim_matches('\'');
                    value = words[1].trim_matches('\'').to_owned();
                    match (words[1] == "NULL", words[2] == "true") {
                        (true, false) => self.parameters.reset(name),
                        (true, true) => {
                            let default = self.parameters.defaults.get(name).cloned();
                            let default = default.unwrap_or_else(|| Parameters::default().get(name));
                            self.parameters.local.insert(name.to_owned(), default);
                        }
                        (false, false) => self.parameters.set(name, &value),
                        (false, true) => _ = self.parameters.local.insert(name.to_owned(), value.clone()),
                    }
                }
                ScriptedReply::Row(value, "SELECT 1")
            }
            _ if text.starts_with("SET ") => {
                let (name, value) = text["SET ".len()..].split_once(" = ").unwrap();
                match name.strip_prefix("LOCAL ") {
                    Some(name) => _ = self.parameters.local.insert(name.to_owned(), value.to_owned()),
                    None => self.parameters.set(name, value),
                }
                ScriptedReply::Done("SET")
            }
            _ if text.starts_with("LISTEN ") => {
                self.writes()?;
                self.listening.insert(inner(text));
                ScriptedReply::Done("LISTEN")
            }
            _ if text.starts_with("SELECT rpad(") => {
                let number = inner(text.split(',').next().unwrap());
                self.belongs(number);
                let mut row = number.to_string();
                row.push_str(&" ".repeat(BIG - row.len()));
                ScriptedReply::Row(row, "SELECT 1")
            }
            _ if text.starts_with("SELECT pg_sleep(") => {
                let number = inner(text);
                self.belongs(number);
                ScriptedReply::Sleep(number)
            }
            _ if text.starts_with("SELECT sneaky(") => {
                self.writes()?;
                let number = inner(text);
                self.belongs(number);
                self.pending.push(number);
                ScriptedReply::Row(number.to_string(), "SELECT 1")
            }
            _ if text.starts_with("SELECT ") => {
                let number = inner(text);
                self.belongs(number);
                ScriptedReply::Row(number.to_string(), "SELECT 1")
            }
            _ if text.starts_with("INSERT INTO t VALUES (") => {
                self.writes()?;
                let number = inner(text);
                self.belongs(number);
                self.pending.push(number);
                ScriptedReply::Done("INSERT 0 1")
            }
            _ => panic!("the model does not know {text:?}"),
        })
    }
}
