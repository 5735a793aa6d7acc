//! Lines about a former primary: away after a failover or a switchover, and back as a replica, by its agent.

use std::collections::BTreeMap;
use std::time::Duration;

use topology::{Role, View};

use daemon::Running;
use process::terminal;

/// Interval between two looks.
const PACE: Duration = Duration::from_millis(500);

/// Prints the lines. Never returns.
pub(super) async fn tell(running: &Running) {
    let mut former = Former::default();
    loop {
        for line in former.see(&running.view()) {
            terminal::line(line);
        }
        tokio::time::sleep(PACE).await;
    }
}

/// The former primaries that are not back yet.
#[derive(Debug, Default)]
struct Former {
    primary: Option<String>,
    /// Name; true once the node was seen away.
    away: BTreeMap<String, bool>,
}

impl Former {
    /// Takes a view; returns the lines about changes since the one before.
    fn see(&mut self, view: &View) -> Vec<String> {
        let Some(primary) = view.primary.and_then(|id| view.node(id)).map(|node| node.node.name.clone()) else {
            return Vec::new();
        };
        self.seen(&primary, |name| view.nodes.iter().find(|node| node.node.name == name).map(|node| node.role))
    }

    fn seen(&mut self, primary: &str, role: impl Fn(&str) -> Option<Role>) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(before) = self.primary.replace(primary.to_owned())
            && before != primary
        {
            self.away.insert(before, false);
        }
        self.away.remove(primary);
        self.away.retain(|name, away| match role(name) {
            Some(Role::Stale | Role::Unknown) => {
                if !std::mem::replace(away, true) {
                    lines.push(format!("{name} was the primary before {primary}: its agent makes it a replica"));
                }
                true
            }
            Some(Role::Replica) => {
                lines.push(format!("{name} follows {primary}"));
                false
            }
            Some(Role::Primary) => true,
            None => false,
        });
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_primary_goes_and_comes_back() {
        let mut former = Former::default();
        for (primary, one, two, expected) in [
            ("node1", Role::Primary, Role::Replica, None),
            ("node2", Role::Primary, Role::Primary, None),
            (
                "node2",
                Role::Stale,
                Role::Primary,
                Some("node1 was the primary before node2: its agent makes it a replica"),
            ),
            ("node2", Role::Unknown, Role::Primary, None),
            ("node2", Role::Replica, Role::Primary, Some("node1 follows node2")),
            ("node2", Role::Unknown, Role::Primary, None),
            (
                "node1",
                Role::Primary,
                Role::Unknown,
                Some("node2 was the primary before node1: its agent makes it a replica"),
            ),
            ("node2", Role::Replica, Role::Primary, Some("node1 follows node2")),
        ] {
            let role = |name: &str| Some(if name == "node1" { one } else { two });
            assert_eq!(
                former.seen(primary, role),
                Vec::from_iter(expected.map(str::to_owned)),
                "{primary} {one:?} {two:?}"
            );
        }
    }
}
