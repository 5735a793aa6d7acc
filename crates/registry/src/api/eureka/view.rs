//! Responses for Eureka's clients. Both forms use one tree: JSON shows it as it is; in XML `@name` is an attribute, `$` the text, and a list is a
//! repeated element.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::wire::{KEPT, Kept, TEXTS};
use crate::api::RESERVED;
use crate::api::identity::in_eureka;
use crate::{Health, Instance};

/// Format of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Xml,
    Json,
}

/// Class of a data center that does not name one.
const DATA_CENTER: &str = "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo";
/// Class that is shown in place of empty metadata.
const NO_METADATA: &str = "java.util.Collections$EmptyMap";
/// Secure port of an instance that does not name one.
const SECURE_PORT: u16 = 7002;

/// Returns the application's name of a service.
pub(super) fn app_name(service: &str) -> String {
    service.to_uppercase()
}

/// Returns an instance's status; `None` if its lease has expired: then it is hidden.
pub(super) fn status(instance: &Instance) -> Option<&'static str> {
    let kept = Kept::of(instance);
    let says = kept.as_ref().map_or("UP", Kept::effective);
    match (&kept, instance.overall()) {
        (Some(_), Health::Critical) => None,
        (None, Health::Critical) => Some("DOWN"),
        // Eureka has no weights.
        _ if instance.is_withdrawn() && says == "UP" => Some("OUT_OF_SERVICE"),
        _ => Some(match says {
            "UP" => "UP",
            "DOWN" => "DOWN",
            "STARTING" => "STARTING",
            "OUT_OF_SERVICE" => "OUT_OF_SERVICE",
            _ => "UNKNOWN",
        }),
    }
}

/// Returns an instance as a tree.
pub(super) fn instance(instance: &Instance, form: Form) -> Value {
    let kept = Kept::of(instance).unwrap_or_default();
    let name = instance.service.name();
    let lease = instance.check.as_ref().and_then(|check| check.time_to_live()).map_or(90, |ttl| ttl.as_secs().max(1));
    let mut metadata: Map<String, Value> = instance
        .metadata
        .iter()
        .filter(|(key, _)| *key != KEPT && !key.starts_with(RESERVED))
        .map(|(key, value)| (key.to_owned(), value.into()))
        .collect();
    if metadata.is_empty() {
        metadata.insert("@class".to_owned(), NO_METADATA.into());
    }
    let text_or = |field: &str, other: &str| match kept.text(field) {
        "" => other.to_owned(),
        text => text.to_owned(),
    };
    let plain_on = kept.fields.get("portEnabled").and_then(Value::as_bool).unwrap_or(true);
    let mut shown = json!({
        "instanceId": in_eureka(instance),
        "hostName": text_or("hostName", &instance.host),
        "app": app_name(name),
        "ipAddr": &*instance.host,
        "status": status(instance).unwrap_or("DOWN"),
        // The name differs between the original's two forms.
        (if form == Form::Json { "overriddenStatus" } else { "overriddenstatus" }): if kept.overridden.is_empty() { "UNKNOWN" } else { &kept.overridden },
        "port": {
            "$": kept.fields.get("plainPort").and_then(Value::as_u64).unwrap_or(u64::from(instance.port)),
            "@enabled": plain_on.to_string(),
        },
        "securePort": kept.fields.get("securePort").cloned().unwrap_or_else(|| json!({ "$": SECURE_PORT, "@enabled": "false" })),
        "countryId": kept.fields.get("countryId").filter(|value| value.is_number()).cloned().unwrap_or_else(|| json!(1)),
        "dataCenterInfo": kept.fields.get("dataCenterInfo").filter(|value| value.is_object()).cloned()
            .unwrap_or_else(|| json!({ "@class": DATA_CENTER, "name": "MyOwn" })),
        "leaseInfo": {
            "renewalIntervalInSecs": kept.fields.get("renewalIntervalInSecs").and_then(Value::as_u64).unwrap_or(30),
            "durationInSecs": lease,
            "registrationTimestamp": instance.ctime,
            "lastRenewalTimestamp": instance.mtime,
            "evictionTimestamp": 0,
            "serviceUpTimestamp": if kept.was_up() { instance.ctime } else { 0 },
        },
        "metadata": metadata,
        // No instance is this server.
        "isCoordinatingDiscoveryServer": "false",
        "lastUpdatedTimestamp": instance.mtime.to_string(),
        "lastDirtyTimestamp": last_dirty(instance, &kept).to_string(),
        "actionType": if kept.modified { "MODIFIED" } else { "ADDED" },
    });
    if let Some(vip) = vip(instance, &kept) {
        shown["vipAddress"] = vip.into();
    }
    for field in TEXTS.iter().filter(|field| shown.get(**field).is_none()).copied().collect::<Vec<_>>() {
        if let Some(value) = kept.fields.get(field).filter(|value| value.is_string()) {
            shown[field] = value.clone();
        }
    }
    shown
}

/// Returns the time of the client's last change; as in the original, the time of the registration for a client that says none.
pub(super) fn last_dirty(instance: &Instance, kept: &Kept) -> i64 {
    if kept.last_dirty == 0 { instance.mtime } else { kept.last_dirty }
}

/// Returns the addresses by which clients find an instance; `None` if its client has sent none.
pub(super) fn vip<'a>(instance: &'a Instance, kept: &'a Kept) -> Option<&'a str> {
    if kept.registered() {
        Some(kept.text("vipAddress")).filter(|text| !text.is_empty())
    } else {
        Some(instance.service.name())
    }
}

/// Returns a removed instance in its last state: clients find it by its id, or by host and port.
pub(super) fn gone(last: &Instance, mtime: i64, form: Form) -> Value {
    let mut shown = instance(last, form);
    shown["leaseInfo"]["evictionTimestamp"] = mtime.into();
    shown["actionType"] = "DELETED".into();
    shown["lastUpdatedTimestamp"] = mtime.to_string().into();
    shown
}

/// Returns an application as a tree.
pub(super) fn application(name: &str, instances: Vec<Value>) -> Value {
    json!({ "name": name, "instance": instances })
}

/// Number of instances by status, which clients compare with their own to detect missed changes.
#[derive(Debug, Default)]
pub(super) struct HashCode(BTreeMap<&'static str, usize>);

impl HashCode {
    pub(super) fn add(&mut self, status: &'static str) {
        *self.0.entry(status).or_default() += 1;
    }

    /// Adds a result of [`HashCode::text`].
    pub(super) fn add_text(&mut self, text: &[u8]) {
        let text = std::str::from_utf8(text).unwrap_or_default();
        for status in STATUSES {
            let mark = format!("{status}_");
            // OUT_OF_SERVICE contains underscores; no status ends with another one.
            let count =
                text.find(&mark).and_then(|at| text[at + mark.len()..].split('_').next()?.parse::<usize>().ok());
            if let Some(count) = count {
                *self.0.entry(status).or_default() += count;
            }
        }
    }

    /// Returns text such as `DOWN_1_UP_2_`.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (status, count) in &self.0 {
            let _ = write!(text, "{status}_{count}_");
        }
        text
    }
}

/// All statuses of an instance.
const STATUSES: [&str; 5] = ["DOWN", "OUT_OF_SERVICE", "STARTING", "UNKNOWN", "UP"];

/// Returns a named tree as an XML element.
pub(super) fn xml_part(name: &str, value: &Value) -> String {
    let mut text = String::new();
    element(&mut text, name, value);
    text
}

/// Returns a named tree as an XML document.
pub(super) fn xml(name: &str, value: &Value) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>");
    element(&mut text, name, value);
    text
}

fn element(text: &mut String, name: &str, value: &Value) {
    let name = tag(name);
    match value {
        Value::Array(items) => {
            for item in items {
                element(text, &name, item);
            }
        }
        Value::Object(map) => {
            let _ = write!(text, "<{name}");
            let mut seen = Vec::new();
            for (key, value) in map {
                if let Some(attribute) = key.strip_prefix('@').map(tag)
                    && !seen.contains(&attribute)
                {
                    let _ = write!(text, " {attribute}=\"");
                    seen.push(attribute);
                    escape(text, &plain(value));
                    text.push('"');
                }
            }
            text.push('>');
            for (key, value) in map.iter().filter(|(key, _)| !key.starts_with('@')) {
                match key.as_str() {
                    "$" => escape(text, &plain(value)),
                    key => element(text, key, value),
                }
            }
            let _ = write!(text, "</{name}>");
        }
        value => {
            let _ = write!(text, "<{name}>");
            escape(text, &plain(value));
            let _ = write!(text, "</{name}>");
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        value => value.to_string(),
    }
}

/// Returns an element's name for a metadata key: a character not allowed in names becomes `_xHHHH_`. Names allow fewer characters than Unicode's
/// letters and digits (not `µ`, `ª`, `²`), and editions of XML differ: only characters allowed by all are kept.
fn tag(key: &str) -> String {
    if key.is_empty() {
        return "_".into();
    }
    let mut name = String::with_capacity(key.len());
    for (at, c) in key.chars().enumerate() {
        let letter = c.is_ascii_alphabetic()
            || matches!(c, '\u{c0}'..='\u{d6}' | '\u{d8}'..='\u{f6}' | '\u{f8}'..='\u{ff}')
            || matches!(c, '\u{4e00}'..='\u{9fa5}' | '\u{ac00}'..='\u{d7a3}');
        let fits = letter || c == '_' || (at > 0 && (c.is_ascii_digit() || matches!(c, '-' | '.')));
        if fits {
            name.push(c);
        } else {
            let _ = write!(name, "_x{:04X}_", u32::from(c));
        }
    }
    name
}

/// Escapes text for XML; characters not allowed in XML become U+FFFD.
fn escape(text: &mut String, raw: &str) {
    for c in raw.chars() {
        match c {
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '&' => text.push_str("&amp;"),
            '"' => text.push_str("&quot;"),
            '\t' | '\n' | '\r' => {
                let _ = write!(text, "&#{};", u32::from(c));
            }
            c if u32::from(c) < 0x20 || matches!(c, '\u{fffe}' | '\u{ffff}') => text.push('\u{fffd}'),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_become_xml() {
        let tree = json!({
            "name": "A<B", "port": { "$": 80, "@enabled": "true" }, "instance": [{ "id": "1" }, { "id": "2" }],
            "metadata": { "a b": "x&y", "1st": "z", "e": "" }, "none": [],
        });
        let expected = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><application>\
            <instance><id>1</id></instance><instance><id>2</id></instance>\
            <metadata><_x0031_st>z</_x0031_st><a_x0020_b>x&amp;y</a_x0020_b><e></e></metadata>\
            <name>A&lt;B</name><port enabled=\"true\">80</port></application>";
        assert_eq!(xml("application", &tree), expected);
    }

    #[test]
    fn hash_codes() {
        let mut code = HashCode::default();
        assert_eq!(code.text(), "");
        for status in ["UP", "DOWN", "UP"] {
            code.add(status);
        }
        assert_eq!(code.text(), "DOWN_1_UP_2_");
        let mut all = HashCode::default();
        STATUSES.iter().for_each(|status| all.add(status));
        for text in [code.text(), all.text(), String::new(), all.text()] {
            code.add_text(text.as_bytes());
        }
        assert_eq!(code.text(), "DOWN_4_OUT_OF_SERVICE_2_STARTING_2_UNKNOWN_2_UP_6_");
    }
}
