//! Configuration entries: over HTTP by hand, and by Nacos' clients, unmodified, on two nodes of which one dies.

use std::ffi::OsStr;

use kingpost_tests::{HttpResponse, Kingpost, RegistryNode, ShowLogs, new_dir, wait_until, within};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::clients::{build, here, installed, there};
use crate::registry_clients::java_program_with;
use crate::registry_clients_nacos::{Agent, LEASES, World, token};

const KILL: i32 = 9;
const FORM: (&str, &str) = ("Content-Type", "application/x-www-form-urlencoded");

/// Sends a request with a token; parameters of a POST are a form.
async fn send(node: &RegistryNode, token: &str, method: &str, path: &str, form: &str) -> HttpResponse {
    let bearer = format!("Bearer {token}");
    node.ask(method, path, &[("Authorization", &bearer), FORM], form).await
}

/// Two tenants with tokens for their own namespaces: neither learns anything of the other's entries. All versions of the API, and the audit log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registry_config_over_http() {
    let (first, first_table) = token("first", "write", &json!(["tenant-a"]));
    let (second, second_table) = token("second", "write", &json!(["tenant-b"]));
    let (admin, admin_table) = token("admin", "admin", &json!(["*"]));
    let tables = [first_table, second_table, admin_table].concat();
    let node = RegistryNode::start(&format!("auth = \"tokens\"\n{tables}")).await;
    let _logs = ShowLogs(node.dir());
    let v1 = "/nacos/v1/cs/configs";
    let at = |tenant: &str| format!("{v1}?dataId=app.yaml&group=g&tenant={tenant}");
    let publish = |content: &str| format!("dataId=app.yaml&group=g&tenant=tenant-a&type=yaml&content={content}");
    let done = send(&node, &first, "POST", v1, &publish("a:%201")).await;
    assert_eq!((done.status, done.body.as_str()), (200, "true"), "{}", done.body);
    let got = send(&node, &first, "GET", &at("tenant-a"), "").await;
    assert_eq!((got.status, got.body.as_str()), (200, "a: 1"));
    let md5 = got.header("content-md5").unwrap().to_owned();
    assert_eq!(got.header("config-type"), Some("yaml"));

    // The other tenant: the same answer for an entry that exists, and for one that does not.
    let missing = at("tenant-a").replace("app.yaml", "none");
    let existing = at("tenant-a");
    let one = send(&node, &second, "GET", &existing, "").await;
    let other = send(&node, &second, "GET", &missing, "").await;
    assert_eq!((one.status, &one.body), (403, &other.body));
    assert_eq!(send(&node, &second, "GET", &at("tenant-b"), "").await.status, 404);
    let listed = send(&node, &second, "GET", &format!("{v1}?search=blur&dataId=*&group=*&tenant=tenant-b"), "").await;
    assert_eq!(listed.json()["totalCount"], 0);
    for (method, form) in [("POST", publish("x")), ("DELETE", String::new())] {
        assert_eq!(send(&node, &second, method, &at("tenant-a"), &form).await.status, 403, "{method}");
    }

    // A listener is answered at once where it lacks the content, and by the change otherwise.
    let listening = |md5: &str| format!("Listening-Configs=app.yaml%02g%02{md5}%02tenant-a%01");
    let listen = async |md5: &str| {
        let bearer = format!("Bearer {first}");
        let headers = [("Authorization", bearer.as_str()), FORM, ("Long-Pulling-Timeout", "30000")];
        node.ask("POST", &format!("{v1}/listener"), &headers, &listening(md5)).await.body
    };
    let changed = "app.yaml%02g%02tenant-a%01\n";
    assert_eq!(listen("").await, changed);
    let change = async {
        let path = format!("{v1}?casMd5=wrong");
        let stale = send(&node, &first, "POST", &path, &publish("a:%202")).await;
        assert_eq!(stale.status, 409, "{}", stale.body);
        // As at Nacos, the condition is one about content: Dubbo sends it for an entry that is not there yet.
        let absent = "dataId=new&group=g&tenant=tenant-a&content=x&casMd5=0";
        assert_eq!(send(&node, &first, "POST", v1, absent).await.body, "true");
        assert_eq!(send(&node, &first, "POST", v1, &absent.replace("content=x", "content=y")).await.status, 409);
        let path = format!("{v1}?casMd5={md5}");
        assert_eq!(send(&node, &first, "POST", &path, &publish("a:%202")).await.body, "true");
    };
    let (told, ()) = within("the change", LEASES, node.dir(), async { tokio::join!(listen(&md5), change) }).await;
    assert_eq!(told, changed);

    // Versions 2 and 3.
    let v2 = "/nacos/v2/cs/config?dataId=app.yaml&group=g&namespaceId=tenant-a";
    assert_eq!(send(&node, &first, "GET", v2, "").await.json()["data"], "a: 2");
    let refused = send(&node, &second, "GET", v2, "").await;
    assert_eq!((refused.status, &refused.json()["code"]), (403, &json!(10_001)));
    let v3 = "/nacos/v3/client/cs/config?dataId=app.yaml&groupName=g&namespaceId=tenant-a";
    assert_eq!(send(&node, &first, "GET", v3, "").await.json()["data"]["content"], "a: 2");
    let path = "/nacos/v3/admin/cs/config";
    let form = "dataId=cipher-x&groupName=g&namespaceId=tenant-a&content=hunter2&desc=d&configTags=t";
    assert_eq!(send(&node, &first, "POST", path, form).await.json()["data"], true);
    let list = "/nacos/v3/admin/cs/config/list?namespaceId=tenant-a&dataId=cipher*&pageNo=1&pageSize=10";
    let listed = send(&node, &first, "GET", list, "").await.json();
    assert_eq!((&listed["data"]["totalCount"], &listed["data"]["pageItems"][0]["desc"]), (&json!(1), &json!("d")));
    assert!(!listed.to_string().contains("hunter2"), "{listed}");
    let history = "/nacos/v2/cs/history/list?dataId=app.yaml&group=g&namespaceId=tenant-a";
    let versions = send(&node, &first, "GET", history, "").await.json();
    let ids: Vec<&Value> = versions["data"]["pageItems"].as_array().unwrap().iter().map(|it| &it["id"]).collect();
    assert_eq!(ids, ["2", "1"]);
    let old = history.replace("/list?", "?nid=1&");
    assert_eq!(send(&node, &first, "GET", &old, "").await.json()["data"]["content"], "a: 1");

    // A roll-back is one call and one line.
    let own = "/v1/namespaces/tenant-a/configs/g/app.yaml";
    let bearer = format!("Bearer {first}");
    let back = node.ask("POST", &format!("{own}/rollback"), &[("Authorization", &bearer)], r#"{"version":1}"#).await;
    assert_eq!((&back.json()["entry"]["version"], &back.json()["entry"]["restored"]), (&json!(3), &json!(1)));
    assert_eq!(send(&node, &first, "GET", &at("tenant-a"), "").await.body, "a: 1");
    let audit = send(&node, &admin, "GET", "/v1/namespaces/tenant-a/audit", "").await.json();
    let lines: Vec<&str> =
        audit["changes"].as_array().unwrap().iter().filter_map(|change| change["action"].as_str()).collect();
    assert_eq!(lines, ["rollBackConfig", "publishConfig", "publishConfig", "publishConfig", "publishConfig"]);
    assert_eq!(audit["changes"][0]["token"], "first");

    // A gray release is for its addresses.
    let gray = format!("{own}?");
    let body = json!({ "content": "gray", "addresses": ["127.0.0.1"] }).to_string();
    let headers = [("Authorization", bearer.as_str())];
    assert_eq!(node.ask("PUT", &gray, &headers, &body).await.status, 200);
    assert_eq!(send(&node, &first, "GET", &at("tenant-a"), "").await.body, "gray");
    let end = "/nacos/v3/admin/cs/config/beta?dataId=app.yaml&groupName=g&namespaceId=tenant-a";
    assert_eq!(send(&node, &first, "DELETE", end, "").await.status, 200);
    assert_eq!(send(&node, &first, "GET", &at("tenant-a"), "").await.body, "a: 1");
    // One by a tag is for clients that show it.
    assert_eq!(send(&node, &first, "POST", v1, &publish("tagged&tag=blue")).await.body, "true");
    let tagged = async |tag: &str| {
        let headers = [("Authorization", bearer.as_str()), ("Vipserver-Tag", tag)];
        node.ask("GET", &at("tenant-a"), &headers, "").await.body
    };
    assert_eq!((tagged("blue").await.as_str(), tagged("red").await.as_str()), ("tagged", "a: 1"));
    let by_parameter = send(&node, &first, "GET", &format!("{}&tag=blue", at("tenant-a")), "").await;
    assert_eq!(by_parameter.body, "tagged");
    let own_label = node.ask("GET", &format!("{own}?label=Vipserver-Tag%3Dblue"), &headers, "").await.json();
    assert_eq!((&own_label["content"], &own_label["labels"]), (&json!("tagged"), &json!(["Vipserver-Tag=blue"])));
    assert_eq!(send(&node, &first, "DELETE", &at("tenant-a"), "").await.body, "true");
    assert_eq!(send(&node, &first, "GET", &at("tenant-a"), "").await.status, 404);
    let log = std::fs::read_to_string(node.process().log()).unwrap();
    assert!(log.contains("rollBackConfig") && !log.contains("hunter2") && !log.contains("a: 1"), "{log}");
}

/// A client of version 3 registers, renews, finds and deregisters.
#[tokio::test]
async fn registry_nacos_http_3() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let at = "/nacos/v3/client/ns/instance?namespaceId=public&groupName=g&serviceName=shop&ip=10.0.0.1&port=80";
    let code = async |method: &str, path: &str| {
        let answer = node.ask(method, path, &[], "").await;
        (answer.status, answer.json()["code"].as_u64())
    };
    let beat = format!("{at}&heartBeat=true");
    assert_eq!(code("POST", &beat).await, (404, Some(20_004)));
    assert_eq!(code("POST", &format!("{at}&weight=2")).await, (200, Some(0)));
    assert_eq!(code("POST", &beat).await, (200, Some(0)));
    let list = at.replace("instance?", "instance/list?");
    let hosts = node.get(&list).await.json();
    assert_eq!((&hosts["data"][0]["ip"], &hosts["data"][0]["weight"]), (&json!("10.0.0.1"), &json!(2.0)));
    assert_eq!(node.get("/nacos/v1/ns/instance/list?serviceName=g@@shop").await.json()["hosts"][0]["ip"], "10.0.0.1");
    assert_eq!(code("DELETE", at).await, (200, Some(0)));
    assert_eq!(node.get(&list).await.json()["data"], json!([]));
}

/// One command imports a Nacos' entries over its HTTP API, and may be repeated. A registry's own front stands for the Nacos.
#[tokio::test]
async fn registry_config_is_imported() {
    let (from, to) = (RegistryNode::start("").await, RegistryNode::start("").await);
    let _logs = ShowLogs(to.dir());
    for n in 0..3 {
        let form =
            format!("dataId=id-{n}&group=g&tenant=tenant-a&type=json&desc=d&config_tags=t&content=%7B%22n%22:{n}%7D");
        assert_eq!(from.ask("POST", "/nacos/v1/cs/configs", &[FORM], &form).await.body, "true");
    }
    let nacos = format!("{}/nacos", from.url());
    for expected in ["3 entries published, 0 were there", "0 entries published, 3 were there"] {
        let arguments = ["registry", "config", "import", "--url", &to.url(), "--nacos", &nacos, "-n", "tenant-a"];
        let arguments = arguments.map(str::to_owned);
        let output = tokio::task::spawn_blocking(move || {
            Kingpost::run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
        });
        let output = output.await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.contains(expected), "{said}");
    }
    let entry = to.get("/v1/namespaces/tenant-a/configs/g/id-2").await.json();
    let found = [&entry["content"], &entry["type"], &entry["description"], &entry["tags"], &entry["version"]];
    assert_eq!(found, [&json!("{\"n\":2}"), &json!("json"), &json!("d"), &json!(["t"]), &json!(1)]);
}

/// An export with entries and their history makes the same in a registry on another kind of store, and may be imported again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registry_config_moves_to_another_store() {
    let server = kingpost_tests::Cluster::builder().replicas(0).start().await;
    let from = RegistryNode::start("").await;
    let to = RegistryNode::start_on(Some(&server.primary().endpoint().url()), "").await;
    let _logs = (ShowLogs(from.dir()), ShowLogs(to.dir()));
    let at = |id: &str| format!("/v1/namespaces/moved/configs/g/{id}");
    for n in 1..=3 {
        let body =
            json!({ "content": format!("a: {n}\nü"), "type": "yaml", "tags": ["t"], "description": "d" }).to_string();
        assert_eq!(from.ask("PUT", &at("a"), &[], &body).await.status, 200);
    }
    let gray = json!({ "content": "gray", "addresses": ["127.0.0.1"] }).to_string();
    assert_eq!(from.ask("PUT", &at("a"), &[], &gray).await.status, 200);
    for n in 1..=2 {
        let body = json!({ "content": format!("hunter{n}"), "secret": true, "cipher_key": "k" }).to_string();
        assert_eq!(from.ask("PUT", &at("s"), &[], &body).await.status, 200);
    }
    let (source, target) = (from.url(), to.url());
    let run = async |arguments: Vec<String>| {
        let output = tokio::task::spawn_blocking(move || {
            Kingpost::run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
        });
        let output = output.await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        (String::from_utf8(output.stdout).unwrap(), said)
    };
    let export = |url: &str, more: &[&str]| {
        let usual = ["registry", "export", "--url", url, "-n", "moved"].into_iter();
        usual.chain(more.iter().copied()).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(run(export(&source, &[])).await.0, "", "entries only if told");
    let (exported, _) = run(export(&source, &["--configs", "--history"])).await;
    let file = to.dir().join("export.jsonl");
    std::fs::write(&file, &exported).unwrap();
    for expected in ["2 configuration entries published, 0 were", "0 configuration entries published, 2 were"] {
        let import = ["registry", "import", file.to_str().unwrap(), "--url", &target].map(str::to_owned);
        let said = run(import.to_vec()).await.1;
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(run(export(&target, &["--configs", "--history"])).await.0, exported);
    let versions = to.get(&format!("{}/history", at("a"))).await.json();
    let contents: Vec<&Value> = versions["versions"].as_array().unwrap().iter().map(|one| &one["content"]).collect();
    assert_eq!(contents, ["a: 3\nü", "a: 2\nü", "a: 1\nü"]);
    let secret = to.get(&at("s")).await.json();
    assert_eq!(
        (&secret["content"], &secret["secret"], &secret["cipher_key"]),
        (&json!("hunter2"), &json!(true), &json!("k"))
    );
}

/// Policies decide by group and data id, and lists leave out what a token may not read.
#[tokio::test]
async fn registry_config_by_policies() {
    let node = RegistryNode::start("auth = \"acl\"\n").await;
    let _logs = ShowLogs(node.dir());
    let put = async |token: &str, path: &str, body: &Value| {
        let headers = [("X-Consul-Token", token), ("Content-Type", "application/json")];
        let headers = if token.is_empty() { &headers[1..] } else { &headers };
        node.ask("PUT", path, headers, &body.to_string()).await
    };
    let root = put("", "/v1/acl/bootstrap", &Value::Null).await.json()["SecretID"].as_str().unwrap().to_owned();
    let rules = r#"config_prefix "shop/" { policy = "write" } config "all/common" { policy = "read" }"#;
    assert_eq!(put(&root, "/v1/acl/policy", &json!({ "Name": "shop", "Rules": rules })).await.status, 200);
    let made = put(&root, "/v1/acl/token", &json!({ "Policies": [{ "Name": "shop" }] })).await.json();
    let own = made["SecretID"].as_str().unwrap();
    let at = |group: &str, id: &str| format!("/v1/namespaces/default/configs/{group}/{id}");
    for (group, id) in [("all", "common"), ("all", "other"), ("bank", "a")] {
        assert_eq!(put(&root, &at(group, id), &json!({ "content": "x" })).await.status, 200);
    }
    for (group, id, write, read) in [
        ("shop", "a", 200, 200),
        ("all", "common", 403, 200),
        ("all", "other", 403, 403),
        ("bank", "a", 403, 403),
        ("bank", "none", 403, 403),
    ] {
        assert_eq!(put(own, &at(group, id), &json!({ "content": "y" })).await.status, write, "{group}/{id}");
        let got = node.ask("GET", &at(group, id), &[("X-Consul-Token", own)], "").await;
        assert_eq!(got.status, read, "{group}/{id}: {}", got.body);
    }
    let listed = node.ask("GET", "/v1/namespaces/default/configs", &[("X-Consul-Token", own)], "").await.json();
    let ids: Vec<&Value> = listed["entries"].as_array().unwrap().iter().map(|entry| &entry["id"]).collect();
    assert_eq!(ids, ["common", "a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registry_config_nacos_python() {
    let python = Agent::python().await;
    let program = python.as_std().get_program().to_owned();
    let arguments: Vec<_> = python.as_std().get_args().map(OsStr::to_owned).collect();
    usual(|| {
        let mut command = Command::new(&program);
        command.args(&arguments).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registry_config_nacos_node() {
    let modules = installed().await.join("node/node_modules");
    usual(|| {
        let mut command = Command::new("node");
        command.arg(here().join("node/registry_nacos_agent.mjs")).env("NODE_PATH", &modules);
        command
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go and the network: make clients"]
async fn registry_config_nacos_go_clients() {
    if !there("go") {
        return;
    }
    let program = new_dir("go").join("nacos");
    build(Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(here().join("go/nacos"))).await;
    usual(|| Command::new(&program)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Java, Maven and the network: make clients"]
async fn registry_config_nacos_java_clients() {
    for version in ["1.4.8", "2.5.1", "3.0.2"] {
        let version = format!("-Dkingpost.nacos={version}");
        if let Some(program) = java_program_with("java/nacos_agent", "NacosAgent", &[&version]).await {
            usual(|| Command::new(&program)).await;
        }
    }
}

/// An application of Spring Cloud Alibaba imports an entry, and is refreshed when it changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Java, Maven and the network: make clients"]
async fn registry_config_spring_cloud_alibaba_clients() {
    let Some(program) = java_program_with("java/spring_config", "SpringConfigAgent", &[]).await else { return };
    let Tenants { mut world, admin, first } = Tenants::start().await;
    let dirs = [world.nodes[0].dir().to_owned(), world.nodes[1].dir().to_owned()];
    let _logs = (ShowLogs(&dirs[0]), ShowLogs(&dirs[1]));
    write(&world.nodes[0], &admin, "a: 1").await;
    until_read(&world, &admin, "a: 1").await;
    let both = world.doors.iter().map(|doors| doors.address()).collect::<Vec<_>>().join(",");
    let password = [("NACOS_PASSWORD", OsStr::new(&first))];
    let mut client = Agent::of(Command::new(program), &both, "tenant-a", &password).await;
    let said = client.dir.clone();
    let _said = ShowLogs(&said);
    assert_eq!(client.ask(json!({ "do": "get", "service": "app" }), "got").await, "a: 1");
    follow(&mut world, &mut client, &admin).await;
}

/// Dubbo's registry, metadata centre (its mapping of services is a compare-and-set) and configuration centre are Nacos.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Java, Maven and the network: make clients"]
async fn registry_config_dubbo_clients() {
    let Some(program) = java_program_with("java/dubbo", "DubboAgent", &[]).await else { return };
    let Tenants { mut world, admin, first } = Tenants::start().await;
    let dirs = [world.nodes[0].dir().to_owned(), world.nodes[1].dir().to_owned()];
    let _logs = (ShowLogs(&dirs[0]), ShowLogs(&dirs[1]));
    let properties = "/v1/namespaces/tenant-a/configs/dubbo/dubbo.properties";
    let content = json!({ "content": "shop.motto=brevity" }).to_string();
    assert_eq!(send(&world.nodes[0], &admin, "PUT", properties, &content).await.status, 200);
    write(&world.nodes[0], &admin, "a: 1").await;
    until_read(&world, &admin, "a: 1").await;
    let both = world.doors.iter().map(|doors| doors.address()).collect::<Vec<_>>().join(",");
    let password = [("NACOS_PASSWORD", OsStr::new(&first))];
    let mut client = Agent::of(Command::new(program), &both, "tenant-a", &password).await;
    let said = client.dir.clone();
    let _said = ShowLogs(&said);
    let of = |what: &str| json!({ "do": what });
    assert_eq!(client.ask(of("property"), "property").await, "brevity");
    assert_eq!(client.ask(of("call"), "called").await, "hello, you");
    let mapping = "/v1/namespaces/tenant-a/configs/mapping/DubboAgent___Greeter";
    let mapped = send(&world.nodes[1], &admin, "GET", mapping, "").await;
    assert_eq!(mapped.json()["content"], "shop", "{}", mapped.body);
    assert_eq!(client.ask(of("get"), "got").await, "a: 1");
    client.ask(of("listen"), "listening").await;
    follow(&mut world, &mut client, &admin).await;
    assert_eq!(client.ask(of("call"), "called").await, "hello, you");
}

/// polaris-go writes drafts, releases them, reads and listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go and the network: make clients"]
async fn registry_config_polaris_go_clients() {
    if !there("go") {
        return;
    }
    let program = new_dir("go").join("polaris_config");
    let source = here().join("go/polaris_config");
    build(Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(source)).await;
    let (mut world, admin) = (World::start_with("", "").await, String::new());
    let dirs = [world.nodes[0].dir().to_owned(), world.nodes[1].dir().to_owned()];
    let _logs = (ShowLogs(&dirs[0]), ShowLogs(&dirs[1]));
    let both = world.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect::<Vec<_>>().join(",");
    let mut client = Agent::of(Command::new(program), &both, "tenant-a", &[]).await;
    let said = client.dir.clone();
    let _said = ShowLogs(&said);
    let of = |what: &str, content: &str| json!({ "do": what, "service": "app", "content": content });
    let refused = client.ask(of("update", "x"), "refused").await;
    assert!(refused.as_str().unwrap().contains("400807"), "{refused}");
    assert_eq!(client.ask(of("create", "a: 0"), "created").await, "app");
    assert!(client.ask(of("create", "a: 0"), "refused").await.as_str().unwrap().contains("400201"));
    assert_eq!(client.ask(of("update", "a: 1"), "updated").await, "app");
    assert_eq!(status(&world.nodes[0], &admin).await, 404, "a draft is no version");
    assert_eq!(client.ask(of("release", ""), "released").await, "app");
    until_read(&world, &admin, "a: 1").await;
    assert_eq!(client.ask(of("get", ""), "got").await, "a: 1");
    client.ask(of("listen", ""), "listening").await;
    follow(&mut world, &mut client, &admin).await;
}

/// polaris-java reads and listens, and sends no token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Java, Maven and the network: make clients"]
async fn registry_config_polaris_java_clients() {
    let Some(program) = java_program_with("java/polaris_config", "PolarisConfigAgent", &[]).await else { return };
    let (mut world, admin) = (World::start_with("", "").await, String::new());
    let dirs = [world.nodes[0].dir().to_owned(), world.nodes[1].dir().to_owned()];
    let _logs = (ShowLogs(&dirs[0]), ShowLogs(&dirs[1]));
    write(&world.nodes[0], &admin, "a: 1").await;
    until_read(&world, &admin, "a: 1").await;
    let both = world.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect::<Vec<_>>().join(",");
    let mut client = Agent::of(Command::new(program), &both, "tenant-a", &[]).await;
    let said = client.dir.clone();
    let _said = ShowLogs(&said);
    assert_eq!(client.ask(json!({ "do": "get", "service": "app" }), "got").await, "a: 1");
    client.ask(json!({ "do": "listen", "service": "app" }), "listening").await;
    follow(&mut world, &mut client, &admin).await;
}

/// Two nodes, a token for all namespaces, and one for tenant-a.
struct Tenants {
    world: World,
    admin: String,
    first: String,
}

impl Tenants {
    async fn start() -> Tenants {
        let (admin, admin_table) = token("admin", "admin", &json!(["*"]));
        let (first, first_table) = token("first", "write", &json!(["tenant-a"]));
        let world = World::start_with("auth = \"tokens\"\n", &[admin_table, first_table].concat()).await;
        Tenants { world, admin, first }
    }
}

/// A client that listens hears of changes made at each node, also when the other one is dead, and of nothing else.
async fn follow(world: &mut World, client: &mut Agent, admin: &str) {
    for (node, content) in [(0, "a: 2"), (1, "a: 3")] {
        write(&world.nodes[node], admin, content).await;
        client.told("app", content).await;
    }
    // An entry of another namespace, and another entry, are not heard of.
    write_at(&world.nodes[0], admin, "tenant-b", "app", "of another").await;
    write_at(&world.nodes[0], admin, "tenant-a", "other", "another").await;
    for dead in [0, 1] {
        let alive = 1 - dead;
        world.nodes[dead].end(KILL).await;
        let content = format!("without {dead}");
        write(&world.nodes[alive], admin, &content).await;
        client.told("app", &content).await;
        assert_eq!(client.ask(json!({ "do": "get", "service": "app" }), "got").await, content.as_str());
        world.nodes[dead].start_again().await;
    }
    assert!(!client.said.contains("another"), "{}", client.said);
}

/// Publishes, reads, listens and removes with a client that knows two nodes; then one of them dies.
async fn usual(command: impl Fn() -> Command) {
    let Tenants { mut world, admin, first } = Tenants::start().await;
    let dirs = [world.nodes[0].dir().to_owned(), world.nodes[1].dir().to_owned()];
    let _logs = (ShowLogs(&dirs[0]), ShowLogs(&dirs[1]));
    let both = world.doors.iter().map(|doors| doors.address()).collect::<Vec<_>>().join(",");
    let password = [("NACOS_PASSWORD", OsStr::new(&first))];
    let mut client = Agent::of(command(), &both, "tenant-a", &password).await;
    let said = client.dir.clone();
    let _said = ShowLogs(&said);
    let of = |what: &str| json!({ "do": what, "service": "app" });

    assert_eq!(client.ask(of("get"), "got").await, Value::Null);
    let publish = json!({ "do": "publish", "service": "app", "content": "a: 1" });
    assert_eq!(client.ask(publish, "published").await, true);
    until_read(&world, &admin, "a: 1").await;
    assert_eq!(client.ask(of("get"), "got").await, "a: 1");
    client.ask(of("listen"), "listening").await;
    follow(&mut world, &mut client, &admin).await;
    assert_eq!(client.ask(of("remove"), "removed").await, true);
    for node in &world.nodes {
        wait_until("the removal", LEASES, node.dir(), async || (status(node, &admin).await == 404).then_some(())).await;
    }
}

/// Waits until both nodes have the content.
async fn until_read(world: &World, token: &str, content: &str) {
    for node in &world.nodes {
        wait_until("the entry", LEASES, node.dir(), async || (read(node, token).await == content).then_some(())).await;
    }
}

fn entry(namespace: &str, id: &str) -> String {
    format!("/v1/namespaces/{namespace}/configs/g/{id}")
}

async fn status(node: &RegistryNode, token: &str) -> u16 {
    send(node, token, "GET", &entry("tenant-a", "app"), "").await.status
}

async fn read(node: &RegistryNode, token: &str) -> String {
    let answer = send(node, token, "GET", &entry("tenant-a", "app"), "").await;
    if answer.status == 200 { answer.json()["content"].as_str().unwrap().to_owned() } else { String::new() }
}

async fn write(node: &RegistryNode, token: &str, content: &str) {
    write_at(node, token, "tenant-a", "app", content).await;
}

async fn write_at(node: &RegistryNode, token: &str, namespace: &str, id: &str, content: &str) {
    let bearer = format!("Bearer {token}");
    let body = json!({ "content": content }).to_string();
    let answer = node.ask("PUT", &entry(namespace, id), &[("Authorization", &bearer)], &body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}
