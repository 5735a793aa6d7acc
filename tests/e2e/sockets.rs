//! Unix sockets: of the proxy, with their permissions; of servers, configured or found on the proxy's host.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use kingpost_tests::{Cluster, Cut, DATABASE, Kingpost, KingpostBuilder, ShowLogs, USER, unique, user};
use toml::Table;

use crate::common::{only_kingpost, value};
use crate::governed::connect;

#[tokio::test]
async fn a_unix_socket_has_the_permissions_and_the_group_that_are_configured() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let group = std::fs::read_to_string("/etc/group").unwrap();
    let (name, number) = group
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            Some((fields[0].to_owned(), fields[2].parse::<u32>().ok()?))
        })
        .find(|(_, number)| *number != 0)
        .expect("a group that is not root's");
    let socket = |mode: &str, group: Option<&str>| {
        let path = cluster.dir().join(format!(".s.PGSQL.{}", 10_000 + unique()));
        let mut table = Table::new();
        table.insert("address".into(), path.display().to_string().into());
        table.insert("mode".into(), mode.into());
        if let Some(group) = group {
            table.insert("group".into(), group.into());
        }
        (path, table)
    };
    let (open, open_table) = socket("0777", None);
    let (closed, closed_table) = socket("0750", Some(&name));
    let kingpost =
        Kingpost::of(&cluster).add("proxy.listen", open_table).add("proxy.listen", closed_table).start().await;
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&open), mode(&closed)), (0o777, 0o750));
    assert_eq!(std::fs::metadata(&closed).unwrap().gid(), number);
    // It serves.
    let port = open.extension().and_then(|port| port.to_str()).unwrap().parse::<u16>().unwrap();
    let mut config = tokio_postgres::Config::new();
    config.host_path(cluster.dir()).port(port).user(USER).dbname(DATABASE);
    let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("a connection");
    let connection = tokio::spawn(connection);
    assert_eq!(crate::common::value(&client, "SELECT 7").await, "7");
    drop(client);
    let _ = connection.await;
    drop(kingpost);
    // An invalid mode is an error with its place.
    for (mode, good) in [("0770", true), ("rwx", false), ("9", false), ("1777", false)] {
        let file = cluster.dir().join(format!("mode{}.toml", unique()));
        let path = cluster.dir().join("checked");
        let text = format!(
            "[proxy]\nauth = \"trust\"\nlisten = [{{ address = {:?}, mode = {mode:?} }}]\n[cluster]\nuser = \"postgres\"\n[[cluster.nodes]]\nname = \"a\"\naddress = \"127.0.0.1:5432\"\n",
            path.display().to_string()
        );
        std::fs::write(&file, text).unwrap();
        let output = Kingpost::run(&["check", "--config", file.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), good, "{mode}: {said}");
        assert!(good || said.contains("mode"), "{said}");
    }
}

/// Servers of the same machine are reached by their Unix sockets: two databases, two users, reads on a replica, a lost primary.
#[tokio::test]
async fn servers_are_reached_by_unix_sockets() {
    if only_kingpost() {
        return;
    }
    let dir = kingpost_tests::new_dir("sockets");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    // Over TCP only replicas and the tests' administrator can log in.
    let hba = "local all all trust\nhost replication all 127.0.0.1/32 trust\nhost all postgres 127.0.0.1/32 trust\n";
    let builder = Cluster::builder().replicas(1).hba(hba);
    let cluster = builder.setting("unix_socket_directories", &dir.display().to_string()).start().await;
    let _logs = ShowLogs(cluster.dir());
    cluster.primary().execute("CREATE ROLE bert LOGIN").await;
    cluster.primary().execute("CREATE DATABASE second").await;
    cluster.wait_caught_up().await;
    let node = |node: &kingpost_tests::Node| {
        let mut table = Table::new();
        table.insert("name".into(), node.name().into());
        table.insert("address".into(), dir.join(format!(".s.PGSQL.{}", node.port())).display().to_string().into());
        toml::Value::Table(table)
    };
    let nodes: Vec<toml::Value> = cluster.nodes().iter().map(node).collect();
    let kingpost = Kingpost::of(&cluster).set("cluster.nodes", nodes).start().await;
    for (user, database) in [(USER, DATABASE), ("bert", DATABASE), (USER, "second"), ("bert", "second")] {
        let client = connect(&kingpost, user, "", database).await;
        for route in ["primary", "replica"] {
            let sql = format!(
                "/* kingpost.route={route} */ SELECT current_user || ' ' || current_database() || ' ' || pg_is_in_recovery() || ' ' || coalesce(inet_server_port()::text, 'socket')"
            );
            let expected = format!("{user} {database} {} socket", route == "replica");
            // The replica may not be known yet.
            let said = async || Some(value(&client, &sql).await).filter(|said| *said == expected);
            cluster.wait(&expected, said).await;
        }
    }
    cluster.primary().kill9().await;
    cluster.nodes()[1].promote().await;
    let client = connect(&kingpost, "bert", "", "second").await;
    client.batch_execute("CREATE TEMP TABLE written (n int)").await.unwrap();
}

/// Query for the way of a session: the port of its server, or a socket.
const WAY: &str = "SELECT coalesce(inet_server_port()::text, 'socket')";

/// A server of this host gets connections by its Unix socket, found by the proxy, from users of whom it asks the same there as by TCP.
#[tokio::test]
async fn a_local_server_is_reached_by_its_socket_where_that_is_as_strict() {
    if only_kingpost() {
        return;
    }
    let dir = kingpost_tests::new_dir("local");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let hba = |strict: &str| {
        format!(
            "local all postgres trust\nlocal all same scram-sha-256\nlocal all strict {strict}\nlocal all lax trust\n\
             local all open trust\nhost replication all 127.0.0.1/32 trust\nhost all postgres 127.0.0.1/32 trust\n\
             host all open 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )
    };
    let builder = Cluster::builder().hba(&hba("reject"));
    let cluster = builder.setting("unix_socket_directories", &format!("@none, {}", dir.display())).start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    for role in ["same", "strict", "lax", "open"] {
        primary.execute(&format!("CREATE ROLE {role} LOGIN PASSWORD 'of {role}'")).await;
    }
    let forwarder = Cut::to(primary.port());
    let builder = || -> KingpostBuilder {
        ["same", "strict", "open"]
            .into_iter()
            .fold(Kingpost::of(&cluster), |kingpost, role| {
                kingpost.add("proxy.users", user(role, &format!("of {role}")))
            })
            .add("proxy.users", user("lax", "wrong"))
            .set("proxy.pool.size", 1)
            .set("proxy.workers", 1)
    };
    let kingpost = builder().start().await;
    let way = async |kingpost: &Kingpost, role: &str| value(&connect(kingpost, role, "", DATABASE).await, WAY).await;
    let (socket, tcp) = ("socket".to_owned(), primary.port().to_string());
    assert_eq!(way(&kingpost, "same").await, socket);
    assert_eq!(way(&kingpost, "strict").await, tcp);
    // The first shows that TCP asks for as little as the socket.
    assert_eq!(way(&kingpost, "open").await, tcp);
    let console = crate::console::console(&kingpost).await;
    console.simple_query("RECONNECT").await.unwrap();
    assert_eq!(way(&kingpost, "open").await, socket);
    // The socket would let this user in without a password.
    let mut config = kingpost.endpoint().config();
    config.user("lax").dbname(DATABASE);
    let error = match kingpost.endpoint().try_connect(&config).await {
        Ok(client) => client.simple_query(WAY).await.expect_err("a wrong password by TCP"),
        Err(error) => error,
    };
    assert!(format!("{error:?}").contains("password authentication failed"), "{error:?}");

    // The server reads another pg_hba.conf.
    primary.replace_hba(&hba("scram-sha-256"));
    primary.execute("SELECT pg_reload_conf()").await;
    let reconnected = async |role: &str, expected: &str| {
        console.simple_query("RECONNECT").await.unwrap();
        Some(way(&kingpost, role).await).filter(|way| way == expected)
    };
    cluster.wait("the socket, after the reload", async || reconnected("strict", &socket).await).await;
    std::fs::remove_file(dir.join(format!(".s.PGSQL.{}", primary.port()))).unwrap();
    cluster.wait("TCP, after the socket's file is gone", async || reconnected("same", &tcp).await).await;
    drop(kingpost);

    // A forwarder may be there for a reason, and an operator may not want sockets.
    let mut through = Table::new();
    through.insert("name".into(), "n0".into());
    through.insert("address".into(), format!("127.0.0.1:{}", forwarder.port()).into());
    primary.stop().await;
    primary.start().await;
    for (kingpost, expected) in [
        (builder().start().await, &socket),
        (builder().set("cluster.nodes", vec![toml::Value::Table(through)]).start().await, &tcp),
        (builder().set("cluster.local_sockets", false).start().await, &tcp),
    ] {
        assert_eq!(&way(&kingpost, "same").await, expected);
    }
}
