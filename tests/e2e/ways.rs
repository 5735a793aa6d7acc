//! The ways in which clients and servers of the fault tests communicate: a property of one must hold in all.

use kingpost_tests::certs::Authority;
use kingpost_tests::{Cluster, Kingpost, KingpostBuilder, SOON};
use tls::postgres::Secure;
use tokio_postgres::Client;
use tokio_postgres::config::SslMode;

const HERE: &[&str] = &["localhost", "127.0.0.1"];

/// A way for clients to reach servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// In clear, with a connection for each client.
    Plain,
    /// TLS on both sides, and reads of all clients on shared lanes.
    SecuredLanes,
}

/// Servers for a way.
pub(crate) struct Ground {
    way: Way,
    authority: Authority,
    pub(crate) cluster: Cluster,
}

/// A proxy whose clients use a way.
pub(crate) struct Front {
    pub(crate) kingpost: Kingpost,
    tls: Option<Secure>,
}

impl Ground {
    /// Starts a primary and two replicas; `settings` are of every node.
    pub(crate) async fn start(way: Way, settings: &[(&str, &str)]) -> Ground {
        let authority = Authority::new();
        let mut builder = Cluster::builder().replicas(2);
        for (name, value) in settings {
            builder = builder.setting(name, value);
        }
        if way == Way::SecuredLanes {
            builder = builder.tls(&authority.issue_server("server", HERE));
        }
        Ground { way, authority, cluster: builder.start().await }
    }

    /// Starts a proxy in front of them; `tweak` may change all its settings.
    pub(crate) async fn front(&self, tweak: impl FnOnce(KingpostBuilder<'_>) -> KingpostBuilder<'_>) -> Front {
        let mut builder = Kingpost::of(&self.cluster);
        let mut tls = None;
        if self.way == Way::SecuredLanes {
            let pair = self.authority.issue("proxy", HERE);
            let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
            tls = Some(self.authority.client(None));
            builder = builder
                .set("proxy.tls.mode", "require")
                .set("proxy.tls.cert_file", text(&pair.cert))
                .set("proxy.tls.key_file", text(&pair.key))
                .set("cluster.tls.mode", "verify-full")
                .set("cluster.tls.ca_file", text(&self.authority.ca_file()))
                // Fewer connections than clients, and one worker, so that all of them meet.
                .set("proxy.workers", 1)
                .set("proxy.pool.lane_width", 1)
                .set("proxy.pool.size", 4);
        }
        Front { kingpost: tweak(builder).start().await, tls }
    }
}

impl Front {
    /// Connects as the tests' usual user to the usual database.
    pub(crate) async fn connect(&self) -> Client {
        let Some(tls) = &self.tls else { return self.kingpost.connect().await };
        let mut config = self.kingpost.endpoint().config();
        config.ssl_mode(SslMode::Require);
        let connecting = tokio::time::timeout(SOON, config.connect(tls.clone())).await.expect("an answer to a login");
        let (client, connection) = connecting.expect("a connection over TLS");
        tokio::spawn(connection);
        client
    }

    /// Checks that the way was really used: otherwise a test would prove nothing about it.
    pub(crate) async fn check_way(&self) {
        if self.tls.is_some() {
            let metrics = self.kingpost.metrics().await;
            assert!(metrics.sum("kingpost_clients_secured_total", &[]) > 0.0, "nobody came over TLS");
            assert!(metrics.sum("kingpost_lane_statements_total", &[]) > 0.0, "no statement shared a connection");
        }
    }
}
