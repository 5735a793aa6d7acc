//! Options of the method `ldap` in rules, as in PostgreSQL, and the names and filters for the directory that a login derives from them. This module
//! does not use LDAP itself.
//!
//! A client's password is correct if the directory lets it bind as the user's entry. The name of that entry is found in one of two ways:
//! - *simple bind*: `ldapprefix`, the user's name, `ldapsuffix`;
//! - *search and bind*: an entry below `ldapbasedn` is searched, as `ldapbinddn` or anonymously, and must be the only one.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use secret::Secret;

/// Maximum number of servers in a rule.
pub const MOST_SERVERS: usize = 8;

/// Address of the directory, and the way to a user's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// URLs without a path (`ldap://host:port`), tried in this order until one answers.
    pub servers: Vec<String>,
    /// True for StartTLS before any other operation.
    pub starttls: bool,
    /// Way to the user's entry.
    pub entry: Entry,
}

/// Way to a user's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// The entry's name is the user's name between two texts.
    Named {
        /// `ldapprefix`.
        prefix: String,
        /// `ldapsuffix`.
        suffix: String,
    },
    /// The entry is searched.
    Found {
        /// The entry below which to search.
        base: String,
        /// The name for the search; the empty name searches anonymously.
        bind_dn: String,
        /// The password for the search.
        bind_password: Secret,
        /// The filter, with `$username` in the place of the user's name.
        filter: String,
        /// The scope of the search.
        scope: Scope,
    },
}

/// Scope of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Only the base.
    Base,
    /// Only the entries directly below the base.
    One,
    /// The base and all entries below it.
    Sub,
}

/// Characters that PostgreSQL refuses in a user's name in a search.
const REFUSED_IN_SEARCH: [char; 5] = ['*', '(', ')', '\\', '/'];

/// Options of one rule while they are parsed.
#[derive(Default)]
pub(crate) struct Reading {
    servers: Option<String>,
    port: Option<u16>,
    scheme: Option<String>,
    tls: bool,
    prefix: Option<String>,
    suffix: Option<String>,
    base: Option<String>,
    bind_dn: Option<String>,
    bind_password: Option<String>,
    attribute: Option<String>,
    filter: Option<String>,
    scope: Option<Scope>,
}

impl Reading {
    /// Parses one option; returns false if the name is unknown.
    ///
    /// # Errors
    /// A message with the found and the expected text, never with the value of `ldapbindpasswd`.
    pub(crate) fn take(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let text = || Some(value.to_owned());
        match name {
            "ldapserver" => self.servers = text(),
            "ldapport" => self.port = Some(port(value)?),
            "ldapscheme" if matches!(value, "ldap" | "ldaps") => self.scheme = text(),
            "ldapscheme" => return Err(format!("found ldapscheme={value}, expected ldap or ldaps")),
            "ldaptls" if matches!(value, "0" | "1") => self.tls = value == "1",
            "ldaptls" => return Err(format!("found ldaptls={value}, expected 1 or 0")),
            "ldapprefix" => self.prefix = text(),
            "ldapsuffix" => self.suffix = text(),
            "ldapbasedn" => self.base = text(),
            "ldapbinddn" => self.bind_dn = text(),
            "ldapbindpasswd" => self.bind_password = text(),
            "ldapsearchattribute" => self.attribute = text(),
            "ldapsearchfilter" => self.filter = text(),
            "ldapurl" => self.url(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Parses `ldap[s]://host[:port]/base?attribute?scope?filter` (RFC 4516).
    fn url(&mut self, text: &str) -> Result<(), String> {
        let wrong =
            |why: &str| format!("found ldapurl={text}, expected ldap://host:port/base?attribute?scope?filter: {why}");
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("there is no scheme"))?;
        if !matches!(scheme, "ldap" | "ldaps") {
            return Err(wrong("the scheme is ldap or ldaps"));
        }
        let (address, rest) = rest.split_once('/').unwrap_or((rest, ""));
        let decoded = |part: &str| {
            percent_decode_str(part).decode_utf8().map(Cow::into_owned).map_err(|_| wrong("a part of it is not UTF-8"))
        };
        let mut parts = rest.splitn(5, '?');
        let mut next = || parts.next().unwrap_or_default();
        let (base, attributes, scope, filter, extensions) = (next(), next(), next(), next(), next());
        if !extensions.is_empty() {
            return Err(wrong("extensions are not supported"));
        }
        // According to PostgreSQL's manual, a URL without a scope means the base only; PostgreSQL 15 searches the subtree (`tests/e2e/ldap.rs`).
        self.scope = Some(match scope {
            "base" => Scope::Base,
            "one" => Scope::One,
            "" | "sub" => Scope::Sub,
            _ => return Err(wrong("the scope is base, one or sub")),
        });
        self.scheme = Some(scheme.to_owned());
        let number = address.rsplit_once(':').filter(|(host, _)| !host.starts_with('[') || host.ends_with(']'));
        let host = match number {
            Some((host, number)) => {
                self.port = Some(port(number)?);
                host
            }
            None => address,
        };
        if !host.is_empty() {
            self.servers = Some(decoded(host)?);
        }
        self.base = Some(decoded(base)?);
        let attribute = attributes.split(',').next().unwrap_or_default();
        if !attribute.is_empty() {
            self.attribute = Some(decoded(attribute)?);
        }
        if !filter.is_empty() {
            self.filter = Some(decoded(filter)?);
        }
        Ok(())
    }

    /// Returns the options.
    ///
    /// # Errors
    /// Options that are missing, or that exclude each other.
    pub(crate) fn finish(self) -> Result<Options, String> {
        let scheme = self.scheme.as_deref().unwrap_or("ldap");
        if self.tls && scheme == "ldaps" {
            return Err("found ldaptls=1 with the scheme ldaps, expected one of them: ldaps has TLS already".into());
        }
        let hosts: Vec<&str> = self.servers.as_deref().unwrap_or_default().split_whitespace().collect();
        if hosts.is_empty() || hosts.len() > MOST_SERVERS {
            return Err(format!(
                "found {} names of servers, expected ldapserver=HOST (several between quotation marks, separated by blanks, at most {MOST_SERVERS}) or ldapurl",
                hosts.len()
            ));
        }
        let port = self.port.unwrap_or(if scheme == "ldaps" { 636 } else { 389 });
        let servers = hosts.into_iter().map(|host| server(scheme, host, port)).collect::<Result<Vec<_>, _>>()?;
        let simple = self.prefix.is_some() || self.suffix.is_some();
        let searching = self.bind_dn.is_some()
            || self.bind_password.is_some()
            || self.attribute.is_some()
            || self.filter.is_some()
            || self.base.is_some();
        let entry = match (self.base, simple) {
            (_, true) if searching => {
                return Err("found ldapprefix or ldapsuffix beside options of a search (ldapbasedn, ldapbinddn, ldapbindpasswd, ldapsearchattribute, ldapsearchfilter, ldapurl), expected one way to find the entry".into());
            }
            (_, true) => {
                Entry::Named { prefix: self.prefix.unwrap_or_default(), suffix: self.suffix.unwrap_or_default() }
            }
            (None, false) => {
                return Err("found no way to a user's entry, expected ldapbasedn, ldapprefix or ldapsuffix with the method ldap".into());
            }
            (Some(base), false) => {
                let filter = match (self.filter, self.attribute) {
                    (Some(_), Some(_)) => {
                        return Err("found ldapsearchattribute and ldapsearchfilter, expected one of them".into());
                    }
                    (Some(filter), None) if filter.starts_with('(') => filter,
                    (Some(filter), None) => format!("({filter})"),
                    (None, attribute) => format!("({}=$username)", attribute.as_deref().unwrap_or("uid")),
                };
                Entry::Found {
                    base,
                    bind_dn: self.bind_dn.unwrap_or_default(),
                    bind_password: Secret::new(self.bind_password.unwrap_or_default()),
                    filter,
                    scope: self.scope.unwrap_or(Scope::Sub),
                }
            }
        };
        Ok(Options { servers, starttls: self.tls, entry })
    }
}

fn port(text: &str) -> Result<u16, String> {
    text.parse().ok().filter(|port| *port > 0).ok_or_else(|| format!("found the port {text:?}, expected 1 to 65535"))
}

/// Returns a server's URL. The host's own port, if any, takes precedence.
fn server(scheme: &str, host: &str, number: u16) -> Result<String, String> {
    let (host, number) = match host.rsplit_once(':') {
        Some((host, own)) if !host.contains(':') || host.ends_with(']') => (host, port(own)?),
        _ => (host, number),
    };
    let plain = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if plain.is_empty() || !plain.chars().all(good) {
        return Err(format!("found the LDAP server {host:?}, expected a host's name or address"));
    }
    Ok(if plain.contains(':') {
        format!("{scheme}://[{plain}]:{number}")
    } else {
        format!("{scheme}://{plain}:{number}")
    })
}

impl Options {
    /// True if passwords are sent to the directory in clear.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        !self.starttls && self.servers.iter().any(|server| server.starts_with("ldap:"))
    }
}

impl Entry {
    /// Returns the name of a user's entry if no search is needed. Special characters of a name (RFC 4514) are escaped in the user's part.
    #[must_use]
    pub fn named(&self, user: &str) -> Option<String> {
        match self {
            Entry::Named { prefix, suffix } => Some(format!("{prefix}{}{suffix}", escaped_in_name(user))),
            Entry::Found { .. } => None,
        }
    }

    /// Returns the filter of the search for a user. `None`: as in PostgreSQL, no user can have this name.
    #[must_use]
    pub fn filter(&self, user: &str) -> Option<String> {
        match self {
            Entry::Found { filter, .. } if !user.contains(REFUSED_IN_SEARCH) && !user.contains('\0') => {
                Some(filter.replace("$username", user))
            }
            _ => None,
        }
    }
}

/// Escapes a value in a distinguished name (RFC 4514).
fn escaped_in_name(user: &str) -> String {
    let mut escaped = String::with_capacity(user.len());
    let last = user.chars().count().saturating_sub(1);
    for (at, c) in user.chars().enumerate() {
        match c {
            '\0' => escaped.push_str("\\00"),
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' | '=' => escaped.extend(['\\', c]),
            ' ' if at == 0 || at == last => escaped.push_str("\\ "),
            '#' if at == 0 => escaped.push_str("\\#"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::hba::Rules;

    fn options(text: &str) -> Result<Options, String> {
        let rules = Rules::parse(&format!("host all all all ldap {text}"));
        let rule = rules.map_err(|errors| errors[0].message.clone())?;
        match &rule.iter().next().unwrap().demand.as_ref().unwrap().judge {
            Some(crate::verify::Judge::Ldap(options)) => Ok((**options).clone()),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn options_are_postgresqls() {
        let simple =
            options(r#"ldapserver="one two:77 ::1" ldapport=3 ldapprefix="uid=" ldapsuffix=",dc=x, dc=y""#).unwrap();
        assert_eq!(simple.servers, ["ldap://one:3", "ldap://two:77", "ldap://[::1]:3"]);
        assert_eq!(simple.entry.named("al").unwrap(), "uid=al,dc=x, dc=y");
        assert!(simple.is_plain() && simple.entry.filter("al").is_none());
        let found = |text: &str| match options(text).unwrap() {
            Options { servers, starttls, entry: Entry::Found { base, filter, scope, bind_dn, .. } } => {
                (servers.join(" "), starttls, base, filter, scope, bind_dn)
            }
            other => panic!("{other:?}"),
        };
        let case = |server: &str, tls, filter: &str, scope, who: &str| {
            (server.to_owned(), tls, "dc=x".to_owned(), filter.to_owned(), scope, who.to_owned())
        };
        for (text, expected) in [
            ("ldapserver=h ldapbasedn=dc=x", case("ldap://h:389", false, "(uid=$username)", Scope::Sub, "")),
            (
                "ldapserver=h ldaptls=1 ldapbasedn=dc=x ldapsearchattribute=cn ldapbinddn=cn=me ldapbindpasswd=p",
                case("ldap://h:389", true, "(cn=$username)", Scope::Sub, "cn=me"),
            ),
            (
                "ldapserver=h ldapscheme=ldaps ldapbasedn=dc=x ldapsearchfilter=cn=$username",
                case("ldaps://h:636", false, "(cn=$username)", Scope::Sub, ""),
            ),
            ("ldapurl=ldap://h:7/dc=x", case("ldap://h:7", false, "(uid=$username)", Scope::Sub, "")),
            ("ldapurl=ldaps://h/dc%3Dx?mail?one", case("ldaps://h:636", false, "(mail=$username)", Scope::One, "")),
            (
                "\"ldapurl=ldap://[::1]:9/dc=x??sub?(|(uid=$username)(mail=$username))\"",
                case("ldap://[::1]:9", false, "(|(uid=$username)(mail=$username))", Scope::Sub, ""),
            ),
        ] {
            assert_eq!(found(text), expected, "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_an_error_that_tells_no_secret() {
        for (text, expected) in [
            ("", "names of servers"),
            ("ldapserver=h", "no way to a user's entry"),
            ("ldapserver=h ldapbasedn=x ldapprefix=y", "one way"),
            ("ldapserver=h ldapprefix=y ldapbindpasswd=s3cret", "one way"),
            ("ldapserver=h ldapbasedn=x ldapbindpasswd=s3cret,s3cret", "ldapbindpasswd"),
            ("ldapserver=h ldapbasedn=x ldapsearchattribute=a ldapsearchfilter=b", "one of them"),
            ("ldapserver=h ldapscheme=http ldapbasedn=x", "ldap or ldaps"),
            ("ldapserver=h ldapscheme=ldaps ldaptls=1 ldapbasedn=x", "ldaps has TLS"),
            ("ldapserver=h/x ldapbasedn=x", "a host's name"),
            ("ldapserver=h ldapport=0 ldapbasedn=x", "port"),
            ("ldapurl=http://h/x", "scheme"),
            ("ldapurl=ldap://h/x?a?all", "scope"),
            ("ldapurl=ldap://h/x?a?sub?f?e", "extensions"),
            ("ldapserver=h ldapbasedn=x ldapmagic=1", "ldapmagic"),
            ("ldapserver=h ldapbasedn=x map=m", "map"),
        ] {
            let error = options(text).expect_err(text);
            assert!(error.contains(expected) && !error.contains("s3cret"), "{text}: {error}");
        }
        let other = Rules::parse("host all all all md5 ldapbindpasswd=s3cret").unwrap_err();
        assert!(other[0].message.contains("ldapbindpasswd") && !other[0].message.contains("s3cret"), "{other:?}");
        let shown = format!("{:?}", options("ldapserver=h ldapbasedn=x ldapbinddn=d ldapbindpasswd=s3cret").unwrap());
        assert!(!shown.contains("s3cret"), "{shown}");
        let entry = crate::config::HbaConfig {
            kind: "host".into(),
            database: "all".into(),
            user: "all".into(),
            address: Some("all".into()),
            method: "ldap ldapserver=h ldapbasedn=x ldapbinddn=d ldapbindpasswd=s3cret".into(),
        };
        let shown = format!("{entry:?}");
        assert!(shown.contains("method: \"ldap\"") && !shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn a_name_cannot_leave_its_place() {
        let simple = options("ldapserver=h ldapprefix=uid= ldapsuffix=\",dc=x\"").unwrap().entry;
        for (user, expected) in [
            ("al", "uid=al,dc=x"),
            ("al,dc=evil", "uid=al\\,dc\\=evil,dc=x"),
            (" a b ", "uid=\\ a b\\ ,dc=x"),
            ("#a\\+", "uid=\\#a\\\\\\+,dc=x"),
        ] {
            assert_eq!(simple.named(user).unwrap(), expected);
        }
        let found = options("ldapserver=h ldapbasedn=dc=x").unwrap().entry;
        assert_eq!(found.filter("al").unwrap(), "(uid=al)");
        for user in ["*", "a)(uid=*", "a\\2a", "a/b", "a\0"] {
            assert_eq!(found.filter(user), None, "{user}");
        }
    }
}
