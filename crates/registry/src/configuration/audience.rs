//! The audience of a gray release: the clients that get another content than all others.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::model::{Invalid, check_text};

/// Maximum number of addresses, and of labels, of an audience.
const MOST_ADDRESSES: usize = 1000;
const MOST_LABELS: usize = 64;
/// Maximum length of a label of an audience, in bytes.
const LABEL_BYTES: usize = 256;
/// Maximum number and length of the labels of a client; further and longer ones are dropped.
const MOST_OF_CLIENT: usize = 64;

/// Name of the label for the tag of Nacos' clients.
pub(crate) const TAG: &str = "Vipserver-Tag";

/// Clients of a gray release: those at one of the addresses, and those with one of the labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audience {
    addresses: Vec<String>,
    /// `NAME=VALUE`.
    labels: Vec<String>,
}

/// A client, as far as gray releases tell clients apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigClient {
    address: String,
    labels: BTreeMap<String, String>,
}

impl Audience {
    /// Validates addresses, and labels in the form `NAME=VALUE`. An audience without both stands for all clients.
    ///
    /// # Errors
    /// There are too many, an address is none, or a label has no name or value.
    pub fn new(addresses: Vec<String>, labels: Vec<String>) -> Result<Audience, Invalid> {
        for (what, found, limit) in [
            ("addresses of the gray release", addresses.len(), MOST_ADDRESSES),
            ("labels of the gray release", labels.len(), MOST_LABELS),
        ] {
            if found > limit {
                return Err(Invalid::TooLong { what, found, limit });
            }
        }
        let shown = |text: &str| text.chars().take(64).collect();
        if let Some(found) = addresses.iter().find(|one| one.parse::<IpAddr>().is_err()) {
            let (what, expected) = ("address of the gray release", "an IP address");
            return Err(Invalid::Value { what, found: shown(found), expected });
        }
        for label in &labels {
            check_text("label of the gray release", label, 1, LABEL_BYTES)?;
            if !label.split_once('=').is_some_and(|(name, value)| !name.is_empty() && !value.is_empty()) {
                let (what, expected) = ("label of the gray release", "NAME=VALUE");
                return Err(Invalid::Value { what, found: shown(label), expected });
            }
        }
        Ok(Audience { addresses, labels })
    }

    /// Makes the audience of a stored row, which was validated before it was written.
    pub(super) fn stored(addresses: Vec<String>, labels: Vec<String>) -> Audience {
        Audience { addresses, labels }
    }

    /// Returns the addresses.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Returns the labels, as `NAME=VALUE`.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// True for the audience of all clients.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.labels.is_empty()
    }

    /// True if a client belongs to the audience of a gray release.
    pub(crate) fn includes(&self, client: &ConfigClient) -> bool {
        let has = |label: &String| {
            label.split_once('=').is_some_and(|(name, value)| client.labels.get(name).is_some_and(|it| it == value))
        };
        self.addresses.contains(&client.address) || self.labels.iter().any(has)
    }
}

impl ConfigClient {
    /// Makes a client at an address, without labels.
    pub fn at(address: impl Into<String>) -> ConfigClient {
        ConfigClient { address: address.into(), labels: BTreeMap::new() }
    }

    /// Adds labels; empty ones, and those beyond the limits, are dropped.
    #[must_use]
    pub fn with(mut self, labels: impl IntoIterator<Item = (String, String)>) -> ConfigClient {
        for (name, value) in labels {
            let fits = !name.is_empty() && !value.is_empty() && name.len() + value.len() < LABEL_BYTES;
            if fits && self.labels.len() < MOST_OF_CLIENT {
                self.labels.insert(name, value);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn members() {
        let client =
            ConfigClient::at("10.0.0.7").with([("app".to_owned(), "shop".to_owned()), ("x".into(), "".into())]);
        for (addresses, labels, expected) in [
            (&[][..], &[][..], false),
            (&["10.0.0.7"], &[], true),
            (&["10.0.0.8"], &[], false),
            (&["10.0.0.8"], &["app=shop"], true),
            (&[], &["app=bank", "app=shop"], true),
            (&[], &["App=shop"], false),
            (&[], &["app=sho"], false),
        ] {
            let audience = Audience::new(texts(addresses), texts(labels)).unwrap();
            assert_eq!(audience.includes(&client), expected, "{addresses:?} {labels:?}");
        }
        let many = (0..1000).map(|n| (format!("n{n}"), "v".to_owned()));
        assert_eq!(ConfigClient::at("a").with(many).labels.len(), MOST_OF_CLIENT);
    }

    #[test]
    fn limits() {
        for (addresses, labels, good) in [
            (texts(&["10.0.0.1"]), vec![], true),
            (texts(&["::1"]), vec![], true),
            (texts(&["a"]), vec![], false),
            (vec!["10.0.0.1".to_owned(); 1001], vec![], false),
            (vec![], texts(&["a=b=c"]), true),
            (vec![], texts(&["a"]), false),
            (vec![], texts(&["=b"]), false),
            (vec![], texts(&["a="]), false),
            (vec![], vec!["a=b".to_owned(); 65], false),
            (vec![], vec![format!("a={}", "b".repeat(255))], false),
        ] {
            assert_eq!(Audience::new(addresses.clone(), labels.clone()).is_ok(), good, "{addresses:?} {labels:?}");
        }
    }
}
