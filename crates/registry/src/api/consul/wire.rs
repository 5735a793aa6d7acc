//! What Consul's clients send: JSON whose keys are in any case, with or without underscores.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::identity::CLIENT_ID;
use crate::api::{ApiError, RESERVED, parse_duration};
use crate::{Check, CheckKind, Health, Instance, Location, Metadata, Pace, visible};

/// The metadata key under which [`Kept`] is kept.
pub(super) const KEPT: &str = "kingpost.consul";
/// The metadata key of a check's id that is not `service:ID`, so that the index finds it.
pub(super) const CHECK_ID: &str = "kingpost.check";
/// The metadata key of the address that a registration came from, where that is not the address of the service. In the index: by it
/// an agent's client is told from the clients of other agents that use the same service id.
pub(super) const FROM: &str = "kingpost.from";
/// Consul's weights are small numbers around 1, ours around 100.
pub(super) const WEIGHT_SCALE: u16 = 100;

/// What Consul knows of an instance and the model does not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Kept {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tags: Vec<String>,
    /// The node of the catalog. Of a service that came through an agent's API: the address of its host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) node: String,
    /// Whether the service came through the API of an agent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) agent: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) check_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) notes: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tagged_addresses: Option<Value>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) enable_tag_override: bool,
    /// The weight while it is warning, where that was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) warning_weight: Option<u16>,
    /// The address of the node, where the service has another one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) node_address: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) node_id: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) node_meta: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) node_tagged_addresses: BTreeMap<String, String>,
}

impl Kept {
    /// What is kept of an instance; nothing if another front registered it.
    pub(super) fn of(instance: &Instance) -> Kept {
        instance.metadata.get(KEPT).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }
}

/// An object whose keys are looked up without regard to case and underscores.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object<'a> {
    map: &'a Map<String, Value>,
    /// What messages call it.
    name: &'a str,
}

impl<'a> Object<'a> {
    pub(super) fn new(value: &'a Value, name: &'a str) -> Result<Object<'a>, ApiError> {
        let map = value.as_object().ok_or_else(|| ApiError::bad(format!("{name}: expected an object")))?;
        Ok(Object { map, name })
    }

    /// The value of a key, given in lower case without underscores. `null` is nothing.
    pub(super) fn get(&self, wanted: &str) -> Option<&'a Value> {
        let same = |key: &str| {
            key.bytes().filter(|byte| *byte != b'_').map(|byte| byte.to_ascii_lowercase()).eq(wanted.bytes())
        };
        self.map.iter().find(|(key, _)| same(key)).map(|(_, value)| value).filter(|value| !value.is_null())
    }

    fn wrong(&self, key: &str, expected: &str) -> ApiError {
        ApiError::bad(format!("{}.{key}: expected {expected}", self.name))
    }

    /// Refuses keys that would be dropped, where they say something.
    pub(super) fn refuse(&self, keys: &[&str]) -> Result<(), ApiError> {
        let says = |value: &Value| match value {
            Value::Null => false,
            Value::Bool(flag) => *flag,
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::String(text) => !text.is_empty(),
            Value::Array(list) => !list.is_empty(),
            Value::Object(map) => !map.is_empty(),
        };
        match keys.iter().find(|key| self.get(key).is_some_and(says)) {
            Some(key) => Err(ApiError::bad(format!("{}.{key}: not supported", self.name))),
            None => Ok(()),
        }
    }

    /// Text; empty if it is not there.
    pub(super) fn text(&self, key: &str) -> Result<&'a str, ApiError> {
        match self.get(key) {
            None => Ok(""),
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(self.wrong(key, "text")),
        }
    }

    /// A whole number; Python's clients write it as text now and then.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) if text.is_empty() => Ok(None),
            Some(Value::String(text)) => text.parse().map(Some).map_err(|_| self.wrong(key, "a whole number")),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| self.wrong(key, "a whole number")),
        }
    }

    pub(super) fn port(&self, key: &str) -> Result<u16, ApiError> {
        let number = self.number(key)?.unwrap_or(0);
        u16::try_from(number).map_err(|_| self.wrong(key, "a port from 0 to 65535"))
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, ApiError> {
        match self.get(key) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(key, "true or false")),
        }
    }

    /// A time as text; a number is nanoseconds, as Go writes it.
    pub(super) fn duration(&self, key: &str) -> Result<Option<Duration>, ApiError> {
        let expected = "a time such as 10s";
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) if text.is_empty() => Ok(None),
            Some(Value::String(text)) => parse_duration(text).map(Some).ok_or_else(|| self.wrong(key, expected)),
            Some(value) => {
                let nanos = value.as_u64().ok_or_else(|| self.wrong(key, expected))?;
                Ok((nanos > 0).then(|| Duration::from_nanos(nanos)))
            }
        }
    }

    pub(super) fn texts(&self, key: &str) -> Result<Vec<String>, ApiError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let list = value.as_array().ok_or_else(|| self.wrong(key, "a list of texts"))?;
        list.iter()
            .map(|item| item.as_str().map(str::to_owned).ok_or_else(|| self.wrong(key, "a list of texts")))
            .collect()
    }

    pub(super) fn pairs(&self, key: &str) -> Result<BTreeMap<String, String>, ApiError> {
        let Some(value) = self.get(key) else { return Ok(BTreeMap::new()) };
        let map = value.as_object().ok_or_else(|| self.wrong(key, "an object of texts"))?;
        map.iter()
            .map(|(name, value)| match value {
                Value::String(text) => Ok((name.clone(), text.clone())),
                _ => Err(self.wrong(key, "an object of texts")),
            })
            .collect()
    }
}

/// A service as an agent or the catalog is told of it.
#[derive(Debug, Clone)]
pub(super) struct Service {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) address: String,
    pub(super) port: u16,
    pub(super) weight: u16,
    pub(super) location: Location,
    /// The client's own metadata.
    pub(super) meta: BTreeMap<String, String>,
    pub(super) kept: Kept,
    pub(super) check: Option<Probe>,
}

impl Service {
    /// The metadata of the instance: the client's own entries, and those that the front keeps.
    ///
    /// # Errors
    /// An entry is longer than it may be.
    pub(super) fn metadata(&self, from: Option<&str>) -> Result<Metadata, ApiError> {
        let mut meta = self.meta.clone();
        keep(&mut meta, &self.kept, &self.id, self.check.as_ref());
        meta.insert(CLIENT_ID.into(), self.id.clone());
        if let Some(from) = from {
            meta.insert(FROM.into(), from.into());
        }
        Ok(Metadata::from_pairs(&meta)?)
    }
}

/// A check as it was sent.
#[derive(Debug, Clone, Default)]
pub(super) struct Probe {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) notes: String,
    /// None: only a status, which somebody else keeps up to date.
    pub(super) check: Option<Check>,
    pub(super) status: Option<Health>,
}

/// A status by its name.
pub(super) fn health(name: &str) -> Option<Health> {
    match name {
        "passing" => Some(Health::Passing),
        "warning" => Some(Health::Warning),
        "critical" => Some(Health::Critical),
        _ => None,
    }
}

/// A health's name.
pub(super) fn status(health: Health) -> &'static str {
    match health {
        Health::Passing => "passing",
        Health::Warning => "warning",
        Health::Critical => "critical",
    }
}

/// Reads a service, in the form of the agent's registration; in the catalog the name is called `Service`.
pub(super) fn service(value: &Value, name_key: &str) -> Result<Service, ApiError> {
    let object = Object::new(value, "the service")?;
    let name = object.text(name_key)?;
    if name.is_empty() {
        return Err(ApiError::bad("the service has no name"));
    }
    let id = match object.text("id")? {
        "" => name,
        id => id,
    };
    if !matches!(object.text("kind")?, "" | "typical")
        || object.get("connect").is_some_and(|connect| *connect != Value::Object(Map::new()))
    {
        return Err(ApiError::bad("Kind and Connect: the service mesh is not supported"));
    }
    object.refuse(&["socketpath", "ports", "proxy", "partition", "peername"])?;
    let (weight, warning_weight) = match object.get("weights") {
        Some(weights) => {
            let weights = Object::new(weights, "Weights")?;
            let warning = weights.number("warning")?.filter(|warning| *warning != 1);
            (weights.number("passing")?.unwrap_or(1), warning.map(|warning| u16::try_from(warning).unwrap_or(u16::MAX)))
        }
        None => (1, None),
    };
    let location = match object.get("locality") {
        Some(locality) => {
            let locality = Object::new(locality, "Locality")?;
            Location {
                region: locality.text("region")?.into(),
                zone: locality.text("zone")?.into(),
                ..Location::default()
            }
        }
        None => Location::default(),
    };
    let weight = u16::try_from(weight.saturating_mul(u64::from(WEIGHT_SCALE))).unwrap_or(u16::MAX);
    let meta = object.pairs("meta")?;
    if let Some(key) = meta.keys().find(|key| key.starts_with(RESERVED)) {
        return Err(ApiError::bad(format!("Meta: {key:?} begins with {RESERVED:?}, which is reserved")));
    }
    let check = check_of(&object)?;
    let tags = object.texts("tags")?;
    tags.iter().try_for_each(|tag| visible("tag", tag))?;
    let kept = Kept {
        tags,
        check_name: check.as_ref().map(|check| check.name.clone()).unwrap_or_default(),
        notes: check.as_ref().map(|check| check.notes.clone()).unwrap_or_default(),
        tagged_addresses: object.get("taggedaddresses").filter(|value| value.is_object()).cloned(),
        enable_tag_override: object.flag("enabletagoverride")?,
        warning_weight,
        ..Kept::default()
    };
    Ok(Service {
        id: id.to_owned(),
        name: name.to_owned(),
        address: object.text("address")?.to_owned(),
        port: object.port("port")?,
        weight,
        location,
        meta,
        kept,
        check,
    })
}

/// Puts what the model does not know into the metadata.
pub(super) fn keep(meta: &mut BTreeMap<String, String>, kept: &Kept, id: &str, check: Option<&Probe>) {
    match *kept == Kept::default() {
        true => meta.remove(KEPT),
        false => meta.insert(KEPT.into(), serde_json::to_string(kept).unwrap_or_default()),
    };
    let usual = format!("service:{id}");
    match check.map(|check| check.id.as_str()) {
        Some(check) if !check.is_empty() && check != usual => meta.insert(CHECK_ID.into(), check.to_owned()),
        _ => meta.remove(CHECK_ID),
    };
}

/// The one check of a registration.
fn check_of(object: &Object<'_>) -> Result<Option<Probe>, ApiError> {
    let mut list: Vec<&Value> = object.get("check").into_iter().collect();
    if let Some(more) = object.get("checks") {
        list.extend(more.as_array().ok_or_else(|| ApiError::bad("Checks: expected a list"))?);
    }
    // Some clients send an empty object for no check.
    list.retain(|value| value.as_object().is_none_or(|map| !map.is_empty()));
    match list.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(probe(one)?)),
        more => Err(ApiError::bad(format!("Checks: {} of them, expected at most one a service", more.len()))),
    }
}

/// What a check may not say, for it would be probed otherwise than its owner means. What has no effect here is taken: redirects are
/// never followed (`DisableRedirects`), no output is kept (`OutputMaxSize`), and without TLS there is nothing to verify (`TLSSkipVerify`).
const REFUSED_OF_CHECKS: [&str; 15] = [
    "args",
    "scriptargs",
    "script",
    "dockercontainerid",
    "udp",
    "h2ping",
    "osservice",
    "aliasservice",
    "aliasnode",
    "header",
    "body",
    "tcpusetls",
    "grpcusetls",
    "tlsservername",
    "failuresbeforewarning",
];

/// Reads a check.
pub(super) fn probe(value: &Value) -> Result<Probe, ApiError> {
    let object = Object::new(value, "Check")?;
    object.refuse(&REFUSED_OF_CHECKS)?;
    if !matches!(object.text("method")?, "" | "GET") {
        return Err(ApiError::bad("Check.method: probes ask with GET"));
    }
    let status =
        match object.text("status")? {
            "" => None,
            text => Some(health(text).ok_or_else(|| {
                ApiError::bad(format!("Check.Status {text:?}: expected passing, warning or critical"))
            })?),
        };
    let more = |key: &str| -> Result<u8, ApiError> {
        Ok(u8::try_from(object.number(key)?.unwrap_or(0).saturating_add(1)).unwrap_or(u8::MAX))
    };
    let default = Pace::default();
    let pace = Pace {
        interval: object.duration("interval")?.unwrap_or(default.interval),
        timeout: object.duration("timeout")?.unwrap_or(default.timeout),
        fall: more("failuresbeforecritical")?,
        rise: more("successbeforepassing")?,
    };
    let kind = match (object.duration("ttl")?, object.text("http")?, object.text("tcp")?, object.text("grpc")?) {
        (None, "", "", "") => None,
        (Some(ttl), "", "", "") => Some(CheckKind::Ttl { ttl }),
        (None, url, "", "") => Some(CheckKind::Http { url: url.to_owned(), pace }),
        (None, "", target, "") => Some(CheckKind::Tcp { target: Some(target.to_owned()), pace }),
        (None, "", "", grpc) => {
            let (target, service) = grpc.split_once('/').unwrap_or((grpc, ""));
            Some(CheckKind::Grpc { target: Some(target.to_owned()), service: service.to_owned(), pace })
        }
        _ => return Err(ApiError::bad("Check: expected one of TTL, HTTP, TCP and GRPC")),
    };
    let deregister_after = object.duration("deregistercriticalserviceafter")?.filter(|after| !after.is_zero());
    // A check of its own is `CheckID`; that of an agent's check/register is `ID`.
    let id = match object.text("checkid")? {
        "" => object.text("id")?,
        id => id,
    };
    Ok(Probe {
        id: id.to_owned(),
        name: object.text("name")?.to_owned(),
        notes: object.text("notes")?.to_owned(),
        check: kind.map(|kind| Check { kind, deregister_after }),
        status,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_clients_send() {
        for sent in [
            // Go and Node.
            json!({"ID": "w1", "Name": "web", "Tags": ["a"], "Port": 80, "Meta": {"v": "1"}, "Weights": {"Passing": 2, "Warning": 1},
                   "Check": {"TTL": "10s", "DeregisterCriticalServiceAfter": "1m"}}),
            // Python, in lower case, checks as a list.
            json!({"id": "w1", "name": "web", "tags": ["a"], "port": 80, "meta": {"v": "1"}, "weights": {"passing": 2},
                   "checks": [{"ttl": "10s", "DeregisterCriticalServiceAfter": "1m"}]}),
            json!({"id": "w1", "name": "web", "tags": ["a"], "port": "80", "meta": {"v": "1"}, "weights": {"passing": 2},
                   "check": {"ttl": "10s", "deregister_critical_service_after": 60_000_000_000_u64}, "checks": null}),
        ] {
            let read = service(&sent, "name").unwrap();
            assert_eq!(
                (read.id.as_str(), read.name.as_str(), read.port, read.weight),
                ("w1", "web", 80, 200),
                "{sent}"
            );
            assert_eq!(read.meta.get("v").map(String::as_str), Some("1"));
            assert_eq!(read.kept.tags, ["a"]);
            let check = read.check.unwrap().check.unwrap();
            assert_eq!(check.time_to_live(), Some(Duration::from_secs(10)));
            assert_eq!(check.deregister_after, Some(Duration::from_secs(60)));
        }
    }

    #[test]
    fn what_is_refused() {
        for (sent, names) in [
            (json!([]), "object"),
            (json!({"ID": "x"}), "name"),
            (json!({"Name": "x", "Port": 70000}), "65535"),
            (json!({"Name": "x", "Port": -1}), "number"),
            (json!({"Name": "x", "Tags": "a"}), "list"),
            (json!({"Name": "x", "Meta": {"a": 1}}), "texts"),
            (json!({"Name": "x", "Meta": {"kingpost.consul": "{}"}}), "reserved"),
            (json!({"Name": "x", "Kind": "mesh-gateway"}), "mesh"),
            (json!({"Name": "x", "Check": {"Args": ["sh"], "Interval": "1s"}}), "args"),
            (json!({"Name": "x", "Check": {"GRPC": "a:1", "GRPCUseTLS": true}}), "tls"),
            (json!({"Name": "x", "Check": {"UDP": "a:1"}}), "udp"),
            (json!({"Name": "x", "Check": {"TTL": "soon"}}), "time"),
            (json!({"Name": "x", "Check": {"TTL": "1s", "TCP": "a:1"}}), "one of"),
            (json!({"Name": "x", "Check": {"Status": "fine"}}), "passing"),
            (json!({"Name": "x", "Checks": [{"TTL": "1s"}, {"TTL": "2s"}]}), "at most one"),
        ] {
            let error = service(&sent, "name").unwrap_err().to_string();
            assert!(error.contains(names), "{sent}: {error}");
        }
    }
}
