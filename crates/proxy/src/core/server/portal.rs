//! The statements that the portals of a server connection's transaction run. `B p s` creates portal `p`, `E p` runs it.

use std::sync::Arc;

use sql::Changes;

use crate::core::prepared::Statement;

/// Maximum number of tracked named portals of one transaction; others are unknown.
const MOST: usize = 64;

/// Portals that a client has bound by the protocol. They end with the transaction.
#[derive(Debug, Default)]
pub(in crate::core) struct Portals {
    unnamed: Portal,
    named: Vec<(Box<[u8]>, Portal)>,
}

/// One portal.
#[derive(Debug, Default)]
pub(in crate::core) struct Portal {
    /// The portal's statement. `None`: a statement prepared by SQL, or an unknown one.
    pub statement: Option<Arc<Statement>>,
    /// The client's name for the statement; empty for the unnamed statement, or for none.
    pub called: Vec<u8>,
    /// Changes made by running the portal, with the bound values filled in. `None`: none, unknown, or the portal has been run.
    changes: Option<Arc<Changes>>,
    /// True if an Execute of the portal was sent, or answered by the proxy.
    has_run: bool,
    /// Number of the unit whose Bind created the portal.
    pub unit: u64,
}

/// Effect of an Execute.
#[derive(Debug, Default)]
pub(in crate::core) struct Run {
    /// The portal's statement; `None` if unknown.
    pub statement: Option<Arc<Statement>>,
    /// Changes of the statement, if the portal is run for the first time.
    pub changes: Option<Arc<Changes>>,
    /// True if the portal was run before.
    pub has_run: bool,
}

impl Portals {
    /// Records a Bind in this unit: portal `name` runs `statement`, which the client calls `called`. Returns false if too many portals are tracked
    /// already.
    pub(in crate::core) fn bind(
        &mut self,
        (unit, name): (u64, &[u8]),
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
        (portal.has_run, portal.unit) = (false, unit);
        portal.called.clear();
        portal.called.extend_from_slice(called);
        true
    }

    /// Returns the portal of this name, if it is tracked.
    pub(in crate::core) fn get(&self, name: &[u8]) -> Option<&Portal> {
        if name.is_empty() {
            return Some(&self.unnamed);
        }
        self.named.iter().find(|(known, _)| **known == *name).map(|(_, portal)| portal)
    }

    /// Records an Execute, and returns the portal's statement and its changes. A portal that was suspended by a row limit (`E '' 1`) and is run again
    /// has no further changes.
    pub(in crate::core) fn run(&mut self, name: &[u8]) -> Run {
        let portal = match name {
            b"" => Some(&mut self.unnamed),
            name => self.named.iter_mut().find(|(known, _)| **known == *name).map(|(_, portal)| portal),
        };
        portal.map_or_else(Run::default, |portal| Run {
            statement: portal.statement.clone(),
            changes: portal.changes.take(),
            has_run: std::mem::replace(&mut portal.has_run, true),
        })
    }

    /// Removes the portals of a transaction that ended with this unit. Portals of later units, which are already sent, stay: in `Q "select 1"; P s
    /// "deallocate all"; B '' s; E ''` the portal is bound before the Query is answered.
    pub(in crate::core) fn end(&mut self, unit: u64) {
        self.named.retain(|(_, portal)| portal.unit > unit);
        if self.unnamed.unit <= unit {
            self.unnamed.statement = None;
            self.unnamed.changes = None;
            self.unnamed.called.clear();
        }
    }

    /// Removes all portals, because the client has left.
    pub(in crate::core) fn client_leaves(&mut self) {
        self.end(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portals_are_followed_up_to_a_bound() {
        let mut portals = Portals::default();
        let changes = || Some(Arc::new(Changes::default()));
        assert!(portals.bind((0, b""), None, b"s", None));
        assert!(portals.bind((0, b"p"), None, b"t", changes()));
        assert!(portals.get(b"p").is_some_and(|portal| portal.called == b"t" && portal.changes.is_some()));
        assert!(portals.get(b"").is_some_and(|portal| portal.called == b"s") && portals.get(b"q").is_none());
        let (first, second) = (portals.run(b"p"), portals.run(b"p"));
        assert!(first.changes.is_some() && second.changes.is_none(), "it changes that once");
        assert!(!first.has_run && second.has_run);
        for n in 0..MOST - 1 {
            assert!(portals.bind((0, n.to_string().as_bytes()), None, b"", None));
        }
        assert!(!portals.bind((0, b"q"), None, b"", None) && portals.bind((0, b"p"), None, b"u", None));
        // The end of an earlier unit leaves the portals of later ones.
        assert!(portals.bind((1, b""), None, b"v", None) && portals.bind((1, b"p"), None, b"v", None));
        portals.end(0);
        assert!(portals.get(b"0").is_none() && portals.get(b"p").is_some_and(|portal| portal.called == b"v"));
        assert!(portals.get(b"").is_some_and(|portal| portal.called == b"v"));
        portals.end(1);
        assert!(portals.get(b"p").is_none() && portals.get(b"").is_some_and(|portal| portal.called.is_empty()));
    }
}
