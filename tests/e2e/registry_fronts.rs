//! Every field of Consul's and Eureka's structures is honoured or refused, never dropped; and no client of Consul's spins.

use std::io::Read;

use kingpost_tests::{HttpResponse, RegistryNode, SOON, ShowLogs, wait_until, within};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Treatment of a field.
enum Field {
    /// A part of `/v1/health/service` shows it.
    Shown(&'static str),
    Refused,
    /// No effect here; `wire.rs` has the reason.
    NoEffect,
}

/// True if a value is shown; of an object all its entries, perhaps beside others.
fn holds(shown: &Value, value: &Value) -> bool {
    match (shown.as_object(), value.as_object()) {
        (Some(shown), Some(value)) => value.iter().all(|(key, part)| shown.get(key) == Some(part)),
        _ => shown == value,
    }
}

#[tokio::test]
async fn every_field_of_consuls_structures_is_honoured_or_refused() {
    use Field::*;
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let service: &[(&str, Value, Field)] = &[
        ("Tags", json!(["a"]), Shown("/0/Service/Tags")),
        ("Port", json!(81), Shown("/0/Service/Port")),
        ("Address", json!("10.9.9.9"), Shown("/0/Service/Address")),
        (
            "TaggedAddresses",
            json!({ "lan": { "Address": "10.1.1.1", "Port": 1 } }),
            Shown("/0/Service/TaggedAddresses"),
        ),
        ("EnableTagOverride", json!(true), Shown("/0/Service/EnableTagOverride")),
        ("Meta", json!({ "k": "v" }), Shown("/0/Service/Meta")),
        ("Weights", json!({ "Passing": 7, "Warning": 3 }), Shown("/0/Service/Weights")),
        ("Locality", json!({ "Region": "r", "Zone": "z" }), Shown("/0/Service/Locality")),
        ("Kind", json!("connect-proxy"), Refused),
        ("Proxy", json!({ "DestinationServiceName": "x" }), Refused),
        ("Connect", json!({ "Native": true }), Refused),
        ("SocketPath", json!("/run/x"), Refused),
        ("Ports", json!([{ "Name": "p", "Port": 1 }]), Refused),
        ("Namespace", json!("other"), Refused),
        ("Partition", json!("other"), Refused),
    ];
    let check: &[(&str, Value, Field)] = &[
        ("CheckID", json!("own"), Shown("/0/Checks/0/CheckID")),
        ("Name", json!("up"), Shown("/0/Checks/0/Name")),
        ("Notes", json!("why"), Shown("/0/Checks/0/Notes")),
        ("Status", json!("warning"), Shown("/0/Checks/0/Status")),
        ("Interval", json!("77s"), Shown("/0/Checks/0/Definition/Interval")),
        ("Timeout", json!("7s"), Shown("/0/Checks/0/Definition/Timeout")),
        ("Method", json!("GET"), NoEffect),
        ("DisableRedirects", json!(true), Shown("/0/Checks/0/Definition/DisableRedirects")),
        ("OutputMaxSize", json!(4096), NoEffect),
        ("TLSSkipVerify", json!(true), Shown("/0/Checks/0/Definition/TLSSkipVerify")),
        ("Method", json!("POST"), Shown("/0/Checks/0/Definition/Method")),
        ("Header", json!({ "Authorization": ["x"] }), Shown("/0/Checks/0/Definition/Header")),
        ("Body", json!("x"), Shown("/0/Checks/0/Definition/Body")),
        ("Args", json!(["sh"]), Refused),
        ("DockerContainerID", json!("c"), Refused),
        ("TCP", json!("127.0.0.1:1"), Refused),
        ("TCPUseTLS", json!(true), Refused),
        ("UDP", json!("127.0.0.1:1"), Refused),
        ("TLSServerName", json!("x"), Refused),
        ("GRPCUseTLS", json!(true), Refused),
        ("H2PING", json!("127.0.0.1:1"), Refused),
        ("AliasNode", json!("n"), Refused),
        ("AliasService", json!("s"), Refused),
        ("OSService", json!("s"), Refused),
        ("FailuresBeforeWarning", json!(2), Refused),
    ];
    let catalog: &[(&str, Value, Field)] = &[
        ("ID", json!("00000000-0000-0000-0000-000000000001"), Shown("/0/Node/ID")),
        ("Node", json!("n7"), Shown("/0/Node/Node")),
        ("Address", json!("10.0.0.7"), Shown("/0/Node/Address")),
        ("TaggedAddresses", json!({ "lan": "10.0.0.8", "wan": "1.2.3.4" }), Shown("/0/Node/TaggedAddresses")),
        ("NodeMeta", json!({ "rack": "1" }), Shown("/0/Node/Meta")),
        ("Datacenter", json!("dc1"), NoEffect),
        ("SkipNodeUpdate", json!(true), NoEffect),
        ("Datacenter", json!("dc2"), Refused),
        ("Partition", json!("other"), Refused),
        ("Locality", json!({ "Region": "r" }), Refused),
    ];
    let mut wrong = Vec::new();
    for (part, fields) in [("service", service), ("check", check), ("catalog", catalog)] {
        for (number, (field, value, expected)) in fields.iter().enumerate() {
            let name = format!("{part}-{number}");
            let mut sent = json!({ "Name": name });
            let path = match part {
                "service" => {
                    sent[field] = value.clone();
                    "/v1/agent/service/register"
                }
                "check" => {
                    sent["Check"] = json!({ "HTTP": "http://127.0.0.1:1/", "Interval": "60s" });
                    sent["Check"][field] = value.clone();
                    "/v1/agent/service/register"
                }
                _ => {
                    let service = json!({ "Service": name, "Address": "10.9.9.9" });
                    sent = json!({ "Node": "n1", "Address": "10.0.0.1", "Service": service });
                    sent[field] = value.clone();
                    "/v1/catalog/register"
                }
            };
            let answer = node.send("PUT", path, &sent).await;
            let good = match expected {
                Refused => answer.status == 400,
                NoEffect => answer.status == 200,
                Shown(pointer) => {
                    let shown = node.get(&format!("/v1/health/service/{name}")).await.json();
                    answer.status == 200 && shown.pointer(pointer).is_some_and(|shown| holds(shown, value))
                }
            };
            if !good {
                wrong.push(format!("{part}.{field} = {value}: {} {}", answer.status, answer.body.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Renders an instance of Eureka as XML: attributes for `@name`, text for `$`.
fn xml(name: &str, value: &Value) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let Some(map) = value.as_object() else { return format!("<{name}>{}</{name}>", text(value)) };
    let attributes = map.iter().filter_map(|(key, value)| Some((key.strip_prefix('@')?, text(value))));
    let attributes: String = attributes.map(|(key, value)| format!(" {key}=\"{value}\"")).collect();
    let inner = map.iter().filter(|(key, _)| !key.starts_with('@'));
    let inner: String = inner.map(|(key, value)| if key == "$" { text(value) } else { xml(key, value) }).collect();
    format!("<{name}{attributes}>{inner}</{name}>")
}

#[tokio::test]
async fn every_field_of_eurekas_structures_is_honoured_or_refused_in_json_and_xml() {
    use Field::*;
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let center =
        json!({ "@class": "com.netflix.appinfo.AmazonInfo", "name": "Amazon", "metadata": { "ami-id": "i1" } });
    let fields: &[(&str, Value, Field)] = &[
        ("instanceId", json!("id-7"), Shown("/instanceId")),
        ("hostName", json!("a.example"), Shown("/hostName")),
        ("ipAddr", json!("10.7.7.7"), Shown("/ipAddr")),
        ("sid", json!("s7"), Shown("/sid")),
        ("appGroupName", json!("GROUP"), Shown("/appGroupName")),
        ("port", json!({ "$": 8081, "@enabled": "true" }), Shown("/port")),
        ("port", json!({ "$": 8081, "@enabled": "false" }), Shown("/port")),
        ("securePort", json!({ "$": 8443, "@enabled": "true" }), Shown("/securePort")),
        ("homePageUrl", json!("http://a/"), Shown("/homePageUrl")),
        ("statusPageUrl", json!("http://a/s"), Shown("/statusPageUrl")),
        ("healthCheckUrl", json!("http://a/h"), Shown("/healthCheckUrl")),
        ("secureHealthCheckUrl", json!("https://a/h"), Shown("/secureHealthCheckUrl")),
        ("vipAddress", json!("vip"), Shown("/vipAddress")),
        ("secureVipAddress", json!("svip"), Shown("/secureVipAddress")),
        ("countryId", json!(49), Shown("/countryId")),
        ("dataCenterInfo", center, Shown("/dataCenterInfo")),
        ("status", json!("STARTING"), Shown("/status")),
        ("overriddenstatus", json!("OUT_OF_SERVICE"), Shown("/overriddenStatus")),
        ("isCoordinatingDiscoveryServer", json!("true"), NoEffect),
        ("metadata", json!({ "zone": "a", "management.port": "1" }), Shown("/metadata")),
        ("lastDirtyTimestamp", json!("1700000000000"), Shown("/lastDirtyTimestamp")),
        ("asgName", json!("asg"), Shown("/asgName")),
        ("leaseInfo.renewalIntervalInSecs", json!(7), Shown("/leaseInfo/renewalIntervalInSecs")),
        ("leaseInfo.durationInSecs", json!(77), Shown("/leaseInfo/durationInSecs")),
        ("leaseInfo.registrationTimestamp", json!(1), NoEffect),
        ("leaseInfo.lastRenewalTimestamp", json!(1), NoEffect),
        ("leaseInfo.renewalTimestamp", json!(1), NoEffect),
        ("leaseInfo.evictionTimestamp", json!(1), NoEffect),
        ("leaseInfo.serviceUpTimestamp", json!(1), NoEffect),
        ("lastUpdatedTimestamp", json!("1"), NoEffect),
        ("actionType", json!("ADDED"), NoEffect),
        ("app", json!("OTHER"), Refused),
        ("port", json!({ "$": 99999, "@enabled": "true" }), Refused),
        ("status", json!("FINE"), Refused),
        ("overriddenstatus", json!("FINE"), Refused),
        ("countryId", json!("Utopia"), Refused),
        ("dataCenterInfo", json!("MyOwn"), Refused),
        ("metadata", json!("a=b"), Refused),
        ("leaseInfo", json!("30"), Refused),
        ("leaseInfo.durationInSecs", json!("soon"), Refused),
        ("lastDirtyTimestamp", json!("yesterday"), Refused),
        ("homePageUrl", json!({ "a": "b" }), Refused),
    ];
    let mut wrong = Vec::new();
    for (number, (field, value, expected)) in fields.iter().enumerate() {
        for form in ["json", "xml"] {
            let app = format!("APP{number}{}", form.to_uppercase());
            let mut sent = json!({ "hostName": "h", "ipAddr": "10.0.0.1", "port": { "$": 80, "@enabled": "true" } });
            match field.split_once('.') {
                Some((part, field)) => sent[part] = json!({ field: value }),
                None => sent[field] = value.clone(),
            }
            let (kind, body) = match form {
                "json" => ("application/json", json!({ "instance": sent }).to_string()),
                _ => ("application/xml", xml("instance", &sent)),
            };
            let answer = node.ask("POST", &format!("/eureka/apps/{app}"), &[("Content-Type", kind)], &body).await;
            let good = match expected {
                Refused => answer.status == 400 && !answer.body.trim().is_empty(),
                NoEffect => answer.status == 204,
                Shown(pointer) => {
                    let path = format!("/eureka/apps/{app}");
                    let shown = node.ask("GET", &path, &[("Accept", "application/json")], "").await;
                    let shown = serde_json::from_str::<Value>(&shown.body).unwrap_or_default();
                    let shown = shown["application"]["instance"][0].pointer(pointer);
                    answer.status == 204 && shown == Some(value)
                }
            };
            if !good {
                wrong.push(format!("{field} = {value} in {form}: {} {}", answer.status, answer.body.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn consuls_clients_do_not_spin() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    // 404 would mean "nothing there": a watching client comes back at once. (Keys are watched: `registry_kv`.)
    for absent in ["/v1/config", "/v1/agent/metrics", "/v1/agent/connect/ca/roots"] {
        assert_eq!(node.get(absent).await.status, 501, "{absent}");
    }
    for empty in ["/v1/catalog/connect/a", "/v1/catalog/gateway-services/a", "/v1/health/connect/a"] {
        let answer = node.get(empty).await;
        assert!(answer.body.trim() == "[]" && answer.header("x-consul-index").is_some(), "{empty}: {answer:?}");
    }
    let missing = node.get("/v1/kv/a?recurse=").await;
    assert!(missing.status == 404 && missing.header("x-consul-index").is_some(), "{missing:?}");
    let register = async |port: u16| {
        let sent = json!({ "ID": "w", "Name": "web", "Port": port });
        node.send("PUT", "/v1/agent/service/register", &sent).await.status
    };
    assert_eq!(register(1).await, 200);
    let first = node.get("/v1/agent/service/w").await;
    let hash = first.header("x-consul-contenthash").expect("a hash").to_owned();
    // Go's watch takes the hash from the body.
    assert_eq!(first.json()["ContentHash"], json!(hash));
    let path = format!("/v1/agent/service/w?hash={hash}&wait=60s");
    let (second, changed) = tokio::join!(node.get(&path), async {
        wait_until("the request to wait", SOON, node.dir(), async || {
            (node.metrics().await.sum("kingpost_registry_watchers", &[]) >= 1.0).then_some(())
        })
        .await;
        // A request that waits for the service's description does not wait for its health.
        let isolate = node.send("PUT", "/v1/agent/service/maintenance/w?enable=true", &json!({})).await.status;
        assert_eq!(isolate, 200);
        register(2).await
    });
    assert_eq!((changed, &second.json()["Port"]), (200, &json!(2)));
    assert_ne!(second.header("x-consul-contenthash"), Some(hash.as_str()));
    let again = node.get("/v1/agent/service/w?hash=other").await;
    assert_eq!(again.header("x-consul-contenthash"), second.header("x-consul-contenthash"), "at once");
}

/// A request that waits since the registry was empty is woken by the first change of all.
#[tokio::test]
async fn the_first_change_of_all_wakes_who_waits_for_it() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let paths = [
        ("/v1/catalog/services", "web"),
        ("/v1/catalog/nodes", "\"Node\":\"127.0.0.1\""),
        ("/v1/health/state/any", "service:w"),
        ("/v1/health/service/web", "service:w"),
        ("/v1/catalog/service/web", "\"ServiceID\":\"w\""),
    ];
    let index = |answer: &HttpResponse| answer.header("x-consul-index").unwrap().parse::<u64>().unwrap();
    let mut before = Vec::new();
    for (path, shown) in paths {
        let answer = node.get(path).await;
        assert!(!answer.body.contains(shown), "{path}: {answer:?}");
        before.push(index(&answer));
    }
    let sent = json!({ "ID": "w", "Name": "web", "Port": 1, "Check": { "TTL": "600s" } });
    assert_eq!(node.send("PUT", "/v1/agent/service/register", &sent).await.status, 200);
    for ((path, shown), before) in paths.iter().zip(before) {
        let asked = format!("{path}?index={before}&wait=600s");
        let answer = within(path, SOON, node.dir(), node.get(&asked)).await;
        assert!(index(&answer) > before && answer.body.contains(shown), "{path}: {answer:?}");
        // It is not answered twice: the returned index is one to wait with.
        let again = format!("{path}?index={}&wait=1ms", index(&answer));
        assert_eq!(index(&node.get(&again).await), index(&answer), "{path}");
    }
}

/// The list of all applications equals the sum of the single ones, also after changes and for two services of one application.
#[tokio::test]
async fn eurekas_applications_are_the_sum_of_each() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let json = [("Accept", "application/json")];
    for round in 0..3 {
        for (app, id) in [("ONE", "a"), ("ONE", "b"), ("TWO", "a")] {
            let instance = json!({ "instanceId": format!("{id}{round}"), "hostName": "h<1", "ipAddr": "10.0.0.1", "port": { "$": 80, "@enabled": "true" } });
            let answer = node.send("POST", &format!("/eureka/apps/{app}"), &json!({ "instance": instance })).await;
            assert_eq!(answer.status, 204, "{}", answer.body);
        }
        // The same application by another front, in upper case.
        let native = json!({ "host": "10.0.0.9", "port": 9, "isolate": true });
        let path = format!("/v1/namespaces/default/services/ONE/instances/n{round}");
        assert_eq!(node.send("PUT", &path, &native).await.status, 201);
        let all = node.ask("GET", "/eureka/apps", &json, "").await.json()["applications"].clone();
        let code = format!("OUT_OF_SERVICE_{}_UP_{}_", round + 1, 3 * (round + 1));
        assert_eq!(all["apps__hashcode"], code.as_str());
        let names: Vec<_> = all["application"].as_array().unwrap().iter().map(|app| app["name"].clone()).collect();
        assert_eq!(names, ["ONE", "TWO"]);
        assert_eq!(all["application"][0]["instance"].as_array().unwrap().len(), 3 * (round + 1));
        let two = node.ask("GET", "/eureka/apps/TWO", &json, "").await.json()["application"].clone();
        assert_eq!(all["application"][1], two);
        let xml = node.get("/eureka/apps").await.body;
        let two = node.get("/eureka/apps/TWO").await.body;
        let part = two.split_once("?>").unwrap().1;
        assert!(part.starts_with("<application>") && xml.contains(part), "{xml}");
        assert!(xml.ends_with("</versions__delta></applications>") && xml.contains("h&lt;1"), "{xml}");
    }
    assert_eq!(node.ask("DELETE", "/eureka/apps/TWO/a0", &[], "").await.status, 200);
    let all = node.ask("GET", "/eureka/apps", &json, "").await.json();
    assert_eq!(all["applications"]["application"][1]["instance"].as_array().unwrap().len(), 2);
    let delta = node.ask("GET", "/eureka/apps/delta", &json, "").await.json();
    assert_eq!(delta["applications"]["apps__hashcode"], all["applications"]["apps__hashcode"]);
}

/// Returns the unpacked body of a GET by a client that accepts gzip.
async fn unpacked(node: &RegistryNode, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", node.port())).await.unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    within(path, SOON, node.dir(), stream.read_to_end(&mut answer)).await.unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    assert!(head.contains("content-encoding: gzip") && head.contains("vary: accept-encoding"), "{path}: {head}");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&answer[end..]).read_to_string(&mut text).expect("a gzip stream");
    text
}

/// A service's list is cached in pieces of its instances. A filter that matches all of them goes through all each time.
#[tokio::test]
async fn what_is_kept_of_a_long_service_is_what_looking_through_it_gives() {
    const MANY: usize = 300;
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let web = |ns: &str| format!("/v1/namespaces/{ns}/services/web/instances");
    for ns in ["default", "other"] {
        let instance = |n: usize| {
            let health = ["passing", "warning", "critical"][n % 3];
            json!({ "service": "web", "id": format!("i{n:03}"), "host": format!("{ns}-{n}"), "port": 1, "version": "v", "health": health })
        };
        let all: Vec<Value> = (0..MANY).map(instance).collect();
        let answer = node.send("POST", &format!("/v1/namespaces/{ns}/instances"), &json!({ "instances": all })).await;
        assert_eq!(answer.json()["failed"], 0, "{}", answer.body);
    }
    let look = async |changes: usize| {
        for (ns, stranger) in [("default", "other-"), ("other", "default-")] {
            let nacos = format!("/nacos/v1/ns/instance/list?serviceName=web&namespaceId={ns}");
            for (kept, looked, part, count) in [
                (format!("{}?", web(ns)), "&version=v", "/instances", MANY),
                (format!("/v1/health/service/web?ns={ns}"), "&filter=Service.Port==1", "", MANY),
                (format!("/v1/health/service/web?passing&ns={ns}"), "&filter=Service.Port==1", "", MANY / 3),
                (format!("/v1/health/checks/web?ns={ns}"), "&filter=ServiceName==web", "", MANY - MANY / 3),
                (format!("/v1/catalog/service/web?ns={ns}"), "&filter=ServicePort==1", "", MANY),
                (nacos.clone(), "&clusters=DEFAULT", "/hosts", MANY),
                (format!("{nacos}&healthyOnly=true"), "&clusters=DEFAULT", "/hosts", MANY - MANY / 3),
            ] {
                let list = |text: &str| serde_json::from_str::<Value>(text).expect(text).pointer(part).cloned();
                let first = node.get(&kept).await.body;
                assert!(!first.contains(stranger), "{kept}: another namespace's instance");
                let found = list(&first);
                assert_eq!(found.as_ref().and_then(Value::as_array).map(Vec::len), Some(count), "{kept}");
                assert_eq!(found, list(&node.get(&format!("{kept}{looked}")).await.body), "{kept}: looked through");
                assert_eq!(found, list(&node.get(&kept).await.body), "{kept}: again");
                assert_eq!(found, list(&unpacked(&node, &kept).await), "{kept}: compressed");
                assert_eq!(found, list(&unpacked(&node, &kept).await), "{kept}: compressed, again");
                // Checks do not have an instance's location.
                let moved = changes > 0 && ns == "default" && !kept.contains("/checks/");
                assert_eq!(first.contains("moved-"), moved, "{kept}: after {changes} changes");
            }
        }
    };
    look(0).await;
    // Instances in the first piece, in the middle and in the last one, one at a time; all of them passing.
    for (changes, n) in [0, 150, 297].into_iter().enumerate() {
        let moved = json!({ "host": format!("moved-{n}"), "port": 1, "version": "v" });
        assert_eq!(node.send("PUT", &format!("{}/i{n:03}", web("default")), &moved).await.status, 200);
        look(changes + 1).await;
    }
}

/// Asks the DNS server for the addresses of a name, and returns the records' data: the last four bytes of each.
async fn addresses(node: &RegistryNode, name: &str) -> Vec<[u8; 4]> {
    let mut question = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        question.push(u8::try_from(label.len()).unwrap());
        question.extend_from_slice(label.as_bytes());
    }
    question.extend_from_slice(&[0, 0, 1, 0, 1]);
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(("127.0.0.1", node.dns_port())).await.unwrap();
    socket.send(&question).await.unwrap();
    let mut answer = vec![0; 512];
    let length = within("an answer of DNS", SOON, node.dir(), socket.recv(&mut answer)).await.unwrap();
    // Each record: a pointer to the name, type, class, time to live, length, address.
    answer[question.len()..length].chunks_exact(16).map(|record| record[12..].try_into().unwrap()).collect()
}

/// The fronts that let traffic go to 10.0.0.`last`, registered as `id`.
async fn fronts_with(node: &RegistryNode, id: &str, last: u8) -> Vec<&'static str> {
    let host = format!("10.0.0.{last}");
    let found = |list: &Value, of: &dyn Fn(&Value) -> bool| list.as_array().is_some_and(|list| list.iter().any(of));
    let mut with = Vec::new();
    let mut add = |front, has: bool| with.extend(has.then_some(front));
    let usable = node.get("/v1/namespaces/default/services/web/instances?usable=true").await.json();
    add("native", found(&usable["instances"], &|one| one["host"] == *host));
    let passing = node.get("/v1/health/service/web?passing").await.json();
    add("consul", found(&passing, &|one| one["Service"]["Address"] == *host));
    let every = node.get("/v1/health/service/web").await.json();
    let passes = |check: &Value| check["Status"] == "passing";
    let all_pass = |one: &Value| one["Checks"].as_array().unwrap().iter().all(passes);
    add("consul's checks", found(&every, &|one| one["Service"]["Address"] == *host && all_pass(one)));
    add("consul's agent", node.get(&format!("/v1/agent/health/service/id/{id}")).await.status == 200);
    let apps = node.ask("GET", "/eureka/apps/WEB", &[("Accept", "application/json")], "").await.json();
    let up = |one: &Value| one["ipAddr"] == *host && one["status"] == "UP";
    add("eureka", found(&apps["application"]["instance"], &up));
    let hosts = node.get("/nacos/v1/ns/instance/list?serviceName=web&namespaceId=default").await.json();
    let drawn = |one: &Value| {
        one["ip"] == *host && one["weight"].as_f64() > Some(0.0) && one["enabled"] == true && one["healthy"] == true
    };
    add("nacos", found(&hosts["hosts"], &drawn));
    let asked = json!({ "type": "INSTANCE", "service": { "name": "web", "namespace": "default" } });
    let polaris = node.send("POST", "/v1/Discover", &asked).await.json();
    let weighed = |one: &Value| {
        one["host"] == *host && one["weight"].as_u64() > Some(0) && one["isolate"] == false && one["healthy"] == true
    };
    add("polaris", found(&polaris["instances"], &weighed));
    let targets = node.get("/prometheus/targets?namespace=default").await.json();
    add("prometheus", found(&targets, &|one| one["targets"][0].as_str().unwrap().starts_with(&host)));
    add("dns", addresses(node, "web.service.consul").await.contains(&[10, 0, 0, last]));
    with
}

/// Weight 0 has one meaning, which each front says as its clients understand it. (For xDS: `api::xds::endpoints`.)
#[tokio::test]
async fn weight_zero_is_no_traffic_at_every_front() {
    let node = RegistryNode::start("[registry.dns]\nlisten = \"127.0.0.1:0\"").await;
    let _logs = ShowLogs(node.dir());
    let every =
        ["native", "consul", "consul's checks", "consul's agent", "eureka", "nacos", "polaris", "prometheus", "dns"];
    for (id, host, weight) in [("none", "10.0.0.1", 0), ("some", "10.0.0.2", 1)] {
        let path = format!("/v1/namespaces/default/services/web/instances/{id}");
        let sent = json!({ "host": host, "port": 80, "weight": weight });
        assert_eq!(node.send("PUT", &path, &sent).await.status, 201);
    }
    assert_eq!(fronts_with(&node, "none", 1).await, [""; 0]);
    assert_eq!(fronts_with(&node, "some", 2).await, every);
    let shown = node.ask("GET", "/eureka/apps/WEB", &[("Accept", "application/json")], "").await;
    assert!(shown.body.contains("OUT_OF_SERVICE"), "{}", shown.body);
    let again = json!({ "host": "10.0.0.1", "port": 80, "weight": 100 });
    assert!(node.send("PUT", "/v1/namespaces/default/services/web/instances/none", &again).await.status < 300);
    assert_eq!(fronts_with(&node, "none", 1).await, every);
    // Consul refuses it.
    let sent = json!({ "Name": "api", "Weights": { "Passing": 0, "Warning": 1 } });
    let answer = node.send("PUT", "/v1/agent/service/register", &sent).await;
    assert!(
        answer.status == 400 && answer.body.contains("a weight from 1 to 65535"),
        "{} {}",
        answer.status,
        answer.body
    );
}

/// As at Polaris: deregistering what is gone succeeds, and services are listed over all namespaces, with a revision of the list.
#[tokio::test]
async fn polaris_lists_services_of_all_namespaces_and_says_when_nothing_is_new() {
    let (secret, table) = crate::registry_walls::token_of("two", &["default", "shop"]);
    let (other, others) = crate::registry_walls::token_of("three", &["default", "shop", "hidden"]);
    let node = RegistryNode::start(&format!("auth = \"tokens\"\n{table}{others}")).await;
    let _logs = ShowLogs(node.dir());
    let post = async |token: &str, path: &str, body: Value| {
        let headers = [("Content-Type", "application/json"), ("X-Polaris-Token", token)];
        let answer = node.ask("POST", path, &headers, &body.to_string()).await;
        (answer.json()["code"].as_u64().unwrap(), answer.json())
    };
    let register = async |namespace: &str, name: &str, port: u16| {
        let sent = json!({ "namespace": namespace, "service": name, "host": "10.0.0.1", "port": port });
        assert_eq!(post(&other, "/v1/RegisterInstance", sent).await.0, 200_000);
    };
    for (namespace, name) in [("default", "web"), ("shop", "web"), ("shop", "cart"), ("hidden", "vault")] {
        register(namespace, name, 80).await;
    }
    let list = async |token: &str, namespace: &str, revision: &str| {
        let service = json!({ "namespace": namespace, "revision": revision });
        let (code, answer) = post(token, "/v1/Discover", json!({ "type": "SERVICES", "service": service })).await;
        let services = answer["services"].as_array().unwrap();
        let name = |one: &Value| format!("{}/{}", one["namespace"].as_str().unwrap(), one["name"].as_str().unwrap());
        let names: Vec<String> = services.iter().map(name).collect();
        (code, names, answer["service"]["revision"].as_str().unwrap_or_default().to_owned())
    };
    let (code, names, revision) = list(&secret, "", "").await;
    assert_eq!((code, names.join(" ")), (200_000, "default/web shop/cart shop/web".to_owned()));
    assert!(!revision.is_empty());
    // Instances that come and go, and services that the caller may not see, are nothing new in the list.
    register("shop", "web", 81).await;
    register("hidden", "second", 80).await;
    assert_eq!(list(&secret, "", &revision).await, (200_001, vec![], revision.clone()));
    assert_eq!(list(&secret, "shop", &revision).await.0, 200_000, "another list");
    register("shop", "pay", 80).await;
    let (code, names, later) = list(&secret, "", &revision).await;
    assert_eq!((code, names.len()), (200_000, 4));
    assert_ne!(later, revision);
    assert_eq!(list(&other, "", "").await.1.len(), 6);
    assert_eq!(list(&secret, "hidden", "").await.0, 401_001, "a namespace of others");

    let web = json!({ "namespace": "shop", "service": "web", "host": "10.0.0.1", "port": 81 });
    for time in 1..3 {
        let (code, answer) = post(&secret, "/v1/DeregisterInstance", web.clone()).await;
        assert_eq!((code, &answer["instance"]["port"]), (200_000, &json!(81)), "time {time}");
    }
    assert_eq!(post(&secret, "/v1/Heartbeat", web).await.0, 400_202, "so that a client registers again");
}
