//! In the steady state a statement costs no allocation, whichever protocol it comes by.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::config::{AuthMethod, Consistency, PoolConfig, ProxyConfig, RoutingConfig, TracingConfig};
use proxy::core::token::Token;
use proxy::core::{Core, Effect, Peer, Shared};
use proxy::metrics::Metrics;
use proxy::settings::Settings;
use topology::{Address, Node, NodeId, NodeView, Role, Term, Topology, View};
use wire::message::{self, Status};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: hands everything to the system's allocator unchanged; the counter is a const-initialised thread local without
// a destructor, which does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's obligations are those of `System::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A core with one primary and one replica, whose servers send prescribed answers.
struct World {
    core: Core,
    metrics: Arc<Metrics>,
    now: Instant,
    effects: Vec<Effect>,
    /// Server connections that are open.
    servers: Vec<Token>,
    /// Connection that the last bytes for a server went to.
    asked: Option<Token>,
    /// Bytes that clients were sent.
    heard: usize,
}

impl World {
    fn new(tracing: TracingConfig) -> World {
        let node = |i: u16, role| NodeView {
            node: Arc::new(Node::new(NodeId(i), format!("n{i}"))),
            address: Address::Tcp(([127, 0, 0, 1], i).into()),
            socket: None,
            role,
            usable: true,
            weight: 10,
            zone: None,
            settings: 1,
        };
        let view = View {
            epoch: 0,
            term: Term { system: 1, timeline: 1 },
            primary: Some(NodeId(0)),
            nodes: vec![node(0, Role::Primary), node(1, Role::Replica)],
        };
        let config = ProxyConfig {
            auth: AuthMethod::Trust,
            routing: RoutingConfig { consistency: Consistency::Session, ..RoutingConfig::default() },
            pool: PoolConfig { lane_width: 1, lane_width_most: 1, ..PoolConfig::default() },
            tracing,
            ..ProxyConfig::default()
        };
        let shared = Shared::new(Topology::fixed(view), 1, [7; 32]);
        let now = Instant::now();
        let metrics: Arc<Metrics> = Arc::default();
        let core = Core::new(0, shared, Arc::new(Settings::new(&config).unwrap()), metrics.clone(), now);
        World { core, metrics, now, effects: Vec::new(), servers: Vec::new(), asked: None, heard: 0 }
    }

    /// Carries out effects and takes outputs, as the driver does.
    fn settle(&mut self) {
        loop {
            self.core.take_effects(&mut self.effects);
            let mut any = !self.effects.is_empty();
            let mut connect = None;
            for effect in self.effects.drain(..) {
                if let Effect::Connect { token, .. } = effect {
                    connect = Some(token);
                }
            }
            if let Some(token) = connect {
                self.servers.push(token);
                self.core.connected(token);
                let mut greeting = Vec::new();
                message::authentication_ok(&mut greeting);
                message::parameter_status(&mut greeting, "server_version", "15.0");
                message::backend_key(&mut greeting, 7, b"sesame");
                message::ready(&mut greeting, Status::Idle);
                self.core.received(token, &greeting);
            }
            while let Some(token) = self.core.next_dirty() {
                any = true;
                let Some(output) = self.core.output(token) else { continue };
                let count = output.writable().len();
                let settings = is_question(output.writable());
                if count > 0 && self.servers.contains(&token) {
                    self.asked = Some(token);
                } else {
                    self.heard += count;
                }
                self.core.written(token, count);
                if settings {
                    self.core.received(token, &same_settings());
                }
            }
            if !any {
                return;
            }
        }
    }

    fn login(&mut self) -> Token {
        let client = self.core.accept(Peer::default());
        let mut login = Vec::new();
        message::startup(&mut login, &[("user", "u"), ("database", "d")]);
        self.core.received(client, &login);
        self.settle();
        client
    }

    /// Runs a unit of a client, with the answer of the server that gets it.
    fn exchange(&mut self, client: Token, request: &[u8], answer: &[u8]) {
        self.now += Duration::from_micros(100);
        self.core.turn(self.now);
        self.asked = None;
        self.core.received(client, request);
        self.settle();
        let server = self.asked.expect("a server is asked");
        let before = self.heard;
        self.core.received(server, answer);
        self.settle();
        // BindComplete may be preceded by a ParseComplete that the client did not ask for.
        assert!(self.heard >= before + answer.len() - 5, "the client hears the answer");
    }

    /// Runs one unit of each client in one turn, and all answers at once from the server connection that they share.
    fn together(&mut self, clients: &[Token], request: &[u8], answers: &[u8]) {
        self.now += Duration::from_micros(100);
        self.core.turn(self.now);
        self.asked = None;
        for client in clients {
            self.core.received(*client, request);
        }
        self.settle();
        let server = self.asked.expect("a server is asked");
        let before = self.heard;
        self.core.received(server, answers);
        self.settle();
        assert_eq!(self.heard, before + answers.len(), "the clients hear the answers");
    }
}

/// True if the Query is among these bytes with which a session is asked for its settings.
fn is_question(bytes: &[u8]) -> bool {
    const BEGIN: &[u8] = b"SHOW statement_timeout";
    bytes.windows(BEGIN.len()).any(|text| text == BEGIN)
}

/// Returns the answer that every server gives.
fn same_settings() -> Vec<u8> {
    let mut out = Vec::new();
    message::text_row(&mut out, &[("statement_timeout", "0")]);
    message::text_row(&mut out, &[("current_setting", "x"); sql::ALIKE.len()]);
    message::complete(&mut out, "SELECT 1");
    message::ready(&mut out, Status::Idle);
    out
}

fn row_and_ready(prefix: &[u8], tag: &str, row: bool) -> Vec<u8> {
    let mut out = prefix.to_vec();
    if row {
        message::text_row(&mut out, &[("n", "12")]);
    }
    message::complete(&mut out, tag);
    message::ready(&mut out, Status::Idle);
    out
}

fn bind(out: &mut Vec<u8>, name: &str) {
    message::message(out, b'B', |out| {
        out.push(0);
        out.extend(name.as_bytes());
        out.extend([0, 0, 0, 0, 0, 0, 0]);
    });
    message::message(out, b'E', |out| out.extend([0; 5]));
    message::empty(out, b'S');
}

/// Allocations of a thousand exchanges after a hundred to warm up.
fn steady(world: &mut World, client: Token, requests: &[Vec<u8>], answer: &[u8]) -> u64 {
    for request in requests.iter().cycle().take(100) {
        world.exchange(client, request, answer);
    }
    let before = COUNT.with(Cell::get);
    for request in requests.iter().cycle().take(1_000) {
        world.exchange(client, request, answer);
    }
    COUNT.with(Cell::get) - before
}

#[test]
fn a_statement_does_not_allocate() {
    let mut world = World::new(TracingConfig::default());
    let client = world.login();
    // Texts differ in the parts that a shape leaves out.
    let reads: Vec<_> =
        (1_000..1_010).map(|i| query(format!("SELECT abalance FROM accounts WHERE aid = {i}"))).collect();
    assert_eq!(steady(&mut world, client, &reads, &row_and_ready(b"", "SELECT 1", true)), 0, "simple reads");
    let writes: Vec<_> =
        (1_000..1_010).map(|i| query(format!("UPDATE accounts SET a = {i} WHERE aid = {i}"))).collect();
    assert_eq!(steady(&mut world, client, &writes, &row_and_ready(b"", "UPDATE 1", false)), 0, "simple writes");

    let mut unnamed = Vec::new();
    message::parse(&mut unnamed, b"", b"SELECT 1 FROM t", &[0, 0]);
    bind(&mut unnamed, "");
    let answer = row_and_ready(b"1\0\0\0\x042\0\0\0\x04", "SELECT 1", true);
    assert_eq!(steady(&mut world, client, &[unnamed], &answer), 0, "unnamed statements");

    // On the primary, so that one server connection has it and only one.
    let mut parse = Vec::new();
    message::parse(&mut parse, b"named", b"SELECT 2 FROM t FOR UPDATE", &[0, 0]);
    message::empty(&mut parse, b'S');
    let mut parsed = b"1\0\0\0\x04".to_vec();
    message::ready(&mut parsed, Status::Idle);
    world.exchange(client, &parse, &parsed);
    let mut named = Vec::new();
    bind(&mut named, "named");
    let answer = row_and_ready(b"2\0\0\0\x04", "SELECT 1", true);
    assert_eq!(steady(&mut world, client, &[named], &answer), 0, "named statements");

    // Several clients on one server connection.
    let clients: Vec<Token> = (0..8).map(|_| world.login()).collect();
    let mut unnamed = Vec::new();
    message::parse(&mut unnamed, b"", b"SELECT 1 FROM t", &[0, 0]);
    bind(&mut unnamed, "");
    let extended = row_and_ready(b"1\0\0\0\x042\0\0\0\x04", "SELECT 1", true).repeat(clients.len());
    let simple = row_and_ready(b"", "SELECT 1", true).repeat(clients.len());
    for _ in 0..10 {
        world.together(&clients, &reads[0], &simple);
        world.together(&clients, &unnamed, &extended);
    }
    let (before, statements) = (COUNT.with(Cell::get), world.metrics.lane_statements.get());
    for read in reads.iter().cycle().take(100) {
        world.together(&clients, read, &simple);
        world.together(&clients, &unnamed, &extended);
    }
    assert_eq!(world.metrics.lane_statements.get() - statements, 1600, "all of them are in lanes");
    assert_eq!(COUNT.with(Cell::get), before, "shared lanes");

    // The counter counts: a new text is parsed.
    let before = COUNT.with(Cell::get);
    world.exchange(client, &query("SELECT something_new".into()), &row_and_ready(b"", "SELECT 1", true));
    assert!(COUNT.with(Cell::get) > before);
}

#[test]
fn a_statement_that_is_not_sampled_does_not_allocate() {
    let endpoint = Some("http://127.0.0.1:4317".to_owned());
    let mut world = World::new(TracingConfig { endpoint, ratio: Some(1e-12), ..TracingConfig::default() });
    let client = world.login();
    let reads: Vec<_> =
        ["", "/*traceparent='00-1'*/", "/*traceparent='00-0123456789abcdef0123456789abcdef-0123456789abcdef-00'*/"]
            .iter()
            .map(|comment| query(format!("SELECT abalance FROM accounts WHERE aid = 7 {comment}")))
            .collect();
    let answer = row_and_ready(b"", "SELECT 1", true);
    assert_eq!(steady(&mut world, client, &reads, &answer), 0);
    // And one that is does.
    let sampled = "SELECT 7 /*traceparent='00-0123456789abcdef0123456789abcdef-0123456789abcdef-01'*/";
    let sampled = [query(sampled.into())];
    assert!(steady(&mut world, client, &sampled, &answer) >= 1_000);
    assert_eq!(world.metrics.spans.get(), 1_100);
}

fn query(text: String) -> Vec<u8> {
    let mut out = Vec::new();
    message::query(&mut out, &text);
    out
}
