//! Scripts of model clients: random sequences of messages, each with the expected answers.

use std::collections::{HashSet, VecDeque};

use wire::message;

use super::backend::{OWNER, SNEAKY};

/// A small deterministic generator (splitmix64).
#[derive(Debug, Clone)]
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// True once in `n` calls.
    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(super) fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// Messages up to one `ReadyForQuery`.
#[derive(Debug, Clone, Default)]
pub(super) struct Unit {
    /// Numbers that the unit's rows may have.
    pub rows: Vec<u64>,
    /// Numbers that the unit inserts, in order.
    pub inserts: Vec<u64>,
    pub sleeps: bool,
    /// Errors that the unit causes by itself.
    pub errors: HashSet<[u8; 5]>,
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    Send(Vec<u8>),
    /// The begin of a unit; messages sent before belong to earlier units.
    Unit(Unit),
    /// Waits until all messages have been answered.
    Await,
    /// Waits until the server asks for COPY data, or refuses the COPY.
    AwaitCopy,
    /// Requests a cancel of the client's statement.
    Cancel,
    /// Closes the client's end of the connection.
    Leave,
}

/// Options of scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Style {
    /// Requests are pipelined: sent without waiting for answers.
    pub pipelined: bool,
    /// Named statements and session state, which a lost server makes unpredictable.
    pub stateful: bool,
    /// SET, LISTEN, DISCARD.
    pub session: bool,
    /// Clients set and reset a parameter that may be one of their startup parameters.
    pub resets: bool,
    pub cancels: bool,
    /// LISTEN and NOTIFY that can fail only if their server is lost.
    pub listens: bool,
    /// Mostly plain reads, which can share a server connection.
    pub reads: bool,
    /// Functions that leave state in the session, which their text does not show.
    pub functions: bool,
    /// Clients ask for the columns of named statements. (A client that does not may or may not be told of changed columns, depending on the
    /// connection.)
    pub describes: bool,
}

pub(super) struct Script {
    random: Random,
    id: u64,
    next: u64,
    style: Style,
    out: VecDeque<Step>,
    bytes: Vec<u8>,
    unit: Unit,
    /// Index in `out` of the unit's begin.
    begins: usize,
    named: HashSet<&'static str>,
}

/// Creates the script of client `id`, with this number of requests.
pub(super) fn script(seed: u64, id: u64, requests: usize, style: Style) -> VecDeque<Step> {
    let mut script = Script {
        random: Random(seed),
        id,
        next: 0,
        style,
        out: VecDeque::new(),
        bytes: Vec::new(),
        unit: Unit::default(),
        begins: 0,
        named: HashSet::new(),
    };
    for _ in 0..requests {
        script.request();
        if !style.pipelined || script.random.one_in(3) {
            script.out.push_back(Step::Await);
        }
    }
    script.out.push_back(Step::Await);
    if script.random.one_in(2) {
        let mut bytes = Vec::new();
        message::empty(&mut bytes, b'X');
        script.out.push_back(Step::Send(bytes));
    }
    script.out.push_back(Step::Leave);
    script.out
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Script {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.id * OWNER + self.next
    }

    fn row(&mut self) -> u64 {
        let n = self.number();
        self.unit.rows.push(n);
        n
    }

    fn insert(&mut self) -> u64 {
        let n = self.number();
        self.unit.inserts.push(n);
        n
    }

    /// Like `insert`, by a function that is declared to only read.
    fn sneak(&mut self) -> u64 {
        self.next += 1;
        let n = self.id * OWNER + SNEAKY + self.next;
        self.unit.inserts.push(n);
        self.unit.rows.push(n);
        n
    }

    fn error(&mut self, code: &[u8; 5]) {
        self.unit.errors.insert(*code);
    }

    fn flush(&mut self) {
        if !self.bytes.is_empty() {
            self.out.push_back(Step::Send(std::mem::take(&mut self.bytes)));
        }
    }

    /// Ends the unit, whose messages are complete.
    fn end(&mut self) {
        let unit = std::mem::take(&mut self.unit);
        // Announced before its first byte.
        let mut at = self.begins;
        while matches!(self.out.get(at), Some(Step::Await | Step::Cancel)) {
            at += 1;
        }
        self.out.insert(at, Step::Unit(unit));
        self.flush();
        self.begins = self.out.len();
    }

    fn query(&mut self, text: &str) {
        message::query(&mut self.bytes, text);
        self.end();
    }

    /// Adds a statement on its own, or one that a failing statement after it undoes.
    fn perhaps_undone(&mut self, text: &str) {
        self.parse("", text);
        self.bind("", "", None);
        self.execute("");
        if self.random.one_in(3) {
            self.parse("", "SELECT 1/0");
            self.bind("", "", None);
            self.execute("");
        }
        self.sync();
    }

    fn sync(&mut self) {
        message::empty(&mut self.bytes, b'S');
        self.end();
    }

    fn parse(&mut self, name: &str, text: &str) {
        message::parse(&mut self.bytes, name.as_bytes(), text.as_bytes(), &[0, 0]);
        if self.style.describes && !name.is_empty() {
            self.describe(b'S', name);
        }
    }

    fn bind(&mut self, portal: &str, name: &str, parameter: Option<u64>) {
        message::message(&mut self.bytes, b'B', |out| {
            out.extend(portal.as_bytes());
            out.push(0);
            out.extend(name.as_bytes());
            out.push(0);
            out.extend([0, 0]);
            match parameter {
                Some(n) => {
                    let text = n.to_string();
                    out.extend([0, 1]);
                    out.extend((text.len() as u32).to_be_bytes());
                    out.extend(text.as_bytes());
                }
                None => out.extend([0, 0]),
            }
            out.extend([0, 0]);
        });
    }

    fn describe(&mut self, kind: u8, name: &str) {
        message::message(&mut self.bytes, b'D', |out| {
            out.push(kind);
            out.extend(name.as_bytes());
            out.push(0);
        });
    }

    fn execute(&mut self, portal: &str) {
        message::message(&mut self.bytes, b'E', |out| {
            out.extend(portal.as_bytes());
            out.push(0);
            out.extend([0; 4]);
        });
    }

    fn close(&mut self, name: &str) {
        message::close_statement(&mut self.bytes, name.as_bytes());
    }

    /// Adds a plain read, which sometimes fails, is large, or is slow.
    fn read(&mut self) {
        match self.random.below(12) {
            0..=3 => {
                let n = self.row();
                self.query(&format!("SELECT {n}"));
            }
            4 => {
                let (n, by) = (self.row(), self.random.below(3));
                if by == 0 {
                    self.error(b"22012");
                }
                self.query(&format!("SELECT {n} / {by}"));
            }
            5 => {
                let n = self.row();
                self.query(&format!("SELECT rpad('{n}', 40000)"));
            }
            6 => {
                let n = self.row();
                self.unit.sleeps = true;
                if self.style.cancels {
                    self.out.push_back(Step::Await);
                }
                self.query(&format!("SELECT upper('{n}')"));
                if self.style.cancels {
                    self.out.push_back(Step::Cancel);
                    self.out.push_back(Step::Await);
                }
            }
            7..=9 => self.prepared(),
            _ => {
                let (n, by) = (self.row(), self.random.below(2));
                self.parse("", &format!("SELECT $1::int4 + {by}"));
                self.bind("", "", Some(n));
                if self.random.one_in(2) {
                    self.describe(b'P', "");
                }
                self.execute("");
                self.sync();
            }
        }
    }

    fn request(&mut self) {
        if self.style.listens && self.random.one_in(3) {
            if self.random.one_in(3) {
                return self.query(&format!("LISTEN c{}", self.id));
            }
            return self.notify();
        }
        if self.style.reads && !self.random.one_in(6) {
            return self.read();
        }
        if self.style.resets && self.random.one_in(4) {
            self.query(&format!("SET search_path = r{}", self.id));
            self.query("RESET search_path");
        }
        match self.random.below(if self.style.session { 15 } else { 13 }) {
            0 | 1 => self.statement(),
            2 | 3 => self.transaction(),
            4 => self.batch(),
            5 | 6 => self.extended(),
            7 | 8 => self.prepared(),
            9 => self.copy(),
            10 => {
                let n = self.row();
                self.query(&format!("SELECT rpad('{n}', 40000)"));
            }
            11 => {
                if self.style.cancels {
                    self.out.push_back(Step::Await);
                }
                let n = self.row();
                self.unit.sleeps = true;
                self.query(&format!("SELECT pg_sleep({n})"));
                if self.style.cancels {
                    self.out.push_back(Step::Cancel);
                    self.out.push_back(Step::Await);
                }
            }
            12 => self.flushed(),
            _ => self.session(),
        }
    }

    /// Adds a simple query.
    fn statement(&mut self) {
        match self.random.below(8) {
            0..=2 => {
                let n = self.row();
                self.query(&format!("SELECT {n}"));
            }
            3 | 4 => {
                let n = self.insert();
                self.query(&format!("INSERT INTO t VALUES ({n})"));
            }
            5 if self.style.stateful => {
                // A replica gets it and refuses it, and the primary answers.
                let n = self.sneak();
                self.query(&format!("SELECT sneaky({n})"));
            }
            5 | 6 => {
                let (code, text) =
                    *self.random.pick(&[(b"22012", "SELECT 1/0"), (b"42601", "SELEC 1"), (b"42703", "SELECT nope")]);
                self.error(code);
                self.query(text);
            }
            _ => {
                let (n, m) = (self.insert(), self.row());
                if self.random.one_in(2) {
                    self.error(b"22012");
                    self.query(&format!("INSERT INTO t VALUES ({n}); SELECT 1/0; SELECT {m}"));
                } else {
                    self.query(&format!("INSERT INTO t VALUES ({n}); SELECT {m}"));
                }
            }
        }
    }

    fn transaction(&mut self) {
        let read_only = self.random.one_in(4);
        let begin = if read_only { "BEGIN READ ONLY" } else { "BEGIN" };
        if self.random.one_in(4) {
            self.parse("", begin);
            self.bind("", "", None);
            self.execute("");
            self.sync();
        } else {
            self.query(begin);
        }
        for _ in 0..self.random.below(4) {
            if !self.style.pipelined || self.random.one_in(3) {
                self.out.push_back(Step::Await);
            }
            self.unit.errors.extend([*b"25P02", *b"25006"]);
            match self.random.below(6) {
                0 | 1 => self.statement(),
                2 => self.extended(),
                3 if !read_only => self.copy(),
                4 => self.prepared(),
                _ => self.batch(),
            }
        }
        if read_only {
            self.out.push_back(Step::Await);
        }
        let end = *self.random.pick(&["COMMIT", "COMMIT", "ROLLBACK"]);
        if self.random.one_in(4) {
            self.parse("", end);
            self.bind("", "", None);
            self.execute("");
            self.sync();
        } else {
            self.query(end);
        }
        if read_only {
            self.out.push_back(Step::Await);
        }
    }

    /// Adds a statement that is parsed, bound and executed, perhaps described.
    fn portion(&mut self) {
        let portal = "";
        let (text, parameter) = match self.random.below(8) {
            0 => (format!("SELECT {}", self.row()), None),
            1 => (format!("INSERT INTO t VALUES ({})", self.insert()), None),
            2 | 3 => ("INSERT INTO t VALUES ($1::int4)".to_owned(), Some(self.insert())),
            4 if self.style.stateful => {
                let n = self.sneak();
                ("SELECT sneaky($1)".to_owned(), Some(n))
            }
            _ => (format!("SELECT $1::int4 + {}", self.random.below(6)), Some(self.row())),
        };
        self.parse("", &text);
        if self.random.one_in(3) {
            self.describe(b'S', "");
        }
        self.bind(portal, "", parameter);
        if self.random.one_in(2) {
            self.describe(b'P', portal);
        }
        self.execute(portal);
    }

    fn extended(&mut self) {
        self.portion();
        self.sync();
    }

    /// Adds several statements under one Sync.
    fn batch(&mut self) {
        for _ in 0..1 + self.random.below(4) {
            if self.random.one_in(8) {
                self.error(b"42703");
                self.parse("", "SELECT nope");
            }
            self.portion();
        }
        self.sync();
    }

    /// Adds named statements. Without `stateful`, only uses that cannot fail.
    fn prepared(&mut self) {
        if !self.style.stateful {
            let name = *self.random.pick(&NAMES);
            if self.named.insert(name) {
                let (name, text) = match name {
                    "a" => ("a", "SELECT $1::int4 + 0"),
                    "b" => ("b", "INSERT INTO t VALUES ($1::int4)"),
                    _ => ("c", "SELECT $1::int4 + 1"),
                };
                // In a transaction of its own, so that no earlier failure affects it.
                self.close(name);
                self.parse(name, text);
            }
            if name != "b" && self.random.one_in(3) {
                // A statement whose columns the client relies on is described again if a server does not have it.
                self.describe(b'S', name);
                self.sync();
                self.out.push_back(Step::Await);
                self.error(b"26000");
            }
            let n = if name == "b" { self.insert() } else { self.row() };
            self.bind("", name, Some(n));
            self.execute("");
            self.sync();
            // A lost server may have failed the Parse, so the statement is prepared again each time.
            self.named.remove(name);
            return;
        }
        for _ in 0..1 + self.random.below(3) {
            let name = *self.random.pick(&NAMES);
            match self.random.below(8) {
                0..=2 => {
                    let texts = [
                        "SELECT $1::int4 + 0",
                        "SELECT $1::int4 + 1",
                        "SELECT $1::int4 + 2",
                        "SELECT $1::int4 + 3",
                        "INSERT INTO t VALUES ($1::int4)",
                        "SELECT nope",
                    ];
                    let text = *self.random.pick(&texts);
                    self.parse(name, text);
                }
                3..=5 => {
                    // Any of the texts.
                    let n = self.insert();
                    self.unit.rows.push(n);
                    self.bind("", name, Some(n));
                    self.execute("");
                }
                6 => self.describe(b'S', name),
                _ => self.close(name),
            }
        }
        self.sync();
    }

    fn copy(&mut self) {
        if self.random.one_in(3) {
            return self.query("COPY t TO STDOUT");
        }
        // No message may be in flight: the data is sent once the server asks for it.
        self.out.push_back(Step::Await);
        let extended = self.style.stateful && self.random.one_in(2);
        if extended && self.random.one_in(3) {
            return self.copy_unasked();
        }
        if extended {
            self.parse("", "COPY t FROM STDIN");
            self.bind("", "", None);
            self.execute("");
            let early = self.random.one_in(2);
            message::empty(&mut self.bytes, if early { b'S' } else { b'H' });
        } else {
            message::query(&mut self.bytes, "COPY t FROM STDIN");
        }
        self.flush();
        let awaits = self.out.len();
        let mut lines = Vec::new();
        for _ in 0..self.random.below(4) {
            lines.extend(format!("{}\n", self.insert()).into_bytes());
        }
        let bad = self.random.one_in(6);
        if bad {
            self.error(b"22P02");
            lines.extend(b"bad\n");
        }
        for chunk in lines.chunks(1 + self.random.below(20)) {
            message::message(&mut self.bytes, b'd', |out| out.extend(chunk));
        }
        if self.random.one_in(5) {
            self.error(b"57014");
            message::message(&mut self.bytes, b'f', |out| out.extend(b"no\0"));
        } else {
            message::empty(&mut self.bytes, b'c');
        }
        if extended {
            message::empty(&mut self.bytes, b'S');
        }
        self.end();
        // After the unit's announcement.
        self.out.insert(awaits + 1, Step::AwaitCopy);
        self.begins = self.out.len();
    }

    /// Adds COPY data in one packet with the statement, without waiting for the server to ask for it.
    fn copy_unasked(&mut self) {
        self.parse("", "COPY t FROM STDIN");
        self.bind("", "", None);
        self.execute("");
        message::empty(&mut self.bytes, b'S');
        // If the server refuses the COPY, that Sync ends a unit, and later messages are another.
        self.error(b"25P02");
        let line = format!("{}\n", self.insert());
        message::message(&mut self.bytes, b'd', |out| out.extend(line.as_bytes()));
        message::empty(&mut self.bytes, b'c');
        message::empty(&mut self.bytes, b'S');
        self.end();
    }

    /// Adds statements that are answered before the Sync.
    fn flushed(&mut self) {
        for _ in 0..1 + self.random.below(2) {
            self.portion();
            message::empty(&mut self.bytes, b'H');
            self.flush();
            if self.style.stateful && self.random.one_in(2) {
                self.out.push_back(Step::Await);
            }
        }
        self.sync();
    }

    /// Adds a statement by either protocol, through the unnamed portal or a named one.
    fn either(&mut self, text: &str) {
        if self.random.one_in(2) {
            return self.query(text);
        }
        let portal = *self.random.pick(&["", "p1", "p2"]);
        self.parse("", text);
        self.bind(portal, "", None);
        self.execute(portal);
        self.sync();
    }

    /// Returns a change of a parameter; several clients may choose the same.
    fn parameter(&mut self) -> String {
        let name = *self.random.pick(&["search_path", "search_path", "timezone", "timezone", "app.tenant"]);
        let word = *self.random.pick(&["x", "y"]);
        let own = if self.random.one_in(2) { self.id.to_string() } else { String::new() };
        match self.random.below(6) {
            0 | 1 => format!("SET {name} = {word}{own}"),
            2 | 3 => format!("SET LOCAL {name} = {word}{own}"),
            4 => format!("SELECT set_config('{name}', '{word}{own}', {})", self.random.one_in(2)),
            _ => format!("RESET {name}"),
        }
    }

    /// Adds SETs in a transaction, which is committed or not.
    fn setting(&mut self) {
        self.query("BEGIN");
        for _ in 0..self.random.below(5) {
            let n = self.row();
            match self.random.below(11) {
                0..=2 => {
                    let text = self.parameter();
                    self.either(&text);
                }
                3 => self.query("SAVEPOINT p"),
                4 => self.query("ROLLBACK TO p"),
                5 => self.query("SHOW search_path"),
                6 => self.query("SELECT 1/0"),
                7 | 8 => self.prepared(),
                9 => self.literal(),
                _ => self.query(&format!("SELECT {n}")),
            }
        }
        let end = *self.random.pick(&["COMMIT", "ROLLBACK"]);
        self.query(end);
        self.query("SHOW search_path");
    }

    /// Adds a statement whose literal is read at its Parse.
    fn literal(&mut self) {
        let name = *self.random.pick(&["l", "m"]);
        if self.random.one_in(2) {
            self.close(name);
            self.parse(name, "SELECT 't'::timestamptz");
        }
        self.bind("", name, None);
        self.execute("");
        self.sync();
    }

    /// Adds creation and removal of statement names, in all ways.
    fn naming(&mut self) {
        let name = *self.random.pick(&NAMES);
        match self.random.below(8) {
            0 => self.query(&format!("DEALLOCATE {name}")),
            1 => self.either("DEALLOCATE ALL"),
            2 => {
                self.query("BEGIN");
                self.query(&format!("DEALLOCATE {name}"));
                self.query("ROLLBACK");
            }
            3 => {
                // In one unit, all are dropped, and one is created again.
                self.parse("", "DEALLOCATE ALL");
                self.bind("", "", None);
                self.execute("");
                self.parse(name, "SELECT $1::int4 + 1");
                self.sync();
            }
            4 => {
                self.parse("", &format!("DEALLOCATE {name}"));
                self.bind("", "", None);
                self.execute("");
                self.sync();
            }
            5 => {
                // Messages skipped after an error change nothing.
                self.parse("", "SELECT $1::int4 + 4");
                self.sync();
                self.parse("q", "SELECT 1/0");
                self.bind("", "q", None);
                self.execute("");
                self.parse("", "INSERT INTO t VALUES ($1::int4)");
                self.close(name);
                self.sync();
                self.close("q");
                self.sync();
            }
            6 => {
                self.parse("", "SELECT 1/0");
                self.bind("", "", None);
                self.execute("");
                self.close("");
                self.sync();
            }
            _ => {
                let n = self.insert();
                self.unit.rows.push(n);
                self.bind("", "", Some(n));
                self.execute("");
                self.sync();
            }
        }
    }

    /// Notifies one client, or all clients that listen to the common channel.
    fn notify(&mut self) {
        let (to, n) = (self.random.below(5), self.row());
        self.query(&format!("NOTIFY c{to}, '{n}'"));
    }

    /// Adds LISTEN and UNLISTEN in a transaction, which is committed or not.
    fn listening(&mut self) {
        self.query("BEGIN");
        for _ in 0..1 + self.random.below(5) {
            let n = self.row();
            match self.random.below(9) {
                0..=2 => self.query(&format!("LISTEN c{}", self.id)),
                3 => self.query("LISTEN c0"),
                4 => self.query(&format!("UNLISTEN c{}", self.id)),
                5 => self.query("SAVEPOINT p"),
                6 => self.query("ROLLBACK TO p"),
                7 => self.notify(),
                _ => self.query(&format!("SELECT {n}")),
            }
        }
        let end = *self.random.pick(&["COMMIT", "COMMIT", "ROLLBACK"]);
        self.query(end);
    }

    fn session(&mut self) {
        match self.random.below(34) {
            24..=26 => {
                let text = self.parameter();
                self.either(&text);
            }
            27 | 28 => self.naming(),
            29 | 30 => self.literal(),
            31 => self.query("SHOW app.tenant"),
            32 if self.style.functions => self.query(&format!("SELECT login('t{}')", self.id)),
            33 if self.style.functions => {
                self.query("BEGIN");
                self.query(&format!("SELECT login('t{}')", self.id));
                self.prepared();
                self.literal();
                self.query("SHOW app.tenant");
                self.query("COMMIT");
                self.query("SHOW app.tenant");
            }
            32 | 33 => self.query("SHOW timezone"),
            16 | 17 => self.notify(),
            18 => self.query("LISTEN c0"),
            19 => self.query(&format!("UNLISTEN c{}", self.id)),
            20 => {
                let n = self.row();
                let text = match self.random.below(3) {
                    0 => format!("LISTEN c{}; SELECT 1/0", self.id),
                    1 => format!("LISTEN c{}; SELECT {n}", self.id),
                    _ => format!("UNLISTEN *; LISTEN c0; NOTIFY c0, '{n}'"),
                };
                self.query(&text);
            }
            21 => self.perhaps_undone(&format!("LISTEN c{}", self.id)),
            22 | 23 => self.listening(),
            0 => self.query(&format!("SET search_path = s{}", self.id)),
            1 | 2 => self.query("SHOW search_path"),
            3 => self.query(&format!("LISTEN c{}", self.id)),
            4 => self.query("UNLISTEN *"),
            5 => {
                self.query("BEGIN");
                let undone = *self.random.pick(&["UNLISTEN *", "SELECT 1/0", "DISCARD ALL"]);
                self.query(undone);
                self.query("ROLLBACK");
            }
            6 => {
                self.query("RESET ALL");
                self.query("SHOW search_path");
            }
            7 => {
                self.out.push_back(Step::Await);
                self.query("DISCARD ALL");
                self.out.push_back(Step::Await);
            }
            8 => self.perhaps_undone(&format!("SET search_path = e{}", self.id)),
            9 => self.query(&format!("SELECT set_config('search_path', 'f{}', false)", self.id)),
            10 => {
                let n = self.row();
                self.query(&format!("SET search_path = m{}; SELECT {n}", self.id));
            }
            11 => self.query(&format!("SET search_path = n{}; SELECT 1/0", self.id)),
            12 => {
                self.query("RESET search_path");
                self.query("SHOW search_path");
            }
            13 | 14 => self.setting(),
            _ => self.query("UNLISTEN *; SELECT 1/0"),
        }
    }
}
