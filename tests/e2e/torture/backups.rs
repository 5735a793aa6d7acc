//! Random runs of the archive, backups and restores: processes are killed at random moments, and a history says which rows a restore must have.
//!
//! The faults come from a seed, which is printed: `KINGPOST_TORTURE_SEED` repeats it, and `KINGPOST_BACKUP_RUNS` sets the number of runs.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kingpost_tests::{Cluster, Node, Process, Relay, RunAs, SOON, ShowLogs, command, kingpost_bin, pg_bin};

use super::random::Random;
use super::{number, seed};
use crate::archive::{archiving, open_dir, wait_archived};
use crate::backup::{config, done, kingpost, recovered, text};
use crate::backup_incremental::can_combine;

/// Rows written between two faults, at most.
const ROWS: u64 = 60;

/// A position, and the number of rows that were acknowledged before it.
#[derive(Debug, Clone)]
struct Moment {
    at: String,
    rows: u64,
}

/// A primary that is written to, its relay, and what must be there at each moment.
struct World {
    cluster: Cluster,
    relay: Relay,
    archive: PathBuf,
    keys: PathBuf,
    config: PathBuf,
    to: PathBuf,
    random: Random,
    rows: u64,
    history: Vec<Moment>,
    /// Processes started, for names.
    started: u64,
    faults: Vec<String>,
}

impl World {
    async fn start(seed: u64) -> World {
        let mut builder = Cluster::builder();
        if can_combine() {
            builder = builder.setting("summarize_wal", "on");
        }
        let cluster = builder.start().await;
        let (archive, to) = (open_dir("archive"), open_dir("to"));
        let keys = cluster.dir().join("archive.keys");
        std::fs::write(&keys, "0a".repeat(32)).unwrap();
        let mut relay = archiving(&cluster, cluster.primary().port(), archive.to_str().unwrap())
            .set("relay.archive.key_file", keys.display().to_string());
        relay.start().await;
        cluster.primary().execute("CREATE TABLE h (n bigint, pad text)").await;
        let path = config(&cluster, &archive, &[cluster.primary()]);
        let file = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, file.replacen('\n', &format!("\nkey_file = {keys:?}\n"), 1)).unwrap();
        let (random, history, faults) = (Random(seed), Vec::new(), Vec::new());
        World { cluster, relay, archive, keys, config: path, to, random, rows: 0, history, started: 0, faults }
    }

    fn primary(&self) -> &Node {
        self.cluster.primary()
    }

    /// Writes rows, each in a transaction of its own, and notes moments between them.
    async fn write(&mut self) {
        for _ in 0..1 + self.random.draw(ROWS) {
            let (n, pad) = (self.rows + 1, self.random.draw(20_000));
            self.primary().execute(&format!("INSERT INTO h VALUES ({n}, repeat(md5('{n}'), {pad} / 32))")).await;
            self.rows = n;
            if self.random.draw(4) == 0 {
                self.moment().await;
            }
        }
    }

    /// Notes a moment: with one writer every acknowledged row is before it, and no other.
    async fn moment(&mut self) {
        let at = self.primary().query("SELECT pg_current_wal_insert_lsn()").await;
        self.history.push(Moment { at, rows: self.rows });
    }

    /// Draws the kind of the next backup: incremental in two of three where the server can. Returns the words of the command.
    fn backup(&mut self) -> Vec<&'static str> {
        let is_incremental = can_combine() && self.random.draw(3) > 0;
        if is_incremental { vec!["backup", "--incremental"] } else { vec!["backup"] }
    }

    fn spawn(&mut self, args: &[&str]) -> Process {
        self.started += 1;
        let name = format!("{}{}", args[0], self.started);
        let mut kingpost = command(&kingpost_bin(), RunAs::Server, "KILL");
        kingpost.arg(args[0]).arg("--config").arg(&self.config).args(&args[1..]);
        Process::start(&name, kingpost, &self.cluster.dir().join(format!("{name}.log")))
    }

    /// Kills a process at a random moment, if it still runs then.
    async fn kill(&mut self, process: Process, most: u64) {
        let wait = Duration::from_millis(self.random.draw(most));
        let begun = Instant::now();
        while begun.elapsed() < wait && process.exit_status().is_none() {
            tokio::task::yield_now().await;
        }
        if process.exit_status().is_none() {
            process.signal(9);
        }
        process.wait_exit(SOON).await;
    }

    /// One fault.
    async fn fault(&mut self) {
        let fault = match self.random.draw(6) {
            0 => {
                // In the middle of an upload, perhaps.
                self.relay.kill9().await;
                self.write().await;
                self.relay.start().await;
                "the relay was killed"
            }
            1 | 2 => {
                let words = [self.backup(), vec!["--max-rate", "20M"]].concat();
                let backup = self.spawn(&words);
                self.kill(backup, 3000).await;
                if words.len() == 3 { "a backup was killed" } else { "an incremental backup was killed" }
            }
            3 => {
                let dir = self.to.join(format!("killed{}", self.started)).display().to_string();
                let bin = pg_bin().display().to_string();
                let words = restoring(&dir, &bin);
                let restore = self.spawn(&words);
                self.kill(restore, 1500).await;
                "a restore was killed"
            }
            4 => {
                let mut keys = std::fs::read_to_string(&self.keys).unwrap();
                keys.push_str(&format!("\n{:064x}", self.random.draw(u64::MAX)));
                // As an operator: written aside, and renamed.
                let aside = self.keys.with_extension("new");
                std::fs::write(&aside, keys).unwrap();
                std::fs::rename(&aside, &self.keys).unwrap();
                let codec = ["zstd", "lz4", "none"][self.random.draw(3) as usize];
                self.relay.reload("relay.archive.compression", codec);
                "a new key, and another compression"
            }
            _ => {
                self.primary().execute("SELECT pg_switch_wal()").await;
                "a new segment"
            }
        };
        self.faults.push(fault.into());
    }

    /// Restores a random moment behind the end of the first backup, and compares. The server is killed during its recovery, perhaps.
    async fn restore(&mut self, run: u64) {
        let first = self.first_end();
        let fits: Vec<Moment> =
            self.history.iter().filter(|moment| position(&moment.at) >= position(&first)).cloned().collect();
        let moment = fits[self.random.draw(fits.len() as u64) as usize].clone();
        let dir = self.to.join(format!("run{run}"));
        let path = dir.display().to_string();
        let bin = pg_bin().display().to_string();
        let restore = || {
            let words = [restoring(&path, &bin), vec!["--at", &moment.at]].concat();
            let output = kingpost(&self.config, &words);
            assert!(output.status.success(), "{moment:?} {:?}\n{}", self.faults, text(&output));
        };
        restore();
        if self.random.draw(2) == 0 {
            let node = self.cluster.adopt(&format!("run{run}-killed"), &dir);
            node.start().await;
            node.kill9().await;
            // PostgreSQL removes the signal before it has the new timeline in its control file: killed in between, it recovers past the moment.
            if !dir.join("recovery.signal").exists() {
                std::fs::remove_dir_all(&dir).unwrap();
                restore();
            }
        }
        let node = recovered(&self.cluster, &format!("run{run}"), &dir).await;
        let found = node.query("SELECT count(*) || ' ' || coalesce(max(n), 0) FROM h").await;
        assert_eq!(found, format!("{0} {0}", moment.rows), "{moment:?} {:?}", self.faults);
        node.stop().await;
        let _ = std::fs::remove_dir_all(&dir);
    }

    /// Returns the end of the oldest backup.
    fn first_end(&self) -> String {
        let output = kingpost(&self.config, &["backup", "list", "--json"]);
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        said["backups"][0]["end"]["lsn"].as_str().unwrap().to_owned()
    }
}

/// Returns the words of a restore to this directory. `bin`: the directory of the servers' programs.
fn restoring<'a>(dir: &'a str, bin: &'a str) -> Vec<&'a str> {
    let mut words = vec!["restore", "--to", dir];
    if can_combine() {
        words.extend(["--pg-bin", bin]);
    }
    words
}

fn position(text: &str) -> u64 {
    let (high, low) = text.split_once('/').unwrap();
    u64::from_str_radix(high, 16).unwrap() << 32 | u64::from_str_radix(low, 16).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "random runs, some seconds each: make test-long"]
async fn every_acknowledged_row_is_in_a_restore_and_no_other_whatever_is_killed() {
    let seed = seed();
    let runs = number("KINGPOST_BACKUP_RUNS").unwrap_or(30);
    eprintln!("backups: KINGPOST_TORTURE_SEED={seed}, {runs} runs");
    let mut world = World::start(seed).await;
    let dir = world.cluster.dir().to_owned();
    let _logs = ShowLogs(&dir);
    world.write().await;
    done(&world.config, &["backup"]);
    world.write().await;
    world.moment().await;
    for run in 0..runs {
        for _ in 0..1 + world.random.draw(3) {
            world.write().await;
            world.fault().await;
        }
        if world.random.draw(3) == 0 {
            let words = world.backup();
            done(&world.config, &words);
        }
        world.write().await;
        world.moment().await;
        wait_archived(&world.cluster, &world.relay, world.cluster.primary()).await;
        world.restore(run).await;
        eprintln!("run {run}: {} rows, {} faults", world.rows, world.faults.len());
    }
    assert!(done(&world.config, &["backup", "verify"]).contains("are as in the server's manifest"));
    let left = crate::archive::files(&world.archive).into_keys().filter(|name| name.ends_with("/mark")).count();
    eprintln!(
        "backups: {runs} runs, {} rows, {} faults, {left} killed backups left to clean",
        world.rows,
        world.faults.len()
    );
}
