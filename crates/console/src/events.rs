//! Events of the page's timeline: the differences between two states. Pure.

use std::collections::VecDeque;

use serde::Serialize;

use crate::picture::{Cluster, Engine, Node, PoolNumbers, Registry, Relay, Role};
use crate::transitions::Transition;

/// Maximum number of events remembered.
pub(crate) const MOST: usize = 200;

/// Severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// A recovery.
    Good,
    /// Information.
    Info,
    /// A warning.
    Warning,
    /// A failure.
    Bad,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Event {
    /// A rising number.
    pub(crate) id: u64,
    /// Milliseconds since 1970.
    pub(crate) at: u64,
    pub(crate) severity: Severity,
    /// The object concerned: `node1`, `relay`.
    pub(crate) subject: String,
    pub(crate) text: String,
}

/// The last events, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) last: VecDeque<Event>,
    next: u64,
}

/// An event without number and time: severity, subject, text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen(pub(crate) Severity, pub(crate) String, pub(crate) String);

impl Events {
    pub(crate) fn push(&mut self, seen: Seen, at: u64) {
        if self.last.len() == MOST {
            self.last.pop_front();
        }
        self.next += 1;
        let Seen(severity, subject, text) = seen;
        self.last.push_back(Event { id: self.next, at, severity, subject, text });
    }
}

/// Returns the events between two states of the cluster.
pub(crate) fn of_cluster(before: Option<&Cluster>, now: &Cluster) -> Vec<Seen> {
    let mut seen = Vec::new();
    let was = before.and_then(|before| before.primary.as_deref());
    match (was, now.primary.as_deref()) {
        (was, Some(node)) if was != Some(node) => {
            let term = match now.engine {
                Engine::Postgresql => format!("timeline {}", now.timeline),
                Engine::Mariadb | Engine::Mysql => format!("epoch {}", now.timeline),
            };
            let text = match was {
                Some(was) => format!("is primary now, after {was}; {term}"),
                None => format!("is primary; {term}"),
            };
            seen.push(Seen(Severity::Good, node.into(), text));
        }
        (Some(was), None) => {
            seen.push(Seen(Severity::Bad, was.into(), "was the last primary: there is none now, writes wait".into()));
        }
        _ => {}
    }
    for node in &now.nodes {
        let was = before.and_then(|before| before.nodes.iter().find(|was| was.name == node.name));
        seen.extend(of_node(was, node, now.primary.as_deref()));
    }
    seen
}

fn of_node(was: Option<&Node>, node: &Node, primary: Option<&str>) -> Vec<Seen> {
    // At the start only failures are events, once they are known.
    let Some(was) = was else { return Vec::new() };
    let mut seen = Vec::new();
    let mut say = |severity, text: String| seen.push(Seen(severity, node.name.clone(), text));
    if was.role != node.role {
        match node.role {
            Role::Stale => say(Severity::Bad, "takes writes, and is not the primary any more: it is not used".into()),
            Role::Unknown => {
                let why = node.error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
                say(Severity::Bad, format!("is lost{why}"));
            }
            Role::Replica if was.role == Role::Unknown => say(Severity::Good, "is a replica".into()),
            Role::Replica => say(Severity::Info, "is a replica now".into()),
            // Reported for the cluster.
            Role::Primary if primary == Some(node.name.as_str()) => {}
            Role::Primary => say(Severity::Info, "is primary".into()),
        }
    } else if was.usable != node.usable && node.role != Role::Unknown {
        match (node.usable, &node.error) {
            (true, _) => say(Severity::Good, "is used again".into()),
            (false, Some(error)) => say(Severity::Warning, format!("is out: {error}")),
            (false, None) => say(Severity::Warning, format!("gets no work: {} behind", seconds(node.lag_ms))),
        }
    }
    if let (Some(before), Some(now)) = (was.timeline, node.timeline)
        && before != now
    {
        say(Severity::Info, format!("went from timeline {before} to {now}"));
    }
    seen
}

fn seconds(millis: u64) -> String {
    format!("{}.{} s", millis / 1000, millis % 1000 / 100)
}

/// Returns the events between two states of the relay.
pub(crate) fn of_relay(before: Option<&Relay>, now: &Relay) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut say = |severity, text: String| seen.push(Seen(severity, "relay".into(), text));
    let streams = |relay: &Relay| relay.state == "streaming";
    match before {
        Some(before) if before.state != now.state => match (streams(now), now.alarm) {
            (true, _) => say(Severity::Good, format!("receives from {}", now.upstream)),
            (false, true) => say(Severity::Bad, format!("does not receive: {}", now.state)),
            (false, false) if streams(before) => {
                say(Severity::Warning, format!("lost {}: {}", now.upstream, now.state))
            }
            // Steps of connecting.
            (false, false) => {}
        },
        Some(before) if before.upstream != now.upstream => say(Severity::Info, format!("follows {}", now.upstream)),
        Some(_) => {}
        None if now.alarm => say(Severity::Bad, format!("does not receive: {}", now.state)),
        None => {}
    }
    let failure = |relay: &Relay| relay.log.as_ref().and_then(|log| log.failure.clone());
    if let Some(why) = failure(now).filter(|_| before.and_then(failure).is_none()) {
        say(Severity::Bad, format!("writes nothing any more: {why}"));
    }
    if let Some(before) = before {
        let has = |relay: &Relay, name: &str| relay.downstreams.iter().any(|downstream| downstream.name == name);
        for lost in before.downstreams.iter().filter(|downstream| !has(now, &downstream.name)) {
            say(Severity::Warning, format!("{} no longer streams from it", lost.name));
        }
        for new in now.downstreams.iter().filter(|downstream| !has(before, &downstream.name)) {
            say(Severity::Good, format!("{} streams from it", new.name));
        }
    }
    seen
}

/// Returns the events between two states of the registry.
pub(crate) fn of_registry(before: Option<&Registry>, now: &Registry) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut say = |severity, text: String| seen.push(Seen(severity, "registry".into(), text));
    if before.is_none_or(|before| before.ready) && !now.ready {
        let why = now.store_error.as_deref().unwrap_or("it stops");
        say(Severity::Bad, format!("its store does not answer: {why}"));
    } else if before.is_some_and(|before| !before.ready) && now.ready {
        say(Severity::Good, "its store answers again".into());
    }
    let name = |service: &str| if service.is_empty() { "all services".to_owned() } else { service.to_owned() };
    let holds = |registry: Option<&Registry>, service: &str| {
        registry.is_some_and(|registry| registry.protected.iter().any(|held| held.service == service))
    };
    for held in now.protected.iter().filter(|held| !holds(before, &held.service)) {
        say(
            Severity::Warning,
            format!("too much was lost at once: the last good state of {} is kept", name(&held.service)),
        );
    }
    for let_go in before.map(|before| before.protected.as_slice()).unwrap_or_default() {
        if !holds(Some(now), &let_go.service) {
            say(Severity::Info, format!("the state of {} is taken as it is again", name(&let_go.service)));
        }
    }
    seen
}

/// Returns the events between two states of the pools.
pub(crate) fn of_pools(before: &[PoolNumbers], now: &[PoolNumbers]) -> Vec<Seen> {
    let mut seen = Vec::new();
    for pool in now {
        let was = before.iter().find(|was| was.database == pool.database && was.user == pool.user);
        let subject = || format!("{}/{}", pool.database, pool.user);
        match was.map(|was| was.paused) {
            Some(false) | None if pool.paused => seen.push(Seen(Severity::Warning, subject(), "is paused".into())),
            Some(true) if !pool.paused => seen.push(Seen(Severity::Good, subject(), "goes on".into())),
            _ => {}
        }
    }
    seen
}

/// Returns the event of an instance's transition.
pub(crate) fn of_transition(transition: &Transition) -> Seen {
    let subject = transition.instance.clone();
    let Some(to) = transition.to else { return Seen(Severity::Info, subject, "was deregistered".into()) };
    match (transition.from.isolate, to.isolate) {
        (false, true) => return Seen(Severity::Warning, subject, "was isolated".into()),
        (true, false) => return Seen(Severity::Good, subject, "is used again".into()),
        _ => {}
    }
    let severity = match to.health {
        "passing" => Severity::Good,
        "warning" => Severity::Warning,
        _ => Severity::Bad,
    };
    Seen(severity, subject, format!("is {}, was {}", to.health, transition.from.health))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, role: Role, usable: bool, error: Option<&str>) -> Node {
        Node { name: name.into(), role, usable, error: error.map(Into::into), timeline: Some(1), ..Node::default() }
    }

    fn cluster(primary: Option<&str>, nodes: Vec<Node>) -> Cluster {
        Cluster { primary: primary.map(Into::into), timeline: 1, nodes, ..Cluster::default() }
    }

    fn texts(seen: &[Seen]) -> Vec<String> {
        seen.iter().map(|Seen(severity, subject, text)| format!("{severity:?} {subject} {text}")).collect()
    }

    #[test]
    fn a_failover() {
        let one = cluster(Some("a"), vec![node("a", Role::Primary, true, None), node("b", Role::Replica, true, None)]);
        let two =
            cluster(None, vec![node("a", Role::Unknown, false, Some("refused")), node("b", Role::Replica, true, None)]);
        let mut promoted = node("b", Role::Primary, true, None);
        promoted.timeline = Some(2);
        let three =
            Cluster { timeline: 2, ..cluster(Some("b"), vec![node("a", Role::Unknown, false, None), promoted]) };
        assert_eq!(texts(&of_cluster(None, &one)), ["Good a is primary; timeline 1"]);
        assert_eq!(texts(&of_cluster(Some(&one), &one)), [""; 0]);
        assert_eq!(
            texts(&of_cluster(Some(&one), &two)),
            ["Bad a was the last primary: there is none now, writes wait", "Bad a is lost: refused"]
        );
        assert_eq!(
            texts(&of_cluster(Some(&two), &three)),
            ["Good b is primary; timeline 2", "Info b went from timeline 1 to 2"]
        );
    }

    #[test]
    fn a_replica_goes_and_comes() {
        let of = |node: Node| cluster(None, vec![node]);
        let lag = Node { lag_ms: 12_345, ..node("b", Role::Replica, false, None) };
        for (before, now, expected) in [
            (
                node("b", Role::Replica, true, None),
                node("b", Role::Replica, false, Some("refused")),
                "Warning b is out: refused",
            ),
            (node("b", Role::Replica, true, None), lag, "Warning b gets no work: 12.3 s behind"),
            (node("b", Role::Replica, false, None), node("b", Role::Replica, true, None), "Good b is used again"),
            (node("b", Role::Unknown, false, None), node("b", Role::Replica, true, None), "Good b is a replica"),
            (
                node("b", Role::Replica, true, None),
                node("b", Role::Stale, false, None),
                "Bad b takes writes, and is not the primary any more: it is not used",
            ),
        ] {
            assert_eq!(texts(&of_cluster(Some(&of(before)), &of(now))), [expected]);
        }
    }

    #[test]
    fn relay_registry_pools() {
        let relay =
            |state: &str, alarm| Relay { state: state.into(), alarm, upstream: "p:1".into(), ..Relay::default() };
        for (before, now, expected) in [
            (Some(relay("streaming", false)), relay("refused", false), vec!["Warning relay lost p:1: refused"]),
            (Some(relay("refused", false)), relay("connecting", false), vec![]),
            (Some(relay("connecting", false)), relay("streaming", false), vec!["Good relay receives from p:1"]),
            (None, relay("diverged", true), vec!["Bad relay does not receive: diverged"]),
        ] {
            assert_eq!(texts(&of_relay(before.as_ref(), &now)), expected);
        }
        let good = Registry { ready: true, ..Registry::default() };
        let bad = Registry { store_error: Some("locked".into()), ..Registry::default() };
        assert_eq!(texts(&of_registry(Some(&good), &bad)), ["Bad registry its store does not answer: locked"]);
        assert_eq!(texts(&of_registry(Some(&bad), &good)), ["Good registry its store answers again"]);
        let pool = |paused| [PoolNumbers { database: "d".into(), user: "u".into(), paused, ..PoolNumbers::default() }];
        assert_eq!(texts(&of_pools(&pool(false), &pool(true))), ["Warning d/u is paused"]);
        assert_eq!(texts(&of_pools(&[], &pool(false))), [""; 0]);
        assert_eq!(texts(&of_pools(&pool(true), &pool(false))), ["Good d/u goes on"]);
    }

    #[test]
    fn only_the_last_are_kept() {
        let mut events = Events::default();
        for at in 0..MOST as u64 + 5 {
            events.push(Seen(Severity::Info, String::new(), String::new()), at);
        }
        assert_eq!((events.last.len(), events.last.front().map(|event| event.id)), (MOST, Some(6)));
    }
}
