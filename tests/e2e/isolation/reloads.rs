//! A reloaded configuration: clients from before and after are in the sessions that it gives them now.

use kingpost_tests::{Cluster, DATABASE, Kingpost, SOON, ShowLogs, USER, database, wait_until};
use tokio_postgres::{AsyncMessage, Client};
use toml::{Table, Value};

use crate::common::{only_kingpost, value};
use crate::isolation::{OTHER_DATABASE, people};

/// The proxy's name for a database.
const FRONT: &str = "front";

async fn world() -> Cluster {
    let cluster = Cluster::builder().start().await;
    people(&cluster).await;
    cluster
}

async fn connect(kingpost: &Kingpost) -> Client {
    let mut config = kingpost.endpoint().config();
    kingpost.endpoint().connect_as(config.user(USER).dbname(FRONT)).await
}

#[tokio::test]
async fn who_listens_is_not_left_in_the_former_database() {
    if only_kingpost() {
        return;
    }
    let cluster = world().await;
    let _logs = ShowLogs(cluster.dir());
    let alias = |of: &str| Value::Table(database(FRONT, "dbname", of));
    let kingpost = Kingpost::of(&cluster).set("proxy.databases", vec![alias(DATABASE)]).start().await;
    let listens = connect(&kingpost).await;
    listens.batch_execute("LISTEN news").await.unwrap();
    kingpost.reload_and_wait("proxy.databases", vec![alias(OTHER_DATABASE)]).await;
    wait_until("the client that listens to be told", SOON, cluster.dir(), async || {
        listens.simple_query("SELECT 1").await.is_err().then_some(())
    })
    .await;
    let mut config = kingpost.endpoint().config();
    let (client, mut heard) = kingpost.endpoint().connect_with_messages(config.user(USER).dbname(FRONT)).await;
    assert_eq!(value(&client, "SELECT current_database()").await, OTHER_DATABASE);
    client.batch_execute("LISTEN news").await.unwrap();
    for of in [DATABASE, OTHER_DATABASE] {
        cluster.primary().execute_in(of, &format!("NOTIFY news, 'of {of}'")).await;
    }
    let first = loop {
        if let AsyncMessage::Notification(first) = heard.recv().await.expect("a notification") {
            break first;
        }
    };
    assert_eq!(first.payload(), format!("of {OTHER_DATABASE}"));
}

#[tokio::test]
async fn a_client_of_before_does_not_go_on_without_its_role() {
    if only_kingpost() {
        return;
    }
    let cluster = world().await;
    let _logs = ShowLogs(cluster.dir());
    cluster.primary().execute(&format!("CREATE ROLE pooled LOGIN ROLE postgres; GRANT {USER} TO pooled")).await;
    let plain = database(FRONT, "dbname", DATABASE);
    let mut as_role = plain.clone();
    as_role.extend(Table::from_iter([("server_user".into(), "pooled".into()), ("set_role".into(), true.into())]));
    let kingpost = Kingpost::of(&cluster).set("proxy.databases", vec![Value::Table(plain)]).start().await;
    let before = connect(&kingpost).await;
    assert_eq!(value(&before, "SELECT current_user || ' ' || session_user").await, format!("{USER} {USER}"));
    kingpost.reload_and_wait("proxy.databases", vec![Value::Table(as_role)]).await;
    let row = before.query_one("SELECT current_user::text", &[]).await;
    assert!(row.is_err(), "it goes on as {:?}", row.map(|row| row.get::<_, String>(0)));
    // A reload that is logged has reached every worker.
    for _ in 0..8 {
        let after = connect(&kingpost).await;
        assert_eq!(value(&after, "SELECT current_user || ' ' || session_user").await, format!("{USER} pooled"));
    }
}

#[tokio::test]
async fn a_function_that_does_not_only_read_after_all() {
    if only_kingpost() {
        return;
    }
    let cluster = world().await;
    let _logs = ShowLogs(cluster.dir());
    let function =
        "CREATE FUNCTION enter(text) RETURNS text LANGUAGE sql AS $$ SELECT set_config('app.tenant', $1, false) $$";
    cluster.primary().execute(function).await;
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.workers", 1)
        .set("proxy.pool.size", 1)
        .set("proxy.databases", vec![Value::Table(database(FRONT, "dbname", DATABASE))])
        .set("proxy.routing.read_functions", vec!["enter"])
        .start()
        .await;
    let (enters, looks) = (connect(&kingpost).await, connect(&kingpost).await);
    let tenant = "SELECT coalesce(current_setting('app.tenant', true), '')";
    let prepared = enters.prepare("SELECT enter($1)").await.unwrap();
    enters.query(&prepared, &[&"first"]).await.unwrap();
    assert_eq!(value(&looks, tenant).await, "first", "it was declared to only read");
    kingpost.reload("proxy.routing.read_functions", Vec::<Value>::new());
    wait_until("the function to be unknown", SOON, cluster.dir(), async || {
        value(&enters, "SELECT enter('probe')").await;
        (value(&looks, tenant).await != "probe").then_some(())
    })
    .await;
    let new = connect(&kingpost).await;
    let again = new.prepare("SELECT enter($1)").await.unwrap();
    new.query(&again, &[&"second"]).await.unwrap();
    assert_eq!(value(&looks, tenant).await, "");
}
