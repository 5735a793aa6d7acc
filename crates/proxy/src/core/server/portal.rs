//! What the portals of a server connection's transaction are of: a Bind makes one, an Execute runs it.

use std::sync::Arc;

use sql::Changes;

use crate::core::prepared::Statement;

/// Named portals of one transaction that are followed; of more nothing is known.
const MOST: usize = 64;

/// The portals that a client has bound by the protocol. They end with their transaction.
#[derive(Debug, Default)]
pub(in crate::core) struct Portals {
    unnamed: Portal,
    named: Vec<(Box<[u8]>, Portal)>,
}

/// One of them.
#[derive(Debug, Default)]
pub(in crate::core) struct Portal {
    /// What it runs; None: a statement that was not prepared by the protocol, or nothing is known.
    pub statement: Option<Arc<Statement>>,
    /// What the client calls that statement; empty: nothing.
    pub called: Vec<u8>,
    /// What running it changes, with bound values filled in; None: nothing, nothing is known, or it has been run.
    changes: Option<Arc<Changes>>,
    /// An Execute of it was sent, or answered.
    has_run: bool,
}

/// What an Execute runs.
#[derive(Debug, Default)]
pub(in crate::core) struct Run {
    /// Its statement; None: nothing is known of it.
    pub statement: Option<Arc<Statement>>,
    /// What that changes, if it has not changed it before.
    pub changes: Option<Arc<Changes>>,
    /// The portal has been run before.
    pub again: bool,
}

impl Portals {
    /// A portal is bound to a statement, which the client calls `called`. False: there are too many to be followed.
    pub(in crate::core) fn bind(
        &mut self,
        name: &[u8],
        statement: Option<Arc<Statement>>,
        called: &[u8],
        changes: Option<Arc<Changes>>,
    ) -> bool {
        let portal = if name.is_empty() {
            &mut self.unnamed
        } else {
            let known = self.named.iter().position(|(known, _)| **known == *name);
            let at = match known {
                Some(at) => at,
                None if self.named.len() >= MOST => return false,
                None => {
                    self.named.push((name.into(), Portal::default()));
                    self.named.len() - 1
                }
            };
            &mut self.named[at].1
        };
        portal.statement = statement;
        portal.changes = changes;
        portal.has_run = false;
        portal.called.clear();
        portal.called.extend_from_slice(called);
        true
    }

    /// The portal of this name, if it is known.
    pub(in crate::core) fn get(&self, name: &[u8]) -> Option<&Portal> {
        if name.is_empty() {
            return Some(&self.unnamed);
        }
        self.named.iter().find(|(known, _)| **known == *name).map(|(_, portal)| portal)
    }

    /// A portal is run: its statement, and what that changes. A portal that is suspended by a row limit (`E '' 1`) and run again has changed
    /// that already.
    pub(in crate::core) fn run(&mut self, name: &[u8]) -> Run {
        let portal = match name {
            b"" => Some(&mut self.unnamed),
            name => self.named.iter_mut().find(|(known, _)| **known == *name).map(|(_, portal)| portal),
        };
        portal.map_or_else(Run::default, |portal| Run {
            statement: portal.statement.clone(),
            changes: portal.changes.take(),
            again: std::mem::replace(&mut portal.has_run, true),
        })
    }

    /// The transaction is over.
    pub(in crate::core) fn end(&mut self) {
        self.named.clear();
        self.unnamed.statement = None;
        self.unnamed.changes = None;
        self.unnamed.called.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portals_are_followed_up_to_a_bound() {
        let mut portals = Portals::default();
        let changes = || Some(Arc::new(Changes::default()));
        assert!(portals.bind(b"", None, b"s", None));
        assert!(portals.bind(b"p", None, b"t", changes()));
        assert!(portals.get(b"p").is_some_and(|portal| portal.called == b"t" && portal.changes.is_some()));
        assert!(portals.get(b"").is_some_and(|portal| portal.called == b"s") && portals.get(b"q").is_none());
        let (first, second) = (portals.run(b"p"), portals.run(b"p"));
        assert!(first.changes.is_some() && second.changes.is_none(), "it changes that once");
        assert!(!first.again && second.again);
        for n in 0..MOST - 1 {
            assert!(portals.bind(n.to_string().as_bytes(), None, b"", None));
        }
        assert!(!portals.bind(b"q", None, b"", None) && portals.bind(b"p", None, b"u", None));
        portals.end();
        assert!(portals.get(b"p").is_none() && portals.get(b"").is_some_and(|portal| portal.called.is_empty()));
    }
}
