//! Access to the registry: TLS, certificates, tokens that come and go, rates, and the audit log of changes.

use std::process::Stdio;

use kingpost_tests::certs::{Authority, replace};
use kingpost_tests::{Kingpost, RegistryNode, SOON, ShowLogs, wait_until};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

const WEB: &str = "/v1/namespaces/default/services/web/instances";

/// A token, and its hash in quotes.
fn made(name: &str) -> (String, String) {
    let output = Kingpost::run(&["registry", "token", name]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    let hash = said.lines().find_map(|line| line.strip_prefix("sha256 = ")).expect("a hash").to_owned();
    (String::from_utf8(output.stdout).unwrap().trim().to_owned(), hash)
}

fn table(name: &str, hash: &str, role: &str, namespace: &str) -> String {
    format!(
        "[[registry.tokens]]\nname = \"{name}\"\nsha256 = {hash}\nrole = \"{role}\"\nnamespaces = [\"{namespace}\"]\n"
    )
}

/// Runs `kingpost registry ls` with more arguments: returns whether it succeeded, and its output.
async fn ls(arguments: &[&str]) -> (bool, String) {
    let mut command = tokio::process::Command::new(kingpost_tests::kingpost_bin());
    let output = command.args(["registry", "ls", "web"]).args(arguments).stdin(Stdio::null()).output().await.unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[tokio::test]
async fn registry_tls_with_certificates_that_are_renewed() {
    let (servers, others, clients) = (Authority::new(), Authority::new(), Authority::new());
    let server = servers.issue("registry", &["127.0.0.1", "localhost"]);
    let client = clients.issue("app", &[]);
    let stranger = others.issue("app", &[]);
    let node = RegistryNode::start(&format!(
        "[registry.tls]\nmode = \"require\"\ncert_file = {:?}\nkey_file = {:?}\nca_file = {:?}\nclient_cert = \"verify-ca\"",
        server.cert,
        server.key,
        clients.ca_file()
    ))
    .await;
    let _logs = ShowLogs(node.dir());
    let url = format!("https://127.0.0.1:{}", node.port());
    let with = async |authority: &Authority, pair: Option<&kingpost_tests::certs::Pair>| {
        let ca = authority.ca_file();
        let mut arguments = vec!["--url", &url, "--ca", ca.to_str().unwrap()];
        if let Some(pair) = pair {
            arguments.extend(["--cert", pair.cert.to_str().unwrap(), "--key", pair.key.to_str().unwrap()]);
        }
        ls(&arguments).await
    };
    // Nothing is registered: this message of the registry means that it was reached. (A port may have 404 in it.)
    let reached = |(_, said): &(bool, String)| said.contains("404 Not Found");
    assert!(reached(&with(&servers, Some(&client)).await), "{}", with(&servers, Some(&client)).await.1);
    assert!(!reached(&with(&servers, None).await), "it wants a certificate");
    assert!(!reached(&with(&servers, Some(&stranger)).await), "of its own authority");
    assert!(!reached(&with(&others, Some(&client)).await), "the client knows another authority");
    assert!(node.raw(b"GET /v1/namespaces HTTP/1.1\r\nHost: localhost\r\n\r\n").await.is_none(), "not without TLS");
    assert!(node.metrics().await.sum("kingpost_registry_insecure_total", &[]) >= 3.0);

    // A certificate by another authority, in the same files.
    replace(&server, &others.issue("registry", &["127.0.0.1"]));
    node.process().signal(libc::SIGHUP);
    let renewed = async || reached(&with(&others, Some(&client)).await).then_some(());
    wait_until("the new certificate", SOON, node.dir(), renewed).await;
    assert!(!reached(&with(&servers, Some(&client)).await), "the old one is no longer shown");
}

#[tokio::test]
async fn registry_tls_beside_plain() {
    let servers = Authority::new();
    let server = servers.issue("registry", &["127.0.0.1"]);
    let node = RegistryNode::start(&format!(
        "[registry.tls]\nmode = \"allow\"\ncert_file = {:?}\nkey_file = {:?}",
        server.cert, server.key
    ))
    .await;
    let _logs = ShowLogs(node.dir());
    assert_eq!(node.send("PUT", &format!("{WEB}/a"), &json!({ "host": "10.0.0.9" })).await.status, 201);
    let ca = servers.ca_file();
    let (good, said) =
        ls(&["--url", &format!("https://127.0.0.1:{}", node.port()), "--ca", ca.to_str().unwrap()]).await;
    assert!(good && said.contains("10.0.0.9"), "{said}");
}

#[tokio::test]
async fn registry_tokens_come_and_go_without_a_restart() {
    let (old, old_hash) = made("old");
    let (new, new_hash) = made("new");
    let node = RegistryNode::start(&format!("auth = \"tokens\"\n{}", table("old", &old_hash, "read", "*"))).await;
    let _logs = ShowLogs(node.dir());
    let get = async |token: &str| {
        node.ask("GET", "/v1/namespaces", &[("Authorization", &format!("Bearer {token}"))], "").await.status
    };
    assert_eq!((get(&old).await, get(&new).await), (200, 401));
    let path = node.dir().join("kingpost.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    // An invalid configuration changes nothing.
    std::fs::write(&path, text.replace("role = \"read\"", "role = \"king\"")).unwrap();
    node.process().signal(libc::SIGHUP);
    let log = || std::fs::read_to_string(node.process().log()).unwrap();
    let said = async || log().contains("not reloaded").then_some(());
    wait_until("the refusal in the log", SOON, node.dir(), said).await;
    assert_eq!((get(&old).await, get(&new).await), (200, 401));
    let mut watch = watching(&node, &old).await;
    std::fs::write(&path, text.replace(&old_hash, &new_hash).replace("\"read\"", "\"write\"")).unwrap();
    node.process().signal(libc::SIGHUP);
    let changed = async || (get(&new).await == 200).then_some(());
    wait_until("the new token to be taken", SOON, node.dir(), changed).await;
    assert_eq!(get(&old).await, 401, "the old one is gone");
    // Its watch, too, which hears of nothing more.
    let headers = [("Authorization", format!("Bearer {new}")), ("Content-Type", "application/json".to_owned())];
    let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
    let put = node.ask("PUT", &format!("{WEB}/a"), &headers, r#"{"host":"10.0.0.7"}"#).await;
    assert_eq!(put.status, 201, "{}", put.body);
    let mut rest = String::new();
    let ended = tokio::time::timeout(SOON, watch.read_to_string(&mut rest)).await;
    assert!(ended.expect("the end of the watch").is_ok() && !rest.contains("10.0.0.7"), "{rest}");
}

/// Opens a watch with a token, and reads its first event.
async fn watching(node: &RegistryNode, token: &str) -> BufReader<TcpStream> {
    let mut watch = BufReader::new(TcpStream::connect(("127.0.0.1", node.port())).await.unwrap());
    let request = format!(
        "GET /v1/namespaces/default/services/web/watch HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    watch.write_all(request.as_bytes()).await.unwrap();
    let mut line = String::new();
    while !line.contains("event: snapshot") {
        line.clear();
        assert_ne!(watch.read_line(&mut line).await.unwrap(), 0, "the watch ended");
    }
    watch
}

#[tokio::test]
async fn registry_rates_are_each_token_s_own() {
    let (a, a_hash) = made("a");
    let (b, b_hash) = made("b");
    let tokens = format!("{}{}", table("a", &a_hash, "read", "*"), table("b", &b_hash, "read", "*"));
    // So slow a rate that even on a slow machine no further request is admitted meanwhile.
    let node =
        RegistryNode::start(&format!("auth = \"tokens\"\n{tokens}[registry.rate]\nper_second = 1\nburst = 5")).await;
    let _logs = ShowLogs(node.dir());
    let get = async |token: &str| node.ask("GET", "/v1/namespaces", &[("X-Consul-Token", token)], "").await;
    let mut refused = None;
    for n in 0..200 {
        let answer = get(&a).await;
        assert!(n >= 5 || answer.status == 200, "the first five at once");
        if answer.status != 200 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("a limit");
    assert_eq!((refused.status, &refused.json()["error"]["limit"]), (429, &json!("registry.rate.per_second")));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(get(&b).await.status, 200, "another token has its own");
    assert!(node.metrics().await.sum("kingpost_registry_too_often_total", &[]) >= 1.0);
}

#[tokio::test]
async fn registry_changes_are_noted_and_can_be_asked_for() {
    let (root, root_hash) = made("root");
    let (writer, writer_hash) = made("writer");
    let tokens =
        format!("{}{}", table("root", &root_hash, "admin", "default"), table("writer", &writer_hash, "write", "*"));
    let dir = kingpost_tests::new_dir("audit");
    let file = dir.join("audit.jsonl");
    let mut node = RegistryNode::start(&format!("auth = \"tokens\"\n{tokens}[registry.audit]\nfile = {file:?}")).await;
    let shown = node.dir().to_owned();
    let _logs = ShowLogs(&shown);
    let ask = async |node: &RegistryNode, method: &str, path: &str, token: &str, body: &str| {
        node.ask(method, path, &[("Authorization", &format!("Bearer {token}"))], body).await
    };
    let batch = r#"{"instances":[{"id":"b","host":"h"},{"id":"c","host":"h"}]}"#;
    assert_eq!(ask(&node, "PUT", &format!("{WEB}/a"), &writer, r#"{"host":"h"}"#).await.status, 201);
    assert_eq!(ask(&node, "POST", WEB, &writer, batch).await.status, 200);
    // Repeated: unchanged.
    assert_eq!(ask(&node, "PUT", &format!("{WEB}/a"), &writer, r#"{"host":"h"}"#).await.status, 200);
    assert_eq!(ask(&node, "POST", WEB, &writer, batch).await.status, 200);
    assert_eq!(ask(&node, "PUT", "/v1/agent/service/deregister/b", &root, "").await.status, 200);
    assert_eq!(
        ask(&node, "PUT", "/v1/namespaces/other/services/x/instances/y", &writer, r#"{"host":"h"}"#).await.status,
        201
    );

    let audit = "/v1/namespaces/default/audit";
    assert_eq!(ask(&node, "GET", audit, &writer, "").await.status, 403, "for admins");
    assert_eq!(ask(&node, "GET", "/v1/namespaces/other/audit", &root, "").await.status, 403, "of the namespace");
    let told = |answer: &Value| -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let changes = answer["changes"].as_array().unwrap().iter();
        changes.map(|it| format!("{} {} {}", text(&it["token"]), text(&it["action"]), text(&it["object"]))).collect()
    };
    let expected =
        ["root agent/service/deregister b", "writer registerInService b c", "writer putInstance a"].map(str::to_owned);
    let all = ask(&node, "GET", audit, &root, "").await.json();
    assert_eq!(told(&all), expected);
    assert_eq!(all["changes"][0]["peer"], "127.0.0.1");
    let of_b = ask(&node, "GET", &format!("{audit}?object=b&limit=1"), &root, "").await.json();
    assert_eq!(told(&of_b), expected[..1]);

    let written = async || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        (text.lines().count() == 4).then_some(text)
    };
    let text = wait_until("four lines in the file", SOON, node.dir(), written).await;
    assert!(!text.contains(&root) && !text.contains(&writer), "no token in it");
    // After a crash and a restart the answer is the same.
    node.end(libc::SIGKILL).await;
    node.start_again().await;
    assert_eq!(told(&ask(&node, "GET", audit, &root, "").await.json()), expected);
}
