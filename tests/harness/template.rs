//! A database directory made once a run, from which every node is copied.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::endpoint::{DATABASE, SCRAM_PASSWORD, SCRAM_USER, USER};
use crate::process::{RunAs, command, server_user};
use crate::run::new_dir;

/// Returns the directory of PostgreSQL's programs: `PG_BIN`, or the newest that Debian's packages installed, or that of `PATH`.
///
/// # Panics
/// When there is none.
pub fn pg_bin() -> &'static Path {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(|| {
        if let Some(dir) = std::env::var_os("PG_BIN") {
            return dir.into();
        }
        let packaged = (13..=19).rev().map(|major| PathBuf::from(format!("/usr/lib/postgresql/{major}/bin")));
        let on_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
        let found = packaged.chain(on_path.unwrap_or_default()).find(|dir| dir.join("initdb").exists());
        found.expect("no PostgreSQL found: install the package postgresql, or set PG_BIN to the directory of initdb")
    })
}

/// Returns the stopped template. A copy of it is a primary; a copy with `standby.signal` can follow any such primary, because both start from the
/// same checkpoint of the same system identifier: no base backup is needed.
///
/// `KINGPOST_TEST_WAL_SEGMENT_MB` is the size of WAL segments in MiB, a power of two; the default is PostgreSQL's own, 16 MiB. Every timeline has a
/// copy of the segment in which it begins, on every server and relay: hundreds of failovers fill a disk with them.
pub(crate) fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let parent = new_dir("template");
        if let Some(user) = server_user() {
            run(Command::new("chown").arg(user).arg(&parent));
        }
        let data = parent.join("data");
        let mut initdb = command(&pg_bin().join("initdb"), RunAs::Server, "KILL");
        initdb.args(["--no-sync", "--no-instructions", "--username=postgres", "--auth=trust", "--encoding=UTF8"]);
        if let Ok(megabytes) = std::env::var("KINGPOST_TEST_WAL_SEGMENT_MB") {
            initdb.arg("--wal-segsize").arg(megabytes);
        }
        run(initdb.arg("--locale=C.UTF-8").arg("-D").arg(&data));
        let hba = format!(
            "host all {SCRAM_USER} 127.0.0.1/32 scram-sha-256\n\
             host all all 127.0.0.1/32 trust\n\
             host replication all 127.0.0.1/32 trust\n"
        );
        std::fs::write(data.join("pg_hba.conf"), hba).expect("write pg_hba.conf");
        single_user(
            &data,
            &format!(
                "CREATE ROLE {USER} LOGIN;\n\
                 CREATE ROLE {SCRAM_USER} LOGIN PASSWORD '{SCRAM_PASSWORD}';\n\
                 CREATE DATABASE {DATABASE} OWNER {USER};\n\
                 CHECKPOINT;\n"
            ),
        );
        data
    })
}

fn single_user(data: &Path, sql: &str) {
    let mut postgres = command(&pg_bin().join("postgres"), RunAs::Server, "KILL");
    postgres.args(["--single", "-c", "fsync=off", "-c", "exit_on_error=on", "-D"]).arg(data).arg("postgres");
    let mut child = postgres
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start postgres --single");
    child.stdin.take().expect("its standard input").write_all(sql.as_bytes()).expect("write to postgres --single");
    let output = child.wait_with_output().expect("wait for postgres --single");
    assert!(output.status.success(), "postgres --single: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a short command to its end.
///
/// # Panics
/// When it fails, with what it printed.
pub(crate) fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("run {command:?}: {e}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed with {}: {text}", output.status);
}
