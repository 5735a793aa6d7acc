//! Checks of tracing, collectors and the upgrade socket.

use std::path::Path;

use proxy::config::ProxyConfig;

use super::findings::Findings;
use crate::otlp::{Collector, EXPECTED, Wrong};
use process::address::{Host, SOCKET_PATH_LIMIT, parse_address};

pub(super) fn check(proxy: &ProxyConfig, findings: &mut Findings) {
    check_tracing(proxy, findings);
    if let Some(path) = &proxy.upgrade_socket {
        check_upgrade_socket(path, proxy, findings);
    }
}

fn check_upgrade_socket(path: &Path, proxy: &ProxyConfig, findings: &mut Findings) {
    let key = "proxy.upgrade_socket";
    if !path.is_absolute() || path.as_os_str().len() > SOCKET_PATH_LIMIT {
        let expected = format!("expected an absolute path of at most {SOCKET_PATH_LIMIT} bytes");
        findings.error(key, format!("found {path:?}, {expected}"));
    }
    if let Some(index) = proxy.listen.iter().position(|listen| Path::new(&listen.address) == path) {
        findings.error(key, format!("found {path:?}, which is proxy.listen[{index}]; expected a path of its own"));
    }
}

fn check_tracing(proxy: &ProxyConfig, findings: &mut Findings) {
    match Collector::of_traces(&proxy.tracing) {
        Some(collector) => {
            check_collector(&collector, "proxy.tracing", "texts of statements, without their literals,", findings);
        }
        None if proxy.tracing.ratio.is_some() => {
            findings.warn("proxy.tracing.ratio", "traces nothing without proxy.tracing.endpoint");
        }
        None => {}
    }
}

/// Checks a collector. `path`: its table; `sent`: the data sent to it.
pub(super) fn check_collector(collector: &Collector<'_>, path: &str, sent: &str, findings: &mut Findings) {
    let endpoint = format!("{path}.endpoint");
    let Some((address, secure)) = collector.address() else {
        return findings.error(endpoint, format!("found {:?}, {EXPECTED}", collector.endpoint));
    };
    match parse_address(address, false) {
        Ok(Host::Unix) => return findings.error(endpoint, format!("found {:?}, {EXPECTED}", collector.endpoint)),
        Err(why) => return findings.error(endpoint, format!("{why}; {EXPECTED}")),
        Ok(host) if !secure && !host.is_local() && collector.has_headers() => findings.error(
            format!("{path}.headers"),
            "found some for a collector on another machine that is spoken to in clear; expected https:// in the endpoint",
        ),
        Ok(host) if !secure && !host.is_local() => {
            findings.warn(endpoint, format!("is on another machine: {sent} cross the network in clear"));
        }
        Ok(_) => {}
    }
    if !secure && collector.has_tls_files() {
        findings.warn(format!("{path}.ca_file"), "and cert_file and key_file are not used: the endpoint is http://");
    }
    let wrong = collector.way().err().into_iter().chain(collector.metadata().err());
    for Wrong { key, why } in wrong {
        findings.error(format!("{path}.{key}"), why);
    }
}
