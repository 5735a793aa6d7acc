//! Clients in other languages at their usual work, in transaction mode, with a small pool and two replicas.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use kingpost_tests::{Cluster, Kingpost, Subject, new_dir, subject, within};
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::common::shared;

const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn here() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/clients"))
}

/// Installs what the scripts need below `target`, once, and says where.
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

async fn run(program: &Path, script: &str) {
    if subject() == Subject::PgBouncer {
        return;
    }
    let (shared, _logs) = shared().await;
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 5).start().await;
    run_at(program, script, &kingpost.endpoint().url(), &shared.cluster).await;
}

/// Runs a script against an address.
pub(crate) async fn run_at(program: &Path, script: &str, url: &str, cluster: &Cluster) {
    let mut command = Command::new(program);
    command.arg(here().join(script)).env("DATABASE_URL", url).current_dir(new_dir("client"));
    command.env("NODE_PATH", installed().await.join("node/node_modules")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = within(script, LIMIT, cluster.dir(), command.output()).await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script}: {}\n{out}\n{err}", output.status);
    // A script that stops early has not said how many tests there were.
    let done = out.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(done > 0 && out.lines().last() == Some(&*format!("1..{done}")), "{script}:\n{out}\n{err}");
}

#[tokio::test]
async fn psycopg() {
    run(&installed().await.join("venv/bin/python"), "python/psycopg_usual.py").await;
}

#[tokio::test]
async fn asyncpg() {
    run(&installed().await.join("venv/bin/python"), "python/asyncpg_usual.py").await;
}

#[tokio::test]
async fn node_postgres() {
    run(Path::new("node"), "node/pg_usual.mjs").await;
}
