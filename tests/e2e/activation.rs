//! A service manager: it listens, and starts the proxy at the first connection (socket activation); it is told which process serves, and which one
//! ends (`Type=notify`).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram as StdDatagram};
use std::path::Path;

use kingpost_tests::{
    Cluster, DATABASE, Port, Process, RegistryNode, Relay, RunAs, SOON, ShowLogs, USER, command, kingpost_bin, new_dir,
    skipped, wait_until, within,
};
use tokio::net::UnixDatagram;
use tokio_postgres::{Config, NoTls};

use crate::common::{only_kingpost, shared, value};

/// systemd's own program, which listens as a socket unit does and starts a command with the sockets.
const ACTIVATE: &str = "/usr/bin/systemd-socket-activate";

#[tokio::test]
async fn clients_wait_in_the_managers_socket_until_the_proxy_serves() {
    if only_kingpost() {
        return;
    }
    if !Path::new(ACTIVATE).exists() {
        skipped(&format!("{ACTIVATE} is not there"));
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let (port, metrics, dir) = (Port::reserve(), Port::reserve(), new_dir("activated"));
    let socket = dir.join(format!(".s.PGSQL.{}", port.number()));
    let config = dir.join("kingpost.toml");
    let text = format!(
        "[proxy]\nlisten = [\"localhost:{port}\", \"{socket}\"]\nauth = \"trust\"\nworkers = 2\n[metrics]\nlisten = \"127.0.0.1:{metrics}\"\n\
         [cluster]\nuser = \"postgres\"\n[[cluster.nodes]]\nname = \"a\"\naddress = \"127.0.0.1:{primary}\"\n",
        port = port.number(),
        socket = socket.display(),
        metrics = metrics.number(),
        primary = cluster.primary().port(),
    );
    std::fs::write(&config, &text).unwrap();
    let start = |log: &str, addresses: &[String]| {
        let mut activate = command(Path::new(ACTIVATE), RunAs::Tests, "KILL");
        for address in addresses {
            activate.args(["-l", address]);
        }
        activate.arg(kingpost_bin()).args(["proxy", "--config"]).arg(&config);
        Process::start("systemd-socket-activate", activate, &cluster.dir().join(log))
    };
    let tcp = format!("127.0.0.1:{}", port.number());
    let process = start("activated.log", &[tcp, socket.display().to_string()]);
    let log = || std::fs::read_to_string(process.log()).unwrap_or_default();
    wait_until("the manager to listen", SOON, cluster.dir(), async || log().contains("Listening on").then_some(()))
        .await;
    assert!(!log().contains("started"), "nobody has come, and the proxy runs:\n{}", log());
    let connect = async |host: &str| {
        let mut config = Config::new();
        config.host(host).port(port.number()).user(USER).dbname(DATABASE).connect_timeout(SOON);
        let (client, connection) =
            config.connect(NoTls).await.unwrap_or_else(|error| panic!("{host}: {error}\n{}", log()));
        tokio::spawn(connection);
        client
    };
    // The first client waits in the socket while the proxy starts.
    for host in ["127.0.0.1", dir.to_str().unwrap()] {
        assert_eq!(value(&connect(host).await, "SELECT 7").await, "7", "{host}");
    }
    // The socket's file is the manager's: it stays when the proxy ends.
    process.signal(libc::SIGTERM);
    process.wait_exit(SOON).await;
    assert!(socket.exists());
    drop(process);

    // A socket that the configuration does not have is an error; it is not left without a server.
    let other = Port::reserve();
    std::fs::remove_file(&socket).unwrap();
    let process = start("other.log", &[format!("127.0.0.1:{}", other.number())]);
    let log = || std::fs::read_to_string(process.log()).unwrap_or_default();
    wait_until("the manager to listen", SOON, cluster.dir(), async || log().contains("Listening on").then_some(()))
        .await;
    let _ = tokio::net::TcpStream::connect(("127.0.0.1", other.number())).await;
    wait_until("the proxy to refuse", SOON, cluster.dir(), async || process.exit_status()).await;
    assert!(log().contains("which is no address of proxy.listen"), "{}", log());
}

/// The service manager's side of `Type=notify`: a socket for the messages of one process.
struct Manager {
    name: String,
    socket: UnixDatagram,
}

impl Manager {
    fn listen(unit: &str) -> Manager {
        let name = format!("kingpost-tests-{}-{unit}", std::process::id());
        // An abstract address, without a file, so that a process of any user may write to it.
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = StdDatagram::bind_addr(&address).unwrap();
        socket.set_nonblocking(true).unwrap();
        Manager { name, socket: UnixDatagram::from_std(socket).unwrap() }
    }

    fn variable(&self) -> (String, String) {
        ("NOTIFY_SOCKET".to_owned(), format!("@{}", self.name))
    }

    async fn hear(&self, what: &str, logs: &Path) -> String {
        let mut said = [0; 512];
        let length = within(what, SOON, logs, self.socket.recv(&mut said)).await.unwrap();
        String::from_utf8_lossy(&said[..length]).into_owned()
    }

    /// Checks that the process reports that it serves, under its pid, and later that it ends, before it does.
    async fn sees_it_live_and_end(&self, process: &Process, logs: &Path) {
        let ready = self.hear("READY", logs).await;
        assert_eq!(ready, format!("MAINPID={}\nREADY=1", process.pid()), "{}", self.name);
        process.signal(libc::SIGTERM);
        assert_eq!(self.hear("STOPPING", logs).await, "STOPPING=1", "{}", self.name);
        process.wait_exit(SOON).await;
        let mut more = [0; 512];
        assert!(self.socket.try_recv(&mut more).is_err(), "{} heard of another unit", self.name);
    }
}

/// Each process has its own manager, which gets no messages of the others. `systemctl start` returns when they serve, and reports if they do not.
#[tokio::test]
async fn relays_and_registry_tell_the_manager_when_they_serve_and_when_they_end() {
    if only_kingpost() {
        return;
    }
    let (shared, _logs) = shared().await;
    let logs = shared.cluster.dir();
    let managers = ["relay", "relay-mariadb", "registry"].map(Manager::listen);
    let [relay, of_mariadb, registry] = &managers;
    // Nothing is there for them to follow: they serve all the same.
    let nobody = Port::reserve();
    let of = |manager: &Manager| Relay::of(&shared.cluster, nobody.number()).environment([manager.variable()]);
    let mut replicas = toml::Table::new();
    replicas.insert("name".into(), "replica".into());
    replicas.insert("password".into(), "replica's".into());
    let binlog = of(of_mariadb)
        .set("relay.engine", "mariadb")
        .set("relay.server_id", 77)
        .set("relay.auth", "scram-sha-256")
        .set("relay.users", vec![toml::Value::Table(replicas)]);
    let mut relays = [(of(relay), relay), (binlog, of_mariadb)];
    relays.iter_mut().for_each(|(process, _)| process.launch());
    let variable = registry.variable();
    let node = RegistryNode::start_within(&["env", &format!("{}={}", variable.0, variable.1)], None, "").await;
    for (process, manager) in &relays {
        manager.sees_it_live_and_end(process.process(), logs).await;
    }
    registry.sees_it_live_and_end(node.process(), logs).await;
}
