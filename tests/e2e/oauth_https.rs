//! Method `oauth` with issuers over TLS, one for each database: only an issuer that the configured authorities certify is asked for its keys.

use std::fmt::Write as _;

use kingpost_tests::certs::Authority;
use kingpost_tests::{Cluster, Kingpost, ShowLogs, new_dir};

use crate::common::only_kingpost;
use crate::ldap::{readable, table};
use crate::oauth::{Issuer, MARK, Mood, Signer, UNABLE, login};

const HANG_UP: i32 = 1;

fn authorities(of: &[&Authority]) -> String {
    of.iter().map(|authority| std::fs::read_to_string(authority.ca_file()).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuer_is_asked_only_where_its_certificate_is_good() {
    if only_kingpost() {
        return;
    }
    let (first, second, third) = (Authority::new(), Authority::new(), Authority::new());
    let here = ["127.0.0.1"];
    let start = async |authority: &Authority, key: &str, hosts: &[&str]| {
        Issuer::start_secure(Signer::ec(), key, &authority.issue(key, hosts)).await
    };
    let (one, two) = (start(&first, "a", &here).await, start(&second, "b", &here).await);
    let (unknown, elsewhere) = (start(&third, "c", &here).await, start(&first, "d", &["issuer.example"]).await);
    let issuers = [("one", "a", &one), ("two", "b", &two), ("three", "c", &unknown), ("four", "d", &elsewhere)];
    let dir = new_dir("oauth");
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    cluster.primary().execute("CREATE ROLE bob LOGIN").await;
    let mut rules = String::new();
    for (database, _, issuer) in issuers {
        cluster.primary().execute(&format!("CREATE DATABASE {database}")).await;
        writeln!(rules, "host {database} all 127.0.0.1/32 oauth issuer=\"{}\" scope=\"db\"", issuer.url).unwrap();
    }
    readable(&dir.join("rules"), &rules);
    readable(&dir.join("two.crt"), &authorities(&[&first, &second]));
    readable(&dir.join("three.crt"), &authorities(&[&first, &second, &third]));
    let file = |name: &str| dir.join(name).display().to_string();
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.hba_file", file("rules"))
        .set("proxy.oauth.audience", toml::Value::Array(vec!["kp".into()]))
        .set("proxy.oauth.ca_file", file("two.crt"))
        .set("log.level", "debug")
        .add("proxy.users", table(&[("name", "alice")]))
        .add("proxy.users", table(&[("name", "bob")]));
    let kingpost = kingpost.start().await;
    let decide = async |database: &str, user: &str, token: &str| login(kingpost.port(), database, user, token).await.1;
    let log = || std::fs::read_to_string(kingpost.process().log()).unwrap();
    let refused = |user: &str| Err(format!("28000 OAuth bearer authentication failed for user {user:?}"));
    // The log line about a failed request names the issuer, the user, and the reason.
    let explained = |issuer: &Issuer, why: &str| {
        let log = log();
        let mut lines = log.lines().filter(|line| line.contains("a user's token could not be judged"));
        lines.any(|line| line.contains(&issuer.url) && line.contains("alice") && line.contains(why))
    };

    for user in ["alice", "bob"] {
        assert_eq!(decide("one", user, &one.token("a", user)).await.as_deref(), Ok(user));
        assert_eq!(decide("two", user, &two.token("b", user)).await.as_deref(), Ok(user));
    }
    assert_eq!(decide("one", "alice", &one.token("a", "bob")).await, refused("alice"));
    assert_eq!(decide("two", "alice", &one.token("a", "alice")).await, refused("alice"));

    // An unconfigured authority, and a certificate for another host.
    assert_eq!(decide("three", "alice", &unknown.token("c", "alice")).await, Err(UNABLE.to_owned()));
    assert!(explained(&unknown, "certificate"), "{}", log());
    assert_eq!(decide("four", "alice", &elsewhere.token("d", "alice")).await, Err(UNABLE.to_owned()));
    assert!(explained(&elsewhere, "certificate"), "{}", log());
    assert_eq!(decide("one", "bob", &one.token("a", "bob")).await.as_deref(), Ok("bob"));

    // With the authority in the file the same issuer is accepted, and the other one still is not.
    kingpost.reload("proxy.oauth.ca_file", file("three.crt"));
    let token = unknown.token("c", "alice");
    cluster.wait("the third authority to count", async || decide("three", "alice", &token).await.ok()).await;
    assert_eq!(decide("three", "bob", &token).await, refused("bob"));
    assert_eq!(decide("four", "alice", &elsewhere.token("d", "alice")).await, Err(UNABLE.to_owned()));

    // An issuer over TLS must not refer to keys without TLS. The system's authorities know none of these issuers.
    two.set(Mood::Downgrades);
    let token = two.token("b", "alice");
    kingpost.reload("proxy.oauth.max_questions", 31);
    let told = async || decide("two", "alice", &token).await.err().filter(|said| said == UNABLE);
    cluster.wait("the keys to be forgotten", told).await;
    assert!(explained(&two, "jwks_uri is no https"), "{}", log());
    let text = std::fs::read_to_string(kingpost.config_path()).unwrap();
    let without: String = text.split_inclusive('\n').filter(|line| !line.starts_with("ca_file")).collect();
    assert_ne!(text, without);
    std::fs::write(kingpost.config_path(), without).unwrap();
    kingpost.process().signal(HANG_UP);
    let token = one.token("a", "alice");
    let told = async || decide("one", "alice", &token).await.err().filter(|said| said == UNABLE);
    cluster.wait("the system's authorities to count", told).await;
    assert!(explained(&one, "certificate"), "{}", log());

    let log = log();
    let (signed, signature) = token.rsplit_once('.').unwrap();
    for secret in [MARK, &token, signed, signature, signed.split_once('.').unwrap().1] {
        assert!(!log.contains(secret), "the log has {secret}");
    }
}

/// Without TLS anyone in between could supply keys.
#[tokio::test]
async fn an_issuer_without_tls_is_of_this_machine() {
    let dir = new_dir("oauth");
    let config = dir.join("kingpost.toml");
    let rules = dir.join("rules");
    let proxy = format!("[proxy]\nauth = \"trust\"\nhba_file = {rules:?}\n[proxy.oauth]\naudience = [\"kp\"]\n");
    let node = "[cluster]\nname = \"a\"\n[[cluster.nodes]]\nname = \"n\"\naddress = \"127.0.0.1:5432\"\n";
    std::fs::write(&config, proxy + node).unwrap();
    for (issuer, is_taken) in [
        ("http://127.0.0.1:8", true),
        ("http://[::1]:8/realm", true),
        ("http://localhost", true),
        ("https://192.0.2.1", true),
        ("http://192.0.2.1", false),
        ("http://login.example", false),
        ("http://localhost.example", false),
        ("http://127.0.0.1.example:8", false),
    ] {
        readable(&rules, &format!("host all all 127.0.0.1/32 oauth issuer=\"{issuer}\" scope=\"db\"\n"));
        let check = Kingpost::run(&["check", "--config", config.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&check.stdout).into_owned() + &String::from_utf8_lossy(&check.stderr);
        assert_eq!(check.status.success(), is_taken, "{issuer}: {said}");
        assert_eq!(said.contains("http is for loopback addresses only"), !is_taken, "{issuer}: {said}");
    }
}
