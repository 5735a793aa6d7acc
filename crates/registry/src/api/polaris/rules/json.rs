//! Rules as JSON in protobuf's mapping, by the descriptors that `build.rs` makes of `proto/`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use prost::Message as _;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{Kind, Rule, pb, routing};
use crate::api::ApiError;
use crate::api::grpc::proto::DESCRIBED;

/// Maximum number of rules in a request, as of Polaris' own server.
pub(super) const MOST: usize = 100;
/// Prefix of a message's type in JSON; the second one is an older form.
const TYPE: &str = "type.googleapis.com/v1.";
const OLD_TYPE: &str = "type.googleapis.com/v2.";

/// Our own descriptors, which a test parses: if they cannot be decoded, there are no messages.
static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(DESCRIBED).unwrap_or_else(|error| {
        tracing::error!(%error, "the description of messages cannot be read");
        DescriptorPool::new()
    })
});

fn described(name: &str) -> Result<MessageDescriptor, ApiError> {
    let none = || ApiError::NotImplemented(format!("the message {name} is not described"));
    POOL.get_message_by_name(name).ok_or_else(none)
}

/// Returns the message in a routing rule with this policy. Polaris' clients support no other.
pub(super) fn config_of(policy: i32) -> Result<&'static str, ApiError> {
    match pb::RoutingPolicy::try_from(policy) {
        Ok(pb::RoutingPolicy::RulePolicy) => Ok("v1.RuleRoutingConfig"),
        Ok(pb::RoutingPolicy::NearbyPolicy) => Ok("v1.NearbyRoutingConfig"),
        _ => Err(ApiError::bad("routing_policy: expected RulePolicy or NearbyPolicy")),
    }
}

/// Parses the rules of a request, a list. An unknown field or a duplicate key is an error.
pub(super) fn read(kind: Kind, body: &[u8]) -> Result<Vec<Rule>, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let wrong = |error: serde_json::Error| ApiError::bad(format!("the body: {error}"));
    let value = Strict.deserialize(&mut reader).map_err(wrong)?;
    reader.end().map_err(wrong)?;
    let Value::Array(list) = value else {
        return Err(ApiError::bad("the body: expected a list of rules"));
    };
    if list.len() > MOST {
        return Err(ApiError::TooLarge {
            what: "the list of rules",
            limit: "rules of one request",
            value: MOST as u64,
        });
    }
    let one = |(index, value): (usize, Value)| {
        rule(kind, value).map_err(|error| match error {
            ApiError::BadRequest(text) => ApiError::bad(format!("rule {} of the list: {text}", index + 1)),
            other => other,
        })
    };
    list.into_iter().enumerate().map(one).collect()
}

fn rule(kind: Kind, mut value: Value) -> Result<Rule, ApiError> {
    let Some(fields) = value.as_object_mut() else {
        return Err(ApiError::bad("expected an object"));
    };
    // A rule read from here, or from Polaris' own server, has its type.
    match fields.remove("@type") {
        Some(Value::String(found)) if found.replace(OLD_TYPE, TYPE).rsplit('/').next() != Some(kind.message()) => {
            return Err(ApiError::bad(format!("@type: found {found:?}, expected {:?}", kind.message())));
        }
        None | Some(Value::String(_)) => {}
        Some(_) => return Err(ApiError::bad("@type: expected a text")),
    }
    if kind == Kind::Routing {
        type_config(fields)?;
    }
    let message = described(kind.message())?;
    once(&message, &value)?;
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let message = DynamicMessage::deserialize_with_options(message, value, &options)
        .map_err(|error| ApiError::bad(error.to_string()))?;
    kind.decode(&message.encode_to_vec()).map_err(|error| ApiError::bad(error.to_string()))
}

/// Rejects a field given by both of its names: one of the values would be lost.
fn once(message: &MessageDescriptor, value: &Value) -> Result<(), ApiError> {
    // A value of another type, or an unknown field, is an error of the later deserialization.
    let Value::Object(fields) = value else { return Ok(()) };
    if message.full_name() == "google.protobuf.Any" {
        let name = fields.get("@type").and_then(Value::as_str).and_then(|name| name.rsplit('/').next());
        let inner = name.filter(|name| *name != message.full_name()).and_then(|name| POOL.get_message_by_name(name));
        return inner.map_or(Ok(()), |inner| once(&inner, value));
    }
    let mut seen = BTreeMap::new();
    for (name, value) in fields {
        let Some(field) = message.get_field_by_json_name(name).or_else(|| message.get_field_by_name(name)) else {
            continue;
        };
        if let Some(other) = seen.insert(field.number(), name) {
            return Err(ApiError::bad(format!("{other:?} and {name:?} are two names of one field")));
        }
        let prost_reflect::Kind::Message(inner) = field.kind() else { continue };
        match value {
            Value::Object(entries) if field.is_map() => {
                let prost_reflect::Kind::Message(inner) = inner.map_entry_value_field().kind() else { continue };
                entries.values().try_for_each(|value| once(&inner, value))?;
            }
            Value::Array(list) => list.iter().try_for_each(|value| once(&inner, value))?,
            value => once(&inner, value)?,
        }
    }
    Ok(())
}

/// Sets the type of a routing rule's configuration, if it is missing or in the older form.
fn type_config(rule: &mut Map<String, Value>) -> Result<(), ApiError> {
    let policy = match rule.get("routing_policy") {
        None | Some(Value::Null) => 0,
        Some(Value::String(name)) => pb::RoutingPolicy::from_str_name(name).map_or(-1, i32::from),
        Some(number) => number.as_i64().and_then(|number| i32::try_from(number).ok()).unwrap_or(-1),
    };
    let Some(Value::Object(config)) = rule.get_mut("routing_config") else { return Ok(()) };
    let expected = config_of(policy)?;
    let found = match config.get("@type") {
        None => None,
        Some(Value::String(found)) => Some(found.replace(OLD_TYPE, TYPE)),
        Some(_) => return Err(ApiError::bad("routing_config.@type: expected a text")),
    };
    let found = found.unwrap_or_else(|| format!("type.googleapis.com/{expected}"));
    // Checked before the message is looked up: only the expected one is allowed.
    if found.rsplit('/').next() != Some(expected) {
        return Err(ApiError::bad(format!("routing_config.@type: found {found:?}, expected {TYPE}… of {expected}")));
    }
    config.insert("@type".into(), Value::String(found));
    Ok(())
}

/// Returns a rule as JSON; with `typed`, including the name of its message, as for a message of any type.
pub(super) fn show(rule: &Rule, typed: bool) -> Value {
    let shown = shown(rule.kind().message(), &rule.encode());
    match shown {
        Ok(Value::Object(mut fields)) if typed => {
            fields.insert("@type".into(), format!("type.googleapis.com/{}", rule.kind().message()).into());
            Value::Object(fields)
        }
        Ok(value) => value,
        Err(error) => {
            // The rule was parsed with the same descriptors.
            tracing::warn!(%error, kind = rule.kind().name(), id = rule.id(), "a rule cannot be written as JSON");
            serde_json::json!({ "id": rule.id() })
        }
    }
}

/// Returns a message as JSON, including unset fields that have a default.
pub(in super::super) fn shown(name: &str, bytes: &[u8]) -> Result<Value, ApiError> {
    let message = DynamicMessage::decode(described(name)?, bytes).map_err(|error| ApiError::bad(error.to_string()))?;
    let options = SerializeOptions::new().skip_default_fields(false);
    let written = message.serialize_with_options(serde_json::value::Serializer, &options);
    written.map_err(|error| ApiError::bad(error.to_string()))
}

/// Parses a body as rules of each kind, for the fuzzer.
///
/// # Errors
/// A rule differs after it was written and parsed again.
#[doc(hidden)]
pub fn read_any(body: &[u8]) -> Result<(), String> {
    // The bytes of a configuration may be in another order: maps are unordered.
    let comparable = |mut rule: Rule| {
        let config = match &mut rule {
            Rule::Routing(rule) => {
                let config = routing(rule).ok();
                rule.routing_config = None;
                config
            }
            Rule::Limit(_) | Rule::Breaker(_) | Rule::Detector(_) => None,
        };
        (rule, config)
    };
    for kind in Kind::ALL {
        for rule in read(kind, body).unwrap_or_default() {
            let written = Value::Array(vec![show(&rule, false)]).to_string();
            let mut again = read(kind, written.as_bytes()).map_err(|error| format!("{written}: {error}"))?;
            let again = again.pop().map(comparable);
            let first = comparable(rule);
            if again.as_ref() != Some(&first) {
                return Err(format!("{written}: {first:?} became {again:?}"));
            }
        }
    }
    Ok(())
}

/// Deserializer of a JSON value in which no object has a duplicate key.
struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(Strict)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(Strict)?;
            if fields.insert(key.clone(), value).is_some() {
                return Err(A::Error::custom(format_args!("the key {key:?} is there twice")));
            }
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
