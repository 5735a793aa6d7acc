//! One task takes in all reports, decides, and publishes: whoever reads sees what one writer wrote, in its order.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::{error, info, warn};
use watermark::Lsn;

use crate::config::{ClusterConfig, NodeConfig, StartError, Target};
use crate::decide::{Decider, Decision, Event, Limits, Mark, Report};
use crate::handle::Shared;
use crate::oracle::Asked;
use crate::probe::{Message, Prober, Signal};
use crate::view::{Address, Node, NodeId, NodeView, Role, View};

/// Reports that wait to be taken in; a prober waits while there are more.
const REPORTS: usize = 64;

pub(crate) struct Coordinator {
    shared: Arc<Shared>,
    runtime: Handle,
    config: Arc<ClusterConfig>,
    decider: Decider,
    members: Vec<Member>,
    generation: u64,
    fast_until: watch::Receiver<Instant>,
    asked: watch::Sender<Option<Asked>>,
    sender: mpsc::Sender<Message>,
    reports: mpsc::Receiver<Message>,
}

/// A node, configured or removed.
struct Member {
    node: Arc<Node>,
    config: Option<NodeConfig>,
    target: Target,
    address: Address,
    socket: Option<Arc<Path>>,
    /// The number of its configuration.
    settings: u64,
    signal: Arc<Signal>,
    generation: u64,
    prober: Option<Task>,
}

/// A task that ends with its owner.
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn limits(config: &ClusterConfig) -> Limits {
    Limits {
        failures: config.probe_failures.max(1),
        lag: config.lag_limit,
        back_off: config.probe_interval,
        positions: config.positions,
    }
}

/// An address before its name was resolved.
fn unresolved(target: &Target) -> Address {
    match target {
        Target::Unix(path) => Address::Unix(path.clone()),
        Target::Tcp { host, port } => {
            Address::Tcp(SocketAddr::new(host.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), *port))
        }
    }
}

// === impl Coordinator ===

impl Coordinator {
    /// Starts the probers and publishes the first view, in which nothing is known.
    pub(crate) fn start(
        shared: Arc<Shared>,
        runtime: Handle,
        config: Arc<ClusterConfig>,
        fast_until: watch::Receiver<Instant>,
        asked: watch::Sender<Option<Asked>>,
    ) -> Result<Coordinator, StartError> {
        let (sender, reports) = mpsc::channel(REPORTS);
        let mut coordinator = Coordinator {
            shared,
            runtime,
            decider: Decider::new(limits(&config), &[]),
            config: Arc::clone(&config),
            members: Vec::new(),
            generation: 0,
            fast_until,
            asked,
            sender,
            reports,
        };
        coordinator.configure(config)?;
        Ok(coordinator)
    }

    /// Runs until it is aborted; the probers end with it.
    pub(crate) async fn run(mut self, mut settings: watch::Receiver<Arc<ClusterConfig>>) {
        loop {
            tokio::select! {
                Some(message) = self.reports.recv() => self.take(message),
                changed = settings.changed() => {
                    if changed.is_err() { return }
                    let config = Arc::clone(&settings.borrow_and_update());
                    if let Err(error) = self.configure(config) {
                        error!(%error, "the new cluster configuration is not used");
                    }
                }
            }
        }
    }

    fn configure(&mut self, config: Arc<ClusterConfig>) -> Result<(), StartError> {
        config.validate()?;
        let known: HashMap<String, usize> =
            self.members.iter().enumerate().map(|(index, member)| (member.node.name.clone(), index)).collect();
        let new = config.nodes.iter().filter(|node| !known.contains_key(&node.name)).count();
        if self.members.len() + new > crate::config::MOST_NODES {
            return Err(StartError::TooManyNodes { cluster: config.name.clone(), most: crate::config::MOST_NODES });
        }
        let settings =
            |config: &ClusterConfig| ClusterConfig { nodes: Vec::new(), relays: Vec::new(), ..config.clone() };
        let restart = settings(&self.config) != settings(&config);
        self.config = Arc::clone(&config);

        let mut moved = Vec::new();
        let mut configured = vec![false; self.members.len() + new];
        for node in &config.nodes {
            let target = Target::of(node)?;
            let index = known.get(&node.name).copied().unwrap_or(self.members.len());
            configured[index] = true;
            match self.members.get_mut(index) {
                Some(member) => {
                    if member.target != target || member.config.is_none() {
                        moved.push(member.node.id);
                        member.address = unresolved(&target);
                        member.socket = None;
                        member.target = target;
                        member.prober = None;
                    }
                    member.config = Some(node.clone());
                }
                None => {
                    let id = NodeId(u16::try_from(index).unwrap_or(u16::MAX));
                    self.members.push(Member {
                        node: Arc::new(Node::new(id, node.name.clone())),
                        config: Some(node.clone()),
                        address: unresolved(&target),
                        socket: None,
                        target,
                        settings: 0,
                        signal: Arc::new(Signal::default()),
                        generation: 0,
                        prober: None,
                    });
                }
            }
        }
        for (member, configured) in self.members.iter_mut().zip(&configured) {
            if !configured {
                member.config = None;
                member.prober = None;
            }
        }
        for index in 0..self.members.len() {
            if restart {
                // TLS may be required from now on.
                self.members[index].socket = None;
            }
            if self.members[index].config.is_some() && (restart || self.members[index].prober.is_none()) {
                self.probe(index);
            }
        }
        self.shared.signals.store(Arc::new(self.members.iter().map(|member| Arc::clone(&member.signal)).collect()));
        let weights: Vec<Option<u32>> =
            self.members.iter().map(|member| member.config.as_ref().map(|config| config.weight)).collect();
        let decision = self.decider.reconfigure(limits(&config), &weights, &moved, std::time::Instant::now());
        self.apply(decision);
        Ok(())
    }

    /// Starts a node's prober, in place of an earlier one.
    fn probe(&mut self, index: usize) {
        self.generation += 1;
        let member = &mut self.members[index];
        member.generation = self.generation;
        let prober = Prober {
            node: member.node.id,
            generation: self.generation,
            name: member.node.name.clone(),
            target: member.target.clone(),
            config: Arc::clone(&self.config),
            shared: Arc::clone(&self.shared),
            signal: Arc::clone(&member.signal),
            fast_until: self.fast_until.clone(),
            reports: self.sender.clone(),
        };
        member.prober = Some(Task(self.runtime.spawn(prober.run()).abort_handle()));
    }

    fn take(&mut self, message: Message) {
        let Some(member) = self.members.get_mut(usize::from(message.node.0)) else { return };
        if member.config.is_none() || member.generation != message.generation {
            return;
        }
        if let Some(reached) = message.reached {
            (member.address, member.socket) = (reached.address, reached.socket);
        }
        if let Report::Up(facts) = &message.report {
            member.node.reported.position.store(facts.log_position().0, Ordering::Relaxed);
            member.node.reported.timeline.store(facts.timeline, Ordering::Relaxed);
        }
        if let Some(settings) = message.settings {
            member.settings = settings;
        }
        if let Some(bytes) = message.slots_held {
            member.node.slots_held.store(bytes, Ordering::Relaxed);
        }
        let failure = match &message.report {
            Report::Up(_) => Some(None),
            Report::Down { error, .. } => Some(Some(error.clone())),
            Report::Lost => None,
        };
        if let Some(failure) = failure {
            self.shared.note_failure(message.node, failure);
        }
        let decision = self.decider.report(message.node, message.report, std::time::Instant::now());
        self.apply(decision);
    }

    /// Publishes a decision. Order matters: a position of the new term must not meet a mark of the old one, so marks go down
    /// before the view that shows the term, and rise only after it.
    fn apply(&self, decision: Decision) {
        let mark = |wanted: fn(Mark) -> Option<Mark>| {
            for (node, mark) in &decision.marks {
                if let (Some(member), Some(mark)) = (self.members.get(usize::from(node.0)), wanted(*mark)) {
                    match mark {
                        Mark::Reset => member.node.replayed.reset(Lsn(0)),
                        Mark::Publish(lsn) => drop(member.node.replayed.publish(lsn)),
                    }
                }
            }
        };
        mark(|mark| (mark == Mark::Reset).then_some(mark));

        let nodes: Vec<NodeView> = self
            .members
            .iter()
            .zip(&decision.nodes)
            .map(|(member, outcome)| NodeView {
                node: Arc::clone(&member.node),
                address: member.address.clone(),
                socket: member.socket.clone(),
                role: outcome.role,
                usable: outcome.usable,
                weight: outcome.weight,
                zone: member.config.as_ref().and_then(|config| config.zone.clone()),
                settings: member.settings,
            })
            .collect();
        let before = self.shared.view.load();
        let view = View { epoch: before.epoch, term: decision.term, primary: decision.primary, nodes };
        if !same(&before, &view) {
            self.shared.install(view);
        }
        drop(before);

        mark(|mark| (mark != Mark::Reset).then_some(mark));
        let fit = self
            .members
            .iter()
            .zip(&decision.nodes)
            .filter(|(_, outcome)| outcome.role == Role::Replica && outcome.usable && outcome.weight > 0);
        let furthest = fit.map(|(member, _)| member.node.replayed.get()).max().unwrap_or(Lsn(0));
        if furthest < self.shared.replayed.get() {
            self.shared.replayed.reset(furthest);
        } else {
            self.shared.replayed.publish(furthest);
        }
        for (member, outcome) in self.members.iter().zip(&decision.nodes) {
            let millis = u64::try_from(outcome.lag.time.as_millis()).unwrap_or(u64::MAX);
            member.node.lag_ms.store(millis, Ordering::Relaxed);
            member.node.lag_bytes.store(outcome.lag.bytes, Ordering::Relaxed);
        }
        for event in &decision.events {
            self.log(event);
            if let Event::Contested { .. } = event {
                // What one of them said may be of before the other's promotion.
                self.members.iter().for_each(|member| member.signal.nudge());
            }
        }

        let asked =
            decision.primary.filter(|_| decision.tells).and_then(|node| self.members.get(usize::from(node.0))).map(
                |member| Asked {
                    node: member.node.id,
                    term: decision.term,
                    target: member.target.clone(),
                    config: Arc::clone(&self.config),
                },
            );
        self.asked.send_if_modified(|before| {
            let modified = *before != asked;
            if modified {
                *before = asked;
            }
            modified
        });
    }

    fn log(&self, event: &Event) {
        let name = |id: &NodeId| self.members.get(usize::from(id.0)).map_or("?", |member| member.node.name.as_str());
        let cluster = self.config.name.as_str();
        match event {
            Event::Primary { node, term, before } => info!(
                cluster,
                node = name(node),
                timeline = term.told_timeline(),
                before = before.as_ref().map_or("none", name),
                "primary"
            ),
            Event::NoPrimary { last } => warn!(cluster, last = name(last), "no primary: writes wait"),
            Event::Role { node, from, to } if *to == Role::Unknown => {
                warn!(cluster, node = name(node), ?from, ?to, "role changed");
            }
            Event::Role { node, from, to } => info!(cluster, node = name(node), ?from, ?to, "role changed"),
            Event::OldTimeline { node, timeline, highest } => error!(
                cluster,
                node = name(node),
                timeline,
                highest,
                "takes writes on a timeline that has been left: not used; stop it and rebuild it as a standby (pg_rewind)"
            ),
            Event::Foreign { node, system, expected } => error!(
                cluster,
                node = name(node),
                system,
                expected,
                "is of another database system: not used; check the node's address"
            ),
            Event::Disowned { node } => error!(
                cluster,
                node = name(node),
                "is out of recovery, and is not the writer in its servers' own list (aurora_replica_status): not used"
            ),
            Event::Contested { one, other } => error!(
                cluster,
                one = name(one),
                other = name(other),
                "two nodes take writes, and no timeline says which is the newer one: neither is used until the other is gone or in recovery"
            ),
            Event::Rival { kept, other, timeline } => error!(
                cluster,
                kept = name(kept),
                other = name(other),
                timeline,
                "SPLIT BRAIN: two nodes take writes on the same timeline; only one is used: stop the other"
            ),
            Event::Ejected { node, error, back_off } => {
                warn!(cluster, node = name(node), error, ?back_off, "node is out");
            }
            Event::Returned { node } => info!(cluster, node = name(node), "node is back"),
            Event::Lagging { node, lag } => {
                warn!(cluster, node = name(node), ?lag, limit = ?self.config.lag_limit, "replica lags: no reads");
            }
            Event::CaughtUp { node } => info!(cluster, node = name(node), "replica has caught up"),
        }
    }
}

fn same(a: &View, b: &View) -> bool {
    let node = |(a, b): (&NodeView, &NodeView)| {
        (&a.address, &a.socket) == (&b.address, &b.socket)
            && (a.role, a.usable, a.weight, a.settings) == (b.role, b.usable, b.weight, b.settings)
            && a.zone == b.zone
    };
    a.term == b.term
        && a.primary == b.primary
        && a.nodes.len() == b.nodes.len()
        && a.nodes.iter().zip(&b.nodes).all(node)
}
