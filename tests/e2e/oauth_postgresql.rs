//! Method `oauth`: PostgreSQL 18 itself and the proxy, with the same rules and tokens of the same providers, answer the same, byte by byte. A library
//! tells PostgreSQL which tokens are valid; the test tells the library.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use kingpost_tests::certs::Authority;
use kingpost_tests::raw::{Message, Raw, message, query, startup};
use kingpost_tests::{Cluster, Kingpost, ShowLogs, new_dir, pg_bin, skipped};
use serde_json::Value;

use crate::common::only_kingpost;
use crate::ldap::{readable, table};
use crate::oauth_provider::{Application, Provider};

/// True if the servers know the method `oauth`; otherwise prints a message.
fn is_there() -> bool {
    let said = Command::new(pg_bin().join("postgres")).arg("--version").output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let version = said.split_whitespace().nth(2).and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    let is_there = version.is_some_and(|version| version >= 18);
    if !is_there {
        skipped("PostgreSQL 18 is needed (PG_BIN, tests/postgresql/setup prints it)");
    }
    is_there
}

/// Compiles the library.
fn validator(dir: &Path) -> String {
    let library = dir.join("validator.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("postgresql/validator.c");
    let mut cc = Command::new("cc");
    let made = cc.args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).output();
    let made = made.expect("cc runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    library.display().to_string()
}

/// Makes the first message with a token, with this announced length of the response.
fn chosen(mechanism: &str, length: i32, response: &[u8]) -> Vec<u8> {
    message(b'p', &[mechanism.as_bytes(), &[0], &length.to_be_bytes(), response].concat())
}

fn first(response: &[u8]) -> Vec<u8> {
    chosen("OAUTHBEARER", response.len().try_into().unwrap(), response)
}

fn bearer(token: &str) -> Vec<u8> {
    format!("n,,\x01auth=Bearer {token}\x01\x01").into_bytes()
}

/// Returns the server's messages to these client messages, up to the end of the login; of an error its machine-readable part.
async fn talk(port: u16, database: &str, user: &str, says: &[Vec<u8>]) -> Vec<String> {
    let mut raw = Raw::connect(port).await;
    raw.send(&startup(3 << 16, &[("user", user), ("database", database)])).await;
    let mut says = says.iter();
    let mut said = Vec::new();
    while let Some(message) = raw.next().await {
        let goes_on = message.kind == b'R' && message.body[..4] != [0; 4];
        said.push(shown(&message));
        if !goes_on {
            break;
        }
        match says.next() {
            Some(next) => raw.send(next).await,
            None => {
                said.push("the client goes".into());
                return said;
            }
        }
    }
    assert!(!said.is_empty(), "nothing was said");
    let closed = !said.last().unwrap().starts_with('E') || raw.next().await.is_none();
    assert!(closed, "the connection stays open: {said:?}");
    said
}

/// Renders a server's message: all of it, but of an error only the machine-readable part. The presence of a detail is compared, not its wording.
fn shown(message: &Message) -> String {
    let kind = char::from(message.kind);
    if message.kind == b'E' {
        let fields = [b'S', b'V', b'C', b'M', b'H'].map(|code| message.field(code));
        let detail = message.field(b'D').is_some();
        return format!("E {fields:?}{}", if detail { " and a detail" } else { "" });
    }
    format!("{kind} {}", message.body.escape_ascii())
}

/// Both servers, with two providers.
struct Scene {
    providers: [Provider; 2],
    application: Application,
    oracle: Cluster,
    cluster: Cluster,
    kingpost: Kingpost,
    differences: std::cell::RefCell<Vec<String>>,
}

impl Scene {
    async fn start() -> Scene {
        let authority = Authority::new();
        let (one, two) = tokio::join!(Provider::secure("RS256", &authority), Provider::secure("ES256", &authority));
        let application = Application::start(&authority).await;
        let dir = new_dir("oauth");
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        let rule = |database: &str, issuer: &Provider, more: &str| {
            format!("host {database} all 127.0.0.1/32 oauth issuer=\"{}\" scope=\"{more}\n", issuer.url)
        };
        let rules = rule("one", &one, "db\"") + &rule("two", &two, "mail db\" map=corp");
        readable(&dir.join("rules"), &rules);
        // bob at the provider is alice here.
        readable(&dir.join("maps"), "corp bob alice\n");
        let maps = dir.join("maps").display().to_string();
        let oracle = Cluster::builder()
            .hba(&(rules + "host all,replication all 127.0.0.1/32 trust\n"))
            .setting("ident_file", &maps)
            .setting("oauth_validator_libraries", &validator(&dir));
        let (oracle, cluster) = tokio::join!(oracle.start(), Cluster::builder().start());
        for server in [&oracle, &cluster] {
            server.primary().execute("CREATE ROLE bob LOGIN").await;
            for database in ["one", "two"] {
                server.primary().execute(&format!("CREATE DATABASE {database}")).await;
            }
        }
        let kingpost = Kingpost::of(&cluster)
            .set("proxy.hba_file", dir.join("rules").display().to_string())
            .set("proxy.ident_file", maps)
            .set("proxy.oauth.audience", toml::Value::Array(vec!["kingpost".into()]))
            .set("proxy.oauth.ca_file", authority.ca_file().display().to_string())
            .add("proxy.users", table(&[("name", "alice")]))
            .add("proxy.users", table(&[("name", "bob")]));
        let kingpost = kingpost.start().await;
        Scene { providers: [one, two], application, oracle, cluster, kingpost, differences: Default::default() }
    }

    /// Compares the answers of PostgreSQL and the proxy, and returns them.
    async fn both(&self, database: &str, user: &str, says: &[Vec<u8>], what: &str) -> Vec<String> {
        let directly = talk(self.oracle.primary().port(), database, user, says).await;
        let through = talk(self.kingpost.port(), database, user, says).await;
        if through != directly {
            let told = format!("{user} in {database}: {what}\n  PostgreSQL {directly:#?}\n  proxy      {through:#?}");
            self.differences.borrow_mut().push(told);
        }
        through
    }

    /// Programs with tokens of both providers: accepted, or told the issuer and refused.
    async fn tokens(&mut self) {
        let mut known = String::new();
        let mut tokens = Vec::new();
        for provider in &self.providers {
            for (name, scope, resource, good) in [
                ("alice", "mail db", "urn:db", 1),
                ("bob", "mail db", "urn:db", 1),
                ("alice", "mail", "urn:db", 0),
                ("bob", "mail db", "urn:other", 0),
                ("bob", "db", "urn:opaque", 0),
            ] {
                let token = self.application.program(provider, name, scope, resource).await;
                tokens.push((token, name, good, &*provider.url));
            }
        }
        let mut let_in = Vec::new();
        for (database, issuer) in [("one", &self.providers[0].url), ("two", &self.providers[1].url)] {
            known.clear();
            for (token, name, good, of) in &tokens {
                writeln!(known, "{} {name} {token}", if of == issuer { *good } else { 0 }).unwrap();
            }
            readable(&self.oracle.primary().dir().join("tokens"), &known);
            for user in ["alice", "bob"] {
                for (token, name, ..) in &tokens {
                    let farewell = message(b'p', b"\x01");
                    let said = self.both(database, user, &[first(&bearer(token)), farewell], "a token").await;
                    if said.last().unwrap().starts_with('R') {
                        let_in.push((database, user, *name));
                    } else {
                        assert!(said[1].contains(issuer.as_str()), "{said:?}");
                        assert!(said[2].contains("28000"), "{said:?}");
                    }
                }
            }
        }
        assert_eq!(let_in, [("one", "alice", "alice"), ("one", "bob", "bob"), ("two", "alice", "bob")]);
    }

    /// Messages that programs do not send, and the request for the issuer.
    async fn messages(&mut self) {
        let token = self.application.program(&self.providers[0], "alice", "db", "urn:db").await;
        readable(&self.oracle.primary().dir().join("tokens"), &format!("1 alice {token}\n"));
        let good = bearer(&token);
        let farewell = message(b'p', b"\x01");
        let none = || chosen("OAUTHBEARER", -1, b"");
        let discovery = b"n,,\x01auth=\x01\x01";
        // In order: no message is a token, so all after the first are answers to a challenge.
        let talks = [
            ("a good token", vec![first(&good)]),
            ("a good token, later", vec![none(), message(b'p', &good)]),
            ("y", vec![first(&[b"y", &good[1..]].concat())]),
            ("other keys", vec![first(format!("n,,\x01host=h\x01auth=bEaReR   {token}\x01port=1\x01\x01").as_bytes())]),
            ("discovery", vec![first(discovery), farewell.clone()]),
            ("discovery, later", vec![none(), message(b'p', discovery), farewell.clone()]),
            ("discovery, and gone", vec![first(discovery)]),
            ("a challenge, and a token", vec![first(discovery), message(b'p', &good)]),
            ("a challenge, and no separator", vec![first(discovery), message(b'p', b"x")]),
            ("a challenge, and two", vec![first(discovery), message(b'p', b"\x01\x01")]),
            ("a challenge, and a NUL", vec![first(discovery), message(b'p', b"\x01\0")]),
            ("a challenge, and nothing", vec![first(discovery), message(b'p', b"")]),
            ("a refusal, and no separator", vec![first(&bearer("x")), message(b'p', b"x")]),
            ("a challenge, and a query", vec![first(discovery), query("SELECT 1")]),
            ("a query", vec![query("SELECT 1")]),
            ("later, and nothing", vec![none(), message(b'p', b"")]),
            ("another mechanism", vec![chosen("SCRAM-SHA-256", 1, b"n")]),
        ];
        for (what, says) in talks {
            self.both("one", "alice", &says, what).await;
        }
        // Errors of a message's frame are worded by PostgreSQL's parser: only the code is compared.
        let frames = [
            ("no mechanism", vec![message(b'p', b"")]),
            ("a mechanism without an end", vec![message(b'p', b"OAUTHBEARER")]),
            ("a mechanism alone", vec![message(b'p', b"OAUTHBEARER\0")]),
            ("less than is said", vec![chosen("OAUTHBEARER", 100, &good[..50])]),
            ("more than is said", vec![chosen("OAUTHBEARER", 5, &good)]),
            ("less than nothing", vec![chosen("OAUTHBEARER", -2, b"")]),
        ];
        for (what, says) in frames {
            let ports = [self.oracle.primary().port(), self.kingpost.port()];
            for port in ports {
                let said = talk(port, "one", "alice", &says).await;
                let expected = "E [Some(\"FATAL\"), Some(\"FATAL\"), Some(\"08P01\")";
                assert!(said.len() == 2 && said[1].starts_with(expected), "{what}: {said:?}");
            }
        }
        // Strings that are no token.
        for auth in [
            "Basic dTpw",
            "Bearer",
            "Bearer ",
            "Bearer ==",
            "Bearer a b",
            "Bearer a=b",
            "Bearer \t a",
            "bearer",
            " Bearer a",
            "Bearer a\r\n",
        ] {
            let response = format!("n,,\x01auth={auth}\x01\x01");
            let said = self.both("one", "alice", &[first(response.as_bytes()), farewell.clone()], auth).await;
            assert!(said[1].starts_with("R ") && said[2].contains("28000"), "{said:?}");
        }
        let bytes = [&b"n,,\x01auth=Bearer "[..], token.as_bytes(), b"\0\x01\x01"].concat();
        let malformed: [&[u8]; 26] = [
            b"",
            b"n",
            b"n,",
            b"n,,",
            b"x,,\x01auth=Bearer t\x01\x01",
            b"p=tls-unique,,\x01auth=Bearer t\x01\x01",
            b"n;,\x01auth=Bearer t\x01\x01",
            b"n,b,\x01auth=Bearer t\x01\x01",
            b"n,a=bob,\x01auth=Bearer t\x01\x01",
            b"n,,auth=Bearer t\x01\x01",
            b"n,,\x01\x01",
            b"n,,\x01auth=Bearer t",
            b"n,,\x01auth=Bearer t\x01",
            b"n,,\x01auth=Bearer t\x01\x01\x01",
            b"n,,\x01auth=Bearer t\x01\x01x",
            b"n,,\x01auth\x01\x01",
            b"n,,\x01=x\x01auth=Bearer t\x01\x01",
            b"n,,\x01a1=x\x01auth=Bearer t\x01\x01",
            b"n,,\x01auth=Bearer t\x01auth=Bearer t\x01\x01",
            b"n,,\x01auth=\xe4\x01\x01",
            b"n,,\x01auth=a\x7f\x01\x01",
            b"\x01",
            b"\x02,,\x01auth=\x01\x01",
            b"n\xff,\x01auth=\x01\x01",
            b"n,,\x01",
            &bytes,
        ];
        for response in malformed {
            let what = response.escape_ascii().to_string();
            let said = self.both("one", "alice", &[first(response)], &what).await;
            assert!(said[1].starts_with("E "), "{what}: {said:?}");
            assert!(!said[1].contains(&token), "{said:?}");
        }
    }

    /// libpq with both: the same, except for the port.
    async fn libpq(&mut self) {
        for (n, database, user, who) in [
            (0, "one", "alice", "alice"),
            (0, "one", "bob", "alice"),
            (1, "two", "alice", "bob"),
            (1, "two", "bob", "bob"),
        ] {
            let mut said = Vec::new();
            // PostgreSQL's library has to know a token before it is used: it is obtained here.
            let (token, _) = self.application.person("device", &self.providers[n], who, "openid mail db").await;
            readable(&self.oracle.primary().dir().join("tokens"), &format!("1 {who} {token}\n"));
            for port in [self.oracle.primary().port(), self.kingpost.port()] {
                let answer = self.application.connect_by(port, database, user, &self.providers[n], &token).await;
                said.push(answer.to_string().replace(&port.to_string(), "PORT"));
            }
            assert_eq!(said[0], said[1]);
            let is_in = serde_json::from_str::<Value>(&said[0]).unwrap()["in"].is_array();
            assert_eq!(is_in, user == "alice", "{said:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgresql_says_the_same_byte_by_byte() {
    if only_kingpost() || !is_there() {
        return;
    }
    let mut scene = Scene::start().await;
    let dirs = [scene.oracle.dir().to_owned(), scene.cluster.dir().to_owned()];
    let _logs = dirs.each_ref().map(|dir| ShowLogs(dir));
    scene.tokens().await;
    scene.messages().await;
    scene.libpq().await;
    let differences = scene.differences.take();
    assert!(differences.is_empty(), "{} differences\n{}", differences.len(), differences.join("\n"));
}
