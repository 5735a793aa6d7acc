//! Work of an operator: metrics, health, reload, check.

use futures_util::future::join_all;
use kingpost_tests::{Cluster, Kingpost, ShowLogs, new_dir};

use crate::common::{only_kingpost, shared, value};

#[tokio::test]
async fn metrics_are_valid_and_move() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).start().await;
    let before = kingpost.metrics().await;
    assert!(before.samples.len() > 10, "{before:?}");
    let foreign = |sample: &&kingpost_tests::Sample| {
        !sample.name.starts_with("kingpost_") && !sample.name.starts_with("process_")
    };
    assert_eq!(before.samples.iter().find(foreign), None, "a name without the program's prefix");
    let client = kingpost.connect().await;
    for n in 0..100 {
        value(&client, &format!("SELECT {n} FROM pg_class LIMIT 1")).await;
    }
    // It does not matter which counter counts them, as long as one does.
    shared
        .cluster
        .wait("a counter to count 100 queries", async || {
            let after = kingpost.metrics().await;
            let moved = after.samples.iter().any(|sample| {
                let labels: Vec<(&str, &str)> = sample.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
                let is_counter = after.types.get(&sample.name).is_some_and(|kind| kind == "counter");
                is_counter && sample.value - before.sum(&sample.name, &labels) >= 40.0
            });
            moved.then_some(())
        })
        .await;
}

#[tokio::test]
async fn health_and_readiness() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).start().await;
    assert_eq!(kingpost.http("/healthz").await.map(|(status, _)| status), Some(200));
    assert_eq!(kingpost.http("/readyz").await.map(|(status, _)| status), Some(200));
    assert_eq!(kingpost.http("/nothing").await.map(|(status, _)| status), Some(404));
    cluster.replica(0).kill9().await;
    cluster.primary().kill9().await;
    kingpost.wait_readyz(503).await;
    assert_eq!(kingpost.http("/healthz").await.map(|(status, _)| status), Some(200), "it lives all the same");
    cluster.primary().start().await;
    kingpost.wait_readyz(200).await;
}

#[tokio::test]
async fn reload_changes_the_pool_size() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost =
        Kingpost::of(&cluster).set("proxy.pool.size", 2).set("proxy.pool.wait_timeout", "300ms").start().await;
    let clients = join_all((0..5).map(|_| kingpost.connect())).await;
    // Transactions hold their server, so as many as there are servers can be open.
    let open = async || {
        let begun = join_all(clients.iter().map(|client| client.simple_query("BEGIN; SELECT pg_backend_pid()"))).await;
        let open = begun.iter().filter(|begun| begun.is_ok()).count();
        join_all(clients.iter().map(|client| client.simple_query("ROLLBACK"))).await;
        open
    };
    assert_eq!(open().await, 2);
    kingpost.reload("proxy.pool.size", 4);
    cluster.wait("a pool of 4", async || (open().await == 4).then_some(())).await;
    kingpost.reload("proxy.pool.size", 1);
    cluster.wait("a pool of 1", async || (open().await == 1).then_some(())).await;
    cluster
        .wait("surplus server connections to be closed", async || (cluster.pool_connections().await <= 1).then_some(()))
        .await;
    // An invalid file changes nothing, and the proxy lives.
    kingpost.reload("proxy.pool.sise", 9);
    kingpost.reload("proxy.pool.size", 9);
    let log = || std::fs::read_to_string(kingpost.process().log()).unwrap_or_default();
    cluster.wait("the log to name the wrong key", async || log().contains("sise").then_some(())).await;
    assert_eq!(open().await, 1);
    assert_eq!(value(&clients[0], "SELECT 7").await, "7");
}

#[tokio::test]
async fn a_node_can_be_added_by_reload() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).log_statements().start().await;
    let _logs = ShowLogs(cluster.dir());
    let node = |node: &kingpost_tests::Node| {
        let mut table = toml::Table::new();
        table.insert("name".into(), node.name().into());
        table.insert("address".into(), format!("127.0.0.1:{}", node.port()).into());
        toml::Value::Table(table)
    };
    let (primary, replica) = (node(cluster.primary()), node(cluster.replica(0)));
    let kingpost = Kingpost::of(&cluster).set("cluster.nodes", vec![primary.clone()]).start().await;
    let client = kingpost.connect().await;
    value(&client, "SELECT 'before' FROM pg_class LIMIT 1").await;
    assert!(!cluster.replica(0).saw("'before'"));
    kingpost.reload("cluster.nodes", vec![primary, replica]);
    cluster
        .wait("reads on the new node", async || {
            value(&client, "SELECT 'after' FROM pg_class LIMIT 1").await;
            cluster.replica(0).saw("'after'").then_some(())
        })
        .await;
}

#[test]
fn check_says_what_is_wrong() {
    if only_kingpost() {
        return;
    }
    let dir = new_dir("check");
    let good = "[proxy]\nlisten = [\"127.0.0.1:6432\"]\nauth = \"trust\"\n\n[[cluster.nodes]]\nname = \"a\"\naddress = \"127.0.0.1:5432\"\n";
    let check = |text: &str| {
        let path = dir.join("kingpost.toml");
        std::fs::write(&path, text).unwrap();
        let output = Kingpost::run(&["check", "--config", path.to_str().unwrap()]);
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let (code, said) = check(good);
    assert_eq!(code, Some(0), "{said}");
    for (from, to, names) in [
        ("auth = \"trust\"", "auth = \"trusted\"", &["kingpost.toml", "3", "auth", "scram-sha-256"][..]),
        ("auth =", "aut =", &["kingpost.toml", "3", "aut", "unknown"]),
        ("auth = \"trust\"", "auth = ", &["kingpost.toml", "3"]),
        ("\"127.0.0.1:5432\"", "5432", &["kingpost.toml", "7", "address"]),
        ("name = \"a\"\n", "", &["kingpost.toml", "name"]),
        ("127.0.0.1:6432", "0.0.0.0:6432", &["trust"]),
    ] {
        assert!(good.contains(from));
        let (code, said) = check(&good.replace(from, to));
        assert!(code.is_some_and(|code| code != 0), "{to}: exit {code:?}, {said}");
        for name in names {
            assert!(said.contains(name), "{to}: lacks {name:?}: {said}");
        }
    }
    let missing = Kingpost::run(&["check", "--config", dir.join("missing.toml").to_str().unwrap()]);
    assert!(!missing.status.success() && String::from_utf8_lossy(&missing.stderr).contains("missing.toml"));
    // The proxy refuses the same file, before it listens.
    let refused = Kingpost::run(&["proxy", "--config", dir.join("kingpost.toml").to_str().unwrap()]);
    assert!(!refused.status.success());
    // A relay's file needs no [proxy], even if it lists the nodes; a proxy does.
    let (code, said) =
        check("[relay]\nauth = \"trust\"\n\n[[cluster.nodes]]\nname = \"a\"\naddress = \"127.0.0.1:5432\"\n");
    assert!(code == Some(0) && said.contains("good, a relay"), "{said}");
    let refused = Kingpost::run(&["proxy", "--config", dir.join("kingpost.toml").to_str().unwrap()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("says nothing of a proxy"), "{said}");
}

/// Returns status line and body of a GET with a header.
async fn get_with(port: u16, path: &str, header: &str) -> (String, Vec<u8>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(kingpost_tests::SOON, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let status = String::from_utf8_lossy(&answer[..head]).lines().next().unwrap().to_owned();
    (status, answer.split_off(head + 4))
}

#[tokio::test]
async fn profiles_show_what_the_process_does_to_who_has_the_token() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("metrics.profiler_token", "0123456789abcdef0123").start().await;
    let port = kingpost.metrics_port();
    let right = "Authorization: Bearer 0123456789abcdef0123\r\n";
    for (path, header, status) in [
        ("/debug/pprof/profile", "", "401"),
        ("/debug/pprof/profile", "Authorization: Bearer 0123456789abcdef0124\r\n", "401"),
        ("/debug/pprof/profile?seconds=x", right, "400"),
    ] {
        let (line, _) = get_with(port, path, header).await;
        assert!(line.contains(status), "{path} {header}: {line}");
    }
    let without = Kingpost::of(&shared.cluster).start().await;
    assert!(get_with(without.metrics_port(), "/debug/pprof/profile", right).await.0.contains("404"));
    // Some work for the profile.
    let client = kingpost.connect().await;
    let load = tokio::spawn(async move { while value(&client, "SELECT 7").await == "7" {} });
    let (line, folded) = get_with(port, "/debug/pprof/profile?seconds=2&hz=499&format=folded", right).await;
    let folded = String::from_utf8_lossy(&folded).into_owned();
    assert!(line.contains("200"), "{line}: {folded}");
    assert!(folded.contains("worker"), "{folded}");
    let (_, gzip) = get_with(port, "/debug/pprof/profile?seconds=1", right).await;
    assert!(gzip.starts_with(&[0x1f, 0x8b]), "{} bytes", gzip.len());
    let (_, svg) = get_with(port, "/debug/pprof/profile?seconds=1&format=svg", right).await;
    assert!(svg.starts_with(b"<svg") && svg.ends_with(b"</svg>\n"));
    load.abort();
    assert_eq!(value(&kingpost.connect().await, "SELECT 7").await, "7");
}
