//! One worker's core with arbitrary clients and servers: it must not panic, and its memory must be bounded.
//!
//! The input is a list of events: a byte for the event and its target, a byte for the length, and the bytes.
#![cfg_attr(fuzzing, no_main)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use kingpost_fuzz::fuzz_target;
use proxy::config::{AuthMethod, PoolConfig, ProxyConfig};
use proxy::core::token::{Kind, Token};
use proxy::core::{Core, Effect, Peer, Shared};
use proxy::settings::Settings;
use topology::{Address, Node, NodeId, NodeView, Role, Term, Topology, View};
use wire::message;

/// Maximum number of bytes buffered for a connection: more than its longest statement and its buffer limit.
const MOST: usize = 4 << 20;

struct World {
    core: Core,
    clients: Vec<Token>,
    servers: Vec<Token>,
    connecting: Vec<Token>,
    /// Number of bytes sent to clients and servers.
    written: usize,
}

impl World {
    fn new(now: Instant) -> World {
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
            buffer_limit: 16 << 10,
            pool: PoolConfig { size: 2, prepared_per_server: 2, ..PoolConfig::default() },
            ..ProxyConfig::default()
        };
        let shared = Shared::new(Topology::fixed(view), 1, [7; 32]);
        let settings = Arc::new(Settings::new(&config).expect("settings"));
        World {
            core: Core::new(0, shared, settings, Arc::default(), now),
            clients: Vec::new(),
            servers: Vec::new(),
            connecting: Vec::new(),
            written: 0,
        }
    }

    fn settle(&mut self) {
        let mut effects = Vec::new();
        self.core.end_turn();
        loop {
            self.core.take_effects(&mut effects);
            let mut any = !effects.is_empty();
            for effect in effects.drain(..) {
                match effect {
                    Effect::Connect { token, .. } => self.connecting.push(token),
                    Effect::Close { token, last } => {
                        assert!(last.len() < MOST);
                        for list in [&mut self.clients, &mut self.servers, &mut self.connecting] {
                            list.retain(|known| *known != token);
                        }
                    }
                    Effect::Pause(_) | Effect::Resume(_) | Effect::Post { .. } | Effect::Ask { .. } => {}
                    Effect::Move { .. } => unreachable!("there is one worker"),
                    Effect::Secure { .. } => unreachable!("there is no TLS"),
                    Effect::LookUp { .. } => unreachable!("nobody is looked up"),
                    Effect::Verify { .. } => unreachable!("no directory is asked"),
                }
            }
            while let Some(token) = self.core.next_dirty() {
                any = true;
                let Some(output) = self.core.output(token) else { continue };
                assert!(output.len() < MOST);
                let count = output.writable().len();
                self.written += count;
                self.core.written(token, count);
            }
            if !any {
                return;
            }
        }
    }

    fn pick(list: &[Token], which: u8) -> Option<Token> {
        (!list.is_empty()).then(|| list[usize::from(which) % list.len()])
    }
}

/// Returns a server's messages at login.
fn greeting() -> Vec<u8> {
    let mut out = Vec::new();
    message::authentication_ok(&mut out);
    message::parameter_status(&mut out, "standard_conforming_strings", "on");
    message::backend_key(&mut out, 7, b"sesame");
    message::ready(&mut out, message::Status::Idle);
    out
}

/// How the Query begins with which a session is asked for its settings.
const SETTINGS: &[u8] = b"SHOW statement_timeout";

/// The answer: of every server the same.
fn settings() -> Vec<u8> {
    let mut out = Vec::new();
    message::text_row(&mut out, &[("statement_timeout", "0")]);
    message::text_row(&mut out, &[("current_setting", "x"); sql::ALIKE.len()]);
    message::complete(&mut out, "SELECT 1");
    message::ready(&mut out, message::Status::Idle);
    out
}

fuzz_target!(|input: &[u8]| {
    let mut now = Instant::now();
    let mut world = World::new(now);
    let mut rest = input;
    while let Some((&[event, length], after)) = rest.split_first_chunk::<2>() {
        let (bytes, after) = after.split_at(usize::from(length).min(after.len()));
        rest = after;
        let (what, which) = (event >> 4, event & 15);
        match what {
            // A client, logged in or not.
            0 | 1 => {
                let token = world.core.accept(Peer::default());
                world.clients.push(token);
                if what == 0 {
                    let mut login = Vec::new();
                    message::startup(&mut login, &[("user", "u"), ("database", "d")]);
                    world.core.received(token, &login);
                }
            }
            2..=4 => {
                if let Some(token) = World::pick(&world.clients, which) {
                    world.core.received(token, bytes);
                }
            }
            5..=7 => {
                if let Some(token) = World::pick(&world.servers, which) {
                    world.core.received(token, bytes);
                }
            }
            8 => {
                if let Some(token) = World::pick(&world.connecting, which) {
                    world.connecting.retain(|known| *known != token);
                    world.servers.push(token);
                    world.core.connected(token);
                    if token.kind() == Kind::Server {
                        world.core.received(token, &greeting());
                        let sent = world.core.output(token).map_or(&[][..], |output| output.writable());
                        if sent.windows(SETTINGS.len()).any(|text| text == SETTINGS) {
                            world.core.received(token, &settings());
                        }
                    }
                }
            }
            9 => {
                if let Some(token) = World::pick(&world.connecting, which) {
                    world.connecting.retain(|known| *known != token);
                    world.servers.push(token);
                    world.core.connected(token);
                }
            }
            10 => {
                let all: Vec<Token> = [&world.clients[..], &world.servers, &world.connecting].concat();
                if let Some(token) = World::pick(&all, which) {
                    match length % 2 {
                        0 => world.core.closed(token, "it is gone"),
                        _ => world.core.finished(token, "it sends nothing more"),
                    }
                }
            }
            11 => {
                now += Duration::from_millis(u64::from(which) * 4_000);
                world.core.turn(now);
                world.core.tick();
            }
            // Whole messages, so that the fuzzer need not guess every byte.
            12 | 13 => {
                if let Some(token) = World::pick(&world.clients, which) {
                    let mut out = Vec::new();
                    message::message(
                        &mut out,
                        *b"QPBDECSHdcfFX".get(usize::from(length) % 13).unwrap_or(&b'Q'),
                        |out| {
                            out.extend(bytes);
                        },
                    );
                    world.core.received(token, &out);
                }
            }
            _ => {
                if let Some(token) = World::pick(&world.servers, which) {
                    let mut out = Vec::new();
                    match length % 10 {
                        0..4 => message::ready(
                            &mut out,
                            *[
                                message::Status::Idle,
                                message::Status::Transaction,
                                message::Status::Failed,
                                message::Status::Idle,
                            ]
                            .get(usize::from(length % 4))
                            .unwrap_or(&message::Status::Idle),
                        ),
                        4 => message::complete(&mut out, "DISCARD ALL"),
                        5 => message::empty(&mut out, b'1'),
                        6 => message::empty(&mut out, b'2'),
                        7 => message::empty(&mut out, b'3'),
                        8 => message::error(&mut out, wire::Severity::Error, wire::Sqlstate(*b"25006"), "no", ""),
                        _ => message::message(&mut out, b'G', |out| out.extend([0, 0, 0])),
                    }
                    world.core.received(token, &out);
                }
            }
        }
        world.settle();
    }
    // All clients disconnect.
    for token in world.clients.clone() {
        world.core.closed(token, "the client left");
        world.settle();
    }
    assert!(!world.core.has_clients());
});
