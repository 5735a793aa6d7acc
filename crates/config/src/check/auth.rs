//! Checks of the `auth` methods: the proxy's, those of users and of operators.

use proxy::config::{AuthMethod, ProxyConfig};

use super::findings::Findings;
use super::rules::{is_in_clear, warn_of_plain_directory};
use process::address::parse_address;

/// Checks that each method in some `auth` can be used, and warns of doubtful ones.
pub(super) fn check(proxy: &ProxyConfig, findings: &mut Findings) {
    let users = proxy.users.iter().enumerate().map(|(at, user)| (format!("proxy.users[{at}].auth"), user.auth));
    let operators = proxy.operators.iter().enumerate();
    let operators = operators.map(|(at, operator)| (format!("proxy.operators[{at}].auth"), operator.auth));
    let own = users.chain(operators).filter_map(|(path, method)| Some((path, method?)));
    let has_rules = !proxy.hba.is_empty() || proxy.hba_file.is_some();
    let in_clear = !has_rules && is_reached_in_clear(proxy);
    let mut known: Vec<AuthMethod> = Vec::new();
    for (path, method) in std::iter::once(("proxy.auth".to_owned(), proxy.auth)).chain(own) {
        if has_rules && path != "proxy.auth" {
            findings.warn(&*path, "is not used: rules of who may come from where decide how everybody logs in");
        }
        // An error of a method is reported once.
        let demand = if known.contains(&method) { None } else { Some(proxy.demand(method)) };
        known.push(method);
        match demand {
            Some(Err(error)) => findings.error(error.key, error.message),
            Some(Ok(demand)) if !has_rules => {
                if let Some(judge) = &demand.judge {
                    warn_of_plain_directory(judge, "proxy.ldap.options", findings);
                }
            }
            _ => {}
        }
        if in_clear && matches!(method, AuthMethod::Ldap | AuthMethod::Pam) {
            findings.warn(path, format!("a login {}", is_in_clear(method, "[proxy.tls] with mode = \"require\"")));
        }
    }
}

/// True if clients on other machines can connect without TLS.
fn is_reached_in_clear(proxy: &ProxyConfig) -> bool {
    let is_far = |address: &str| parse_address(address, true).is_ok_and(|host| !host.is_local());
    proxy.tls.mode != tls::ListenMode::Require && proxy.listen.iter().any(|listen| is_far(&listen.address))
}
