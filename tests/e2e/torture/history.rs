//! The clients' operations, their answers, and the violations to find.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kingpost_tests::{Endpoint, SOON, sqlstate, wait_until, within};
use tokio_postgres::{Client, Error};

use super::scene::Scene;

/// SQLSTATEs of an unknown outcome; a lost connection has one, too.
const UNKNOWN: [&str; 3] = ["08007", "40003", ""];

/// A violation of the guarantees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Violation {
    /// Acknowledged, but missing.
    Lost { client: usize, n: i64 },
    /// Present more than once, but sent once.
    Twice { client: i32, n: i64 },
    /// Refused, but present.
    Ghost { client: usize, n: i64 },
    /// A read missed a write acknowledged to its own session, or, for a strong read, to any client.
    Stale { client: usize, n: i64, seen: i64 },
    /// Read by a client, but missing: with read barriers that must not happen.
    Vanished { client: usize, n: i64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Acknowledged,
    Unknown,
    Refused,
}

/// Answers to one client, by number; and its wrong reads.
#[derive(Default)]
struct Record {
    outcomes: BTreeMap<i64, Outcome>,
    stale: Vec<Violation>,
    /// The highest number of each client that this one has read.
    seen: BTreeMap<usize, i64>,
    reads: u64,
    reconnects: u64,
}

/// Clients that continue after any fault.
pub(super) struct Clients {
    records: Vec<Arc<Mutex<Record>>>,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    tasks: Mutex<Vec<tokio::task::JoinHandle<()>>>,
}

impl Clients {
    pub(super) fn start(endpoint: &Endpoint, count: usize) -> Clients {
        Clients::start_at(&[endpoint], count)
    }

    /// Starts clients on several endpoints, in pairs.
    pub(super) fn start_at(endpoints: &[&Endpoint], count: usize) -> Clients {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let highest: Arc<[AtomicI64]> = (0..count).map(|_| AtomicI64::new(0)).collect();
        let (mut records, mut tasks) = (Vec::new(), Vec::new());
        for number in 0..count {
            let record = Arc::<Mutex<Record>>::default();
            let one = One {
                number,
                endpoint: endpoints[number / 2 % endpoints.len()].clone(),
                record: record.clone(),
                acknowledged: acknowledged.clone(),
                highest: highest.clone(),
                stop: stop.clone(),
            };
            tasks.push(tokio::spawn(one.run()));
            records.push(record);
        }
        Clients { records, stop, acknowledged, tasks: Mutex::new(tasks) }
    }

    /// Waits for `more` further acknowledged writes.
    pub(super) async fn progress(&self, world: &impl Scene, more: u64) {
        let target = self.acknowledged.load(Ordering::Relaxed) + more;
        let what = format!("{more} more commits after {}", world.last());
        wait_until(&what, SOON, world.dir(), async || {
            (self.acknowledged.load(Ordering::Relaxed) >= target).then_some(())
        })
        .await;
    }

    /// Measures from now on how long the clients get no commit acknowledged.
    pub(super) fn standstill(&self) -> Standstill {
        let (acknowledged, longest) = (self.acknowledged.clone(), Arc::<Mutex<Duration>>::default());
        let measured = longest.clone();
        let task = tokio::spawn(async move {
            let (mut count, mut since) = (acknowledged.load(Ordering::Relaxed), Instant::now());
            loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                let now = acknowledged.load(Ordering::Relaxed);
                if now != count {
                    (count, since) = (now, Instant::now());
                }
                let mut measured = measured.lock().unwrap();
                *measured = since.elapsed().max(*measured);
            }
        });
        Standstill { longest, task }
    }

    /// Ends the clients; returns a summary.
    pub(super) async fn end(&self, world: &impl Scene) -> String {
        self.stop.store(true, Ordering::Relaxed);
        let tasks: Vec<_> = self.tasks.lock().unwrap().drain(..).collect();
        for task in tasks {
            within("a client to end", SOON, world.dir(), task).await.unwrap();
        }
        let (mut of, mut reads, mut reconnects) = ([0_u64; 3], 0, 0);
        for record in &self.records {
            let record = record.lock().unwrap();
            for outcome in record.outcomes.values() {
                of[*outcome as usize] += 1;
            }
            (reads, reconnects) = (reads + record.reads, reconnects + record.reconnects);
        }
        let mut text = String::new();
        let [acknowledged, unknown, refused] = of;
        let _ = write!(
            text,
            "{acknowledged} commits acknowledged, {unknown} unknown, {refused} refused, {reads} reads, \
             {reconnects} reconnects"
        );
        text
    }

    /// Compares the answers so far with the data.
    pub(super) async fn check(&self, world: &impl Scene) -> Vec<Violation> {
        let mut violations = Vec::new();
        let told: Vec<BTreeMap<i64, Outcome>> =
            self.records.iter().map(|record| record.lock().unwrap().outcomes.clone()).collect();
        let seen: Vec<(usize, i64)> = self
            .records
            .iter()
            .flat_map(|record| record.lock().unwrap().seen.clone())
            .filter(|(_, n)| *n > 0)
            .collect();
        let admin = world.admin().await;
        let rows = admin.query("SELECT w, n, count(*) FROM log GROUP BY w, n", &[]).await.unwrap();
        let mut there: Vec<BTreeMap<i64, i64>> = vec![BTreeMap::new(); told.len()];
        for row in rows {
            let (client, n, count): (i32, i64, i64) = (row.get(0), row.get(1), row.get(2));
            there[client as usize].insert(n, count);
            if count > 1 {
                violations.push(Violation::Twice { client, n });
            }
        }
        for (client, told) in told.iter().enumerate() {
            for (&n, outcome) in told {
                match (outcome, there[client].contains_key(&n)) {
                    (Outcome::Acknowledged, false) => violations.push(Violation::Lost { client, n }),
                    (Outcome::Refused, true) => violations.push(Violation::Ghost { client, n }),
                    _ => {}
                }
            }
        }
        // With PostgreSQL's own synchronous replication a restarted server shows commits that the relay may lack.
        if world.has_barriers() {
            let gone = seen.into_iter().filter(|(client, n)| !there[*client].contains_key(n));
            violations.extend(gone.map(|(client, n)| Violation::Vanished { client, n }));
        }
        for record in &self.records {
            violations.extend(record.lock().unwrap().stale.iter().cloned());
        }
        violations
    }
}

/// The longest time without an acknowledged commit.
pub(super) struct Standstill {
    longest: Arc<Mutex<Duration>>,
    task: tokio::task::JoinHandle<()>,
}

impl Standstill {
    pub(super) fn longest(&self) -> Duration {
        *self.longest.lock().unwrap()
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct One {
    number: usize,
    endpoint: Endpoint,
    record: Arc<Mutex<Record>>,
    acknowledged: Arc<AtomicU64>,
    /// The highest number acknowledged to each client.
    highest: Arc<[AtomicI64]>,
    stop: Arc<AtomicBool>,
}

impl One {
    async fn run(self) {
        let mut client: Option<Client> = None;
        // Highest number acknowledged in this session.
        let mut own = 0;
        for n in 1.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            if client.as_ref().is_none_or(Client::is_closed) {
                own = 0;
                self.record.lock().unwrap().reconnects += u64::from(client.is_some());
                client = match self.connect().await {
                    Ok(client) => Some(client),
                    Err(_) => {
                        // The proxy is down. Nothing was sent: this number is not used.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    }
                };
            }
            let Some(session) = &client else { continue };
            let outcome = self.write(session, n).await;
            self.record.lock().unwrap().outcomes.insert(n, outcome);
            if outcome == Outcome::Acknowledged {
                own = n;
                self.highest[self.number].store(n, Ordering::SeqCst);
                self.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            if n % 3 == 0 && own > 0 {
                self.read(session, self.number, own).await;
            }
            if n % 5 == 0 {
                let other = (self.number + n as usize / 5) % self.highest.len();
                let acknowledged = self.highest[other].load(Ordering::SeqCst);
                self.read(session, other, if self.is_strong() { acknowledged } else { 0 }).await;
            }
            // Leaves time for the other work of the machine.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// True for every other client, whose reads are strong.
    fn is_strong(&self) -> bool {
        self.number.is_multiple_of(2)
    }

    async fn connect(&self) -> Result<Client, Error> {
        let client = self.endpoint.try_connect(&self.endpoint.config()).await?;
        if self.is_strong() {
            client.batch_execute("SET kingpost.consistency = 'strong'").await?;
        }
        Ok(client)
    }

    async fn write(&self, client: &Client, n: i64) -> Outcome {
        let insert = format!("INSERT INTO log VALUES ({}, {n})", self.number);
        match n % 3 {
            0 => told(client.batch_execute(&insert).await),
            1 => told(client.execute(&insert, &[]).await.map(drop)),
            _ => {
                if let Err(error) = client.batch_execute(&format!("BEGIN; {insert}")).await {
                    // Nothing was committed, whatever the failure.
                    if !client.is_closed() {
                        let _ = client.batch_execute("ROLLBACK").await;
                    }
                    drop(error);
                    return Outcome::Refused;
                }
                // COMMIT of a failed transaction returns ROLLBACK.
                match client.simple_query("COMMIT").await {
                    Ok(_) => Outcome::Acknowledged,
                    Err(error) => told(Err(error)),
                }
            }
        }
    }

    /// Reads the writes of `client`, whose last number must not be below `expected`.
    async fn read(&self, session: &Client, client: usize, expected: i64) {
        let sql = format!("SELECT coalesce(max(n), 0) FROM log WHERE w = {client}");
        let Ok(row) = session.query_one(&sql, &[]).await else { return };
        let seen: i64 = row.get(0);
        let mut record = self.record.lock().unwrap();
        record.reads += 1;
        let highest = record.seen.entry(client).or_default();
        *highest = seen.max(*highest);
        if seen < expected {
            record.stale.push(Violation::Stale { client, n: expected, seen });
        }
    }
}

fn told(result: Result<(), Error>) -> Outcome {
    match result {
        Ok(()) => Outcome::Acknowledged,
        Err(error) if UNKNOWN.contains(&sqlstate(&error)) => Outcome::Unknown,
        Err(_) => Outcome::Refused,
    }
}
