//! Configuration of a scaler.

use std::time::Duration;

::settings::settings! {
    /// `[scale]`: settings of `kingpost scale` beside `[cluster.from]`, whose registry lists the servers, and `[failover]`, whose user it logs in as.
    #[derive(Debug, Clone, PartialEq)]
    pub struct ScaleConfig: Default {
        /// Least number of replicas: with fewer of them listed one is added, whatever the load.
        pub least: usize = 1, range(1, 512);
        /// Most replicas, also counting those that do not answer.
        pub most: usize = 3, range(1, 512);
        /// Beginning of the names of the servers that the scaler adds and removes; a number follows. Other servers are counted, and never removed.
        pub prefix: String = "replica-".into();
        /// True if the program can only remove the server with the highest number, as a StatefulSet does: while that one is the primary, none is removed.
        pub only_last: bool = false;
        /// Program that adds a server, with its arguments. Its environment has KINGPOST_SCALE ("add"), KINGPOST_NODE (the name), KINGPOST_REASON,
        /// KINGPOST_SERVERS (the number of servers afterwards, with the primary), KINGPOST_PRIMARY and KINGPOST_PRIMARY_ADDRESS. It may be run again for
        /// the same name.
        pub add: Vec<String> = Vec::new();
        /// Program that removes a server, with KINGPOST_SCALE ("remove") and KINGPOST_ADDRESS in its environment. It may be run again for the same name,
        /// and for one that was never added.
        pub remove: Vec<String> = Vec::new();
        /// Longest time for a program, and for a server to stop answering after its removal.
        pub command_timeout: Duration = Duration::from_secs(600);
        /// Load at which a replica is added: sessions of clients that run a statement or are in a transaction, on average of the replicas that serve
        /// and of the window.
        pub add_at: u32 = 40, range(1, 100_000);
        /// Load at which a replica is removed: the average that the others would have without it. Less than add_at.
        pub remove_at: u32 = 20, range(0, 100_000);
        /// Time over which the load is averaged.
        pub window: Duration = Duration::from_secs(60);
        /// Interval between two looks at the servers.
        pub interval: Duration = Duration::from_secs(5);
        /// Shortest time from any change to an addition by load.
        pub add_pause: Duration = Duration::from_secs(120), or_never();
        /// Shortest time from any change to a removal.
        pub remove_pause: Duration = Duration::from_secs(900), or_never();
        /// Most bytes of WAL that a replica may be behind the primary and still count as serving.
        pub lag_bytes: u64 = 64 << 20, range(0, i64::MAX);
        /// Longest time for an added server to copy the data and catch up; after it the server is removed again.
        pub join_timeout: Duration = Duration::from_secs(4 * 3600);
        /// Longest time for clients to leave a server before it is removed. The wait ends when no session was left for three seconds.
        pub drain: Duration = Duration::from_secs(300), or_never();
        /// host:port of the scaler's /metrics, /healthz and /readyz; "": none. `metrics.allow_remote` allows other addresses than loopback ones.
        pub metrics_listen: String = String::new();
    }
}
