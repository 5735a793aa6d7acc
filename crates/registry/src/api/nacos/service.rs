//! The record of a service, as its operator sets it: protection threshold, metadata and selector.

use serde_json::json;

use super::wire::{self, Fields};
use super::*;
use crate::Metadata;

/// A service's record. The core stores it as the service's metadata.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ServiceRecord {
    threshold: Threshold,
    /// The selector, as JSON with a type. Stored for the operator: it selects nothing.
    selector: Value,
    own: BTreeMap<String, String>,
}

/// Share of healthy instances, from 0 to 1, down to which all instances are shown as healthy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Threshold(f64);

impl Threshold {
    /// Reads the threshold from a service's metadata, and nothing else of the record: each list needs it.
    pub(super) fn read(metadata: &Metadata) -> Option<Threshold> {
        metadata.get(wire::KEPT)?.split_once(' ')?.0.parse().ok().map(Threshold)
    }

    /// True if all instances are to be shown as healthy: the share of healthy ones is at most the threshold. As in Nacos, a threshold of 0 is reached
    /// when none is healthy, and no instances at all reach none. Nacos compares in single precision.
    pub(super) fn is_reached(self, healthy: usize, all: usize) -> bool {
        all > 0 && healthy as f32 / all as f32 <= self.0 as f32
    }
}

impl Default for ServiceRecord {
    fn default() -> ServiceRecord {
        ServiceRecord { threshold: Threshold(0.0), selector: json!({ "type": "none" }), own: BTreeMap::new() }
    }
}

impl ServiceRecord {
    /// Parses the fields of a request.
    pub(super) fn of(fields: &Fields) -> Result<ServiceRecord, ApiError> {
        let mut record = ServiceRecord::default();
        let text = fields.text("protectThreshold");
        if !text.is_empty() {
            // Java's clients may send 0.5F.
            let number = text.trim_end_matches(['f', 'F']).parse().ok().filter(|share| (0.0..=1.0).contains(share));
            let wrong = || wire::expected("protectThreshold", text, "a number from 0 to 1");
            record.threshold = number.map(Threshold).ok_or_else(wrong)?;
        }
        record.own = wire::pairs(fields.text("metadata"))?;
        wire::not_reserved(&record.own)?;
        let text = fields.text("selector");
        if !text.is_empty() {
            // Clients encode the selector once more than the other fields.
            let text = percent_encoding::percent_decode_str(text).decode_utf8_lossy();
            record.selector = selector(&text)?;
        }
        Ok(record)
    }

    /// Reads the record from a service's metadata; `None` if no client of Nacos has set one.
    pub(super) fn read(metadata: &Metadata) -> Option<ServiceRecord> {
        let (_, selector) = metadata.get(wire::KEPT)?.split_once(' ')?;
        let open = metadata.iter().filter(|(key, _)| !key.starts_with(crate::api::RESERVED));
        Some(ServiceRecord {
            threshold: Threshold::read(metadata)?,
            selector: serde_json::from_str(selector).ok()?,
            own: open.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        })
    }

    /// Returns the metadata that the core stores.
    pub(super) fn metadata(&self) -> Result<Metadata, ApiError> {
        let mut pairs = self.own.clone();
        pairs.insert(wire::KEPT.into(), format!("{} {}", self.threshold.0, self.selector));
        Ok(Metadata::from_pairs(&pairs)?)
    }

    /// Writes the record's fields into the description of a service.
    pub(super) fn describe(&self, description: &mut Value) {
        description["protectThreshold"] = json!(self.threshold.0);
        description["metadata"] = json!(self.own);
        description["selector"] = self.selector.clone();
        description["selector"]["contextType"] = if self.selector["type"] == "none" { "NONE" } else { "CMDB" }.into();
    }
}

fn selector(text: &str) -> Result<Value, ApiError> {
    let wrong = || wire::expected("selector", text, "a JSON object with the type none or label");
    let sent: Value = serde_json::from_str(text).map_err(|_| wrong())?;
    match (sent["type"].as_str(), sent["expression"].as_str()) {
        (Some("none"), _) => Ok(json!({ "type": "none" })),
        (Some("label"), expression) => Ok(json!({ "type": "label", "expression": expression.unwrap_or_default() })),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn record(pairs: &[(&str, &str)]) -> Result<ServiceRecord, ApiError> {
        ServiceRecord::of(&Fields::from_pairs(pairs))
    }

    #[test]
    fn records_are_stored_and_read() {
        let label = r#"{"type":"label","expression":"CONSUMER.label.zone = PROVIDER.label.zone"}"#;
        for pairs in [
            &[][..],
            &[("protectThreshold", "0.8"), ("metadata", "a=b,c=d")],
            &[("protectThreshold", "0.5F"), ("metadata", r#"{"a":"b"}"#), ("selector", label)],
            &[("selector", "%7B%22type%22%3A%22none%22%7D")],
        ] {
            let record = record(pairs).unwrap();
            assert_eq!(ServiceRecord::read(&record.metadata().unwrap()), Some(record), "{pairs:?}");
        }
        let foreign = Metadata::from_pairs([("a", "b")]).unwrap();
        assert_eq!(ServiceRecord::read(&foreign), None, "a record of another front protects nothing");
        for wrong in [
            ("protectThreshold", "NaN"),
            ("protectThreshold", "1.1"),
            ("protectThreshold", "-0.1"),
            ("protectThreshold", "half"),
            ("metadata", "[]"),
            ("metadata", "kingpost.nacos=1"),
            ("selector", "{"),
            ("selector", r#"{"type":"cmdb"}"#),
            ("selector", "[]"),
        ] {
            assert!(record(&[wrong]).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_threshold_is_reached() {
        for (threshold, healthy, all, expected) in [
            ("", 0, 0, false),
            ("1", 0, 0, false),
            ("", 1, 3, false),
            ("", 0, 3, true),
            ("0.5", 2, 4, true),
            ("0.5", 3, 4, false),
            ("0.6", 3, 5, true),
            ("0.7", 7, 10, true),
            ("0.33", 1, 3, false),
            ("1", 3, 3, true),
        ] {
            let record = record(&[("protectThreshold", threshold)]).unwrap();
            assert_eq!(record.threshold.is_reached(healthy, all), expected, "{threshold:?}: {healthy} of {all}");
        }
    }
}
