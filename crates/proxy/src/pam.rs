//! Options of the method `pam` in rules, as in PostgreSQL. This module does not call PAM.

/// PAM service of a rule that names none: PostgreSQL's default, so that a line of `pg_hba.conf` has the same meaning here.
pub const DEFAULT_SERVICE: &str = "postgresql";

/// Maximum length of a service's name, in bytes: it is the name of a file in `/etc/pam.d`.
const LONGEST_SERVICE: usize = 255;

/// Options of a PAM request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `pamservice`: the file in `/etc/pam.d`.
    pub service: String,
    /// `pam_use_hostname`: true if modules get the name of the client's host, not the address.
    pub use_hostname: bool,
}

/// Options of one rule while they are parsed.
#[derive(Default)]
pub(crate) struct Reading {
    service: Option<String>,
    use_hostname: bool,
}

impl Reading {
    /// Parses one option; returns false if the name is unknown.
    ///
    /// # Errors
    /// A message with the found and the expected text.
    pub(crate) fn take(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match (name, value) {
            ("pamservice", value) if is_service(value) => self.service = Some(value.to_owned()),
            ("pamservice", value) => {
                return Err(format!(
                    "found pamservice={value}, expected the name of a file in /etc/pam.d: letters, digits, and any of \"-_.@\" behind the first"
                ));
            }
            ("pam_use_hostname", "0" | "1") => self.use_hostname = value == "1",
            ("pam_use_hostname", value) => return Err(format!("found pam_use_hostname={value}, expected 1 or 0")),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the options.
    pub(crate) fn finish(self) -> Options {
        Options { service: self.service.unwrap_or_else(|| DEFAULT_SERVICE.to_owned()), use_hostname: self.use_hostname }
    }
}

/// True if PAM can look up a service of this name, and in its own directory only: PAM itself removes a path from the name.
fn is_service(name: &str) -> bool {
    name.len() <= LONGEST_SERVICE
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@'))
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
            Some(Judge::Pam(options)) => Ok((*options).clone()),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn options_are_postgresqls() {
        for (text, service, use_hostname) in [
            ("pam", "postgresql", false),
            ("pam pamservice=pgbouncer", "pgbouncer", false),
            ("pam pamservice=\"my-app.v2\" pam_use_hostname=1", "my-app.v2", true),
            ("pam pam_use_hostname=0", "postgresql", false),
        ] {
            assert_eq!(options(text), Ok(Options { service: service.into(), use_hostname }), "{text}");
        }
        let longest = "a".repeat(LONGEST_SERVICE + 1);
        for (text, expected) in [
            ("pam pamservice=", "pamservice="),
            ("pam pamservice=../../tmp/mine", "/etc/pam.d"),
            ("pam pamservice=/etc/pam.d/su", "/etc/pam.d"),
            ("pam pamservice=.hidden", "pamservice=.hidden"),
            ("pam pamservice=\"two words\"", "two words"),
            ("pam pam_use_hostname=yes", "expected 1 or 0"),
            ("pam pammagic=1", "pammagic"),
            ("pam map=m", "map"),
            ("pam ldapserver=h", "ldapserver"),
            ("ldap ldapserver=h ldapbasedn=x pamservice=y", "pamservice"),
            ("md5 pamservice=y", "pamservice"),
            (&format!("pam pamservice={longest}"), "/etc/pam.d"),
        ] {
            let error = options(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
