//! Recovery of the promises of a relay that has lost its directory, and its restrictions until then.
//!
//! A relay without a promise file does not know its promises. It may have promised to take nothing more from the very server that it is pointed at.
//! So it acknowledges nothing until it has learnt enough ([`conclude`]), or an operator says that it is new. docs/decisions/0035 has the rules with
//! their reasons.

use std::collections::BTreeSet;
use std::time::Duration;

use wire::replication::Rows;

use crate::ask::{identify, recall};
use crate::error::Peer;
use crate::promise::{Choice, Promise};
use crate::session::{Login, Session};
use crate::surroundings::Surroundings;

/// Longest time for one step of a query.
const STEP: Duration = Duration::from_secs(3);

/// The promises that a relay remembers, as it tells others: the answer to `KINGPOST PROMISE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recollection {
    /// Random number of the process, by which a relay recognises itself.
    pub instance: u64,
    /// System identifier of the cluster; None: the relay has no log.
    pub system: Option<u64>,
    /// The timeline of its log; 0: it has none.
    pub timeline: u32,
    /// None: the relay does not know its promises.
    pub memory: Option<Memory>,
}

/// The part of a promise that others take over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// The highest promised term; 0: none.
    pub term: u64,
    /// The last timeline of which the relay takes nothing more; 0: none.
    pub fenced: u32,
    /// The node chosen to go on from the end of that timeline.
    pub chosen: Option<Choice>,
}

/// Answers of the upstream, the servers and the other relays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The upstream's timeline.
    pub upstream: u32,
    /// Timelines of the servers, or the reasons why they do not answer.
    pub servers: Vec<(String, Result<u32, String>)>,
    /// Memories of the other relays, or the reasons why they do not answer.
    pub relays: Vec<(String, Result<Recollection, String>)>,
    /// Number of relays that must have a commit before it is acknowledged.
    pub acknowledgements: Option<usize>,
}

/// Conclusion from the evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conclusion {
    /// The promise, as far as it matters.
    Known(Promise),
    /// No relay remembers anything, and all were asked.
    Nobody {
        /// The newest timeline of any server or relay.
        newest: u32,
    },
    /// Relays and servers that have to answer first, each with the reason why it does not.
    Silent(Vec<String>),
}

/// Concludes this relay's promise. `is_new`: an operator says that nobody else remains to be asked.
#[must_use]
pub fn conclude(evidence: &Evidence, is_new: bool) -> Conclusion {
    let told = |(_, answer): &(String, Result<Recollection, String>)| answer.as_ref().ok().cloned();
    let answers: Vec<Recollection> = evidence.relays.iter().filter_map(told).collect();
    let memories: Vec<&Memory> = answers.iter().filter_map(|answer| answer.memory.as_ref()).collect();
    // A fence needs all relays but `acknowledgements` - 1. If that many others remember, at least one of them took part in any fence.
    let enough = evidence.acknowledgements.is_some_and(|needed| needed > 0 && memories.len() >= needed);
    let silent_servers =
        evidence.servers.iter().filter_map(|(name, answer)| Some(("server", name, answer.as_ref().err()?)));
    let silent_relays =
        evidence.relays.iter().filter_map(|(name, answer)| Some(("relay", name, answer.as_ref().err()?)));
    let silent: Vec<String> =
        silent_relays.chain(silent_servers).map(|(kind, name, why)| format!("{kind} {name} ({why})")).collect();
    if !enough && !is_new && !silent.is_empty() {
        return Conclusion::Silent(silent);
    }
    let servers = evidence.servers.iter().filter_map(|(_, answer)| answer.as_ref().ok().copied());
    let relays = answers.iter().map(|answer| answer.timeline);
    let newest = servers.chain(relays).chain([evidence.upstream]).max().unwrap_or(0);
    let Some(term) = memories.iter().map(|memory| memory.term).max() else {
        return Conclusion::Nobody { newest };
    };
    // Every timeline older than the newest one has ended.
    let fenced = memories.iter().map(|memory| memory.fenced).max().unwrap_or(0).max(newest.saturating_sub(1));
    let chosen = memories.iter().filter(|memory| memory.fenced == fenced).filter_map(|memory| memory.chosen.clone());
    Conclusion::Known(Promise::learnt(term, fenced, chosen.max_by_key(|choice| choice.term)))
}

/// Asks all servers and relays in parallel. `login` is the upstream's, which also serves for the servers; `instance` is this relay's own.
pub(crate) fn gather(around: &Surroundings, login: &Login<'_>, upstream: u32, system: u64, instance: u64) -> Evidence {
    let server = |name: &str, address: &str| -> Result<u32, String> {
        let login = Login { peer: Peer::Server(name.into()), address, step: STEP, ..login.clone() };
        let session = Session::open(&login, |_| Ok(()));
        let seen = session.and_then(|mut session| identify(&mut session)).map_err(|error| error.to_string())?;
        if seen.system == system { Ok(seen.timeline) } else { Err("it belongs to another cluster".into()) }
    };
    let server = &server;
    std::thread::scope(|scope| {
        let servers: Vec<_> =
            around.servers.iter().map(|(name, address)| (name, scope.spawn(move || server(name, address)))).collect();
        let relays: Vec<_> = around
            .relays
            .iter()
            .map(|relay| (&relay.name, scope.spawn(move || recall(&relay.access(), STEP))))
            .collect();
        let panicked = || "asking it panicked".to_owned();
        let servers = servers.into_iter().map(|(name, asked)| (name.clone(), asked.join().unwrap_or(Err(panicked()))));
        let relays = relays.into_iter().map(|(name, asked)| {
            let answer =
                asked.join().map_err(|_| panicked()).and_then(|answer| answer.map_err(|error| error.to_string()));
            let foreign = |answer: &Recollection| answer.system.is_some_and(|other| other != system);
            let answer = answer.and_then(|answer| match foreign(&answer) {
                true => Err("it belongs to another cluster".into()),
                false => Ok(answer),
            });
            (name.clone(), answer)
        });
        // One relay may be listed under two names.
        let mut seen = BTreeSet::from([instance]);
        let relays = relays.filter(|(_, answer)| answer.as_ref().map_or(true, |answer| seen.insert(answer.instance)));
        Evidence {
            upstream,
            servers: servers.collect(),
            relays: relays.collect(),
            acknowledgements: around.acknowledgements,
        }
    })
}

// === impl Recollection ===

impl Recollection {
    /// Renders the recollection as a row of text.
    pub(crate) fn columns(&self) -> Vec<(&'static str, String)> {
        let number = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
        let memory = self.memory.as_ref();
        let chosen = memory.and_then(|memory| memory.chosen.as_ref());
        vec![
            ("instance", format!("{:016x}", self.instance)),
            ("system", number(self.system)),
            ("timeline", self.timeline.to_string()),
            ("term", number(memory.map(|memory| memory.term))),
            ("fenced", number(memory.map(|memory| memory.fenced.into()))),
            ("chosen_term", number(chosen.map(|choice| choice.term))),
            ("chosen_node", chosen.map(|choice| choice.node.clone()).unwrap_or_default()),
        ]
    }

    /// Parses the row of [`Recollection::columns`]; None if it is something else.
    pub(crate) fn read(row: &Rows) -> Option<Recollection> {
        let number = |index| match row.text(index) {
            Some("") => Some(None),
            Some(text) => text.parse::<u64>().ok().map(Some),
            None => None,
        };
        let chosen = match number(5)? {
            Some(term) => Some(Choice { term, node: row.text(6)?.to_owned() }),
            None => None,
        };
        let memory = match (number(3)?, number(4)?) {
            (Some(term), Some(fenced)) => Some(Memory { term, fenced: fenced.try_into().ok()?, chosen }),
            (None, None) => None,
            _ => return None,
        };
        Some(Recollection {
            instance: u64::from_str_radix(row.text(0)?, 16).ok()?,
            system: number(1)?,
            timeline: row.text(2)?.parse().ok()?,
            memory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(term: u64, fenced: u32, chosen: Option<(u64, &str)>) -> Option<Memory> {
        let chosen = chosen.map(|(term, node)| Choice { term, node: node.into() });
        Some(Memory { term, fenced, chosen })
    }

    fn relay(timeline: u32, memory: Option<Memory>) -> (String, Result<Recollection, String>) {
        ("r".into(), Ok(Recollection { instance: 1, system: Some(7), timeline, memory }))
    }

    fn dead(name: &str) -> (String, Result<Recollection, String>) {
        (name.into(), Err("gone".into()))
    }

    fn server(timeline: u32) -> (String, Result<u32, String>) {
        ("s".into(), Ok(timeline))
    }

    fn known(term: u64, fenced: u32, chosen: Option<(u64, &str)>) -> Conclusion {
        let chosen = chosen.map(|(term, node)| Choice { term, node: node.into() });
        Conclusion::Known(Promise::learnt(term, fenced, chosen))
    }

    fn silent(names: &[&str]) -> Conclusion {
        Conclusion::Silent(names.iter().map(|name| format!("{name} (gone)")).collect())
    }

    #[test]
    fn table() {
        let none = Vec::new;
        let lost = || ("s2".to_owned(), Err("gone".to_owned()));
        for (upstream, servers, relays, needed, expected, why) in [
            (
                1,
                none(),
                vec![],
                None,
                Conclusion::Nobody { newest: 1 },
                "a relay and a server, and nobody else is known",
            ),
            (
                1,
                vec![server(1), server(1)],
                vec![],
                None,
                Conclusion::Nobody { newest: 1 },
                "all servers, and no other relay",
            ),
            (1, vec![server(1), server(2)], vec![], None, Conclusion::Nobody { newest: 2 }, "one was promoted"),
            (1, vec![server(1), lost()], vec![], None, silent(&["server s2"]), "one may have been promoted"),
            (1, none(), vec![dead("r2")], None, silent(&["relay r2"]), "another relay may remember"),
            (1, vec![lost()], vec![dead("r2")], Some(1), silent(&["relay r2", "server s2"]), "both"),
            (1, none(), vec![relay(0, None)], None, Conclusion::Nobody { newest: 1 }, "all relays are new"),
            (
                1,
                none(),
                vec![relay(1, memory(0, 0, None))],
                None,
                known(0, 0, None),
                "the other one has promised nothing",
            ),
            (1, none(), vec![relay(1, memory(5, 1, None))], None, known(5, 1, None), "fenced"),
            (
                1,
                none(),
                vec![
                    relay(1, memory(5, 1, Some((4, "n1")))),
                    relay(1, memory(4, 1, Some((4, "n1")))),
                    relay(1, memory(3, 0, None)),
                ],
                None,
                known(5, 1, Some((4, "n1"))),
                "the highest of each",
            ),
            (
                2,
                none(),
                vec![relay(2, memory(5, 1, Some((5, "n1"))))],
                None,
                known(5, 1, Some((5, "n1"))),
                "after the failover: the fence is passed",
            ),
            (
                3,
                none(),
                vec![relay(2, memory(5, 1, Some((5, "n1"))))],
                None,
                known(5, 2, None),
                "what was chosen for an older timeline does not count",
            ),
            (1, none(), vec![relay(2, memory(5, 1, None))], None, known(5, 1, None), "the upstream is the old primary"),
            (
                1,
                vec![lost()],
                vec![relay(1, memory(5, 1, None)), relay(1, memory(5, 1, None)), dead("r4")],
                Some(2),
                known(5, 1, None),
                "so many remember that one of them was there",
            ),
            (
                1,
                vec![lost()],
                vec![relay(1, memory(5, 1, None)), relay(1, None)],
                Some(2),
                silent(&["server s2"]),
                "one that has lost its memory too is none of them",
            ),
        ] {
            let evidence = Evidence { upstream, servers, relays, acknowledgements: needed };
            assert_eq!(conclude(&evidence, false), expected, "{why}");
        }
    }

    #[test]
    fn an_operators_word_stands_for_those_who_are_silent() {
        let lost = || ("s2".to_owned(), Err("gone".to_owned()));
        for (relays, expected) in [
            (vec![dead("r2")], Conclusion::Nobody { newest: 2 }),
            (vec![dead("r2"), relay(1, memory(5, 1, Some((5, "n1"))))], known(5, 1, Some((5, "n1")))),
        ] {
            let evidence = Evidence { upstream: 1, servers: vec![server(2), lost()], relays, acknowledgements: None };
            assert_eq!(conclude(&evidence, true), expected);
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for (system, memory) in [
            (None, None),
            (Some(7), None),
            (Some(7), memory(3, 0, None)),
            (Some(7), memory(u64::MAX, 2, Some((3, "n \"1\"")))),
        ] {
            let told = Recollection { instance: 0xfe, system, timeline: 2, memory };
            let row = Rows(told.columns().into_iter().map(|(_, value)| Some(value.into_bytes())).collect());
            assert_eq!(Recollection::read(&row), Some(told));
        }
        assert_eq!(Recollection::read(&Rows(vec![Some(b"7".to_vec())])), None);
    }
}
