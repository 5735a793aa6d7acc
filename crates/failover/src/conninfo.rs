//! `primary_conninfo`: parsing and changing a standby's upstream. Pure.

/// Returns host and port of a connection string in keyword form, as written; the default port is 5432. None: it has no host, more than one, or is not
/// in that form.
pub(super) fn endpoint(conninfo: &str) -> Option<(String, u16)> {
    let pairs = parse(conninfo)?;
    let value = |name: &str| pairs.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let host = value("host").or_else(|| value("hostaddr"))?;
    let port = match value("port") {
        None | Some("") => 5432,
        Some(port) => port.parse().ok()?,
    };
    (!host.is_empty() && !host.contains(',')).then(|| (host.to_owned(), port))
}

/// Replaces host and port of a connection string, and nothing else. None: it is not in keyword form.
pub(super) fn with_endpoint(conninfo: &str, host: &str, port: u16) -> Option<String> {
    let mut pairs = parse(conninfo)?;
    pairs.retain(|(key, _)| !matches!(key.as_str(), "host" | "hostaddr" | "port"));
    pairs.insert(0, ("port".into(), port.to_string()));
    pairs.insert(0, ("host".into(), host.into()));
    Some(write(pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()))))
}

/// Writes a connection string of keywords and values.
pub fn write<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    pairs.map(|(key, value)| format!("{key}={}", quoted(value))).collect::<Vec<_>>().join(" ")
}

fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@%+".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        return value.into();
    }
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// Parses `key = value` and `key='it''s'` as libpq does: a backslash escapes the next character.
fn parse(text: &str) -> Option<Vec<(String, String)>> {
    if text.trim_start().starts_with("postgres") && text.contains("://") {
        return None;
    }
    let mut pairs = Vec::new();
    let mut chars = text.chars().peekable();
    loop {
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.peek().is_none() {
            return Some(pairs);
        }
        let mut key = String::new();
        while let Some(c) = chars.next_if(|c| !c.is_whitespace() && *c != '=') {
            key.push(c);
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if key.is_empty() || chars.next() != Some('=') {
            return None;
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let mut value = String::new();
        let within = chars.next_if_eq(&'\'').is_some();
        loop {
            match chars.next() {
                Some('\\') => value.push(chars.next()?),
                Some('\'') if within => break,
                Some(c) if !within && c.is_whitespace() => break,
                Some(c) => value.push(c),
                None if within => return None,
                None => break,
            }
        }
        pairs.push((key, value));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn endpoints() {
        for (text, expected) in [
            ("host=db1 port=5433 user=r", Some(("db1", 5433))),
            ("user=r host = '10.0.0.1'", Some(("10.0.0.1", 5432))),
            ("hostaddr=10.0.0.1 port=''", Some(("10.0.0.1", 5432))),
            ("host=/run/postgresql", Some(("/run/postgresql", 5432))),
            ("host=a host=b", Some(("b", 5432))),
            ("host=a,b port=1", None),
            ("host=a port=x", None),
            ("user=r", None),
            ("", None),
            ("postgresql://db1/", None),
            ("host='a", None),
            ("host", None),
        ] {
            assert_eq!(endpoint(text), expected.map(|(host, port)| (host.to_owned(), port)), "{text}");
        }
    }

    #[test]
    fn everything_else_stays() {
        for (text, expected) in [
            ("host=a port=1 user=r application_name=n1", "host=b port=2 user=r application_name=n1"),
            (
                r"password='it\'s \\' hostaddr=1.2.3.4 sslmode=require",
                r"host=b port=2 password='it\'s \\' sslmode=require",
            ),
            ("passfile=''", "host=b port=2 passfile=''"),
        ] {
            assert_eq!(with_endpoint(text, "b", 2).unwrap(), expected);
        }
        assert_eq!(with_endpoint("postgres://a", "b", 2), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(key in "[a-z_]{1,8}", value in "\\PC{0,12}", host in "[a-z0-9.]{1,9}", port: u16) {
            prop_assume!(!["host", "hostaddr", "port"].contains(&key.as_str()));
            let text = with_endpoint(&format!("{key}={}", quoted(&value)), &host, port).unwrap();
            prop_assert_eq!(endpoint(&text), Some((host, port)));
            prop_assert_eq!(parse(&text).unwrap().pop().unwrap(), (key, value));
        }

        #[test]
        fn never_panics(text in "\\PC{0,60}") {
            let _ = (endpoint(&text), with_endpoint(&text, "h", 1));
        }
    }
}
