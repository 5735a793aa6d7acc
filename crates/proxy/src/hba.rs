//! Permission to connect by client address, and authentication methods: rules in the format of PostgreSQL's `pg_hba.conf`. The first rule that
//! matches a connection decides; if none matches, the client is refused.
//!
//! Supported are: `local`, `host`, `hostssl`, `hostnossl`; databases by name, `all`, `sameuser`; users by name, `all`; an address with a prefix
//! length or a mask, `all`; the methods and options of [`Demand`]. PostgreSQL's other features (`+role`, `@file`, `/regex`, `samehost`, host names,
//! other methods) are errors and are never skipped: an unsupported rule must neither admit nor exclude a client by mistake.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use crate::config::AuthMethod;
use crate::demand::{Certificate, Demand, EXPECTED_METHOD};
use crate::tokens::{self, Word, single, split};
pub use crate::tokens::{Error, MAX_TEXT};

/// Maximum number of rules.
pub const MAX_RULES: usize = 10_000;

/// Rules, in the order in which they are tried.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules(Vec<Rule>);

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The kind of connection.
    pub kind: Kind,
    /// The databases, by the names that clients use.
    pub databases: Vec<Name>,
    /// The users.
    pub users: Vec<Name>,
    /// The client's network; `None`: any address.
    pub from: Option<Network>,
    /// Requirements for the client; `None`: the client is refused.
    pub demand: Option<Arc<Demand>>,
}

/// The kind of connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A Unix socket.
    Local,
    /// TCP, with or without TLS.
    Host,
    /// TCP with TLS.
    HostSsl,
    /// TCP without TLS.
    HostNoSsl,
}

/// A database or a user in a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// Any name.
    All,
    /// For databases: the name of the user.
    SameUser,
    /// Exactly this name.
    Is(Box<str>),
}

/// A network: addresses with a common prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// A connection that rules are applied to.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// The client's address; `None` over a Unix socket.
    pub address: Option<IpAddr>,
    /// True if the connection has TLS.
    pub tls: bool,
    /// The requested database; [`REPLICATION`] for a physical replication connection.
    pub database: &'a str,
    /// The requested user.
    pub user: &'a str,
}

/// Fields of a rule as strings, as in the configuration. Without `Debug`, because the method's options may contain a password.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    /// `local`, `host`, `hostssl`, `hostnossl`.
    pub kind: &'a str,
    /// Databases, separated by commas.
    pub database: &'a str,
    /// Users, separated by commas.
    pub user: &'a str,
    /// The address, for `host`, `hostssl` and `hostnossl` only.
    pub address: Option<&'a str>,
    /// The method, followed by options if there are any.
    pub method: &'a str,
}

// === impl Rules ===

impl Rules {
    /// Creates rules in this order.
    ///
    /// # Errors
    /// There are more than [`MAX_RULES`].
    pub fn new(rules: Vec<Rule>) -> Result<Rules, String> {
        if rules.len() > MAX_RULES { Err(too_many()) } else { Ok(Rules(rules)) }
    }

    /// Parses the text of a rules file.
    ///
    /// # Errors
    /// All invalid lines, up to a maximum.
    pub fn parse(text: &str) -> Result<Rules, Vec<Error>> {
        tokens::parse_lines(text, MAX_RULES, parse_line).map(Rules)
    }

    /// Returns the first rule that matches the connection.
    #[must_use]
    pub fn first(&self, attempt: &Attempt<'_>) -> Option<&Rule> {
        self.0.iter().find(|rule| rule.fits(attempt))
    }

    /// Returns all rules, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }
}

fn too_many() -> String {
    format!("found more than {MAX_RULES} rules, expected at most as many")
}

// === impl Rule ===

impl Rule {
    /// Creates a rule from its fields.
    ///
    /// # Errors
    /// A message with the found and the expected text.
    pub fn from_fields(fields: Fields<'_>) -> Result<Rule, String> {
        let kind = Kind::parse(fields.kind)?;
        let list = |what: &str, text: &str| -> Result<Vec<Word>, String> {
            let mut fields = split(text)?;
            match (fields.pop(), fields.is_empty()) {
                (Some(list), true) => Ok(list),
                _ => Err(format!("found {text:?}, expected {what}, or several separated by commas")),
            }
        };
        let databases = names(&list("a database", fields.database)?, true)?;
        let users = names(&list("a user", fields.user)?, false)?;
        let from = match (kind, fields.address) {
            (Kind::Local, None) => None,
            (Kind::Local, Some(found)) => {
                return Err(format!("found the address {found:?}, expected none: the type is \"local\""));
            }
            (_, Some(text)) => {
                let mut words = text.split_whitespace();
                let (address, mask) = (words.next().unwrap_or_default(), words.next());
                if words.next().is_some() {
                    return Err(format!("found {text:?}, expected {EXPECTED_ADDRESS}"));
                }
                Network::parse(address, mask)?
            }
            (_, None) => return Err(format!("found no address, expected {EXPECTED_ADDRESS}")),
        };
        let mut rest = split(fields.method)?.into_iter();
        let method = rest.next().ok_or_else(|| format!("found no method, expected {EXPECTED_METHOD}"))?;
        finish(kind, databases, users, from, &method, rest)
    }

    fn fits(&self, attempt: &Attempt<'_>) -> bool {
        let kind = match self.kind {
            Kind::Local => attempt.address.is_none(),
            Kind::Host => attempt.address.is_some(),
            Kind::HostSsl => attempt.address.is_some() && attempt.tls,
            Kind::HostNoSsl => attempt.address.is_some() && !attempt.tls,
        };
        kind && self.databases.iter().any(|name| name.is(attempt.database, attempt.user))
            && self.users.iter().any(|name| name.is(attempt.user, attempt.user))
            && self.from.is_none_or(|network| attempt.address.is_some_and(|address| network.has(address)))
    }

    /// True if the rule admits clients from other machines without authentication.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let open = |demand: &Arc<Demand>| demand.method == AuthMethod::Trust && demand.certificate == Certificate::No;
        self.kind != Kind::Local && !self.is_near() && self.demand.as_ref().is_some_and(open)
    }

    /// True if the rule is for clients of this machine only.
    #[must_use]
    pub fn is_near(&self) -> bool {
        self.kind == Kind::Local
            || self.from.is_some_and(|network| {
                network.address.is_loopback() && network.bits >= if network.address.is_ipv4() { 8 } else { 128 }
            })
    }
}

impl Kind {
    fn parse(text: &str) -> Result<Kind, String> {
        match text {
            "local" => Ok(Kind::Local),
            "host" => Ok(Kind::Host),
            "hostssl" => Ok(Kind::HostSsl),
            "hostnossl" => Ok(Kind::HostNoSsl),
            _ => Err(format!("found the type {text:?}, expected local, host, hostssl or hostnossl")),
        }
    }
}

impl Name {
    fn is(&self, name: &str, user: &str) -> bool {
        match self {
            // As in PostgreSQL, "all" does not match replication connections.
            Name::All => name != REPLICATION,
            Name::SameUser => name == user,
            Name::Is(this) => **this == *name,
        }
    }
}

/// Stands for the database of a physical replication connection, which has none. No database has this name.
pub const REPLICATION: &str = "\0";

const EXPECTED_ADDRESS: &str = "an IP address with a prefix length such as 10.0.0.0/8, an address and a mask, or all";

// === impl Network ===

impl Network {
    /// Parses a network. `None` stands for any address.
    fn parse(text: &str, mask: Option<&str>) -> Result<Option<Network>, String> {
        let wrong = || match mask {
            Some(mask) => format!("found the address \"{text} {mask}\", expected {EXPECTED_ADDRESS}"),
            None => format!("found the address {text:?}, expected {EXPECTED_ADDRESS}"),
        };
        if text == "all" && mask.is_none() {
            return Ok(None);
        }
        let (address, bits) = match (text.split_once('/'), mask) {
            (Some((address, bits)), None) => {
                let plain = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit());
                (address, if plain { bits.parse().ok() } else { None })
            }
            (None, Some(mask)) => (text, IpAddr::from_str(mask).ok().and_then(prefix_of)),
            _ => return Err(wrong()),
        };
        let address = IpAddr::from_str(address).map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        // A mask of the other address family would be misread.
        let same = mask.is_none_or(|mask| IpAddr::from_str(mask).is_ok_and(|mask| mask.is_ipv4() == address.is_ipv4()));
        match bits {
            Some(bits) if bits <= most && same => Ok(Some(Network { address, bits })),
            _ => Err(wrong()),
        }
    }

    fn has(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                a.to_bits() & mask == b.to_bits() & mask
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                a.to_bits() & mask == b.to_bits() & mask
            }
            _ => false,
        }
    }
}

/// Returns the number of leading ones of a mask, if only zeroes follow them.
fn prefix_of(mask: IpAddr) -> Option<u8> {
    let (bits, ones, width) = match mask {
        IpAddr::V4(mask) => (u128::from(mask.to_bits()) << 96, mask.to_bits().leading_ones(), 32),
        IpAddr::V6(mask) => (mask.to_bits(), mask.to_bits().leading_ones(), 128),
    };
    let rest = bits.checked_shl(ones).unwrap_or(0);
    (rest == 0 && ones <= width).then_some(ones as u8)
}

// === lines ===

pub(crate) fn parse_line(line: &str) -> Result<Option<Rule>, String> {
    let mut fields = split(line)?.into_iter();
    let Some(kind) = fields.next() else { return Ok(None) };
    let kind = Kind::parse(&single(&kind, "a type")?.text)?;
    let databases = fields.next().ok_or("found no database, expected one, or several separated by commas")?;
    let databases = names(&databases, true)?;
    let users = fields.next().ok_or("found no user, expected one, or several separated by commas")?;
    let users = names(&users, false)?;
    let mut method = fields.next();
    let mut from = None;
    if kind != Kind::Local {
        let address = method.ok_or_else(|| format!("found no address, expected {EXPECTED_ADDRESS}"))?;
        let address = single(&address, "one address")?.text.clone();
        method = fields.next();
        // Without a prefix length the mask is a field of its own.
        let bare = IpAddr::from_str(&address).is_ok();
        let mask = if bare { method.as_deref().and_then(<[Word]>::first).map(|word| word.text.clone()) } else { None };
        from = Network::parse(&address, mask.as_deref())?;
        if bare {
            method = fields.next();
        }
    }
    let method = method.ok_or_else(|| format!("found no method, expected {EXPECTED_METHOD}"))?;
    finish(kind, databases, users, from, &method, fields).map(Some)
}

fn finish(
    kind: Kind,
    databases: Vec<Name>,
    users: Vec<Name>,
    from: Option<Network>,
    method: &[Word],
    options: impl Iterator<Item = Vec<Word>>,
) -> Result<Rule, String> {
    let demand = Demand::read(method, options)?;
    let method = demand.as_ref().map(|demand| demand.method);
    if method == Some(AuthMethod::Cert) && kind != Kind::HostSsl {
        return Err("found the method \"cert\", expected the type hostssl with it".into());
    }
    if method == Some(AuthMethod::Peer) && kind != Kind::Local {
        return Err("found the method \"peer\", expected the type local with it".into());
    }
    if method == Some(AuthMethod::Gss) && kind == Kind::Local {
        return Err("found the method \"gss\" with the type local, expected host, hostssl or hostnossl with it".into());
    }
    if demand.as_ref().is_some_and(|demand| demand.certificate != Certificate::No) && kind != Kind::HostSsl {
        return Err("found the option clientcert, expected the type hostssl with it".into());
    }
    let rule = Rule { kind, databases, users, from, demand: demand.map(Arc::new) };
    if method == Some(AuthMethod::OAuth) && kind == Kind::HostNoSsl && !rule.is_near() {
        return Err(
            "found the method \"oauth\" with the type hostnossl, expected hostssl: a token is as good as a password"
                .into(),
        );
    }
    Ok(rule)
}

fn names(words: &[Word], databases: bool) -> Result<Vec<Name>, String> {
    let name = |word: &Word| match word.text.as_str() {
        text if word.quoted => Ok(Name::Is(text.into())),
        "all" => Ok(Name::All),
        "sameuser" if databases => Ok(Name::SameUser),
        "samerole" | "samegroup" if databases => Err(format!(
            "found {:?}, expected names of databases: the proxy does not know who is in which role",
            word.text
        )),
        "replication" if databases => Ok(Name::Is(REPLICATION.into())),
        text if text.starts_with('+') && !databases => {
            Err(format!("found {text:?}, expected names of users: the proxy does not know who is in which role"))
        }
        text if text.starts_with(['@', '/']) => {
            Err(format!("found {text:?}, expected names: files of names and patterns are not read"))
        }
        text => Ok(Name::Is(text.into())),
    };
    words.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn attempt<'a>(address: Option<&str>, tls: bool, database: &'a str, user: &'a str) -> Attempt<'a> {
        Attempt { address: address.map(|text| text.parse().unwrap()), tls, database, user }
    }

    const FILE: &str = r#"
# TYPE  DATABASE  USER  ADDRESS  METHOD
local   all             all                             trust
host    replication     all     0.0.0.0/0               trust
host    secret          all     all                     reject     # nobody
hostssl all             boss    10.0.0.0/8              scram-sha-256 clientcert=verify-full
hostnossl all           boss    all                     reject
host    sameuser        all     192.168.1.0 255.255.255.0  md5
host    app, "all" ,other  a,b  10.1.0.0/16             scram-sha-256
hostssl app \
   c  ::1/128 cert
host    app             "quo""ted"  ::/0                trust
"#;

    #[test]
    fn first_match_wins() {
        let rules = Rules::parse(FILE).unwrap();
        let scram = Some(Some(AuthMethod::ScramSha256));
        for (address, tls, database, user, expected) in [
            (None, false, "anything", "anybody", Some(Some(AuthMethod::Trust))),
            (Some("10.1.2.3"), false, "secret", "a", Some(None)),
            (Some("10.1.2.3"), true, "secret", "boss", Some(None)),
            (Some("10.1.2.3"), true, "app", "boss", scram),
            (Some("::ffff:10.1.2.3"), true, "app", "boss", scram),
            (Some("10.1.2.3"), false, "app", "boss", Some(None)),
            (Some("11.1.2.3"), true, "app", "boss", None),
            (Some("192.168.1.77"), false, "x", "x", Some(Some(AuthMethod::Md5))),
            (Some("192.168.2.77"), false, "x", "x", None),
            (Some("192.168.1.77"), false, "x", "y", None),
            (Some("10.1.9.9"), false, "other", "b", scram),
            (Some("10.1.9.9"), false, "all", "b", scram),
            (Some("10.1.9.9"), false, "more", "b", None),
            (Some("10.1.9.9"), false, "app", "c", None),
            (Some("::1"), true, "app", "c", Some(Some(AuthMethod::Cert))),
            (Some("::2"), true, "app", "c", None),
            (Some("fe80::2"), false, "app", "quo\"ted", Some(Some(AuthMethod::Trust))),
            (Some("1.2.3.4"), false, "app", "quo\"ted", None),
            (Some("1.2.3.4"), false, REPLICATION, "a", Some(Some(AuthMethod::Trust))),
            (None, false, REPLICATION, "a", None),
            // A rule for replication matches no database, not even one of that name.
            (Some("1.2.3.4"), false, "replication", "a", None),
        ] {
            let method = |rule: &Rule| rule.demand.as_ref().map(|demand| demand.method);
            let found = rules.first(&attempt(address, tls, database, user)).map(method);
            assert_eq!(found, expected, "{address:?} {tls} {database} {user}");
        }
        let of_boss = rules.first(&attempt(Some("10.9.9.9"), true, "app", "boss")).unwrap();
        assert_eq!(of_boss.demand.as_ref().unwrap().certificate, Certificate::OfUser);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (line, says) in [
            ("hots all all all md5", "\"hots\", expected local, host"),
            ("host", "no database"),
            ("host all", "no user"),
            ("host all all", "no address"),
            ("host all all all", "no method"),
            ("host all all 10.0.0.0 md5", "\"10.0.0.0 md5\", expected an IP address"),
            ("host all all 10.0.0.0/33 md5", "10.0.0.0/33"),
            ("host all all 10.0.0.0/+8 md5", "10.0.0.0/+8"),
            ("host all all ::/129 md5", "::/129"),
            ("host all all 10.0.0.0 255.0.255.0 md5", "255.0.255.0"),
            ("host all all 10.0.0.0 ffff:: md5", "ffff::"),
            ("host all all db.example.com md5", "db.example.com"),
            ("host all all samehost md5", "samehost"),
            ("host all all all peer", "\"peer\", expected the type local"),
            ("host all all all ident", "\"ident\", expected trust, reject"),
            ("host all all all md5 map=x", "map=x"),
            ("host all all all md5,trust", "one method"),
            ("host all +staff all md5", "+staff"),
            ("host samerole all all md5", "samerole"),
            ("host all @users all md5", "@users"),
            ("host all /^a all md5", "/^a"),
            ("host all all all cert", "hostssl"),
            ("host all all all md5 clientcert=verify-ca", "hostssl"),
            ("host \"all all all md5", "quotation mark"),
            ("local all all 10.0.0.0/8 md5", "10.0.0.0/8"),
        ] {
            let errors = Rules::parse(&format!("# first\n{line}\n")).unwrap_err();
            assert_eq!(errors.len(), 1, "{line}: {errors:?}");
            assert_eq!(errors[0].line, 2, "{line}");
            assert!(errors[0].message.contains(says), "{line}: {}", errors[0].message);
            assert!(errors[0].message.contains("expected") || says == "quotation mark", "{}", errors[0].message);
        }
        assert_eq!(Rules::parse(&"x\n".repeat(100)).unwrap_err().len(), tokens::MAX_ERRORS);
        assert!(Rules::parse(&" ".repeat(MAX_TEXT + 1)).is_err());
    }

    #[test]
    fn fields() {
        let fields = |address, method| Fields { kind: "host", database: "a,b", user: "all", address, method };
        let rule = Rule::from_fields(fields(Some("10.0.0.0 255.0.0.0"), "md5")).unwrap();
        assert_eq!(rule, Rules::parse("host a,b all 10.0.0.0/8 md5").unwrap().0[0]);
        for (address, method) in
            [(None, "md5"), (Some("10.0.0.0"), "md5"), (Some("1.1.1.1 2.2.2.2 3"), "md5"), (Some("all"), "")]
        {
            assert!(Rule::from_fields(fields(address, method)).is_err(), "{address:?} {method}");
        }
        assert!(Rule::from_fields(Fields { database: "a b", ..fields(Some("all"), "md5") }).is_err());
    }

    #[test]
    fn open_to_others() {
        for (line, open) in [
            ("host all all all trust", true),
            ("host all all 127.0.0.1/32 trust", false),
            ("host all all 127.0.0.0/8 trust", false),
            ("host all all 127.0.0.0/7 trust", true),
            ("host all all ::1/128 trust", false),
            ("hostssl all all all trust clientcert=verify-ca", false),
            ("local all all trust", false),
            ("host all all all md5", false),
        ] {
            assert_eq!(Rules::parse(line).unwrap().0[0].is_open(), open, "{line}");
        }
    }
}
