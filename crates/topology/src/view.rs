//! Snapshot of a cluster for its readers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use watermark::{Lsn, Watermark};

/// Value of a configured weight of 1 in a [`NodeView`] at full share: leaves room below it for slow start.
pub const WEIGHT_SCALE: u32 = 10;

/// Index of a node in the configured order; stable for the life of a process, also across reloads (a removed node's id
/// is given again only to a node of the same name).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u16);

/// Address that a node listens on, names already resolved: workers never use DNS.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket's path.
    Unix(PathBuf),
}

/// Current role of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Not reached yet, or down.
    Unknown,
    /// Takes writes. At most one node of a view has this role.
    Primary,
    /// In recovery, follows the primary's timeline or can be expected to.
    Replica,
    /// Out of recovery, but on an older timeline than one already seen, or not of this cluster. Never used.
    Stale,
}

/// One history of the database: positions of different terms are never compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Term {
    /// `pg_control_system().system_identifier`; 0 while unknown.
    pub system: u64,
    /// The primary's timeline. If the servers report none: a number of this process, a new one each time a primary is found; see
    /// [`told_timeline`](Term::told_timeline).
    pub timeline: u32,
}

/// From here on numbers of terms are no timelines: PostgreSQL makes one a promotion, and begins with 1.
const COUNTED: u32 = 1 << 31;

impl Term {
    /// Returns the term after `count` others, in a system whose servers report no timeline.
    pub(crate) fn counted(system: u64, count: u32) -> Term {
        Term { system, timeline: COUNTED | count }
    }

    /// True if the servers report no timeline: only this process knows this term by this number, and not after a restart.
    #[must_use]
    pub fn is_counted(self) -> bool {
        self.timeline >= COUNTED
    }

    /// Returns the timeline that the primary reported, for display and for other programs that know it; 0 if there is none.
    #[must_use]
    pub fn told_timeline(self) -> u32 {
        if self.is_counted() { 0 } else { self.timeline }
    }
}

/// State of a node shared by all its users; numbers that change without a new [`View`].
#[derive(Debug)]
pub struct Node {
    /// Index of the node.
    pub id: NodeId,
    /// Configured name of the node.
    pub name: String,
    /// Highest position known to be replayed (replica) in the current term: a lower bound of the truth, so a read that needs `replayed >= x` is
    /// always safe. An LSN, or a transaction ID if the servers' positions are transaction IDs. Reset to 0 when the term changes and whenever the node
    /// could have been restarted: a standby that recovers from a crash may serve less than it had replayed before.
    pub replayed: Watermark,
    /// Milliseconds a replica is behind, by the last probe; 0 on the primary.
    pub lag_ms: AtomicU64,
    /// Bytes a replica's replay is behind the primary, by the last probe.
    pub lag_bytes: AtomicU64,
    /// Bytes of WAL that the node keeps for the replication slot that is furthest behind, by the last probe that reached it.
    pub slots_held: AtomicU64,
    /// Position and timeline that the last successful probe reported, for display. 0 before the first.
    pub reported: ReportedPosition,
}

/// A node's last answer, in any role and on any timeline: not a position to decide by.
#[derive(Debug, Default)]
pub struct ReportedPosition {
    /// Written by a primary, replayed by a replica.
    pub position: AtomicU64,
    /// Timeline of the position.
    pub timeline: AtomicU32,
}

impl Node {
    /// Creates a node of which nothing is known yet.
    #[must_use]
    pub fn new(id: NodeId, name: impl Into<String>) -> Node {
        Node {
            id,
            name: name.into(),
            replayed: Watermark::new(Lsn(0)),
            lag_ms: AtomicU64::new(0),
            lag_bytes: AtomicU64::new(0),
            slots_held: AtomicU64::new(0),
            reported: ReportedPosition::default(),
        }
    }
}

/// A node as of one view.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// The moving numbers.
    pub node: Arc<Node>,
    /// Resolved address. Meaningful once `usable`: until a name has been resolved it is 0.0.0.0.
    pub address: Address,
    /// Unix socket of the same server, if it is on this host and `address` is TCP: a shorter way for connections that need no TLS.
    pub socket: Option<Arc<Path>>,
    /// Role.
    pub role: Role,
    /// True if the node may be given new work: reached by the last probes, not ejected; for a replica also: lag within the limit.
    pub usable: bool,
    /// Share of reads relative to the other nodes: the configured weight times [`WEIGHT_SCALE`], already lowered during slow
    /// start. 0: none.
    pub weight: u32,
    /// Configured zone.
    pub zone: Option<String>,
    /// Number of the server's configuration: another one after each reload of its files and each start, and at the latest in a new session
    /// of the prober. 0: not known yet.
    pub settings: u64,
}

/// The cluster at one moment. Immutable; a change makes a new one with a higher epoch.
#[derive(Debug, Clone)]
pub struct View {
    /// Grows with each view.
    pub epoch: u64,
    /// The term of the current (or, while there is none, the last) primary.
    pub term: Term,
    /// The node that takes writes, if there is one.
    pub primary: Option<NodeId>,
    /// Nodes by index: `nodes[i].node.id == NodeId(i)`. A removed node stays, unusable, with role Unknown.
    pub nodes: Vec<NodeView>,
}

impl View {
    /// Returns the node's entry, if the id is of this view.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&NodeView> {
        self.nodes.get(usize::from(id.0))
    }

    /// Returns the node that takes writes, if there is one.
    #[must_use]
    pub fn primary_node(&self) -> Option<&NodeView> {
        self.primary.and_then(|id| self.node(id))
    }
}
