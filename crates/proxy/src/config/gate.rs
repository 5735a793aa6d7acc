//! `[proxy.gate]`: durability of commits.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use settings::{Form, Kind, Setting};

::settings::settings! {
    /// `[proxy.gate]`.
    #[derive(Debug, Clone, PartialEq)]
    pub struct GateConfig: Default {
        /// Durability of a commit. "local": the primary has it durably. "relay": one of `[[cluster.relays]]` has it, too; "quorum(2)": two of them.
        pub commit_durability: CommitDurability = CommitDurability::Local;
        /// Treatment of commits while too few relays confirm anything: "wait": commits wait, new writes are refused, nothing is acknowledged that is
        /// not durable; "local": commits are acknowledged though only the primary has them.
        pub on_degraded: OnDegraded = OnDegraded::Wait;
        /// Time with too few confirming relays after which on_degraded applies.
        pub degraded_after: Duration = Duration::from_secs(5);
        /// Longest time that an answer is held back; then the client's connection ends with 08007: the outcome is unknown.
        pub timeout: Duration = Duration::from_secs(30);
        /// True if reads on the primary are held back, too, until what they may show is durable.
        pub read_barrier: bool = false;
        /// Flush of the primary's log for commits that are held back: "commit": each flushes for itself; "batch": one question of the proxy flushes
        /// for all of a batch (PostgreSQL 17 and later; before that as "commit"); "batch-transaction": also before 17, where it takes a transaction
        /// id a batch.
        pub flush: Flush = Flush::Commit;
    }
}

/// Durability that a commit needs before its client gets the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum CommitDurability {
    /// On the primary, as PostgreSQL guarantees.
    Local,
    /// Also on this many relays: `relay` means one, `quorum(2)` two.
    Relays(usize),
}

/// A text that is not a valid [`CommitDurability`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("found {0:?}, expected \"local\", \"relay\" or \"quorum(n)\" with n from 1 to {most}", most = topology::MOST_RELAYS)]
pub struct NoDurability(String);

impl TryFrom<String> for CommitDurability {
    type Error = NoDurability;

    fn try_from(text: String) -> Result<CommitDurability, NoDurability> {
        let quorum = || text.strip_prefix("quorum(")?.strip_suffix(')')?.parse().ok();
        match text.as_str() {
            "local" => Ok(CommitDurability::Local),
            "relay" => Ok(CommitDurability::Relays(1)),
            _ => match quorum() {
                Some(relays) if (1..=topology::MOST_RELAYS).contains(&relays) => Ok(CommitDurability::Relays(relays)),
                _ => Err(NoDurability(text)),
            },
        }
    }
}

impl From<CommitDurability> for String {
    fn from(durability: CommitDurability) -> String {
        match durability {
            CommitDurability::Local => "local".into(),
            CommitDurability::Relays(1) => "relay".into(),
            CommitDurability::Relays(relays) => format!("quorum({relays})"),
        }
    }
}

impl Setting for CommitDurability {
    const KIND: Kind = Kind::Form(&Form {
        expected: "\"local\", \"relay\" or \"quorum(n)\" with n from 1 to 16",
        pattern: "^(local|relay|quorum\\([0-9]+\\))$",
        fits: |text| CommitDurability::try_from(text.to_owned()).is_ok(),
    });

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        CommitDurability::deserialize(from)
    }

    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.serialize(to)
    }

    fn toml(&self) -> Option<String> {
        String::from(*self).toml()
    }

    fn text(&self) -> String {
        String::from(*self)
    }
}

impl CommitDurability {
    /// Returns the number of relays.
    #[must_use]
    pub fn relays(self) -> usize {
        match self {
            CommitDurability::Local => 0,
            CommitDurability::Relays(relays) => relays,
        }
    }
}

::settings::settings! {
    /// Treatment of commits while too few relays confirm them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum OnDegraded {
        /// Commits wait, and new writes are refused: a commit that is not durable is never acknowledged.
        Wait = "wait",
        /// Commits are acknowledged, although only the primary has them.
        Local = "local",
    }
}

::settings::settings! {
    /// Flush of the primary's log for commits that are held back.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Flush {
        /// Each commit flushes by itself.
        Commit = "commit",
        /// The oracle has one flush done for all commits of a batch. On servers before PostgreSQL 17: like
        /// [`Flush::Commit`].
        Batch = "batch",
        /// Like [`Flush::Batch`] on all servers. Before PostgreSQL 17 it takes a transaction, and so a transaction id, per
        /// batch.
        BatchTransaction = "batch-transaction",
    }
}

impl From<Flush> for topology::Flushing {
    fn from(flush: Flush) -> topology::Flushing {
        match flush {
            Flush::Commit => topology::Flushing::Commits,
            Flush::Batch => topology::Flushing::Questions,
            Flush::BatchTransaction => topology::Flushing::Transactions,
        }
    }
}
