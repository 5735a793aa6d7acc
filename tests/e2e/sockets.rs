//! Unix sockets that clients connect to: who may.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use kingpost_tests::{Cluster, DATABASE, Kingpost, ShowLogs, USER, unique};
use toml::Table;

use crate::common::only_kingpost;

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
    // What is no mode is an error with its place.
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
