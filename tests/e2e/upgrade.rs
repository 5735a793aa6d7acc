//! A new process takes over from an old one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kingpost_tests::{Cluster, Kingpost, Port, ShowLogs, new_dir, sqlstate};
use tokio::net::TcpStream;

use crate::common::{only_kingpost, value};

async fn with_socket(cluster: &Cluster, drain: &str) -> Kingpost {
    let socket = new_dir("upgrade").join("upgrade.sock");
    Kingpost::of(cluster)
        .set("proxy.upgrade_socket", socket.to_str().unwrap())
        .set("proxy.drain_timeout", drain)
        .start()
        .await
}

/// What the two processes have in common is the log.
async fn wait_log(cluster: &Cluster, kingpost: &Kingpost, what: &str, text: &str) {
    let log = || std::fs::read_to_string(kingpost.process().log()).unwrap_or_default();
    cluster.wait(what, async || log().contains(text).then_some(())).await;
}

/// Clients that come and go, and one that stays, through three upgrades: nobody is refused, no statement fails.
#[tokio::test]
async fn nobody_notices_an_upgrade_under_load() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let console = Port::reserve();
    let socket = new_dir("upgrade").join("upgrade.sock");
    let mut kingpost = Kingpost::of(&cluster)
        .set("proxy.upgrade_socket", socket.to_str().unwrap())
        .set("proxy.drain_timeout", "60s")
        .set("console.listen", format!("127.0.0.1:{}", console.number()))
        .start()
        .await;
    let stays = kingpost.connect().await;
    stays.batch_execute("CREATE TABLE upgrades (n int); BEGIN; INSERT INTO upgrades VALUES (1)").await.unwrap();
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load: Vec<_> = (0..8)
        .map(|_| {
            let (stop, done, endpoint) = (stop.clone(), done.clone(), kingpost.endpoint().clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let client = endpoint.try_connect(&endpoint.config()).await?;
                    for _ in 0..3 {
                        client.query_one("SELECT count(*) FROM pg_class", &[]).await?;
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<(), tokio_postgres::Error>(())
            })
        })
        .collect();
    let progress = async || {
        let goal = done.load(Ordering::Relaxed) + 20;
        cluster.wait("20 more sessions", async || (done.load(Ordering::Relaxed) >= goal).then_some(())).await;
    };
    progress().await;
    let mut old = Vec::new();
    for _ in 0..3 {
        let before = kingpost.process().pid();
        old.push(kingpost.take_over().await);
        assert_ne!(kingpost.process().pid(), before);
        progress().await;
        assert_eq!(kingpost.http("/readyz").await.map(|(status, _)| status), Some(200));
    }
    // The web console has changed hands, too: who had it cannot answer any more.
    TcpStream::connect(("127.0.0.1", console.number())).await.expect("the console listens");
    stop.store(true, Ordering::Relaxed);
    for client in load {
        client.await.unwrap().expect("a client saw an error");
    }
    // Its transaction goes on where it began, and so does the client.
    stays.batch_execute("INSERT INTO upgrades VALUES (2); COMMIT").await.unwrap();
    assert_eq!(value(&stays, "SELECT count(*) FROM upgrades").await, "2");
    drop(stays);
    // Each process ends when its last client has left.
    for process in &old {
        assert!(process.wait_exit(kingpost_tests::SOON).await.success());
    }
    assert_eq!(value(&kingpost.connect().await, "SELECT 7").await, "7");
}

#[tokio::test]
async fn who_stays_is_told_when_the_time_is_over() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let mut kingpost = with_socket(&cluster, "1s").await;
    let stays = kingpost.connect().await;
    assert_eq!(value(&stays, "SELECT 7").await, "7");
    let old = kingpost.take_over().await;
    assert!(old.wait_exit(kingpost_tests::SOON).await.success());
    let error = stays.simple_query("SELECT 7").await.unwrap_err();
    assert!(error.is_closed() || sqlstate(&error) == "57P01", "{error:?}");
    assert_eq!(value(&kingpost.connect().await, "SELECT 7").await, "7");
}

#[tokio::test]
async fn a_successor_that_fails_changes_nothing() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = with_socket(&cluster, "1s").await;
    let client = kingpost.connect().await;
    // Its configuration is wrong: it ends before it asks.
    let text = std::fs::read_to_string(kingpost.config_path()).unwrap();
    std::fs::write(kingpost.config_path(), text.replace("upgrade_socket", "upgrade_sokcet")).unwrap();
    kingpost.process().signal(libc::SIGUSR2);
    wait_log(&cluster, &kingpost, "the successor to fail", "upgrade_sokcet").await;
    // One that asks and never says that it is ready, and one that speaks of something else.
    let socket: toml::Table = text.parse().unwrap();
    let socket = socket["proxy"]["upgrade_socket"].as_str().unwrap().to_owned();
    for words in ["kingpost take-over 1\n", "GET / HTTP/1.1\r\n\r\n     "] {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        std::io::Write::write_all(&mut stream, words.as_bytes()).unwrap();
    }
    wait_log(&cluster, &kingpost, "them to be refused", "no process has taken over").await;
    assert_eq!(value(&client, "SELECT 7").await, "7");
    assert_eq!(value(&kingpost.connect().await, "SELECT 7").await, "7");
    // And without a socket nobody can.
    std::fs::write(kingpost.config_path(), text.replace("upgrade_socket", "zone")).unwrap();
    let alone = Kingpost::run(&["proxy", "--take-over", "--config", kingpost.config_path().to_str().unwrap()]);
    assert_eq!(alone.status.code(), Some(3), "{}", String::from_utf8_lossy(&alone.stderr));
}
