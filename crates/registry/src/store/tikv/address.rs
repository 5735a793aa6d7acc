//! Addresses of the form `tikv://pd1:2379,pd2:2379/PREFIX?ca=FILE&cert=FILE&key=FILE`.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use tikv::Security;

use crate::error::StoreError;

/// PD's default port.
const PORT: u16 = 2379;
/// Maximum number of PD members in an address.
const MOST_ENDPOINTS: usize = 16;
const LONGEST_PREFIX: usize = 128;

/// Address of a registry on TiKV.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// `host:port` of PD members.
    pub(super) endpoints: Vec<String>,
    /// Prefix of the registry's keys.
    pub(super) prefix: String,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Address {
    pub(super) fn parse(address: &str) -> Result<Address, StoreError> {
        let wrong = |reason| StoreError::Address { reason };
        let rest = address.strip_prefix("tikv://").ok_or(wrong("tikv: needs //host:port,…/PREFIX"))?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if hosts.contains('@') {
            return Err(wrong("tikv: knows no user and no password: PD and TiKV go by certificates"));
        }
        let endpoints: Option<Vec<String>> = hosts.split(',').map(endpoint).collect();
        let endpoints = endpoints
            .filter(|endpoints| endpoints.len() <= MOST_ENDPOINTS)
            .ok_or(wrong("tikv: expected host:port of one member of PD, or of up to 16 with commas between"))?;
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        if prefix.is_empty()
            || prefix.len() > LONGEST_PREFIX
            || !prefix.chars().all(fits)
            || prefix.split('/').any(str::is_empty)
        {
            return Err(wrong(
                "tikv: expected /PREFIX behind the hosts, of letters, digits, '-', '_', '.', and '/' between: registries with \
                 other prefixes do not see each other",
            ));
        }
        let mut parsed = Address { endpoints, prefix: prefix.to_owned(), ca: None, cert: None, key: None };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let slot = match name {
                "ca" => &mut parsed.ca,
                "cert" => &mut parsed.cert,
                "key" => &mut parsed.key,
                _ => return Err(wrong("tikv: an option is not known; there are ca, cert and key")),
            };
            let file =
                percent_decode_str(value).decode_utf8().map_err(|_| wrong("tikv: a file's name is not UTF-8"))?;
            if file.is_empty() || slot.is_some() {
                return Err(wrong("tikv: ca, cert and key each name one file"));
            }
            *slot = Some(PathBuf::from(file.as_ref()));
        }
        if parsed.cert.is_some() != parsed.key.is_some() || (parsed.cert.is_some() && parsed.ca.is_none()) {
            return Err(wrong("tikv: cert and key belong together, and need ca, which servers are verified with"));
        }
        Ok(parsed)
    }

    /// Returns the security of connections to servers.
    pub(super) fn security(&self) -> Result<Security, tikv::Error> {
        match &self.ca {
            None => Ok(Security::none()),
            Some(ca) => Security::tls(ca.clone(), self.cert.clone().zip(self.key.clone())),
        }
    }
}

/// Parses `host`, `host:port`, `[address]` or `[address]:port`, and adds the default port.
fn endpoint(text: &str) -> Option<String> {
    let end_of_host = if text.starts_with('[') { text.find(']')? + 1 } else { text.find(':').unwrap_or(text.len()) };
    let (host, port) = text.split_at(end_of_host);
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '[' | ']');
    if host.is_empty() || !host.chars().all(fits) {
        return None;
    }
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port > 0)?,
        None if port.is_empty() => PORT,
        None => return None,
    };
    Some(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn addresses() {
        for (address, endpoints, prefix) in [
            ("tikv://pd1:2379,pd2:2380/kingpost", &["pd1:2379", "pd2:2380"][..], "kingpost"),
            ("tikv://pd1/a/b", &["pd1:2379"], "a/b"),
            ("tikv://[::1]:1,[::2]/a", &["[::1]:1", "[::2]:2379"], "a"),
            ("tikv://pd/a?ca=/x/ca.pem", &["pd:2379"], "a"),
        ] {
            let parsed = Address::parse(address).unwrap();
            assert_eq!(
                (&*parsed.endpoints, &*parsed.prefix),
                (&endpoints.iter().map(|e| (*e).to_owned()).collect::<Vec<_>>()[..], prefix)
            );
        }
        let tls = Address::parse("tikv://pd/a?ca=/c%20a.pem&cert=/cert.pem&key=/key.pem").unwrap();
        assert_eq!((tls.ca, tls.key), (Some("/c a.pem".into()), Some("/key.pem".into())));
    }

    #[test]
    fn what_makes_no_sense_is_refused_without_the_address() {
        for address in [
            "tikv:",
            "tikv:pd/a",
            "tikv://",
            "tikv:///a",
            "tikv://pd",
            "tikv://pd/",
            "tikv://pd//a",
            "tikv://pd/a/",
            "tikv://pd/a b",
            "tikv://pd,/a",
            "tikv://pd:x/a",
            "tikv://pd:0/a",
            "tikv://[::1/a",
            "tikv://u:sesame@pd/a",
            "tikv://pd/a?ca",
            "tikv://pd/a?what=x",
            "tikv://pd/a?cert=c&key=k",
            "tikv://pd/a?ca=c&cert=c",
            "tikv://pd/a?ca=a&ca=b",
        ] {
            let error = Address::parse(address).unwrap_err();
            assert!(matches!(error, StoreError::Address { .. }), "{address}: {error}");
            assert!(!error.to_string().contains("sesame"), "{error}");
        }
    }
}
