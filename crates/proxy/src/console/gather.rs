//! Commands for all clusters: each cluster's console carries out the command, and their results become one answer.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::Instant;

use wire::{Severity, Sqlstate, message};

use super::table::{ColumnType, Table, Value};
use crate::core::token::Token;

/// Requester of a command, which receives the result.
#[derive(Debug)]
pub(crate) enum Asker {
    /// An operator's connection, with its worker.
    Client {
        /// The worker.
        worker: usize,
        /// The connection.
        client: Token,
    },
    /// The console of all clusters.
    Console(SyncSender<CommandResult>),
}

/// Result of a command.
#[derive(Debug)]
pub(crate) enum CommandResult {
    /// The rows of a `SHOW`.
    Table(Table),
    /// Success, with the command tag.
    Done(&'static str),
    /// The text has no command.
    Nothing,
    /// The command was refused.
    Refused(Sqlstate, String),
    /// The command's object is not in this cluster; another cluster may have it.
    NotHere(Sqlstate, String),
}

/// A command carried out by several consoles.
pub(super) struct Gathering {
    results: Vec<ClusterResult>,
    /// Deadline; consoles without a result by then are left out.
    until: Option<Instant>,
}

struct ClusterResult {
    cluster: Arc<str>,
    from: Receiver<CommandResult>,
    result: Option<CommandResult>,
    /// True if no result will come: the cluster is gone.
    gone: bool,
}

impl CommandResult {
    /// Encodes the result for an operator's connection.
    pub(super) fn bytes(self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            CommandResult::Table(table) => table.write(&mut out),
            CommandResult::Done(tag) => message::complete(&mut out, tag),
            CommandResult::Nothing => message::empty(&mut out, b'I'),
            CommandResult::Refused(code, text) | CommandResult::NotHere(code, text) => {
                message::error(&mut out, Severity::Error, code, &text, "");
            }
        }
        message::ready(&mut out, message::Status::Idle);
        out
    }
}

impl Gathering {
    /// Creates a gathering of the results of these clusters, in their order. Clusters without a result at `until` are left out.
    pub(super) fn new(parts: Vec<(Arc<str>, Receiver<CommandResult>)>, until: Option<Instant>) -> Gathering {
        let awaited = |(cluster, from)| ClusterResult { cluster, from, result: None, gone: false };
        Gathering { results: parts.into_iter().map(awaited).collect(), until }
    }

    /// Receives new results; returns true once no more results are awaited.
    pub(super) fn is_complete(&mut self, now: Instant) -> bool {
        for cluster in &mut self.results {
            if cluster.result.is_none() && !cluster.gone {
                match cluster.from.try_recv() {
                    Ok(result) => cluster.result = Some(result),
                    Err(TryRecvError::Disconnected) => cluster.gone = true,
                    Err(TryRecvError::Empty) => {}
                }
            }
        }
        self.until.is_some_and(|until| until <= now)
            || self.results.iter().all(|cluster| cluster.gone || cluster.result.is_some())
    }

    /// Merges the results: tables one below the other, with the cluster's name at the end of each row. If one cluster refuses, the result is its
    /// refusal; a cluster that only lacks the command's object does not count if another one has it.
    pub(super) fn sum(&mut self) -> CommandResult {
        let (mut all, mut done, mut refused, mut not_here): (Option<Table>, _, _, _) = (None, None, None, None);
        for cluster in &mut self.results {
            match cluster.result.take() {
                Some(CommandResult::Table(table)) => {
                    let sum = all.get_or_insert_with(|| {
                        let cluster = ("cluster", ColumnType::Text);
                        Table { columns: table.columns.iter().copied().chain([cluster]).collect(), rows: Vec::new() }
                    });
                    sum.rows.extend(table.rows.into_iter().map(|mut row| {
                        row.push(Value::from(&*cluster.cluster));
                        row
                    }));
                }
                Some(CommandResult::Done(tag)) => done = Some(CommandResult::Done(tag)),
                Some(CommandResult::Nothing) => done = Some(CommandResult::Nothing),
                Some(CommandResult::Refused(code, text)) => {
                    let cluster = &cluster.cluster;
                    refused.get_or_insert_with(|| CommandResult::Refused(code, format!("cluster {cluster:?}: {text}")));
                }
                Some(CommandResult::NotHere(code, text)) => not_here = Some(CommandResult::NotHere(code, text)),
                None => tracing::warn!(cluster = %cluster.cluster, "a cluster's console did not answer in time"),
            }
        }
        let nobody = || {
            CommandResult::Refused(Sqlstate::CANNOT_CONNECT_NOW, "no cluster's console has answered: try again".into())
        };
        refused.or(all.map(CommandResult::Table)).or(done).or(not_here).unwrap_or_else(nobody)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn gathered(results: Vec<Option<CommandResult>>) -> CommandResult {
        let parts = results.into_iter().enumerate().map(|(at, result)| {
            let (sender, receiver) = sync_channel(1);
            if let Some(result) = result {
                sender.try_send(result).expect("room for one");
            }
            (format!("c{at}").as_str().into(), receiver)
        });
        let mut gathering = Gathering::new(parts.collect(), None);
        assert!(gathering.is_complete(Instant::now()));
        gathering.sum()
    }

    #[test]
    fn one_answer_of_several() {
        let not_here = || Some(CommandResult::NotHere(Sqlstate::INVALID_CATALOG_NAME, "no such database".into()));
        let refused = || Some(CommandResult::Refused(Sqlstate::INVALID_PARAMETER_VALUE, "no".into()));
        let table = |value: u64| {
            let mut table = Table::new(&[("n", ColumnType::Number)]);
            table.row(vec![value.into()]);
            Some(CommandResult::Table(table))
        };
        let text = |results: Vec<Option<CommandResult>>| match gathered(results) {
            CommandResult::Table(table) => format!("{:?}", table.rows),
            CommandResult::Done(tag) => tag.to_owned(),
            CommandResult::Nothing => "nothing".into(),
            CommandResult::Refused(_, text) => text,
            CommandResult::NotHere(_, text) => format!("not here: {text}"),
        };
        for (results, expected) in [
            (vec![Some(CommandResult::Done("PAUSE")), Some(CommandResult::Done("PAUSE"))], "PAUSE"),
            (vec![not_here(), Some(CommandResult::Done("PAUSE"))], "PAUSE"),
            (vec![not_here(), not_here()], "not here: no such database"),
            (vec![Some(CommandResult::Done("PAUSE")), refused()], "cluster \"c1\": no"),
            (vec![not_here(), refused()], "cluster \"c1\": no"),
            (vec![None, Some(CommandResult::Done("PAUSE"))], "PAUSE"),
            (vec![None, None], "no cluster's console has answered: try again"),
        ] {
            assert_eq!(text(results), expected);
        }
        assert_eq!(text(vec![table(1), None, table(3)]), "[[Number(1), Text(\"c0\")], [Number(3), Text(\"c2\")]]");
    }

    #[test]
    fn who_says_nothing_is_not_waited_for_for_ever() {
        let (_silent, receiver) = sync_channel(1);
        let now = Instant::now();
        let mut gathering = Gathering::new(vec![("a".into(), receiver)], Some(now + std::time::Duration::from_secs(1)));
        assert!(!gathering.is_complete(now));
        assert!(gathering.is_complete(now + std::time::Duration::from_secs(1)));
    }
}
