//! Method `gss`: tickets of two Kerberos realms; PostgreSQL itself and the proxy have the same keys and rules, and decide the same.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use kingpost_tests::raw::{Raw, message, startup};
use kingpost_tests::{
    Cluster, Kingpost, Port, Process, RunAs, SOON, ShowLogs, command, kingpost_bin, new_dir, pg_bin, within,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::only_kingpost;
use crate::ldap::{readable, table};

const REALMS: [&str; 2] = ["A.TEST", "B.TEST"];
/// Maps from principals of each realm to users of the database `two`.
const MAPS: &str = "m /^(.*)@B\\.TEST$ \\1\nm ann@A.TEST ben\n";
/// The rules, one for each database.
const RULES: [(&str, &str); 4] = [
    ("one", "gss include_realm=0 krb_realm=A.TEST"),
    ("two", "gss map=m"),
    ("three", "gss"),
    ("four", "gss include_realm=0"),
];
const ROLES: [&str; 4] = ["ann", "ben", "ann@A.TEST", "ann@B.TEST"];

/// A realm with its KDC.
struct Realm {
    name: &'static str,
    dir: PathBuf,
    _kdc: Process,
    _port: Port,
}

fn run(command: &mut Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).env("LC_ALL", "C.UTF-8");
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // A program that ends before it reads reports the reason by its status.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn succeed(command: &mut Command, input: &str) {
    let output = run(command, input);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Realm {
    /// Starts a realm with the principals `ann` and `ben`, and the keys of `postgres/localhost`, which are added to `keytab`.
    async fn start(name: &'static str, parent: &Path, keytab: &Path) -> Realm {
        let dir = parent.join(name);
        std::fs::create_dir(&dir).unwrap();
        let port = Port::reserve();
        let at = dir.display();
        let address = format!("127.0.0.1:{}", port.number());
        readable(
            &dir.join("krb5.conf"),
            &format!(
                "[libdefaults]\ndefault_realm = {name}\ndns_lookup_kdc = false\ndns_lookup_realm = false\nrdns = false\n\
                 dns_canonicalize_hostname = false\nudp_preference_limit = 1\n[realms]\n{name} = {{\nkdc = {address}\n}}\n\
                 [domain_realm]\nlocalhost = {name}\n"
            ),
        );
        readable(
            &dir.join("kdc.conf"),
            &format!(
                "[kdcdefaults]\nkdc_listen = \"\"\nkdc_tcp_listen = {address}\n[realms]\n{name} = {{\ndatabase_name = {at}/principal\n\
                 key_stash_file = {at}/stash\nacl_file = {at}/acl\n}}\n[logging]\nkdc = FILE:{at}/kdc.log\n"
            ),
        );
        let tool = |program: &str| {
            let mut tool = Command::new(program);
            tool.env("KRB5_CONFIG", dir.join("krb5.conf")).env("KRB5_KDC_PROFILE", dir.join("kdc.conf"));
            tool
        };
        succeed(tool("/usr/sbin/kdb5_util").args(["-r", name, "create", "-s", "-P", "master"]), "");
        let ktadd = format!("ktadd -k {} postgres/localhost", keytab.display());
        for query in ["addprinc -pw anns ann", "addprinc -pw bens ben", "addprinc -randkey postgres/localhost", &ktadd]
        {
            succeed(tool("/usr/sbin/kadmin.local").args(["-r", name, "-q", query]), "");
        }
        let mut kdc = command(Path::new("/usr/sbin/krb5kdc"), RunAs::Tests, "KILL");
        kdc.args(["-n", "-r", name])
            .env("KRB5_CONFIG", dir.join("krb5.conf"))
            .env("KRB5_KDC_PROFILE", dir.join("kdc.conf"));
        let kdc = Process::start("krb5kdc", kdc, &dir.join("out.log"));
        let realm = Realm { name, dir, _kdc: kdc, _port: port };
        kingpost_tests::wait_until("the KDC to give a ticket", SOON, parent, async || {
            realm.kinit("ann", "anns").then_some(())
        })
        .await;
        assert!(realm.kinit("ben", "bens"));
        realm
    }

    fn cache(&self, user: &str) -> String {
        format!("FILE:{}/cache-{user}", self.dir.display())
    }

    fn kinit(&self, user: &str, password: &str) -> bool {
        let mut kinit = Command::new("kinit");
        kinit.env("KRB5_CONFIG", self.dir.join("krb5.conf")).args(["-c", &self.cache(user), user]);
        run(&mut kinit, &format!("{password}\n")).status.success()
    }

    /// Makes a psql with this principal's tickets.
    fn psql(&self, principal: &str, port: u16, database: &str, user: &str, more: &str) -> Command {
        let conninfo = format!(
            "host=localhost hostaddr=127.0.0.1 port={port} dbname={database} user='{user}' krbsrvname=postgres sslmode=disable {more}"
        );
        let mut psql = Command::new(pg_bin().join("psql"));
        psql.args(["-X", "-A", "-t", "-c", "SELECT current_user || ' in ' || current_database()", "-d", &conninfo]);
        psql.env("KRB5_CONFIG", self.dir.join("krb5.conf")).env("KRB5CCNAME", self.cache(principal));
        psql.env("PGCONNECT_TIMEOUT", "60").current_dir("/");
        psql
    }
}

/// Returns the user of the login, or the last line of the error.
fn who(output: &Output) -> Result<String, String> {
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        return Ok(out.trim().to_owned());
    }
    let fatal = error.lines().find_map(|line| line.split_once("FATAL:  "));
    Err(fatal.unwrap_or_else(|| panic!("neither in nor refused: {error}")).1.to_owned())
}

/// Returns the token that psql sends to a server which asks for one: the test is that server.
async fn token_of(realm: &Realm, principal: &str, user: &str) -> Vec<u8> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut psql = tokio::process::Command::from(realm.psql(principal, port, "four", user, "gssencmode=disable"));
    let mut child =
        psql.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let (mut socket, _) = listener.accept().await.unwrap();
    let length = socket.read_u32().await.unwrap();
    let mut packet = vec![0; length as usize - 4];
    socket.read_exact(&mut packet).await.unwrap();
    socket.write_all(&[b'R', 0, 0, 0, 8, 0, 0, 0, 7]).await.unwrap();
    assert_eq!(socket.read_u8().await.unwrap(), b'p');
    let length = socket.read_u32().await.unwrap();
    let mut token = vec![0; length as usize - 4];
    socket.read_exact(&mut token).await.unwrap();
    drop(socket);
    child.wait().await.unwrap();
    token
}

/// Sends a token to the proxy; returns the kinds of the answered messages, and the error's code if there is one.
async fn show(port: u16, user: &str, token: &[u8]) -> (String, Option<String>) {
    let mut raw = Raw::connect(port).await;
    raw.send(&startup(3 << 16, &[("user", user), ("database", "four")])).await;
    let asked = raw.next().await.unwrap();
    assert_eq!((asked.kind, &*asked.body), (b'R', &[0, 0, 0, 7][..]));
    raw.send(&message(b'p', token)).await;
    let (mut kinds, mut code) = (String::new(), None);
    while let Some(answer) = raw.next().await {
        kinds.push(answer.kind as char);
        if answer.kind == b'E' {
            code = answer.field(b'C');
        }
        if answer.kind == b'Z' {
            break;
        }
    }
    (kinds, code)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kerberos_lets_in_whom_postgresql_lets_in_by_it() {
    if only_kingpost() {
        return;
    }
    let helper = kingpost_bin().with_file_name("kingpost-gss");
    assert!(helper.exists(), "no {}: build it (cargo build -p kingpost-gss)", helper.display());
    // The binary itself runs on machines without Kerberos.
    let libraries = Command::new(kingpost_bin()).env("LD_TRACE_LOADED_OBJECTS", "1").output().unwrap();
    let libraries = String::from_utf8_lossy(&libraries.stdout).into_owned();
    assert!(libraries.contains("libc.so") && !libraries.contains("gssapi"), "{libraries}");

    let dir = new_dir("gss");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let keytab = dir.join("keytab");
    let mut realms = Vec::new();
    for name in REALMS {
        realms.push(Realm::start(name, &dir, &keytab).await);
    }
    std::fs::set_permissions(&keytab, std::fs::Permissions::from_mode(0o644)).unwrap();
    let keys = format!("FILE:{}", keytab.display());
    let maps = dir.join("ident.conf");
    readable(&maps, MAPS);
    let maps = maps.display().to_string();

    // One cluster authenticates by itself; the proxy stands before another one, which trusts it.
    let mut lines = "host all,replication postgres 127.0.0.1/32 trust\n".to_owned();
    for (database, rule) in RULES {
        lines += &format!("host {database} all 127.0.0.1/32 {rule}\n");
    }
    let (direct, behind) = futures_util::future::join(
        Cluster::builder().hba(&lines).setting("krb_server_keyfile", &keys).setting("ident_file", &maps).start(),
        Cluster::builder().start(),
    )
    .await;
    let (_direct_logs, _behind_logs) = (ShowLogs(direct.dir()), ShowLogs(behind.dir()));
    for cluster in [&direct, &behind] {
        for role in ROLES {
            cluster.primary().execute(&format!("CREATE ROLE \"{role}\" LOGIN")).await;
        }
        for (database, _) in RULES {
            cluster.primary().execute(&format!("CREATE DATABASE {database}")).await;
        }
    }
    let proxy = |helper: &Path| {
        let mut proxy = Kingpost::of(&behind)
            .set("proxy.auth", "scram-sha-256")
            .set("proxy.ident_file", maps.clone())
            .set("proxy.gss.keytab", keys.clone())
            .set("proxy.gss.helper", helper.display().to_string());
        for (database, rule) in RULES {
            let fields = [
                ("type", "host"),
                ("database", database),
                ("user", "all"),
                ("address", "127.0.0.1/32"),
                ("method", rule),
            ];
            proxy = proxy.add("proxy.hba", table(&fields));
        }
        for role in ROLES {
            proxy = proxy.add("proxy.users", table(&[("name", role)]));
        }
        proxy
    };
    let kingpost = proxy(&helper).start().await;

    let mut let_in = 0;
    for realm in &realms {
        for principal in ["ann", "ben"] {
            for (database, _) in RULES {
                for user in ROLES {
                    let login = |port: u16| {
                        who(&run(&mut realm.psql(principal, port, database, user, "gssencmode=disable"), ""))
                    };
                    let (directly, through) = (login(direct.primary().port()), login(kingpost.port()));
                    let what = format!("{principal}@{} as {user} in {database}", realm.name);
                    assert_eq!(through, directly, "{what}");
                    let_in += usize::from(through.is_ok());
                    if let Ok(said) = through {
                        assert_eq!(said, format!("{user} in {database}"), "{what}");
                    }
                }
            }
        }
    }
    assert_eq!(let_in, 11, "as many as the rules and the maps allow");
    // libpq with tickets first asks for encryption by GSSAPI, which is denied.
    let login = realms[0].psql("ann", kingpost.port(), "one", "ann", "gssencmode=prefer");
    assert_eq!(who(&run(&mut { login }, "")), Ok("ann in one".into()));

    // A token is accepted once, even if it was seen on its way; no other bytes are.
    let token = token_of(&realms[0], "ann", "ann").await;
    let (kinds, code) = within("a login by a token", SOON, &dir, show(kingpost.port(), "ann", &token)).await;
    assert!(kinds.starts_with("RR") && kinds.ends_with('Z') && code.is_none(), "{kinds} {code:?}");
    let refused = ("E".to_owned(), Some("28000".to_owned()));
    assert_eq!(show(kingpost.port(), "ann", &token).await, refused, "a token that was shown before");
    let mut changed = token_of(&realms[0], "ann", "ann").await;
    let last = changed.len() - 20;
    changed[last] ^= 1;
    assert_eq!(show(kingpost.port(), "ann", &changed).await, refused, "a token that was changed");
    assert_eq!(show(kingpost.port(), "ann", &vec![0x60; 60_000]).await, refused, "60 kB of something else");
    let bens = token_of(&realms[0], "ben", "ann").await;
    let (kinds, code) = show(kingpost.port(), "ann", &bens).await;
    assert_eq!((kinds.as_str(), code.as_deref()), ("RE", Some("28000")), "ben's token");

    // Without a working helper nobody can log in: no program, no keys.
    let none = dir.join("no-such-program");
    let broken = proxy(&none).start().await;
    let unknown = Err("GSSAPI could not be asked about the token: try again".to_owned());
    assert_eq!(who(&run(&mut realms[0].psql("ann", broken.port(), "one", "ann", "gssencmode=disable"), "")), unknown);
    let keyless = proxy(&helper).set("proxy.gss.keytab", none.display().to_string()).start().await;
    assert_eq!(who(&run(&mut realms[0].psql("ann", keyless.port(), "one", "ann", "gssencmode=disable"), "")), unknown);
}
