//! Requirements for the login of a client, set by a rule ([`crate::hba`]), a user's own `auth`, or `proxy.auth`; one demand decides on a login,
//! whatever its source.
//!
//! The methods are those of [`AuthMethod`]. Their options are PostgreSQL's, with the same syntax: `clientcert=verify-ca|verify-full`, `map=` with
//! `cert`, `peer`, `gss` and `oauth`, and those of `ldap` ([`crate::ldap`]), `pam` ([`crate::pam`]), `gss` ([`crate::gss`]) and `oauth`
//! ([`crate::oauth`]). In rules they follow the method; for `auth` they are in `[proxy.ldap]` and `[proxy.pam]`.

use crate::config::{AuthMethod, ProxyConfig};
use crate::tokens::{Word, single, split};
use crate::verify::{Judge, Reading};

pub(crate) const EXPECTED_METHOD: &str = "trust, reject, scram-sha-256, md5, cert, peer, ldap, pam, gss or oauth";

/// Requirements for the login of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// Authentication method.
    pub method: AuthMethod,
    /// The certificate required besides the method.
    pub certificate: Certificate,
    /// The name map with the users that a client may be, for `cert`, `peer`, `gss` and `oauth`; `None`: the user of the same name.
    pub map: Option<Box<str>>,
    /// Authenticator of passwords or tokens, for the methods `ldap`, `pam`, `gss` and `oauth`.
    pub judge: Option<Judge>,
}

/// Certificate required of a client besides its method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certificate {
    /// No certificate.
    No,
    /// A certificate of a CA in `[proxy.tls]`.
    Any,
    /// A certificate whose common name is the user's name.
    OfUser,
}

/// Error in the options of a method in `auth`.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {message}")]
pub struct OptionsError {
    /// The invalid setting.
    pub key: &'static str,
    /// The found and the expected value. Never contains a password.
    pub message: String,
}

impl Demand {
    /// Parses the method and the options of a rule; `None`: the rule refuses clients.
    ///
    /// # Errors
    /// A message with the found and the expected text.
    pub(crate) fn read(method: &[Word], options: impl Iterator<Item = Vec<Word>>) -> Result<Option<Demand>, String> {
        let found = &single(method, "one method")?.text;
        let method = match found.as_str() {
            "trust" => Some(AuthMethod::Trust),
            "reject" => None,
            "scram-sha-256" => Some(AuthMethod::ScramSha256),
            "md5" => Some(AuthMethod::Md5),
            "cert" => Some(AuthMethod::Cert),
            "peer" => Some(AuthMethod::Peer),
            "ldap" => Some(AuthMethod::Ldap),
            "pam" => Some(AuthMethod::Pam),
            "gss" => Some(AuthMethod::Gss),
            "oauth" => Some(AuthMethod::OAuth),
            _ => return Err(format!("found the method {found:?}, expected {EXPECTED_METHOD}")),
        };
        Demand::of(method, options)
    }

    fn of(method: Option<AuthMethod>, options: impl Iterator<Item = Vec<Word>>) -> Result<Option<Demand>, String> {
        let (mut certificate, mut map) = (Certificate::No, None);
        let mut judge = method.and_then(Reading::of);
        for option in options {
            let (name, value) = option.first().and_then(|word| word.text.split_once('=')).unwrap_or_default();
            if name == "ldapbindpasswd" && (option.len() != 1 || method != Some(AuthMethod::Ldap)) {
                return Err("found the option ldapbindpasswd with a list or without the method ldap, expected one text in quotation marks".into());
            }
            let option = &single(&option, "one option")?.text;
            if let Some(judge) = &mut judge
                && judge.take(name, value)?
            {
                continue;
            }
            if let Some(name) = option.strip_prefix("map=") {
                if !matches!(method, Some(AuthMethod::Cert | AuthMethod::Peer | AuthMethod::Gss | AuthMethod::OAuth)) {
                    return Err(format!(
                        "found the option {option:?}, expected the method cert, peer, gss or oauth with it"
                    ));
                }
                map = Some(name.into());
                continue;
            }
            certificate = match option.as_str() {
                "clientcert=verify-ca" => Certificate::Any,
                "clientcert=verify-full" => Certificate::OfUser,
                _ => {
                    return Err(format!(
                        "found the option {option:?}, expected clientcert=verify-ca, clientcert=verify-full or map=NAME, or none"
                    ));
                }
            };
        }
        let judge = judge.map(|judge| judge.finish(map.is_some())).transpose()?;
        Ok(method.map(|method| Demand { method, certificate, map, judge }))
    }
}

impl ProxyConfig {
    /// Returns the demand of `auth = method`, with the configuration's options for the method.
    ///
    /// # Errors
    /// [`OptionsError`]: the options are missing, or invalid.
    pub fn demand(&self, method: AuthMethod) -> Result<Demand, OptionsError> {
        let (key, options) = match method {
            AuthMethod::Ldap => ("proxy.ldap.options", self.ldap.options.as_ref().map(|options| options.expose())),
            AuthMethod::Pam => ("proxy.pam.options", Some(self.pam.options.as_str())),
            _ => ("proxy.auth", Some("")),
        };
        let wrong = |message| OptionsError { key, message };
        let Some(options) = options else {
            return Err(wrong(
                "missing, and auth is \"ldap\": expected options as in a rule, ldapserver=HOST ldapbasedn=\"dc=example,dc=net\" for one".into(),
            ));
        };
        let demand = split(options).and_then(|words| Demand::of(Some(method), words.into_iter())).map_err(wrong)?;
        match demand {
            Some(demand) if demand.certificate == Certificate::No && demand.map.is_none() => Ok(demand),
            _ => Err(wrong(format!("found clientcert or map, expected options of the method {} alone", method.name()))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::{LdapConfig, PamConfig, Secret};
    use crate::hba::Rules;

    fn config(ldap: Option<&str>, pam: &str) -> ProxyConfig {
        ProxyConfig {
            ldap: LdapConfig { options: ldap.map(Secret::new), ..LdapConfig::default() },
            pam: PamConfig { options: pam.into(), ..PamConfig::default() },
            ..ProxyConfig::default()
        }
    }

    #[test]
    fn options_mean_what_they_mean_in_a_rule() {
        let ldap = r#"ldapserver="one two" ldapbasedn="dc=x, dc=y" ldapbinddn=cn=me ldapbindpasswd="p w""#;
        for (method, options) in [
            (AuthMethod::Ldap, ldap),
            (AuthMethod::Ldap, "ldapurl=ldaps://h/dc=x?mail?one"),
            (AuthMethod::Pam, "pamservice=kingpost pam_use_hostname=1"),
            (AuthMethod::Pam, ""),
            (AuthMethod::ScramSha256, ""),
        ] {
            let rule = Rules::parse(&format!("host all all all {} {options}", method.name())).unwrap();
            let demand = config(Some(options), options).demand(method).unwrap();
            assert_eq!(Some(&demand), rule.iter().next().unwrap().demand.as_deref(), "{options}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_a_secret() {
        for (method, options, key, says) in [
            (AuthMethod::Ldap, None, "proxy.ldap.options", "missing"),
            (AuthMethod::Ldap, Some(""), "proxy.ldap.options", "names of servers"),
            (
                AuthMethod::Ldap,
                Some("ldapserver=h ldapprefix=y ldapbindpasswd=s3cret"),
                "proxy.ldap.options",
                "one way",
            ),
            (
                AuthMethod::Ldap,
                Some("ldapserver=h ldapbasedn=x clientcert=verify-ca"),
                "proxy.ldap.options",
                "clientcert",
            ),
            (AuthMethod::Ldap, Some("ldap ldapserver=h ldapbasedn=x"), "proxy.ldap.options", "\"ldap\""),
            (AuthMethod::Pam, Some("pamservice=/etc/pam.d/su"), "proxy.pam.options", "/etc/pam.d"),
            (AuthMethod::Pam, Some("map=m"), "proxy.pam.options", "map"),
        ] {
            let of_pam = options.filter(|_| method == AuthMethod::Pam).unwrap_or_default();
            let config = config(options, of_pam);
            let error = config.demand(method).expect_err(says);
            assert_eq!(error.key, key, "{options:?}");
            assert!(error.message.contains(says), "{options:?}: {error}");
            assert!(!format!("{error} {config:?}").contains("s3cret"), "{error}");
        }
    }
}
