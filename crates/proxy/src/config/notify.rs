//! `[proxy.notify]`: LISTEN and NOTIFY.

::settings::settings! {
    /// `[proxy.notify]`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct NotifyConfig: Default {
        /// Server connection that executes LISTEN: "shared": one for all clients of a database and user, beside those of the pool; "pinned": each
        /// client's own, which it then keeps.
        pub listen: ListenMode = ListenMode::Shared;
        /// Most channels of one client. A client that wants more keeps its server connection.
        pub channels_per_client: usize = 256, range(1, 100_000);
        /// Most channels of one shared connection. A client that wants a further channel keeps its server connection.
        pub channels: usize = 10_000, range(1, 1_000_000);
        /// Bytes of notifications that wait for one client, because it is in a transaction or does not read; with more it is closed with 53400.
        pub queue_bytes: usize = 1 << 20, range(16 << 10, 1 << 30);
    }
}

::settings::settings! {
    /// Server connection that executes a client's LISTEN, in transaction and statement mode.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ListenMode {
        /// One server connection for all clients of a database and user.
        Shared = "shared",
        /// The client's server connection, which the client then keeps.
        Pinned = "pinned",
    }
}
