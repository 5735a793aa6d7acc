//! `kingpost registry import`: from JSON lines, or from a running Consul or Eureka. The registry does not write an instance that it has unchanged.

use std::io::{BufRead, Read};
use std::path::Path;

use hyper::Method;
use registry::NamespaceName;
use registry::api::identity;
use serde_json::{Map, Value, json};

use super::client::{BATCH, LONGEST, all_done, report};
use super::configs;
use crate::args::ImportArgs;
use process::Failure;
use process::http::{Remote, segment};
use process::terminal;

/// Most services of a Consul.
const MOST_SERVICES: usize = 100_000;

pub(crate) async fn run(remote: &Remote, args: &ImportArgs) -> Result<(), Failure> {
    let mut batches =
        Batches { remote, namespace: String::new(), waiting: Vec::new(), sent: 0, failed: 0, same: 0, entries: [0; 2] };
    match (&args.from_consul, &args.from_eureka) {
        (Some(url), _) => consul(url, args, &mut batches).await?,
        (None, Some(url)) => eureka(url, args, &mut batches).await?,
        (None, None) => lines(args.file.as_deref(), &mut batches).await?,
    }
    batches.send().await?;
    let Batches { sent, failed, same, entries: [published, there], .. } = batches;
    terminal::note(format_args!("{} of {sent} instances registered, {same} of them were there already", sent - failed));
    if published + there > 0 {
        terminal::note(format_args!("{published} configuration entries published, {there} were there already"));
    }
    all_done(failed)
}

/// Instances to be sent in batches, each of one namespace.
struct Batches<'a> {
    remote: &'a Remote,
    namespace: String,
    waiting: Vec<Value>,
    sent: u64,
    failed: u64,
    same: u64,
    /// Numbers of configuration entries that were published, and that were there already.
    entries: [u64; 2],
}

impl Batches<'_> {
    async fn push(&mut self, namespace: &str, instance: Value) -> Result<(), Failure> {
        if self.waiting.len() >= BATCH || (self.namespace != namespace && !self.waiting.is_empty()) {
            self.send().await?;
        }
        if self.namespace != namespace {
            namespace.clone_into(&mut self.namespace);
        }
        self.waiting.push(instance);
        Ok(())
    }

    async fn send(&mut self) -> Result<(), Failure> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        self.sent += self.waiting.len() as u64;
        let body = json!({ "instances": std::mem::take(&mut self.waiting) });
        let path = format!("/v1/namespaces/{}/instances", segment(&self.namespace));
        let answer = self.remote.ask(Method::POST, &path, Some(&body)).await?;
        let rows = answer["results"].as_array().into_iter().flatten();
        self.same += rows.filter(|row| row["outcome"] == "unchanged").count() as u64;
        self.failed += report(&answer);
        Ok(())
    }
}

async fn lines(file: Option<&Path>, batches: &mut Batches<'_>) -> Result<(), Failure> {
    let mut input: Box<dyn BufRead> = match file {
        Some(path) => {
            let file = std::fs::File::open(path).map_err(|error| Failure::path("read", path, &error))?;
            Box::new(std::io::BufReader::new(file))
        }
        None => Box::new(std::io::BufReader::new(std::io::stdin())),
    };
    let mut number = 0_u64;
    let mut line = String::new();
    loop {
        line.clear();
        number += 1;
        let read = (&mut input).take(LONGEST as u64).read_line(&mut line);
        if read.map_err(|error| Failure::runtime(format!("line {number}: {error}")))? == 0 {
            return Ok(());
        }
        let text = line.trim();
        if text.is_empty() {
            continue;
        }
        let (namespace, instance) =
            parse_line(text).map_err(|why| Failure::runtime(format!("line {number}: {why}")))?;
        match instance.get("config") {
            Some(entry) => {
                let published = configs::publish(batches.remote, &namespace, entry).await;
                let published = published.map_err(|error| Failure::runtime(format!("line {number}: {error}")))?;
                batches.entries[usize::from(!published)] += 1;
            }
            None => batches.push(&namespace, instance).await?,
        }
    }
}

/// Parses a line into namespace and instance.
fn parse_line(text: &str) -> Result<(String, Value), String> {
    let mut value: Value = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
    let object = value.as_object_mut().ok_or("expected an object")?;
    let namespace = match object.remove("namespace") {
        None => "default".to_owned(),
        Some(Value::String(namespace)) => namespace,
        Some(_) => return Err("namespace: expected text".into()),
    };
    Ok((namespace, value))
}

/// Parses the address to import from: as that of a registry, and a path after it.
pub(super) fn source(url: &str, token: Option<String>) -> Result<(Remote, String), Failure> {
    let from = url.find("://").map_or(0, |at| at + 3);
    let path = url[from..].find('/').map_or(url.len(), |at| from + at);
    let remote = Remote::new(&url[..path], token)?.secured(None, None, None)?;
    Ok((remote, url[path..].trim_end_matches('/').to_owned()))
}

/// Adds the check that all imported instances get.
fn with_check(mut instance: Value, args: &ImportArgs) -> Value {
    if let Some(ttl) = args.ttl {
        instance["check"] = json!({ "type": "ttl", "ttl": humantime::format_duration(ttl).to_string() });
    }
    instance
}

async fn consul(url: &str, args: &ImportArgs, batches: &mut Batches<'_>) -> Result<(), Failure> {
    let (from, base) = source(url, args.from_token.clone())?;
    let services = from.ask(Method::GET, &format!("{base}/v1/catalog/services"), None).await?;
    let services = services.as_object().ok_or_else(|| strange(url, "its list of services is no object"))?;
    if services.len() > MOST_SERVICES {
        return Err(strange(url, "it has more than 100,000 services"));
    }
    let namespace = named(args)?;
    // Consul's own servers are left out.
    for name in services.keys().filter(|name| *name != "consul") {
        let entries = from.ask(Method::GET, &format!("{base}/v1/health/service/{}", segment(name)), None).await?;
        for entry in entries.as_array().into_iter().flatten() {
            if let Some(instance) = of_consul(entry, &namespace) {
                batches.push(&args.namespace, with_check(instance, args)).await?;
            }
        }
    }
    Ok(())
}

/// Translates one entry of `/v1/health/service`. It has the results of the checks, not their definitions.
fn of_consul(entry: &Value, namespace: &NamespaceName) -> Option<Value> {
    let service = &entry["Service"];
    let address = service["Address"].as_str().filter(|address| !address.is_empty());
    let host = address.or_else(|| entry["Node"]["Address"].as_str().filter(|address| !address.is_empty()))?;
    let mut metadata: Map<String, Value> = service["Meta"]
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, value)| !key.starts_with(registry::api::RESERVED) && value.is_string())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    // The Consul front keeps tags under this key.
    let mut kept = Map::new();
    if let Some(tags) = service["Tags"].as_array().filter(|tags| !tags.is_empty()) {
        kept.insert("tags".into(), tags.clone().into());
    }
    let node = entry["Node"]["Node"].as_str().unwrap_or(host);
    metadata.insert(registry::ON.into(), node.into());
    metadata.insert("kingpost.consul".into(), Value::Object(kept).to_string().into());
    let id = service["ID"].as_str()?;
    metadata.insert(identity::CLIENT_ID.into(), id.into());
    // A malformed id is sent unchanged: the registry refuses it.
    let instance_id = identity::consul(namespace, node, id).map_or_else(|_| id.to_owned(), |id| id.local().to_owned());
    let own = |check: &&Value| check["ServiceID"].as_str().is_none_or(|of| of.is_empty() || of == id);
    let checks = || entry["Checks"].as_array().into_iter().flatten().filter(own);
    let maintained = checks().any(|check| {
        check["CheckID"]
            .as_str()
            .is_some_and(|name| name.starts_with("_service_maintenance:") || name == "_node_maintenance")
    });
    let found = |status: &str| checks().any(|check| check["Status"] == status);
    let health = match (maintained, found("critical"), found("warning")) {
        (false, true, _) => "critical",
        (false, false, true) => "warning",
        _ => "passing",
    };
    let weight = service["Weights"]["Passing"].as_u64().unwrap_or(1).saturating_mul(100).min(65_535);
    Some(json!({
        "id": instance_id, "service": service["Service"].as_str()?, "host": host, "port": service["Port"].as_u64().unwrap_or(0),
        "metadata": metadata, "weight": weight, "health": health, "isolate": maintained,
    }))
}

async fn eureka(url: &str, args: &ImportArgs, batches: &mut Batches<'_>) -> Result<(), Failure> {
    let (from, base) = source(url, None)?;
    let answer = from.ask(Method::GET, &format!("{base}/apps"), None).await?;
    let applications = answer.get("applications").ok_or_else(|| strange(url, "it has no applications"))?;
    let namespace = named(args)?;
    for application in several(&applications["application"]) {
        for instance in several(&application["instance"]) {
            if let Some(instance) = of_eureka(instance, &namespace) {
                batches.push(&args.namespace, with_check(instance, args)).await?;
            }
        }
    }
    Ok(())
}

/// Returns a list; some servers send a single element without one.
fn several(value: &Value) -> &[Value] {
    match value {
        Value::Array(list) => list,
        Value::Null => &[],
        one => std::slice::from_ref(one),
    }
}

/// Translates one instance of an application; the service is in lower case, as in the Eureka front.
fn of_eureka(instance: &Value, namespace: &NamespaceName) -> Option<Value> {
    let text = |key: &str| instance[key].as_str().filter(|text| !text.is_empty());
    let port = |key: &str| {
        let enabled = instance[key]["@enabled"].as_str() == Some("true") || instance[key]["@enabled"] == true;
        let number = &instance[key]["$"];
        let number = number.as_u64().or_else(|| number.as_str().and_then(|text| text.parse().ok()));
        number.filter(|_| enabled)
    };
    let app = text("app")?;
    let host = text("ipAddr").or_else(|| text("hostName"))?;
    let port = port("port").or_else(|| port("securePort")).unwrap_or(0);
    let mut metadata: Map<String, Value> = instance["metadata"]
        .as_object()
        .into_iter()
        .flatten()
        // `@class` is a name of a Java class.
        .filter(|(key, value)| !key.starts_with('@') && !key.starts_with(registry::api::RESERVED) && value.is_string())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let status = text("status").unwrap_or("UP");
    // As in the Eureka front: an instance without an id has the name of its host as id.
    let id = text("instanceId").or_else(|| text("hostName")).unwrap_or(host);
    metadata.insert(identity::CLIENT_ID.into(), id.into());
    let instance_id = identity::eureka(namespace, app, id).map_or_else(|_| id.to_owned(), |id| id.local().to_owned());
    Some(json!({
        "id": instance_id, "service": app.to_lowercase(), "host": host, "port": port, "metadata": metadata,
        "health": if status == "DOWN" { "critical" } else { "passing" }, "isolate": !matches!(status, "UP" | "DOWN"),
    }))
}

/// Returns the namespace to import into.
fn named(args: &ImportArgs) -> Result<NamespaceName, Failure> {
    NamespaceName::new(&args.namespace).map_err(|error| Failure::config(format!("--namespace: {error}")))
}

pub(super) fn strange(url: &str, why: &str) -> Failure {
    Failure::runtime(format!("cannot import from {url}: {why}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::client::line_of;
    use super::*;

    #[test]
    fn what_is_exported_can_be_imported() {
        let shown = json!({
            "id": "a", "service": "s", "host": "h", "port": 1, "metadata": {"k": "v"}, "revision": 7, "created_ms": 1, "modified_ms": 2,
        });
        let (namespace, instance) = parse_line(&line_of("shop", &shown).to_string()).unwrap();
        assert_eq!(namespace, "shop");
        assert_eq!(instance, json!({"id": "a", "service": "s", "host": "h", "port": 1, "metadata": {"k": "v"}}));
        assert_eq!(parse_line("{}").unwrap().0, "default");
        assert!(parse_line("[]").is_err() && parse_line("{\"namespace\":1}").is_err() && parse_line("{").is_err());
    }

    #[test]
    fn entries_of_consul() {
        let entry = |service: Value, checks: Value| {
            let mut whole = json!({ "ID": "w1", "Service": "web", "Port": 80, "Address": "10.0.0.1" });
            whole.as_object_mut().unwrap().extend(service.as_object().unwrap().clone());
            json!({ "Node": { "Node": "n", "Address": "10.9.9.9" }, "Service": whole, "Checks": checks })
        };
        let node = json!({ "CheckID": "serfHealth", "ServiceID": "", "Status": "passing" });
        let of = |status: &str| json!({ "CheckID": "service:w1", "ServiceID": "w1", "Status": status });
        let namespace = NamespaceName::default();
        let plain = of_consul(&entry(json!({}), json!([node])), &namespace).unwrap();
        let expected = json!({ "id": "consul:w1@n", "service": "web", "host": "10.0.0.1", "port": 80, "weight": 100,
            "metadata": { "kingpost.consul": "{}", "kingpost.machine": "n", "kingpost.id": "w1" }, "health": "passing", "isolate": false });
        assert_eq!(plain, expected);
        for (service, checks, key, value) in [
            (json!({ "Address": "" }), json!([]), "host", json!("10.9.9.9")),
            (json!({ "Weights": { "Passing": 7 } }), json!([]), "weight", json!(700)),
            (json!({ "Weights": { "Passing": 7000 } }), json!([]), "weight", json!(65_535)),
            (
                json!({ "Meta": { "v": "1", "kingpost.x": "y" } }),
                json!([]),
                "metadata",
                json!({ "v": "1", "kingpost.consul": "{}", "kingpost.machine": "n", "kingpost.id": "w1" }),
            ),
            (
                json!({ "Tags": ["a"] }),
                json!([]),
                "metadata",
                json!({ "kingpost.consul": r#"{"tags":["a"]}"#, "kingpost.machine": "n", "kingpost.id": "w1" }),
            ),
            (json!({}), json!([node, of("warning")]), "health", json!("warning")),
            (json!({}), json!([node, of("critical"), of("warning")]), "health", json!("critical")),
            (
                json!({}),
                json!([{ "CheckID": "_service_maintenance:w1", "Status": "critical" }]),
                "isolate",
                json!(true),
            ),
            (
                json!({}),
                json!([{ "CheckID": "_service_maintenance:w1", "Status": "critical" }]),
                "health",
                json!("passing"),
            ),
        ] {
            let found = of_consul(&entry(service, checks), &namespace).unwrap();
            assert_eq!(found[key], value, "{found}");
        }
        assert!(of_consul(&json!({}), &namespace).is_none());
    }

    #[test]
    fn instances_of_eureka() {
        let whole = json!({
            "instanceId": "h:web:80", "app": "WEB", "ipAddr": "10.0.0.1", "hostName": "h", "status": "UP",
            "port": { "$": 80, "@enabled": "true" }, "securePort": { "$": 443, "@enabled": "false" },
            "metadata": { "@class": "java.util.Collections$EmptyMap", "zone": "a" },
        });
        let expected = json!({ "id": "eureka:h:web:80@WEB", "service": "web", "host": "10.0.0.1", "port": 80,
            "metadata": { "zone": "a", "kingpost.id": "h:web:80" }, "health": "passing", "isolate": false });
        let namespace = NamespaceName::default();
        assert_eq!(of_eureka(&whole, &namespace).unwrap(), expected);
        for (key, given, shown, value) in [
            ("status", json!("DOWN"), "health", json!("critical")),
            ("status", json!("OUT_OF_SERVICE"), "isolate", json!(true)),
            ("status", json!("STARTING"), "isolate", json!(true)),
            ("ipAddr", json!(""), "host", json!("h")),
            ("port", json!({ "$": "8080", "@enabled": true }), "port", json!(8080)),
            ("port", json!({ "$": 80, "@enabled": "false" }), "port", json!(0)),
        ] {
            let mut changed = whole.clone();
            changed[key] = given;
            assert_eq!(of_eureka(&changed, &namespace).unwrap()[shown], value, "{key}");
        }
        assert!(of_eureka(&json!({}), &namespace).is_none());
        assert_eq!((several(&json!({})).len(), several(&json!([1, 2])).len(), several(&Value::Null).len()), (1, 2, 0));
    }

    #[test]
    fn where_from() {
        for (url, path) in [
            ("http://127.0.0.1:8500", ""),
            ("http://127.0.0.1:8500/", ""),
            ("http://127.0.0.1:8761/eureka/", "/eureka"),
            ("127.0.0.1:8761/eureka", "/eureka"),
        ] {
            assert_eq!(source(url, None).unwrap().1, path, "{url}");
        }
        assert!(source("http://consul", None).is_err(), "no port");
    }
}
