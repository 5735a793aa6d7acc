//! Commands for all clusters: each cluster's console carries out the command, and their results become one answer.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::Instant;

use wire::{Severity, Sqlstate, message};

use super::table::{Of, Table, Value};
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
    Console(SyncSender<Said>),
}

/// Result of a command.
#[derive(Debug)]
pub(crate) enum Said {
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
    parts: Vec<Part>,
    /// Deadline; consoles without a result by then are left out.
    until: Option<Instant>,
}

struct Part {
    cluster: Arc<str>,
    from: Receiver<Said>,
    said: Option<Said>,
    /// True if no result will come: the cluster is gone.
    gone: bool,
}

impl Said {
    /// Encodes the result for an operator's connection.
    pub(super) fn bytes(self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Said::Table(table) => table.write(&mut out),
            Said::Done(tag) => message::complete(&mut out, tag),
            Said::Nothing => message::empty(&mut out, b'I'),
            Said::Refused(code, text) | Said::NotHere(code, text) => {
                message::error(&mut out, Severity::Error, code, &text, "");
            }
        }
        message::ready(&mut out, message::Status::Idle);
        out
    }
}

impl Gathering {
    /// Creates a gathering of the results of these clusters, in their order. Clusters without a result at `until` are left out.
    pub(super) fn new(parts: Vec<(Arc<str>, Receiver<Said>)>, until: Option<Instant>) -> Gathering {
        let part = |(cluster, from)| Part { cluster, from, said: None, gone: false };
        Gathering { parts: parts.into_iter().map(part).collect(), until }
    }

    /// Receives new results; returns true once no more results are awaited.
    pub(super) fn is_complete(&mut self, now: Instant) -> bool {
        for part in &mut self.parts {
            if part.said.is_none() && !part.gone {
                match part.from.try_recv() {
                    Ok(said) => part.said = Some(said),
                    Err(TryRecvError::Disconnected) => part.gone = true,
                    Err(TryRecvError::Empty) => {}
                }
            }
        }
        self.until.is_some_and(|until| until <= now) || self.parts.iter().all(|part| part.gone || part.said.is_some())
    }

    /// Merges the results: tables one below the other, with the cluster's name at the end of each row. If one cluster refuses, the result is its
    /// refusal; a cluster that only lacks the command's object does not count if another one has it.
    pub(super) fn sum(&mut self) -> Said {
        let (mut all, mut done, mut refused, mut not_here): (Option<Table>, _, _, _) = (None, None, None, None);
        for part in &mut self.parts {
            match part.said.take() {
                Some(Said::Table(table)) => {
                    let sum = all.get_or_insert_with(|| {
                        let cluster = ("cluster", Of::Text);
                        Table { columns: table.columns.iter().copied().chain([cluster]).collect(), rows: Vec::new() }
                    });
                    sum.rows.extend(table.rows.into_iter().map(|mut row| {
                        row.push(Value::from(&*part.cluster));
                        row
                    }));
                }
                Some(Said::Done(tag)) => done = Some(Said::Done(tag)),
                Some(Said::Nothing) => done = Some(Said::Nothing),
                Some(Said::Refused(code, text)) => {
                    let cluster = &part.cluster;
                    refused.get_or_insert_with(|| Said::Refused(code, format!("cluster {cluster:?}: {text}")));
                }
                Some(Said::NotHere(code, text)) => not_here = Some(Said::NotHere(code, text)),
                None => tracing::warn!(cluster = %part.cluster, "a cluster's console did not answer in time"),
            }
        }
        let nobody =
            || Said::Refused(Sqlstate::CANNOT_CONNECT_NOW, "no cluster's console has answered: try again".into());
        refused.or(all.map(Said::Table)).or(done).or(not_here).unwrap_or_else(nobody)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn gathered(said: Vec<Option<Said>>) -> Said {
        let parts = said.into_iter().enumerate().map(|(at, said)| {
            let (sender, receiver) = sync_channel(1);
            if let Some(said) = said {
                sender.try_send(said).expect("room for one");
            }
            (format!("c{at}").as_str().into(), receiver)
        });
        let mut gathering = Gathering::new(parts.collect(), None);
        assert!(gathering.is_complete(Instant::now()));
        gathering.sum()
    }

    #[test]
    fn one_answer_of_several() {
        let not_here = || Some(Said::NotHere(Sqlstate::INVALID_CATALOG_NAME, "no such database".into()));
        let refused = || Some(Said::Refused(Sqlstate::INVALID_PARAMETER_VALUE, "no".into()));
        let table = |value: u64| {
            let mut table = Table::new(&[("n", Of::Number)]);
            table.row(vec![value.into()]);
            Some(Said::Table(table))
        };
        let text = |said: Vec<Option<Said>>| match gathered(said) {
            Said::Table(table) => format!("{:?}", table.rows),
            Said::Done(tag) => tag.to_owned(),
            Said::Nothing => "nothing".into(),
            Said::Refused(_, text) => text,
            Said::NotHere(_, text) => format!("not here: {text}"),
        };
        for (said, expected) in [
            (vec![Some(Said::Done("PAUSE")), Some(Said::Done("PAUSE"))], "PAUSE"),
            (vec![not_here(), Some(Said::Done("PAUSE"))], "PAUSE"),
            (vec![not_here(), not_here()], "not here: no such database"),
            (vec![Some(Said::Done("PAUSE")), refused()], "cluster \"c1\": no"),
            (vec![not_here(), refused()], "cluster \"c1\": no"),
            (vec![None, Some(Said::Done("PAUSE"))], "PAUSE"),
            (vec![None, None], "no cluster's console has answered: try again"),
        ] {
            assert_eq!(text(said), expected);
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
