//! The web console over HTTP, in front of real parts: its data, and the effect of its commands. And all of it in a real browser, if there is one.

use std::process::Stdio;
use std::time::Duration;

use kingpost_tests::{
    HttpResponse, Kingpost, Port, RegistryNode, SOON, ShowLogs, kingpost_bin, new_dir, skipped, wait_until, within,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use toml::Table;

use crate::clusters::{further, named};
use crate::common::{name, only_kingpost, shared};

/// A console, as used by its page.
struct Console {
    port: u16,
    cookie: String,
}

/// Returns the output of `kingpost console token`: the token, and its entry in a configuration.
fn token() -> (String, Table) {
    let output = Kingpost::run(&["console", "token", "tester"]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let entry: Table = toml::from_str(&said[said.find("[[console.tokens]]").expect("an entry")..]).expect("TOML");
    let entry = entry["console"]["tokens"][0].as_table().unwrap().clone();
    (String::from_utf8(output.stdout).unwrap().trim().to_owned(), entry)
}

impl Console {
    async fn sign_in(port: u16, token: &str) -> Console {
        let console = Console { port, cookie: String::new() };
        let wrong = console.post("/api/login", &json!({ "token": "kp_wrong" })).await;
        assert_eq!(wrong.status, 401, "{wrong:?}");
        let answer = console.post("/api/login", &json!({ "token": token })).await;
        assert_eq!((answer.status, &answer.json()["may_act"]), (200, &json!(true)), "{answer:?}");
        let cookie = answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        Console { port, cookie }
    }

    async fn raw(&self, head: &str, body: &str) -> HttpResponse {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.expect("the console listens");
        let (port, cookie, length) = (self.port, &self.cookie, body.len());
        let request = format!(
            "{head} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\nCookie: {cookie}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{head}: {answer:?}"));
        let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
        HttpResponse { status, head: head.to_owned(), body: body.to_owned() }
    }

    async fn get(&self, path: &str) -> HttpResponse {
        self.raw(&format!("GET {path}"), "").await
    }

    async fn post(&self, path: &str, body: &Value) -> HttpResponse {
        self.raw(&format!("POST {path}"), &body.to_string()).await
    }

    async fn act(&self, action: &Value) {
        let answer = self.post("/api/act", action).await;
        assert_eq!(answer.status, 200, "{action}: {answer:?}");
    }

    /// Acts as an open page: reads the stream until the test ends.
    fn watch(&self) -> tokio::task::JoinHandle<()> {
        let (port, cookie) = (self.port, self.cookie.clone());
        tokio::spawn(async move {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let request = format!("GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        })
    }

    /// Waits until the state satisfies the condition.
    async fn until<T>(&self, what: &str, logs: &std::path::Path, is: impl Fn(&Value) -> Option<T>) -> T {
        wait_until(what, SOON, logs, async || is(&self.get("/api/state").await.json())).await
    }
}

#[tokio::test]
async fn a_proxy_is_shown_and_acted_on() {
    if only_kingpost() {
        return;
    }
    let (shared, _logs) = shared().await;
    let logs = shared.cluster.dir();
    let (port, (token, entry), alias) = (Port::reserve(), token(), name("alias"));
    let kingpost = Kingpost::of(&shared.cluster)
        .set("console.listen", format!("127.0.0.1:{}", port.number()))
        .add("console.tokens", entry)
        .add("proxy.databases", kingpost_tests::database(&alias, "pool_size", 3))
        .start()
        .await;
    let console = Console::sign_in(port.number(), &token).await;
    let watching = console.watch();

    // The nodes' state, and a pool once there is a client.
    let mut config = kingpost.endpoint().config();
    config.dbname(&alias);
    let client = kingpost.endpoint().try_connect(&config).await.expect("a client");
    client.simple_query("SELECT 1").await.unwrap();
    let primary = shared.cluster.primary().name().to_owned();
    console
        .until("the nodes and the pool", logs, |state| {
            let nodes = state["cluster"]["nodes"].as_array()?;
            let replicas = nodes.iter().filter(|node| node["role"] == "replica" && node["usable"] == true).count();
            let position = nodes.iter().find(|node| node["name"] == primary.as_str())?["position"].as_str()?;
            let pool = state["pools"].as_array()?.iter().find(|pool| pool["database"] == alias.as_str())?;
            let all = state["cluster"]["primary"] == primary.as_str() && replicas == 2 && position.contains('/');
            (all && pool["clients"] == 1 && pool["paused"] == false).then_some(())
        })
        .await;

    // A pause holds a client back, is seen, and ends.
    console.act(&json!({ "action": "pause", "database": alias })).await;
    let ask = tokio::spawn(async move {
        client.simple_query("SELECT 2").await.expect("it goes on after the pause");
        client
    });
    console
        .until("a client that waits, and the event", logs, |state| {
            let pool = state["pools"].as_array()?.iter().find(|pool| pool["database"] == alias.as_str())?;
            let events = state["events"].as_array()?;
            let told = events.iter().any(|event| event["text"] == "is paused");
            (pool["paused"] == true && pool["waiting"] == 1 && told).then_some(())
        })
        .await;
    assert!(!ask.is_finished(), "a paused database answers nothing");
    console.act(&json!({ "action": "resume", "database": alias })).await;
    let client = within("the statement after the pause", SOON, logs, ask).await.unwrap();

    // A client is closed by its number.
    let clients = console.get("/api/clients").await.json();
    let found = clients["clients"].as_array().unwrap().iter().find(|client| client["database"] == alias.as_str());
    let id = found.unwrap_or_else(|| panic!("{clients}"))["id"].clone();
    console.act(&json!({ "action": "kill_client", "id": id })).await;
    within("the client's end", SOON, logs, async { while client.simple_query("SELECT 3").await.is_ok() {} }).await;
    let again = console.post("/api/act", &json!({ "action": "kill_client", "id": id })).await;
    assert_eq!(again.status, 404, "{again:?}");
    let unknown = console.post("/api/act", &json!({ "action": "pause", "database": "no-such" })).await;
    assert!(unknown.status == 404 || unknown.status == 200, "a wildcard may know it: {unknown:?}");
    console.act(&json!({ "action": "resume", "database": null })).await;

    // None of its answers has a secret.
    for path in ["/api/state", "/api/clients", "/api/session"] {
        let body = console.get(path).await.body;
        assert!(!body.contains(&token) && !body.contains("sha256") && !body.contains("password"), "{path}");
    }
    watching.abort();
}

#[tokio::test]
async fn statements_and_the_past_are_shown() {
    if only_kingpost() {
        return;
    }
    let (shared, _logs) = shared().await;
    let logs = shared.cluster.dir();
    let (port, (token, entry)) = (Port::reserve(), token());
    let (one, other, role) = (name("one"), name("other"), name("role"));
    shared.cluster.primary().execute(&format!("CREATE ROLE {role} LOGIN")).await;
    shared.cluster.wait_caught_up().await;
    let kingpost = Kingpost::of(&shared.cluster)
        .set("console.listen", format!("127.0.0.1:{}", port.number()))
        .set("console.anonymous_view", false)
        .add("console.tokens", entry)
        .add("proxy.databases", kingpost_tests::database(&one, "pool_size", 3))
        .add("proxy.databases", kingpost_tests::database(&other, "pool_size", 3))
        .start()
        .await;
    let connect = async |database: &str, user: Option<&str>| {
        let mut config = kingpost.endpoint().config();
        config.dbname(database);
        if let Some(user) = user {
            config.user(user);
        }
        kingpost.endpoint().try_connect(&config).await.expect("a client")
    };
    // Two databases, two users: each its own shape, and a common one.
    let (first, second) = (connect(&one, None).await, connect(&other, Some(&role)).await);
    for n in 0..5 {
        first.simple_query(&format!("SELECT 'hush-{n}' AS of_the_first")).await.unwrap();
        second.simple_query(&format!("SELECT {n} AS of_both WHERE 'whisper' <> ''")).await.unwrap();
    }
    for _ in 0..2 {
        second.simple_query("SELECT 'whisper', 7 AS of_the_second").await.unwrap();
        first.simple_query("SELECT 1234 AS of_both WHERE 'x' <> ''").await.unwrap();
    }

    // The last by its text, the first by its time.
    first.simple_query("SELECT pg_sleep(0.2) AS slow").await.unwrap();

    let stranger = Console { port: port.number(), cookie: String::new() };
    for path in ["/api/statements", "/api/history?span=hour"] {
        let answer = stranger.get(path).await;
        assert!(answer.status == 401 && !answer.body.contains("of_the"), "{path}: {answer:?}");
    }
    let console = Console::sign_in(port.number(), &token).await;
    let found = console.get("/api/statements").await;
    assert!(
        !found.body.contains("hush") && !found.body.contains("whisper") && !found.body.contains("1234"),
        "{found:?}"
    );
    let found = found.json();
    let shapes = found["statements"].as_array().unwrap();
    assert_eq!(found["total"], json!(shapes.len()), "all of them are shown: {found}");
    for (text, calls) in
        [("SELECT ? AS of_the_first", 5), ("SELECT ?, … AS of_the_second", 2), ("SELECT ? AS of_both WHERE ? <> ?", 7)]
    {
        let shape = shapes.iter().find(|shape| shape["text"] == text).unwrap_or_else(|| panic!("no {text:?}: {found}"));
        assert_eq!((&shape["calls"], &shape["errors"]), (&json!(calls), &json!(0)), "{shape}");
    }
    let micros: Vec<u64> = shapes.iter().map(|shape| shape["total_micros"].as_u64().unwrap()).collect();
    assert!(micros.is_sorted_by(|a, b| a >= b), "those that have taken longest come first: {found}");
    assert_eq!(shapes[0]["text"], "SELECT pg_sleep(?) AS slow", "{found}");
    assert_eq!(found["micros"], json!(micros.iter().sum::<u64>()));
    // The SQL console counts the same.
    let sql = crate::console::console(&kingpost).await;
    let rows = crate::console::rows(&sql, "SHOW STATEMENTS").await;
    let both = rows.iter().find(|row| row["statement"] == "SELECT ? AS of_both WHERE ? <> ?").expect("the shape");
    assert_eq!(both["calls"], "7");

    // The history: samples at once, and the current step has both clients.
    wait_until("the clients in the curves", SOON, logs, async || {
        let state = console.get("/api/state").await.json();
        let sampled = state["samples"].as_array()?.last()?["clients"].as_f64()? >= 2.0;
        let answer = console.get("/api/history?span=day").await.json();
        let names: Vec<&str> = answer["series"].as_array()?.iter().filter_map(Value::as_str).collect();
        let of = |name: &str| 1 + names.iter().position(|one| *one == name).expect("a series");
        let open = answer["open"].as_array()?;
        assert!(open[of("instances")].is_null(), "there is no registry here: {answer}");
        (sampled && open[of("clients")].as_f64()? > 0.0).then_some(())
    })
    .await;
    drop((first, second, sql, kingpost));
}

#[tokio::test]
async fn services_are_found_and_acted_on() {
    let (port, (token, entry)) = (Port::reserve(), token());
    let sha256 = entry["sha256"].as_str().unwrap();
    let node = RegistryNode::start(&format!(
        "[console]\nlisten = \"127.0.0.1:{}\"\n[[console.tokens]]\nname = \"t\"\nsha256 = \"{sha256}\"\nrole = \"operator\"\n",
        port.number()
    ))
    .await;
    let _logs = ShowLogs(node.dir());
    let batch = json!({ "instances": [
        { "id": "a", "host": "10.0.0.1", "port": 80, "metadata": { "env": "prod", "v": "1" } },
        { "id": "b", "host": "10.0.0.2", "port": 80, "metadata": { "env": "test" } },
    ]});
    let web = "/v1/namespaces/default/services/web-shop/instances";
    assert_eq!(node.send("POST", web, &batch).await.json()["failed"], 0);
    let console = Console::sign_in(port.number(), &token).await;

    let names = |found: &Value, list: &str, key: &str| -> Vec<String> {
        found[list].as_array().unwrap().iter().map(|one| one[key].as_str().unwrap().to_owned()).collect()
    };
    for (query, services, instances) in [
        ("", &["web-shop"][..], &[][..]),
        ("q=SHOP+web", &["web-shop"], &[]),
        ("q=pay", &[], &[]),
        ("q=&namespace=other", &[], &[]),
        ("q=env%3Dprod", &[], &["default/a"]),
        ("q=env%3Dprod+v%3D2", &[], &[]),
        ("q=env%3Dtest+web", &[], &["default/b"]),
        ("q=env%3Dtest+pay", &[], &[]),
        ("namespace=%00bad", &[], &[]),
    ] {
        let found = console.get(&format!("/api/services?{query}")).await.json();
        assert_eq!(names(&found, "services", "name"), services, "{query}: {found}");
        assert_eq!(names(&found, "instances", "id"), instances, "{query}: {found}");
    }

    // Broken services come first, with any name.
    let late = "/v1/namespaces/default/services/zz-late/instances";
    let batch = json!({ "instances": [
        { "id": "z1", "host": "10.0.1.1", "port": 80 },
        { "id": "z2", "host": "10.0.1.2", "port": 80, "isolate": true },
    ]});
    assert_eq!(node.send("POST", late, &batch).await.json()["failed"], 0);
    let found = console.get("/api/services?").await.json();
    assert_eq!(names(&found, "services", "name"), ["zz-late", "web-shop"], "{found}");
    let found = console.get("/api/instances?service=default/zz-late").await.json();
    assert_eq!(names(&found, "instances", "id"), ["default/z2", "default/z1"], "{found}");

    // Clients see the effect of a command, which is also in the instance's history.
    let usable = async || node.get(&format!("{web}?usable")).await.json()["instances"].as_array().unwrap().len();
    assert_eq!(usable().await, 2);
    console.act(&json!({ "action": "isolate", "instance": "default/a" })).await;
    assert_eq!(usable().await, 1);
    let history = wait_until("the history", SOON, node.dir(), async || {
        let detail = console.get("/api/instance?id=default/a").await.json();
        assert_eq!(detail["instance"]["isolate"], true, "{detail}");
        detail["history"].as_array().filter(|history| !history.is_empty()).cloned()
    })
    .await;
    assert_eq!((&history[0]["from"]["isolate"], &history[0]["to"]["isolate"]), (&json!(false), &json!(true)));
    console.act(&json!({ "action": "restore", "instance": "default/a" })).await;
    console.act(&json!({ "action": "weight", "instance": "default/b", "weight": 0 })).await;
    assert_eq!(usable().await, 1, "one of them has no weight");
    console.act(&json!({ "action": "deregister", "instance": "default/b" })).await;
    assert_eq!(console.get("/api/instance?id=default/b").await.status, 404);
    let gone = console.post("/api/act", &json!({ "action": "isolate", "instance": "default/b" })).await;
    assert_eq!(gone.status, 404, "{gone:?}");
    console
        .until("the events", node.dir(), |state| {
            let events = state["events"].as_array()?;
            let told = |subject: &str, text: &str| {
                events.iter().any(|event| event["subject"] == subject && event["text"] == text)
            };
            (told("default/a", "was isolated") && told("default/b", "was deregistered")).then_some(())
        })
        .await;
    entries_are_found_and_rolled_back(&node, &console).await;
    eurekas_applications_are_shown(&node, &console).await;
}

/// Instances as Eureka's clients see them: those that are not UP first, with counts by image, zone and status, and their leases.
async fn eurekas_applications_are_shown(node: &RegistryNode, console: &Console) {
    for (app, id, status, zone) in [
        ("GOOD", "g1", "UP", "z1"),
        ("GOOD", "g2", "UP", "z2"),
        ("WEAK", "w1", "UP", "z1"),
        ("WEAK", "w2", "STARTING", "z1"),
    ] {
        let instance = json!({ "instance": {
            "instanceId": id, "hostName": id, "app": app, "ipAddr": "10.0.0.1", "status": status, "metadata": { "zone": zone },
            "statusPageUrl": format!("http://{id}/info"), "leaseInfo": { "renewalIntervalInSecs": 20 },
        }});
        assert_eq!(node.send("POST", &format!("/eureka/apps/{app}"), &instance).await.status, 204);
    }
    for _ in 0..3 {
        assert_eq!(node.ask("PUT", "/eureka/apps/GOOD/g1", &[], "").await.status, 200);
    }
    let shown = console.get("/api/eureka?namespace=default").await.json();
    let applications = shown["applications"].as_array().unwrap();
    let place = |name: &str| applications.iter().position(|application| application["name"] == name).unwrap();
    assert!(place("WEAK") < place("GOOD"), "{shown}");
    let weak = &applications[place("WEAK")];
    assert_eq!(weak["statuses"], json!({ "STARTING": 1, "UP": 1 }));
    assert_eq!((&weak["zones"], &weak["images"]), (&json!({ "z1": 2 }), &json!({ "": 2 })));
    let first = &weak["instances"][0];
    assert_eq!(
        (&first["id"], &first["status"], &first["page"]),
        (&json!("w2"), &json!("STARTING"), &json!("http://w2/info"))
    );
    assert_eq!(first["instance"], "default/eureka:w2@WEAK");
    // Four instances that renew every 20 seconds, of which one has renewed three times.
    assert_eq!((&shown["expected"], &shown["renewed"], &shown["protected"]), (&json!(12), &json!(3), &Value::Null));
    assert_eq!((&shown["servers"], console.get("/api/eureka?namespace=%00").await.status), (&json!([]), 404));
}

/// Configuration entries are for operators: lists, contents, versions, their difference, the audit log, a roll-back. No secret is shown.
async fn entries_are_found_and_rolled_back(node: &RegistryNode, console: &Console) {
    let at = |id: &str| format!("/v1/namespaces/shop/configs/g/{id}");
    for content in ["one\ntwo\n", "one\n2\n"] {
        assert_eq!(node.send("PUT", &at("App"), &json!({ "content": content })).await.status, 200);
    }
    for content in ["hunter1", "hunter2"] {
        let secret = json!({ "content": content, "secret": true });
        assert_eq!(node.send("PUT", &at("secret"), &secret).await.status, 200);
    }
    for (query, ids) in [
        ("namespace=shop", &["App", "secret"][..]),
        ("namespace=shop&q=app", &["App"]),
        ("namespace=shop&group=g&q=secret", &["secret"]),
        ("namespace=shop&group=other", &[]),
        ("namespace=default", &[]),
    ] {
        let found = console.get(&format!("/api/entries?{query}")).await;
        let list = found.json()["entries"].as_array().unwrap().clone();
        let found: Vec<&str> = list.iter().map(|one| one["id"].as_str().unwrap()).collect();
        assert_eq!(found, ids, "{query}");
    }
    let name = "namespace=shop&group=g&id=App";
    let detail = console.get(&format!("/api/entry?{name}")).await.json();
    assert_eq!((&detail["content"], &detail["entry"]["version"]), (&json!("one\n2\n"), &json!(2)));
    assert_eq!(detail["audit"][0]["action"], "publishConfig");
    let compared = console.get(&format!("/api/entry/compare?{name}&from=1&to=2")).await.json();
    let line = |change: &str, text: &str| json!({ "change": change, "text": text });
    assert_eq!(compared["lines"], json!([line("same", "one"), line("removed", "two"), line("added", "2")]));
    let secret = "namespace=shop&group=g&id=secret";
    for path in [format!("/api/entry?{secret}"), format!("/api/entry/compare?{secret}&from=1&to=2")] {
        let answer = console.get(&path).await;
        assert!(answer.status == 200 && !answer.body.contains("hunter"), "{path}: {answer:?}");
    }
    let stranger = Console { port: console.port, cookie: String::new() };
    assert_eq!(stranger.get(&format!("/api/entry?{name}")).await.status, 401);
    let entry = json!({ "namespace": "shop", "group": "g", "id": "App" });
    let back = json!({ "action": "roll_back", "entry": entry, "version": 1 });
    assert_eq!(stranger.post("/api/act", &back).await.status, 401);
    console.act(&back).await;
    let now = node.get(&at("App")).await.json();
    let found = [&now["content"], &now["version"], &now["restored"], &now["author"]];
    assert_eq!(found, [&json!("one\ntwo\n"), &json!(3), &json!(1), &json!("console")]);
    let detail = console.get(&format!("/api/entry?{name}")).await.json();
    assert_eq!(
        (&detail["audit"][0]["action"], &detail["audit"][0]["token"]),
        (&json!("rollBackConfig"), &json!("console"))
    );
    let missing = json!({ "action": "roll_back", "entry": entry, "version": 99 });
    assert_eq!(console.post("/api/act", &missing).await.status, 409);
}

/// Two clusters with a client each: commands for one never reach the other; a reload removes one and adds it again.
#[tokio::test]
async fn each_cluster_is_shown_and_acted_on_by_itself() {
    if only_kingpost() {
        return;
    }
    let (shop, billing) = futures_util::future::join(named("shop").start(), named("billing").start()).await;
    let (_shop_logs, _billing_logs) = (ShowLogs(shop.dir()), ShowLogs(billing.dir()));
    let (port, (token, entry)) = (Port::reserve(), token());
    let database = |name: &str, cluster: &str| {
        let mut table = Table::new();
        for (key, value) in [("name", name), ("dbname", "postgres"), ("cluster", cluster)] {
            table.insert(key.into(), value.into());
        }
        toml::Value::Table(table)
    };
    let both = || vec![database("s", "shop"), database("b", "billing")];
    let kingpost = Kingpost::of(&shop)
        .set("cluster.name", "shop")
        .add("clusters", further("billing", &billing, None))
        .set("proxy.databases", both())
        .set("console.listen", format!("127.0.0.1:{}", port.number()))
        .add("console.tokens", entry)
        .start()
        .await;
    let console = Console::sign_in(port.number(), &token).await;
    let logs = shop.dir();
    console
        .until("both primaries", logs, |state| {
            let known = |at: usize, name: &str| {
                state["clusters"][at]["name"] == name && state["clusters"][at]["primary"].is_string()
            };
            (known(0, "shop") && known(1, "billing") && state["cluster"]["name"] == "shop").then_some(())
        })
        .await;
    let connect = async |database: &str| {
        let mut config = kingpost.endpoint().config();
        config.dbname(database);
        let client = kingpost.endpoint().try_connect(&config).await.expect("a client");
        client.simple_query("SELECT 1").await.unwrap();
        client
    };
    let (of_shop, of_billing) = (connect("s").await, connect("b").await);
    // Each cluster's clients are its own.
    let clients =
        async |cluster: &str| console.get(&format!("/api/clients?cluster={cluster}")).await.json()["clients"].clone();
    let (shops, billings) = (clients("shop").await, clients("billing").await);
    assert_eq!((shops.as_array().unwrap().len(), &shops[0]["database"]), (1, &json!("s")));
    assert_eq!((billings.as_array().unwrap().len(), &billings[0]["database"]), (1, &json!("b")));
    // The other cluster does not know this client, nor this database.
    let kill = json!({ "action": "kill_client", "id": billings[0]["id"] });
    assert_eq!(console.post("/api/act?cluster=shop", &kill).await.status, 404);
    let pause = json!({ "action": "pause", "database": "b" });
    assert_eq!(console.post("/api/act?cluster=shop", &pause).await.status, 404);
    assert_eq!(console.post("/api/act?cluster=billing", &kill).await.status, 200);
    wait_until("the client's end", SOON, logs, async || of_billing.is_closed().then_some(())).await;
    // All of billing is paused, and shop's clients go on.
    assert_eq!(console.post("/api/act?cluster=billing", &json!({ "action": "pause" })).await.status, 200);
    of_shop.simple_query("SELECT 1").await.expect("shop's client goes on");
    // Removed, and added again.
    kingpost.reload("clusters", Vec::<toml::Value>::new());
    kingpost.reload("proxy.databases", vec![database("s", "shop")]);
    console.until("billing to go", logs, |state| (state["clusters"].as_array()?.len() == 1).then_some(())).await;
    assert_eq!(console.get("/api/state?cluster=billing").await.status, 404);
    assert_eq!(console.post("/api/act?cluster=billing", &json!({ "action": "pause" })).await.status, 404);
    of_shop.simple_query("SELECT 1").await.expect("nothing reached shop");
    kingpost.reload("proxy.databases", both());
    kingpost.reload("clusters", vec![toml::Value::Table(further("billing", &billing, None))]);
    console
        .until("billing to be there again", logs, |state| state["clusters"][1]["primary"].is_string().then_some(()))
        .await;
    assert_eq!(console.get("/api/state?cluster=billing").await.json()["cluster"]["name"], "billing");
}

/// Part of `make console-test`, and of `make test` if a Chromium is installed.
#[tokio::test]
async fn in_a_browser() {
    let wanted = std::env::var_os("KINGPOST_TESTS_BROWSER").is_some();
    let there = |program: &str| {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|dir| dir.join(program).exists())
    };
    if only_kingpost() {
        return;
    }
    if !wanted && !["chromium-headless-shell", "chromium"].into_iter().any(there) {
        skipped("no Chromium here; make console-test installs one");
        return;
    }
    let dir = new_dir("web");
    // The servers may run as another user.
    std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let cluster = dir.join("cluster");
    let mut up = Command::new(kingpost_bin())
        .arg("up")
        .arg("--dir")
        .arg(&cluster)
        .args(["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0"])
        .args(["--console-listen", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("kingpost up");
    let mut lines = BufReader::new(up.stdout.take().unwrap()).lines();
    within("the cluster's start", Duration::from_secs(120), &cluster, async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line == "ready" {
                return;
            }
        }
        panic!("up ended");
    })
    .await;
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let directory = cluster.to_str().unwrap().to_owned();
    let status = Kingpost::run(&["status", "--json", "--dir", &directory]);
    let status: Value = serde_json::from_slice(&status.stdout).expect("a status");
    // Its agent would start it again.
    let paused = Kingpost::run(&["node", "--pause", "--directory", cluster.join("nodes/node3").to_str().unwrap()]);
    assert!(paused.status.success(), "{paused:?}");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/browser/console.mjs");
    let run = Command::new("node")
        .arg(script)
        .env("CONSOLE_URL", format!("http://{}", status["console"].as_str().unwrap()))
        .env("CONSOLE_TOKEN", std::fs::read_to_string(cluster.join("console.token")).unwrap().trim())
        .env("PROXY", status["proxy"][0].as_str().unwrap())
        .env("REGISTRY_URL", format!("http://{}", status["registry"].as_str().unwrap()))
        .env("REPLICA_PID_FILE", cluster.join("nodes/node3/data/postmaster.pid"))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(240), run).await.expect("the browser's test ends").unwrap();
    let down = Kingpost::run(&["down", "--dir", &directory]);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    assert!(down.status.success(), "{down:?}");
    let _ = up.wait().await;
}
