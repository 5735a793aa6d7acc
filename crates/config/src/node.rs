//! Configuration of an agent.

use std::path::PathBuf;
use std::time::Duration;

::settings::settings! {
    /// `[node]`: settings of `kingpost node` beside `[cluster]` and `[failover]`, whose user the agent logs in as.
    #[derive(Debug, Clone, PartialEq)]
    pub struct NodeAgentConfig: Default {
        /// Name of this server, as `[[cluster.nodes]]` or the registry has it.
        pub name: String = String::new();
        /// Address at which the others reach this server, host:port. "": that of `[[cluster.nodes]]`.
        pub address: String = String::new();
        /// Directory of the agent. The server's data are in its directory data.
        pub directory: PathBuf = PathBuf::from("/var/lib/kingpost-node");
        /// True if the directory has to be a mounted volume: the agent waits for it.
        pub volume: bool = false;
        /// The server's listen_addresses.
        pub listen_addresses: String = "*".into();
        /// Directory of the server's Unix socket; "": none.
        pub socket_directory: String = String::new();
        /// Directory of PostgreSQL's programs; searched for if not given.
        pub pg_bin: Option<PathBuf> = None, example(r#""/usr/lib/postgresql/15/bin""#);
        /// Lifetime of the server: "attached" ends it with the agent, as a container needs it; "detached" leaves it running, so that the agent can be
        /// restarted.
        pub server: Attachment = Attachment::Attached;
        /// Interval between two looks at the server and the cluster.
        pub interval: Duration = Duration::from_secs(1);
        /// Time within which a primary's agent has to hear from most of the relays that its timeline goes on. After half of it the server refuses
        /// writes, after three quarters it is stopped. "0s", or no `[[failover.relays]]`: no fence.
        pub lease: Duration = Duration::from_secs(20), or_never();
        /// Longest time for clients to leave before an attached server is stopped, or its data are copied anew: the registry has its weight as 0. The wait
        /// ends when no session was left for three seconds.
        pub drain: Duration = Duration::ZERO, or_never();
        /// Longest time for a clean stop of the server, before an immediate one.
        pub stop_timeout: Duration = Duration::from_secs(60);
        /// Longest time for a copy of the primary's data, or for a rewind.
        pub clone_timeout: Duration = Duration::from_secs(24 * 3600);
        /// Number of replaced data directories that are kept, the newest. 0: none.
        pub aside: usize = 1, range(0, 16);
        /// Source of a copy: "primary" by pg_basebackup, or "archive": the newest base backup and the WAL of `[relay.archive]`, and the primary if that
        /// fails.
        pub copy_from: CopySource = CopySource::Primary;
        /// host:port of the agent's /metrics, /healthz and /readyz; "": none. `metrics.allow_remote` allows other addresses than loopback ones.
        pub metrics_listen: String = String::new();
        /// Watchdog device: it resets the machine when the agent of a primary hangs, or does not stop its server within the lease. Its timeout has to be
        /// at most half of the lease, and more than a quarter, in which the server is stopped.
        pub watchdog: Option<PathBuf> = None, example(r#""/dev/watchdog""#);
    }
}

::settings::settings! {
    /// Source of a copy of the data.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum CopySource {
        /// The primary.
        Primary = "primary",
        /// The archive.
        Archive = "archive",
    }
}

::settings::settings! {
    /// Lifetime of an agent's server.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Attachment {
        /// The server ends with the agent.
        Attached = "attached",
        /// The server outlives the agent.
        Detached = "detached",
    }
}
