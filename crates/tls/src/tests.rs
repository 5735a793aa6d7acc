#![allow(clippy::unwrap_used)]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::*;

// === Certificates ===

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    dir: tempfile::TempDir,
}

struct Pair {
    cert: PathBuf,
    key: PathBuf,
}

fn write(path: &Path, text: &str, mode: u32) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

impl Authority {
    fn new() -> Authority {
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority");
        let key = KeyPair::generate().unwrap();
        write(&dir.path().join("ca.crt"), &params.self_signed(&key).unwrap().pem(), 0o644);
        Authority { issuer: Issuer::new(params, key), dir }
    }

    fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.crt")
    }

    fn issue(&self, name: &str, hosts: &[&str]) -> Pair {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "somebody");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pair = Pair {
            cert: self.dir.path().join(format!("{name}.crt")),
            key: self.dir.path().join(format!("{name}.key")),
        };
        write(&pair.cert, &params.signed_by(&key, &self.issuer).unwrap().pem(), 0o644);
        write(&pair.key, &key.serialize_pem(), 0o600);
        pair
    }

    fn listen(&self, client_cert: ClientCert) -> ListenConfig {
        let pair = self.issue("proxy", &["db.example", "127.0.0.1"]);
        ListenConfig {
            mode: ListenMode::Allow,
            cert_file: Some(pair.cert),
            key_file: Some(pair.key),
            ca_file: (client_cert != ClientCert::None).then(|| self.ca()),
            client_cert,
            min_protocol_version: ProtocolVersion::Tls12,
        }
    }
}

// === Two links, back to back ===

/// Events received by a side.
#[derive(Default)]
struct Heard {
    identity: Option<Identity>,
    data: Vec<u8>,
    closed: bool,
}

struct Side {
    link: Link,
    heard: Heard,
    spare: Vec<u8>,
}

impl Side {
    fn new(link: Link) -> Side {
        Side { link, heard: Heard::default(), spare: Vec::new() }
    }

    /// Processes bytes like a driver, in one shared buffer.
    fn take(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        let mut buffer = vec![0; 64 << 10];
        let heard = &mut self.heard;
        for chunk in bytes.chunks(20 << 10) {
            let kept = self.link.unfinished(&mut buffer);
            buffer[kept..kept + chunk.len()].copy_from_slice(chunk);
            self.link.received(&mut buffer[..kept + chunk.len()], &mut |event| match event {
                Event::Secured(identity) => {
                    assert!(heard.data.is_empty() && heard.identity.is_none(), "first, and once");
                    heard.identity = Some(identity);
                }
                Event::Data(data) => heard.data.extend_from_slice(data),
                Event::Closed => heard.closed = true,
            })?;
        }
        Ok(())
    }

    fn give(&mut self) -> Vec<u8> {
        let bytes = self.link.pending().to_vec();
        self.link.wrote(bytes.len(), &mut self.spare);
        bytes
    }
}

/// Transfers bytes in both directions, `step` at a time, until neither side has any.
fn converse(client: &mut Side, server: &mut Side, step: usize) -> Result<(), LinkError> {
    for _ in 0..100 {
        let (to_server, to_client) = (client.give(), server.give());
        if to_server.is_empty() && to_client.is_empty() {
            return Ok(());
        }
        let (mut a, mut b) = (Ok(()), Ok(()));
        for part in to_server.chunks(step) {
            a = a.and_then(|()| server.take(part));
        }
        for part in to_client.chunks(step) {
            b = b.and_then(|()| client.take(part));
        }
        if a.is_err() || b.is_err() {
            // The alert for the other side.
            let alert = server.give();
            let told = client.take(&alert);
            return a.and(b).map_err(|error| match told {
                Err(told) if matches!(error, LinkError::Alert(_)) => told,
                _ => error,
            });
        }
    }
    panic!("no end");
}

fn target(config: &ConnectConfig, host: &str) -> Target {
    Target::new(Arc::new(Connector::new(config).unwrap().unwrap()), host).unwrap()
}

fn sides(listen: &ListenConfig, connect: &ConnectConfig, host: &str) -> (Side, Side) {
    let acceptor = Acceptor::new(listen).unwrap().unwrap();
    let client = Link::connect(&target(connect, host)).unwrap();
    (Side::new(client), Side::new(Link::accept(&acceptor, true).unwrap()))
}

fn verify_full(authority: &Authority) -> ConnectConfig {
    ConnectConfig { mode: ConnectMode::VerifyFull, ca_file: Some(authority.ca()), ..ConnectConfig::default() }
}

#[test]
fn a_conversation_in_pieces_of_any_size() {
    let authority = Authority::new();
    let listen = authority.listen(ClientCert::None);
    for oldest in [ProtocolVersion::Tls12, ProtocolVersion::Tls13] {
        for step in [1, 7, 1000, 1 << 20] {
            let connect = ConnectConfig { min_protocol_version: oldest, ..verify_full(&authority) };
            let (mut client, mut server) = sides(&listen, &connect, "db.example");
            converse(&mut client, &mut server, step).unwrap();
            let (theirs, ours) = (client.heard.identity.take().unwrap(), server.heard.identity.take().unwrap());
            assert_eq!(theirs.common_name.as_deref(), Some("proxy"));
            assert!(theirs.certificate && !ours.certificate);
            assert_eq!(theirs.end_point, ours.end_point, "both bind to the same certificate");
            assert_eq!(theirs.end_point.map(|hash| hash.len()), Some(32));
            for size in [1, 16 << 10, (16 << 10) + 1, 200_000] {
                let text: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
                client.link.encrypt(&text, &mut Vec::new()).unwrap();
                converse(&mut client, &mut server, step.max(1000)).unwrap();
                assert!(server.heard.data == text, "{size} bytes arrive");
                server.heard.data.clear();
                server.link.encrypt(b"answer", &mut Vec::new()).unwrap();
                converse(&mut client, &mut server, step).unwrap();
                assert_eq!(std::mem::take(&mut client.heard.data), b"answer");
            }
            client.link.close();
            converse(&mut client, &mut server, step).unwrap();
            assert!(server.heard.closed, "close_notify arrives");
            assert!(client.link.encrypt(b"late", &mut Vec::new()).is_err());
            server.link.close();
            assert!(!server.link.pending().is_empty(), "and is answered");
        }
    }
}

#[test]
fn data_in_one_piece_with_the_end_of_the_handshake() {
    let authority = Authority::new();
    let (mut client, mut server) = sides(&authority.listen(ClientCert::None), &verify_full(&authority), "db.example");
    // hello; hello … finished; then the client's finished, followed by data
    server.take(&client.give()).unwrap();
    client.take(&server.give()).unwrap();
    assert!(client.link.is_open() && !server.link.is_open());
    client.link.encrypt(b"first", &mut Vec::new()).unwrap();
    server.take(&client.give()).unwrap();
    assert_eq!((server.heard.identity.is_some(), &server.heard.data[..]), (true, &b"first"[..]));
}

#[test]
fn an_idle_link_holds_no_buffer() {
    let authority = Authority::new();
    let (mut client, mut server) = sides(&authority.listen(ClientCert::None), &verify_full(&authority), "db.example");
    converse(&mut client, &mut server, 1 << 20).unwrap();
    for _ in 0..3 {
        client.link.encrypt(b"question", &mut client.spare).unwrap();
        assert_eq!(client.spare.capacity(), 0, "lent");
        converse(&mut client, &mut server, 1 << 20).unwrap();
        assert!(client.spare.capacity() > 0, "given back");
        assert_eq!(server.link.held() + client.link.held(), 0);
    }
}

#[test]
fn whom_a_client_trusts() {
    let (authority, other) = (Authority::new(), Authority::new());
    let listen = authority.listen(ClientCert::None);
    let connect =
        |mode, ca: Option<&Authority>| ConnectConfig { mode, ca_file: ca.map(Authority::ca), ..Default::default() };
    use ConnectMode::{Prefer, Require, VerifyCa, VerifyFull};
    for (mode, ca, host, good) in [
        (VerifyFull, Some(&authority), "db.example", true),
        (VerifyFull, Some(&authority), "127.0.0.1", true),
        (VerifyFull, Some(&authority), "127.0.0.2", false),
        (VerifyFull, Some(&authority), "other.example", false),
        (VerifyFull, Some(&other), "db.example", false),
        (VerifyCa, Some(&authority), "other.example", true),
        (VerifyCa, Some(&other), "db.example", false),
        (Require, Some(&authority), "other.example", true),
        (Require, Some(&other), "db.example", false),
        (Require, None, "other.example", true),
        (Prefer, None, "other.example", true),
        (Prefer, Some(&other), "db.example", false),
    ] {
        let (mut client, mut server) = sides(&listen, &connect(mode, ca), host);
        let outcome = converse(&mut client, &mut server, 1 << 20);
        assert_eq!(outcome.is_ok(), good, "{mode:?} for {host}: {outcome:?}");
        if !good {
            assert!(!client.link.is_open() && client.heard.identity.is_none());
            assert!(!server.link.is_open(), "the other side is told");
        }
    }
}

#[test]
fn whom_a_server_asks_for_a_certificate() {
    let (authority, other) = (Authority::new(), Authority::new());
    use ClientCert::{None as Never, Optional, VerifyCa, VerifyFull};
    for (asks, shows, good, name) in [
        (Never, Some(&authority), true, None),
        (Optional, None, true, None),
        (Optional, Some(&authority), true, Some("alice")),
        (Optional, Some(&other), false, None),
        (VerifyCa, None, false, None),
        (VerifyCa, Some(&authority), true, Some("alice")),
        (VerifyFull, None, false, None),
        // The caller has to compare the name with the user's.
        (VerifyFull, Some(&authority), true, Some("alice")),
    ] {
        let pair = shows.map(|of| of.issue("alice", &[]));
        let connect = ConnectConfig {
            cert_file: pair.as_ref().map(|pair| pair.cert.clone()),
            key_file: pair.as_ref().map(|pair| pair.key.clone()),
            ..verify_full(&authority)
        };
        let (mut client, mut server) = sides(&authority.listen(asks), &connect, "db.example");
        let outcome = converse(&mut client, &mut server, 1 << 20);
        assert_eq!(outcome.is_ok(), good, "{asks:?}: {outcome:?}");
        let found = server.heard.identity.as_ref().and_then(|identity| identity.common_name.as_deref());
        assert_eq!(found, name, "{asks:?}");
        assert_eq!(server.heard.identity.is_some(), good);
    }
}

#[test]
fn tls_at_once_needs_alpn() {
    let authority = Authority::new();
    let acceptor = Acceptor::new(&authority.listen(ClientCert::None)).unwrap().unwrap();
    let connector = Connector::new(&verify_full(&authority)).unwrap().unwrap();
    let mut config = (**connector.config()).clone();
    config.alpn_protocols.clear();
    let silent = Target { connector: Arc::new(connector.with_config(config)), name: "db.example".try_into().unwrap() };
    for (direct, good) in [(true, false), (false, true)] {
        let mut client = Side::new(Link::connect(&silent).unwrap());
        let mut server = Side::new(Link::accept(&acceptor, direct).unwrap());
        let outcome = converse(&mut client, &mut server, 1 << 20);
        assert_eq!(outcome, if good { Ok(()) } else { Err(LinkError::NoAlpn) });
    }
}

#[test]
fn oldest_versions() {
    let authority = Authority::new();
    let strict = ListenConfig { min_protocol_version: ProtocolVersion::Tls13, ..authority.listen(ClientCert::None) };
    let connector = Connector::new(&verify_full(&authority)).unwrap().unwrap();
    let old = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let target = Target { connector: Arc::new(connector.with_config(old)), name: "db.example".try_into().unwrap() };
    let mut client = Side::new(Link::connect(&target).unwrap());
    let mut server = Side::new(Link::accept(&Acceptor::new(&strict).unwrap().unwrap(), false).unwrap());
    assert!(matches!(converse(&mut client, &mut server, 1 << 20), Err(LinkError::Protocol(_))));
}

#[test]
fn what_a_peer_cannot_make_us_keep() {
    let authority = Authority::new();
    let acceptor = Acceptor::new(&authority.listen(ClientCert::None)).unwrap().unwrap();
    let mut server = Side::new(Link::accept(&acceptor, false).unwrap());
    // A ClientHello of 60 kB, according to its length, in records of 16 kB: it is never completed.
    let mut hello = vec![1, 0, 0xf0, 0];
    hello.resize(0xf000, 0);
    let mut outcome = Ok(());
    for record in hello.chunks(16 << 10) {
        let mut bytes = vec![0x16, 3, 1];
        bytes.extend((record.len() as u16).to_be_bytes());
        bytes.extend(record);
        outcome = outcome.and_then(|()| server.take(&bytes));
        assert!(server.link.held() <= LONGEST_PART);
    }
    assert!(outcome.is_err(), "refused before it is whole");
    assert!(!server.link.pending().is_empty() || outcome == Err(LinkError::TooLong));
}

/// A client that sends its messages in records of 64 bytes.
#[test]
fn a_handshake_in_crumbs() {
    let authority = Authority::new();
    let pair = authority.issue("alice", &[]);
    let acceptor = Acceptor::new(&authority.listen(ClientCert::VerifyCa)).unwrap().unwrap();
    let connect = ConnectConfig { cert_file: Some(pair.cert), key_file: Some(pair.key), ..verify_full(&authority) };
    let connector = Connector::new(&connect).unwrap().unwrap();
    let mut config = (**connector.config()).clone();
    config.max_fragment_size = Some(64);
    let target = Target { connector: Arc::new(connector.with_config(config)), name: "db.example".try_into().unwrap() };
    for step in [1, 64, 1 << 20] {
        let mut client = Side::new(Link::connect(&target).unwrap());
        let mut server = Side::new(Link::accept(&acceptor, true).unwrap());
        converse(&mut client, &mut server, step).unwrap();
        assert_eq!(server.heard.identity.as_ref().unwrap().common_name.as_deref(), Some("alice"));
        client.link.encrypt(&[7; 1000], &mut Vec::new()).unwrap();
        converse(&mut client, &mut server, step).unwrap();
        assert_eq!(server.heard.data, [7; 1000]);
    }
}

/// A message after the handshake can be split over records, too, and the link may have to write in between.
#[test]
fn writing_while_a_message_is_half_there() {
    let authority = Authority::new();
    let acceptor = Acceptor::new(&authority.listen(ClientCert::None)).unwrap().unwrap();
    let connector = Connector::new(&verify_full(&authority)).unwrap().unwrap();
    let mut config = (**connector.config()).clone();
    config.enable_secret_extraction = true;
    let target = Target { connector: Arc::new(connector.with_config(config)), name: "db.example".try_into().unwrap() };
    let mut client = Side::new(Link::connect(&target).unwrap());
    let mut server = Side::new(Link::accept(&acceptor, true).unwrap());
    converse(&mut client, &mut server, 1 << 20).unwrap();

    // From here on records are made by hand (RFC 8446, section 5.2): a header, and sealed contents with their type at the end.
    let secrets = client.link.into_secrets();
    let (mut sequence, secrets) = secrets.tx;
    let rustls::ConnectionTrafficSecrets::Aes256Gcm { key, iv } = secrets else { panic!("the usual cipher") };
    let key =
        ring::aead::LessSafeKey::new(ring::aead::UnboundKey::new(&ring::aead::AES_256_GCM, key.as_ref()).unwrap());
    let mut record = |kind: u8, contents: &[u8]| {
        let mut nonce: [u8; 12] = iv.as_ref().try_into().unwrap();
        for (byte, mask) in nonce[4..].iter_mut().zip(sequence.to_be_bytes()) {
            *byte ^= mask;
        }
        sequence += 1;
        let mut sealed = [contents, &[kind]].concat();
        let header = [&[0x17, 3, 3][..], &((sealed.len() + 16) as u16).to_be_bytes()].concat();
        let nonce = ring::aead::Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, ring::aead::Aad::from(&header), &mut sealed).unwrap();
        [header, sealed].concat()
    };
    // A KeyUpdate that requests none in return, in two halves.
    server.take(&record(0x16, &[24, 0, 0])).unwrap();
    assert!(server.link.held() > 0, "the half is kept");
    for _ in 0..3 {
        server.link.encrypt(b"meanwhile", &mut Vec::new()).unwrap();
        assert!(!server.give().is_empty());
    }
    let rest = record(0x16, &[1, 0]);
    server.take(&rest[..3]).unwrap();
    server.link.encrypt(b"meanwhile", &mut Vec::new()).unwrap();
    server.take(&rest[3..]).unwrap();
    server.link.encrypt(b"after", &mut Vec::new()).unwrap();
    // A half that is followed by something else is an error, and an alert.
    let mut server = Side { link: server.link, heard: Heard::default(), spare: Vec::new() };
    server.give();
    server.link.close();
    assert!(!server.link.pending().is_empty());
}

#[test]
fn plaintext_instead_of_tls() {
    let authority = Authority::new();
    let acceptor = Acceptor::new(&authority.listen(ClientCert::None)).unwrap().unwrap();
    for bytes in [
        &b"\0\0\0\x29\0\x03\0\0user\0alice\0database\0app\0\0\0\0"[..],
        b"GET / HTTP/1.0\r\n\r\n",
        &[0x16, 3, 1, 0xff, 0xff, 0],
    ] {
        let mut server = Side::new(Link::accept(&acceptor, false).unwrap());
        assert!(server.take(bytes).is_err(), "{bytes:?}");
        assert!(server.heard.data.is_empty() && server.heard.identity.is_none());
        server.take(b"more").unwrap();
        assert!(server.heard.data.is_empty(), "after an error nothing is looked at");
    }
}

proptest! {
    /// For any input, in pieces of any size, before and after a handshake: no panic, no data that was not sent, bounded memory.
    #[test]
    fn garbage(noise in proptest::collection::vec(any::<u8>(), 0..2000), step in 1_usize..300, after in any::<bool>()) {
        thread_local! {
            static AUTHORITY: (Authority, ListenConfig) = {
                let authority = Authority::new();
                let listen = authority.listen(ClientCert::None);
                (authority, listen)
            };
        }
        let (mut client, mut server) = AUTHORITY.with(|(authority, listen)| sides(listen, &verify_full(authority), "db.example"));
        if after {
            converse(&mut client, &mut server, 1 << 20).unwrap();
        }
        for part in noise.chunks(step) {
            if server.take(part).is_err() {
                break;
            }
            prop_assert!(server.link.held() <= LONGEST_PART);
        }
        prop_assert!(server.heard.data.is_empty());
        prop_assert_eq!(server.heard.identity.is_some(), after);
    }

    #[test]
    fn certificates_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = (common_name(&bytes), end_point(&bytes));
    }
}

// === Files ===

#[test]
fn what_is_wrong_with_files() {
    let authority = Authority::new();
    let good = authority.listen(ClientCert::VerifyCa);
    assert!(Acceptor::new(&good).is_ok());
    assert!(Acceptor::new(&ListenConfig::default()).unwrap().is_none());
    let file = |name: &str, text: &str, mode| {
        let path = authority.dir.path().join(name);
        write(&path, text, mode);
        Some(path)
    };
    let stranger = authority.issue("stranger", &[]);
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let key_text = std::fs::read_to_string(good.key_file.as_ref().unwrap()).unwrap();
    for (setting, config, says) in [
        ("cert_file", ListenConfig { cert_file: None, ..good.clone() }, "missing"),
        ("key_file", ListenConfig { key_file: None, ..good.clone() }, "missing"),
        ("ca_file", ListenConfig { ca_file: None, ..good.clone() }, "missing"),
        ("cert_file", ListenConfig { cert_file: Some("/no/such/file".into()), ..good.clone() }, "No such file"),
        ("cert_file", ListenConfig { cert_file: Some("/dev".into()), ..good.clone() }, "not a file"),
        ("cert_file", ListenConfig { cert_file: file("empty", "", 0o644), ..good.clone() }, "found no certificate"),
        ("cert_file", ListenConfig { cert_file: good.key_file.clone(), ..good.clone() }, "found no certificate"),
        ("key_file", ListenConfig { key_file: good.cert_file.clone(), ..good.clone() }, "others may use it"),
        ("key_file", ListenConfig { key_file: file("nokey", "text", 0o600), ..good.clone() }, "found no private key"),
        ("key_file", ListenConfig { key_file: file("locked", encrypted, 0o600), ..good.clone() }, "passphrase"),
        ("key_file", ListenConfig { key_file: file("open", &key_text, 0o644), ..good.clone() }, "mode 644"),
        ("key_file", ListenConfig { key_file: Some(stranger.key), ..good.clone() }, "not the key of cert_file"),
        ("ca_file", ListenConfig { ca_file: file("noca", "text", 0o644), ..good.clone() }, "found no certificate"),
    ] {
        let error = Acceptor::new(&config).map(|_| ()).unwrap_err();
        assert_eq!(error.setting(), setting, "{error}");
        assert!(error.to_string().contains(says), "{says:?} in {error}");
        assert!(!key_text.lines().any(|line| !line.starts_with("---") && error.to_string().contains(line)), "{error}");
    }
    for mode in [ConnectMode::VerifyCa, ConnectMode::VerifyFull] {
        let error = Connector::new(&ConnectConfig { mode, ..Default::default() }).map(|_| ()).unwrap_err();
        assert_eq!(error.setting(), "ca_file");
    }
    let half = ConnectConfig { mode: ConnectMode::Require, cert_file: good.cert_file, ..Default::default() };
    assert_eq!(Connector::new(&half).map(|_| ()).unwrap_err().setting(), "key_file");
    assert!(Connector::new(&ConnectConfig::default()).unwrap().is_none());
}

#[test]
fn common_names() {
    let authority = Authority::new();
    let read = |params: CertificateParams| {
        let key = KeyPair::generate().unwrap();
        params.signed_by(&key, &authority.issuer).unwrap().der().to_vec()
    };
    let named = |names: &[&str]| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CountryName, "XX");
        for (i, name) in names.iter().enumerate() {
            // rcgen keeps one of each kind.
            let kind = if i == 0 { DnType::CommonName } else { DnType::CustomDnType(vec![2, 5, 4, 3]) };
            params.distinguished_name.push(kind, *name);
        }
        common_name(&read(params))
    };
    assert_eq!(named(&["alice"]).as_deref(), Some("alice"));
    assert_eq!(named(&["J\u{fc}rgen \u{1f418}"]).as_deref(), Some("J\u{fc}rgen \u{1f418}"));
    assert_eq!(named(&["alice\0.evil"]), None);
    assert_eq!(named(&[]), None);
    assert_eq!(named(&["alice", "bob"]), None, "whose would it be?");
    let whole = read(CertificateParams::new(Vec::new()).unwrap());
    for end in 0..whole.len() {
        assert_eq!(end_point(&whole[..end]), None, "{end}");
        let _ = common_name(&whole[..end]);
    }
}
