#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::Path;

use super::check::Stat;
use super::schema;
use super::*;

const EXAMPLE: &str = include_str!("../../../docs/guide/kingpost.toml");

/// State of the password files in the table tests.
fn stat(path: &Path) -> Stat {
    match path.to_str() {
        Some("/good") => Stat::Readable { mode: 0o100_600, empty: false },
        Some("/open") => Stat::Readable { mode: 0o100_644, empty: false },
        Some("/empty") => Stat::Readable { mode: 0o100_600, empty: true },
        _ => Stat::Unreadable("No such file or directory (os error 2)".into()),
    }
}

fn load_text(text: &str, variables: &[(&str, &str)]) -> Loaded {
    parse("k.toml", text, variables.iter().map(|(name, value)| (name.into(), value.into())), &stat)
}

fn messages(text: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let loaded = load_text(text, variables);
    let errors = loaded.problems.iter().any(|problem| problem.severity == Severity::Error);
    assert_eq!(loaded.config.is_none(), errors, "a configuration with errors is not used: {text}");
    loaded.problems.iter().map(ToString::to_string).collect()
}

/// A file without problems, to which tests add one.
const GOOD: &str = "[proxy]\nauth = \"trust\"\n[[cluster.nodes]]\nname = \"a\"\naddress = \"127.0.0.1:5432\"\n";

#[test]
fn good() {
    assert_eq!(messages(GOOD, &[]), [""; 0]);
    assert_eq!(messages(EXAMPLE, &[]), [""; 0]);
}

/// Returns the README and every page of the guide, by path from the project's directory.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut directories = vec![root.join("docs/guide")];
    let mut files = vec![root.join("README.md")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => directories.push(path),
                false if path.extension().is_some_and(|extension| extension == "md") => files.push(path),
                false => {}
            }
        }
    }
    files.sort();
    let name = |path: &Path| path.strip_prefix(&root).unwrap().display().to_string();
    files.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

/// A token that may register and discover, for a registry's file.
const TOKEN: &str = concat!(
    "[[registry.tokens]]\nname = \"t\"\nrole = \"write\"\nnamespaces = [\"*\"]\nsha256 = \"",
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"\n"
);

/// The rest of a whole file for a printed piece, by the beginning of the piece.
const PIECES: [(&str, &str); 13] = [
    // A whole file, unlike others that begin with a table of the proxy's.
    ("[proxy.users", ""),
    ("[proxy.", GOOD),
    ("[[proxy.databases]]", GOOD),
    ("[[proxy.traffic]]", GOOD),
    ("[[cluster.relays]]", GOOD),
    ("[cluster.tls]", GOOD),
    ("[cluster]\n", "[proxy]\nauth = \"trust\"\n"),
    ("[console]", GOOD),
    ("[failover.etcd]", GOOD),
    ("[failover]\nengine = \"mysql\"\nreplication_user", GOOD),
    ("#:schema", GOOD),
    ("[registry", TOKEN),
    ("[[registry.eureka", TOKEN),
];

/// Every configuration in the README and the guide has no errors: as a whole file, or as a piece of one in a file that has the rest. The files that
/// the configurations name do not exist, and are reported.
#[test]
fn what_the_guide_prints_is_accepted() {
    let mut on_pages = BTreeSet::new();
    for (name, text) in pages() {
        for block in text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()) {
            on_pages.insert(name.clone());
            let rest = PIECES.iter().find(|(begin, _)| block.trim_start().starts_with(begin));
            let whole = format!("{block}{}", rest.map_or("", |(_, rest)| rest));
            let found = load_text(&whole, &[]).problems;
            let missing = |problem: &Problem| problem.to_string().contains("No such file or directory");
            let errors: Vec<String> = found
                .iter()
                .filter(|problem| problem.severity == Severity::Error && !missing(problem))
                .map(ToString::to_string)
                .collect();
            assert_eq!(errors, [""; 0], "{name}:\n{whole}");
        }
    }
    assert!(on_pages.len() >= 12, "{on_pages:?}");
}

/// A relay and failovers name servers, too: a file without a proxy still needs no users.
#[test]
fn a_file_without_a_proxy_needs_no_users() {
    let nodes = "[[cluster.nodes]]\nname = \"a\"\naddress = \"db:5432\"\n";
    let relay = "[relay]\nauth = \"trust\"\n[relay.upstream]\naddress = \"\"\nuser = \"u\"\n";
    let relays = "[[failover.relays]]\nname = \"r\"\naddress = \"r:1\"\n";
    for (what, text, good) in [
        ("a relay that finds its primary", format!("{relay}{nodes}"), true),
        ("failovers", format!("{nodes}{relays}"), true),
        ("a proxy", nodes.to_owned(), false),
        ("a proxy beside failovers", format!("[proxy]\nlisten = [\"127.0.0.1:1\"]\n{nodes}{relays}"), false),
    ] {
        let found = messages(&text, &[]);
        let users = found.iter().any(|found| found.contains("proxy.users: found no user"));
        assert_eq!(users, !good, "{what}: {found:?}");
        assert!(!good || load_text(&text, &[]).config.is_some(), "{what}: {found:?}");
    }
}

#[test]
fn golden_messages() {
    let cases: &[(&str, &[&str])] = &[
        // Syntax: all errors, and those that can still be found in the rest.
        (
            "[proxy]\nauth = \"trust\nworkers == 3\n[log]\nlevle = \"info\"\n",
            &[
                "k.toml:2:14: not TOML",
                "k.toml:3:10: not TOML",
                "k.toml:5:1: log.levle: unknown key; did you mean `level`?",
            ],
        ),
        // Keys and types: all at once.
        (
            "[proxy]\nwrokers = 1\nmax_clients = 0\nauth = \"scram\"\nlogin_timeout = 15\nlisten = \"127.0.0.1:1\"\n\
             [proxy.pool]\nsize = \"many\"\nmode = \"transactoin\"\nconnect_timeout = \"0s\"\n[cluster]\nnodes = [{name = 3}]\n[extra]\n",
            &[
                "k.toml:2:1: proxy.wrokers: unknown key; did you mean `workers`?",
                "k.toml:3:15: proxy.max_clients: found the integer 0, expected an integer from 1 to 1000000",
                "k.toml:4:8: proxy.auth: found \"scram\", expected \"trust\", \"scram-sha-256\", \"md5\", \"cert\", \"ldap\" or \"pam\"",
                "k.toml:5:17: proxy.login_timeout: found the integer 15, expected a duration above zero such as \"30s\", \"500ms\" or \"1h\"",
                "k.toml:6:10: proxy.listen: found \"127.0.0.1:1\", expected an array of addresses",
                "k.toml:8:8: proxy.pool.size: found \"many\", expected an integer from 1 to 10000",
                "k.toml:9:8: proxy.pool.mode: found \"transactoin\", expected \"transaction\", \"statement\" or \"session\"; did you mean \"transaction\"?",
                "k.toml:10:19: proxy.pool.connect_timeout: found \"0s\", expected a duration above zero such as \"30s\", \"500ms\" or \"1h\"",
                "k.toml:12:10: cluster.nodes[0].address: missing, expected a string",
                "k.toml:12:18: cluster.nodes[0].name: found the integer 3, expected a string",
                "k.toml:13:2: extra: unknown key, expected one of proxy, cluster, clusters, relay, failover, node, scale, registry, passwords, console, metrics, log",
            ],
        ),
        // Nodes from a registry.
        (
            "[proxy]\nauth = \"trust\"\n[cluster.from]\nurls = [\"127.0.0.1\", \"http://10.0.0.1:8632\"]\ntoken = \"t\"\nservice = \"\"\n",
            &[
                "k.toml:4:9: cluster.from.urls[0]: found \"127.0.0.1\", expected http://host:port or https://host:port",
                "k.toml:4:22: warning: cluster.from.urls[1]: the token crosses the network in clear: https:// would hide it",
                "k.toml:6:11: cluster.from.service: service name is missing",
            ],
        ),
        // Numbers that do not agree.
        (
            "[proxy]\nauth = \"trust\"\ngate.commit_durability = \"quorum(2)\"\n\
             [[proxy.databases]]\nname = \"shop\"\ncommit_durability = \"relay\"\n\
             [cluster]\nnodes = [{ name = \"a\", address = \"db:5432\" }]\n\
             relays = [{ name = \"r\", address = \"r:1\" }, { name = \"s\", address = \"s:1\" }]\n\
             [failover]\nacknowledgements = 2\n\
             relays = [{ name = \"r\", address = \"r:1\" }, { name = \"s\", address = \"s:1\" }]\n",
            &[
                "k.toml:6:21: warning: proxy.databases[0].commit_durability: found \"relay\", and failover.acknowledgements is 2: a commit could be lost at a failover that fewer relays have; expected as many",
                "k.toml:11:20: warning: failover.acknowledgements: found 2, with 2 relays: a failover needs all of them, so that with one lost nothing can be failed over; with 3 relays and 2 acknowledgements one may be lost at any time",
            ],
        ),
        (
            "[proxy]\nauth = \"trust\"\n[cluster]\nnodes = [{ name = \"a\", address = \"db:5432\" }]\n\
             [failover]\nacknowledgements = 1\n\
             relays = [{ name = \"r\", address = \"r:1\" }, { name = \"s\", address = \"s:1\" }]\n",
            &[
                "k.toml:6:20: warning: failover.acknowledgements: found 1, with 2 relays: a failover needs all of them, so that with one lost nothing can be failed over; with 3 relays and 2 acknowledgements one may be lost at any time",
            ],
        ),
        // Strong reads without relays, and some with too few.
        (
            "[proxy]\nauth = \"trust\"\nrouting.consistency = \"strong\"\n[cluster]\nnodes = [{ name = \"a\", address = \"db:5432\" }]\n",
            &[
                "k.toml:3:23: warning: proxy.routing.consistency: found \"strong\" without [[cluster.relays]]: a proxy that is cut off together with an old primary goes on answering strong reads from it after a failover, because there is nobody it could ask; with relays it asks them",
            ],
        ),
        (
            "[proxy]\nauth = \"trust\"\n[[proxy.databases]]\nname = \"shop\"\nconsistency = \"strong\"\n\
             [cluster]\nnodes = [{ name = \"a\", address = \"db:5432\" }]\nrelays = [{ name = \"r\", address = \"r:1\" }]\n\
             [failover]\nacknowledgements = 2\n\
             relays = [{ name = \"r\", address = \"r:1\" }, { name = \"s\", address = \"s:1\" }, { name = \"t\", address = \"t:1\" }]\n",
            &[
                "k.toml:8:10: warning: cluster.relays: found 1 of the relays, without \"s\" of [[failover.relays]]: a strong read asks those listed whether its primary was replaced, and a failover may be made with the others; expected all of them, by the same names",
                "k.toml:8:10: warning: cluster.relays: found 1 of the relays, without \"t\" of [[failover.relays]]: a strong read asks those listed whether its primary was replaced, and a failover may be made with the others; expected all of them, by the same names",
            ],
        ),
        (
            "",
            &[
                "k.toml:1:1: cluster.nodes: found no node, expected at least one [[cluster.nodes]]",
                "k.toml:1:1: proxy.users: found no user, expected at least one [[proxy.users]] with a password, for auth is \"scram-sha-256\"",
            ],
        ),
        // Values together: all at once.
        (
            "[proxy]\nauth = \"trust\"\nlisten = [\"0.0.0.0:6432\", \"/run/k.sock\", \"here\", \"127.0.0.1:0\", \"127.0.0.1:0\"]\n\
             routing.read_functions = [\"f\", \"a.b.c\"]\n\
             [[cluster.nodes]]\nname = \"a\"\naddress = \"db:5432\"\n\
             [[cluster.nodes]]\nname = \"a\"\naddress = \"db:0\"\n\
             [metrics]\nlisten = \"0.0.0.0:9632\"\n[log]\nlevel = \"info,proxy=loud\"\n",
            &[
                "k.toml:3:11: proxy.listen[0]: found \"0.0.0.0:6432\" with auth = \"trust\": anybody who reaches it would be let in; expected a loopback address or a Unix socket, or auth = \"scram-sha-256\"",
                "k.toml:3:42: proxy.listen[2]: found \"here\" without a port, expected host:port, [v6]:port, or the absolute path of a Unix socket",
                "k.toml:4:32: proxy.routing.read_functions[1]: found \"a.b.c\", expected a function as name or schema.name",
                "k.toml:9:8: cluster.nodes[1].name: found \"a\", which cluster.nodes[0] has already; expected a different one",
                "k.toml:10:11: cluster.nodes[1].address: found port 0 in \"db:0\", expected a port from 1 to 65535",
                "k.toml:12:10: metrics.listen: found \"0.0.0.0:9632\", which other machines can reach without a login; expected a loopback address, or metrics.allow_remote = true",
                "k.toml:14:9: log.level: found \"info,proxy=loud\", expected a level such as info, or a list of target=level",
            ],
        ),
        // Tracing and the upgrade socket.
        (
            "[proxy]\nauth = \"trust\"\nlisten = [\"/run/k.sock\"]\nupgrade_socket = \"/run/k.sock\"\n\
             tracing.endpoint = \"grpc://c:4317\"\n[[cluster.nodes]]\nname = \"a\"\naddress = \"db:5432\"\n\
             [metrics]\nprofiler_token = \"short\"\n",
            &[
                "k.toml:4:18: proxy.upgrade_socket: found \"/run/k.sock\", which is proxy.listen[0]; expected a path of its own",
                "k.toml:5:20: proxy.tracing.endpoint: found \"grpc://c:4317\", expected http://host:port or https://host:port of a collector that takes OTLP over gRPC",
                "k.toml:10:18: metrics.profiler_token: found fewer than 16 characters, expected a long random text",
            ],
        ),
        // A user by a directory, and passwords that cross the network in clear. The options are reported once, however many users have the method.
        (
            "[proxy]\nlisten = [\"0.0.0.0:6432\"]\nldap.options = \"ldapserver=h ldapbasedn=x ldapbindpasswd=s3cret\"\n\
             [[proxy.users]]\nname = \"a\"\nauth = \"ldap\"\n[[proxy.operators]]\nname = \"b\"\nauth = \"pam\"\n\
             [[cluster.nodes]]\nname = \"a\"\naddress = \"db:5432\"\n",
            &[
                "k.toml:3:16: warning: proxy.ldap.options: the method ldap sends passwords to the LDAP server in clear: expected ldaptls=1 or ldapscheme=ldaps",
                "k.toml:6:8: warning: proxy.users[0].auth: a login with the method ldap has clients send their passwords in clear, without TLS: expected [proxy.tls] with mode = \"require\"",
                "k.toml:9:8: warning: proxy.operators[0].auth: a login with the method pam has clients send their passwords in clear, without TLS: expected [proxy.tls] with mode = \"require\"",
            ],
        ),
        // Only methods with a password are warned of: a ticket is none.
        (
            "[proxy]\nhba = [{type = \"host\", database = \"all\", user = \"all\", address = \"10.0.0.0/8\", method = \"pam\"},\n\
             {type = \"host\", database = \"all\", user = \"all\", address = \"10.0.0.0/8\", method = \"gss\"}]\n\
             [[proxy.users]]\nname = \"a\"\n[[cluster.nodes]]\nname = \"a\"\naddress = \"db:5432\"\n",
            &[
                "k.toml:2:8: warning: proxy.hba[0]: a rule with the method pam has clients send their passwords in clear, without TLS: expected the type hostssl",
            ],
        ),
        (
            "[proxy]\npam.options = \"pamservice=a/b\"\n\
             [[proxy.users]]\nname = \"a\"\nauth = \"ldap\"\n[[proxy.users]]\nname = \"b\"\nauth = \"ldap\"\n\
             [[proxy.users]]\nname = \"c\"\nauth = \"pam\"\n[[proxy.hba]]\ntype = \"local\"\ndatabase = \"all\"\nuser = \"all\"\n\
             method = \"peer\"\n[[cluster.nodes]]\nname = \"a\"\naddress = \"db:5432\"\n",
            &[
                "k.toml:1:1: proxy.ldap.options: missing, and auth is \"ldap\": expected options as in a rule, ldapserver=HOST ldapbasedn=\"dc=example,dc=net\" for one",
                "k.toml:2:15: proxy.pam.options: found pamservice=a/b, expected the name of a file in /etc/pam.d: letters, digits, and any of \"-_.@\" behind the first",
                "k.toml:5:8: warning: proxy.users[0].auth: is not used: rules of who may come from where decide how everybody logs in",
                "k.toml:8:8: warning: proxy.users[1].auth: is not used: rules of who may come from where decide how everybody logs in",
                "k.toml:11:8: warning: proxy.users[2].auth: is not used: rules of who may come from where decide how everybody logs in",
            ],
        ),
        // Data for collectors. A header's value is never shown.
        (
            "[proxy]\nauth = \"trust\"\n[[cluster.nodes]]\nname = \"a\"\naddress = \"db:5432\"\n[metrics.otlp]\n\
             endpoint = \"http://c:4317\"\nheaders = [\"authorization: s3cret\", \"s3cret\"]\nca_file = \"ca.pem\"\n",
            &[
                "k.toml:8:11: metrics.otlp.headers: found some for a collector on another machine that is spoken to in clear; expected https:// in the endpoint",
                "k.toml:8:11: metrics.otlp.headers: found no colon in entry 1, expected \"name: value\"",
                "k.toml:9:11: warning: metrics.otlp.ca_file: and cert_file and key_file are not used: the endpoint is http://",
            ],
        ),
        (
            "[proxy]\nauth = \"trust\"\n[[cluster.nodes]]\nname = \"a\"\naddress = \"db:5432\"\n[metrics.otlp]\n\
             endpoint = \"http://c:4317\"\n",
            &[
                "k.toml:7:12: warning: metrics.otlp.endpoint: is on another machine: the metrics cross the network in clear",
            ],
        ),
        (
            "[proxy]\nauth = \"trust\"\nupgrade_socket = \"upgrade.sock\"\ntracing.ratio = 0.5\n\
             [[cluster.nodes]]\nname = \"a\"\naddress = \"db:5432\"\n",
            &[
                "k.toml:3:18: proxy.upgrade_socket: found \"upgrade.sock\", expected an absolute path of at most 107 bytes",
                "k.toml:4:17: warning: proxy.tracing.ratio: traces nothing without proxy.tracing.endpoint",
            ],
        ),
        // A registry's own file, and all its errors.
        ("[registry]\nauth = \"none\"\n", &[]),
        (
            "[registry]\nauth = \"none\"\nlisten = \"0.0.0.0:8632\"\nconsul_listen = \"here\"\nstore = \"oracle:s3cret\"\n\
             health.brake.service_share = 1.5\n",
            &[
                "k.toml:6:30: registry.health.brake.service_share: found the number 1.5, expected a number above 0, at most 1",
            ],
        ),
        (
            "[registry]\nauth = \"none\"\nlisten = \"0.0.0.0:8632\"\nconsul_listen = \"here\"\nstore = \"oracle:s3cret\"\n",
            &[
                "k.toml:3:10: registry.listen: found \"0.0.0.0:8632\" with auth = \"none\": anybody who reaches it could change everything; expected a loopback address, or auth = \"tokens\"",
                "k.toml:4:17: registry.consul_listen: found \"here\" without a port, expected host:port",
                "k.toml:5:9: registry.store: found another kind, expected sqlite:FILE, postgres://…, mysql://… or tikv://…",
            ],
        ),
        ("[registry]\nauth = \"none\"\nstore = \"tikv://pd/p\"\nkv.value_bytes = 1048576\n", &[]),
        ("[registry]\nauth = \"none\"\nstore = \"sqlite:f\"\nkv.value_bytes = 1048577\n", &[]),
        (
            "[registry]\nauth = \"none\"\nstore = \"tikv://pd/p\"\nkv.value_bytes = 1048577\n",
            &["k.toml:4:18: registry.kv.value_bytes: found 1048577, in TiKV at most 1048576"],
        ),
        (
            "[registry]\nauth = \"none\"\nstore = \"tikv://pd/p\"\nconfig.content_bytes = 1048577\n",
            &["k.toml:4:24: registry.config.content_bytes: found 1048577, in TiKV at most 1048576"],
        ),
        (
            "[registry]\nnode = \"n\"\n[[registry.tokens]]\nname = \"a\"\nsha256 = \"s3cret\"\nrole = \"read\"\nnamespaces = []\n",
            &[
                "k.toml:5:10: registry.tokens[0].sha256: expected 64 hexadecimal digits, as `kingpost registry token` prints them",
                "k.toml:7:14: registry.tokens[0].namespaces: found none, expected names of namespaces, or \"*\" for all",
            ],
        ),
        // Users. No password is ever shown.
        (
            "[[cluster.nodes]]\nname = \"a\"\naddress = \"db:5432\"\n\
             [[proxy.users]]\nname = \"none\"\n\
             [[proxy.users]]\nname = \"two\"\npassword = \"s3cret\"\npassword_file = \"/good\"\n\
             [[proxy.users]]\nname = \"lost\"\npassword_file = \"/lost\"\n\
             [[proxy.users]]\nname = \"open\"\npassword_file = \"/open\"\n\
             [[proxy.users]]\nname = \"empty\"\npassword_file = \"/empty\"\n\
             [[proxy.users]]\nname = \"bad\"\nverifier = \"md5s3cret\"\n\
             [[proxy.users]]\nname = \"bad\"\npassword = \"\"\n",
            &[
                "k.toml:4:1: proxy.users[0]: found no password, expected one of password, password_file, verifier, for auth is \"scram-sha-256\"",
                "k.toml:6:1: proxy.users[1]: found password and password_file, expected at most one of them",
                "k.toml:12:17: proxy.users[2].password_file: cannot read \"/lost\": No such file or directory (os error 2)",
                "k.toml:15:17: warning: proxy.users[3].password_file: \"/open\" has mode 644, everybody may use it; expected 600 or 640",
                "k.toml:18:17: proxy.users[4].password_file: found nothing in the first line of \"/empty\", expected a password",
                "k.toml:21:12: proxy.users[5].verifier: does not start with SCRAM-SHA-256$; expected SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key> or md5<hash> as in pg_authid",
                "k.toml:23:8: proxy.users[6].name: found \"bad\", which proxy.users[5] has already; expected a different one",
                "k.toml:24:12: proxy.users[6].password: found an empty string, expected a password",
            ],
        ),
        (
            "[[cluster.nodes]]\nname = \"a\"\naddress = \"db:5432\"\n\
             [[proxy.users]]\nname = \"good\"\npassword = \"s3cret\"\nsecrets = [\"s3cret one\", \"SCRAM-SHA-256$1:c2FsdA==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"]\n\
             [[proxy.users]]\nname = \"only\"\nsecrets = [\"s3cret\"]\n\
             [[proxy.users]]\nname = \"md5\"\npassword = \"s3cret\"\nsecrets = [\"md50123456789abcdef0123456789abcdef\"]\n\
             [[proxy.users]]\nname = \"empty\"\npassword = \"s3cret\"\nsecrets = [\"\"]\n\
             [[proxy.users]]\nname = \"salts\"\n\
             verifier = \"SCRAM-SHA-256$1:c2FsdA==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"\n\
             secrets = [\"SCRAM-SHA-256$2:c2FsdA==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"]\n\
             [[proxy.operators]]\nname = \"op\"\nsecrets = [\"SCRAM-SHA-256$s3cret\"]\n",
            &[
                "k.toml:14:11: proxy.users[2].secrets: found an MD5 verifier, which nobody can log in with by auth \"scram-sha-256\"; expected passwords or verifiers SCRAM-SHA-256$…",
                "k.toml:18:11: proxy.users[3].secrets: found an empty string, expected a password",
                "k.toml:22:11: proxy.users[4].secrets: two SCRAM verifiers have different salts or iteration counts, and a login can offer only one salt: give one of them, and the other password in clear text (password_file)",
                "k.toml:25:11: proxy.operators[0].secrets: expected SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey> or md5<hash> as in pg_authid",
            ],
        ),
        // TLS and certificates. Files are examined as the parts examine them.
        (
            "[proxy.tls]\nmode = \"require\"\ncert_file = \"/no/such.crt\"\nkey_file = \"/no/such.key\"\n\
             [cluster.tls]\nmode = \"verify-full\"\n\
             [[cluster.nodes]]\nname = \"a\"\naddress = \"db:5432\"\n\
             [[proxy.users]]\nname = \"a\"\nauth = \"cert\"\n\
             [[proxy.users]]\nname = \"b\"\nverifier = \"md50123456789abcdef0123456789abcdef\"\n\
             [[proxy.users]]\nname = \"c\"\nauth = \"md5\"\nverifier = \"md50123456789abcdef0123456789abcdef\"\n\
             [[proxy.users]]\nname = \"d\"\nauth = \"md5\"\n",
            &[
                "k.toml:3:13: proxy.tls.cert_file: cannot read cert_file /no/such.crt: No such file or directory (os error 2)",
                "k.toml:5:1: cluster.tls.ca_file: ca_file is missing: servers' certificates are verified with it (the system's CAs are in /etc/ssl/certs/ca-certificates.crt)",
                "k.toml:12:8: proxy.users[0].auth: found \"cert\", and no client is asked for a certificate; expected [proxy.tls] with a mode other than \"disable\", a ca_file, and a client_cert other than \"none\"",
                "k.toml:15:12: proxy.users[1].verifier: found one of MD5, which nobody can log in with by auth \"scram-sha-256\"; expected auth = \"md5\", or a verifier SCRAM-SHA-256$…",
                "k.toml:20:1: proxy.users[3]: found no password, expected one of password, password_file, verifier, for auth is \"md5\"",
            ],
        ),
        (
            "[proxy.tls]\nkey_file = \"/k\"\nca_file = \"/c\"\n[cluster.tls]\nca_file = \"/c\"\n[proxy]\nauth = \"trust\"\n\
             [[cluster.nodes]]\nname = \"a\"\naddress = \"db:5432\"\n",
            &[
                "k.toml:1:1: warning: proxy.tls.mode: is \"disable\": cert_file and key_file are not used",
                "k.toml:1:1: warning: proxy.tls.client_cert: is \"none\": ca_file is not used",
                "k.toml:4:1: warning: cluster.tls.mode: is \"disable\": ca_file and cert_file are not used",
            ],
        ),
        (
            "[proxy]\nauth = \"trust\"\n[proxy.gate]\ncommit_durability = \"relay\"\n[cluster]\npositions = \"none\"\n\
             [[cluster.nodes]]\nname = \"a\"\naddress = \"db:5432\"\n[[cluster.relays]]\nname = \"r\"\naddress = \"r:6442\"\n",
            &[
                "k.toml:4:21: proxy.gate.commit_durability: found \"relay\", and cluster.positions is \"none\": a commit would wait in vain; expected \"local\"",
                "k.toml:10:1: warning: cluster.relays: with cluster.positions = \"none\" servers are not asked for their log's positions: no commit can wait for a relay",
            ],
        ),
        // A relay's own file, and all its errors.
        ("[relay]\nauth = \"trust\"\n[relay.upstream]\naddress = \"db:5432\"\n", &[]),
        // The relay follows the primary of these nodes, and needs no [proxy] for that.
        ("[relay]\nauth = \"trust\"\n[[cluster.nodes]]\nname = \"a\"\naddress = \"db:5432\"\n", &[]),
        (
            "[relay]\nauth = \"trust\"\n[[cluster.nodes]]\nname = \"a\"\naddress = \"db\"\n[cluster.tls]\nmode = \"verify-ca\"\n",
            &[
                "k.toml:5:11: cluster.nodes[0].address: found \"db\" without a port, expected host:port, [v6]:port, or the absolute path of a Unix socket",
                "k.toml:6:1: cluster.tls.ca_file: ca_file is missing: servers' certificates are verified with it (the system's CAs are in /etc/ssl/certs/ca-certificates.crt)",
            ],
        ),
        (
            "[relay]\nauth = \"trust\"\nlisten = [\"0.0.0.0:6442\", \"/run/r\"]\nmax_bytes = 100000000\n\
             [relay.upstream]\naddress = \"db\"\nslot = \"A-b\"\npassword = \"x\"\npassword_file = \"/good\"\n",
            &[
                "k.toml:3:11: relay.listen[0]: found \"0.0.0.0:6442\" with auth = \"trust\": anybody who reaches it could read the write-ahead log; expected a loopback address, or auth = \"scram-sha-256\"",
                "k.toml:3:27: relay.listen[1]: found a path, expected host:port",
                "k.toml:4:13: relay.max_bytes: found 100000000, which is less than keep_bytes (1073741824)",
                "k.toml:5:1: relay.upstream: found password and password_file, expected at most one of them",
                "k.toml:6:11: relay.upstream.address: found \"db\" without a port, expected host:port, [v6]:port, or the absolute path of a Unix socket",
                "k.toml:7:8: relay.upstream.slot: found \"A-b\", expected 1 to 63 lower-case letters, digits and underscores, or \"\" for none",
            ],
        ),
        // The file of a host that only fetches from an archive.
        ("[relay.archive]\nurl = \"/srv/wal\"\n", &[]),
        (
            "[relay.archive]\nurl = \"/srv/wal\"\ninterval = \"10s\"\nalarm_after = \"10s\"\n",
            &[
                "k.toml:4:15: relay.archive.alarm_after: found 10s, expected more than interval (10s): the archive is behind for as long",
            ],
        ),
        (
            "[relay.archive]\nurl = \"/srv/wal\"\nkey_file = \"/good\"\ncompression = \"lz4\"\n[relay.backup]\nevery = \"1d\"\n",
            &[],
        ),
        (
            "[relay]\nlisten = []\n[relay.archive]\nurl = \"/srv/wal\"\n[relay.backup]\nevery = \"1d\"\nfrom = \"upstream\"\n[relay.upstream]\naddress = \"db1:5432\"\n",
            &[],
        ),
        (
            "[relay.archive]\nurl = \"/srv/wal\"\n[relay.backup]\nevery = \"1d\"\nfrom = \"upstream\"\n[[cluster.nodes]]\nname = \"db1\"\naddress = \"db1:5432\"\n",
            &[
                "k.toml:5:8: warning: relay.backup.from: names no server: found \"upstream\", expected one of db1; no backup is taken",
            ],
        ),
        (
            "[relay.backup]\nevery = \"1d\"\n",
            &["k.toml:1:1: warning: relay.backup: is not used: relay.archive.url names no archive"],
        ),
        (
            "[relay.archive]\nurl = \"/srv/wal\"\n[relay.backup]\nmax_rate = 1000\n",
            &[
                "k.toml:3:1: warning: relay.backup.every: is \"0s\": the other keys are not used",
                "k.toml:4:12: relay.backup.max_rate: found 1000, expected 0, or 32768 (32 KiB) to 1073741824 (1 GiB)",
            ],
        ),
        (
            "[relay.archive]\nurl = \"az://b\"\n",
            &[
                "k.toml:2:7: relay.archive.url: found \"az://b\", expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://ACCOUNT/CONTAINER/PREFIX or the absolute path of a directory",
            ],
        ),
        ("[relay.archive]\nurl = \"gs://b\"\nhost_identity = true\n", &[]),
        ("[relay.archive]\nurl = \"az://account/container/p\"\ncredentials_file = \"/good\"\n", &[]),
        (
            "[relay.archive]\nurl = \"az://account/c\"\ncredentials_file = \"/good\"\nendpoint = \"http://127.0.0.1:10000/account\"\n",
            &[],
        ),
        (
            "[relay.archive]\nurl = \"az://account/c\"\ncredentials_file = \"/good\"\nendpoint = \"http://azurite:10000/127.0.0.1:1\"\n",
            &[
                "k.toml:4:12: warning: relay.archive.endpoint: found \"http://azurite:10000/127.0.0.1:1\": WAL crosses the network in clear",
            ],
        ),
        (
            "[relay.archive]\nurl = \"gs://b\"\ncredentials = \"AKIA:hush\"\nhost_identity = true\n",
            &[
                "k.toml:3:15: relay.archive.credentials: the credentials are neither a service account's key (JSON) nor an access token",
                "k.toml:4:17: relay.archive.host_identity: found true, and credentials: expected one of them",
            ],
        ),
        (
            "[relay.archive]\nurl = \"s3://b/p\"\nendpoint = \"http://minio:9000\"\n",
            &[
                "k.toml:1:1: relay.archive: found no credentials, expected one of credentials, credentials_file and credentials_command, or host_identity = true",
                "k.toml:3:12: warning: relay.archive.endpoint: found \"http://minio:9000\": WAL crosses the network in clear",
            ],
        ),
        (
            "[relay.archive]\nurl = \"s3://b\"\nendpoint = \"minio\"\ncredentials = \"a:b\"\ncredentials_file = \"/good\"\n",
            &[
                "k.toml:1:1: relay.archive: found credentials and credentials_file, expected at most one of them",
                "k.toml:3:12: relay.archive.endpoint: found \"minio\", expected https://host:port",
            ],
        ),
        (
            "[registry]\nauth = \"acl\"\nlisten = \"0.0.0.0:8632\"\n[registry.acl]\ndefault_policy = \"allow\"\n",
            &[
                "k.toml:3:10: warning: registry.listen: other machines can reach it, and registry.acl.default_policy is \"allow\": whoever does may change everything but tokens and policies without a token",
                "k.toml:3:10: warning: registry.listen: other machines can reach it without TLS: tokens may cross the network in clear; [registry.tls] with mode = \"require\" keeps them",
            ],
        ),
        (
            "[registry]\nauth = \"none\"\npeer_listen = \"0.0.0.0:7000\"\nstore = \"postgres://db/r\"\n",
            &[
                "k.toml:3:15: warning: registry.peer_listen: what nodes on one store tell each other is authenticated, and crosses the network in clear; [registry.peer_tls] with mode = \"require\" hides it",
            ],
        ),
        // On SQLite no node is on another machine.
        ("[registry]\nauth = \"none\"\npeer_listen = \"0.0.0.0:7000\"\n", &[]),
        (
            "[registry]\nauth = \"none\"\n[registry.peer_tls]\nca_file = \"/c\"\n",
            &[
                "k.toml:3:1: warning: registry.peer_tls.mode: is \"disable\": cert_file, key_file and ca_file are not used",
            ],
        ),
        (
            "[registry]\nauth = \"none\"\n[registry.peer_tls]\nmode = \"require\"\nca_file = \"/c\"\n",
            &[
                "k.toml:3:1: registry.peer_tls.cert_file: cert_file is missing: a node needs a certificate, its key, and the CAs of the others' certificates",
            ],
        ),
        (
            "[relay]\nserve = \"written\"\nlisten = [\"0.0.0.0:6442\"]\n",
            &[
                "k.toml:1:1: relay.users: found no user, expected at least one [[relay.users]] with a password, for auth is \"scram-sha-256\"",
                "k.toml:3:11: warning: relay.listen[0]: found \"0.0.0.0:6442\" and [relay.tls] whose mode is not \"require\": WAL may cross the network in clear",
            ],
        ),
        (
            "[scale]\nleast = 4\nadd_at = 5\nprefix = \"db1\"\nwindow = \"2h\"\nremove = [\"/r\"]\n",
            &[
                "k.toml:1:1: scale: found no cluster.from.urls, expected the registry that lists the servers",
                "k.toml:1:1: scale.add: missing, expected a program and its arguments",
                "k.toml:1:1: scale.most: found 3, expected at least scale.least (4)",
                "k.toml:1:1: scale.remove_at: found 20, expected less than scale.add_at (5)",
                "k.toml:4:10: scale.prefix: found \"db1\", expected no digit before the number of a server",
                "k.toml:5:10: scale.window: found 7200s, expected at most 1000 times scale.interval",
            ],
        ),
        (
            "[[proxy.users]]\nname = \"a\"\npassword = 12345\n",
            &["k.toml:3:12: proxy.users[0].password: found an integer, expected a string"],
        ),
        (
            "[cluster]\npassword = \"s3cret\nname = 1\n",
            &["k.toml:2:19: not TOML", "k.toml:3:8: cluster.name: found the integer 1, expected a string"],
        ),
    ];
    for (text, expected) in cases {
        let found = messages(text, &[]);
        assert_eq!(found.len(), expected.len(), "{text}\n{found:#?}");
        for (found, expected) in found.iter().zip(*expected) {
            // The wording of a syntax error is the parser's.
            if expected.ends_with("not TOML") {
                assert!(found.starts_with(expected), "{text}\n{found}\n{expected}");
            } else {
                assert_eq!(found, expected, "{text}");
            }
        }
        for secret in ["s3cret", "12345", "0123456789abcdef"] {
            assert!(!found.concat().contains(secret), "{found:#?}");
        }
    }
}

#[test]
fn variables_override() {
    let loaded = load_text(
        GOOD,
        &[
            ("KINGPOST__PROXY__POOL__SIZE", "30"),
            ("KINGPOST__PROXY__LISTEN", "127.0.0.1:1, /run/k.sock"),
            ("KINGPOST__PROXY__ROUTING__READ_FUNCTIONS", "[\"f\"]"),
            ("KINGPOST__CLUSTER__NODES", "[{name = \"n\", address = \"db:1\", weight = 2}]"),
            ("KINGPOST__CLUSTER__PASSWORD", " keeps spaces "),
            ("KINGPOST__METRICS__ALLOW_REMOTE", "true"),
            ("KINGPOST__LOG__LEVEL", "debug"),
            ("KINGPOST_PG_BIN", "/elsewhere"),
            ("PATH", "/bin"),
        ],
    );
    let config = loaded.config.unwrap();
    assert_eq!(config.proxy.pool.size, 30);
    let listen: Vec<&str> = config.proxy.listen.iter().map(|listen| listen.address.as_str()).collect();
    assert_eq!(listen, ["127.0.0.1:1", "/run/k.sock"]);
    assert_eq!(config.proxy.routing.read_functions, ["f"]);
    assert_eq!((config.cluster.nodes.len(), config.cluster.nodes[0].weight), (1, 2));
    assert_eq!(config.cluster.password.as_deref(), Some(" keeps spaces "));
    assert!(config.metrics.allow_remote);
    assert_eq!(config.log.level, "debug");
}

#[test]
fn golden_messages_of_variables() {
    for (name, value, expected) in [
        ("KINGPOST__PROXY__POOL__SIZE", "x", "proxy.pool.size: found \"x\", expected an integer from 1 to 10000"),
        ("KINGPOST__PROXY__POOL__SISE", "1", "proxy.pool.sise: unknown key; did you mean `size`?"),
        ("KINGPOST__PROXY__POOL", "1", "proxy.pool: a whole table, expected the name of a key in it"),
        ("KINGPOST__LOG__LEVEL__X", "1", "log.level.x: unknown key: what is above it is not a table"),
        ("KINGPOST__CLUSTER__NODES", "a", "cluster.nodes: not TOML"),
        (
            "KINGPOST__PROXY__LISTEN",
            "127.0.0.1:1,b",
            "proxy.listen[1]: found \"b\" without a port, expected host:port, [v6]:port, or the absolute path of a Unix socket",
        ),
        ("KINGPOST__METRICS__ALLOW_REMOTE", "yes", "metrics.allow_remote: found \"yes\", expected true or false"),
    ] {
        let found = messages(GOOD, &[(name, value)]);
        let expected = format!("environment variable {name}: {expected}");
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].starts_with(&expected), "{}\n{expected}", found[0]);
    }
}

/// Returns the example with its commented keys (`#key`, without a space) in force.
fn uncommented() -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '[') => format!("{rest}\n"),
        _ => format!("{line}\n"),
    };
    EXAMPLE.lines().map(line).collect()
}

#[test]
fn the_example_shows_the_defaults() {
    let config = load_text(EXAMPLE, &[]).config.unwrap();
    let mut expected = Config::default();
    expected.cluster.nodes.clone_from(&config.cluster.nodes);
    expected.proxy.users.clone_from(&config.proxy.users);
    expected.relay.users.clone_from(&config.relay.users);
    expected.failover.relays.clone_from(&config.failover.relays);
    expected.registry.tokens.clone_from(&config.registry.tokens);
    expected.console.tokens.clone_from(&config.console.tokens);
    assert_eq!(config, expected);
    assert_eq!((config.cluster.nodes[0].weight, config.cluster.nodes.len()), (1, 1));
}

#[test]
fn the_example_has_every_key_and_each_is_explained() {
    let text = uncommented();
    let value: toml::Value = toml::from_str(&text).unwrap();
    Config::deserialize(value.clone()).unwrap();
    let mut missing = Vec::new();
    find_missing(&value, schema::ROOT, "", &mut missing);
    assert_eq!(missing, [""; 0]);
    // Each key has a comment above it, or follows a key of the same comment.
    let undefaulted: Vec<Problem> = load_text(&text, &[]).problems;
    // Expected problems of the example with every key at once: files do not exist, or are not used while TLS is off, and the lookup has a user while
    // it is off.
    let expected = |problem: &Problem| {
        let said = ["expected at most one of them", "not used"].iter().any(|words| problem.message.contains(words));
        said || problem.key.ends_with("_file")
            || problem.key.ends_with("_command")
            || problem.key == "proxy.auth_query.query"
    };
    assert!(undefaulted.iter().all(expected), "{undefaulted:#?}");
}

fn find_missing(value: &toml::Value, keys: &[Key], path: &str, missing: &mut Vec<String>) {
    for key in keys {
        let path = schema::join(path, key.name);
        match (value.get(key.name), key.kind) {
            // The keys of further clusters are described in [cluster].
            (None, _) if path.starts_with("clusters.") => {}
            (None, _) => missing.push(path),
            (Some(value), Kind::Table(keys)) => find_missing(value, keys, &path, missing),
            (Some(value), Kind::Tables(keys)) => find_missing(&value[0], keys, &path, missing),
            _ => {}
        }
    }
}

/// Every table of the schema is that of its type: serde names the fields that the type knows when it meets another one.
#[test]
fn the_schema_is_that_of_the_types() {
    fn visit(keys: &'static [Key], path: &str, opened: &str, count: &mut usize) {
        let text = format!("{opened}\nno_such_key = true");
        let error = toml::from_str::<Config>(&text).unwrap_err();
        let known = error.message().split_once("expected").unwrap().1.split('`').skip(1).step_by(2);
        let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
        assert_eq!(known.collect::<Vec<_>>(), names, "{text}");
        *count += 1;
        for key in keys {
            let path = schema::join(path, key.name);
            match key.kind {
                Kind::Table(inner) => visit(inner, &path, &format!("{opened}\n[{path}]"), count),
                Kind::Tables(inner) => visit(inner, &path, &format!("{opened}\n[[{path}]]"), count),
                _ => {}
            }
        }
    }
    let mut count = 0;
    visit(schema::ROOT, "", "", &mut count);
    assert!(count >= 50, "{count}");
}

#[test]
fn every_choice_is_one_of_the_type() {
    fn visit(keys: &'static [Key], path: &str, all: &mut Vec<(String, &'static [&'static str])>) {
        for key in keys {
            let path = schema::join(path, key.name);
            match key.kind {
                Kind::Choice(choices) => all.push((path, choices)),
                Kind::Table(keys) => visit(keys, &path, all),
                _ => {}
            }
        }
    }
    let mut all = Vec::new();
    visit(schema::ROOT, "", &mut all);
    assert!(all.len() >= 5);
    for (path, choices) in all {
        for choice in choices {
            let text = format!("{path} = \"{choice}\"");
            assert!(toml::from_str::<Config>(&text).is_ok(), "{text}");
        }
    }
}

#[test]
fn addresses_of_metrics() {
    for (address, remote, good) in [
        ("127.0.0.1:9700", false, true),
        ("[::1]:9700", false, true),
        ("0.0.0.0:9700", false, false),
        ("0.0.0.0:9700", true, true),
        ("db:9700", true, false),
    ] {
        let config = MetricsConfig { allow_remote: remote, ..MetricsConfig::default() };
        assert_eq!(config.permits("--metrics-listen", address).is_ok(), good, "{address}");
    }
}
