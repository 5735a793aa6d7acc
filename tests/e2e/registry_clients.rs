//! The registry used by common clients, unmodified.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use kingpost_tests::{
    Port, Process, RegistryNode, RunAs, SOON, ShowLogs, command, http_get, new_dir, wait_until, within,
};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::clients::{build, here, installed, there};
use crate::registry_clients_nacos::token;

const LIMIT: Duration = Duration::from_secs(300);
/// The registry is a target of its own probes, and so are programs of the test.
const PROBES: &str = "[registry.health]\nprobe_allow = [\"127.0.0.1\"]";

async fn run(program: &Path, script: &str, variables: &[(&str, &Path)]) {
    let node = RegistryNode::start(&format!("[registry.dns]\nlisten = \"127.0.0.1:0\"\n{PROBES}")).await;
    let dns = node.dns_port().to_string();
    let variables: Vec<(&str, &OsStr)> = variables.iter().map(|(name, path)| (*name, path.as_os_str())).collect();
    run_at(&node, program, script, &[variables.as_slice(), &[("DNS_PORT", OsStr::new(&dns))]].concat()).await;
}

/// Runs a program with checks against a registry: as [`run`], which starts one.
pub(crate) async fn run_at(node: &RegistryNode, program: &Path, script: &str, variables: &[(&str, &OsStr)]) {
    let _logs = ShowLogs(node.dir());
    let mut command = Command::new(program);
    command.arg(here().join(script)).current_dir(new_dir("client"));
    command.env("CONSUL_PORT", node.port().to_string()).env("EUREKA_URL", format!("{}/eureka/", node.url()));
    command.env("GRPC_ADDRESS", format!("127.0.0.1:{}", node.port()));
    command.env("NACOS_ADDRESS", format!("127.0.0.1:{}", node.port()));
    command.env("NODE_PATH", installed().await.join("node/node_modules")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = within(script, LIMIT, node.dir(), command.output()).await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script}: {}\n{out}\n{err}", output.status);
    // A script that stops early has not reported the number of its tests.
    let done = out.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(done > 0 && out.lines().last() == Some(&*format!("1..{done}")), "{script}:\n{out}\n{err}");
}

#[tokio::test]
async fn registry_py_consul() {
    run(&installed().await.join("venv/bin/python"), "python/registry_consul.py", &[]).await;
}

#[tokio::test]
async fn registry_python_consul() {
    let apart = installed().await.join("python-consul");
    run(&installed().await.join("venv/bin/python"), "python/registry_consul.py", &[("PYTHONPATH", &apart)]).await;
}

#[tokio::test]
async fn registry_py_eureka_client() {
    run(&installed().await.join("venv/bin/python"), "python/registry_eureka.py", &[]).await;
}

#[tokio::test]
async fn registry_nacos_sdk_python() {
    run(&installed().await.join("venv/bin/python"), "python/registry_nacos.py", &[]).await;
}

#[tokio::test]
async fn registry_dnspython() {
    run(&installed().await.join("venv/bin/python"), "python/registry_dns.py", &[]).await;
}

#[tokio::test]
async fn registry_grpcio() {
    run(&installed().await.join("venv/bin/python"), "python/registry_grpc.py", &[]).await;
}

/// The registry's own API, tested with everything that its OpenAPI document allows, and more.
#[tokio::test]
async fn registry_schemathesis() {
    run(&installed().await.join("venv/bin/python"), "python/registry_openapi.py", &[]).await;
}

#[tokio::test]
async fn registry_npm_consul() {
    run(Path::new("node"), "node/registry_consul.mjs", &[]).await;
}

#[tokio::test]
async fn registry_eureka_js_client() {
    run(Path::new("node"), "node/registry_eureka.mjs", &[]).await;
}

/// Part of `make clients` only: downloading Maven's packages takes longer than all the rest.
#[tokio::test]
#[ignore = "needs Java, Maven and the network: make clients"]
async fn registry_polaris_java() {
    java("java/registry", "Polaris").await;
}

/// As [`registry_polaris_java`].
#[tokio::test]
#[ignore = "needs Java, Maven and the network: make clients"]
async fn registry_spring_cloud_eureka() {
    java("java/eureka", "SpringEureka").await;
}

/// As [`registry_polaris_java`]. Applications of two tenants, each with a token for one namespace.
#[tokio::test]
#[ignore = "needs Java, Maven and the network: make clients"]
async fn registry_spring_cloud_consul() {
    let Some(program) = java_program("java/consul", "SpringConsul").await else { return };
    let (first, first_table) = token("first", "write", &json!(["tenant-a"]));
    let (second, second_table) = token("second", "write", &json!(["tenant-b"]));
    let node = RegistryNode::start(&format!("auth = \"tokens\"\n{first_table}{second_table}{PROBES}")).await;
    let tokens = [("TENANT_A", OsStr::new(&first)), ("TENANT_B", OsStr::new(&second))];
    run_at(&node, &program, "java/consul", &tokens).await;
}

/// Builds a directory's project, and runs it.
async fn java(from: &str, class: &str) {
    if let Some(program) = java_program(from, class).await {
        run(&program, from, &[]).await;
    }
}

/// Builds a directory's project: a program that runs `class`; None without Maven.
pub(crate) async fn java_program(from: &str, class: &str) -> Option<std::path::PathBuf> {
    java_program_with(from, class, &[]).await
}

/// As [`java_program`], with options of Maven's.
pub(crate) async fn java_program_with(from: &str, class: &str, options: &[&str]) -> Option<std::path::PathBuf> {
    if !there("mvn") {
        return None;
    }
    let built = new_dir("java");
    let mut build = Command::new("mvn");
    build
        .args(["-q", "-B", "package", "dependency:copy-dependencies"])
        .arg(format!("-DoutputDirectory={}", built.join("lib").display()));
    build.arg(format!("-Dkingpost.build={}", built.display())).args(options).current_dir(here().join(from));
    let output = build.stdin(Stdio::null()).kill_on_drop(true).output().await.expect("Maven is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let program = built.join("run");
    let script = format!("#!/bin/sh\nexec java -cp '{0}/classes:{0}/lib/*' {class} \"$@\"\n", built.display());
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    Some(program)
}

/// Part of `make clients` only: downloading Go's packages takes longer than all the rest.
#[tokio::test]
#[ignore = "needs Go and the network: make clients"]
async fn registry_go_consul() {
    if !there("go") {
        return;
    }
    let program = new_dir("go").join("registry");
    build(Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(here().join("go/registry")))
        .await;
    run(&program, "go/registry/main.go", &[]).await;
}

async fn go_locks() -> Option<std::path::PathBuf> {
    go_program("locks").await
}

/// Builds one of the programs with Go's client of Consul.
async fn go_program(name: &str) -> Option<std::path::PathBuf> {
    if !there("go") {
        return None;
    }
    let program = new_dir("go").join(name);
    let from = here().join("go/registry");
    build(Command::new("go").args(["build", "-o"]).arg(&program).arg(format!("./{name}")).current_dir(from)).await;
    Some(program)
}

/// Tokens and policies by Go's client.
#[tokio::test]
#[ignore = "needs Go and the network: make clients"]
async fn registry_go_acl() {
    let Some(program) = go_program("acl").await else { return };
    let node = RegistryNode::start("auth = \"acl\"").await;
    run_at(&node, &program, "go/registry/acl/main.go", &[]).await;
}

/// Keys, transactions, sessions, and the locks and semaphores that Go's client makes of them.
#[tokio::test]
#[ignore = "needs Go and the network: make clients"]
async fn registry_go_locks() {
    if let Some(program) = go_locks().await {
        run(&program, "go/registry/locks/main.go", &[]).await;
    }
}

/// Three Go programs that elect a leader by `api.Lock`: when the leader is killed another one leads, and never two at once. The same over a restart
/// of the registry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go and the network: make clients"]
async fn registry_go_election() {
    let Some(program) = go_locks().await else { return };
    let mut node = RegistryNode::start("[registry.kv]\nsession_ttl_min = \"1s\"").await;
    let dir = node.dir().to_owned();
    let _logs = ShowLogs(&dir);
    let candidate = |name: &str| {
        let mut go = command(&program, RunAs::Tests, "KILL");
        go.args(["lead", name]).env("CONSUL_PORT", node.port().to_string());
        Process::start(name, go, &dir.join(format!("{name}.log")))
    };
    let mut candidates: Vec<(&str, Process)> = ["one", "two", "three"].map(|name| (name, candidate(name))).into();
    // The leader, by the last message of each program.
    let leads = |name: &str| {
        let said = std::fs::read_to_string(dir.join(format!("{name}.log"))).unwrap_or_default();
        said.lines().next_back().is_some_and(|line| line == format!("leads {name}"))
    };
    let mut index = 0;
    for round in 0..3 {
        let leader = wait_until("a leader", LIMIT, &dir, async || {
            let leading: Vec<&str> = candidates.iter().map(|(name, _)| *name).filter(|name| leads(name)).collect();
            assert!(leading.len() <= 1, "{leading:?} lead at once");
            leading.first().copied()
        })
        .await;
        let found = node.get("/v1/kv/election/leader").await.json();
        assert_eq!(node.get("/v1/kv/election/leader?raw").await.body, leader);
        let held = found[0]["LockIndex"].as_u64().unwrap();
        assert!(held > index, "a new holder, and the lock index is {held} after {index}");
        index = held;
        if round == 1 {
            // The registry is gone for a moment: there is still only one leader.
            node.end(9).await;
            node.start_again().await;
            assert!(leads(leader));
            let same = node.get("/v1/kv/election/leader").await.json();
            assert_eq!(same[0]["Session"], found[0]["Session"]);
        }
        candidates.retain(|(name, process)| {
            if *name == leader {
                process.signal(9);
            }
            *name != leader
        });
    }
}

/// Returns Prometheus' targets: the address and a label of each.
async fn scraped(port: u16) -> Option<Vec<[String; 2]>> {
    let (_, body) = http_get(port, "/api/v1/targets?state=active").await?;
    let answer: Value = serde_json::from_str(&body).ok()?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let target = |target: &Value| {
        let labels = &target["discoveredLabels"];
        [text(&labels["__address__"]), text(&labels["__meta_kingpost_metadata_color"])]
    };
    let mut found: Vec<_> = answer["data"]["activeTargets"].as_array()?.iter().map(target).collect();
    found.sort();
    Some(found)
}

/// Prometheus' `http_sd`, in Prometheus itself. Its `consul_sd`: [`registry_prometheus_consul_sd`].
#[tokio::test]
#[ignore = "needs Prometheus: make clients"]
async fn registry_prometheus() {
    if !there("prometheus") {
        return;
    }
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let port = Port::reserve();
    let config = node.dir().join("prometheus.yml");
    let targets = format!("{}/prometheus/targets", node.url());
    let job = json!({ "job_name": "services", "http_sd_configs": [{ "url": targets, "refresh_interval": "1s" }] });
    // JSON is YAML too.
    std::fs::write(&config, json!({ "scrape_configs": [job] }).to_string()).unwrap();
    let mut prometheus = command(Path::new("prometheus"), RunAs::Tests, "KILL");
    prometheus
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", new_dir("prometheus").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{}", port.number()));
    let _running = Process::start("prometheus", prometheus, &node.dir().join("prometheus.log"));
    let until = async |what: &str, expected: &[[&str; 2]]| {
        wait_until(what, SOON, node.dir(), async || {
            scraped(port.number()).await.is_some_and(|found| found == expected).then_some(())
        })
        .await;
    };
    let register = async |id: &str, host: &str, color: &str| {
        let instance = json!({ "host": host, "port": 9100, "metadata": { "color": color } });
        let path = format!("/v1/namespaces/default/services/scraped/instances/{id}");
        assert_eq!(node.send("PUT", &path, &instance).await.status, 201);
    };
    let (blue, red) = (["127.0.0.1:9100", "blue"], ["127.0.0.2:9100", "red"]);
    register("a", "127.0.0.1", "blue").await;
    until("one target", &[blue]).await;
    register("b", "127.0.0.2", "red").await;
    until("a second one", &[blue, red]).await;
    assert_eq!(node.ask("DELETE", "/v1/namespaces/default/instances/a", &[], "").await.status, 204);
    until("the first is gone", &[red]).await;
}

/// Returns the last line that Prometheus' consul_sd has printed: its targets.
fn followed(path: &Path) -> Vec<String> {
    let said = std::fs::read_to_string(path).unwrap_or_default();
    // A line without its end is incomplete.
    let whole = said.rsplit_once('\n').map_or("", |(whole, _)| whole);
    // It prints its log there, too.
    whole.lines().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap_or_default()
}

/// Prometheus' own `consul_sd`, as a library, as Debian's build of Prometheus lacks it. Two of them, each with the token of one namespace, and one
/// with a token for a different namespace than it asks for. Targets appear, change and vanish.
#[tokio::test]
#[ignore = "needs Go and the network: make clients"]
async fn registry_prometheus_consul_sd() {
    if !there("go") {
        return;
    }
    let program = new_dir("go").join("consul_sd");
    let from = here().join("go/consul_sd");
    build(Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(from)).await;
    // Each with its SHA-256.
    let tokens = [
        ("one", "a-token", "1f6076e3a47ba1ded08025ffe06e57af217c14f9407f33fba50f99b1c7019387"),
        ("two", "b-token", "c033d6825ce303906a2a8cfc0f933e8380fefc8e039ef2bd3dabb97b1a27c875"),
    ];
    let mut more = "auth = \"tokens\"\n".to_owned();
    for (namespace, _, hash) in tokens {
        more += &format!(
            "[[registry.tokens]]\nname = \"{namespace}\"\nsha256 = \"{hash}\"\nrole = \"write\"\nnamespaces = [\"{namespace}\"]\n"
        );
    }
    let node = RegistryNode::start(&more).await;
    let _logs = ShowLogs(node.dir());
    let start = |name: &str, namespace: &str, token: &str| {
        let mut go = command(&program, RunAs::Tests, "KILL");
        go.env("CONSUL_PORT", node.port().to_string()).env("CONSUL_NAMESPACE", namespace).env("CONSUL_TOKEN", token);
        let out = node.dir().join(format!("{name}.log"));
        (Process::start(name, go, &out), out)
    };
    let (_one, one) = start("sd-one", "one", "a-token");
    let (_two, two) = start("sd-two", "two", "b-token");
    let (_stranger, stranger) = start("sd-stranger", "one", "b-token");
    let put = async |namespace: &str, path: &str, body: &Value| {
        let token = tokens.iter().find(|(name, ..)| *name == namespace).unwrap().1;
        let path = format!("{path}{}ns={namespace}", if path.contains('?') { '&' } else { '?' });
        let answer = node.ask("PUT", &path, &[("X-Consul-Token", token)], &body.to_string()).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    };
    let are = async |what: &str, expected: [&[&str]; 2]| {
        wait_until(what, SOON, node.dir(), async || {
            (followed(&one) == expected[0] && followed(&two) == expected[1]).then_some(())
        })
        .await;
        assert!(followed(&stranger).is_empty(), "what a token for another namespace gets");
    };
    let register = async |namespace: &str, id: &str, address: &str, color: &str| {
        let sent = json!({ "ID": id, "Name": "web", "Address": address, "Port": 80, "Tags": ["t"], "Meta": { "color": color } });
        put(namespace, "/v1/agent/service/register", &sent).await;
    };
    register("one", "a", "10.0.0.1", "blue").await;
    register("two", "a", "10.0.0.2", "red").await;
    let red = ["10.0.0.2:80 web 10.0.0.2 passing ,t,  red"];
    are("one each", [&["10.0.0.1:80 web 10.0.0.1 passing ,t,  blue"], &red]).await;
    // A second instance, on a node of the catalog with metadata; then another port, another colour.
    let far = json!({ "Node": "n1", "Address": "10.0.0.3", "NodeMeta": { "rack": "r1" },
        "Service": { "ID": "b", "Service": "web", "Port": 81 } });
    put("one", "/v1/catalog/register", &far).await;
    let b = "10.0.0.3:81 web n1 passing ,, r1 ";
    are("a second one", [&["10.0.0.1:80 web 10.0.0.1 passing ,t,  blue", b], &red]).await;
    register("one", "a", "10.0.0.1", "green").await;
    are("a change", [&["10.0.0.1:80 web 10.0.0.1 passing ,t,  green", b], &red]).await;
    // Data of a node, and its health: by its service's maintenance, by a check of the node.
    put("one", "/v1/agent/service/maintenance/a?enable=true", &json!({})).await;
    are("maintenance", [&["10.0.0.1:80 web 10.0.0.1 maintenance ,t,  green", b], &red]).await;
    put("one", "/v1/agent/service/maintenance/a?enable=false", &json!({})).await;
    let sick = json!({ "Node": "n1", "Address": "10.0.0.3", "NodeMeta": { "rack": "r2" },
        "Check": { "CheckID": "disk", "Status": "critical" } });
    put("one", "/v1/catalog/register", &sick).await;
    let b = "10.0.0.3:81 web n1 critical ,, r2 ";
    are("a node's check", [&["10.0.0.1:80 web 10.0.0.1 passing ,t,  green", b], &red]).await;
    put("one", "/v1/catalog/deregister", &json!({ "Node": "n1" })).await;
    are("a node is gone", [&["10.0.0.1:80 web 10.0.0.1 passing ,t,  green"], &red]).await;
    put("one", "/v1/agent/service/deregister/a", &json!({})).await;
    are("nothing is left", [&[], &red]).await;
}

/// Traefik's own provider of Consul's catalog, as a library. Two of them, each with the token of one namespace, and one with a token for a different
/// namespace than it asks for. Routers appear, lose a server in maintenance, and vanish.
#[tokio::test]
#[ignore = "needs Go and the network: make clients"]
async fn registry_traefik() {
    if !there("go") {
        return;
    }
    let program = new_dir("go").join("traefik");
    let from = here().join("go/traefik");
    build(Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(from)).await;
    // Each with its SHA-256.
    let tokens = [
        ("one", "a-token", "1f6076e3a47ba1ded08025ffe06e57af217c14f9407f33fba50f99b1c7019387"),
        ("two", "b-token", "c033d6825ce303906a2a8cfc0f933e8380fefc8e039ef2bd3dabb97b1a27c875"),
    ];
    let mut more = "auth = \"tokens\"\n".to_owned();
    for (namespace, _, hash) in tokens {
        more += &format!(
            "[[registry.tokens]]\nname = \"{namespace}\"\nsha256 = \"{hash}\"\nrole = \"write\"\nnamespaces = [\"{namespace}\"]\n"
        );
    }
    let node = RegistryNode::start(&more).await;
    let _logs = ShowLogs(node.dir());
    let start = |name: &str, namespace: &str, token: &str| {
        let mut go = command(&program, RunAs::Tests, "KILL");
        go.env("CONSUL_PORT", node.port().to_string()).env("CONSUL_NAMESPACE", namespace).env("CONSUL_TOKEN", token);
        let out = node.dir().join(format!("{name}.log"));
        (Process::start(name, go, &out), out)
    };
    let (_one, one) = start("traefik-one", "one", "a-token");
    let (_two, two) = start("traefik-two", "two", "b-token");
    let (_stranger, stranger) = start("traefik-stranger", "one", "b-token");
    let put = async |namespace: &str, path: &str, body: &Value| {
        let token = tokens.iter().find(|(name, ..)| *name == namespace).unwrap().1;
        let path = format!("{path}{}ns={namespace}", if path.contains('?') { '&' } else { '?' });
        let answer = node.ask("PUT", &path, &[("X-Consul-Token", token)], &body.to_string()).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    };
    let are = async |what: &str, expected: [&[&str]; 2]| {
        wait_until(what, SOON, node.dir(), async || {
            (followed(&one) == expected[0] && followed(&two) == expected[1]).then_some(())
        })
        .await;
        assert!(followed(&stranger).is_empty(), "what a token for another namespace gets");
    };
    // Traefik watches the names and tags of services, and checks.
    let register = async |namespace: &str, id: &str, address: &str, tag: &str| {
        let sent = json!({ "ID": id, "Name": "web", "Address": address, "Port": 80, "Tags": [tag],
            "Check": { "TTL": "10m", "Status": "passing" } });
        put(namespace, "/v1/agent/service/register", &sent).await;
    };
    let shop = "traefik.http.routers.shop.rule=Host(`one.example`)";
    register("one", "a", "10.0.0.1", shop).await;
    register("two", "a", "10.0.0.2", "other").await;
    let two_has = ["Host(`web`) http://10.0.0.2:80"];
    are("one each", [&["Host(`one.example`) http://10.0.0.1:80"], &two_has]).await;
    register("one", "b", "10.0.0.3", shop).await;
    let both = ["Host(`one.example`) http://10.0.0.1:80 http://10.0.0.3:80"];
    are("a second one", [&both, &two_has]).await;
    put("one", "/v1/agent/service/maintenance/a?enable=true", &json!({})).await;
    are("maintenance", [&["Host(`one.example`) http://10.0.0.3:80"], &two_has]).await;
    put("one", "/v1/agent/service/maintenance/a?enable=false", &json!({})).await;
    are("well again", [&both, &two_has]).await;
    register("two", "a", "10.0.0.2", "traefik.enable=false").await;
    are("not for Traefik", [&both, &[]]).await;
    for id in ["a", "b"] {
        put("one", &format!("/v1/agent/service/deregister/{id}"), &json!({})).await;
    }
    are("nothing is left", [&[], &[]]).await;
}

/// consul-template, with a template of a service's instances and of a key. Two of them, each in a namespace of its own.
#[tokio::test]
#[ignore = "needs Go and the network: make clients"]
async fn registry_consul_template() {
    if !there("go") {
        return;
    }
    let bin = new_dir("go");
    let mut install = Command::new("go");
    install.args(["install", "github.com/hashicorp/consul-template@v0.41.1"]).env("GOBIN", &bin);
    build(&mut install).await;
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let namespaces = ["one", "two"];
    let start = |namespace: &str| {
        let out = node.dir().join(format!("{namespace}.out"));
        let template = node.dir().join(format!("{namespace}.tpl"));
        let text =
            "{{ range service \"web\" }}{{ .Address }}:{{ .Port }} {{ end }}{{ keyOrDefault \"color\" \"none\" }}";
        std::fs::write(&template, text).unwrap();
        let config = node.dir().join(format!("{namespace}.hcl"));
        let text = format!("consul {{\n address = \"127.0.0.1:{}\"\n namespace = \"{namespace}\"\n}}\n", node.port());
        std::fs::write(&config, text).unwrap();
        let mut program = command(&bin.join("consul-template"), RunAs::Tests, "KILL");
        program.arg("-config").arg(&config).arg("-template").arg(format!("{}:{}", template.display(), out.display()));
        (Process::start(namespace, program, &node.dir().join(format!("{namespace}.log"))), out)
    };
    let [(_one, first), (_two, second)] = namespaces.map(start);
    let are = async |what: &str, expected: [&str; 2]| {
        wait_until(what, SOON, node.dir(), async || {
            let found = [&first, &second].map(|path| std::fs::read_to_string(path).unwrap_or_default());
            (found == expected).then_some(())
        })
        .await;
    };
    let put = async |path: &str, body: &Value| {
        let answer = node.send("PUT", path, body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    };
    let register = async |namespace: &str, id: &str, address: &str| {
        let sent = json!({ "ID": id, "Name": "web", "Address": address, "Port": 80 });
        put(&format!("/v1/agent/service/register?ns={namespace}"), &sent).await;
    };
    are("nothing", ["none", "none"]).await;
    register("one", "a", "10.0.0.1").await;
    are("one instance", ["10.0.0.1:80 none", "none"]).await;
    register("two", "a", "10.0.0.2").await;
    register("one", "b", "10.0.0.3").await;
    are("one more in each", ["10.0.0.1:80 10.0.0.3:80 none", "10.0.0.2:80 none"]).await;
    assert_eq!(node.ask("PUT", "/v1/kv/color?ns=two", &[], "red").await.status, 200);
    are("a key", ["10.0.0.1:80 10.0.0.3:80 none", "10.0.0.2:80 red"]).await;
    // In maintenance, and gone.
    put("/v1/agent/service/maintenance/a?ns=one&enable=true", &json!({})).await;
    are("one is out", ["10.0.0.3:80 none", "10.0.0.2:80 red"]).await;
    put("/v1/agent/service/deregister/b?ns=one", &json!({})).await;
    are("nobody is left", ["none", "10.0.0.2:80 red"]).await;
}
