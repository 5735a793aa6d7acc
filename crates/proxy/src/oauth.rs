//! Options of the method `oauth` in rules, as in PostgreSQL 18. This module neither contacts an issuer nor examines a token.
//!
//! PostgreSQL leaves the validation of a token to a library (`validator`). Here there is one way: a JSON Web Token, signed by the rule's issuer. So a
//! rule with a library is refused: the library's requirements would not be enforced.

use std::fmt;

/// Maximum length of a URL, in bytes.
const LONGEST: usize = 2048;

/// The tokens that are accepted, and their issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `issuer`: the signer of the token.
    pub issuer: Url,
    /// `scope`: the permissions that the token must grant, separated by blanks.
    pub scope: String,
    /// `delegate_ident_mapping`: true if the token names the users that its bearer may be; otherwise it names its bearer.
    pub delegates: bool,
}

/// An HTTP address: over TLS, or within this machine.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Url {
    text: String,
    /// Start and end of the host. `path`: start of the path.
    host: (usize, usize),
    path: usize,
    port: u16,
    is_secure: bool,
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Url {
    /// Parses `https://host[:port][/path]`. `http://` is for loopback addresses only: a man in the middle could supply keys of his own.
    ///
    /// # Errors
    /// A message with the found and the expected text.
    pub fn parse(text: &str) -> Result<Url, String> {
        let shown: String = text.chars().take(200).collect();
        let wrong = |why: &str| format!("found the URL {shown:?}, expected https://host[:port][/path]: {why}");
        if text.len() > LONGEST {
            return Err(wrong("it is too long"));
        }
        let (is_secure, start) = match () {
            () if text.starts_with("https://") => (true, "https://".len()),
            () if text.starts_with("http://") => (false, "http://".len()),
            () => return Err(wrong("it has another scheme, or none")),
        };
        if !text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte)) {
            return Err(wrong("it has a character that no URL has"));
        }
        if text.contains('#') {
            return Err(wrong("it has a fragment"));
        }
        let path = text[start..].find(['/', '?']).map_or(text.len(), |at| start + at);
        let authority = &text[start..path];
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.starts_with('[') || host.ends_with(']') => {
                let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(|| wrong("its port is no port"))?;
                (host, port)
            }
            _ => (authority, if is_secure { 443 } else { 80 }),
        };
        let mut of_host = (start, start + host.len());
        let named = |host: &str| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) if inner.parse::<std::net::Ipv6Addr>().is_ok() => of_host = (of_host.0 + 1, of_host.1 - 1),
            None if !host.is_empty() && named(host) => {}
            _ => return Err(wrong("its host is no name or address")),
        }
        let url = Url { text: text.to_owned(), host: of_host, path, port, is_secure };
        if !is_secure && !url.is_near() {
            return Err(wrong("http is for loopback addresses only"));
        }
        Ok(url)
    }

    /// Returns the URL exactly as given: issuers are compared letter by letter.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the host's name or address, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.text[self.host.0..self.host.1]
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the text after the address; at least a slash.
    #[must_use]
    pub fn target(&self) -> String {
        let rest = &self.text[self.path..];
        if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") }
    }

    /// True for a URL over TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// True for a loopback address.
    #[must_use]
    pub fn is_near(&self) -> bool {
        self.host() == "localhost" || self.host().parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

/// Options of one rule while they are parsed.
#[derive(Default)]
pub(crate) struct Reading {
    issuer: Option<Url>,
    scope: Option<String>,
    delegates: bool,
}

impl Reading {
    /// Parses one option; returns false if the name is unknown.
    ///
    /// # Errors
    /// A message with the found and the expected text.
    pub(crate) fn take(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            "issuer" => self.issuer = Some(issuer(value)?),
            "scope" => self.scope = Some(scope(value)?),
            "delegate_ident_mapping" if matches!(value, "0" | "1") => self.delegates = value == "1",
            "delegate_ident_mapping" => {
                return Err(format!("found delegate_ident_mapping={value}, expected 1 or 0"));
            }
            "validator" => {
                return Err(format!(
                    "found validator={value}, expected no library: Kingpost looks at tokens itself ([proxy.oauth])"
                ));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the options. `map`: the rule has a name map.
    ///
    /// # Errors
    /// Options that are missing, or that exclude each other.
    pub(crate) fn finish(self, map: bool) -> Result<Options, String> {
        let (Some(issuer), Some(scope)) = (self.issuer, self.scope) else {
            return Err("found the method oauth without issuer= or without scope=, expected both".into());
        };
        if self.delegates && map {
            return Err(
                "found map= beside delegate_ident_mapping=1, expected one of them: the issuer names the users itself"
                    .into(),
            );
        }
        Ok(Options { issuer, scope, delegates: self.delegates })
    }
}

fn issuer(text: &str) -> Result<Url, String> {
    let url = Url::parse(text)?;
    if text.contains("/.well-known/") || text.contains('?') {
        return Err(format!(
            "found issuer={text}, expected the issuer as tokens name it (iss), without /.well-known/ and without a question mark"
        ));
    }
    Ok(url)
}

/// Checks scopes as in RFC 6749; their order does not matter.
fn scope(text: &str) -> Result<String, String> {
    let good = |byte: u8| matches!(byte, b' ' | 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
    if text.len() > LONGEST || text.trim().is_empty() || !text.bytes().all(good) {
        return Err("found a scope that is empty, or has a character that no scope has, expected names, several between quotation marks and separated by blanks".into());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::hba::Rules;
    use crate::verify::Judge;

    fn options(text: &str) -> Result<(Options, Option<String>), String> {
        let rules = Rules::parse(text).map_err(|errors| errors[0].message.clone())?;
        let rule = rules.iter().next().unwrap();
        match &rule.demand.as_ref().unwrap().judge {
            Some(Judge::OAuth(options)) => {
                Ok(((**options).clone(), rule.demand.as_ref().unwrap().map.as_deref().map(str::to_owned)))
            }
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn options_are_postgresqls() {
        let (read, map) =
            options(r#"hostssl all all all oauth issuer="https://i.example/x" scope="openid db" map=m"#).unwrap();
        assert_eq!((read.issuer.text(), &*read.scope, read.delegates), ("https://i.example/x", "openid db", false));
        assert_eq!(map.as_deref(), Some("m"));
        let (read, map) =
            options("local all all oauth scope=a delegate_ident_mapping=1 issuer=http://[::1]:8/").unwrap();
        assert_eq!((read.issuer.host(), read.issuer.port(), read.issuer.target()), ("::1", 8, "/".to_owned()));
        assert!(read.delegates && map.is_none());
        for (text, expected) in [
            ("", "without issuer"),
            ("scope=a", "without issuer"),
            ("issuer=https://i", "without scope"),
            ("issuer=https://i scope=\"\"", "scope"),
            ("issuer=https://i scope=\"a\\b\"", "scope"),
            ("issuer=https://i/.well-known/openid-configuration scope=a", ".well-known"),
            ("issuer=https://i?x scope=a", "question mark"),
            ("issuer=https://i scope=a validator=mine", "no library"),
            ("issuer=https://i scope=a delegate_ident_mapping=yes", "1 or 0"),
            ("issuer=https://i scope=a delegate_ident_mapping=1 map=m", "one of them"),
            ("issuer=https://i scope=a ldapserver=h", "ldapserver"),
            ("issuer=http://i scope=a", "loopback"),
        ] {
            let said = options(&format!("hostssl all all all oauth {text}")).unwrap_err();
            assert!(said.contains(expected), "{text}: {said}");
        }
        // The token would cross the network in clear.
        let said = options("hostnossl all all 10.0.0.0/8 oauth issuer=https://i scope=a").unwrap_err();
        assert!(said.contains("hostssl"), "{said}");
    }

    #[test]
    fn urls_are_https_or_of_this_machine() {
        for (text, host, port, target) in [
            ("https://i.example", "i.example", 443, "/"),
            ("https://i.example:8443/a/b?c=d", "i.example", 8443, "/a/b?c=d"),
            ("https://i?c", "i", 443, "/?c"),
            ("https://[2001:db8::1]/x", "2001:db8::1", 443, "/x"),
            ("http://127.0.0.1:80/x", "127.0.0.1", 80, "/x"),
            ("http://localhost", "localhost", 80, "/"),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!((url.host(), url.port(), url.target().as_str()), (host, port, target));
        }
        for text in [
            "",
            "i.example",
            "ftp://i",
            "HTTPS://i",
            "https://",
            "https://:1",
            "https://u:p@i/",
            "https://u@i/",
            "https://i:0",
            "https://i:x",
            "https://i/#f",
            "https://i/a b",
            "https://i/\r\nX: y",
            "https://[::1",
            "https://[x]",
            "http://i.example",
            "http://127.0.0.1.example/",
            "http://localhost.example/",
            "http://[2001:db8::1]/",
        ] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
    }
}
