//! Commands of the registry's client. Bulk data are JSON lines.

use std::collections::BTreeMap;
use std::fmt::Write;

use http_body_util::BodyExt;
use hyper::Method;
use serde_json::{Map, Value, json};

use super::{agent, configs, import};
use crate::args::{RegisterArgs, RegistryCommand, RemoteArgs};
use process::Failure;
use process::http::{Remote, segment};
use process::terminal;

/// Instances in one request.
pub(super) const BATCH: usize = 500;
/// Longest line of an import, and longest event of a watch, in bytes.
pub(super) const LONGEST: usize = 64 << 20;
/// Fields of an instance that a registration may have; the registry adds the others.
const FIELDS: [&str; 13] = [
    "id", "service", "host", "port", "protocol", "version", "weight", "priority", "location", "metadata", "check",
    "isolate", "health",
];

/// Runs a command of the client.
///
/// # Errors
/// The registry cannot be reached, or refuses.
pub async fn run(command: &RegistryCommand) -> Result<(), Failure> {
    match command {
        RegistryCommand::Register(args) => register(args).await,
        RegistryCommand::Deregister { remote, namespace, ids } => {
            let remote = of(remote)?;
            let path = format!("/v1/namespaces/{}/deregistrations", segment(namespace));
            let mut failed = 0;
            for ids in ids.chunks(BATCH) {
                failed += report(&remote.ask(Method::POST, &path, Some(&json!({ "ids": ids }))).await?);
            }
            all_done(failed)
        }
        RegistryCommand::Ls { remote, namespace, service, meta, json } => {
            list(&of(remote)?, namespace, service.as_deref(), meta, *json).await
        }
        RegistryCommand::Watch { remote, namespace, service } => watch(&of(remote)?, namespace, service).await,
        RegistryCommand::Export { remote, namespace, configs: with, history } => {
            export(&of(remote)?, namespace.as_deref(), with.then_some(*history)).await
        }
        RegistryCommand::Import(args) => import::run(&of(&args.remote)?, args).await,
        RegistryCommand::Agent { remote, namespace, ttl } => agent::run(&of(remote)?, namespace, *ttl).await,
        RegistryCommand::Config { command } => configs::run(command).await,
        // Needs no registry.
        RegistryCommand::Token { .. } => Ok(()),
    }
}

pub(super) fn of(args: &RemoteArgs) -> Result<Remote, Failure> {
    let remote = Remote::new(&args.url, args.token.clone())?;
    remote.secured(args.ca.as_deref(), args.cert.as_deref(), args.key.as_deref())
}

/// Prints the failed rows of a batch; returns their number.
pub(super) fn report(answer: &Value) -> u64 {
    for row in answer["results"].as_array().into_iter().flatten() {
        if let Some(why) = row["error"]["message"].as_str() {
            terminal::note(format_args!("{}: {why}", row["id"].as_str().unwrap_or_default()));
        }
    }
    answer["failed"].as_u64().unwrap_or(0)
}

pub(super) fn all_done(failed: u64) -> Result<(), Failure> {
    match failed {
        0 => Ok(()),
        1 => Err(Failure::runtime("1 instance was refused")),
        many => Err(Failure::runtime(format!("{many} instances were refused"))),
    }
}

/// Makes a map of `key=value` pairs.
fn pairs(list: &[(String, String)]) -> BTreeMap<&str, &str> {
    list.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

async fn register(args: &RegisterArgs) -> Result<(), Failure> {
    let (host, port) = args
        .address
        .rsplit_once(':')
        .and_then(|(host, port)| Some((host.trim_matches(['[', ']']), port.parse::<u16>().ok()?)))
        .ok_or_else(|| Failure::config(format!("{:?}: expected host:port", args.address)))?;
    let mut instance = json!({
        "service": args.service, "host": host, "port": port, "metadata": pairs(&args.meta),
        "location": { "zone": args.zone.as_deref().unwrap_or_default() },
    });
    for (key, value) in [
        ("id", args.id.clone().map(Value::from)),
        ("weight", args.weight.map(Value::from)),
        ("version", args.instance_version.clone().map(Value::from)),
        ("check", args.ttl.map(|ttl| json!({ "type": "ttl", "ttl": humantime::format_duration(ttl).to_string() }))),
    ] {
        if let Some(value) = value {
            instance[key] = value;
        }
    }
    let path = format!("/v1/namespaces/{}/instances", segment(&args.namespace));
    let answer = of(&args.remote)?.ask(Method::POST, &path, Some(&json!({ "instances": [instance] }))).await?;
    all_done(report(&answer))?;
    terminal::line(answer["results"][0]["id"].as_str().unwrap_or_default());
    Ok(())
}

async fn list(
    remote: &Remote,
    namespace: &str,
    service: Option<&str>,
    meta: &[(String, String)],
    as_json: bool,
) -> Result<(), Failure> {
    let base = format!("/v1/namespaces/{}", segment(namespace));
    let query: Vec<String> =
        meta.iter().map(|(key, value)| format!("meta={}", segment(&format!("{key}={value}")))).collect();
    let query = query.join("&");
    let instances = match service {
        None if meta.is_empty() => return services(remote, &base, as_json).await,
        None => remote.ask(Method::GET, &format!("{base}/instances?{query}"), None).await?,
        Some(service) => {
            remote.ask(Method::GET, &format!("{base}/services/{}/instances?{query}", segment(service)), None).await?
        }
    };
    let mut table = vec![["ID", "ADDRESS", "HEALTH", "WEIGHT", "ZONE", "METADATA"].map(str::to_owned)];
    for instance in instances["instances"].as_array().into_iter().flatten() {
        if as_json {
            terminal::line(instance);
            continue;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata: Vec<String> = instance["metadata"]
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| !key.starts_with(registry::api::RESERVED))
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
            .collect();
        let isolated = if instance["isolate"] == Value::Bool(true) { ", isolated" } else { "" };
        table.push([
            text(&instance["id"]),
            format!("{}:{}", text(&instance["host"]), instance["port"]),
            format!("{}{isolated}", text(&instance["health"])),
            instance["weight"].to_string(),
            text(&instance["location"]["zone"]),
            metadata.join(" "),
        ]);
    }
    if !as_json {
        terminal::raw(&columns(&table));
    }
    Ok(())
}

async fn services(remote: &Remote, base: &str, as_json: bool) -> Result<(), Failure> {
    let mut table = vec![["SERVICE", "INSTANCES", "USABLE", "REVISION"].map(str::to_owned)];
    for service in all_services(remote, base).await? {
        if as_json {
            terminal::line(&service);
        } else {
            let name = service["service"].as_str().unwrap_or_default().to_owned();
            let number = |key: &str| service[key].to_string();
            table.push([name, number("instances"), number("usable"), number("revision")]);
        }
    }
    if !as_json {
        terminal::raw(&columns(&table));
    }
    Ok(())
}

/// Reads all pages of the list.
async fn all_services(remote: &Remote, base: &str) -> Result<Vec<Value>, Failure> {
    let mut all = Vec::new();
    let mut from = String::new();
    loop {
        let page = remote.ask(Method::GET, &format!("{base}/services?from={}", segment(&from)), None).await?;
        all.extend(page["services"].as_array().into_iter().flatten().cloned());
        match page["next"].as_str() {
            Some(next) => from = next.to_owned(),
            None => return Ok(all),
        }
    }
}

/// Formats a table with columns as wide as their content.
fn columns<const N: usize>(table: &[[String; N]]) -> String {
    let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in table {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Prints each event's data, one a line, until the registry or the user ends it.
async fn watch(remote: &Remote, namespace: &str, service: &str) -> Result<(), Failure> {
    let path = format!("/v1/namespaces/{}/services/{}/watch", segment(namespace), segment(service));
    let response = remote.send(Method::GET, &path, None).await?;
    if !response.status().is_success() {
        return Err(Failure::runtime(format!("the registry refused ({})", response.status())));
    }
    let mut body = response.into_body();
    let mut pending = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::runtime(format!("the watch broke off: {error}")))?;
        let Ok(bytes) = frame.into_data() else { continue };
        pending.extend_from_slice(&bytes);
        if pending.len() > LONGEST {
            return Err(Failure::runtime(format!("an event is longer than {LONGEST} bytes")));
        }
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            if let Some(data) = line.strip_prefix(b"data: ") {
                terminal::raw(&String::from_utf8_lossy(data));
            }
        }
    }
    Err(Failure::runtime("the registry ended the watch"))
}

/// Prints the instances of one or all namespaces, and with `history` their configuration entries; with their older versions if it is true.
async fn export(remote: &Remote, namespace: Option<&str>, history: Option<bool>) -> Result<(), Failure> {
    let namespaces = match namespace {
        Some(namespace) => vec![namespace.to_owned()],
        None => {
            let answer = remote.ask(Method::GET, "/v1/namespaces", None).await?;
            answer["namespaces"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|it| it.as_str().map(str::to_owned))
                .collect()
        }
    };
    for namespace in namespaces {
        let base = format!("/v1/namespaces/{}", segment(&namespace));
        for service in all_services(remote, &base).await? {
            let name = service["service"].as_str().unwrap_or_default();
            let path = format!("{base}/services/{}/instances", segment(name));
            let whole = remote.ask(Method::GET, &path, None).await?;
            for instance in whole["instances"].as_array().into_iter().flatten() {
                terminal::line(line_of(&namespace, instance));
            }
        }
        if let Some(history) = history {
            configs::export(remote, &namespace, history).await?;
        }
    }
    Ok(())
}

/// Returns an instance in the form of a registration, with its namespace.
pub(super) fn line_of(namespace: &str, instance: &Value) -> Value {
    let mut line = Map::new();
    line.insert("namespace".into(), namespace.into());
    for field in FIELDS {
        if let Some(value) = instance.get(field) {
            line.insert(field.into(), value.clone());
        }
    }
    Value::Object(line)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_content() {
        let table = [["A", "B"], ["long", ""], ["x", "y"]].map(|row| row.map(str::to_owned));
        assert_eq!(columns(&table), "A     B\nlong\nx     y\n");
    }
}
