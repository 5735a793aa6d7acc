//! Method `oauth` with an issuer that is not part of the tests: oidc-provider, an OpenID provider from npm. An application gets its tokens in the
//! usual way, and logs in with libpq of PostgreSQL 18.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use kingpost_tests::certs::Authority;
use kingpost_tests::{Cluster, Kingpost, Process, RunAs, ShowLogs, command, http_get, new_dir, skipped, within};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::clients::{here, installed};
use crate::common::only_kingpost;
use crate::ldap::{readable, table};
use crate::oauth::login;

const HANG_UP: i32 = 1;
const LIMIT: Duration = Duration::from_secs(60);
/// Programs that log in as themselves, with their secrets at the providers.
pub(crate) const PROGRAMS: [(&str, &str); 2] = [("alice", "s3cret-of-alice"), ("bob", "s3cret-of-bob")];

/// A provider, with its own keys.
pub(crate) struct Provider {
    pub(crate) url: String,
    process: Process,
    dir: PathBuf,
}

impl Provider {
    /// Starts a provider with these options beside its clients; see `clients/node/oidc_provider.mjs`.
    pub(crate) async fn start(mut options: Value) -> Provider {
        let dir = new_dir("provider");
        options["clients"] = PROGRAMS.into_iter().map(|(name, secret)| (name.to_owned(), json!(secret))).collect();
        let mut run = command(Path::new("node"), RunAs::Tests, "KILL");
        run.arg(here().join("node/oidc_provider.mjs")).env("NODE_PATH", installed().await.join("node/node_modules"));
        run.env("PROVIDER", options.to_string());
        let process = Process::start("provider", run, &dir.join("provider.log"));
        let url = said(&process, &dir, "issuer").await;
        Provider { url, process, dir }
    }

    pub(crate) async fn secure(algorithm: &str, authority: &Authority) -> Provider {
        let pair = authority.issue("provider", &["127.0.0.1"]);
        Provider::start(json!({"alg": algorithm, "lives": 600, "cert": pair.cert, "key": pair.key})).await
    }

    /// Makes it sign with a new key. The previous one is still published, older ones are not.
    async fn sign_anew(&self) {
        let before = self.keys();
        self.process.signal(HANG_UP);
        let changed = async || (self.keys() > before).then_some(());
        kingpost_tests::wait_until("a new key", LIMIT, &self.dir, changed).await;
    }

    fn keys(&self) -> usize {
        let log = std::fs::read_to_string(self.process.log()).unwrap();
        log.lines().filter(|line| line.starts_with("signs anew with")).count()
    }
}

/// Waits for a line of its output that begins with this word, and returns the rest.
async fn said(process: &Process, dir: &Path, word: &str) -> String {
    kingpost_tests::wait_until(word, LIMIT, dir, async || {
        let log = std::fs::read_to_string(process.log()).unwrap();
        assert!(process.exit_status().is_none(), "the provider has ended: {log}");
        let line = log.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '))?;
        Some(line.to_owned())
    })
    .await
}

/// A program that obtains tokens and logs in with them: `clients/python/oauth_agent.py`.
pub(crate) struct Application {
    _child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
    dir: PathBuf,
    /// Tokens issued so far: no log may have one.
    pub(crate) tokens: Vec<String>,
}

impl Application {
    pub(crate) async fn start(authority: &Authority) -> Application {
        let dir = new_dir("application");
        let log = std::fs::File::create(dir.join("application.log")).unwrap();
        let mut run = Command::new(installed().await.join("venv/bin/python"));
        run.arg(here().join("python/oauth_agent.py"))
            .env("CA", authority.ca_file())
            .env("PYTHONDONTWRITEBYTECODE", "1");
        run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        let mut child = run.spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
        Application { _child: child, to, from, dir, tokens: Vec::new() }
    }

    pub(crate) async fn call(&mut self, call: &Value) -> Value {
        self.to.write_all(format!("{call}\n").as_bytes()).await.unwrap();
        let line = within("an answer", LIMIT, &self.dir, self.from.next_line()).await.unwrap();
        let line = line.unwrap_or_else(|| panic!("the application has ended\n{}", kingpost_tests::tails(&self.dir)));
        let answer: Value = serde_json::from_str(&line).unwrap();
        for name in ["access_token", "id_token"] {
            self.tokens.extend(answer[name].as_str().map(str::to_owned));
        }
        answer
    }

    /// Obtains an access token of a program, which authenticates by its secret.
    pub(crate) async fn program(&mut self, provider: &Provider, name: &str, scope: &str, resource: &str) -> String {
        let (_, secret) = PROGRAMS.into_iter().find(|(program, _)| *program == name).unwrap();
        let call = json!({
            "do": "itself", "issuer": provider.url, "name": name, "secret": secret, "scope": scope, "resource": resource,
        });
        token(&self.call(&call).await, "access_token")
    }

    /// Obtains an access token and an ID token of a person, who logs in at a browser. `how`: `device` or `code`.
    pub(crate) async fn person(&mut self, how: &str, provider: &Provider, name: &str, scope: &str) -> (String, String) {
        let answer = self.call(&json!({"do": how, "issuer": provider.url, "user": name, "scope": scope})).await;
        (token(&answer, "access_token"), token(&answer, "id_token"))
    }

    /// Logs in with libpq, and returns its result. libpq asks the server for the issuer, and `who` logs in there.
    async fn connect(&mut self, port: u16, database: &str, user: &str, provider: &Provider, who: &str) -> Value {
        let conninfo = conninfo(port, database, user, provider);
        self.call(&json!({"do": "connect", "conninfo": conninfo, "as": who})).await
    }

    /// Logs in with this token.
    pub(crate) async fn connect_by(
        &mut self,
        port: u16,
        database: &str,
        user: &str,
        provider: &Provider,
        token: &str,
    ) -> Value {
        let conninfo = conninfo(port, database, user, provider);
        self.call(&json!({"do": "connect", "conninfo": conninfo, "token": token})).await
    }
}

fn conninfo(port: u16, database: &str, user: &str, provider: &Provider) -> String {
    format!(
        "host=127.0.0.1 port={port} dbname={database} user={user} sslmode=disable oauth_issuer={} oauth_client_id=psql",
        provider.url
    )
}

fn token(answer: &Value, name: &str) -> String {
    answer[name].as_str().unwrap_or_else(|| panic!("no {name}: {answer}")).to_owned()
}

fn refused(user: &str) -> Result<String, String> {
    Err(format!("28000 OAuth bearer authentication failed for user {user:?}"))
}

/// Two providers over TLS, one for each database, and one with a slow clock; two users. Databases `more` and `person` require one more scope.
struct Scene {
    one: Provider,
    two: Provider,
    late: Provider,
    application: Application,
    cluster: Cluster,
    kingpost: Kingpost,
    authority: Authority,
}

impl Scene {
    async fn start() -> Scene {
        let authority = Authority::new();
        let (one, two) = tokio::join!(Provider::secure("RS256", &authority), Provider::secure("ES256", &authority));
        // Clocks may be 30 s apart: its tokens are valid for a moment.
        let late = Provider::start(json!({"alg": "EdDSA", "lives": 4, "behind": 29})).await;
        let application = Application::start(&authority).await;
        let cluster = Cluster::builder().start().await;
        cluster.primary().execute("CREATE ROLE bob LOGIN").await;
        let mut rules = String::new();
        for (database, issuer, scope) in [
            ("one", &one, "db"),
            ("two", &two, "db"),
            ("late", &late, "db"),
            ("more", &one, "db mail"),
            ("person", &one, "openid db"),
        ] {
            cluster.primary().execute(&format!("CREATE DATABASE {database}")).await;
            rules += &format!("host {database} all 127.0.0.1/32 oauth issuer=\"{}\" scope=\"{scope}\"\n", issuer.url);
        }
        let dir = new_dir("oauth");
        readable(&dir.join("rules"), &rules);
        let audience = ["kingpost", "psql"].map(toml::Value::from).to_vec();
        let kingpost = Kingpost::of(&cluster)
            .set("proxy.hba_file", dir.join("rules").display().to_string())
            .set("proxy.oauth.audience", toml::Value::Array(audience))
            .set("proxy.oauth.ca_file", authority.ca_file().display().to_string())
            .set("proxy.log_logins", "all")
            .set("log.level", "debug")
            .add("proxy.users", table(&[("name", "alice")]))
            .add("proxy.users", table(&[("name", "bob")]));
        let kingpost = kingpost.start().await;
        Scene { one, two, late, application, cluster, kingpost, authority }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.kingpost.process().log()).unwrap()
    }

    async fn decide(&self, database: &str, user: &str, token: &str) -> Result<String, String> {
        login(self.kingpost.port(), database, user, token).await.1
    }

    /// Checks that the token is refused, and that the log has the reason.
    async fn refuses(&self, database: &str, user: &str, token: &str, why: &str) {
        let before = self.log().len();
        assert_eq!(self.decide(database, user, token).await, refused(user), "{user} in {database}: {why}");
        let log = self.log();
        let mut lines = log[before..].lines().filter(|line| line.contains("a token is not good"));
        assert!(lines.any(|line| line.contains(why)), "{user} in {database}: {why}\n{}", &log[before..]);
    }

    /// Programs, and people at a device or a browser: each user by its own token of the database's issuer.
    async fn users_come(&mut self) {
        for (user, other) in [("alice", "bob"), ("bob", "alice")] {
            let mut of_both = Vec::new();
            for provider in [&self.one, &self.two] {
                let mut tokens = vec![self.application.program(provider, user, "db", "urn:db").await];
                for how in ["device", "code"] {
                    tokens.push(self.application.person(how, provider, user, "openid db").await.0);
                }
                of_both.push(tokens);
            }
            for (n, database) in ["one", "two"].into_iter().enumerate() {
                for token in &of_both[n] {
                    assert_eq!(self.decide(database, user, token).await.as_deref(), Ok(user));
                    assert_eq!(self.decide(database, other, token).await, refused(other));
                }
                for token in &of_both[1 - n] {
                    self.refuses(database, user, token, "the issuer has no key of its name").await;
                }
            }
        }
        let token = self.application.program(&self.one, "alice", "db mail", "urn:db").await;
        for database in ["one", "more"] {
            assert_eq!(self.decide(database, "alice", &token).await.as_deref(), Ok("alice"));
        }
    }

    /// Other tokens of the providers, and expired ones.
    async fn others_are_refused(&mut self) {
        for (provider, database) in [(&self.one, "one"), (&self.two, "two")] {
            for (scope, resource, why) in [
                ("db", "urn:other", "it is for others"),
                ("mail", "urn:db", "it lacks a scope"),
                ("db", "urn:opaque", "it is no JSON Web Token"),
            ] {
                let token = self.application.program(provider, "alice", scope, resource).await;
                self.refuses(database, "alice", &token, why).await;
            }
            // It is issued for the application, one of the names in proxy.oauth.audience, but permits nothing.
            for how in ["device", "code"] {
                let (_, id) = self.application.person(how, provider, "alice", "openid db").await;
                self.refuses(database, "alice", &id, "it lacks a scope").await;
            }
        }
        let token = self.application.program(&self.one, "alice", "db", "urn:db").await;
        self.refuses("more", "alice", &token, "it lacks a scope").await;
        // The provider omits personal claims from access tokens.
        let (token, _) = self.application.person("code", &self.one, "alice", "openid db").await;
        self.refuses("person", "alice", &token, "it lacks a scope").await;
    }

    /// A token that is valid for a moment, and expires.
    async fn one_is_short_lived(&mut self) -> String {
        for _ in 0..5 {
            let token = self.application.program(&self.late, "bob", "db", "urn:db").await;
            // On a busy machine the moment may be over.
            if self.decide("late", "bob", &token).await.as_deref() == Ok("bob") {
                return token;
            }
        }
        panic!("no token of the issuer whose clock is slow was taken: {}", self.log());
    }

    async fn it_expires(&mut self, token: &str) {
        self.cluster.wait("the token to expire", async || self.decide("late", "bob", token).await.err()).await;
        self.refuses("late", "bob", token, "it has expired").await;
        let token = self.application.program(&self.one, "alice", "db", "urn:db").await;
        assert_eq!(self.decide("one", "alice", &token).await.as_deref(), Ok("alice"));
    }

    /// libpq asks the server for the issuer, lets the person log in there, and connects again.
    async fn libpq_comes(&mut self) {
        let port = self.kingpost.port();
        for (database, provider, other) in [("one", &self.one, &self.two), ("two", &self.two, &self.one)] {
            let told = json!({"at": format!("{}/.well-known/openid-configuration", provider.url), "scope": "db"});
            for (user, stranger) in [("alice", "bob"), ("bob", "alice")] {
                let answer = self.application.connect(port, database, user, provider, user).await;
                assert_eq!(answer, json!({"in": [user, database], "told": told}));
                let answer = self.application.connect(port, database, user, provider, stranger).await;
                let error = answer["error"].as_str().unwrap();
                let says = format!("FATAL:  OAuth bearer authentication failed for user \"{user}\"");
                assert!(error.contains(&says), "{error}");
                assert_eq!(answer["told"], told);
            }
            // It uses no issuer that its user has not named.
            let answer = self.application.connect(port, database, "alice", other, "alice").await;
            let error = answer["error"].as_str().unwrap();
            assert!(error.contains("is incompatible with oauth_issuer") && answer["told"].is_null(), "{answer}");
        }
        // The scopes are those of the rule.
        let answer = self.application.connect(port, "more", "alice", &self.one, "alice").await;
        assert_eq!((&answer["in"][0], &answer["told"]["scope"]), (&json!("alice"), &json!("db mail")));
    }

    /// Keys come and go: a token is valid as long as its key is published.
    async fn keys_change(&mut self) {
        let kept = self.application.program(&self.one, "alice", "db", "urn:db").await;
        let mut before = self.application.program(&self.two, "alice", "db", "urn:db").await;
        for gone in [None, Some(before.clone())] {
            self.two.sign_anew().await;
            let new = self.application.program(&self.two, "alice", "db", "urn:db").await;
            let counts = async || self.decide("two", "alice", &new).await.ok();
            self.cluster.wait("the new key to count", counts).await;
            assert_eq!(self.decide("two", "alice", &before).await.as_deref(), Ok("alice"));
            assert_eq!(self.decide("one", "alice", &kept).await.as_deref(), Ok("alice"));
            if let Some(gone) = gone {
                self.refuses("two", "alice", &gone, "the issuer has no key of its name").await;
            }
            assert_eq!(self.decide("two", "bob", &new).await, refused("bob"));
            before = new;
        }
    }

    /// No log has a token, a part of one, or a secret.
    async fn nothing_is_told(&self) {
        let (status, metrics) = http_get(self.kingpost.metrics_port(), "/metrics").await.unwrap();
        assert_eq!(status, 200);
        let texts = [self.log(), metrics, self.cluster.primary().log()];
        assert!(texts[0].contains("OAuth bearer authentication failed"), "no refusal in the log");
        assert!(self.application.tokens.len() > 30);
        let parts = self.application.tokens.iter().flat_map(|token| token.split('.').chain([token.as_str()]));
        for secret in parts.chain(PROGRAMS.map(|(_, secret)| secret)) {
            assert!(!texts.iter().any(|text| text.contains(secret)), "somebody says {secret}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_a_provider_let_in_its_users_and_nobody_else() {
    if only_kingpost() {
        return;
    }
    let mut scene = Scene::start().await;
    let dirs = [scene.cluster.dir(), &scene.one.dir, &scene.two.dir, &scene.late.dir].map(Path::to_path_buf);
    let _logs = dirs.each_ref().map(|dir| ShowLogs(dir));
    scene.users_come().await;
    scene.others_are_refused().await;
    let short_lived = scene.one_is_short_lived().await;
    scene.libpq_comes().await;
    scene.keys_change().await;
    scene.it_expires(&short_lived).await;
    scene.nothing_is_told().await;
}

/// A psql that has asked for a device login, or has ended.
struct Psql {
    process: Process,
    dir: PathBuf,
}

impl Psql {
    fn start(conninfo: &str, authority: &Authority) -> Psql {
        let dir = new_dir("psql");
        let mut run = command(Path::new("psql"), RunAs::Tests, "KILL");
        run.args(["-XAt", "-c", "SELECT current_user, current_database()", conninfo]);
        // libpq 18 accepts a user's own authority only with the UNSAFE setting.
        run.env("PGOAUTHCAFILE", authority.ca_file()).env("PGOAUTHDEBUG", "UNSAFE");
        let process = Process::start("psql", run, &dir.join("psql.log"));
        Psql { process, dir }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.process.log()).unwrap()).into_owned()
    }

    /// Returns the address for the browser, with the code; None if psql has ended without it.
    async fn asks(&self) -> Option<String> {
        kingpost_tests::wait_until("psql to ask for a visit", LIMIT, &self.dir, async || {
            let ended = self.process.exit_status().is_some();
            let said = self.said();
            let asked = said.lines().find_map(|line| line.strip_prefix("Visit ")?.split_once(" and enter the code: "));
            let address = asked.map(|(url, code)| format!("{url}?user_code={}", code.trim()));
            if ended || address.is_some() { Some(address) } else { None }
        })
        .await
    }
}

/// A foreign client: psql of PostgreSQL 18 with libpq's own device flow (in Debian the package libpq-oauth), if installed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn psql_logs_in_by_a_device() {
    if only_kingpost() {
        return;
    }
    let version = std::process::Command::new("psql").arg("--version").output();
    let version = version.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default();
    let major = version.split_whitespace().nth(2).and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    if major.is_none_or(|major| major < 18) {
        skipped("no psql 18 with libpq-oauth");
        return;
    }
    let mut scene = Scene::start().await;
    let dir = scene.cluster.dir().to_owned();
    let _logs = ShowLogs(&dir);
    let port = scene.kingpost.port();
    let mut started = Vec::new();
    for (database, provider) in [("one", &scene.one), ("two", &scene.two)] {
        for (user, who) in [("alice", "alice"), ("bob", "bob"), ("alice", "bob")] {
            let psql = Psql::start(&conninfo(port, database, user, provider), &scene.authority);
            started.push((psql, database, user, who));
        }
    }
    for (psql, _, _, who) in &started {
        let Some(url) = psql.asks().await else {
            let said = psql.said();
            assert!(said.contains("no OAuth flows are available"), "{said}");
            skipped("no psql 18 with libpq-oauth");
            return;
        };
        scene.application.call(&json!({"do": "browse", "url": url, "user": who})).await;
    }
    for (psql, database, user, who) in &started {
        let status = psql.process.wait_exit(LIMIT).await;
        let said = psql.said();
        assert_eq!(status.success(), user == who, "{user} in {database} by {who}: {said}");
        if user == who {
            assert!(said.ends_with(&format!("{user}|{database}\n")), "{said}");
        } else {
            assert!(said.contains(&format!("OAuth bearer authentication failed for user \"{user}\"")), "{said}");
        }
    }
}
