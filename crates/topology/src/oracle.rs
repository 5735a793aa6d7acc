//! Queries the primary's position, for all that wait for it, in batches.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use alarm::Alarm;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, Statement};
use tracing::{debug, error};
use watermark::{Batch, Lsn, Oracle, PrimaryPosition, Wanted};
use wire::control::{ORACLE, Settings};

use crate::ask::parse_timeline;
use crate::config::{ClusterConfig, Target};
use crate::flush::By;
use crate::handle::Shared;
use crate::offer::{self, ASK_SNAPSHOT, Numbers};
use crate::probe::{ProbeError, Session, connect};
use crate::view::{NodeId, Term};

/// Most questions on their way.
const IN_FLIGHT: usize = 4;
/// Paces between two questions while no caller waits for an answer.
const PATIENCE: u32 = 5;
/// Paces between two questions that flush: a flush costs the primary, and all receivers of its log, as much for many commits as for one.
const FLUSHES: u32 = 3;
/// Time between two attempts to connect, and to ask a server that turned out not to be the primary of the view.
const RETRY: Duration = Duration::from_millis(50);

/// Query for the primary's position, with further columns to read or to execute there, evaluated one after the other.
macro_rules! question {
    ($($more:literal)*) => {
        concat!(
            "SELECT standby, \
                    CASE WHEN NOT standby THEN pg_catalog.pg_current_wal_insert_lsn() END, \
                    CASE WHEN NOT standby THEN left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8) END, \
                    CASE WHEN NOT standby THEN pg_catalog.pg_current_wal_flush_lsn() END",
            $(", CASE WHEN NOT standby THEN ", $more, " END",)*
            " FROM (SELECT pg_catalog.pg_is_in_recovery() AS standby OFFSET 0) AS role"
        )
    };
}

const ASK: &str = question!();

/// [`ASK`] that also flushes everything that was written when the position was read.
const FLUSH: &str = question!("pg_catalog.pg_logical_emit_message(false, 'kingpost', '', true)" "pg_catalog.pg_current_wal_flush_lsn()");

/// [`ASK`] for servers that can't flush by a function: the end of the transaction flushes, and precedes the answer.
const COMMIT: &str = question!("pg_catalog.pg_logical_emit_message(true, 'kingpost', '')");

/// The server to query; other changes of the view do not concern the oracle.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    pub(crate) node: NodeId,
    pub(crate) term: Term,
    pub(crate) target: Target,
    pub(crate) config: Arc<ClusterConfig>,
}

pub(crate) struct Driver {
    pub(crate) shared: Arc<Shared>,
    pub(crate) wanted: Arc<Notify>,
    pub(crate) asked: watch::Receiver<Option<Asked>>,
    /// Highest position known to be durable on a primary of this term.
    pub(crate) before: (Term, Lsn),
}

/// A session with the primary.
struct Line {
    asked: Asked,
    session: Session,
    ask: Statement,
    /// The question that also flushes, prepared when it is asked for the first time.
    flush: Option<(By, Statement)>,
    numbers: Numbers,
    /// `server_version_num` of a server with a log that questions could flush; else 0.
    version: i32,
}

/// The number of the batch, the answer, and how long it took.
type Reply = (u64, Result<PrimaryPosition, ProbeError>, Duration);

impl Driver {
    /// Runs until it is aborted.
    pub(crate) async fn run(mut self) {
        loop {
            let Some(asked) = self.asked.borrow_and_update().clone() else {
                if self.asked.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let limit = asked.config.probe_timeout;
            let connector = self.shared.connector.load_full();
            let opened = tokio::select! {
                opened = timeout(limit, Line::open(asked.clone(), connector)) => {
                    opened.unwrap_or(Err(ProbeError::Timeout(limit)))
                }
                // Another node is the primary now: nothing waits for this one any more.
                changed = self.asked.changed() => {
                    if changed.is_err() { return }
                    continue;
                }
            };
            let next = Instant::now() + RETRY;
            match opened {
                Ok(line) => {
                    self.shared.flush.found(line.version);
                    self.serve(line).await
                }
                Err(error) => {
                    debug!(node = asked.node.0, %error, "oracle cannot connect");
                    self.shared.suspect(asked.node);
                }
            }
            tokio::select! {
                () = sleep_until(next) => {}
                changed = self.asked.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Asks this server until it is not the primary any more, or fails. Every batch begun here ends here.
    async fn serve(&mut self, mut line: Line) {
        let shared = Arc::clone(&self.shared);
        let oracle: &Oracle = &shared.oracle;
        let mut replies: JoinSet<Reply> = JoinSet::new();
        // The batches stay here and not in the tasks: a batch that vanished with a task would leave its askers waiting.
        let mut under_way: HashMap<u64, (Batch, Lsn)> = HashMap::with_capacity(IN_FLIGHT);
        let mut count = 0_u64;
        // Each answer is compared with the position known when its question was sent: they may overtake one another.
        let mut furthest = if self.before.0 == line.asked.term { self.before.1 } else { Lsn(0) };
        let pace = line.asked.config.oracle_pace;
        let mut last: Option<Instant> = None;
        let mut alarm = Alarm::new();
        // Several waited for the last one.
        let mut together = false;
        loop {
            let room = under_way.len() < IN_FLIGHT;
            let pause = match oracle.wanted() {
                Wanted::Later if room => Some(pace * PATIENCE),
                Wanted::Now if room && at_once(together, under_way.len()) => Some(Duration::ZERO),
                Wanted::Now if room && shared.flush.is_wanted() => Some(pace * FLUSHES),
                Wanted::Now if room => Some(pace),
                _ => None,
            };
            let now = Instant::now();
            let next = pause.map(|pause| last.map_or(now, |last| last + pause));
            if next.is_some_and(|next| now >= next) {
                last = Some(now);
                count += 1;
                let batch = oracle.begin();
                together = batch.is_shared();
                under_way.insert(count, (batch, furthest));
                self.shared.clock.sent();
                let by = self.shared.flush.take();
                let Ok(ask) = line.question(by).await else {
                    self.shared.suspect(line.asked.node);
                    break;
                };
                let client = Arc::clone(&line.session.client);
                let (numbers, expected) = (line.numbers, line.asked.term.timeline);
                let limit = line.asked.config.probe_timeout;
                replies.spawn(async move {
                    let sent = Instant::now();
                    let answer = timeout(limit, question(&client, &ask, by, numbers, expected)).await;
                    (count, answer.unwrap_or(Err(ProbeError::Timeout(limit))), sent.elapsed())
                });
            }
            tokio::select! {
                biased;
                changed = self.asked.changed() => {
                    if changed.is_err() || self.asked.borrow_and_update().as_ref() != Some(&line.asked) { break }
                }
                _ = &mut line.session.closed => {
                    self.shared.suspect(line.asked.node);
                    break;
                }
                Some(reply) = replies.join_next(), if !under_way.is_empty() => {
                    let Ok((number, answer, took)) = reply else { break };
                    let Some((batch, floor)) = under_way.remove(&number) else { continue };
                    let current = self.asked.borrow().as_ref() == Some(&line.asked);
                    match answer {
                        Ok(answer) if current && answer.flushed < floor => {
                            // Not a crash: flushed WAL survives that. Positions mean something else from here on.
                            error!(
                                node = line.asked.node.0,
                                flushed = %answer.flushed,
                                "the primary's write-ahead log has gone back on the same timeline: it was restored from an older \
                                 copy; no commit is confirmed until it is on a new timeline"
                            );
                            self.shared.clock.failed();
                            oracle.fail(batch);
                            break;
                        }
                        Ok(answer) if current => {
                            furthest = furthest.max(answer.flushed);
                            self.before = (line.asked.term, furthest);
                            self.shared.clock.answered(took);
                            oracle.complete(batch, answer);
                        }
                        Ok(_) => {
                            self.shared.clock.failed();
                            oracle.fail(batch);
                            break;
                        }
                        Err(error) => {
                            debug!(node = line.asked.node.0, %error, "oracle's question failed");
                            self.shared.clock.failed();
                            oracle.fail(batch);
                            self.shared.suspect(line.asked.node);
                            break;
                        }
                    }
                }
                () = alarm.until(next.unwrap_or(now)), if next.is_some() => {}
                () = self.wanted.notified(), if room => {}
            }
        }
        for (batch, _) in under_way.into_values() {
            self.shared.clock.failed();
            oracle.fail(batch);
        }
    }
}

/// Returns true if a question is sent without waiting for the pace, which gathers several callers into one question: a single client after another
/// has no other to wait for.
fn at_once(shared: bool, under_way: usize) -> bool {
    !shared && under_way == 0
}

impl Line {
    async fn open(asked: Asked, connector: Option<Arc<tls::Connector>>) -> Result<Line, ProbeError> {
        // A question that flushes does so by the oracle's own setting, and waits for no standby.
        let settings = Settings::catalog().with("synchronous_commit", "local");
        let session = connect(&asked.target, &asked.config, connector, ORACLE, Some(&settings)).await?;
        let (system, numbers) = if asked.term.is_counted() {
            (offer::system_if_told(&session.client).await?, Numbers::Transactions)
        } else {
            let offered = offer::log(&session.client).await?;
            (offered.system, offered.numbers)
        };
        if system != asked.term.system {
            return Err(ProbeError::Unexpected(format!("database system {system}, not {}", asked.term.system)));
        }
        let Numbers::Log { .. } = numbers else {
            let ask = session.client.prepare(ASK_SNAPSHOT).await?;
            return Ok(Line { asked, session, ask, flush: None, numbers, version: 0 });
        };
        let ask = session.client.prepare(ASK).await?;
        let version =
            session.client.query_one("SELECT pg_catalog.current_setting('server_version_num')::int", &[]).await?;
        Ok(Line { asked, session, ask, flush: None, numbers, version: version.try_get(0)? })
    }

    async fn question(&mut self, by: Option<By>) -> Result<Statement, ProbeError> {
        let Some(by) = by else { return Ok(self.ask.clone()) };
        if let Some((_, statement)) = self.flush.as_ref().filter(|(prepared, _)| *prepared == by) {
            return Ok(statement.clone());
        }
        let text = match by {
            By::Message => FLUSH,
            By::Transaction => COMMIT,
        };
        let limit = self.asked.config.probe_timeout;
        let prepared = timeout(limit, self.session.client.prepare(text)).await;
        let statement = prepared.map_err(|_| ProbeError::Timeout(limit))??;
        self.flush = Some((by, statement.clone()));
        Ok(statement)
    }
}

async fn question(
    client: &Client,
    ask: &Statement,
    by: Option<By>,
    numbers: Numbers,
    expected: u32,
) -> Result<PrimaryPosition, ProbeError> {
    let row = client.query_one(ask, &[]).await?;
    if row.try_get(0)? {
        return Err(ProbeError::Unexpected("it is in recovery".into()));
    }
    let Numbers::Log { segment, .. } = numbers else {
        // Every commit acknowledged before the question has an ID below this one. Nothing is known of a log, and of its flush.
        let id = row.try_get::<_, i64>(2)?;
        let id = u64::try_from(id).map_err(|_| ProbeError::Unexpected(format!("{id} is no transaction id")))?;
        return Ok(PrimaryPosition { term: u64::from(expected), lsn: Lsn(id), flushed: Lsn(0) });
    };
    let timeline = parse_timeline(row.try_get(2)?)?;
    if timeline != expected {
        return Err(ProbeError::Unexpected(format!("it is on timeline {timeline}, not {expected}")));
    }
    let insert = Lsn(u64::from(row.try_get::<_, PgLsn>(1)?));
    let flushed = Lsn(u64::from(row.try_get::<_, PgLsn>(3)?));
    let lsn = insert.end_of_record(segment);
    let flushed = match by {
        None => flushed,
        Some(By::Message) => Lsn(u64::from(row.try_get::<_, PgLsn>(5)?)),
        Some(By::Transaction) => flushed.max(lsn),
    };
    Ok(PrimaryPosition { term: u64::from(timeline), lsn, flushed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_asks_alone_does_not_wait_for_the_pace() {
        for (shared, under_way, expected) in
            [(false, 0, true), (false, 1, false), (true, 0, false), (true, 1, false), (false, IN_FLIGHT - 1, false)]
        {
            assert_eq!(at_once(shared, under_way), expected, "{shared} {under_way}");
        }
    }
}
