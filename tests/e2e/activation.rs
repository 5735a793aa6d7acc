//! Socket activation: the service manager listens, and starts the proxy when somebody comes.

use std::path::Path;

use kingpost_tests::{
    Cluster, DATABASE, Port, Process, RunAs, SOON, ShowLogs, USER, command, kingpost_bin, new_dir, wait_until,
};
use tokio_postgres::{Config, NoTls};

use crate::common::{only_kingpost, value};

/// systemd's own program that listens as a socket unit does and starts a command with the sockets.
const ACTIVATE: &str = "/usr/bin/systemd-socket-activate";

#[tokio::test]
async fn clients_wait_in_the_managers_socket_until_the_proxy_serves() {
    if only_kingpost() || !Path::new(ACTIVATE).exists() {
        eprintln!("skipped: {ACTIVATE} is not there");
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
    // The first waits in the socket while the proxy starts.
    for host in ["127.0.0.1", dir.to_str().unwrap()] {
        assert_eq!(value(&connect(host).await, "SELECT 7").await, "7", "{host}");
    }
    // The file is the manager's: it stays when the proxy ends.
    process.signal(libc::SIGTERM);
    process.wait_exit(SOON).await;
    assert!(socket.exists());
    drop(process);

    // A socket that the configuration does not know is an error, not one that nobody serves.
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
