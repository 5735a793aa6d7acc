//! `kingpost watch`: it gives advice, or acts under a lock in etcd or in the registry.

use std::process::Stdio;
use std::time::Duration;

use kingpost_tests::certs::Authority;
use kingpost_tests::{
    Cluster, Cut, ETCD_PASSWORD, ETCD_USER, Etcd, Failover, Link, Port, RegistryNode, SOON, ShowLogs, http_get,
    kingpost_bin, wait_until, within,
};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::common::only_kingpost;
use crate::fleet::Fleet;

async fn fleet() -> Fleet {
    Fleet::builder().replicas(1).start().await
}

async fn says(cluster: &Cluster, log: &std::path::Path, text: &str) {
    let what = format!("`kingpost watch` to say {text:?}");
    wait_until(&what, SOON, cluster.dir(), async || {
        std::fs::read_to_string(log).unwrap_or_default().contains(text).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn says_that_the_primary_is_lost_and_changes_nothing() {
    if only_kingpost() {
        return;
    }
    let fleet = fleet().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let failover = fleet.failover();
    let port = Port::reserve();
    let address = format!("127.0.0.1:{}", port.number());
    let (_watch, log) = failover.start(&["watch", "--after", "1s", "--metrics-listen", &address]);
    says(cluster, &log, "n0 is the primary").await;
    let status = async |path: &str| Some(http_get(port.number(), path).await?.0);
    assert_eq!((status("/healthz").await, status("/readyz").await), (Some(200), Some(200)));
    cluster.primary().kill9().await;
    says(cluster, &log, "it is time for `kingpost failover`: n1 would be the primary").await;
    assert_eq!(cluster.replica(0).query("SELECT pg_is_in_recovery()").await, "t");
    assert_eq!(fleet.relays[0].metrics().await.sum("kingpost_relay_term", &[]), 0.0);
    assert_eq!((status("/healthz").await, status("/readyz").await), (Some(200), Some(503)));
    let (_, text) = http_get(port.number(), "/metrics").await.unwrap();
    assert!(text.contains("kingpost_watch_judgement{judgement=\"lost\"} 1"), "{text}");
    assert!(text.contains("kingpost_watch_failovers_total 0"), "{text}");
    failover.succeed(&["failover"]).await;
    says(cluster, &log, "n1 is the primary").await;
}

/// As the watcher of `kingpost up --tour`, after a kill -9 of `up`.
#[tokio::test(flavor = "multi_thread")]
async fn ends_with_the_process_that_it_was_started_for() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(0).start().await;
    let _logs = ShowLogs(cluster.dir());
    let script = "\"$0\" watch --config \"$1\" --with-process $$ & echo $!; wait";
    let mut parent = tokio::process::Command::new("sh");
    parent.args(["-c", script]).arg(kingpost_bin()).arg(Failover::of(&cluster, &[]).write()).kill_on_drop(true);
    let mut parent = parent.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let pid: u32 = lines.next_line().await.unwrap().unwrap().parse().unwrap();
    let watches = async { while !lines.next_line().await.unwrap().unwrap().contains("n0") {} };
    within("a word of the watcher", SOON, cluster.dir(), watches).await;
    parent.kill().await.unwrap();
    let program = format!("/proc/{pid}/exe");
    let ended = async || std::fs::read_link(&program).is_err().then_some(());
    wait_until("the watcher to end with its parent", SOON, cluster.dir(), ended).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replaces_a_lost_primary_under_a_lock() {
    if only_kingpost() {
        return;
    }
    let fleet = fleet().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let Some(etcd) = Etcd::start(cluster).await else { return };
    let url = etcd.url();
    let failover = fleet.failover();
    // Two of them: one acts.
    let arguments = ["watch", "--after", "1s", "--ttl", "4s", "--etcd", &url];
    let other = failover.clone().copy(cluster);
    let (_one, log) = failover.start(&arguments);
    let (_two, log_two) = other.start(&arguments);
    for log in [&log, &log_two] {
        says(cluster, log, "n0 is the primary").await;
    }
    cluster.primary().kill9().await;
    for log in [&log, &log_two] {
        says(cluster, log, "n1 is the primary").await;
    }
    assert_eq!(cluster.replica(0).query("SELECT pg_is_in_recovery()").await, "f");
    let said = [&log, &log_two].map(|log| std::fs::read_to_string(log).unwrap_or_default()).concat();
    assert_eq!(said.matches("promoted n1").count(), 1, "{said}");
}

/// As under a lock in etcd: of two watchers one acts. Then a watcher that was killed with the lock delays the next one only for twice its time to
/// live.
#[tokio::test(flavor = "multi_thread")]
async fn replaces_a_lost_primary_under_a_lock_of_the_registry() {
    if only_kingpost() {
        return;
    }
    let fleet = fleet().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let registry = RegistryNode::start("[registry.kv]\nsession_ttl_min = \"1s\"").await;
    // The first one does not exist: the next is asked.
    let urls = format!("http://127.0.0.1:1,{}", registry.url());
    let failover = fleet.failover();
    let arguments = ["watch", "--after", "1s", "--ttl", "4s", "--registry", &urls];
    let other = failover.clone().copy(cluster);
    // A session whose holder was killed with the lock.
    let session =
        registry.ask("PUT", "/v1/session/create", &[], r#"{"TTL":"1s","LockDelay":"0s","Behavior":"delete"}"#);
    let session = session.await.json()["ID"].as_str().unwrap().to_owned();
    let key = "/v1/kv/kingpost/failover";
    let taken = registry.ask("PUT", &format!("{key}/main?acquire={session}"), &[], "somebody").await;
    assert_eq!(taken.body, "true");
    let (_one, log) = failover.start(&arguments);
    let (_two, log_two) = other.start(&arguments);
    for log in [&log, &log_two] {
        says(cluster, log, "n0 is the primary").await;
    }
    cluster.primary().kill9().await;
    for log in [&log, &log_two] {
        says(cluster, log, "n1 is the primary").await;
    }
    assert_eq!(cluster.replica(0).query("SELECT pg_is_in_recovery()").await, "f");
    let said = [&log, &log_two].map(|log| std::fs::read_to_string(log).unwrap_or_default()).concat();
    assert_eq!(said.matches("promoted n1").count(), 1, "{said}");
    // Released: nothing is left but the primary.
    wait_until("the lock to be given back", SOON, cluster.dir(), async || {
        (registry.get(&format!("{key}?keys")).await.status == 404).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_where_patroni_decides() {
    if only_kingpost() {
        return;
    }
    let fleet = fleet().await;
    let _logs = ShowLogs(fleet.cluster.dir());
    let registry = RegistryNode::start("").await;
    assert_eq!(registry.ask("PUT", "/v1/kv/service/main/leader", &[], "patroni").await.status, 200);
    let (watch, log) = fleet.failover().start(&["watch", "--registry", &registry.url()]);
    assert!(!watch.wait_exit(SOON).await.success());
    let said = std::fs::read_to_string(log).unwrap();
    assert!(said.contains("Patroni decides who is primary"), "{said}");
    // A lock that the registry would refuse is refused at the start, not when it is needed.
    assert_eq!(registry.ask("DELETE", "/v1/kv/service/main/leader", &[], "").await.status, 200);
    let (watch, log) = fleet.failover().start(&["watch", "--ttl", "4s", "--registry", &registry.url()]);
    assert!(!watch.wait_exit(SOON).await.success());
    let said = std::fs::read_to_string(log).unwrap();
    assert!(said.contains("would not give a lock of 4s"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_a_lock_that_lives_too_short() {
    if only_kingpost() {
        return;
    }
    let fleet = fleet().await;
    let _logs = ShowLogs(fleet.cluster.dir());
    let (watch, log) = fleet.failover().start(&["watch", "--etcd", "http://127.0.0.1:1", "--ttl", "1s"]);
    assert!(!watch.wait_exit(SOON).await.success());
    let said = std::fs::read_to_string(log).unwrap();
    assert!(said.contains("expected at least 2s"), "{said}");
}

/// A dead host is silent: nobody closes its connections. Servers and relays have to notice its silence.
#[tokio::test(flavor = "multi_thread")]
async fn replaces_a_primary_that_is_silent() {
    if only_kingpost() {
        return;
    }
    // Their defaults: the connections are kept for 20 s.
    let fleet = Fleet::builder().replicas(1).patience("20s").start().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let [n0, n1] = cluster.nodes() else { panic!("two nodes") };
    let Some(etcd) = Etcd::start(cluster).await else { return };
    let url = etcd.url();
    let failover = fleet.failover();
    // A lock with a short time to live is renewed even during the looks.
    let (_watch, log) = failover.start(&["watch", "--after", "1s", "--ttl", "4s", "--etcd", &url]);
    says(cluster, &log, "n0 is the primary").await;
    n0.sigstop();
    says(cluster, &log, "n1 is the primary").await;
    assert_eq!(n1.query("SELECT pg_is_in_recovery()").await, "f");
    n0.sigcont();
}

/// etcd with TLS, client certificates and access control, as in a company. It is restarted in between, by which it loses the tokens that it has
/// issued.
#[tokio::test(flavor = "multi_thread")]
async fn has_its_lock_in_an_etcd_with_tls_and_users() {
    if only_kingpost() {
        return;
    }
    let fleet = fleet().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let (authority, stranger) = (Authority::new(), Authority::new());
    let Some(mut etcd) = Etcd::start_secured(cluster, &authority).await else { return };
    // With users, etcd accepts no HTTP request with a certificate that has a common name.
    let (own, named) = (authority.issue("", &["kingpost"]), authority.issue("kingpost", &["kingpost"]));
    let password = cluster.dir().join("etcd.password");
    std::fs::write(&password, format!("{ETCD_PASSWORD}\n")).unwrap();
    let file = |path: &std::path::Path| path.display().to_string();
    let with_tls = fleet
        .failover()
        .set("failover.etcd.endpoints", vec![etcd.url()])
        .set("failover.etcd.ca_file", file(&authority.ca_file()))
        .set("failover.etcd.cert_file", file(&own.cert))
        .set("failover.etcd.key_file", file(&own.key));
    let user = |failover: &Failover| failover.clone().copy(cluster).set("failover.etcd.user", ETCD_USER);
    let failover = user(&with_tls).set("failover.etcd.password_file", file(&password));
    // Every error is reported before anything depends on it, and no text has the password.
    for (what, failover, says) in [
        ("nobody", with_tls.clone().copy(cluster), "permission denied"),
        ("a wrong password", user(&with_tls).set("failover.etcd.password", "wrong-one"), "invalid user ID or password"),
        ("no password", user(&with_tls), "failover.etcd.user: found no password"),
        (
            "a strange CA",
            failover.clone().copy(cluster).set("failover.etcd.ca_file", file(&stranger.ca_file())),
            "TLS: ",
        ),
        (
            "a certificate with a name",
            failover
                .clone()
                .copy(cluster)
                .set("failover.etcd.cert_file", file(&named.cert))
                .set("failover.etcd.key_file", file(&named.key)),
            "must not have a common name",
        ),
    ] {
        // etcd answers only after the election of a leader; here there is one member.
        let checked = async || Some(failover.run(&["check", "--online"]).await.text).filter(|text| text.contains(says));
        let text = wait_until(&format!("{what}: {says:?}"), SOON, cluster.dir(), checked).await;
        assert!(!text.contains("wrong-one") && !text.contains(ETCD_PASSWORD), "{what}: {text}");
    }
    let text = failover.succeed(&["check", "--online"]).await;
    assert!(!text.contains(ETCD_PASSWORD), "{text}");
    // Endpoints of the configuration.
    let (_watch, log) = failover.start(&["watch", "--after", "1s", "--etcd"]);
    says(cluster, &log, "n0 is the primary").await;
    etcd.start_again().await;
    cluster.primary().kill9().await;
    says(cluster, &log, "n1 is the primary").await;
    assert_eq!(cluster.replica(0).query("SELECT pg_is_in_recovery()").await, "f");
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("promoted n1") && !said.contains(ETCD_PASSWORD), "{said}");
}

/// A suspended watcher finds all its waits over, and the answers in its sockets. It takes no server for silent.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_stood_still_takes_nobody_for_silent() {
    if only_kingpost() {
        return;
    }
    let fleet = fleet().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    // A look takes so long that the watcher is suspended in the middle of one.
    let links: Vec<Cut> = cluster.nodes().iter().map(|node| Cut::to(node.port())).collect();
    let mut failover = fleet.failover();
    for (node, link) in cluster.nodes().iter().zip(&links) {
        link.set(Link::Slow(Duration::from_millis(30)));
        failover = failover.tag(node.name(), "address", format!("127.0.0.1:{}", link.port()));
    }
    let (watch, log) = failover.start(&["watch", "--after", "1s"]);
    says(cluster, &log, "n0 is the primary").await;
    for pause in [2100, 2300, 2500, 2700, 2900] {
        watch.signal(libc::SIGSTOP);
        // Not a wait for an event: the length of the suspension is tested.
        tokio::time::sleep(Duration::from_millis(pause)).await;
        watch.signal(libc::SIGCONT);
        tokio::time::sleep(Duration::from_millis(pause / 2)).await;
    }
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(!said.contains("no primary answers"), "{said}");
    // It still works.
    cluster.primary().kill9().await;
    says(cluster, &log, "it is time for `kingpost failover`: n1 would be the primary").await;
}
