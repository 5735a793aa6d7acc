//! Method `ldap`: PostgreSQL itself and the proxy ask the same directory by the same rules, and decide the same.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kingpost_tests::certs::Authority;
use kingpost_tests::{Cluster, Kingpost, Port, Process, RunAs, ShowLogs, command, new_dir, skipped, wait_until};
use tokio_postgres::{Config, NoTls};
use toml::Table;

use crate::common::{only_kingpost, value};

const BASE: &str = "dc=example,dc=net";
const ROOT_PASSWORD: &str = "of-the-directory";
const FINDER_PASSWORD: &str = "of-the-finder";

/// Users of the directory: name, place, password. `twin` exists twice.
const USERS: [(&str, &str, &str); 5] = [
    ("alice", "people", "alices-own"),
    ("bob", "people", "bobs-own"),
    ("gone", "people", "gones-own"),
    ("twin", "people", "twins-own"),
    ("twin", "others", "twins-own"),
];

/// A real slapd on a port of its own.
struct Slapd {
    dir: PathBuf,
    plain: Port,
    tls: Port,
    process: Option<Process>,
}

impl Slapd {
    /// Starts the installed slapd; None, with a message, if there is none.
    async fn start(cluster: &Path, authority: &Authority) -> Option<Slapd> {
        if !Path::new("/usr/sbin/slapd").exists() {
            skipped("no slapd (scripts/setup test installs it)");
            return None;
        }
        let dir = new_dir("slapd");
        let pair = authority.issue("", &["127.0.0.1"]);
        std::fs::create_dir(dir.join("db")).unwrap();
        let at = dir.display();
        let (cert, key, ca) = (pair.cert.display(), pair.key.display(), authority.ca_file());
        let conf = format!(
            "include /etc/ldap/schema/core.schema\ninclude /etc/ldap/schema/cosine.schema\n\
             include /etc/ldap/schema/inetorgperson.schema\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\npidfile {at}/pid\n\
             TLSCACertificateFile {}\nTLSCertificateFile {cert}\nTLSCertificateKeyFile {key}\n\
             database mdb\nmaxsize 10485760\nsuffix \"{BASE}\"\ndirectory {at}/db\nrootdn \"cn=admin,{BASE}\"\nrootpw {ROOT_PASSWORD}\n\
             access to filter=(employeeType=disabled) attrs=userPassword by * none\n\
             access to attrs=userPassword by anonymous auth by * none\n\
             access to * by dn.exact=\"cn=finder,{BASE}\" read by * none\n",
            ca.display()
        );
        std::fs::write(dir.join("slapd.conf"), conf).unwrap();
        let mut entries = format!(
            "dn: {BASE}\nobjectClass: dcObject\nobjectClass: organization\no: example\ndc: example\n\n\
             dn: cn=finder,{BASE}\nobjectClass: person\ncn: finder\nsn: f\nuserPassword: {FINDER_PASSWORD}\n\n"
        );
        for place in ["people", "others"] {
            entries += &format!("dn: ou={place},{BASE}\nobjectClass: organizationalUnit\nou: {place}\n\n");
        }
        for (user, place, password) in USERS {
            entries += &format!(
                "dn: uid={user},ou={place},{BASE}\nobjectClass: inetOrgPerson\nuid: {user}\ncn: {user}\nsn: {user}\n\
                 mail: {user}@example.net\nuserPassword: {password}\n\n"
            );
        }
        std::fs::write(dir.join("entries.ldif"), entries).unwrap();
        let added = Command::new("/usr/sbin/slapadd")
            .args(["-f", "slapd.conf", "-l", "entries.ldif"])
            .current_dir(&dir)
            .output();
        let added = added.unwrap();
        assert!(added.status.success(), "slapadd: {}", String::from_utf8_lossy(&added.stderr));
        let mut slapd = Slapd { dir, plain: Port::reserve(), tls: Port::reserve(), process: None };
        slapd.run(cluster).await;
        Some(slapd)
    }

    async fn run(&mut self, logs: &Path) {
        let mut slapd = command(Path::new("/usr/sbin/slapd"), RunAs::Tests, "KILL");
        let (plain, tls) = (self.plain.number(), self.tls.number());
        slapd.args(["-h", &format!("ldap://127.0.0.1:{plain}/ ldaps://127.0.0.1:{tls}/"), "-d", "0", "-f"]);
        slapd.arg(self.dir.join("slapd.conf")).stdin(Stdio::null());
        self.process = Some(Process::start("slapd", slapd, &self.dir.join("slapd.log")));
        wait_until("slapd to listen", kingpost_tests::SOON, logs, async || {
            tokio::net::TcpStream::connect(("127.0.0.1", plain)).await.ok()
        })
        .await;
    }

    fn signal(&self, number: i32) {
        self.process.as_ref().unwrap().signal(number);
    }

    /// Changes an entry as the directory's administrator.
    fn modify(&self, change: &str) {
        let file = self.dir.join("change.ldif");
        std::fs::write(&file, change).unwrap();
        let url = format!("ldap://127.0.0.1:{}", self.plain.number());
        let admin = format!("cn=admin,{BASE}");
        let output = Command::new("ldapmodify")
            .args(["-x", "-H", &url, "-D", &admin, "-w", ROOT_PASSWORD, "-f"])
            .arg(file)
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "ldapmodify: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Logs in over a Unix socket: returns the user's name, or the error's code.
pub(crate) async fn who(
    directory: &Path,
    port: u16,
    database: &str,
    user: &str,
    password: &str,
) -> Result<String, String> {
    let mut config = Config::new();
    config.host_path(directory).port(port).dbname(database).user(user).password(password);
    who_is(&config).await
}

/// Logs in: returns the user's name, or the error's code and text.
pub(crate) async fn who_is(config: &Config) -> Result<String, String> {
    match config.connect(NoTls).await {
        Ok((client, connection)) => {
            let task = tokio::spawn(connection);
            let name = value(&client, "SELECT current_user").await;
            task.abort();
            Ok(name)
        }
        Err(error) => match error.as_db_error() {
            Some(said) => Err(format!("{} {}", said.code().code(), said.message())),
            None => panic!("{config:?}: neither in nor refused: {error}"),
        },
    }
}

pub(crate) fn readable(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
}

pub(crate) fn table(fields: &[(&str, &str)]) -> Table {
    fields.iter().map(|(name, value)| ((*name).to_owned(), toml::Value::from(*value))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_lets_in_whom_postgresql_lets_in_by_it() {
    if only_kingpost() {
        return;
    }
    let (authority, stranger) = (Authority::new(), Authority::new());
    let dir = new_dir("ldap");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let Some(mut slapd) = Slapd::start(&dir, &authority).await else { return };
    let (plain, tls) = (slapd.plain.number(), slapd.tls.number());
    let server = format!("ldapserver=127.0.0.1 ldapport={plain}");
    let finder = format!("ldapbinddn=\"cn=finder,{BASE}\" ldapbindpasswd={FINDER_PASSWORD}");
    // A database for each way. No server listens at 127.0.0.2.
    let ways = [
        ("simple", format!("{server} ldapprefix=\"uid=\" ldapsuffix=\",ou=people,{BASE}\"")),
        (
            "second",
            format!(
                "ldapserver=\"127.0.0.2 127.0.0.1\" ldapport={plain} ldapprefix=\"uid=\" ldapsuffix=\",ou=people,{BASE}\""
            ),
        ),
        ("search", format!("{server} ldapbasedn=\"{BASE}\" {finder}")),
        ("attribute", format!("{server} ldapbasedn=\"{BASE}\" {finder} ldapsearchattribute=mail")),
        (
            "filter",
            format!("{server} ldapbasedn=\"{BASE}\" {finder} ldapsearchfilter=\"(|(uid=$username)(mail=$username))\""),
        ),
        ("url", format!("ldapurl=\"ldap://127.0.0.1:{plain}/ou=people,{BASE}?uid?sub\" {finder}")),
        ("unscoped", format!("ldapurl=\"ldap://127.0.0.1:{plain}/ou=people,{BASE}?uid\" {finder}")),
        ("base", format!("ldapurl=\"ldap://127.0.0.1:{plain}/uid=alice,ou=people,{BASE}?uid?base\" {finder}")),
        ("anonymous", format!("{server} ldapbasedn=\"{BASE}\"")),
        ("passed", format!("{server} ldapbasedn=\"{BASE}\" {finder}")),
    ];
    let lines: String =
        ways.iter().map(|(database, options)| format!("local {database} all ldap {options}\n")).collect();
    let hba = format!(
        "host passed all 127.0.0.1/32 scram-sha-256\nhost all,replication all 127.0.0.1/32 trust\n{lines}local all all trust\n"
    );
    let cluster =
        Cluster::builder().hba(&hba).setting("unix_socket_directories", &dir.display().to_string()).start().await;
    let _logs = ShowLogs(cluster.dir());
    let roles = ["alice", "bob", "gone", "twin", "nobody", "a*b", "alice@example.net"];
    for role in roles {
        let verb = if role == "alice" { "ALTER" } else { "CREATE" };
        let secret = USERS.iter().find(|(user, ..)| *user == role).map_or("unused", |(.., password)| password);
        cluster.primary().execute(&format!("{verb} ROLE \"{role}\" LOGIN PASSWORD '{secret}'")).await;
    }
    for (database, _) in &ways {
        cluster.primary().execute(&format!("CREATE DATABASE {database}")).await;
    }
    // With TLS only the proxy is asked: the CAs of PostgreSQL's library are a setting of the system.
    let more = format!(
        "local all bob ldap ldapserver=127.0.0.1 ldapport={plain} ldaptls=1 ldapprefix=\"uid=\" ldapsuffix=\",ou=people,{BASE}\"\n\
         local all alice ldap ldapserver=127.0.0.1 ldapport={tls} ldapscheme=ldaps ldapprefix=\"uid=\" ldapsuffix=\",ou=people,{BASE}\"\n\
         local all other scram-sha-256\n"
    );
    let file = dir.join("rules");
    readable(&file, &format!("{lines}{more}"));
    cluster.primary().execute("CREATE ROLE other LOGIN").await;
    let port = Port::reserve();
    let socket = dir.join(format!(".s.PGSQL.{}", port.number()));
    let mut kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.hba_file", file.display().to_string())
        .set("proxy.ldap.timeout", "3s")
        .set("proxy.ldap.ca_file", authority.ca_file().display().to_string())
        .add("proxy.listen", table(&[("address", &socket.display().to_string()), ("mode", "0777")]))
        .add("proxy.users", table(&[("name", "other"), ("password", "of-other")]));
    for role in roles {
        kingpost = kingpost.add("proxy.users", table(&[("name", role)]));
    }
    let kingpost = kingpost.start().await;
    let (direct, proxied) = (cluster.primary().port(), port.number());
    let mut let_in = Vec::new();
    let decide = async |database: &str, role: &str, password: &str| {
        let directly = who(&dir, direct, database, role, password).await;
        let through = who(&dir, proxied, database, role, password).await;
        let what = format!("{role:?} in {database} with {password:?}");
        assert_eq!(through, directly, "{what}");
        through
    };
    for (database, _) in &ways {
        for role in roles {
            let own = USERS.iter().find(|(user, ..)| role.starts_with(user)).map_or("some", |(.., password)| password);
            for password in [own, "wrong"] {
                match decide(database, role, password).await {
                    Ok(name) => {
                        assert_eq!((name.as_str(), password), (role, own));
                        let_in.push(format!("{database} {role}"));
                    }
                    Err(said) => assert!(said.starts_with("28000 LDAP authentication failed"), "{said}"),
                }
            }
        }
        // A directory would take this for an anonymous bind, and report success.
        let said = decide(database, "alice", "").await.unwrap_err();
        assert!(said.starts_with("28P01"), "{said}");
    }
    let expected = [
        "simple alice",
        "simple bob",
        "simple gone",
        "simple twin",
        "second alice",
        "second bob",
        "second gone",
        "second twin",
        "search alice",
        "search bob",
        "search gone",
        "attribute alice@example.net",
        "filter alice",
        "filter bob",
        "filter gone",
        "filter alice@example.net",
        "url alice",
        "url bob",
        "url gone",
        "url twin",
        "unscoped alice",
        "unscoped bob",
        "unscoped gone",
        "unscoped twin",
        "base alice",
        "passed alice",
        "passed bob",
        "passed gone",
    ];
    assert_eq!(let_in, expected);

    // The directory disables one user only.
    slapd.modify(&format!(
        "dn: uid=gone,ou=people,{BASE}\nchangetype: modify\nadd: employeeType\nemployeeType: disabled\n"
    ));
    for database in ["simple", "search"] {
        assert!(decide(database, "gone", "gones-own").await.is_err());
        assert_eq!(decide(database, "bob", "bobs-own").await.as_deref(), Ok("bob"));
    }

    // TLS, from the start or by StartTLS, only to a server with a certificate of the CA.
    for (user, password) in [("bob", "bobs-own"), ("alice", "alices-own")] {
        assert_eq!(who(&dir, proxied, "postgres", user, password).await.as_deref(), Ok(user));
        assert!(who(&dir, proxied, "postgres", user, "wrong").await.is_err());
    }
    kingpost.reload("proxy.ldap.ca_file", stranger.ca_file().display().to_string());
    let says = "08006 the LDAP server could not be asked about the password: try again";
    for (user, password) in [("bob", "bobs-own"), ("alice", "alices-own")] {
        let refused = async || who(&dir, proxied, "postgres", user, password).await.err().filter(|said| said == says);
        cluster.wait("the other CA to count", refused).await;
    }

    // A stopped server, and a killed one: an error for its users, no effect on others; and it comes back.
    let mut open = Config::new();
    open.host_path(&dir).port(proxied).dbname("simple").user("alice").password("alices-own");
    let (client, connection) = open.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    for number in [libc::SIGSTOP, libc::SIGKILL] {
        slapd.signal(number);
        let (asking, other) = tokio::join!(
            who(&dir, proxied, "search", "alice", "alices-own"),
            who(&dir, proxied, "postgres", "other", "of-other")
        );
        assert_eq!(asking.unwrap_err(), says);
        assert_eq!(other.as_deref(), Ok("other"));
        assert_eq!(value(&client, "SELECT current_user").await, "alice");
        if number == libc::SIGSTOP {
            slapd.signal(libc::SIGCONT);
        } else {
            slapd.process = None;
            slapd.run(&dir).await;
        }
        cluster
            .wait("the directory to be asked again", async || {
                who(&dir, proxied, "search", "alice", "alices-own").await.ok()
            })
            .await;
        assert!(who(&dir, proxied, "search", "alice", "wrong").await.is_err());
    }

    // No log has a password, and an error in a rule is reported without the rule's password.
    readable(
        &file,
        &format!("{lines}local x all ldap {server} ldapbasedn=x ldapprefix=y ldapbindpasswd={FINDER_PASSWORD}\n"),
    );
    kingpost.reload("proxy.login_timeout", "13s");
    let log = || std::fs::read_to_string(kingpost.process().log()).unwrap_or_default();
    cluster.wait("the log to name the wrong line", async || log().contains("rules:11: ").then_some(())).await;
    let check = Kingpost::run(&["check", "--config", kingpost.config_path().to_str().unwrap()]);
    let said = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(check.status.code() == Some(3) && said.contains("rules:11: found ldapprefix"), "{said}");
    for (text, what) in [(log(), "the log"), (said, "what check says")] {
        for secret in [ROOT_PASSWORD, FINDER_PASSWORD, "alices-own", "bobs-own", "gones-own", "twins-own"] {
            assert!(!text.contains(secret), "{what} has {secret}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_user_logs_in_by_a_directory_without_rules() {
    if only_kingpost() {
        return;
    }
    let authority = Authority::new();
    let dir = new_dir("ldap-user");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let Some(slapd) = Slapd::start(&dir, &authority).await else { return };
    let cluster = Cluster::builder().hba("host all,replication all 127.0.0.1/32 trust\n").start().await;
    let _logs = ShowLogs(cluster.dir());
    // `alice` exists already.
    for role in ["bob", "gone", "twin"] {
        cluster.primary().execute(&format!("CREATE ROLE {role} LOGIN")).await;
    }
    for database in ["one", "two"] {
        cluster.primary().execute(&format!("CREATE DATABASE {database}")).await;
    }
    let port = Port::reserve();
    let socket = dir.join(format!(".s.PGSQL.{}", port.number()));
    let options = |more: &str| {
        format!(
            "ldapserver=127.0.0.1 ldapport={} ldapbasedn=\"{BASE}\" ldapbinddn=\"cn=finder,{BASE}\" ldapbindpasswd={FINDER_PASSWORD}{more}",
            slapd.plain.number()
        )
    };
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.ldap.options", options(""))
        .set("proxy.ldap.timeout", "3s")
        .add("proxy.listen", table(&[("address", &socket.display().to_string()), ("mode", "0777")]))
        .add("proxy.users", table(&[("name", "alice"), ("auth", "ldap")]))
        // Its password here is for servers.
        .add("proxy.users", table(&[("name", "gone"), ("auth", "ldap"), ("password", "for-servers")]))
        .add("proxy.users", table(&[("name", "bob"), ("password", "bobs-scram")]))
        .add("proxy.operators", table(&[("name", "gone"), ("auth", "ldap")]))
        .start()
        .await;
    let proxied = port.number();
    let who = async |database: &str, user: &str, password: &str| who(&dir, proxied, database, user, password).await;
    for database in ["one", "two"] {
        for (user, password, refused) in [
            ("alice", "alices-own", None),
            ("alice", "wrong", Some("28000 LDAP authentication failed")),
            ("alice", "bobs-own", Some("28000 LDAP authentication failed")),
            ("alice", "bobs-scram", Some("28000 LDAP authentication failed")),
            ("alice", "", Some("28P01")),
            ("gone", "gones-own", None),
            ("gone", "for-servers", Some("28000 LDAP authentication failed")),
            ("bob", "bobs-scram", None),
            ("bob", "bobs-own", Some("28P01")),
            ("bob", "alices-own", Some("28P01")),
            // The directory is not asked about unlisted users.
            ("twin", "twins-own", Some("28P01")),
        ] {
            let came = who(database, user, password).await;
            match (&came, refused) {
                (Ok(name), None) => assert_eq!(name, user),
                (Err(said), Some(expected)) => assert!(said.starts_with(expected), "{user} {password:?}: {said}"),
                _ => panic!("{user} with {password:?} in {database}: {came:?}, expected {refused:?}"),
            }
        }
    }
    // The same for an operator, and only under its own name.
    let operate = async |password: &str| {
        let mut config = Config::new();
        config.host_path(&dir).port(proxied).dbname("kingpost").user("gone").password(password);
        config
            .connect(NoTls)
            .await
            .map(drop)
            .map_err(|error| error.as_db_error().map(|said| said.code().code().to_owned()))
    };
    assert_eq!(operate("gones-own").await, Ok(()));
    for password in ["for-servers", "alices-own"] {
        assert_eq!(operate(password).await, Err(Some("28000".to_owned())));
    }

    // Without the directory alice has to log in again, and bob is not affected.
    slapd.signal(libc::SIGSTOP);
    let (alice, bob) = tokio::join!(who("one", "alice", "alices-own"), who("two", "bob", "bobs-scram"));
    slapd.signal(libc::SIGCONT);
    assert_eq!(alice.unwrap_err(), "08006 the LDAP server could not be asked about the password: try again");
    assert_eq!(bob.as_deref(), Ok("bob"));

    // Invalid options are refused as a whole, and no message has the password among them.
    kingpost.reload("proxy.ldap.options", options(" ldapprefix=x"));
    let log = || std::fs::read_to_string(kingpost.process().log()).unwrap_or_default();
    let says = "proxy.ldap.options: found ldapprefix";
    cluster.wait("the log to name what is wrong", async || log().contains(says).then_some(())).await;
    assert_eq!(who("one", "alice", "alices-own").await.as_deref(), Ok("alice"));
    let check = Kingpost::run(&["check", "--config", kingpost.config_path().to_str().unwrap()]);
    let said = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(check.status.code() == Some(3) && said.contains(says), "{said}");

    // All users without a method of their own log in by the directory.
    kingpost.reload("proxy.ldap.options", options(""));
    kingpost.reload("proxy.auth", "ldap");
    cluster.wait("bob to be asked about", async || who("two", "bob", "bobs-own").await.ok()).await;
    assert!(who("two", "bob", "bobs-scram").await.unwrap_err().starts_with("28000 LDAP authentication failed"));
    for (text, what) in [(log(), "the log"), (said, "what check says")] {
        for secret in [FINDER_PASSWORD, "alices-own", "bobs-own", "bobs-scram", "gones-own", "for-servers"] {
            assert!(!text.contains(secret), "{what} has {secret}");
        }
    }
}
