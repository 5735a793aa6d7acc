//! TLS between the registry's nodes: a node of another authority, or without TLS, gets no connection, and the log has the reason.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use kingpost_tests::certs::{Authority, Pair, replace};
use kingpost_tests::{Cluster, Port, RegistryNode, SOON, ShowLogs, wait_until, within};
use tls::{Acceptor, ClientCert, ConnectConfig, ConnectMode, Connector, ListenConfig, ListenMode};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::common::only_kingpost;

const WEB: &str = "/v1/namespaces/default/services/web/instances";

/// A node, its address for others, and its files.
struct Place {
    node: RegistryNode,
    port: Port,
    pair: Option<Pair>,
}

impl Place {
    /// Starts a node with a certificate by `authority`, and `ca` as the file of CAs; without these in clear.
    async fn start(store: &str, secure: Option<(&Authority, &Path)>) -> Place {
        Place::start_behind(store, secure, Port::reserve(), None).await
    }

    /// Starts a node at `port`; the others are told to connect to `advertised`.
    async fn start_behind(
        store: &str,
        secure: Option<(&Authority, &Path)>,
        port: Port,
        advertised: Option<u16>,
    ) -> Place {
        let pair = secure.map(|(authority, _)| authority.issue("node", &["registry.example"]));
        let mut more = format!("peer_listen = \"127.0.0.1:{}\"\n", port.number());
        if let Some(advertised) = advertised {
            more += &format!("peer_advertise = \"127.0.0.1:{advertised}\"\n");
        }
        if let (Some(pair), Some((_, ca))) = (&pair, secure) {
            more += &format!(
                "[registry.peer_tls]\nmode = \"require\"\ncert_file = {:?}\nkey_file = {:?}\nca_file = {ca:?}\n",
                pair.cert, pair.key
            );
        }
        let node = RegistryNode::start_on(Some(store), &more).await;
        Place { node, port, pair }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.node.process().log()).unwrap()
    }

    /// Returns the number of other nodes, and of those that this one is connected to.
    async fn peers(&self) -> (u32, u32) {
        let metrics = self.node.metrics().await;
        let of = |name: &str| metrics.sum(name, &[]) as u32;
        (of("kingpost_registry_peers"), of("kingpost_registry_peers_reached"))
    }

    async fn until_peers(&self, expected: (u32, u32)) {
        let what = format!("{expected:?} nodes and connections");
        wait_until(&what, SOON, self.node.dir(), async || (self.peers().await == expected).then_some(())).await;
    }

    async fn until_said(&self, what: &str) {
        wait_until(what, SOON, self.node.dir(), async || self.log().contains(what).then_some(())).await;
    }

    /// True if the node greets OpenSSL's client, with this certificate, as it does a node.
    async fn greets(&self, ca: &Path, shown: Option<&Pair>) -> bool {
        let mut client = Command::new("openssl");
        client.args(["s_client", "-quiet", "-no_ign_eof", "-verify_return_error", "-alpn", "kingpost-registry"]);
        client.arg("-connect").arg(format!("127.0.0.1:{}", self.port.number())).arg("-CAfile").arg(ca);
        if let Some(pair) = shown {
            client.arg("-cert").arg(&pair.cert).arg("-key").arg(&pair.key);
        }
        // Its input stays open until the node has ended the connection.
        client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut running = client.spawn().unwrap();
        let input = running.stdin.take();
        let output = within("openssl", SOON, self.node.dir(), running.wait_with_output()).await.unwrap();
        drop(input);
        output.stdout.starts_with(b"kprn")
    }
}

#[tokio::test]
async fn registry_nodes_of_two_authorities_on_one_store() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(0).start().await;
    let _logs = ShowLogs(cluster.dir());
    let store = cluster.primary().endpoint().url();
    let authorities = [Authority::new(), Authority::new()];
    let mut groups = Vec::new();
    for authority in &authorities {
        let ca = authority.ca_file();
        let first = Place::start(&store, Some((authority, &ca))).await;
        groups.push([first, Place::start(&store, Some((authority, &ca))).await]);
    }
    // All see the rows of all; each is connected to the one of its own authority, and logs the reason for the others.
    for place in groups.iter().flatten() {
        place.until_peers((3, 1)).await;
        place.until_said("the peer's certificate is not of a CA in ca_file").await;
    }
    for (group, own, other) in [(&groups[0], 0, 1), (&groups[1], 1, 0)] {
        let ca = authorities[own].ca_file();
        let shown = authorities[own].issue("client", &[]);
        let strange = authorities[other].issue("client", &[]);
        assert!(group[0].greets(&ca, Some(&shown)).await, "OpenSSL with a certificate of their authority");
        assert!(!group[0].greets(&ca, Some(&strange)).await, "with one of another authority");
        assert!(!group[0].greets(&ca, None).await, "with none");
        assert!(
            !group[0].greets(&authorities[other].ca_file(), Some(&shown)).await,
            "the client knows another authority"
        );
    }

    // A killed node is connected to again.
    let [group, _] = &mut groups[..] else { unreachable!() };
    group[1].node.end(libc::SIGKILL).await;
    group[0].until_peers((2, 0)).await;
    group[1].node.start_again().await;
    for place in &*group {
        place.until_peers((3, 1)).await;
    }

    // A node without TLS: no other one talks to it, and both sides log the reason.
    let plain = Place::start(&store, None).await;
    plain.until_said("takes TLS only").await;
    plain.until_peers((4, 0)).await;
    for place in groups.iter().flatten() {
        place.until_said("what answers there is not TLS").await;
        place.until_peers((4, 1)).await;
    }
    // Two of them do talk to each other, without TLS.
    let second = Place::start(&store, None).await;
    plain.until_peers((5, 1)).await;
    second.until_peers((5, 1)).await;
    // A registration is in the store, and visible to all.
    let instance = serde_json::json!({ "host": "h", "port": 1 });
    assert!((200..300).contains(&second.node.send("PUT", &format!("{WEB}/w1"), &instance).await.status));
    for place in groups.iter().flatten().chain([&plain]) {
        let shown = async || (place.node.get(WEB).await.json()["instances"].as_array()?.len() == 1).then_some(());
        wait_until("the instance", SOON, place.node.dir(), shown).await;
    }
}

#[tokio::test]
async fn registry_nodes_take_renewed_certificates() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(0).start().await;
    let _logs = ShowLogs(cluster.dir());
    let store = cluster.primary().endpoint().url();
    let (before, after) = (Authority::new(), Authority::new());
    let ca = before.ca_file();
    let first = Place::start(&store, Some((&before, &ca))).await;
    let mut second = Place::start(&store, Some((&before, &ca))).await;
    first.until_peers((1, 1)).await;
    second.until_peers((1, 1)).await;

    // An invalid file changes nothing.
    std::fs::write(&ca, "no certificate").unwrap();
    first.node.process().signal(libc::SIGHUP);
    first.until_said("not reloaded, the old configuration stays").await;
    assert!(first.log().contains("registry.peer_tls.ca_file"), "{}", first.log());
    assert_eq!(first.peers().await, (1, 1));

    std::fs::copy(after.ca_file(), &ca).unwrap();
    for place in [&first, &second] {
        replace(place.pair.as_ref().unwrap(), &after.issue("node", &[]));
    }
    first.node.process().signal(libc::SIGHUP);
    first.until_said("\"message\":\"reloaded\"").await;
    // The first one was not restarted, so it got them by SIGHUP.
    second.node.end(libc::SIGKILL).await;
    first.until_peers((0, 0)).await;
    second.node.start_again().await;
    for place in [&first, &second] {
        place.until_peers((1, 1)).await;
    }
    assert!(!first.greets(&after.ca_file(), Some(&before.issue("client", &[]))).await, "of the authority before");
    assert!(first.greets(&after.ca_file(), Some(&after.issue("client", &[]))).await);
}

/// Makes the TLS of an attacker in between who has a certificate of the nodes' authority.
fn in_between(authority: &Authority) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let pair = authority.issue("in-between", &["127.0.0.1"]);
    let (cert_file, key_file, ca_file) = (Some(pair.cert), Some(pair.key), Some(authority.ca_file()));
    let accept = Acceptor::new(&ListenConfig {
        mode: ListenMode::Require,
        client_cert: ClientCert::VerifyCa,
        cert_file: cert_file.clone(),
        key_file: key_file.clone(),
        ca_file: ca_file.clone(),
        ..ListenConfig::default()
    });
    let mode = ConnectMode::VerifyFull;
    let connect = Connector::new(&ConnectConfig { mode, cert_file, key_file, ca_file, ..ConnectConfig::default() });
    let protocols: &[&[u8]] = &[b"kingpost-registry"];
    (accept.unwrap().unwrap().speaking(protocols), connect.unwrap().unwrap().speaking(protocols))
}

#[tokio::test]
async fn registry_nodes_are_not_fooled_by_a_certificate_in_between() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(0).start().await;
    let _logs = ShowLogs(cluster.dir());
    let store = cluster.primary().endpoint().url();
    let authority = Authority::new();
    let ca = authority.ca_file();
    let (middle, behind) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Port::reserve());
    let (here, to) = (middle.local_addr().unwrap(), behind.number());
    let first = Place::start(&store, Some((&authority, &ca))).await;
    let (accept, connect) = in_between(&authority);
    let passing = tokio::spawn(async move {
        let (accept, connect) = (TlsAcceptor::from(accept), TlsConnector::from(connect));
        loop {
            let Ok((from, _)) = middle.accept().await else { return };
            let Ok(from) = &mut accept.accept(from).await else { continue };
            let Ok(to) = TcpStream::connect(("127.0.0.1", to)).await else { continue };
            let name = ServerName::try_from("registry.example").unwrap();
            let Ok(to) = &mut connect.connect(name, to).await else { continue };
            // It ends when one of the nodes closes the connection.
            let _ = tokio::io::copy_bidirectional(from, to).await;
        }
    });
    let second = Place::start_behind(&store, Some((&authority, &ca)), behind, Some(here.port())).await;
    // Both TLS handshakes succeed. The second node sees that the proof belongs to another connection, and ends this one.
    second.until_peers((1, 1)).await;
    let says = |place: &Place| place.log().contains("another node cannot be reached");
    wait_until("the first node to give up", SOON, first.node.dir(), async || says(&first).then_some(())).await;
    assert_eq!(first.peers().await, (1, 0));
    assert!(!says(&second), "the direct way");
    passing.abort();
}
