//! Clients in other languages at their usual work, in transaction mode, with a small pool and two replicas: over SCRAM, without TLS, and with one
//! check over TLS by each client that supports it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use kingpost_tests::certs::Authority;
use kingpost_tests::{Cluster, DATABASE, Kingpost, Subject, USER, new_dir, skipped, subject, user, within};
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::common::shared;

const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn here() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/clients"))
}

/// Installs the scripts' requirements, once, and returns the directory.
pub(crate) async fn installed() -> &'static Path {
    static SETUP: OnceCell<PathBuf> = OnceCell::const_new();
    SETUP
        .get_or_init(async || {
            let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
            let target = target.unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../target").into());
            let setup = Command::new(here().join("setup")).stdin(Stdio::null()).kill_on_drop(true).output();
            let output = tokio::time::timeout(Duration::from_secs(300), setup).await.expect("the set-up ends").unwrap();
            let said = [output.stdout, output.stderr].concat();
            assert!(output.status.success(), "tests/clients/setup: {}", String::from_utf8_lossy(&said));
            target.join("clients")
        })
        .await
}

/// Runs a script, with this number of server connections a node.
async fn run(program: &Path, script: &str, pool: i64) {
    if subject() == Subject::PgBouncer {
        return;
    }
    let (shared, _logs) = shared().await;
    let pair = Authority::new().issue("proxy", &["127.0.0.1"]);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let kingpost = Kingpost::of(&shared.cluster)
        .set("proxy.pool.size", pool)
        .set("proxy.auth", "scram-sha-256")
        .add("proxy.users", user(USER, "it-is-secret"))
        .set("proxy.tls.mode", "allow")
        .set("proxy.tls.cert_file", text(&pair.cert))
        .set("proxy.tls.key_file", text(&pair.key))
        .start()
        .await;
    let address = format!("postgresql://{USER}:it-is-secret@127.0.0.1:{}/{DATABASE}", kingpost.port());
    let (plain, offered) = (format!("{address}?sslmode=disable"), address);
    // The servers of a direct connection have no TLS.
    let offered = (subject() == Subject::Kingpost).then_some(&*offered);
    run_at(program, script, &plain, offered, &shared.cluster).await;
}

/// Runs a script against an address, and one that offers TLS.
pub(crate) async fn run_at(program: &Path, script: &str, url: &str, offered: Option<&str>, cluster: &Cluster) {
    let mut command = Command::new(program);
    if program.ends_with("java") {
        command.arg("-cp").arg(jars().await);
    }
    command.arg(here().join(script)).env("DATABASE_URL", url).current_dir(new_dir("client"));
    command.envs(offered.map(|url| ("DATABASE_TLS_URL", url)));
    command.env("NODE_PATH", installed().await.join("node/node_modules")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = within(script, LIMIT, cluster.dir(), command.output()).await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script}: {}\n{out}\n{err}", output.status);
    // A script that stops early has not reported the number of its tests.
    let done = out.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(done > 0 && out.lines().last() == Some(&*format!("1..{done}")), "{script}:\n{out}\n{err}");
}

async fn python(script: &str, pool: i64) {
    run(&installed().await.join("venv/bin/python"), script, pool).await;
}

#[tokio::test]
async fn psycopg() {
    python("python/psycopg_usual.py", 5).await;
}

#[tokio::test]
async fn psycopg2() {
    python("python/psycopg2_usual.py", 5).await;
}

#[tokio::test]
async fn asyncpg() {
    python("python/asyncpg_usual.py", 5).await;
}

#[tokio::test]
async fn sqlalchemy() {
    python("python/sqlalchemy_usual.py", 5).await;
}

#[tokio::test]
async fn django() {
    // Each of its connections sets its time zone, which must not pin a server connection.
    python("python/django_usual.py", 5).await;
}

#[tokio::test]
async fn node_postgres() {
    run(Path::new("node"), "node/pg_usual.mjs", 5).await;
}

#[tokio::test]
async fn postgres_js() {
    run(Path::new("node"), "node/postgres_js_usual.mjs", 5).await;
}

#[tokio::test]
async fn sequelize() {
    run(Path::new("node"), "node/sequelize_usual.mjs", 5).await;
}

// === Part of `make clients` only: they are compiled, which takes longer than all the rest ===

/// True if the tool is there; otherwise `clients/setup --all` has reported it.
pub(crate) fn there(tool: &str) -> bool {
    let found =
        std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(tool).exists()));
    if !found {
        skipped(&format!("{tool} is not installed"));
    }
    found
}

/// Runs a compiler, which may download packages.
pub(crate) async fn build(command: &mut Command) {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output =
        tokio::time::timeout(Duration::from_secs(900), command.output()).await.expect("the build ends").unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Downloads the libraries of `clients/java/pom.xml`, once, and returns their class path.
pub(crate) async fn jars() -> &'static Path {
    static JARS: OnceCell<PathBuf> = OnceCell::const_new();
    JARS.get_or_init(async || {
        let dir = installed().await.join("java");
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "-f"]).arg(here().join("java/pom.xml")).arg("dependency:copy-dependencies");
        build(maven.arg(format!("-DoutputDirectory={}", dir.display()))).await;
        dir.join("*")
    })
    .await
}

#[tokio::test]
#[ignore = "needs Go and the network: make clients"]
async fn pgx() {
    if !there("go") {
        return;
    }
    let program = new_dir("go").join("pgx");
    build(Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(here().join("go/pgx"))).await;
    run(&program, "go/pgx/main.go", 5).await;
}

#[tokio::test]
#[ignore = "needs Java, Maven and the network: make clients"]
async fn pgjdbc() {
    if !there("java") || !there("mvn") {
        return;
    }
    jars().await;
    run(Path::new("java"), "java/PgjdbcUsual.java", 5).await;
}

#[tokio::test]
#[ignore = "takes minutes to compile: make clients"]
async fn sqlx_and_tokio_postgres() {
    let target = installed().await.join("rust");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--locked", "--target-dir"]).arg(&target).current_dir(here().join("rust"));
    build(&mut cargo).await;
    run(&target.join("debug/kingpost-clients-rust"), "rust/src/main.rs", 5).await;
}
