//! Checks of the files and tables of login rules, read as the proxy reads them.

use std::path::Path;

use proxy::config::{AuthMethod, ProxyConfig};
use proxy::demand::Demand;
use proxy::hba::{self, Rule, Rules};
use proxy::ident::Maps;
use proxy::verify::Judge;

use super::findings::Findings;

/// The login rules and the name maps, each file read once.
pub(super) struct Access {
    /// Rules of `proxy.hba`.
    entries: Vec<Result<Rule, String>>,
    /// Rules of `proxy.hba_file`.
    file: Option<Result<Rules, Unread>>,
    maps: Result<Maps, Unread>,
}

/// The reason why a file gives nothing.
enum Unread {
    File(std::io::Error),
    Lines(Vec<hba::Error>),
}

impl Access {
    pub(super) fn of(proxy: &ProxyConfig) -> Access {
        Access {
            entries: proxy.hba.iter().map(|entry| Rule::from_fields(entry.fields())).collect(),
            file: proxy.hba_file.as_deref().map(|file| parsed(file, Rules::parse)),
            maps: proxy.ident_file.as_deref().map_or(Ok(Maps::default()), |file| parsed(file, Maps::parse)),
        }
    }

    /// Returns the rules of the file, if it can be read.
    fn of_file(&self) -> impl Iterator<Item = &Rule> {
        self.file.iter().flatten().flat_map(Rules::iter)
    }

    /// Returns the demands of all rules that can be read.
    fn demands(&self) -> impl Iterator<Item = &Demand> {
        self.entries.iter().flatten().chain(self.of_file()).filter_map(|rule| rule.demand.as_deref())
    }

    /// True if some rule accepts clients whose secret the proxy does not know: by certificate, by the operating system, by a directory, by PAM, by a
    /// token.
    pub(super) fn proves_otherwise(&self) -> bool {
        self.demands().any(|demand| demand.method.proves_otherwise())
    }

    /// Checks the rules, and that each map that a rule names exists.
    pub(super) fn check(&self, proxy: &ProxyConfig, findings: &mut Findings) {
        self.check_rules(proxy, findings);
        self.check_maps(proxy, findings);
        self.check_tokens(proxy, findings);
    }

    /// Checks the settings that rules with the method oauth need.
    fn check_tokens(&self, proxy: &ProxyConfig, findings: &mut Findings) {
        let judges = self.demands().filter_map(|demand| demand.judge.as_ref());
        let mut options = judges.filter_map(|judge| match judge {
            Judge::OAuth(options) => Some(options),
            _ => None,
        });
        let Some(first) = options.next() else { return };
        if proxy.oauth.audience.is_empty() {
            findings.error("proxy.oauth.audience", "found none, and a rule has the method oauth: expected whom tokens are made for (aud); nobody could log in");
        }
        if proxy.oauth.users_claim.is_none() && (first.delegates || options.any(|options| options.delegates)) {
            findings.error(
                "proxy.oauth.users_claim",
                "found none, and a rule has delegate_ident_mapping=1: expected the claim that names the users",
            );
        }
    }

    fn check_rules(&self, proxy: &ProxyConfig, findings: &mut Findings) {
        let open = "lets everybody in without a proof, from other machines too";
        for (index, rule) in self.entries.iter().enumerate() {
            let path = format!("proxy.hba[{index}]");
            match rule {
                Err(why) => findings.error(path, why.clone()),
                Ok(rule) if rule.is_open() => findings.warn(path, open),
                Ok(rule) => warn_of_clear(rule, &path, findings),
            }
        }
        let (Some(file), Some(rules)) = (&proxy.hba_file, &self.file) else { return };
        let at = "proxy.hba_file";
        if !proxy.hba.is_empty() {
            findings.error(at, "found proxy.hba beside it, expected at most one of them");
        }
        match rules {
            Err(why) => why.report(file, at, findings),
            Ok(rules) if rules.iter().any(Rule::is_open) => {
                findings.warn(at, format!("a rule of {} {open}", file.display()));
            }
            Ok(rules) => rules.iter().for_each(|rule| warn_of_clear(rule, at, findings)),
        }
    }

    fn check_maps(&self, proxy: &ProxyConfig, findings: &mut Findings) {
        let maps = match (&self.maps, &proxy.ident_file) {
            (Ok(maps), _) => maps,
            (Err(why), file) => {
                return why.report(file.as_deref().unwrap_or(Path::new("")), "proxy.ident_file", findings);
            }
        };
        let missing = |rule: &Rule| {
            rule.demand.as_ref().and_then(|demand| demand.map.as_deref()).filter(|map| !maps.has(map)).map(|map| {
                format!(
                    "found map={map}, and proxy.ident_file has no line of that map: nobody could log in by the rule"
                )
            })
        };
        for (index, rule) in self.entries.iter().enumerate() {
            if let Some(why) = rule.as_ref().ok().and_then(missing) {
                findings.error(format!("proxy.hba[{index}].method"), why);
            }
        }
        if let Some(why) = self.of_file().find_map(missing) {
            findings.error("proxy.hba_file", why);
        }
    }
}

impl Unread {
    fn report(&self, file: &Path, at: &str, findings: &mut Findings) {
        match self {
            Unread::File(error) => findings.error(at, format!("cannot read {:?}: {error}", file.display())),
            Unread::Lines(errors) => {
                for error in errors {
                    findings.error(at, format!("{}:{}: {}", file.display(), error.line, error.message));
                }
            }
        }
    }
}

fn parsed<T>(file: &Path, parse: impl FnOnce(&str) -> Result<T, Vec<hba::Error>>) -> Result<T, Unread> {
    let text = std::fs::read_to_string(file).map_err(Unread::File)?;
    parse(&text).map_err(Unread::Lines)
}

/// Warns of a password that crosses the network in clear, to the proxy or to a directory.
fn warn_of_clear(rule: &Rule, path: &str, findings: &mut Findings) {
    let Some(demand) = &rule.demand else { return };
    let Some(judge) = &demand.judge else { return };
    // Without TLS a token is refused, and a Kerberos ticket is no password.
    let is_password = matches!(judge, Judge::Ldap(_) | Judge::Pam(_));
    if matches!(rule.kind, hba::Kind::Host | hba::Kind::HostNoSsl) && !rule.is_near() && is_password {
        findings.warn(path, format!("a rule {}", is_in_clear(demand.method, "the type hostssl")));
    }
    warn_of_plain_directory(judge, path, findings);
}

/// Makes the message that clients' passwords cross the network in clear, with the setting that prevents it.
pub(super) fn is_in_clear(method: AuthMethod, expected: &str) -> String {
    let method = method.name();
    format!("with the method {method} has clients send their passwords in clear, without TLS: expected {expected}")
}

/// Warns of a directory on another machine that gets passwords in clear.
pub(super) fn warn_of_plain_directory(judge: &Judge, path: &str, findings: &mut Findings) {
    let Judge::Ldap(ldap) = judge else { return };
    let is_near = |server: &String| server.starts_with("ldap://127.") || server.starts_with("ldap://localhost:");
    if ldap.is_plain() && !ldap.servers.iter().all(is_near) {
        let text =
            "the method ldap sends passwords to the LDAP server in clear: expected ldaptls=1 or ldapscheme=ldaps";
        findings.warn(path, text);
    }
}
