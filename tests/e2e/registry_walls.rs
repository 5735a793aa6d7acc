//! Isolation of callers: private files, reloads that open nothing, shares of limited resources.

use std::os::unix::fs::PermissionsExt;

use kingpost_tests::{Cluster, Kingpost, RegistryNode, SOON, ShowLogs, wait_until};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

const WEB: &str = "/v1/namespaces/default/services/web/instances";

/// Makes a token that may write in `default`, and its table.
fn token(name: &str) -> (String, String) {
    token_of(name, &["default"])
}

/// Makes a token that may write in these namespaces, and its table.
pub(crate) fn token_of(name: &str, namespaces: &[&str]) -> (String, String) {
    let output = Kingpost::run(&["registry", "token", name]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    let hash = said.lines().find_map(|line| line.strip_prefix("sha256 = ")).expect("a hash").to_owned();
    let table = format!(
        "[[registry.tokens]]\nname = {name:?}\nsha256 = {hash}\nrole = \"write\"\nnamespaces = {namespaces:?}\n"
    );
    (String::from_utf8(output.stdout).unwrap().trim().to_owned(), table)
}

#[tokio::test]
async fn the_file_of_the_store_is_for_its_user_only() {
    let mut node = RegistryNode::start("").await;
    assert_eq!(node.send("PUT", &format!("{WEB}/a"), &json!({ "host": "h" })).await.status, 201);
    let modes = |node: &RegistryNode| {
        let files = std::fs::read_dir(node.dir()).unwrap().map(|file| file.unwrap());
        let files = files.filter(|file| file.file_name().to_string_lossy().starts_with("registry.sqlite"));
        files.map(|file| (file.file_name(), file.metadata().unwrap().permissions().mode() & 0o777)).collect::<Vec<_>>()
    };
    let found = modes(&node);
    assert!(!found.is_empty() && found.iter().all(|(_, mode)| *mode == 0o600), "{found:?}");
    // A file of an earlier version is closed to others when the registry starts.
    node.end(libc::SIGTERM).await;
    let file = node.dir().join("registry.sqlite");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    node.start_again().await;
    let found = modes(&node);
    assert!(found.iter().all(|(_, mode)| *mode == 0o600), "{found:?}");
}

/// Returns the TCP ports on which a process listens, from the kernel's tables.
fn listening(pid: u32) -> std::collections::BTreeSet<u16> {
    let sockets: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|fd| Some(std::fs::read_link(fd.ok()?.path()).ok()?.display().to_string()))
        .filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let mut ports = std::collections::BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for fields in text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>()) {
            // Local address, state (0A: it listens) and inode.
            if fields[3] == "0A" && sockets.iter().any(|inode| *inode == fields[9]) {
                ports.insert(u16::from_str_radix(fields[1].rsplit(':').next().unwrap(), 16).unwrap());
            }
        }
    }
    ports
}

/// A node listens for other nodes only if there can be any: not on SQLite, and not alone on a store in PostgreSQL.
#[tokio::test]
async fn nobody_listens_for_other_nodes_where_there_are_none() {
    let cluster = Cluster::builder().start().await;
    cluster.primary().execute("CREATE DATABASE registry").await;
    let shared = format!("postgres://postgres@127.0.0.1:{}/registry", cluster.primary().port());
    let others = |node: &RegistryNode| {
        let config = std::fs::read_to_string(node.dir().join("kingpost.toml")).unwrap();
        let mut ports = listening(node.process().pid());
        let all = ports.len();
        ports.retain(|port| !config.contains(&format!("127.0.0.1:{port}\"")));
        (all - ports.len(), ports.len())
    };
    let alone = RegistryNode::start("").await;
    let first = RegistryNode::start_on(Some(&shared), "").await;
    let _logs = (ShowLogs(alone.dir()), ShowLogs(first.dir()));
    assert_eq!((others(&alone), others(&first)), ((2, 0), (2, 0)));
    let second = RegistryNode::start_on(Some(&shared), "").await;
    for node in [&first, &second] {
        let listens = async || (others(node) == (2, 1)).then_some(());
        wait_until("a node that listens for the other one", SOON, node.dir(), listens).await;
    }
    assert_eq!(others(&alone), (2, 0));
}

#[tokio::test]
async fn a_reload_that_moves_a_socket_opens_nothing() {
    let (_, table) = token("t");
    let node = RegistryNode::start(&format!("auth = \"tokens\"\n{table}")).await;
    let _logs = ShowLogs(node.dir());
    let file = node.dir().join("kingpost.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    let says = |what: &str| {
        let log = std::fs::read_to_string(node.process().log()).unwrap();
        log.lines().filter(|line| line.contains(what)).count()
    };
    let anybody = async || node.send("PUT", &format!("{WEB}/a"), &json!({ "host": "h" })).await.status;
    assert_eq!(anybody().await, 401);
    // The new socket would be on loopback, where no login is allowed; the open one stays.
    let moved = good.replace(&format!("listen = \"127.0.0.1:{}\"", node.port()), "listen = \"127.0.0.1:1\"");
    assert_ne!(moved, good);
    std::fs::write(&file, moved.replace("auth = \"tokens\"", "auth = \"none\"")).unwrap();
    node.process().signal(libc::SIGHUP);
    let decided = async || (says("reloaded") > 0).then_some(());
    wait_until("the reload", SOON, node.dir(), decided).await;
    assert_eq!(anybody().await, 401, "a socket without a login");
    assert!(says("not reloaded") == 1 && says("registry.listen") == 1, "it says what cannot be changed");
    // Changeable settings still change, compared with the running ones.
    std::fs::write(&file, &good).unwrap();
    node.process().signal(libc::SIGHUP);
    wait_until("the good one", SOON, node.dir(), async || (says("\"reloaded\"") > 0).then_some(())).await;
}

#[tokio::test]
async fn one_token_does_not_take_all_waits() {
    let ((greedy, first), (modest, second)) = (token("greedy"), token("modest"));
    let node = RegistryNode::start(&format!("auth = \"tokens\"\nwaiting = 8\n{first}{second}")).await;
    let _logs = ShowLogs(node.dir());
    let watch = async |token: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", node.port())).await.unwrap();
        let path = "/v1/namespaces/default/services/none/watch";
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut begun = [0; 12];
        stream.read_exact(&mut begun).await.unwrap();
        (String::from_utf8_lossy(&begun).into_owned(), stream)
    };
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(watch(&greedy).await);
    }
    let waiting = held.iter().filter(|(status, _)| status == "HTTP/1.1 200").count();
    let (status, _own) = watch(&modest).await;
    assert_eq!(status, "HTTP/1.1 200", "with {waiting} of 8 places in the hands of another token");
    assert_eq!(waiting, 6);
    assert_eq!(held[7].0, "HTTP/1.1 429");
}

/// Sends a request that waits, from the address `from`.
async fn asks(node: &RegistryNode, from: &str, token: &str, path: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let mut stream = socket.connect(format!("127.0.0.1:{}", node.port()).parse().unwrap()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nX-Consul-Token: {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Returns the status of an answer.
async fn status(stream: &mut TcpStream) -> u16 {
    let mut begun = [0; 12];
    stream.read_exact(&mut begun).await.unwrap();
    String::from_utf8_lossy(&begun[9..]).parse().unwrap()
}

/// Blocking queries of each kind: one token, from any number of addresses, does not take all of them, and another one's are answered.
#[tokio::test]
async fn one_token_does_not_take_all_blocking_queries() {
    let ((greedy, first), (modest, second)) = (token_of("greedy", &["a"]), token_of("modest", &["b"]));
    let node = RegistryNode::start(&format!("auth = \"tokens\"\nwaiting = 8\n{first}{second}")).await;
    let _logs = ShowLogs(node.dir());
    let waiting = async |many: f64| {
        wait_until(&format!("{many} that wait"), SOON, node.dir(), async || {
            (node.metrics().await.sum("kingpost_registry_watchers", &[]) == many).then_some(())
        })
        .await;
    };
    let service = json!({ "Name": "s", "Port": 1 }).to_string();
    for (path, write, body) in [
        ("/v1/health/service/s", "/v1/agent/service/register", service.as_str()),
        ("/v1/kv/k", "/v1/kv/k", "x"),
        ("/v1/session/list", "/v1/session/create", "{}"),
        ("/v1/event/list", "/v1/event/fire/e", "x"),
    ] {
        let path = format!("{path}?index=1&wait=60s");
        let mut held = Vec::new();
        for n in 1..=8 {
            held.push(asks(&node, &format!("127.0.0.{n}"), &greedy, &path).await);
            waiting(f64::from(n.min(6))).await;
        }
        for refused in &mut held[6..] {
            assert_eq!(status(refused).await, 429, "{path}");
        }
        let mut own = asks(&node, "127.0.0.9", &modest, &path).await;
        waiting(7.0).await;
        let changed = node.ask("PUT", write, &[("X-Consul-Token", &modest)], body).await;
        assert_eq!(changed.status, 200, "{write}: {}", changed.body);
        assert_eq!(status(&mut own).await, 200, "{path}");
        // No request of the other namespace was woken.
        waiting(6.0).await;
        drop(held);
        waiting(0.0).await;
    }
}

/// Sends one request over a connection that stays open; returns the status, and the body.
async fn over(stream: &mut BufReader<TcpStream>, method: &str, path: &str, body: &str) -> (u16, String) {
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n");
    let request = format!("{head}Content-Type: application/json\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut status, mut length, mut line) = (0, 0, String::new());
    loop {
        line.clear();
        assert!(stream.read_line(&mut line).await.unwrap() > 0, "{method} {path}: the connection was closed");
        let line = line.trim_end().to_ascii_lowercase();
        match line.split_once(": ") {
            _ if line.starts_with("http/1.1 ") => status = line[9..12].parse().unwrap(),
            Some(("content-length", value)) => length = value.parse().unwrap(),
            _ if line.is_empty() => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    (status, String::from_utf8(body).unwrap())
}

/// With a limit of 1,024 descriptors, idle connections leave some for everything that keeps a registry alive: the operators' address, the store,
/// probes; and connected clients go on. The log reports it once.
#[tokio::test]
async fn idle_connections_leave_descriptors_for_everything_else() {
    let more = "[registry.health]\nprobe_allow = [\"127.0.0.1\"]";
    let node = RegistryNode::start_within(&["prlimit", "--nofile=1024:1024"], None, more).await;
    let _logs = ShowLogs(node.dir());
    let mut beats = BufReader::new(TcpStream::connect(("127.0.0.1", node.port())).await.unwrap());
    let beating = "/v1/namespaces/a/services/web/instances/beats";
    let leased = json!({ "host": "h", "check": { "type": "ttl", "ttl": "30s" } }).to_string();
    assert_eq!(over(&mut beats, "PUT", beating, &leased).await.0, 201);
    let refused = async || node.metrics().await.sum("kingpost_registry_connections_refused_total", &[]);
    let mut idle = Vec::new();
    while idle.len() < 1100 {
        idle.push(TcpStream::connect(("127.0.0.1", node.port())).await.unwrap());
    }
    // Held connections count up to the limit; all others have been turned away, and no accept has failed.
    wait_until("all others to be turned away", SOON, node.dir(), async || {
        let accepted = node.metrics().await.sum("kingpost_registry_connections_accepted_total", &[]);
        (accepted >= 1101.0 && refused().await >= 100.0).then_some(())
    })
    .await;
    // Operators.
    assert!(node.is_ready().await);
    // Heartbeats, and the store.
    assert_eq!(over(&mut beats, "PUT", "/v1/namespaces/a/instances/beats/heartbeat", "").await.0, 204);
    // Probes need descriptors of their own.
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    for namespace in ["a", "b"] {
        let path = format!("/v1/namespaces/{namespace}/services/probed/instances/p");
        let check = json!({ "type": "tcp", "interval": "1s", "timeout": "1s", "rise": 1, "fall": 1 });
        let probed = json!({ "host": "127.0.0.1", "port": port, "health": "critical", "check": check }).to_string();
        assert_eq!(over(&mut beats, "PUT", &path, &probed).await.0, 201);
    }
    for namespace in ["a", "b"] {
        let path = format!("/v1/namespaces/{namespace}/instances/p");
        wait_until("a probed instance to be passing", SOON, node.dir(), async || {
            let (_, shown) = over(&mut beats, "GET", &path, "").await;
            shown.contains("\"passing\"").then_some(())
        })
        .await;
    }
    let log = std::fs::read_to_string(node.process().log()).unwrap();
    let said = log.lines().filter(|line| line.contains("takes no further connection")).count();
    assert!((1..=2).contains(&said), "said {said} times");
    assert!(!log.contains("Too many open files"), "{log}");
    drop(idle);
    let free = async || node.try_ask("GET", "/v1/status/leader", &[], "").await.filter(|answer| answer.status == 200);
    wait_until("a place", SOON, node.dir(), free).await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_at_once() {
    let node = RegistryNode::start("connections = 4").await;
    let _logs = ShowLogs(node.dir());
    let mut idle = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(("127.0.0.1", node.port())).await.unwrap();
        // An answered connection is counted.
        stream.write_all(b"GET /v1/status/leader HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut begun = [0; 12];
        stream.read_exact(&mut begun).await.unwrap();
        idle.push(stream);
    }
    let mut more = TcpStream::connect(("127.0.0.1", node.port())).await.unwrap();
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(SOON, more.read_to_end(&mut rest)).await;
    assert!(closed.is_ok() && rest.is_empty(), "it waits for a place that nobody gives up");
    assert!(node.is_ready().await, "operators have an address of their own");
    drop(idle);
    let free = async || node.try_ask("GET", "/v1/status/leader", &[], "").await.filter(|answer| answer.status == 200);
    wait_until("a place", SOON, node.dir(), free).await;
}

/// Many of Consul's clients cannot name a namespace: the token's is used.
#[tokio::test]
async fn a_token_for_one_namespace_chooses_it_for_consul_s_clients() {
    let (a, a_table) = token_of("a", &["tenant-a"]);
    let (b, b_table) = token_of("b", &["tenant-b"]);
    let (both, both_table) = token_of("both", &["tenant-a", "tenant-b"]);
    let node = RegistryNode::start(&format!("auth = \"tokens\"\n{a_table}{b_table}{both_table}")).await;
    let _logs = ShowLogs(node.dir());
    let ask = async |method: &str, path: &str, token: &str, body: &str| {
        node.ask(method, path, &[("X-Consul-Token", token), ("Content-Type", "application/json")], body).await
    };
    for (token, address) in [(&a, "10.0.0.1"), (&b, "10.0.0.2")] {
        let service = json!({ "Name": "shop", "ID": "shop", "Address": address, "Port": 80 }).to_string();
        assert_eq!(ask("PUT", "/v1/agent/service/register", token, &service).await.status, 200);
        assert_eq!(ask("PUT", "/v1/kv/greeting", token, address).await.status, 200);
    }
    for (token, own, other) in [(&a, "10.0.0.1", "10.0.0.2"), (&b, "10.0.0.2", "10.0.0.1")] {
        for path in ["/v1/health/service/shop", "/v1/catalog/service/shop", "/v1/agent/services", "/v1/kv/greeting?raw"]
        {
            let answer = ask("GET", path, token, "").await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            assert!(answer.body.contains(own) && !answer.body.contains(other), "{path}: {}", answer.body);
        }
    }
    // A named namespace takes precedence over the token's.
    assert_eq!(ask("GET", "/v1/catalog/services?ns=tenant-b", &a, "").await.status, 403);
    assert_eq!(ask("GET", "/v1/catalog/services?ns=default", &a, "").await.status, 403);
    // With a token for two there is no guess.
    assert_eq!(ask("GET", "/v1/catalog/services", &both, "").await.status, 403);
    assert_eq!(ask("GET", "/v1/catalog/services?ns=tenant-b", &both, "").await.body, r#"{"shop":[]}"#);
}

/// Eureka's clients cannot name a namespace: the token decides. Two tenants with one application and one id do not see each other, in the whole list,
/// the delta, by address or by id, and cannot renew, change or cancel the other's instances.
#[tokio::test]
async fn eurekas_clients_are_in_the_namespace_of_their_token() {
    let tokens: Vec<(String, String)> = [("red", &["red"][..]), ("blue", &["blue"]), ("both", &["red", "blue"])]
        .map(|(name, namespaces)| token_of(name, namespaces))
        .into();
    let tables: String = tokens.iter().map(|(_, table)| table.as_str()).collect();
    let node = RegistryNode::start(&format!("auth = \"tokens\"\n{tables}")).await;
    let _logs = ShowLogs(node.dir());
    let ask = async |who: usize, method: &str, path: &str, body: &str| {
        let bearer = format!("Bearer {}", tokens[who].0);
        let headers =
            [("Authorization", bearer.as_str()), ("Accept", "application/json"), ("Content-Type", "application/json")];
        node.ask(method, path, &headers, body).await
    };
    for (who, address) in [(0, "10.0.0.1"), (1, "10.0.0.2")] {
        let instance = json!({ "instanceId": "host-a", "hostName": address, "ipAddr": address, "vipAddress": "web", "port": { "$": 80, "@enabled": "true" } });
        let answer = ask(who, "POST", "/eureka/apps/WEB", &json!({ "instance": instance }).to_string()).await;
        assert_eq!(answer.status, 204, "{}", answer.body);
    }
    // Only the blue one has a second instance.
    let second = json!({ "instanceId": "host-b", "hostName": "10.0.0.3", "ipAddr": "10.0.0.3", "port": { "$": 80, "@enabled": "true" } });
    assert_eq!(ask(1, "POST", "/eureka/apps/WEB", &json!({ "instance": second }).to_string()).await.status, 204);
    for (who, own, others) in [(0, "10.0.0.1", &["10.0.0.2", "10.0.0.3"][..]), (1, "10.0.0.2", &["10.0.0.1"])] {
        for path in ["apps", "apps/delta", "apps/WEB", "apps/WEB/host-a", "instances/host-a", "vips/web"] {
            let answer = ask(who, "GET", &format!("/eureka/{path}"), "").await;
            assert!(answer.status == 200 && answer.body.contains(own), "{path}: {}", answer.body);
            assert!(!others.iter().any(|other| answer.body.contains(other)), "{path}: {}", answer.body);
        }
    }
    for (method, path) in [
        ("PUT", "/eureka/apps/WEB/host-b"),
        ("PUT", "/eureka/apps/WEB/host-b/status?value=OUT_OF_SERVICE"),
        ("PUT", "/eureka/apps/WEB/host-b/metadata?a=b"),
        ("DELETE", "/eureka/apps/WEB/host-b"),
        ("GET", "/eureka/instances/host-b"),
    ] {
        assert_eq!(ask(0, method, path, "").await.status, 404, "{method} {path}");
    }
    let shown = ask(1, "GET", "/eureka/apps/WEB/host-b", "").await.body;
    assert!(shown.contains("\"UP\"") && !shown.contains("OUT_OF_SERVICE"), "{shown}");
    // Cancelled in one namespace, it stays in the other.
    assert_eq!(ask(0, "DELETE", "/eureka/apps/WEB/host-a", "").await.status, 200);
    assert!(ask(1, "GET", "/eureka/apps", "").await.body.contains("10.0.0.2"));
    // A token for more than one namespace does not tell which one to use.
    assert_eq!(ask(2, "GET", "/eureka/apps", "").await.status, 403);
}
