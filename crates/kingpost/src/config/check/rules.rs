//! Files and tables of who may log in, read as the proxy reads them.

use std::path::Path;

use proxy::config::{AuthMethod, ProxyConfig};
use proxy::hba::{self, Rule, Rules};
use proxy::ident::Maps;

use super::Findings;

/// The name maps, and that each map that a rule names is there.
pub(super) fn check_maps(proxy: &ProxyConfig, findings: &mut Findings) {
    let at = "proxy.ident_file";
    let maps = match &proxy.ident_file {
        None => Maps::default(),
        Some(file) => {
            let text = match std::fs::read_to_string(file) {
                Ok(text) => text,
                Err(error) => return findings.error(at, format!("cannot read {:?}: {error}", file.display())),
            };
            match Maps::parse(&text) {
                Ok(maps) => maps,
                Err(errors) => return lines(file, at, &errors, findings),
            }
        }
    };
    let missing = |map: Option<&str>| {
        map.filter(|map| !maps.has(map)).map(|map| {
            format!("found map={map}, and proxy.ident_file has no line of that map: nobody could log in by the rule")
        })
    };
    for (index, entry) in proxy.hba.iter().enumerate() {
        if let Some(why) = rule(entry).ok().and_then(|rule| missing(rule.map.as_deref())) {
            findings.error(format!("proxy.hba[{index}].method"), why);
        }
    }
    let text = proxy.hba_file.as_deref().map(std::fs::read_to_string);
    if let Some(Ok(text)) = text
        && let Ok(rules) = Rules::parse(&text)
        && let Some(why) = rules.iter().find_map(|rule| missing(rule.map.as_deref()))
    {
        findings.error("proxy.hba_file", why);
    }
}

/// Whether some rule lets clients in whose secret the proxy does not know: by certificate, by the operating system, by a directory.
pub(super) fn prove_otherwise(proxy: &ProxyConfig) -> bool {
    let proves = |rule: &Rule| {
        let methods = [AuthMethod::Cert, AuthMethod::Peer, AuthMethod::Ldap];
        methods.iter().any(|method| rule.method == hba::Method::Auth(*method))
    };
    let file = proxy.hba_file.as_deref().and_then(|file| Rules::parse(&std::fs::read_to_string(file).ok()?).ok());
    proxy.hba.iter().filter_map(|entry| rule(entry).ok()).any(|rule| proves(&rule))
        || file.is_some_and(|rules| rules.iter().any(proves))
}

/// A password that crosses the network in clear, to the proxy or to a directory.
fn warn_of_clear(rule: &Rule, path: &str, findings: &mut Findings) {
    let Some(ldap) = &rule.ldap else { return };
    if matches!(rule.kind, hba::Kind::Host | hba::Kind::HostNoSsl) && !rule.is_near() {
        findings.warn(path, "a rule with the method ldap has clients send their passwords in clear, without TLS: expected the type hostssl");
    }
    if ldap.is_plain()
        && !ldap
            .servers
            .iter()
            .all(|server| server.starts_with("ldap://127.") || server.starts_with("ldap://localhost:"))
    {
        findings.warn(path, "a rule with the method ldap sends passwords to the LDAP server in clear: expected ldaptls=1 or ldapscheme=ldaps");
    }
}

fn rule(entry: &proxy::config::HbaConfig) -> Result<Rule, String> {
    Rule::from_fields(hba::Fields {
        kind: &entry.kind,
        database: &entry.database,
        user: &entry.user,
        address: entry.address.as_deref(),
        method: &entry.method,
    })
}

/// Each wrong line of a file.
fn lines(file: &Path, at: &str, errors: &[hba::Error], findings: &mut Findings) {
    for error in errors {
        findings.error(at, format!("{}:{}: {}", file.display(), error.line, error.message));
    }
}

/// The rules of who may log in, read as the proxy reads them.
pub(super) fn check_rules(proxy: &ProxyConfig, findings: &mut Findings) {
    let open = "lets everybody in without a proof, from other machines too";
    for (index, entry) in proxy.hba.iter().enumerate() {
        let path = format!("proxy.hba[{index}]");
        match rule(entry) {
            Err(why) => findings.error(path, why),
            Ok(rule) if rule.is_open() => findings.warn(path, open),
            Ok(rule) => warn_of_clear(&rule, &path, findings),
        }
    }
    let Some(file) = &proxy.hba_file else { return };
    if !proxy.hba.is_empty() {
        findings.error("proxy.hba_file", "found proxy.hba beside it, expected at most one of them");
    }
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => return findings.error("proxy.hba_file", format!("cannot read {:?}: {error}", file.display())),
    };
    match Rules::parse(&text) {
        Err(errors) => {
            lines(file, "proxy.hba_file", &errors, findings);
        }
        Ok(rules) if rules.iter().any(Rule::is_open) => {
            findings.warn("proxy.hba_file", format!("a rule of {} {open}", file.display()));
        }
        Ok(rules) => rules.iter().for_each(|rule| warn_of_clear(rule, "proxy.hba_file", findings)),
    }
}
