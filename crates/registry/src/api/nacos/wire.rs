//! Requests and answers of Nacos' clients: parameters of an address or a form, and JSON.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use super::naming::Hosts;
use super::*;
use crate::api::RESERVED;
use crate::api::identity::CLIENT_ID;
use crate::{Check, CheckKind, Health, Metadata, OverlayChange, Pace, visible};

/// Default group.
pub(super) const DEFAULT_GROUP: &str = "DEFAULT_GROUP";
/// Separator between a group and a name.
const SEPARATOR: &str = "@@";
/// Default cluster.
const DEFAULT_CLUSTER: &str = "DEFAULT";
/// The metadata key of the cluster, the ephemeral flag, and the connection that published the instance, if the instance depends on one: `EPHEMERAL
/// CLUSTER` or `EPHEMERAL@CONNECTION CLUSTER`.
pub(super) const KEPT: &str = "kingpost.nacos";
/// Factor between Nacos' weights and ours.
const WEIGHT_SCALE: f64 = 100.0;
/// Lease of an instance that depends on a connection; the connection's node renews it every 5 s. After a node has died, the instance is unhealthy at
/// the end of the lease, unless its client has registered it at another node by then. nacos-sdk-python takes up to 30 s for that, although it
/// reconnects at once.
const CONNECTION_LEASE: Duration = Duration::from_secs(40);
/// Time from the end of the lease to the removal.
const CONNECTION_GONE: Duration = Duration::from_secs(15);
/// Defaults of the interval between beats, and of the silence until an instance is unhealthy, and until it is removed.
const BEAT: Duration = Duration::from_secs(5);
const UNHEALTHY: Duration = Duration::from_secs(15);
const GONE: Duration = Duration::from_secs(30);

/// Metadata keys of an instance that set the times of its lease.
pub(super) const LEASE_KEYS: [&str; 3] =
    ["preserved.heart.beat.interval", "preserved.heart.beat.timeout", "preserved.ip.delete.timeout"];

/// Parameters of the address and of a form in the body.
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(super) fn of(request: &Request) -> Result<Fields, ApiError> {
        let mut fields = request.query.clone();
        let kind = request.header(&hyper::header::CONTENT_TYPE).unwrap_or_default();
        if kind.starts_with("application/x-www-form-urlencoded") {
            let text = std::str::from_utf8(&request.body).map_err(|_| ApiError::bad("the body is not UTF-8"))?;
            fields.extend(Request::pairs(text)?);
        }
        Ok(Fields(fields))
    }

    #[cfg(test)]
    pub(super) fn from_pairs(pairs: &[(&str, &str)]) -> Fields {
        Fields(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    /// Returns the first value.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the first value; empty if there is none.
    pub(super) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        match self.text(name) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| expected(name, text, "a whole number")),
        }
    }

    fn flag(&self, names: &[&str], default: bool) -> Result<bool, ApiError> {
        let said = names.iter().map(|name| (name, self.text(name))).find(|(_, text)| !text.is_empty());
        match said {
            None => Ok(default),
            Some((name, text)) => match text.to_ascii_lowercase().as_str() {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err(expected(name, text, "true or false")),
            },
        }
    }
}

pub(super) fn expected(name: &str, found: &str, what: &str) -> ApiError {
    ApiError::bad(format!("{name}={found:?}: expected {what}"))
}

/// A service, with its group and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::api) struct Service {
    pub(super) group: String,
    pub(super) name: String,
}

impl Service {
    /// Parses `GROUP@@name`, or a name and a group; an empty group is [`DEFAULT_GROUP`].
    pub(super) fn of(name: &str, group: &str) -> Result<Service, ApiError> {
        let (group, name) = name.split_once(SEPARATOR).unwrap_or((group, name));
        if name.is_empty() {
            return Err(required("serviceName"));
        }
        let group = if group.is_empty() { DEFAULT_GROUP } else { group };
        Ok(Service { group: group.to_owned(), name: name.to_owned() })
    }

    /// Returns `GROUP@@name`.
    pub(super) fn full(&self) -> String {
        format!("{}{SEPARATOR}{}", self.group, self.name)
    }

    /// Returns the name for other fronts: without the default group.
    pub(super) fn known_as(&self) -> String {
        if self.group == DEFAULT_GROUP { self.name.clone() } else { self.full() }
    }
}

/// Lease of an ephemeral instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lease<'a> {
    /// The client's beats.
    Beats,
    /// The connection with this name, which has no spaces.
    Connection(&'a str),
}

/// An instance sent by a client.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::api) struct Sent {
    pub(super) ip: String,
    pub(super) port: u16,
    pub(super) cluster: String,
    /// Weight in our scale.
    pub(super) weight: u16,
    pub(super) enabled: bool,
    pub(super) ephemeral: bool,
    pub(super) beat_interval: Duration,
    unhealthy: Duration,
    gone: Duration,
    own: BTreeMap<String, String>,
}

impl Sent {
    /// Parses the fields of a request.
    pub(super) fn of(fields: &Fields) -> Result<Sent, ApiError> {
        let cluster = match (fields.text("clusterName"), fields.text("cluster")) {
            ("", cluster) | (cluster, _) => cluster,
        };
        let weight = match fields.text("weight") {
            "" => 1.0,
            text => text.parse().map_err(|_| expected("weight", text, "a number"))?,
        };
        let port = fields.number("port")?.ok_or_else(|| required("port"))?;
        let metadata = pairs(fields.text("metadata"))?;
        let mut sent = Sent::new(fields.text("ip"), port, cluster, weight, metadata)?;
        sent.enabled = fields.flag(&["enabled", "enable"], true)?;
        sent.ephemeral = fields.flag(&["ephemeral"], true)?;
        Ok(sent)
    }

    /// Parses a beat. Also returns true if the beat has all attributes of the instance, so that it can register it.
    pub(super) fn of_beat(fields: &Fields) -> Result<(Sent, bool), ApiError> {
        let text = fields.text("beat");
        if text.is_empty() {
            return Ok((Sent::of(fields)?, false));
        }
        let beat: Value = serde_json::from_str(text).map_err(|error| ApiError::bad(format!("beat: {error}")))?;
        let said = |key: &str| beat[key].as_str().unwrap_or_default();
        let port = beat["port"].as_u64().ok_or_else(|| ApiError::bad("beat.port: expected a whole number"))?;
        let metadata = match &beat["metadata"] {
            Value::Null => BTreeMap::new(),
            map => texts(map)?,
        };
        let weight = beat["weight"].as_f64().unwrap_or(1.0);
        Ok((Sent::new(said("ip"), port, said("cluster"), weight, metadata)?, true))
    }

    pub(super) fn new(
        ip: &str,
        port: u64,
        cluster: &str,
        weight: f64,
        own: BTreeMap<String, String>,
    ) -> Result<Sent, ApiError> {
        if ip.is_empty() {
            return Err(required("ip"));
        }
        let port = u16::try_from(port).map_err(|_| expected("port", &port.to_string(), "0 to 65535"))?;
        if !(0.0..=655.0).contains(&weight) {
            return Err(coded(Code::Weight, format!("weight={weight}: expected 0 to 655")));
        }
        let cluster = if cluster.is_empty() { DEFAULT_CLUSTER } else { cluster };
        visible("cluster", cluster)?;
        not_reserved(&own)?;
        let time = |key: &str, default: Duration| match own.get(key) {
            None => Ok(default),
            Some(text) => {
                let millis = text.parse().map_err(|_| expected(key, text, "milliseconds"))?;
                Ok::<_, ApiError>(Duration::from_millis(millis))
            }
        };
        Ok(Sent {
            ip: ip.to_owned(),
            port,
            cluster: cluster.to_owned(),
            // From 0 to 65500.
            weight: (weight * WEIGHT_SCALE).round() as u16,
            enabled: true,
            ephemeral: true,
            beat_interval: time(LEASE_KEYS[0], BEAT)?,
            unhealthy: time(LEASE_KEYS[1], UNHEALTHY)?,
            gone: time(LEASE_KEYS[2], GONE)?,
            own,
        })
    }

    /// Parses a list of instances in JSON, of each its address and cluster; empty text is an empty list.
    pub(super) fn several(text: &str) -> Result<Vec<Sent>, ApiError> {
        /// A port, which clients may send as a text.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Port {
            Number(u64),
            Text(String),
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Named {
            ip: String,
            port: Port,
            #[serde(default)]
            cluster_name: Option<String>,
        }
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let list: Vec<Named> = serde_json::from_str(text).map_err(|error| {
            ApiError::bad(format!("instances: expected a list with ip, port and clusterName: {error}"))
        })?;
        let one = |it: Named| {
            let port = match it.port {
                Port::Number(port) => port,
                Port::Text(text) => text.parse().map_err(|_| expected("port", &text, "a whole number"))?,
            };
            Sent::new(&it.ip, port, &it.cluster_name.unwrap_or_default(), 1.0, BTreeMap::new())
        };
        list.into_iter().map(one).collect()
    }

    /// Returns the overrides of weight, isolation and metadata that the instance stands for: all of them if `whole`, else those that `fields` name.
    pub(super) fn overlay(&self, fields: &Fields, whole: bool) -> OverlayChange {
        let named = |names: &[&str]| whole || names.iter().any(|name| !fields.text(name).is_empty());
        let metadata = named(&["metadata"]);
        let entries = self.own.iter().map(|(key, value)| (key.clone(), Some(value.clone())));
        OverlayChange {
            weight: named(&["weight"]).then_some(Some(self.weight)),
            isolate: named(&["enabled", "enable"]).then_some(Some(!self.enabled)),
            entries: if metadata { entries.collect() } else { BTreeMap::new() },
            only_these_entries: metadata,
        }
    }

    /// Returns the instance's health check.
    pub(super) fn check(&self, lease: Lease<'_>) -> Check {
        if !self.ephemeral {
            return Check {
                kind: CheckKind::Tcp { target: None, tls: None, pace: Pace::default() },
                deregister_after: None,
            };
        }
        if let Lease::Connection(_) = lease {
            return Check { kind: CheckKind::Ttl { ttl: CONNECTION_LEASE }, deregister_after: Some(CONNECTION_GONE) };
        }
        // The core measures the second time from the end of the first; both must be at least a second.
        let least = Duration::from_secs(1);
        let deregister_after = Some(self.gone.saturating_sub(self.unhealthy).max(least));
        Check { kind: CheckKind::Ttl { ttl: self.unhealthy.max(least) }, deregister_after }
    }

    /// Returns the client's own metadata and the front's.
    pub(super) fn metadata(&self, service: &Service, lease: Lease<'_>) -> Result<Metadata, ApiError> {
        let mut pairs = self.own.clone();
        let kept = match lease {
            Lease::Connection(name) if self.ephemeral => format!("true@{name} {}", self.cluster),
            _ => format!("{} {}", self.ephemeral, self.cluster),
        };
        pairs.insert(KEPT.into(), kept);
        pairs.insert(CLIENT_ID.into(), self.shown_id(service));
        Ok(Metadata::from_pairs(&pairs)?)
    }

    /// Returns the id shown to Nacos' clients.
    pub(super) fn shown_id(&self, service: &Service) -> String {
        shown_id(&self.ip, self.port, &self.cluster, service)
    }
}

fn shown_id(ip: &str, port: u16, cluster: &str, service: &Service) -> String {
    format!("{ip}#{port}#{cluster}#{}", service.full())
}

/// Refuses metadata with a reserved key.
pub(super) fn not_reserved(own: &BTreeMap<String, String>) -> Result<(), ApiError> {
    match own.keys().find(|key| key.starts_with(RESERVED)) {
        Some(key) => Err(ApiError::bad(format!("metadata: {key:?} begins with {RESERVED:?}, which is reserved"))),
        None => Ok(()),
    }
}

/// Parses metadata: JSON, or `key=value,key=value` of old clients.
pub(super) fn pairs(text: &str) -> Result<BTreeMap<String, String>, ApiError> {
    if text.is_empty() {
        return Ok(BTreeMap::new());
    }
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        return texts(&value);
    }
    let pair = |pair: &str| match pair.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(expected("metadata", text, "an object in JSON, or key=value,key=value")),
    };
    text.split(',').filter(|one| !one.is_empty()).map(pair).collect()
}

/// Parses an object of texts; numbers and booleans are taken as they are written.
pub(super) fn texts(value: &Value) -> Result<BTreeMap<String, String>, ApiError> {
    let map = value.as_object().ok_or_else(|| ApiError::bad("metadata: expected an object"))?;
    let text = |(key, value): (&String, &Value)| match value {
        Value::String(text) => Ok((key.clone(), text.clone())),
        Value::Number(_) | Value::Bool(_) => Ok((key.clone(), value.to_string())),
        _ => Err(ApiError::bad(format!("metadata.{key}: expected text"))),
    };
    map.iter().map(text).collect()
}

/// Attributes kept with an instance.
struct Kept<'a> {
    ephemeral: bool,
    /// The connection on which the instance depends.
    connection: Option<&'a str>,
    cluster: &'a str,
}

fn kept(instance: &Instance) -> Option<Kept<'_>> {
    let (life, cluster) = instance.metadata.get(KEPT)?.split_once(' ')?;
    let (ephemeral, connection) = match life.split_once('@') {
        Some((ephemeral, connection)) => (ephemeral, Some(connection)),
        None => (life, None),
    };
    Some(Kept { ephemeral: ephemeral == "true", connection, cluster })
}

/// Returns the cluster of an instance; the default one if another front registered it.
pub(super) fn cluster(instance: &Instance) -> String {
    kept(instance).map_or(DEFAULT_CLUSTER, |kept| kept.cluster).to_owned()
}

/// Returns the connection that published the instance last; `None` if the instance does not depend on a connection.
pub(super) fn connection(instance: &Instance) -> Option<&str> {
    kept(instance)?.connection
}

/// The JSON before the list of instances in [`Info`].
pub(super) const HOSTS: &str = "{\"hosts\":[";

/// A service encoded for clients: JSON with the instances as already encoded.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Info {
    /// Everything but the instances: a non-empty object.
    rest: Value,
    parts: Vec<Bytes>,
}

impl Info {
    /// Creates one. `time`, in milliseconds, must never decrease from one answer to the next: clients ignore a list older than theirs.
    pub(super) fn new(service: &Service, clusters: &str, hosts: Hosts, time: i64) -> Info {
        let rest = json!({
            "name": service.name,
            "groupName": service.group,
            "clusters": clusters,
            "cacheMillis": CACHE_MILLIS,
            "lastRefTime": time,
            "checksum": hosts.revision.0.to_string(),
            "allIPs": false,
            "reachProtectionThreshold": hosts.protected,
            "valid": true,
        });
        Info { rest, parts: hosts.parts }
    }

    pub(super) fn set(&mut self, field: &str, value: Value) {
        self.rest[field] = value;
    }

    /// Returns the JSON after the instances.
    pub(super) fn tail(&self) -> String {
        self.rest.to_string().replacen('{', "],", 1)
    }

    /// Writes the JSON.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let tail = self.tail();
        let parts: usize = self.parts.iter().map(|part| part.len() + 1).sum();
        out.reserve(HOSTS.len() + parts + tail.len());
        out.extend_from_slice(HOSTS.as_bytes());
        for (n, part) in self.parts.iter().enumerate() {
            if n > 0 {
                out.push(b',');
            }
            out.extend_from_slice(part);
        }
        out.extend_from_slice(tail.as_bytes());
    }
}

/// Returns an instance as the answer to a change of several names it.
pub(super) fn changed(instance: &Instance) -> String {
    let life = if is_ephemeral(instance) { "ephemeral" } else { "persist" };
    format!("{}:{}:unknown:{}:{life}", instance.host, instance.port, cluster(instance))
}

/// True if an instance lives by its client's signs of life.
pub(super) fn is_ephemeral(instance: &Instance) -> bool {
    let has_lease = || instance.check.as_deref().and_then(Check::time_to_live).is_some();
    kept(instance).map_or_else(has_lease, |kept| kept.ephemeral)
}

/// True for an instance that a client of Nacos registered as persistent: it has no beats.
pub(super) fn is_persistent(instance: &Instance) -> bool {
    kept(instance).is_some_and(|kept| !kept.ephemeral)
}

/// Encodes an instance for clients.
pub(super) fn shown(instance: &Instance, service: &Service) -> Value {
    let cluster = cluster(instance);
    let check = instance.check.as_deref();
    let ttl = check.and_then(Check::time_to_live);
    let unhealthy = ttl.unwrap_or(UNHEALTHY);
    let gone = unhealthy + check.and_then(|check| check.deregister_after).unwrap_or(GONE - UNHEALTHY);
    let open = instance.metadata.iter().filter(|(key, _)| !key.starts_with(RESERVED));
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    json!({
        "instanceId": shown_id(&instance.host, instance.port, &cluster, service),
        "ip": &*instance.host,
        "port": instance.port,
        "weight": f64::from(instance.weight) / WEIGHT_SCALE,
        "healthy": instance.overall() != Health::Critical,
        "valid": instance.overall() != Health::Critical,
        "enabled": !instance.isolate,
        "marked": false,
        "ephemeral": is_ephemeral(instance),
        "clusterName": cluster,
        "serviceName": service.full(),
        "metadata": open.collect::<BTreeMap<&str, &str>>(),
        "instanceHeartBeatInterval": millis(BEAT),
        "instanceHeartBeatTimeOut": millis(unhealthy),
        "ipDeleteTimeout": millis(gone),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        Fields::from_pairs(pairs)
    }

    #[test]
    fn services_and_their_groups() {
        for (name, group, full, known_as) in [
            ("shop", "", "DEFAULT_GROUP@@shop", "shop"),
            ("DEFAULT_GROUP@@shop", "", "DEFAULT_GROUP@@shop", "shop"),
            ("DEFAULT_GROUP@@shop", "other", "DEFAULT_GROUP@@shop", "shop"),
            ("shop", "g", "g@@shop", "g@@shop"),
            ("g@@shop", "", "g@@shop", "g@@shop"),
        ] {
            let service = Service::of(name, group).unwrap();
            assert_eq!((service.full().as_str(), service.known_as().as_str()), (full, known_as), "{name} {group}");
            assert_eq!(Service::of(&service.known_as(), "").unwrap(), service, "there and back");
        }
        assert!(Service::of("", "g").is_err() && Service::of("g@@", "").is_err());
    }

    #[test]
    fn lists_of_instances() {
        let read = |text: &str| {
            let list = Sent::several(text)?;
            Ok::<_, ApiError>(list.into_iter().map(|it| (it.ip, it.port, it.cluster)).collect::<Vec<_>>())
        };
        let one = |cluster: &str| vec![("10.0.0.1".to_owned(), 80, cluster.to_owned())];
        assert_eq!(read("").unwrap(), vec![]);
        assert_eq!(read(r#"[{"ip":"10.0.0.1","port":80,"ephemeral":true}]"#).unwrap(), one("DEFAULT"));
        assert_eq!(read(r#"[{"ip":"10.0.0.1","port":80,"clusterName":"c"}]"#).unwrap(), one("c"));
        assert_eq!(read(r#"[{"ip":"10.0.0.1","port":"80","ephemeral":"false"}]"#).unwrap(), one("DEFAULT"));
        for wrong in ["{", "{}", r#"[{"port":80}]"#, r#"[{"ip":"a","port":70000}]"#, r#"[{"ip":"a","port":"web"}]"#] {
            assert!(read(wrong).is_err(), "{wrong}: all instances are not meant");
        }
    }

    #[test]
    fn what_clients_send() {
        let ok = [("ip", "10.0.0.1"), ("port", "80")];
        let sent = |more: &[(&str, &str)]| Sent::of(&fields(&[&ok[..], more].concat()));
        let plain = sent(&[]).unwrap();
        assert_eq!(
            (plain.weight, plain.enabled, plain.ephemeral, plain.cluster.as_str()),
            (100, true, true, "DEFAULT")
        );
        assert_eq!(plain.check(Lease::Beats).time_to_live(), Some(UNHEALTHY));
        assert_eq!(plain.check(Lease::Beats).deregister_after, Some(Duration::from_secs(15)));
        let full = sent(&[
            ("weight", "2.5"),
            ("enable", "false"),
            ("clusterName", "c"),
            (
                "metadata",
                r#"{"a":"b","n":1,"preserved.heart.beat.timeout":"3000","preserved.ip.delete.timeout":"5000"}"#,
            ),
        ])
        .unwrap();
        assert_eq!((full.weight, full.enabled, full.cluster.as_str()), (250, false, "c"));
        assert_eq!(full.check(Lease::Beats).time_to_live(), Some(Duration::from_secs(3)));
        assert_eq!(full.check(Lease::Beats).deregister_after, Some(Duration::from_secs(2)));
        assert_eq!(full.own.get("n").map(String::as_str), Some("1"));
        assert_eq!(sent(&[("metadata", "a=b,c=d")]).unwrap().own.len(), 2);
        let overlay = |more: &[(&str, &str)], whole| {
            let fields = fields(&[&ok[..], more].concat());
            let set = Sent::of(&fields).unwrap().overlay(&fields, whole);
            (set.weight, set.isolate, set.entries.len(), set.only_these_entries)
        };
        assert_eq!(overlay(&[], true), (Some(Some(100)), Some(Some(false)), 0, true), "PUT replaces all of them");
        assert_eq!(overlay(&[], false), (None, None, 0, false), "PATCH only those that are named");
        assert_eq!(overlay(&[("weight", "0")], false), (Some(Some(0)), None, 0, false));
        assert_eq!(overlay(&[("enabled", "false")], false), (None, Some(Some(true)), 0, false));
        assert_eq!(overlay(&[("metadata", "a=b")], false), (None, None, 1, true));
        assert!(matches!(sent(&[("ephemeral", "false")]).unwrap().check(Lease::Beats).kind, CheckKind::Tcp { .. }));
        for wrong in [
            ("weight", "-1"),
            ("weight", "NaN"),
            ("weight", "1e9"),
            ("port", ""),
            ("enabled", "perhaps"),
            ("metadata", "[]"),
            ("metadata", r#"{"kingpost.nacos":"x"}"#),
            ("metadata", r#"{"preserved.heart.beat.timeout":"soon"}"#),
            ("clusterName", "a\u{202e}b"),
        ] {
            let all: Vec<_> = std::iter::once(wrong).chain(ok.into_iter().filter(|(key, _)| *key != wrong.0)).collect();
            assert!(Sent::of(&fields(&all)).is_err(), "{wrong:?}");
        }
        let (beat, whole) =
            Sent::of_beat(&fields(&[("beat", r#"{"ip":"10.0.0.1","port":80,"cluster":"c","weight":1}"#)])).unwrap();
        assert!(whole && beat.cluster == "c");
        assert!(!Sent::of_beat(&fields(&ok)).unwrap().1);
        assert!(Sent::of_beat(&fields(&[("beat", "{")])).is_err());
    }
}
