//! Options of the method `gss` in rules, as in PostgreSQL, and the users that a Kerberos principal may be. This module does not handle tokens.

use crate::ident::Maps;

/// Options that turn a principal into a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// True (`include_realm`) if the name that is compared, or looked up in the map, has the realm (`ann@EXAMPLE.ORG`).
    pub include_realm: bool,
    /// `krb_realm`: only principals of this realm are accepted.
    pub realm: Option<String>,
}

/// Options of one rule while they are parsed.
#[derive(Default)]
pub(crate) struct Reading {
    without_realm: bool,
    realm: Option<String>,
}

impl Reading {
    /// Parses one option; returns false if the name is unknown.
    ///
    /// # Errors
    /// A message with the found and the expected text.
    pub(crate) fn take(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match (name, value) {
            ("include_realm", "0" | "1") => self.without_realm = value == "0",
            ("include_realm", value) => return Err(format!("found include_realm={value}, expected 1 or 0")),
            ("krb_realm", "") => return Err("found krb_realm=, expected the name of a realm".into()),
            ("krb_realm", value) => self.realm = Some(value.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the options.
    pub(crate) fn finish(self) -> Options {
        Options { include_realm: !self.without_realm, realm: self.realm }
    }
}

impl Options {
    /// True if the principal may be this user, by PostgreSQL's rules (`pg_GSS_checkauth`). `map`: the rule's. `any_case`: upper and lower case are
    /// equal.
    pub(crate) fn allow(&self, principal: &str, user: &str, map: Option<&str>, maps: &Maps, any_case: bool) -> bool {
        let same = |a: &str, b: &str| if any_case { a.eq_ignore_ascii_case(b) } else { a == b };
        let mut name = principal;
        match (principal.split_once('@'), &self.realm) {
            (Some((_, realm)), Some(wanted)) if !same(realm, wanted) => return false,
            (Some((own, _)), _) if !self.include_realm => name = own,
            (Some(_), _) => {}
            (None, Some(_)) => return false,
            (None, None) => {}
        }
        match map {
            Some(_) => maps.allow(map, name, user),
            None => same(name, user),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::hba::Rules;
    use crate::verify::Judge;

    fn options(text: &str) -> Result<Options, String> {
        let rules = Rules::parse(&format!("host all all all {text}")).map_err(|errors| errors[0].message.clone())?;
        match rules.iter().next().unwrap().demand.as_ref().unwrap().judge.clone() {
            Some(Judge::Gss(options)) => Ok((*options).clone()),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn options_are_postgresqls() {
        for (text, include_realm, realm) in [
            ("gss", true, None),
            ("gss include_realm=1", true, None),
            ("gss include_realm=0 krb_realm=A.TEST", false, Some("A.TEST")),
            ("gss map=m", true, None),
        ] {
            assert_eq!(options(text), Ok(Options { include_realm, realm: realm.map(Into::into) }), "{text}");
        }
        for (text, expected) in [
            ("gss include_realm=yes", "expected 1 or 0"),
            ("gss krb_realm=", "expected the name of a realm"),
            ("gss pamservice=x", "pamservice"),
            ("pam krb_realm=x", "krb_realm"),
            ("md5 include_realm=0", "include_realm"),
        ] {
            let error = options(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
        let error = Rules::parse("local all all gss").unwrap_err();
        assert!(error[0].message.contains("type local"), "{error:?}");
    }

    #[test]
    fn a_principal_is_a_user_as_with_postgresql() {
        let maps = Maps::parse("m /^(.*)@A\\.TEST$ \\1\nm ben@B.TEST ann\n").unwrap();
        for (principal, user, options, map, any_case, allowed) in [
            ("ann@A.TEST", "ann", "", None, false, false),
            ("ann@A.TEST", "ann@A.TEST", "", None, false, true),
            ("ann@A.TEST", "ann", "include_realm=0", None, false, true),
            ("ann@A.TEST", "ben", "include_realm=0", None, false, false),
            ("Ann@A.TEST", "ann", "include_realm=0", None, false, false),
            ("Ann@A.TEST", "ann", "include_realm=0", None, true, true),
            ("ann@B.TEST", "ann", "include_realm=0 krb_realm=A.TEST", None, false, false),
            ("ann@a.test", "ann", "include_realm=0 krb_realm=A.TEST", None, false, false),
            ("ann@a.test", "ann", "include_realm=0 krb_realm=A.TEST", None, true, true),
            ("ann", "ann", "include_realm=0 krb_realm=A.TEST", None, false, false),
            ("ann@A.TEST", "ann", "", Some("m"), false, true),
            ("ann@B.TEST", "ann", "", Some("m"), false, false),
            ("ben@B.TEST", "ann", "", Some("m"), false, true),
            // The host of a service is a part of its name.
            ("ann/admin@A.TEST", "ann", "include_realm=0", None, false, false),
        ] {
            let options = super::tests::options(&format!("gss {options}")).unwrap();
            let found = options.allow(principal, user, map, &maps, any_case);
            assert_eq!(found, allowed, "{principal} {user} {options:?} {map:?}");
        }
    }
}
