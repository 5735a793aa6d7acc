//! `[proxy.routing]`: routing of statements.

use std::time::Duration;

::settings::settings! {
    /// `[proxy.routing]`.
    #[derive(Debug, Clone, PartialEq)]
    pub struct RoutingConfig: Default {
        /// Routing of statements: "auto" sends reads to replicas and writes to the primary; or "primary", "replica".
        pub route: RouteTo = RouteTo::Auto;
        /// Commits that a read on a replica is sure to see: "session" is everything this client has committed, "eventual" is what the replica has,
        /// within cluster.lag_limit, "strong" is everything that anybody was told to be committed before the read began. "strong" asks the relays of
        /// `[[cluster.relays]]` whether the primary was replaced, and can't know without them.
        pub consistency: Consistency = Consistency::Session;
        /// True if a read may go to a replica that is not known to have what the read must see: the replica is asked for its position ahead of the read,
        /// in the same packet. If it is behind, its answer is dropped, and the primary or another replica answers the read.
        pub verified_reads: bool = true;
        /// Node for the reads of a READ COMMITTED transaction before its first write: "primary", or "replica", which has what `consistency` promises. With
        /// "replica" the transaction begins on the primary at its first statement that is not such a read. Each session may choose by `SET
        /// kingpost.transaction_reads`. Without effect where `consistency` is "strong" or a transaction_timeout is set.
        pub transaction_reads: TransactionReads = TransactionReads::Primary;
        /// The primary's weight among the nodes that answer reads, beside the weights of the nodes; 0: it answers them where no replica can.
        pub primary_weight: u32 = 0, range(0, 1_000);
        /// Longest time that a strong read waits for a replica that has everything it must see; then the primary answers it.
        pub strong_wait: Duration = Duration::from_millis(30);
        /// Functions (name or schema.name) that only read, beyond PostgreSQL's own.
        pub read_functions: Vec<String> = Vec::new();
        /// Statement shapes kept per worker.
        pub cache_entries: usize = 5_000, range(1, 1_000_000);
    }
}

::settings::settings! {
    /// Routing of statements.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RouteTo {
        /// To the primary.
        Primary = "primary",
        /// To a replica. A statement that writes is run on the primary nevertheless.
        Replica = "replica",
        /// Reads to replicas, writes to the primary: the default.
        Auto = "auto",
    }
}

::settings::settings! {
    /// Commits that a read on a replica is guaranteed to see.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Consistency {
        /// The replica's current state, within the cluster's lag limit.
        Eventual = "eventual",
        /// At least everything this client has committed.
        Session = "session",
        /// At least all commits that were acknowledged to any client before the read began.
        Strong = "strong",
    }
}

::settings::settings! {
    /// Node for the reads of a transaction before its first write.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum TransactionReads {
        /// The primary.
        Primary = "primary",
        /// A replica, if the transaction is READ COMMITTED.
        Replica = "replica",
    }
}
