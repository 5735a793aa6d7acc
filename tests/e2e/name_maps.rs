//! Name maps: PostgreSQL itself and the proxy decide about the same pairs by the same lines.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use kingpost_tests::certs::Authority;
use kingpost_tests::{Cluster, DATABASE, Kingpost, Port, ShowLogs, new_dir, pg_bin, user};
use toml::Table;

use crate::common::only_kingpost;

/// Lines with the same meaning in all versions of PostgreSQL.
const MAPS: &str = "\
# map   system                    user
corp    alice@example.com         alice
corp    \"with blank\"              bob      # and a comment
corp    /^(.*)@example\\.org$      \\1
corp    /^ops-                    bob
corp    /^x(.*)y$                 pre_\\1_post
corp    root                      alice
corp    /^(no|x)body$             bob
corp    postgres                  postgres
corp    /^(q)?no-group$           \\1
corp    no-group                  alice
other   alice@example.com         bob
";

/// The users of the table, and those that they may become.
const ROLES: [&str; 4] = ["alice", "bob", "pre_z_post", "root"];

fn readable(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
}

fn rule(fields: &[(&str, &str)]) -> Table {
    fields.iter().map(|(name, value)| ((*name).to_owned(), toml::Value::from(*value))).collect()
}

/// Runs a psql login as this system user.
fn psql(uid: Option<u32>, conninfo: &str) -> Output {
    use std::os::unix::process::CommandExt;
    let mut psql = Command::new(pg_bin().join("psql"));
    psql.args(["-X", "-A", "-t", "-c", "SELECT current_user", "-d", conninfo]);
    psql.env("PGCONNECT_TIMEOUT", "60").env("LC_ALL", "C.UTF-8").env("HOME", "/nonexistent").current_dir("/");
    if let Some(uid) = uid {
        psql.uid(uid).gid(uid);
    }
    psql.output().unwrap()
}

/// Returns the user of a login, or `None` if it was refused in the server's own words.
fn who(what: &str, output: &Output) -> Option<String> {
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        return Some(out.trim().to_owned());
    }
    assert!(error.contains("FATAL"), "{what}: neither in nor refused: {error}");
    None
}

async fn cluster(settings: &[(&str, &str)], hba: &str, roles: &[&str]) -> (Cluster, String) {
    let dir = new_dir("maps");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let maps = dir.join("pg_ident.conf");
    readable(&maps, MAPS);
    let maps = maps.display().to_string();
    let mut builder = Cluster::builder().hba(hba).setting("ident_file", &maps);
    for (name, value) in settings {
        builder = builder.setting(name, value);
    }
    let cluster = builder.start().await;
    for role in roles.iter().filter(|role| **role != "alice") {
        cluster.primary().execute(&format!("CREATE ROLE {role} LOGIN")).await;
    }
    (cluster, maps)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_whom_postgresql_lets_them_be() {
    if only_kingpost() {
        return;
    }
    let authority = Authority::new();
    let server = authority.issue_server("server", &["localhost", "127.0.0.1"]);
    let path = |path: &Path| path.display().to_string();
    std::fs::set_permissions(authority.ca_file(), std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::set_permissions(authority.ca_file().parent().unwrap(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // The proxy connects without TLS, and is trusted; clients with TLS are mapped.
    let hba = "host all,replication postgres 127.0.0.1/32 trust\nhostnossl all all 127.0.0.1/32 trust\n\
               hostssl all all 127.0.0.1/32 cert map=corp\n";
    let (cert, key, ca) = (path(&server.cert), path(&server.key), path(&authority.ca_file()));
    let settings = [("ssl", "on"), ("ssl_cert_file", &*cert), ("ssl_key_file", &*key), ("ssl_ca_file", &*ca)];
    let (cluster, maps) = cluster(&settings, hba, &ROLES).await;
    let _logs = ShowLogs(cluster.dir());
    let read = "SELECT count(*) || ' ' || count(error) FROM pg_ident_file_mappings";
    assert_eq!(cluster.primary().query(read).await, format!("{} 0", MAPS.lines().count() - 1));
    let proxy = authority.issue("proxy", &["localhost", "127.0.0.1"]);
    let mut kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.ident_file", maps)
        .set("proxy.tls.mode", "require")
        .set("proxy.tls.cert_file", path(&proxy.cert))
        .set("proxy.tls.key_file", path(&proxy.key))
        .set("proxy.tls.ca_file", ca.clone())
        .set("proxy.tls.client_cert", "optional")
        .add(
            "proxy.hba",
            rule(&[
                ("type", "hostssl"),
                ("database", "all"),
                ("user", "all"),
                ("address", "127.0.0.1/32"),
                ("method", "cert map=corp"),
            ]),
        );
    for role in ROLES {
        kingpost = kingpost.add("proxy.users", user(role, "not asked for"));
    }
    let kingpost = kingpost.start().await;
    let mut let_in = Vec::new();
    for name in [
        "alice",
        "alice@example.com",
        "Alice@example.com",
        "with blank",
        "bob@example.org",
        "bob@example.org.evil",
        "ops-7",
        "no-ops-7",
        "xzy",
        "root",
        "no-group",
    ] {
        let shows = authority.issue(name, &[]);
        for role in ROLES {
            let conninfo = |port: u16| {
                format!(
                    "host=localhost hostaddr=127.0.0.1 port={port} dbname={DATABASE} user={role} sslmode=verify-full sslrootcert={ca} sslcert='{}' sslkey='{}'",
                    path(&shows.cert),
                    path(&shows.key)
                )
            };
            let what = format!("certificate {name:?} as {role}");
            let directly = who(&what, &psql(None, &conninfo(cluster.primary().port())));
            let through = who(&what, &psql(None, &conninfo(kingpost.port())));
            assert_eq!(through, directly, "{what}");
            if let Some(user) = through {
                assert_eq!(user, role);
                let_in.push(format!("{name} {role}"));
            }
        }
    }
    let expected = [
        "alice@example.com alice",
        "with blank bob",
        "bob@example.org bob",
        "ops-7 bob",
        "xzy pre_z_post",
        "root alice",
    ];
    assert_eq!(let_in, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn system_users_are_whom_postgresql_lets_them_be() {
    if only_kingpost() {
        return;
    }
    let dir = new_dir("sockets");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let directory = dir.display().to_string();
    let hba = "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n\
               local app all peer map=corp\nlocal all all peer\n";
    let (cluster, maps) = cluster(&[("unix_socket_directories", &directory)], hba, &ROLES).await;
    let _logs = ShowLogs(cluster.dir());
    cluster.primary().execute("CREATE DATABASE other").await;
    let port = Port::reserve();
    let socket = dir.join(format!(".s.PGSQL.{}", port.number()));
    let listen = rule(&[("address", &socket.display().to_string()), ("mode", "0777")]);
    let mut kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.ident_file", maps.clone())
        .add("proxy.listen", listen)
        .add(
            "proxy.hba",
            rule(&[("type", "local"), ("database", DATABASE), ("user", "all"), ("method", "peer map=corp")]),
        )
        .add("proxy.hba", rule(&[("type", "local"), ("database", "all"), ("user", "all"), ("method", "peer")]));
    for role in ROLES {
        kingpost = kingpost.add("proxy.users", user(role, "not asked for"));
    }
    let kingpost = kingpost.start().await;
    // Only root can become other users.
    let id = |flag: &str| String::from_utf8(Command::new("id").arg(flag).output().unwrap().stdout).unwrap();
    let uids: Vec<Option<u32>> = if id("-u").trim() == "0" { vec![None, Some(65534)] } else { vec![None] };
    let mut let_in = Vec::new();
    for uid in &uids {
        for role in ROLES {
            for database in [DATABASE, "other"] {
                let conninfo = |port: u16| format!("host={directory} port={port} dbname={database} user={role}");
                let what = format!("system user {uid:?} as {role} in {database}");
                let directly = who(&what, &psql(*uid, &conninfo(cluster.primary().port())));
                let through = who(&what, &psql(*uid, &conninfo(port.number())));
                assert_eq!(through, directly, "{what}");
                if through.is_some() {
                    let_in.push(format!("{uid:?} {role} {database}"));
                }
            }
        }
    }
    if uids.len() == 2 {
        assert_eq!(let_in, ["None alice app", "None root other", "Some(65534) bob app"]);
    }
    // A reload reads the file again: now this system user may be bob, too, and no longer the earlier user.
    let direct = |role: &str| format!("host={directory} port={} dbname={DATABASE} user={role}", port.number());
    let me = if uids.len() == 2 { "root".to_owned() } else { id("-un").trim().to_owned() };
    readable(Path::new(&maps), &format!("corp {me} bob\n"));
    kingpost.reload("proxy.login_timeout", "14s");
    cluster.wait("the new maps", async || psql(None, &direct("bob")).status.success().then_some(())).await;
    assert_eq!(who("alice by the new maps", &psql(None, &direct("alice"))), None);
    // A broken file changes nothing, and the log has its line; so has `check`.
    readable(Path::new(&maps), &format!("corp {me} alice\ncorp /( bob\n"));
    kingpost.reload("proxy.login_timeout", "13s");
    let log = || std::fs::read_to_string(kingpost.process().log()).unwrap_or_default();
    cluster.wait("the log to name the wrong line", async || log().contains("pg_ident.conf:2: ").then_some(())).await;
    assert_eq!(who("bob by the kept maps", &psql(None, &direct("bob"))).as_deref(), Some("bob"));
    assert_eq!(who("alice by the kept maps", &psql(None, &direct("alice"))), None);
    for (text, expected) in [(None, "pg_ident.conf:2: found the expression"), (Some("no such"), "found map=corp")] {
        if text.is_some() {
            readable(Path::new(&maps), "other root root\n");
        }
        let check = Kingpost::run(&["check", "--config", kingpost.config_path().to_str().unwrap()]);
        let said = String::from_utf8_lossy(&check.stderr).into_owned();
        assert!(check.status.code() == Some(3) && said.contains(expected), "{said}");
    }
}
