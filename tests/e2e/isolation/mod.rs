//! Isolation of clients: two databases, two users, two clients on few server connections, one file per subject. PostgreSQL itself is the oracle: the
//! same talk runs directly and through the proxy, and must give the same answers.

mod databases_and_users;
mod functions;
mod limits;
mod names;
mod nodes;
mod protocol;
mod reloads;
mod replicas;
mod settings;

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use kingpost_tests::oracle::Talk;
use kingpost_tests::{Cluster, Kingpost, ShowLogs, USER};
use tokio::sync::OnceCell;

/// A second database beside the tests' usual one.
pub(crate) const OTHER_DATABASE: &str = "shop";
/// A second user beside the tests' usual one. Servers trust both.
pub(crate) const OTHER_USER: &str = "bob";
/// A role that both users may take by SET ROLE. It may only read tables that are granted to everybody.
pub(crate) const LOW_ROLE: &str = "low";

/// A primary and a replica that keeps up, with two databases and two users, shared by tests that use tables, schemas and roles of
/// their own.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
}

/// Returns the shared world, and a guard that shows its logs if the test panics.
pub(crate) async fn world() -> (&'static World, ShowLogs<'static>) {
    static WORLD: OnceCell<World> = OnceCell::const_new();
    let world = WORLD
        .get_or_init(async || {
            let cluster = Cluster::builder().replicas(1).start().await;
            people(&cluster).await;
            cluster.wait_caught_up().await;
            World { cluster }
        })
        .await;
    (world, ShowLogs(world.cluster.dir()))
}

/// Creates the other database, the other user and the role.
pub(crate) async fn people(cluster: &Cluster) {
    let primary = cluster.primary();
    primary.execute(&format!("CREATE ROLE {OTHER_USER} LOGIN")).await;
    primary.execute(&format!("CREATE ROLE {LOW_ROLE} ROLE {USER}, {OTHER_USER}")).await;
    primary.execute(&format!("CREATE DATABASE {OTHER_DATABASE} OWNER {OTHER_USER}")).await;
}

/// Settings of the proxy for a talk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Front {
    /// Server connections of one database and user on one node.
    pub(crate) pool: i64,
    /// `proxy.routing.route`.
    pub(crate) route: &'static str,
    /// `proxy.pool.unnamed`.
    pub(crate) unnamed: &'static str,
    /// `proxy.pool.unknown_functions`.
    pub(crate) functions: &'static str,
}

/// One server connection, on the primary: each statement meets what the one before it left.
pub(crate) const ONE: Front = Front { pool: 1, route: "primary", unnamed: "parsed", functions: "reset" };
/// Two server connections: a client's next statement may meet a connection that does not know it.
pub(crate) const TWO: Front = Front { pool: 2, ..ONE };
/// Reads on the replica.
pub(crate) const REPLICA: Front = Front { route: "auto", ..TWO };
/// As many as the clients of any talk: the proxy may keep one for a client whose statements it cannot classify.
pub(crate) const WIDE: Front = Front { pool: 8, ..ONE };
/// Unnamed statements are shared, too.
pub(crate) const UNNAMED: Front = Front { unnamed: "shared", ..ONE };
/// A client that calls an unknown function keeps its connection.
pub(crate) const PINNED: Front = Front { functions: "pin", ..TWO };

impl Front {
    /// Starts the proxy with one worker: its clients and server connections interact in the order of the talk.
    pub(crate) async fn start(self, cluster: &Cluster) -> Kingpost {
        Kingpost::of(cluster)
            .set("proxy.workers", 1)
            .set("proxy.pool.size", self.pool)
            .set("proxy.routing.route", self.route)
            .set("proxy.pool.unnamed", self.unnamed)
            .set("proxy.pool.unknown_functions", self.functions)
            .start()
            .await
    }
}

impl World {
    /// Runs a talk with the primary, then with a proxy of each kind, and returns the first one.
    ///
    /// # Panics
    /// When the talk itself panics, or an answer through a proxy differs from the primary's: after all of them, with the errors of each.
    pub(crate) async fn as_postgres(&self, fronts: &[Front], talk: impl AsyncFn(&mut Talk)) -> Talk {
        self.cluster.wait_caught_up().await;
        let mut direct = Talk::new(self.cluster.primary().port());
        talk(&mut direct).await;
        let mut wrong = Vec::new();
        for front in fronts {
            // Replicas that have the changes of the previous run.
            self.cluster.wait_caught_up().await;
            let kingpost = front.start(&self.cluster).await;
            let mut proxied = Talk::new(kingpost.port());
            let outcome = AssertUnwindSafe(talk(&mut proxied)).catch_unwind().await;
            if let Some(difference) = direct.first_difference(&proxied) {
                wrong.push(format!("{front:?}: not as PostgreSQL\n{difference}"));
            } else if outcome.is_err() {
                wrong.push(format!("{front:?}: see the panic above"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        direct
    }
}
