//! `[proxy.pool]`: server connections.

use std::time::Duration;

use settings::{Limit, OrNever};

::settings::settings! {
    /// `[proxy.pool]`: limits of server connections.
    #[derive(Debug, Clone, PartialEq)]
    pub struct PoolConfig: Default {
        /// Time for which a client keeps a server connection: "transaction"; "statement", without transaction blocks; or "session".
        pub mode: PoolMode = PoolMode::Transaction, pgbouncer("pool_mode");
        /// Most server connections for one database and user on one node.
        pub size: usize = 20, range(1, 10_000), pgbouncer("default_pool_size");
        /// Server connections to the primary that are kept open for one database and user while it has clients: a burst finds them.
        pub min_size: usize = 0, range(0, 10_000), pgbouncer("min_pool_size");
        /// Server connections beyond the size, for clients that have waited for reserve_timeout; closed when nobody has used them for as long.
        pub reserve_size: usize = 0, range(0, 10_000), pgbouncer("reserve_pool_size");
        /// Time that a client waits before it may use a connection of the reserve.
        pub reserve_timeout: Duration = Duration::from_secs(5), pgbouncer("reserve_pool_timeout");
        /// Most server connections of one user to one node, with all databases; 0: no limit.
        pub max_user_connections: Limit = Limit::NONE, range(0, 1_000_000), pgbouncer("max_user_connections");
        /// Most server connections of one database to one node, for all users; 0: no limit.
        pub max_database_connections: Limit = Limit::NONE, range(0, 1_000_000), pgbouncer("max_db_connections");
        /// Most server connections of all databases and users to one node; 0: no limit.
        pub max_node_connections: Limit = Limit::NONE, range(0, 1_000_000);
        /// Time that a client waits for a server connection before a NOTICE tells it so; "0s" means never.
        pub wait_notice: OrNever = OrNever::NEVER, pgbouncer("query_wait_notify");
        /// Longest wait of a statement or a login for a server connection; then 53300, or 57P03 if no server was reached. A statement's client stays
        /// connected.
        pub wait_timeout: Duration = Duration::from_secs(30), pgbouncer("query_wait_timeout");
        /// Longest wait while there is no primary; then 57P03.
        pub no_primary_timeout: Duration = Duration::from_secs(30);
        /// Age at which a server connection is closed when it is next idle; "0s" means never.
        pub server_lifetime: OrNever = OrNever::after(Duration::from_secs(3600)), pgbouncer("server_lifetime");
        /// Longest time by which each connection lives longer, by chance: those that were opened together are closed apart.
        pub server_lifetime_jitter: Duration = Duration::ZERO, or_never();
        /// Time after which an idle server connection is closed; "0s" means never.
        pub server_idle_timeout: OrNever = OrNever::after(Duration::from_secs(600)), pgbouncer("server_idle_timeout");
        /// Time after which a pool (of a database and a user) without clients and server connections is forgotten, with its counts in SHOW STATS;
        /// "0s" means never.
        pub idle_timeout: OrNever = OrNever::after(Duration::from_secs(60)), pgbouncer("pool_idle_timeout");
        /// Longest time to connect and log in to a server.
        pub connect_timeout: Duration = Duration::from_secs(5), pgbouncer("server_connect_timeout");
        /// Prepared statements kept in one server connection; the longest unused one is closed for a new one.
        pub prepared_per_server: usize = 500, range(1, 100_000), pgbouncer("max_prepared_statements");
        /// Bytes of one client's named prepared statements: names, texts, types and 512 bytes each. A client with more is closed (53400).
        pub prepared_bytes_per_client: usize = 64 << 20, range(1 << 20, 1 << 34);
        /// True if the proxy answers BEGIN by itself and sends it to a server together with the statement after it: a round trip less for each
        /// transaction, and no server connection held by a client that has said no more than BEGIN. now() is then the time of the first statement. In
        /// transaction mode only.
        pub defer_begin: bool = true;
        /// Treatment of functions of which nothing is known, DO and CALL, which may leave something in the session unseen: a parameter by set_config,
        /// an advisory lock, a temporary table. "reset": all of that is cleared before another client gets the server connection (and before the same
        /// client's next transaction). "pin": the client keeps its server connection until it leaves. "trust": nothing, as long as no function that
        /// the clients call leaves anything. Functions of PostgreSQL itself, and those in proxy.routing.read_functions, are known.
        pub unknown_functions: UnknownFunctions = UnknownFunctions::Reset;
        /// Treatment of statements without a name when the same text comes again: "shared": a server keeps them as it keeps prepared ones and does
        /// not parse them anew, where nobody can tell; "parsed": it does. Like prepared statements, shared ones may get a generic plan from their
        /// sixth use on (PostgreSQL's plan_cache_mode).
        pub unnamed: UnnamedMode = UnnamedMode::Parsed;
        /// Sharing of server connections between quick reads of several clients, when there are many of them: "auto" or "off". In transaction mode
        /// only.
        pub lanes: LaneMode = LaneMode::Auto;
        /// Most statements on one shared connection at a time.
        pub lane_depth: usize = 16, range(1, 256);
        /// Connections that each worker uses for one database and user on one node before statements share them: the least number.
        pub lane_width: usize = 2, range(1, 1_000);
        /// The greatest such number. Up to it, workers try twice and half as many from time to time while statements wait behind others, and keep
        /// what answers more of them. With lane_width or less, the number is fixed.
        pub lane_width_most: usize = 64, range(1, 1_000);
        /// Run time after which a statement on a shared connection has it to itself. A read shares a connection only if it usually takes less than a
        /// quarter of this.
        pub lane_stall: Duration = Duration::from_millis(20);
        /// Time that a worker with many statements on shared connections lets answers gather before it looks at them: fewer system calls and more
        /// statements a second for a little latency of reads, only while the worker is busy with them. "0s" means none.
        pub lane_gather: Duration = Duration::from_micros(100), or_never();
    }
}

::settings::settings! {
    /// Time for which a client keeps a server connection.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum PoolMode {
        /// For a transaction.
        Transaction = "transaction",
        /// For a statement, or for several in one message or up to one Sync. Transaction blocks are refused.
        Statement = "statement",
        /// From the client's first statement until the client leaves. Everything goes to the primary.
        Session = "session",
    }
}

::settings::settings! {
    /// Treatment of `DO`, `CALL` and unknown functions. They may leave anything in the session (parameters, advisory locks, temporary tables), which the
    /// next client would see.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum UnknownFunctions {
        /// As if they left nothing.
        Trust = "trust",
        /// The session is cleaned of everything they may have left, before another client gets the server connection.
        #[default]
        Reset = "reset",
        /// The client keeps its server connection.
        Pin = "pin",
    }
}

::settings::settings! {
    /// Treatment of unnamed statements.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum UnnamedMode {
        /// A server parses a recurring text once and keeps it for all clients, if no client can notice.
        Shared = "shared",
        /// Each one is parsed every time.
        Parsed = "parsed",
    }
}

::settings::settings! {
    /// Sharing of server connections between statements of several clients.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LaneMode {
        /// Yes, for plain reads that are known to be fast and small, if there are more of them than connections. In
        /// transaction mode only.
        Auto = "auto",
        /// No.
        Off = "off",
    }
}
