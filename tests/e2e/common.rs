//! Parts shared by several modules.

use kingpost_tests::{Cluster, Kingpost, ShowLogs, Subject, skipped, subject, unique};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, SimpleQueryMessage};

/// A cluster of one primary and two replicas with a proxy in front, shared by tests that do not affect others: each uses its own tables.
pub(crate) struct Shared {
    pub(crate) cluster: Cluster,
    pub(crate) kingpost: Kingpost,
}

/// Returns the shared fixture, and a guard that shows its logs if the test panics.
pub(crate) async fn shared() -> (&'static Shared, ShowLogs<'static>) {
    static SHARED: OnceCell<Shared> = OnceCell::const_new();
    let shared = SHARED
        .get_or_init(async || {
            // Some clients commit in two phases.
            let builder = Cluster::builder().replicas(2).setting("max_prepared_transactions", "10");
            let cluster = builder.start().await;
            let kingpost = Kingpost::of(&cluster).set("proxy.pool.size", 20).start().await;
            Shared { cluster, kingpost }
        })
        .await;
    (shared, ShowLogs(shared.cluster.dir()))
}

/// True, with a message, when a stand-in is under test that lacks the tested feature.
pub(crate) fn only_kingpost() -> bool {
    let skip = subject() != Subject::Kingpost;
    if skip {
        skipped("a stand-in cannot do this");
    }
    skip
}

/// Returns a name that no other test uses.
pub(crate) fn name(stem: &str) -> String {
    format!("{stem}_{}", unique())
}

/// Returns the rows of a simple query, columns as text, NULL as `NULL`.
pub(crate) async fn simple(client: &Client, sql: &str) -> Vec<Vec<String>> {
    let messages = client.simple_query(sql).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|column| row.get(column).unwrap_or("NULL").to_owned()).collect())
        }
        _ => None,
    });
    rows.collect()
}

/// Returns the only value of a simple query.
pub(crate) async fn value(client: &Client, sql: &str) -> String {
    let mut rows = simple(client, sql).await;
    assert_eq!(rows.len(), 1, "{sql}: {rows:?}");
    rows[0].swap_remove(0)
}

/// Returns the numbers of replay checks that the proxy has sent, and of those that found the replica behind.
pub(crate) async fn replay_checks(kingpost: &Kingpost) -> [f64; 2] {
    let metrics = kingpost.metrics().await;
    ["replay_checks", "replay_checks_behind"].map(|name| metrics.sum(&format!("kingpost_{name}_total"), &[]))
}

/// True if the cluster's servers are of PostgreSQL 19 or later.
pub(crate) async fn is_postgresql_19(cluster: &Cluster) -> bool {
    cluster.primary().query("SELECT current_setting('server_version_num')::int >= 190000").await == "t"
}
