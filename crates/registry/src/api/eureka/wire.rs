//! Requests of Eureka's clients, and the attributes in them that the model lacks.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::changes::Origin;
use crate::Instance;
use crate::api::ApiError;

/// The metadata key of [`Kept`].
pub(super) const KEPT: &str = "kingpost.eureka";
/// Port of an instance that does not name one.
const DEFAULT_PORT: u16 = 7001;
/// Default duration of a lease.
const DEFAULT_LEASE_SECONDS: u64 = 90;

/// Attributes of a Eureka instance that the model lacks.
///
/// Eureka has three kinds of status: `status` is the one in force, which the instance and operators set in turn ([`precedence`]), `overridden` the one that
/// operators set, and the lease's validity is the model's health. An instance that is not UP is isolated in the model: no front sends traffic to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Kept {
    pub(super) status: String,
    /// Status set by an operator, which may be UNKNOWN; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) overridden: String,
    /// True if the last change was one of the status by an operator, and no registration.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) modified: bool,
    /// True if the instance was UP once, also if it is not now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) up: bool,
    pub(super) last_dirty: i64,
    /// Fields as they were sent: hostName, vipAddress, the addresses of pages …
    #[serde(flatten)]
    pub(super) fields: Map<String, Value>,
}

/// Text fields that are stored and shown as they were sent.
pub(super) const TEXTS: [&str; 10] = [
    "hostName",
    "sid",
    "appGroupName",
    "homePageUrl",
    "statusPageUrl",
    "healthCheckUrl",
    "secureHealthCheckUrl",
    "vipAddress",
    "secureVipAddress",
    "asgName",
];

impl Default for Kept {
    fn default() -> Kept {
        Kept {
            status: "UP".into(),
            overridden: String::new(),
            modified: false,
            up: false,
            last_dirty: 0,
            fields: Map::new(),
        }
    }
}

impl Kept {
    /// Returns the attributes kept with an instance; `None` if another front registered it.
    pub(super) fn of(instance: &Instance) -> Option<Kept> {
        instance.metadata.get(KEPT).and_then(|text| serde_json::from_str(text).ok())
    }

    /// Encodes the attributes as a metadata value.
    pub(super) fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns the effective status, while the lease is valid.
    pub(super) fn effective(&self) -> &str {
        precedence(&self.status, &self.overridden, None)
    }

    /// Returns the attributes after a registration that sent `self`, of an instance that had `before`; `None` if the registration is older than `before`.
    pub(super) fn after(&self, before: Option<&Kept>, origin: Origin) -> Option<Kept> {
        let Some(before) = before else {
            let status = self.effective().to_owned();
            return Some(Kept { status, ..self.clone() });
        };
        // 0: the client does not say when it has changed.
        if self.last_dirty != 0 && self.last_dirty < before.last_dirty {
            return None;
        }
        let overridden = if before.overridden.is_empty() { &self.overridden } else { &before.overridden };
        // As in the original, a server that replicates has applied the last rule already.
        let stays = Some(before.effective()).filter(|_| origin == Origin::Client);
        let status = precedence(&self.status, overridden, stays).to_owned();
        let up = before.was_up() && status != "UP";
        Some(Kept { status, overridden: overridden.clone(), up, ..self.clone() })
    }

    /// Returns true if a Eureka client has registered the instance; else an operator has only set its status.
    pub(super) fn registered(&self) -> bool {
        self.fields.contains_key("hostName")
    }

    /// Returns true if the instance was UP once.
    pub(super) fn was_up(&self) -> bool {
        self.up || self.effective() == "UP"
    }

    /// Sets an operator's status. Without effect, as in the original, if it is the status in force.
    pub(super) fn set_override(&mut self, status: &str) {
        if self.effective() != status {
            self.up = self.was_up() && status != "UP";
            self.status = status.into();
            self.overridden = status.into();
            self.modified = true;
        }
    }

    /// Removes an operator's status. The status is `status` until the instance registers again; if that is UNKNOWN, its next heartbeat is told to.
    pub(super) fn end_override(&mut self, status: &str) {
        if !self.overridden.is_empty() {
            self.up = self.was_up() && status != "UP";
            self.status = status.into();
            self.overridden.clear();
            self.modified = true;
        }
    }

    /// Returns a text field; empty if it was not sent.
    pub(super) fn text(&self, name: &str) -> &str {
        self.fields.get(name).and_then(Value::as_str).unwrap_or_default()
    }
}

/// Returns the status in force of an instance that says `own`, by the first of the original's rules that applies: DOWN, STARTING and UNKNOWN are believed;
/// an operator's status (`overridden`, empty: none) comes before UP and OUT_OF_SERVICE; UP and OUT_OF_SERVICE of an earlier registration (`before`) stay.
fn precedence<'a>(own: &'a str, overridden: &'a str, before: Option<&'a str>) -> &'a str {
    let doubted = |status: &str| matches!(status, "UP" | "OUT_OF_SERVICE");
    match before {
        _ if !doubted(own) => own,
        _ if !overridden.is_empty() => overridden,
        Some(before) if doubted(before) => before,
        _ => own,
    }
}

/// Parses the name of a status.
pub(super) fn status(name: &str) -> Result<String, ApiError> {
    let upper = name.to_ascii_uppercase();
    match upper.as_str() {
        "UP" | "DOWN" | "STARTING" | "OUT_OF_SERVICE" | "UNKNOWN" => Ok(upper),
        _ => Err(ApiError::bad(format!("status {name:?}: expected UP, DOWN, STARTING, OUT_OF_SERVICE or UNKNOWN"))),
    }
}

/// An instance sent by a client.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) id: String,
    /// The application, if the instance names it.
    pub(super) app: Option<String>,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) lease_seconds: u64,
    pub(super) metadata: Vec<(String, String)>,
    pub(super) kept: Kept,
}

/// Parses a number, sent as a number or as text.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str().and_then(|text| text.trim().parse().ok()))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(bool) => Some(bool.to_string()),
        _ => None,
    }
}

/// Parses `{"$": 8080, "@enabled": "true"}`, sent as JSON or converted from XML; or a bare number.
fn port(value: Option<&Value>) -> Result<(u16, bool), ApiError> {
    let Some(value) = value else { return Ok((0, false)) };
    let (digits, enabled) = match value {
        Value::Object(map) => {
            let enabled = map.get("@enabled").and_then(text).is_none_or(|enabled| enabled == "true");
            (map.get("$").unwrap_or(&Value::Null), enabled)
        }
        bare => (bare, true),
    };
    let found = number(digits).and_then(|number| u16::try_from(number).ok());
    found.map(|port| (port, enabled)).ok_or_else(|| ApiError::bad(format!("port {value}: expected 0 to 65535")))
}

/// A part of an instance, with fields looked up by name. A field of an unexpected type is an error: no sent field is silently dropped.
struct ObjectFields<'a> {
    map: &'a Map<String, Value>,
    /// Name of the part in messages.
    name: &'a str,
}

impl<'a> ObjectFields<'a> {
    /// Returns a field. `null` and the empty text of an empty XML element count as missing.
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null() && value.as_str() != Some(""))
    }

    fn wrong(&self, name: &str, expected: &str) -> ApiError {
        ApiError::bad(format!("{}.{name}: expected {expected}", self.name))
    }

    fn text(&self, name: &str) -> Result<Option<String>, ApiError> {
        self.get(name).map(|value| text(value).ok_or_else(|| self.wrong(name, "text"))).transpose()
    }

    fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let read = |value: &Value| value.as_i64().or_else(|| value.as_str()?.trim().parse().ok());
        self.get(name).map(|value| read(value).ok_or_else(|| self.wrong(name, "a whole number"))).transpose()
    }

    fn part(&self, name: &'a str) -> Result<Option<ObjectFields<'a>>, ApiError> {
        let read = |value: &'a Value| value.as_object().ok_or_else(|| self.wrong(name, "an object"));
        let map = self.get(name).map(read).transpose()?;
        Ok(map.map(|map| ObjectFields { map, name }))
    }
}

/// Parses `{"instance": {…}}`. Fields set by the server itself (`lastUpdatedTimestamp`, `actionType`, the time stamps of the lease) are ignored, as
/// in the original.
pub(super) fn read(body: &Value) -> Result<Sent, ApiError> {
    let map = body
        .get("instance")
        .and_then(Value::as_object)
        .ok_or_else(|| ApiError::bad("the body: expected {\"instance\": {…}}"))?;
    let instance = ObjectFields { map, name: "instance" };
    let host_name = instance.text("hostName")?;
    let host = instance
        .text("ipAddr")?
        .or_else(|| host_name.clone())
        .ok_or_else(|| ApiError::bad("the instance has no ipAddr and no hostName"))?;
    // As in the original, an instance without an id is identified by its host name.
    let id = instance.text("instanceId")?.or(host_name).unwrap_or_else(|| host.clone());
    let (secure, secure_on) = port(instance.get("securePort"))?;
    let (plain, plain_on, chosen) = match instance.get("port") {
        // As in the original, which shows it as enabled. A secure port that the client has named is of more use.
        None => (DEFAULT_PORT, true, if secure_on { secure } else { DEFAULT_PORT }),
        Some(sent) => {
            let (plain, on) = port(Some(sent))?;
            (plain, on, if on || !secure_on { plain } else { secure })
        }
    };
    let mut fields = Map::new();
    for name in TEXTS {
        match (name, instance.text(name)?) {
            (_, None) => {}
            // As in the original: names for "none".
            ("sid", Some(value)) if matches!(value.as_str(), "na" | "unknown") => {}
            ("appGroupName", Some(value)) => drop(fields.insert(name.into(), value.to_uppercase().into())),
            (_, Some(value)) => drop(fields.insert(name.into(), value.into())),
        }
    }
    fields.entry("hostName").or_insert_with(|| host.clone().into());
    fields.insert("portEnabled".into(), plain_on.into());
    if plain != chosen {
        fields.insert("plainPort".into(), plain.into());
    }
    if instance.get("securePort").is_some() {
        fields.insert("securePort".into(), serde_json::json!({ "$": secure, "@enabled": secure_on.to_string() }));
    }
    if let Some(country) = instance.integer("countryId")? {
        fields.insert("countryId".into(), country.into());
    }
    if let Some(center) = instance.part("dataCenterInfo")? {
        fields.insert("dataCenterInfo".into(), center.map.clone().into());
    }
    let mut lease_seconds = None;
    if let Some(lease) = instance.part("leaseInfo")? {
        // As in the original, a value that is not above 0 means the default.
        let above = |found: Option<i64>| found.and_then(|seconds| u64::try_from(seconds).ok()).filter(|it| *it > 0);
        // The second name is from Eureka's documented schema.
        let old = above(lease.integer("evictionDurationInSecs")?);
        lease_seconds = above(lease.integer("durationInSecs")?).or(old);
        if let Some(renewal) = above(lease.integer("renewalIntervalInSecs")?) {
            fields.insert("renewalIntervalInSecs".into(), renewal.into());
        }
    }
    let mut metadata = Vec::new();
    if let Some(sent) = instance.part("metadata")? {
        for (key, value) in sent.map.iter().filter(|(key, _)| !key.starts_with('@')) {
            let value = match value {
                Value::Null => String::new(),
                value => text(value).ok_or_else(|| ApiError::bad(format!("metadata {key:?}: expected text")))?,
            };
            metadata.push((key.clone(), value));
        }
    }
    let overridden = match instance.text("overriddenstatus")? {
        Some(found) => Some(found),
        None => instance.text("overriddenStatus")?,
    };
    let overridden = overridden.map(|name| status(&name)).transpose()?.filter(|name| name != "UNKNOWN");
    Ok(Sent {
        id,
        app: instance.text("app")?,
        host,
        port: chosen,
        lease_seconds: lease_seconds.unwrap_or(DEFAULT_LEASE_SECONDS),
        metadata,
        kept: Kept {
            status: status(&instance.text("status")?.unwrap_or_else(|| "UP".into()))?,
            overridden: overridden.unwrap_or_default(),
            modified: false,
            up: false,
            last_dirty: instance.integer("lastDirtyTimestamp")?.unwrap_or(0),
            fields,
        },
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_clients_send() {
        let sent = read(&json!({"instance": {
            "instanceId": "10.0.0.1:shop:8080", "hostName": "a.example", "app": "SHOP", "ipAddr": "10.0.0.1",
            "port": {"$": 8080, "@enabled": "true"}, "securePort": {"$": "9443", "@enabled": "false"},
            "vipAddress": "shop", "status": "UP", "overriddenstatus": "UNKNOWN", "lastDirtyTimestamp": "123",
            "dataCenterInfo": {"@class": "x", "name": "MyOwn"}, "leaseInfo": {"durationInSecs": 30},
            "metadata": {"management.port": "8080", "@class": "y", "n": 1},
        }}))
        .unwrap();
        assert_eq!((sent.id.as_str(), sent.host.as_str(), sent.port), ("10.0.0.1:shop:8080", "10.0.0.1", 8080));
        assert_eq!(sent.lease_seconds, 30);
        assert_eq!(
            sent.metadata,
            [("management.port".to_owned(), "8080".to_owned()), ("n".to_owned(), "1".to_owned())]
        );
        assert_eq!((sent.kept.status.as_str(), sent.kept.overridden.as_str(), sent.kept.last_dirty), ("UP", "", 123));
        assert_eq!(sent.kept.text("vipAddress"), "shop");
        let again: Kept = serde_json::from_str(&sent.kept.to_text()).unwrap();
        assert_eq!(again, sent.kept);
        // The minimum: the Node client's default.
        let least = read(&json!({"instance": {"hostName": "h", "port": 80}})).unwrap();
        assert_eq!((least.id.as_str(), least.host.as_str(), least.port, least.lease_seconds), ("h", "h", 80, 90));
        // Only the secure port.
        let secure = read(
            &json!({"instance": {"ipAddr": "h", "port": {"$": 80, "@enabled": "false"}, "securePort": {"$": 443, "@enabled": "true"}}}),
        );
        assert_eq!(secure.unwrap().port, 443);
    }

    #[test]
    fn whose_status_comes_first() {
        let (up, down, starting, out, unknown, none) = ("UP", "DOWN", "STARTING", "OUT_OF_SERVICE", "UNKNOWN", "");
        for (own, overridden, before, expected) in [
            // DOWN and STARTING are believed, whatever an operator says.
            (down, up, Some(up), down),
            (starting, up, Some(up), starting),
            (down, out, Some(out), down),
            (starting, out, None, starting),
            (unknown, up, Some(up), unknown),
            (down, none, Some(up), down),
            // An operator's status comes before UP and OUT_OF_SERVICE.
            (up, out, Some(out), out),
            (up, down, Some(down), down),
            (up, unknown, Some(unknown), unknown),
            (out, up, Some(down), up),
            (up, starting, None, starting),
            // Without one, UP and OUT_OF_SERVICE stay as they were.
            (up, none, Some(out), out),
            (out, none, Some(up), up),
            (up, none, Some(up), up),
            // Else the instance's own counts.
            (up, none, Some(down), up),
            (out, none, Some(starting), out),
            (up, none, Some(unknown), up),
            (up, none, None, up),
            (out, none, None, out),
        ] {
            assert_eq!(
                precedence(own, overridden, before),
                expected,
                "{own}, {overridden:?} by an operator, {before:?} before"
            );
        }
    }

    #[test]
    fn a_status_through_the_life_of_an_instance() {
        let sent = |status: &str, last_dirty| Kept { status: status.into(), last_dirty, ..Kept::default() };
        let shown = |kept: &Kept| [kept.effective().to_owned(), kept.overridden.clone()];
        let mut kept = sent("UP", 10).after(None, Origin::Client).unwrap();
        // What is in force already is no override.
        kept.set_override("UP");
        assert_eq!(shown(&kept), ["UP", ""]);
        kept.set_override("OUT_OF_SERVICE");
        assert_eq!((shown(&kept), kept.modified), (["OUT_OF_SERVICE".into(), "OUT_OF_SERVICE".into()], true));
        // It survives registrations, also those that tell of another status for a while.
        for (status, expected) in
            [("UP", "OUT_OF_SERVICE"), ("DOWN", "DOWN"), ("STARTING", "STARTING"), ("UP", "OUT_OF_SERVICE")]
        {
            kept = sent(status, 11).after(Some(&kept), Origin::Client).unwrap();
            assert_eq!((shown(&kept), kept.modified), ([expected.into(), "OUT_OF_SERVICE".into()], false), "{status}");
        }
        // An override that a registration brings does not replace it.
        let brings = Kept { overridden: "UP".into(), ..sent("UP", 12) };
        assert_eq!(shown(&brings.after(Some(&kept), Origin::Client).unwrap()), ["OUT_OF_SERVICE", "OUT_OF_SERVICE"]);
        kept.end_override("UNKNOWN");
        assert_eq!(shown(&kept), ["UNKNOWN", ""]);
        kept.end_override("DOWN");
        assert_eq!(shown(&kept), ["UNKNOWN", ""], "there is none any more");
        kept = sent("UP", 12).after(Some(&kept), Origin::Client).unwrap();
        assert_eq!(shown(&kept), ["UP", ""]);
        // An older registration changes nothing; one that does not say when it was made counts.
        assert_eq!(sent("DOWN", 11).after(Some(&kept), Origin::Client), None);
        assert_eq!(sent("DOWN", 12).after(Some(&kept), Origin::Client).map(|kept| kept.status), Some("DOWN".into()));
        assert_eq!(sent("DOWN", 0).after(Some(&kept), Origin::Client).map(|kept| kept.status), Some("DOWN".into()));
        // Another server's word on UP and OUT_OF_SERVICE counts, a client's does not; an operator's status comes before both.
        let (up, out) = (sent("UP", 12), sent("OUT_OF_SERVICE", 12));
        for (before, sent, origin, expected) in [
            (&out, &up, Origin::Client, "OUT_OF_SERVICE"),
            (&out, &up, Origin::Replica, "UP"),
            (&up, &out, Origin::Replica, "OUT_OF_SERVICE"),
            (&Kept { overridden: "DOWN".into(), ..out.clone() }, &up, Origin::Replica, "DOWN"),
        ] {
            assert_eq!(sent.after(Some(before), origin).unwrap().status, expected, "{before:?} {origin:?}");
        }
    }

    #[test]
    fn what_is_refused() {
        for sent in [
            json!({}),
            json!({"instance": []}),
            json!({"instance": {}}),
            json!({"instance": {"ipAddr": "h", "port": {"$": 99999}}}),
            json!({"instance": {"ipAddr": "h", "status": "FINE"}}),
            json!({"instance": {"ipAddr": "h", "metadata": {"a": {"b": 1}}}}),
            json!({"instance": {"ipAddr": "h", "metadata": "a=b"}}),
            json!({"instance": {"ipAddr": "h", "dataCenterInfo": "MyOwn"}}),
            json!({"instance": {"ipAddr": "h", "leaseInfo": {"durationInSecs": "soon"}}}),
            json!({"instance": {"ipAddr": "h", "lastDirtyTimestamp": "yesterday"}}),
            json!({"instance": {"ipAddr": "h", "homePageUrl": ["a"]}}),
        ] {
            assert!(read(&sent).is_err(), "{sent}");
        }
    }
}
