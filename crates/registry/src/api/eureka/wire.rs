//! What Eureka's clients send, and what of it the model does not know.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Instance;
use crate::api::ApiError;

/// The metadata key under which [`Kept`] is kept.
pub(super) const KEPT: &str = "kingpost.eureka";
/// What a lease lasts that does not say.
const DEFAULT_LEASE_SECONDS: u64 = 90;

/// What Eureka knows of an instance and the model does not.
///
/// Of the three things that Eureka calls status, `status` is what the instance says, `overridden` what an operator says, and
/// whether the lease lives is the model's health. Whatever is not UP is isolated in the model: no front sends traffic to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Kept {
    pub(super) status: String,
    /// Empty: nobody has overridden it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) overridden: String,
    pub(super) last_dirty: i64,
    /// Text fields as they were sent: hostName, vipAddress, the addresses of pages …
    #[serde(flatten)]
    pub(super) fields: Map<String, Value>,
}

/// The fields that are kept as they were sent.
const FIELDS: [&str; 16] = [
    "hostName",
    "sid",
    "appGroupName",
    "homePageUrl",
    "statusPageUrl",
    "healthCheckUrl",
    "secureHealthCheckUrl",
    "vipAddress",
    "secureVipAddress",
    "countryId",
    "dataCenterInfo",
    "securePort",
    "portEnabled",
    "asgName",
    "isCoordinatingDiscoveryServer",
    "renewalIntervalInSecs",
];

impl Default for Kept {
    fn default() -> Kept {
        Kept { status: "UP".into(), overridden: String::new(), last_dirty: 0, fields: Map::new() }
    }
}

impl Kept {
    /// What is kept of an instance; None if another front registered it.
    pub(super) fn of(instance: &Instance) -> Option<Kept> {
        instance.metadata.get(KEPT).and_then(|text| serde_json::from_str(text).ok())
    }

    /// As metadata.
    pub(super) fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The status that counts, as long as the lease lives.
    pub(super) fn effective(&self) -> &str {
        if self.overridden.is_empty() { &self.status } else { &self.overridden }
    }

    /// A text field; empty if it was not sent.
    pub(super) fn text(&self, name: &str) -> &str {
        self.fields.get(name).and_then(Value::as_str).unwrap_or_default()
    }
}

/// A status by its name.
pub(super) fn status(name: &str) -> Result<String, ApiError> {
    let upper = name.to_ascii_uppercase();
    match upper.as_str() {
        "UP" | "DOWN" | "STARTING" | "OUT_OF_SERVICE" | "UNKNOWN" => Ok(upper),
        _ => Err(ApiError::bad(format!("status {name:?}: expected UP, DOWN, STARTING, OUT_OF_SERVICE or UNKNOWN"))),
    }
}

/// An instance as it was sent.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) id: String,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) lease_seconds: u64,
    pub(super) metadata: Vec<(String, String)>,
    pub(super) kept: Kept,
}

/// Numbers come as numbers or as text.
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

/// `{"$": 8080, "@enabled": "true"}`, as JSON or made of XML; or a bare number.
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

/// Reads `{"instance": {…}}`.
pub(super) fn read(body: &Value) -> Result<Sent, ApiError> {
    let instance = body
        .get("instance")
        .and_then(Value::as_object)
        .ok_or_else(|| ApiError::bad("the body: expected {\"instance\": {…}}"))?;
    let field = |name: &str| instance.get(name).and_then(text).filter(|text| !text.is_empty());
    let host = field("ipAddr")
        .or_else(|| field("hostName"))
        .ok_or_else(|| ApiError::bad("the instance has no ipAddr and no hostName"))?;
    // As the original: an instance without an id is known by its host's name.
    let id = field("instanceId").or_else(|| field("hostName")).unwrap_or_else(|| host.clone());
    let (plain, plain_on) = port(instance.get("port"))?;
    let (secure, secure_on) = port(instance.get("securePort"))?;
    let lease = instance.get("leaseInfo").and_then(Value::as_object);
    let lease_field = |name: &str| lease.and_then(|lease| lease.get(name)).and_then(number).filter(|found| *found > 0);
    let mut fields = Map::new();
    for name in FIELDS {
        if let Some(value) =
            instance.get(name).filter(|value| !value.is_null() && **value != Value::String(String::new()))
        {
            fields.insert(name.into(), value.clone());
        }
    }
    if !fields.contains_key("hostName") {
        fields.insert("hostName".into(), host.clone().into());
    }
    fields.insert("portEnabled".into(), plain_on.into());
    if let Some(renewal) = lease_field("renewalIntervalInSecs") {
        fields.insert("renewalIntervalInSecs".into(), renewal.into());
    }
    let mut metadata = Vec::new();
    if let Some(map) = instance.get("metadata").and_then(Value::as_object) {
        for (key, value) in map.iter().filter(|(key, _)| !key.starts_with('@')) {
            let value = match value {
                Value::Null => String::new(),
                value => text(value).ok_or_else(|| ApiError::bad(format!("metadata {key:?}: expected text")))?,
            };
            metadata.push((key.clone(), value));
        }
    }
    let overridden = field("overriddenstatus").or_else(|| field("overriddenStatus")).unwrap_or_default();
    let overridden = if overridden.is_empty() { overridden } else { status(&overridden)? };
    Ok(Sent {
        id,
        host,
        port: if plain_on || !secure_on { plain } else { secure },
        lease_seconds: lease_field("durationInSecs").unwrap_or(DEFAULT_LEASE_SECONDS),
        metadata,
        kept: Kept {
            status: status(&field("status").unwrap_or_else(|| "UP".into()))?,
            overridden: if overridden == "UNKNOWN" { String::new() } else { overridden },
            last_dirty: instance
                .get("lastDirtyTimestamp")
                .and_then(number)
                .and_then(|n| i64::try_from(n).ok())
                .unwrap_or(0),
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
        // The least: what the Node client sends without more.
        let least = read(&json!({"instance": {"hostName": "h", "port": 80}})).unwrap();
        assert_eq!((least.id.as_str(), least.host.as_str(), least.port, least.lease_seconds), ("h", "h", 80, 90));
        // Only the secure port.
        let secure = read(
            &json!({"instance": {"ipAddr": "h", "port": {"$": 80, "@enabled": "false"}, "securePort": {"$": 443, "@enabled": "true"}}}),
        );
        assert_eq!(secure.unwrap().port, 443);
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
        ] {
            assert!(read(&sent).is_err(), "{sent}");
        }
    }
}
