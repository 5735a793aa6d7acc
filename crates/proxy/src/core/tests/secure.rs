//! Begin of TLS on a connection, and logins by it. TLS itself is below the core: here it is an effect.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use tls::{ClientCert, ConnectConfig, ConnectMode, Identity, ListenConfig, ListenMode};
use topology::{Address, ClusterConfig, Node, NodeConfig, NodeId, NodeView, Role, Term, Topology, View};
use wire::Sqlstate;
use wire::message::{self, Status};

use crate::config::{AuthMethod, ProxyConfig, UserConfig};
use crate::core::token::Token;
use crate::core::{Core, Effect, Peer, Secure, Shared};
use crate::settings::Settings;

const SSL: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
const GSS: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x30];

struct World {
    core: Core,
    now: Instant,
    /// Address of the last connection to a server.
    way: Address,
    _files: tempfile::TempDir,
}

/// Results of an event.
#[derive(Debug, Default, PartialEq)]
struct Came {
    /// Written, and left to be written at the end.
    out: Vec<u8>,
    /// TLS begins; as a server directly or not, or as a client.
    secure: Option<&'static str>,
    /// A connection to a server is asked for.
    connect: Option<Token>,
    closed: bool,
}

impl Came {
    fn says(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.out).contains(text)
    }
}

fn login() -> Vec<u8> {
    let mut out = Vec::new();
    message::startup(&mut out, &[("user", "u"), ("database", "d")]);
    out
}

fn user(name: &str, auth: Option<AuthMethod>) -> UserConfig {
    UserConfig { name: name.into(), auth, password: Some("secret".into()), ..UserConfig::default() }
}

impl World {
    fn new(auth: AuthMethod, mode: ListenMode, client_cert: ClientCert, servers: ConnectMode) -> World {
        World::with_socket(auth, mode, client_cert, servers, None)
    }

    fn with_socket(
        auth: AuthMethod,
        mode: ListenMode,
        client_cert: ClientCert,
        servers: ConnectMode,
        socket: Option<&str>,
    ) -> World {
        let files = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["proxy".to_owned()]).unwrap().self_signed(&key).unwrap();
        let (cert_file, key_file) = (files.path().join("crt"), files.path().join("key"));
        std::fs::write(&cert_file, certificate.pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        std::fs::set_permissions(&key_file, Permissions::from_mode(0o600)).unwrap();
        let config = ProxyConfig {
            auth,
            tls: ListenConfig {
                mode,
                ca_file: Some(cert_file.clone()),
                cert_file: Some(cert_file),
                key_file: Some(key_file),
                client_cert,
                ..ListenConfig::default()
            },
            users: if auth == AuthMethod::Trust { Vec::new() } else { vec![user("u", None)] },
            ..ProxyConfig::default()
        };
        let node = NodeView {
            node: Arc::new(Node::new(NodeId(0), "n0")),
            address: Address::Tcp(([127, 0, 0, 1], 5432).into()),
            socket: socket.map(|path| Path::new(path).into()),
            role: Role::Primary,
            usable: true,
            weight: 10,
            zone: None,
            settings: 1,
        };
        let view =
            View { epoch: 0, term: Term { system: 1, timeline: 1 }, primary: Some(NodeId(0)), nodes: vec![node] };
        let topology = Topology::fixed(view);
        let node = NodeConfig::new("n0", "server:5432");
        let tls = ConnectConfig { mode: servers, ..ConnectConfig::default() };
        topology.reload(ClusterConfig { nodes: vec![node], tls, ..ClusterConfig::default() }).unwrap();
        let shared = Shared::new(topology, 1, [7; 32]);
        let now = Instant::now();
        let core = Core::new(0, shared, Arc::new(Settings::new(&config).unwrap()), Arc::default(), now);
        World { core, now, way: Address::Tcp(([0; 4], 0).into()), _files: files }
    }

    fn settle(&mut self, of: Token) -> Came {
        let mut came = Came::default();
        let mut effects = Vec::new();
        self.core.take_effects(&mut effects);
        while let Some(token) = self.core.next_dirty() {
            let Some(output) = self.core.output(token) else { continue };
            let bytes = output.writable().to_vec();
            if token == of {
                came.out.extend(&bytes);
            }
            self.core.written(token, bytes.len());
        }
        for effect in effects {
            match effect {
                Effect::Secure { token, with } if token == of => {
                    came.secure = Some(match with {
                        Secure::Accept { direct: false, .. } => "asked",
                        Secure::Accept { direct: true, .. } => "direct",
                        Secure::Connect(_) => "connect",
                    });
                }
                Effect::Connect { token, address } => {
                    came.connect = Some(token);
                    self.way = address;
                }
                Effect::Close { token, last } if token == of => {
                    came.out.extend(last);
                    came.closed = true;
                }
                _ => {}
            }
        }
        came
    }

    /// Logs a client in by MD5; returns the connection to a server that is then asked for.
    fn server_of_a_client(&mut self) -> Token {
        let client = self.client();
        let came = self.gives(client, &login());
        let salt: [u8; 4] = came.out[9..].try_into().unwrap();
        let mut answer = Vec::new();
        message::password(&mut answer, &wire::md5::Verifier::new("u", "secret").answer(salt));
        self.gives(client, &answer).connect.unwrap()
    }

    /// Returns how the last connection to a server goes.
    fn way(&self) -> &'static str {
        match self.way {
            Address::Tcp(_) => "tcp",
            Address::Unix(_) => "socket",
        }
    }

    fn client(&mut self) -> Token {
        self.core.accept(Peer::default())
    }

    fn gives(&mut self, token: Token, bytes: &[u8]) -> Came {
        self.core.received(token, bytes);
        self.settle(token)
    }

    fn secured(&mut self, token: Token, name: Option<&str>) {
        let common_name = name.map(str::to_owned);
        let end_point = Some(vec![1; 32]);
        self.core.secured(token, Identity { certificate: name.is_some(), common_name, end_point, server_name: None });
    }
}

fn trusting(mode: ListenMode) -> World {
    World::new(AuthMethod::Trust, mode, ClientCert::None, ConnectMode::Disable)
}

#[test]
fn a_request_for_tls() {
    let mut world = trusting(ListenMode::Require);
    let client = world.client();
    // A byte at a time is a request, too.
    for byte in &SSL[..7] {
        assert_eq!(world.gives(client, &[*byte]), Came::default());
    }
    let came = world.gives(client, &SSL[7..]);
    assert_eq!((&came.out[..], came.secure, came.closed), (&b"S"[..], Some("asked"), false));
    // Bytes that arrive before the driver has begun are ciphertext, and go to it.
    assert_eq!(world.gives(client, b"cipher"), Came::default());
    assert_eq!(world.gives(client, b"text"), Came::default());
    assert_eq!(world.core.early(client), b"ciphertext");
    world.secured(client, None);
    assert!(world.gives(client, &login()).connect.is_some(), "a login goes on to a server");
}

#[test]
fn what_follows_a_request_in_clear_is_refused() {
    for behind in [&b"x"[..], &login()] {
        let mut world = trusting(ListenMode::Allow);
        let client = world.client();
        let came = world.gives(client, &[&SSL[..], behind].concat());
        assert!(came.closed && came.secure.is_none() && came.says("received unencrypted data after SSL request"));
        assert_ne!(came.out.first(), Some(&b'S'));
    }
}

#[test]
fn where_there_is_none() {
    for (mode, local) in [(ListenMode::Disable, false), (ListenMode::Require, true)] {
        let mut world = trusting(mode);
        let client = world.core.accept(Peer { local, ..Peer::default() });
        let came = world.gives(client, &SSL);
        assert_eq!((&came.out[..], came.secure), (&b"N"[..], None));
        assert!(world.gives(client, &login()).connect.is_some(), "in clear, then");
        let client = world.core.accept(Peer { local, ..Peer::default() });
        let came = world.gives(client, &[0x16, 3, 1, 0]);
        assert!(came.closed && came.secure.is_none());
    }
}

#[test]
fn tls_at_once() {
    let mut world = trusting(ListenMode::Allow);
    let client = world.client();
    let came = world.gives(client, &[0x16]);
    assert_eq!((came.secure, came.out.len()), (Some("direct"), 0));
    assert_eq!(world.core.early(client), [0x16]);
    // Not after another request.
    let client = world.client();
    assert_eq!(world.gives(client, &GSS).out, b"N");
    let came = world.gives(client, &[0x16, 3, 1, 0]);
    assert!(came.closed && came.secure.is_none());
    // But libpq sends a request for TLS after one for GSS.
    let client = world.client();
    world.gives(client, &GSS);
    assert_eq!(world.gives(client, &SSL).secure, Some("asked"));
}

#[test]
fn inside_of_tls_there_is_no_second_request() {
    for request in [&SSL[..], &GSS, &[0x16, 3, 1, 0]] {
        let mut world = trusting(ListenMode::Allow);
        let client = world.client();
        world.gives(client, &SSL);
        world.secured(client, None);
        let came = world.gives(client, request);
        let said = if request.len() == 4 { came.out.is_empty() } else { came.says("0A000") };
        assert!(came.closed && came.secure.is_none() && said, "{came:?}");
    }
}

#[test]
fn required() {
    let mut world = trusting(ListenMode::Require);
    let client = world.client();
    let came = world.gives(client, &login());
    assert!(came.closed && came.connect.is_none() && came.says("28000") && came.says("sslmode=require"));
    // A cancel request may come in clear.
    let client = world.client();
    let mut cancel = Vec::new();
    message::cancel(&mut cancel, 1, b"abcd");
    let came = world.gives(client, &cancel);
    assert!(came.closed && came.out.is_empty(), "it is done, and nobody's: {came:?}");
}

#[test]
fn a_handshake_takes_no_longer_than_a_login() {
    let mut world = trusting(ListenMode::Allow);
    let client = world.client();
    world.gives(client, &SSL);
    world.now += Duration::from_secs(14);
    world.core.turn(world.now);
    world.core.tick();
    assert!(!world.settle(client).closed);
    world.now += Duration::from_secs(1);
    world.core.turn(world.now);
    world.core.tick();
    assert!(world.settle(client).closed);
    // Too late.
    world.secured(client, None);
    assert_eq!(world.settle(client), Came::default());
}

#[test]
fn whose_certificate() {
    let (trust, cert) = (AuthMethod::Trust, AuthMethod::Cert);
    use ClientCert::{Optional, VerifyCa, VerifyFull};
    for (auth, asks, name, good) in [
        (cert, Optional, Some("u"), true),
        (cert, Optional, Some("v"), false),
        (cert, Optional, Some("U"), false),
        (cert, Optional, None, false),
        (cert, VerifyFull, Some("u"), true),
        (trust, VerifyCa, Some("v"), true),
        (trust, VerifyFull, Some("v"), false),
        (trust, VerifyFull, Some("u"), true),
    ] {
        let mut world = World::new(auth, ListenMode::Allow, asks, ConnectMode::Disable);
        let client = world.client();
        world.gives(client, &SSL);
        world.secured(client, name);
        let came = world.gives(client, &login());
        assert_eq!((came.connect.is_some(), came.closed), (good, !good), "{auth:?} {asks:?} {name:?}: {came:?}");
        assert!(good || came.says("28000"));
    }
    // No client can be the certificate's user without showing it.
    let mut world = World::new(cert, ListenMode::Allow, ClientCert::Optional, ConnectMode::Disable);
    let client = world.client();
    assert!(world.gives(client, &login()).says("28000"));
}

#[test]
fn scram_offers_to_bind_under_tls_only() {
    for (secured, offers) in [(true, true), (false, false)] {
        let mut world = World::new(AuthMethod::ScramSha256, ListenMode::Allow, ClientCert::None, ConnectMode::Disable);
        let client = world.client();
        if secured {
            world.gives(client, &SSL);
            world.secured(client, None);
        }
        let came = world.gives(client, &login());
        assert!(came.says("SCRAM-SHA-256\0"));
        assert_eq!(came.says("SCRAM-SHA-256-PLUS\0"), offers);
    }
}

#[test]
fn md5() {
    for (password, good) in [("secret", true), ("Secret", false)] {
        let mut world = World::new(AuthMethod::Md5, ListenMode::Allow, ClientCert::None, ConnectMode::Disable);
        let client = world.client();
        let came = world.gives(client, &login());
        let salt: [u8; 4] = came.out[9..].try_into().unwrap();
        assert_eq!(came.out[..9], *b"R\0\0\0\x0c\0\0\0\x05");
        let mut answer = Vec::new();
        message::password(&mut answer, &wire::md5::Verifier::new("u", password).answer(salt));
        let came = world.gives(client, &answer);
        assert_eq!((came.connect.is_some(), came.closed), (good, !good));
        assert!(good || came.says("28P01"));
    }
}

// === Servers ===

#[test]
fn servers_are_asked_for_tls() {
    let greeting = |out: &mut Vec<u8>| {
        message::authentication_ok(out);
        message::ready(out, Status::Idle);
    };
    for (mode, answer, outcome) in [
        (ConnectMode::Require, &b"S"[..], "secure"),
        (ConnectMode::Prefer, b"S", "secure"),
        (ConnectMode::Require, b"N", "closed"),
        (ConnectMode::Prefer, b"N", "clear"),
        (ConnectMode::Require, b"SE", "closed"),
        (ConnectMode::Prefer, b"SR", "closed"),
        (ConnectMode::Prefer, b"NR", "closed"),
        (ConnectMode::Prefer, b"E\0\0\0\x20SFATAL\0", "closed"),
        (ConnectMode::Disable, b"", "clear"),
    ] {
        let mut world = World::new(AuthMethod::Trust, ListenMode::Allow, ClientCert::None, mode);
        let client = world.client();
        let server = world.gives(client, &login()).connect.unwrap();
        world.core.connected(server);
        let came = world.settle(server);
        if mode == ConnectMode::Disable {
            assert!(came.says("kingpost"), "the login, at once");
            continue;
        }
        assert_eq!(came.out, SSL, "the request and nothing else");
        let came = world.gives(server, answer);
        let what = match () {
            () if came.closed => "closed",
            () if came.secure == Some("connect") => "secure",
            () if came.says("kingpost") => "clear",
            () => "nothing",
        };
        assert_eq!(what, outcome, "{mode:?} {answer:?}");
        if what == "secure" {
            assert!(came.out.is_empty(), "no login in clear");
            world.secured(server, Some("server"));
            assert!(world.settle(server).says("kingpost"), "the login");
            let mut hello = Vec::new();
            greeting(&mut hello);
            world.core.received(server, &hello);
            assert!(!world.settle(client).closed);
        }
    }
}

#[test]
fn a_server_gets_a_password_in_clear_over_tls_only() {
    for (mode, good) in [(ConnectMode::Disable, false), (ConnectMode::Require, true)] {
        let mut world = World::new(AuthMethod::Md5, ListenMode::Allow, ClientCert::None, mode);
        let server = world.server_of_a_client();
        world.core.connected(server);
        if good {
            world.settle(server);
            world.gives(server, b"S");
            world.secured(server, Some("server"));
        }
        world.settle(server);
        let came = world.gives(server, b"R\0\0\0\x08\0\0\0\x03");
        assert_eq!((came.says("secret"), came.closed), (good, !good), "{came:?}");
    }
}

#[test]
fn a_local_socket_lets_in_nobody_whom_tcp_keeps_out() {
    const OPEN: &[u8] = b"R\0\0\0\x08\0\0\0\0";
    const CLEAR: &[u8] = b"R\0\0\0\x08\0\0\0\x03";
    const MD5: &[u8] = b"R\0\0\0\x0c\0\0\0\x05salt";
    let said = |code: &str| {
        let mut out = Vec::new();
        crate::core::session::error(&mut out, Sqlstate(code.as_bytes().try_into().unwrap()), "no");
        out
    };
    let (refused, password, unknown) = (said("28000"), said("28P01"), said("3D000"));
    for (case, socket, tcp, next) in [
        // By the socket; behind it by TCP, if that is tried; the way of the pool's next connection.
        ("the same proof", &[MD5, OPEN].concat()[..], None, "socket"),
        ("no proof at both", OPEN, Some(OPEN), "socket"),
        ("no proof at the socket only", OPEN, Some(MD5), "tcp"),
        ("a password in clear", CLEAR, Some(MD5), "tcp"),
        ("a role that may not", &refused, Some(MD5), "tcp"),
        ("a wrong password", &password, Some(MD5), "tcp"),
        ("no such database", &unknown, None, "socket"),
        ("no server", b"", Some(MD5), "tcp"),
    ] {
        let socket_path = "/run/postgresql/.s.PGSQL.5432";
        let mut world = World::with_socket(
            AuthMethod::Md5,
            ListenMode::Allow,
            ClientCert::None,
            ConnectMode::Prefer,
            Some(socket_path),
        );
        let server = world.server_of_a_client();
        assert_eq!(world.way(), "socket", "{case}");
        if socket.is_empty() {
            world.core.closed(server, "no such file");
        } else {
            world.core.connected(server);
            assert!(world.settle(server).says("kingpost"), "{case}: the login, without a request for TLS");
            world.core.received(server, socket);
        }
        let came = world.settle(server);
        assert!(!came.says("secret"), "{case}: no password in clear");
        if let Some(tcp) = tcp {
            let server = came.connect.unwrap_or_else(|| panic!("{case}: another connection"));
            assert_eq!(world.way(), "tcp", "{case}");
            world.core.connected(server);
            world.settle(server);
            world.gives(server, b"N");
            world.core.received(server, tcp);
            let mut rest = Vec::new();
            if tcp == MD5 {
                rest.extend_from_slice(OPEN);
            }
            message::ready(&mut rest, Status::Idle);
            world.core.received(server, &rest);
            world.settle(server);
        }
        world.core.open_one(0, NodeId(0));
        world.settle(server);
        assert_eq!(world.way(), next, "{case}");
    }
}
