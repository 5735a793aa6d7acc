//! The first bytes of a connection, where TLS may begin, and arbitrary bytes in place of its records: no panic, bounded buffers, nobody logged in.
//! Also the parsing of certificates.
//!
//! The input is a byte of options (the beginning of the connection, the size of the pieces), and the bytes.
#![cfg_attr(fuzzing, no_main)]

use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use kingpost_fuzz::fuzz_target;
use proxy::config::{AuthMethod, ProxyConfig};
use proxy::core::{Core, Effect, Peer, Secure, Shared};
use proxy::settings::Settings;
use tls::{Event, LONGEST_PART, Link};
use topology::{Address, Node, NodeId, NodeView, Role, Term, Topology, View};

static SETTINGS: LazyLock<Arc<Settings>> = LazyLock::new(|| {
    let dir = std::env::temp_dir().join(format!("kingpost-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["proxy".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    let (cert_file, key_file) = (dir.join("crt"), dir.join("key"));
    std::fs::write(&cert_file, certificate.pem()).expect("write");
    std::fs::write(&key_file, key.serialize_pem()).expect("write");
    std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o600)).expect("close the key");
    let config = ProxyConfig {
        auth: AuthMethod::Trust,
        tls: tls::ListenConfig {
            mode: tls::ListenMode::Require,
            cert_file: Some(cert_file.clone()),
            key_file: Some(key_file),
            ca_file: Some(cert_file),
            client_cert: tls::ClientCert::Optional,
            ..tls::ListenConfig::default()
        },
        ..ProxyConfig::default()
    };
    let settings = Arc::new(Settings::new(&config).expect("settings"));
    let _ = std::fs::remove_dir_all(&dir);
    settings
});

fn core() -> Core {
    let node = NodeView {
        node: Arc::new(Node::new(NodeId(0), "n0")),
        address: Address::Tcp(([127, 0, 0, 1], 1).into()),
        socket: None,
        role: Role::Primary,
        usable: true,
        weight: 10,
        zone: None,
        settings: 1,
    };
    let view = View { epoch: 0, term: Term { system: 1, timeline: 1 }, primary: Some(NodeId(0)), nodes: vec![node] };
    let shared = Shared::new(Topology::fixed(view), 1, [7; 32]);
    Core::new(0, shared, SETTINGS.clone(), Arc::default(), Instant::now())
}

fuzz_target!(|input: &[u8]| {
    let Some((&options, bytes)) = input.split_first() else { return };
    let _ = (tls::common_name(bytes), tls::end_point(bytes));

    let mut core = core();
    let client = core.accept(Peer::default());
    if options & 1 != 0 {
        core.received(client, &[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]);
    }
    let mut link: Option<Link> = None;
    let mut buffer = vec![0; 64 << 10];
    let mut effects = Vec::new();
    for piece in bytes.chunks(1 + usize::from(options >> 1)) {
        match &mut link {
            None => core.received(client, piece),
            Some(link) => {
                let kept = link.unfinished(&mut buffer);
                assert!(kept <= LONGEST_PART);
                buffer[kept..kept + piece.len()].copy_from_slice(piece);
                let outcome = link.received(&mut buffer[..kept + piece.len()], &mut |event| match event {
                    Event::Secured(_) => panic!("without the key of an exchange nobody completes it"),
                    Event::Data(_) => panic!("nothing was encrypted"),
                    Event::Closed => {}
                });
                if outcome.is_err() {
                    return;
                }
            }
        }
        core.take_effects(&mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Secure { token, with: Secure::Accept { acceptor, direct } } => {
                    assert!(!direct || options & 1 == 0);
                    let mut fresh = Link::accept(&acceptor, direct).expect("a link");
                    let early = core.early(token);
                    buffer[..early.len()].copy_from_slice(&early);
                    if fresh.received(&mut buffer[..early.len()], &mut |_| panic!("too early")).is_err() {
                        return;
                    }
                    link = Some(fresh);
                }
                Effect::Connect { .. } => panic!("TLS is required: nobody gets as far as a server"),
                Effect::Close { .. } => return,
                _ => {}
            }
        }
    }
});
